"""Modules that a Trainer of Lightning's trains, in the text: with optimizers of their own, or with the Trainer's."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import might_matter, read

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR
import {library}
class Net({base}):
    def __init__(self, latent=4):
        super().__init__()
        self.save_hyperparameters()
        {manual}
        self.latent, self.state = latent, None
        self.G = nn.Sequential(nn.Linear(latent, 6), nn.ReLU(), nn.Linear(6, 3))
        self.D = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
        self.rnn = nn.GRU(3, 3)
    def forward(self, z):
        return self.G(z)
    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.G.parameters(), lr=self.hparams.lr)
        opt_d = torch.optim.Adam(self.D.parameters(), lr=self.hparams.lr)
        return {returned}
"""
MANUAL = "self.automatic_optimization = False"
TWO = "opt_g, opt_d"
BEGIN = """\
def training_step(self, batch, batch_idx):
    x, _ = batch
    opt_g, opt_d = self.optimizers()
    fake = self(torch.randn(8, self.latent, device=self.device))
"""
SHARED = """\
    score = self.D(fake)
    loss_d = (score - self.D(x)).mean()
    opt_d.zero_grad()
    self.manual_backward(loss_d{retain})
    opt_d.step()
    loss_g = -{again}.mean()
    self.log_dict({{"d": loss_d, "g": loss_g}}, prog_bar=True)
    opt_g.zero_grad()
    self.manual_backward(loss_g)
    opt_g.step()
"""
TOGGLED = """\
    {toggle_g}
    loss_g = -self.D(fake).mean()
    self.manual_backward(loss_g)
    self.clip_gradients(opt_g, gradient_clip_val=1.0)
    opt_g.step()
    opt_g.zero_grad()
    {untoggle_g}
    {toggle_d}
    loss_d = (self.D(fake.detach()) - self.D(x)).mean()
    self.manual_backward(loss_d)
    opt_d.step()
    opt_d.zero_grad()
    {untoggle_d}
"""
CALLS = {
    "toggle_g": "self.toggle_optimizer(opt_g)",
    "untoggle_g": "self.untoggle_optimizer(opt_g)",
    "toggle_d": "self.toggle_optimizer(opt_d)",
    "untoggle_d": "self.untoggle_optimizer(opt_d)",
}


def found(
    tmp_path: Path,
    body: str,
    returned: str = TWO,
    manual: str = MANUAL,
    library: str = "lightning as L",
    base: str = "L.LightningModule",
) -> list[tuple[str, str, str, str]]:
    """(kind, pattern, the line of the text, evidence) above a note."""
    head = HEAD.format(library=library, base=base, manual=manual, returned=returned)
    text = head + textwrap.indent(body, "    ")
    assert might_matter(text.encode())
    return list(
        dict.fromkeys(
            (c.kind, c.pattern, text.splitlines()[c.at.line - 1].strip(), reading.evidence(c))
            for reading in read(tmp_path / "model.py", text, idle=False)
            for c in detect(reading.tape)
            if c.severity != "note"
        )
    )


@pytest.mark.parametrize(
    ("library", "base"),
    [
        ("lightning as L", "L.LightningModule"),
        ("pytorch_lightning as pl", "pl.LightningModule"),
        ("pytorch_lightning.core", "pytorch_lightning.core.LightningModule"),
    ],
)
@pytest.mark.parametrize(
    "returned",
    [
        TWO,
        "[opt_g, opt_d], []",
        "[{'optimizer': opt_g, 'frequency': 1}, {'optimizer': opt_d, 'lr_scheduler': ExponentialLR(opt_d, 0.9)}]",
    ],
)
def test_a_graph_that_two_manual_backwards_share(
    tmp_path: Path, library: str, base: str, returned: str
) -> None:
    where = {"library": library, "base": base, "returned": returned}
    stale = BEGIN + SHARED.format(retain=", retain_graph=True", again="score")
    assert found(tmp_path, stale, **where) == [
        ("stale-saved-tensor", "optimizer-step", "opt_d.step()", "certain")
    ]
    freed = BEGIN + SHARED.format(retain="", again="score")
    assert [f[:2] for f in found(tmp_path, freed, **where)] == [("freed-graph", "two-losses")]
    sound = BEGIN.replace("batch_idx", "batch_idx=0") + SHARED.format(
        retain=", retain_graph=True", again="self.D(fake)"
    )
    assert found(tmp_path, sound, **where) == []


