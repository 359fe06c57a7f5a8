"""What a program can't come to, and what an argument may be beside a tensor: nothing is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

FAULT = """\
x = torch.ones(3, requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
"""


def kinds(tmp_path: Path, text: str, name: str = "train.py") -> set[str]:
    text = "import torch\nfrom torch import nn\n" + text
    (tmp_path / name).write_text(text, encoding="utf-8")
    readings = read(tmp_path / name, text)
    return {c.kind for r in readings for c in detect(r.tape) if c.severity != "note"}


@pytest.mark.parametrize(
    ("before", "reached"),
    [
        ("while True: pass\n", False),
        ("def serve():\n    while True:\n        print(input())\nserve()\n", False),
        ("while 1:\n    for i in range(3):\n        if i: break\n", False),
        ("with torch.no_grad():\n    while True: print()\n", False),
        ("try:\n    pass\nexcept KeyError:\n    pass\nwhile True: print()\n", False),
        ("try:\n    while True: print()\nfinally:\n    print()\n", False),
        ("while True:\n    if input(): break\n", True),
        ("def serve():\n    while True:\n        if input(): return\nserve()\n", True),
        ("try:\n    while True: print()\nexcept KeyboardInterrupt:\n    pass\n", True),
        (
            "def serve():\n    while True: print()\ntry:\n    serve()\nexcept KeyboardInterrupt:\n    pass\n",
            True,
        ),
        ("import contextlib\nwith contextlib.suppress(KeyboardInterrupt):\n    while True: print()\n", True),
        ("def count():\n    while True: yield 1\nnext(count())\n", True),
        ("def count():\n    while True: yield 1\nfor i in zip(count(), range(3)): print(i)\n", True),
        ("def serve():\n    while True: print()\n", True),
        ("import threading\ndef f():\n    while True: print()\nthreading.Thread(target=f).start()\n", True),
        ("async def f():\n    while True: await g()\nasyncio.create_task(f())\n", True),
        ("async def f():\n    while True: print()\nf()\n", True),
        ("running = True\nwhile running: print()\n", True),  # a signal's handler may change it
    ],
)
def test_what_stands_behind_an_endless_loop(tmp_path: Path, before: str, reached: bool) -> None:
    assert kinds(tmp_path, before + FAULT) == ({"stale-saved-tensor"} if reached else set())


def test_a_cell_of_a_notebook_may_be_stopped(tmp_path: Path) -> None:
    assert kinds(tmp_path, "while True: print()\n" + FAULT, "train.ipynb") == {"stale-saved-tensor"}


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ("torch.__version__ == 'shim'", False),
        ("torch.__version__ != 'shim'", True),
        ("'' == torch.__version__", False),
        ("torch.__version__ == '2.1.0'", True),
        ("torch.__version__ != '2.1.0'", True),
    ],
)
def test_a_version_is_no_name(tmp_path: Path, test: str, reached: bool) -> None:
    told = kinds(tmp_path, f"if {test}:\n    " + FAULT.replace("\n", "\n    "))
    assert told == ({"stale-saved-tensor"} if reached else set())


COLUMN = """\
class Mixed(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.alphas, self.out = nn.Parameter(torch.randn(n)), nn.Linear(n, 1)

    def forward(self, x):
        for i, each in enumerate(x):
            x[i] = self.alphas[i] * each
        return self.out(torch.cat(x, dim=1))


class Column(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.mixed, self.own = Mixed(n), nn.Linear(n, 1)

    def forward(self, x):
        before, last = x[{before}], x[-1]
        h = self.mixed(before)
        h += self.own(last)
        return h
"""


@pytest.mark.parametrize("before", [":-1", ":", "1::2"])
def test_part_of_what_may_be_a_list_may_be_one(tmp_path: Path, before: str) -> None:
    assert kinds(tmp_path, COLUMN.format(before=before)) == set()


def test_part_of_a_tensor_is_one(tmp_path: Path) -> None:
    text = """\
class Net(nn.Module):
    def forward(self, x):
        y = x[:, 1:].exp()
        y += 1
        z = x[1:].exp()
        z *= 2
        return y, z
"""
    assert kinds(tmp_path, text) == {"stale-saved-tensor"}


@pytest.mark.parametrize(
    ("handlers", "told"),
    [
        ("except KeyboardInterrupt:\n    pass\n", True),
        ("except (KeyboardInterrupt, OSError):\n    pass\n", True),
        ("except KeyError:\n    pass\nfinally:\n    print()\n", True),
        ("except IndexError:\n    pass\n", False),
        ("except KeyboardInterrupt:\n    pass\nexcept LookupError:\n    pass\n", False),
        ("except Exception:\n    pass\n", False),
        ("except:\n    pass\n", False),
        ("except (KeyboardInterrupt, own.Error):\n    pass\n", False),
    ],
)
def test_an_error_that_a_handler_takes(tmp_path: Path, handlers: str, told: bool) -> None:
    text = "import own\nloss = torch.ones(3).sum()\ntry:\n    print(loss[0])\n" + handlers
    assert kinds(tmp_path, text) == ({"legacy-api"} if told else set())
