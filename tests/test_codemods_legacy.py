"""The codemods for old calls, where a program is more than the files that ran."""

from gradfix.result import Settings
from gradfix.testing import one

SCRIPT = """\
import torch
from helpers import *

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def evaluate(batch):
    return net(Variable(batch)).item()


for batch in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    loss_of(net, batch).backward()
    optimizer.step()
"""
HELPERS = """\
from torch.autograd import Variable


def loss_of(net, batch):
    x = Variable(batch)
    return net(x).pow(2).mean()
"""


OLD_NAME = """\
from torch.nn.utils import clip_grad_norm


def step(net, optimizer):
    clip_grad_norm(net.parameters(), 0.5)
    optimizer.step()
"""
STEPS = """\
import torch
from helpers import *

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def by_hand():
    clip_grad_norm(net.parameters(), 0.5)


for batch in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    net(batch).pow(2).mean().backward()
    step(net, optimizer)
"""


def test_a_module_keeps_the_old_name_beside_the_new_one(tmp_path, zygote):
    (tmp_path / "train.py").write_text(STEPS)
    (tmp_path / "helpers.py").write_text(OLD_NAME)
    found = one(tmp_path / "train.py", zygote, Settings(codemods=("legacy-names",), notes=True))
    after = OLD_NAME.replace("import clip_grad_norm", "import clip_grad_norm, clip_grad_norm_")
    after = after.replace("    clip_grad_norm(", "    clip_grad_norm_(")
    assert {path: new for path, (_, new) in found.files.items()} == {str(tmp_path / "helpers.py"): after}


def test_a_module_keeps_the_name_that_others_take_from_it(tmp_path, zygote):
    """`evaluate` did not run: nothing that was measured could tell."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helpers.py").write_text(HELPERS)
    found = one(tmp_path / "train.py", zygote, Settings(codemods=("legacy-variable",), notes=True))
    after = HELPERS.replace("x = Variable(batch)", "x = batch")
    assert {path: new for path, (_, new) in found.files.items()} == {str(tmp_path / "helpers.py"): after}
