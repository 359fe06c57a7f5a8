"""Threads and processes that a program starts: what they do is read with what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

HEAD = """\
import threading

import torch
import torch.multiprocessing as mp
from torch import nn

from util import learn

net, other = nn.Linear(3, 2), nn.Linear(3, 2)
net.share_memory()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
UTIL = """\
def learn(opt, y):
    h = y.exp()
    h += 1
    opt.zero_grad()
    h.mean().backward()
    opt.step()
"""
WORKER = """
class Worker({base}):
    def __init__(self, net, opt):
        {init}
        self.net, self.opt = net, opt

    def run(self):
        while True:
            learn(self.opt, self.net(torch.randn(4, 3)))


workers = [Worker(net, opt) for _ in range(3)]
for each in workers:
    each.start()
for each in workers:
    each.join()
"""
WORK = """
def work(rank, role, net, opt=None):
    if role == "watch":
        return
    for _ in range(5):
        learn(opt or torch.optim.SGD(net.parameters(), lr=0.1), net(torch.randn(4, 3)))


"""


def told(tmp_path: Path, text: str) -> set[tuple[str, str, int, str]]:
    program = tmp_path / "train.py"
    program.write_text(HEAD + text, encoding="utf-8")
    (tmp_path / "util.py").write_text(UTIL, encoding="utf-8")
    main, *_ = read(program, HEAD + text)
    return {
        (c.kind, Path(c.at.file).name, c.at.line, main.evidence(c))
        for c in detect(main.tape)
        if c.severity != "note"
    }


OVERWRITTEN = {("stale-saved-tensor", "util.py", 3, "certain")}


@pytest.mark.parametrize(
    ("base", "init"),
    [
        ("mp.Process", "super().__init__()"),
        ("torch.multiprocessing.Process", "super(Worker, self).__init__(daemon=True)"),
        ("threading.Thread", "threading.Thread.__init__(self)"),
    ],
)
def test_a_class_with_a_run_of_its_own(tmp_path: Path, base: str, init: str) -> None:
    assert told(tmp_path, WORKER.format(base=base, init=init)) == OVERWRITTEN


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(work, args=('train', net, opt), nprocs=2)",
        "mp.get_context('spawn').Process(target=work, args=(0, 'train', net), kwargs={'opt': opt}).start()",
        "threading.Thread(None, work, 'name', (0, 'train', net)).start()",
        "for i, r in enumerate(['watch', 'watch', 'train']): mp.Process(target=work, args=(i, r, net)).start()",
        "threading.Thread(target=lambda: work(0, 'train', net)).start()",
    ],
)
def test_a_function(tmp_path: Path, start: str) -> None:
    assert told(tmp_path, WORK + start + "\n") == OVERWRITTEN


def test_what_comes_after_goes_on(tmp_path: Path) -> None:
    """Neither its endless loop nor what it raises is the program's end, nor are its gradients the program's."""
    text = """
def forever():
    (net(torch.randn(4, 3)).mean()).backward()
    while True:
        pass


def fails():
    raise ValueError


{kind}(target={function}).start()
{kind}(target=fails).start()
for _ in range(3):
    net(torch.randn(4, 3)).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
h = net(torch.randn(4, 3)).exp()
h += 1
h.mean().backward()
"""
    for kind in ("mp.Process", "threading.Thread"):
        found = told(tmp_path, text.format(kind=kind, function="forever"))
        assert found == {
            ("stale-saved-tensor", "train.py", text.count("\n") - 1 + HEAD.count("\n"), "certain")
        }


def test_a_thread_has_a_mode_of_its_own(tmp_path: Path) -> None:
    start = "with torch.no_grad():\n    {}(target=work, args=(0, 'train', net)).start()\n"
    assert told(tmp_path, WORK + start.format("threading.Thread")) == OVERWRITTEN


def test_what_others_like_it_do_is_not_read(tmp_path: Path) -> None:
    """The second steps another network: that it is never stepped is not said."""
    text = """
opts = [opt, torch.optim.SGD(other.parameters(), lr=0.1)]


def work(rank):
    for _ in range(5):
        opts[rank].zero_grad()
        (net, other)[rank](torch.randn(4, 3)).mean().backward()
        opts[rank].step()


for rank in range(2):
    mp.Process(target=work, args=(rank,)).start()
"""
    assert told(tmp_path, text) == set()