def test_parameters_of_other_optimizers_get_nothing_while_one_is_toggled(tmp_path: Path) -> None:
    assert found(tmp_path, BEGIN + TOGGLED.format(**CALLS)) == []
    pairs = {"toggle_g": "with opt_g.toggle_model():", "toggle_d": "with opt_d.toggle_model(sync_grad=True):"}
    lines = TOGGLED.format(**{**CALLS, **pairs, "untoggle_g": "", "untoggle_d": ""}).splitlines()
    inner = "\n".join(line if "with" in line or not line.strip() else "    " + line for line in lines)
    assert found(tmp_path, BEGIN + inner + "\n") == []
    untoggled = TOGGLED.format(**dict.fromkeys(CALLS, "pass"))
    assert [f[:2] for f in found(tmp_path, BEGIN + untoggled)] == [("mixed-gradient", "left-over")]


def test_optimizers_of_which_nothing_is_known_step_nothing(tmp_path: Path) -> None:
    stale = BEGIN + SHARED.format(retain=", retain_graph=True", again="score")
    assert found(tmp_path, stale, returned="somewhere.made(self)") == []


IN_TURN = """\
def training_step(self, batch, batch_idx, optimizer_idx):
    x, _ = batch
    if optimizer_idx == 0:
        self.fake = self(torch.randn(8, self.latent))
        return {{"loss": -self.D(self.fake).mean()}}
    return (self.D(self.fake{cut}) - self.D(x)).mean()
"""
CARRIED = """\
def training_step(self, batch, batch_idx):
    x, y = batch
    out, self.state = self.rnn(x, self.state)
    loss = F.mse_loss(self.D(out), y)
    self.log("train", loss)
    return loss
"""
AVERAGED = """\
def average(self):
    for p in self.D.parameters():
        p.data.mul_(0.9)
def training_step(self, batch, batch_idx):
    {first}
    loss = self.D(self(batch)).mean()
    {then}
    return loss
"""


@pytest.mark.parametrize("cut", ["", ".detach()"])
def test_one_optimizer_after_the_other(tmp_path: Path, cut: str) -> None:
    kinds = [(f[0], f[3]) for f in found(tmp_path, IN_TURN.format(cut=cut), manual="")]
    assert kinds == ([] if cut else [("freed-graph", "certain")])


@pytest.mark.parametrize(
    ("more", "faulty"),
    [
        ("", True),
        (
            "def on_train_batch_end(self, out, batch, batch_idx):\n    self.state = self.state.detach()\n",
            False,
        ),
        ("def on_train_batch_start(self, batch, batch_idx):\n    self.state = None\n", False),
        (
            "def backward(self, loss):\n    loss.backward(retain_graph=True)\n",
            False,
        ),  # (another way to train)
        ("def on_train_epoch_start(self):\n    self.state = None\n", True),
    ],
)
def test_what_a_pass_leaves_to_the_next(tmp_path: Path, more: str, faulty: bool) -> None:
    kinds = [f[:2] for f in found(tmp_path, CARRIED + more, returned="opt_d", manual="")]
    assert kinds == [("freed-graph", "carried")] * faulty


def test_what_is_written_before_the_backward_of_the_trainer(tmp_path: Path) -> None:
    spoilt = AVERAGED.format(first="pass", then="self.average()")
    expected = [("silent-overwrite", "data", "p.data.mul_(0.9)", "certain")]
    assert found(tmp_path, spoilt, returned="opt_g", manual="") == expected
    before = AVERAGED.format(first="self.average()", then="pass")
    assert found(tmp_path, before, returned="opt_g", manual="") == []


@pytest.mark.parametrize("base", ["L.LightningModule", "object"])
def test_only_modules_are_trained(tmp_path: Path, base: str) -> None:
    text = f"""\
import torch
import lightning as L
class Net({base}):
    def training_step(self, batch):
        w = torch.ones(2, requires_grad=True)
        w += 1
        return w.sum()
"""
    kinds = [c.kind for r in read(tmp_path / "model.py", text, idle=False) for c in detect(r.tape)]
    assert kinds == ["leaf-write"] * (base != "object")
