"""What is kept of graphs that a backward has freed: the newest evidence, within bounds."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
import torch
from runs import copying, project, run

from gradfix.run import Outcome
from gradfix.run.child.freed import BUDGET, Freed
from gradfix.run.child.saves import GONE, Entry, Saves, keep_value
from gradfix.tape import Note

QUARTER = BUDGET // 4 // 4  # floats


def entries(sizes: Iterable[int]) -> list[Entry]:
    saves = Saves(SimpleNamespace(now=0))
    packed = [saves.pack(torch.empty(size, requires_grad=True) * 1) for size in sizes]
    saves.file()
    return packed


def gone(graphs: list[Entry]) -> list[bool]:
    return [entry.tensor is GONE for entry in graphs]


def test_the_oldest_graphs_go_when_there_is_too_much_to_keep() -> None:
    said: list[str] = []
    freed = Freed(said.append)
    graphs = entries([QUARTER] * 5)
    for time, entry in enumerate(graphs[:4]):
        freed.stamp([entry], time)
    assert gone(graphs[:4]) == [False] * 4
    freed.stamp([graphs[4]], 4)
    assert gone(graphs) == [True, False, False, False, False]
    assert len(said) == 1


def test_clones_of_parameters_are_counted() -> None:
    freed = Freed(lambda _: None)
    small = entries([8] * 4)
    for time, entry in enumerate(small[:3]):
        freed.stamp([entry], time)
        freed.cloned(time, BUDGET // 3)
    freed.stamp([small[3]], 3)
    assert gone(small) == [True, False, False, False]


def test_the_largest_graph_is_kept_whatever_its_size() -> None:
    freed = Freed(lambda _: None)
    large = entries([QUARTER * 6] * 2)
    freed.stamp([large[0]], 0)
    assert gone(large[:1]) == [False]
    freed.stamp([large[1]], 1)
    assert gone(large) == [True, False]


def test_graphs_that_nobody_holds_any_more_do_not_count() -> None:
    freed = Freed(lambda _: None)
    kept = entries([QUARTER])
    freed.stamp(kept, 0)
    for time in range(1, 9):
        freed.stamp(entries([QUARTER]), time)
    assert gone(kept) == [False]


def test_a_shared_clone_takes_its_bytes_once() -> None:
    weight = torch.ones(4, requires_grad=True)
    saves = Saves(SimpleNamespace(now=0))
    twice = [saves.pack(weight), saves.pack(weight)]
    clones: dict[object, object] = {}
    assert [keep_value(entry, clones) for entry in twice] == [16, 0]
    assert twice[0].fate.value is twice[1].fate.value


TRAINING = """
import resource
import torch

layers = [layer for _ in range(12) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, losses = torch.randn(512, 512), []
for step in range(14):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_recorded_run_takes_at_most_twice_the_memory(run: Callable[..., Outcome]) -> None:
    plain, recorded = (run(TRAINING, record=on, steps=0, timeout=100.0) for on in (False, True))
    assert recorded.tape is not None
    assert any("to bound memory" in e.text for e in recorded.tape.events if isinstance(e, Note))
    assert int(recorded.stdout) <= 2 * int(plain.stdout), (plain.stdout, recorded.stdout)
