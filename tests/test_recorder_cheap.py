"""What makes recording cheap must not show: places, names, modes and the collector are as they would be."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
import torch
from test_recorder import of, record, warm

from gradfix.run.child.names import Names
from gradfix.run.child.pause import Pause
from gradfix.run.child.sites import Sites
from gradfix.run.child.storages import Storages
from gradfix.tape import Record, Tape

Recorded = Callable[..., Tape]


def lines(tape: Tape, op: str) -> list[list[int]]:
    """Where each `op` was called, from the outside to the inside."""
    records = sorted((e for e in of(tape, Record) if e.op == op), key=lambda e: e.node)
    return [[site.line - 1 for site in e.stack] for e in records]


def test_frames_that_go_on_are_told_where_they_are_now(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        def a(x): return x.sin()
        def b(x): return a(x)
        def c(x): return b(x)
        def d(x): return c(x)
        def both(x):
            x = d(x)
            return d(d(x))
        both(both(w)).sum().backward()
        both(w).sum().backward()
    """)
    inner = [6, 5, 4, 3]
    assert lines(tape, "aten.sin") == [
        [call, at, *inner] for call, at in [(10, 8), (10, 9), (10, 9)] * 2 + [(11, 8), (11, 9), (11, 9)]
    ]


def test_a_generator_has_the_caller_that_resumes_it(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        def a(x): return x.sin()
        def b(x): return a(x)
        def c(x): return b(x)
        def values():
            while True:
                yield c(w)
        def first(stream): return next(stream)
        def second(stream): return next(stream)
        stream = values()
        total = first(stream) + second(stream) + first(stream)
        total.sum().backward()
    """)
    assert lines(tape, "aten.sin") == [[12, resumed, 8, 5, 4, 3] for resumed in (9, 10, 9)]


def test_a_debugger_keeps_its_place_on_frames() -> None:
    sites = Sites()

    def deep(left: int) -> tuple[int, ...]:
        return deep(left - 1) if left else sites.stack(sys._getframe())

    def tracer(*_: object) -> object:
        return tracer

    plain, before = deep(8), sys.gettrace()
    sys.settrace(tracer)
    try:
        frame = sys._getframe()
        frame.f_trace = tracer  # type: ignore[assignment]
        traced = deep(8)
        assert frame.f_trace is tracer
    finally:
        frame.f_trace = None
        sys.settrace(before)
    assert traced[: 2 * 9] == plain[: 2 * 9]
    assert len(traced) == len(plain)


MODES = """
    import torch
    from torch.overrides import TorchFunctionMode
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            print(func.__name__, [t.__name__ for t in types])
            return func(*args, **(kwargs or {}))
    class Mine(torch.Tensor):
        pass
    x = torch.ones(2, requires_grad=True)
    with Seen():
        torch.nn.functional.relu(x)
        torch.nn.functional.relu(x.as_subclass(Mine))
    print(type(torch.nn.functional.relu(x.as_subclass(Mine))).__name__)
    print(torch.jit.script(torch.nn.ReLU())(x).tolist())
    try:
        torch.nn.functional.softplus("no tensor")
    except TypeError:
        print("TypeError")
    with torch._C.DisableTorchFunction():
        print(torch.nn.functional.relu(x).grad_fn.name())
"""


def test_modes_and_types_of_the_scripts_own_see_what_they_would(record: Recorded) -> None:
    record(MODES, plain=True)
    plain = record.out
    record(MODES)
    assert "relu ['Mine']" in plain
    assert record.out == plain


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was(on: bool) -> None:
    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with Pause(), Pause():
            assert not gc.isenabled()
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()


def test_storages_that_are_gone_are_let_go() -> None:
    storages = Storages()
    held = [torch.empty(3) for _ in range(5)]
    numbers = [storages.of(t).number for t in held]
    passed = [storages.of(torch.empty(3)) for _ in range(1000)]
    assert sum(each.reference != 0 for each in passed) < 300
    assert [storages.of(t).number for t in held] == numbers
    assert len({each.number for each in passed}) == 1000


def test_a_name_is_not_inherited_with_an_id() -> None:
    """An id is given again as soon as an object is gone (an optimizer made in every task of a meta-learner)."""
    names = Names(Sites(), Storages())
    code = "nets = [torch.nn.ReLU() for _ in range(64)]\nlook(sys._getframe())\n"
    scope: dict[str, object] = {"torch": torch, "sys": sys, "look": names.look}
    exec(compile(code, __file__, "exec"), scope)
    nets = scope.pop("nets")
    assert isinstance(nets, list)
    gone = {id(net) for net in nets}
    assert names.owner(nets[3]) == "nets[3]"
    del nets
    new = [torch.nn.ReLU() for _ in range(64)]
    assert gone & {id(net) for net in new}, "no id was given again: the test shows nothing"
    assert {names.owner(net) for net in new} == {""}
