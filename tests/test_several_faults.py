"""Two faults of one script, cured as one person would cure them."""

from pathlib import Path

import pytest

from gradfix import testing
from gradfix.result import Settings
from gradfix.run.zygote import Zygote

UNCLEARED = """\
import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self):
        self.nets = {
            "G": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)),
            "D": nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
        }
        self.optims = {k: torch.optim.Adam(net.parameters(), lr=1e-4) for k, net in self.nets.items()}

    def d_loss(self, real, fake):
        return F.relu(1 - self.nets["D"](real)).mean() + F.relu(1 + self.nets["D"](fake)).mean()

    def train_step(self, real):
        fake = self.nets["G"](torch.randn(len(real), 4))
        self.optims["D"].zero_grad()
        loss_d = self.d_loss(real, fake)
        loss_d.backward()
        self.optims["D"].step()

        loss_g = -self.nets["D"](fake).mean()
        loss_g.backward()
        self.optims["G"].step()


torch.manual_seed(0)
trainer = Trainer()
for step in range(4):
    trainer.train_step(torch.randn(8, 8))
"""

THROUGH_NUMPY = """\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for x in torch.rand(4, 8, 6):
    code = encoder(x)
    values = code.detach().numpy()
    loss = (decoder({taken}) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


INNER = """\
import copy
import torch


def adapt(model, x):
    fast = copy.deepcopy(model)
    grads = torch.autograd.grad(fast(x).pow(2).mean(), fast.parameters(), create_graph=True)
    for p, g in zip(fast.parameters(), grads):
        p.data -= 0.1 * g
    return fast
"""

OUTER = """\
import torch
from inner import adapt

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = (adapt(model, x)(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_graph_is_not_kept_for_a_gradient_that_is_cleared(tmp_path: Path, zygote: Zygote) -> None:
    """The discriminator's loss goes on into the generator, whose gradients nothing clears: once they are cleared, a
    detach and a retained graph are equal, and nobody wants the second."""
    script = tmp_path / "train.py"
    script.write_text(UNCLEARED, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (text for _, text in result.files.values())
    expected = UNCLEARED.replace("self.d_loss(real, fake)\n", "self.d_loss(real, fake.detach())\n")
    assert new == expected.replace(
        "        loss_g.backward()", '        self.optims["G"].zero_grad()\n        loss_g.backward()'
    )


@pytest.mark.parametrize(
    ("taken", "cured"),
    [
        ("torch.tensor(values)", "values = code\n    loss = (decoder(values)"),
        ("torch.from_numpy((values - values.mean()) / 2)", "decoder((values - values.mean()) / 2)"),
    ],
)
def test_what_goes_through_numpy_trains_nothing_below(
    tmp_path: Path, zygote: Zygote, taken: str, cured: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(THROUGH_NUMPY.format(taken=taken), encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    told = [(d.conflict.kind, d.conflict.pattern) for d in result.diagnoses if d.status != "note"]
    assert told == [("cut-graph", "partly")]
    (new,) = (text for _, text in result.files.values())
    assert cured in new


def test_a_copy_that_another_file_asks_more_of_stays(tmp_path: Path, zygote: Zygote) -> None:
    """A function that gives its copy away, to a file that the run does not come to."""
    (tmp_path / "inner.py").write_text(INNER, encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(OUTER, encoding="utf-8")
    assert [len(testing.one(script, zygote, Settings()).files)] == [1]
    asks = "from inner import adapt\n\ndef state(model, x):\n    return adapt(model, x).state_dict()\n"
    (tmp_path / "evaluate.py").write_text(asks, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert [d.conflict.pattern for d in result.diagnoses] == ["updated-copies"]
    assert not result.files
