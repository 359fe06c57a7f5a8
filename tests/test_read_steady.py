"""The symbolic run on loops of a few passes: those that change nothing are not read to the end, all others are."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.graph import Graph
from gradfix.read import read
from gradfix.tape import Backward

BEGINS = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)

def update(spoilt):
    optimizer.zero_grad()
    y = (w * 2).exp()
    if spoilt:
        y += 1
    y.sum().backward()
    optimizer.step()
"""


def kinds(body: str) -> tuple[list[str], int]:
    """What is found in BEGINS and `body`, and the number of backwards that were read."""
    text = BEGINS + textwrap.dedent(body)
    first, *rest = read(Path("train.py"), text)
    found = {(c.kind, c.at.line) for reading in (first, *rest) for c in detect(reading.tape)}
    return sorted(kind for kind, _ in found), sum(isinstance(e, Backward) for e in first.tape.events)


ASKED = {
    "count": """
        n = 0
        for _ in range(10):
            update(n == 7)
            n += 1
    """,
    "pass": """
        for step in range(10):
            update(step == 7)
    """,
    "pass_given_to_print": """
        for step in range(10):
            print(update(step == 7))
    """,
    "pass_asked_behind_the_name": """
        def at():
            return step
        for step in range(10):
            update(at() == 7)
    """,
    "list": """
        losses = []
        for _ in range(10):
            losses.append(1.0)
            update(len(losses) == 8)
    """,
    "items_of_a_list": """
        flags = [False] * 7 + [True] * 3
        for _ in range(10):
            update(flags.pop(0))
    """,
    "iterator": """
        flags = iter([False] * 7 + [True] * 3)
        for _ in range(10):
            update(next(flags))
    """,
    "attribute": """
        class Trainer:
            def __init__(self):
                self.steps = 0
            def step(self):
                self.steps += 1
                update(self.steps == 8)
        trainer = Trainer()
        for _ in range(10):
            trainer.step()
    """,
    "attribute_of_the_class": """
        class Trainer:
            steps = 0
            def step(self):
                Trainer.steps += 1
                update(Trainer.steps == 8)
        for _ in range(10):
            Trainer().step()
    """,
    "closure": """
        def counter():
            n = 0
            def count():
                nonlocal n
                n += 1
                return n
            return count
        count = counter()
        for _ in range(10):
            update(count() == 8)
    """,
    "partial": """
        import functools
        def step(seen):
            seen.append(1)
            update(len(seen) == 8)
        run = functools.partial(step, [])
        for _ in range(10):
            run()
    """,
    "default": """
        def step(seen=[]):
            seen.append(1)
            update(len(seen) == 8)
        for _ in range(10):
            step()
    """,
    "dictionary": """
        state = {"steps": 0}
        for _ in range(10):
            state["steps"] += 1
            update(state["steps"] == 8)
    """,
    "global": """
        steps = 0
        def step():
            global steps
            steps += 1
            update(steps == 8)
        for _ in range(10):
            step()
    """,
    "generator": """
        def batches():
            for n in range(10):
                yield n
        for n in batches():
            update(n == 7)
    """,
    "gathered": """
        def batches():
            for _ in range(10):
                yield torch.randn(3)
        for n, _ in enumerate(list(batches())):
            update(n == 7)
    """,
    "consumer_of_a_generator": """
        def batches():
            for _ in range(10):
                yield torch.randn(3)
        n = 0
        for _ in batches():
            update(n == 7)
            n += 1
    """,
}


@pytest.mark.parametrize("body", ASKED.values(), ids=ASKED)
def test_what_comes_about_in_a_late_pass_is_come_to(body: str) -> None:
    found, _ = kinds(body)
    assert found == ["stale-saved-tensor"]


IDLE = {
    "nothing": """
        for _ in range(10):
            update(False)
    """,
    "printed": """
        for epoch in range(10):
            update(False)
            print(f"epoch {epoch + 1}", epoch)
    """,
    "measured": """
        for _ in range(10):
            total = 0.0
            for _ in range(5):
                update(False)
                total += w.sum().item()
    """,
    "generator": """
        def batches():
            for _ in range(10):
                yield torch.randn(3), torch.randn(3)
        for x, y in batches():
            update(False)
    """,
}


@pytest.mark.parametrize("body", IDLE.values(), ids=IDLE)
def test_passes_that_change_nothing_are_left_out(body: str) -> None:
    found, backwards = kinds(body)
    assert (found, 3 <= backwards < 10) == ([], True)


def test_what_every_pass_does_is_found_where_some_are_left_out() -> None:
    found, backwards = kinds("for _ in range(10):\n    update(True)\n")
    assert (found, backwards < 10) == (["stale-saved-tensor"], True)


def test_what_a_pass_keeps_of_the_last_one_is_found() -> None:
    body = """
        h = torch.zeros(3)
        for _ in range(10):
            h = torch.tanh(h * w)
            h.sum().backward()
    """
    assert "freed-graph" in kinds(body)[0]


def test_nested_loops_around_a_backward_cost_what_their_backwards_cost(tmp_path, monkeypatch):
    """Whom each serves was looked for in every pass of every other one."""
    loops = "".join(f"{' ' * n}for v{n} in range(10):\n" for n in range(5))
    text = f"import torch\nw = torch.zeros(3, requires_grad=True)\n{loops}{' ' * 5}w.sum().backward()\n"
    asked = []
    plain = Graph._steps_behind
    monkeypatch.setattr(Graph, "_steps_behind", lambda self, b: asked.append(b) or plain(self, b))
    (reading,) = read(tmp_path / "train.py", text)
    backwards = [e for e in reading.tape.events if isinstance(e, Backward)]
    detect(reading.tape)
    assert len(backwards) > 100
    assert len(asked) <= 2 * len(backwards)
