"""What a recorded run writes down, told by small scripts, each in a forked child of this process."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradfix.detect import detect
from gradfix.run.child import execute
from gradfix.run.child.sites import Sites, code_points
from gradfix.tape import (
    Backward,
    Clip,
    Cut,
    End,
    Failure,
    Free,
    GradRead,
    GradWrite,
    Mutate,
    Note,
    Optimizer,
    Record,
    Step,
    Tape,
    Zero,
)
from gradfix.tapefile import parse_tape

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")
Recorded = Callable[..., Tape]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])


@pytest.fixture
def record(tmp_path: Path) -> Recorded:
    def run(text: str, *, name: str = "train.py", steps: int = 0, plain: bool = False) -> Tape:
        script, lines, out = tmp_path / name, tmp_path / "tape", tmp_path / "out"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        if not (pid := os.fork()):
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            sys.stdout = os.fdopen(1, "w")
            request = {
                "script": str(script),
                "cwd": str(tmp_path),
                "record": not plain,
                "steps": steps,
                "seed": 0,
            }
            execute.run(request, _Emit(lines))
        os.waitpid(pid, 0)
        run.out = out.read_text()  # type: ignore[attr-defined]
        with open(lines, encoding="utf-8") as stream:
            return parse_tape(stream) if not plain else Tape(())

    return run


class _Emit:
    def __init__(self, path: Path) -> None:
        self.stream = path.open("w", encoding="utf-8")

    def __call__(self, line: dict) -> None:
        if "x" not in line:
            self.stream.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        self.stream.flush()


def of(tape: Tape, kind: type) -> list:
    return [e for e in tape.events if isinstance(e, kind)]


def test_step_between_forward_and_backward(record: Recorded) -> None:
    tape = record("""
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        opt = torch.optim.SGD(net.parameters(), 0.1)
        first = net(torch.ones(4, 2)).mean()
        second = net(torch.ones(4, 2)).pow(2).mean()
        first.backward()
        opt.step()
        second.backward()
    """)
    write = next(e for e in of(tape, Mutate) if e.ref.name == "net.2.weight")
    late = of(tape, Backward)[1]
    saved = next(
        r for e in of(tape, Record) if e.node in late.nodes for r in e.saves if r.storage == write.ref.storage
    )
    assert (write.at.line - 1, write.at.column, write.at.end_line - 1, write.at.end_column) == (7, 0, 7, 10)
    assert (write.optimizer, of(tape, Optimizer)[0].name) == (0, "opt")
    assert saved.version == 0
    assert write.ref.version == 1
    assert write.counted
    assert "modified by an inplace operation" in late.refused
    assert not of(tape, Backward)[0].refused
    assert of(tape, End)[0].how == "finished"


def test_gradient_is_that_of_the_values_as_saved(record: Recorded) -> None:
    record("""
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        loss = y.sum()
        y *= 0
        loss.backward()
        print(torch.equal(x.grad, torch.ones(3).exp()))
    """)
    assert record.out == "True\n"


def test_op_that_overwrites_its_own_save(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.full((2,), 3.0, requires_grad=True)
        y = x * 1
        y *= y
        y.sum().backward()
        print(x.grad.tolist())
    """)
    assert of(tape, Backward)[0].refused
    assert [(e.op, e.ref.name, e.counted) for e in of(tape, Mutate)] == [("aten.mul_", "y", True)]
    assert record.out == "[6.0, 6.0]\n"


@pytest.mark.parametrize(
    ("write", "how"),
    [("y.data.mul_(2)", "data"), ("y.data = y.data * 2", "set_data"), ("y.detach().numpy()[:] = 9", "numpy")],
)
def test_write_that_no_counter_sees(record: Recorded, write: str, how: str) -> None:
    tape = record(f"""
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = y.pow(3).sum()
        {write}
        z.backward()
        print(x.grad.tolist())
    """)
    writes = [e for e in of(tape, Mutate) if not e.counted]
    assert [how] == [e.how for e in writes]
    assert of(tape, Backward)[0].wrong > 0.5
    assert not of(tape, Backward)[0].refused
    assert record.out == "[24.0, 24.0, 24.0]\n"


def test_every_unseen_write_is_measured_alone(record: Recorded) -> None:
    """The second changes what nothing reads: its gradient is multiplied by the zeros that were written."""
    tape = record("""
        import torch
        w = torch.ones(3, requires_grad=True)
        y = w.exp()
        y.data[0] = 5
        z = w.tanh()
        z.data[1] = 0
        (y.sum() + (z * z).sum()).backward()
    """)
    writes = {e.time: e.at.line for e in of(tape, Mutate)}
    (backward,) = of(tape, Backward)
    assert sorted((writes[time], wrong > 1e-6) for time, wrong in backward.blame) == [(5, True), (7, False)]
    assert [c.at.line for c in detect(tape) if c.kind == "silent-overwrite"] == [5]


ARRAYS = {
    "handed_out": ("a = y.detach().numpy()\nz = y.pow(3).sum()", "a[0] = 5"),
    "asarray": ("z = y.pow(3).sum()\na = np.asarray(y.detach())", "a += 1"),
    "taken_in": ("a = np.ones(3, dtype=np.float32)\nz = (x * torch.from_numpy(a)).sum()", "a[:] = 7"),
    "as_tensor": ("a = np.ones(3, dtype=np.float32)\nz = (x * torch.as_tensor(a)).sum()", "a[:] = 7"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_write_through_an_array_is_dated_and_placed(record: Recorded, case: str) -> None:
    pytest.importorskip("numpy")
    head = "import torch, numpy as np\nx = torch.ones(3, requires_grad=True)\ny = x * 2\n"
    before, write = ARRAYS[case]
    between = record(f"{head}{before}\n{write}\nw = (x * 3).sum()\nz.backward()\nw.backward()\n")
    early = (
        record(f"{head}{before.replace('z = ', write + '; z = ')}\nz.backward()\n")
        if case[0] == "h"
        else None
    )
    late = record(f"{head}{before}\nprint(a.sum())\nz.backward()\n{write}\n(x * 1).sum().backward()\n")
    mutate = of(between, Mutate)[0]
    assert (mutate.how, mutate.at.line, mutate.counted) == ("numpy", 6, False)
    later = next(e for e in of(between, Record) if e.at.line == 7)
    assert mutate.time < later.time
    assert [(c.kind, c.write.at.line) for c in detect(between)] == [("silent-overwrite", 6)]
    assert [] == list(detect(late)) == of(late, Mutate)
    assert early is None or [] == list(detect(early)) == of(early, Mutate)


def test_data_of_torchs_own_code_is_not_the_users(record: Recorded) -> None:
    tape = record("""
        import copy, torch
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        copy.deepcopy(net).double()
        net.float().double().float()
        vector = torch.nn.utils.parameters_to_vector(net.parameters())
        torch.nn.utils.vector_to_parameters(vector, net.parameters())
        net(torch.ones(1, 2)).sum().backward()
    """)
    assert not [e for e in (*of(tape, Cut), *of(tape, Mutate)) if e.how in ("data", "set_data")]
    assert not [c for c in detect(tape) if c.kind == "data-attribute"]


def test_data_of_a_leaf_that_no_node_knows(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        w.data.normal_()
    """)
    assert [(e.how, e.counted) for e in of(tape, Mutate)] == [("data", False)]


AGAIN = (
    "(x * 3).sum()", "(x / 2).sum()", "(2 / x).sum()", "x.pow(2).mean()", "(x + 4).mean()", "(-x).sum()",
    "(x * w).sum()", "x.view(-1).sum()", "((x * 3) + w).sum()", "torch.add(x, w, alpha=2).sum()",
    "x.clamp(0).sum()", "(x ** 2).sum()", "x.repeat(2).sum()", "torch.cat([x, w]).sum()", "x[:1].sum()",
    "torch.zeros(4)[:2].copy_(x)._base.sum()",
)  # fmt: skip
FIRST = (
    "l.backward()",
    "l.backward(retain_graph=True)",
    "torch.autograd.grad(l, x)",
    "l.backward(inputs=[x])",
)


@pytest.mark.parametrize("first", FIRST)
def test_second_time_is_what_plain_torch_says(record: Recorded, first: str) -> None:
    """One script, each program a round of its own at a line of its own."""
    text = "import torch\n"
    for op in AGAIN:
        text += f"x, w = (torch.ones(2, requires_grad=True) for _ in range(2)); l = {op}\n"
        text += f"try: {first}; l.backward(); print('well')\nexcept RuntimeError: print('refused')\n"
    record(text, plain=True)
    said = [line == "refused" for line in record.out.split()]
    tape = record(text)
    second = of(tape, Backward)[1::2]
    assert said == ["a second time" in e.refused for e in second]
    freed = {c.backward.time for c in detect(tape) if c.kind == "freed-graph"}
    assert {e.time for e in second if e.refused} == freed


def test_a_write_through_data_behind_a_step_is_not_counted(record: Recorded) -> None:
    """What an earlier graph, which is retained, has saved was overwritten by the step before, and was counted then."""
    tape = record("""
        import torch
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), 0.5)
        x = torch.ones(1, 2, requires_grad=True)
        first = net(x).sum()
        first.backward(retain_graph=True)
        opt.step()
        loss = net(x).sum()
        net.weight.data.mul_(2)
        loss.backward()
    """)
    (write,) = [e for e in of(tape, Mutate) if e.how == "data"]
    assert not write.counted


def test_fused_optimizer_is_not_counted(record: Recorded) -> None:
    tape = record("""
        import torch
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), 0.5, fused=True)
        loss = net(net(torch.ones(1, 2))).sum()
        loss.backward(retain_graph=True)
        opt.step()
        loss.backward()
    """)
    assert {False} == {e.counted for e in of(tape, Mutate)}
    assert [e.wrong for e in of(tape, Backward)[:1]] == [0.0]
    assert of(tape, Backward)[1].wrong > 0


def test_batch_norm_statistics_are_no_overwrite(record: Recorded) -> None:
    tape = record("""
        import torch
        from torch import nn
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
        opt = torch.optim.Adam(net.parameters())
        for _ in range(3):
            a, b = net(torch.randn(2, 1, 8, 8)), net(torch.randn(2, 1, 8, 8))
            opt.zero_grad()
            (a.mean() + b.mean()).backward()
            opt.step()
    """)
    assert [(e.refused, e.wrong) for e in of(tape, Backward)] == [("", 0.0)] * 3
    assert 3 == len(of(tape, Step)) == len(of(tape, Zero)) == len(of(tape, Free))


def test_second_backward_goes_on(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.ones(2, requires_grad=True)
        loss = (x * 3).sum()
        loss.backward()
        loss.backward()
        h = torch.ones(2, requires_grad=True) * 2
        for _ in range(2):
            h = (h * x).tanh()
            h.sum().backward()
        print(x.grad.shape)
    """)
    assert ["a second time" in e.refused for e in of(tape, Backward)] == [False, True, False, True]
    assert record.out == "torch.Size([2])\n"


@pytest.mark.parametrize(
    "write", ["x += 1", "x.mul_(2)", "x[0] = 5", "torch.nn.init.normal_(x[0])", "x.clamp_(0, 1)"]
)
def test_leaf_write_is_let_through(record: Recorded, write: str) -> None:
    text = f"""
        import torch
        x = torch.ones(3, requires_grad=True)
        {write}
        (x * x).sum().backward()
        print(x.requires_grad, x.grad is not None)
    """
    tape = record(text)
    if "init" not in write:  # init works under no_grad of its own
        assert ["leaf Variable that requires grad is being used in an in-place operation." in e.refused
                for e in of(tape, Mutate)] == [True]  # fmt: skip
        assert of(tape, Mutate)[0].at.line == 4
    assert record.out == "True True\n"


@pytest.mark.parametrize(
    ("write", "leaf"),
    [
        ("w[1:] *= 0.5", True),
        ("w[1:] = 2 * w[:-1]", True),
        ("w.mul_(0.9).add_(0.1 * other)", True),
        ("w.copy_(other)", True),
        ("w.lerp_(other, 0.1)", True),
        ("w.copy_(net(torch.ones(3)))", False),  # a model's output: its gradient is meant
        ("w.copy_(plain * 2)", False),
        (
            "w.sub_(torch.autograd.grad((w * w).sum(), w, create_graph=True)[0])",
            False,
        ),  # second-order terms are
    ],
)
def test_parameter_made_of_parameters_stays_one(record: Recorded, write: str, leaf: bool) -> None:
    tape = record(f"""
        import torch
        w, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(3))
        net, plain = torch.nn.Linear(3, 3), torch.ones(3, requires_grad=True)
        {write}
        print(w.is_leaf, w.requires_grad)
    """)
    assert all("leaf Variable" in e.refused for e in of(tape, Mutate) if e.refused)
    assert any(e.refused for e in of(tape, Mutate))
    assert record.out == f"{leaf} True\n"


def test_part_of_a_leaf_scaled_in_place_leaves_it_one(record: Recorded) -> None:
    record("""
        import torch
        x = torch.ones(3, requires_grad=True)
        x[1:] *= 2
        x.sum().backward()
        print(x.is_leaf, x.grad.tolist())
    """)
    assert record.out == "True [1.0, 1.0, 1.0]\n"


def test_accumulator_stays_differentiable(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        total = torch.zeros(1, requires_grad=True)
        for _ in range(3):
            total += (w * w).sum()
        total.backward()
        print(w.grad.tolist())
    """)
    assert "leaf" in of(tape, Mutate)[0].refused
    assert record.out == "[6.0, 6.0]\n"


def test_forbidden_view_write_is_let_through(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.ones(4, requires_grad=True)
        a, b = (x * 1).chunk(2)
        a += 1
        (a.sum() + b.sum()).backward()
        print(a.tolist())
    """)
    assert "is a view and is being modified inplace" in of(tape, Mutate)[0].refused
    assert record.out == "[2.0, 2.0]\n"


def test_shared_memory_is_written_after_it_was_made_its_own(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.ones(2, requires_grad=True)
        mask = torch.ones(2).expand(3, 2)
        mask *= 0.5
        (x * mask).sum().backward()
        print(x.grad.tolist())
    """)
    assert [(c.kind, c.pattern, c.at.line) for c in detect(tape)] == [("forbidden-view-write", "expanded", 5)]
    assert record.out == "[1.5, 1.5]\n"


def test_shared_memory_of_the_graph_is_told_and_ends_the_run(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.ones(2, requires_grad=True)
        y = (x * 2).expand(3, 2)
        y.relu_()
    """)
    assert [(c.kind, c.pattern, c.at.line) for c in detect(tape)] == [("forbidden-view-write", "expanded", 5)]
    assert [e.autograd for e in of(tape, Failure)] == [True]


def test_a_refused_write_that_can_not_be_let_through_is_told(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(3, 3, requires_grad=True)
        turned = w.t()
        turned += w.data
    """)
    assert [(c.kind, c.at.line) for c in detect(tape)] == [("leaf-write", 5)]
    assert of(tape, End)[0].how == "failed"


def test_a_view_of_a_leaf_made_and_written_under_no_grad(record: Recorded) -> None:
    """Its grad_fn, and whether it is a leaf, may not be asked for."""
    tape = record("""
        import torch
        w = torch.ones(2, 2, requires_grad=True)
        with torch.no_grad():
            row = w[0]
            row.add_(1)
            row.mul_(2)
            twice = row * 2
            w[1].zero_()
        (w * w).sum().backward()
        print(w.grad.tolist())
    """)
    assert not detect(tape)
    assert record.out == "[[8.0, 8.0], [0.0, 0.0]]\n"


def test_an_alias_that_was_saved_itself_has_the_counter_that_moves(record: Recorded) -> None:
    """``.data`` has a counter of its own, and what saved the alias asks that one."""
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        x = torch.ones(2).data
        loss = (x * w).sum()
        x[0] = 0.5
        loss.backward()
    """)
    assert [(c.kind, c.at.line) for c in detect(tape)] == [("stale-saved-tensor", 6)]
    assert "modified by an inplace operation" in of(tape, Backward)[0].refused


@pytest.mark.parametrize(
    "late", ["column.mul_(column)", "column.mul_(factor); factor.add_(1)", "column.exp_(); x += 1"]
)
def test_what_a_write_into_a_view_saved_is_its_nodes(record: Recorded, late: str) -> None:
    tape = record(f"""
        import torch
        w, factor = torch.ones(2, 3, requires_grad=True), torch.ones(2)
        x = w * 2
        column = x[:, 0]
        {late}
        x.sum().backward()
    """)
    assert "modified by an inplace operation" in of(tape, Backward)[0].refused
    assert [(c.kind, c.at.line) for c in detect(tape)] == [("stale-saved-tensor", 6)]


def test_no_graph(record: Recorded) -> None:
    tape = record("""
        import torch
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        torch.tensor(y.sum(), requires_grad=False).backward()
        with torch.no_grad():
            z = x * 2
        print(y.grad, y.detach().numpy().sum(), y.sum().item())
    """)
    assert "element 0 of tensors does not require grad" in of(tape, Backward)[0].refused
    assert {"tensor", "detach", "item"} <= {e.how for e in of(tape, Cut)}
    assert [e.ref.name for e in of(tape, GradRead)] == ["y"]


def test_a_forward_without_a_graph_is_told_behind_a_long_rollout_without_one(record: Recorded) -> None:
    tape = record("""
        import torch
        net = torch.nn.Linear(2, 1)
        def value(x):
            return net(x)
        with torch.no_grad():
            for _ in range(100):
                value(torch.ones(2))
            v = value(torch.ones(2))
        v.sum().backward()
    """)
    assert [[s.line for s in e.stack] for e in of(tape, Cut)][-1] == [9, 5]
    (conflict,) = detect(tape)
    assert [s.line for s in conflict.labels[0].stack] == [9, 5]


def test_non_leaf_parameter(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True) * 0.1
        torch.optim.SGD([w], 0.1)
    """)
    assert [r.name for r in of(tape, Optimizer)[0].refs] == ["w"]
    failure = of(tape, Failure)[0]
    assert (
        failure.type,
        failure.message,
        failure.at.line,
    ) == ("ValueError", "can't optimize a non-leaf Tensor", 4)
    assert "run/child" not in failure.traceback
    assert of(tape, End)[0].how == "failed"


def test_clearing_of_gradients(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([w], 0.1)
        for clear in (opt.zero_grad, lambda: w.grad.zero_(), lambda: setattr(w, "grad", None)):
            (w * w).sum().backward()
            clear()
    """)
    assert [(tuple(r.name for r in e.refs), e.optimizer) for e in of(tape, Zero)] == [
        (("w",), 0),
        (("w",), None),
        (("w",), None),
    ]


def test_versions_are_those_of_pytorchs_error(record: Recorded, capfd: pytest.CaptureFixture[str]) -> None:
    script = """
        import torch
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.AdamW(net.parameters())  # decays, then steps: two writes to a step
        for _ in range(2):
            loss = net(net(torch.ones(1, 2))).sum()
            loss.backward(retain_graph=True)
            opt.step()
        loss.backward()
    """
    record(script, plain=True)
    said = capfd.readouterr().err
    (stale,) = (c for c in detect(record(script)) if c.kind == "stale-saved-tensor")
    saved, now = (x.text.rpartition(" ")[2] for x in stale.labels if x.role in ("saved", "overwritten"))
    assert f"is at version {now}; expected version {saved} instead" in said


def test_gradients_written_by_hand(record: Recorded) -> None:
    tape = record("""
        import torch
        a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
        (a * b).sum().backward()
        a.grad.mul_(0.9)
        a.grad[0] = 3
        torch._foreach_zero_([a.grad, b.grad])
        torch.nn.utils.clip_grad_norm_([a, b], 1.0)
        b.grad = torch.ones(2)
        b.grad.data.fill_(0)
        torch.zeros(2).mul_(2)
    """)
    assert [
        (type(e).__name__, tuple(r.name for r in e.refs), getattr(e, "assigned", False))
        for e in of(tape, (Zero, GradWrite, Clip))
    ] == [
        ("GradWrite", ("a",), False),
        ("GradWrite", ("a",), False),
        ("Zero", ("a", "b"), False),
        ("Clip", ("a", "b"), False),
        ("GradWrite", ("b",), True),
        ("GradWrite", ("b",), False),
    ]


def test_a_step_that_clears_has_used_the_gradients_before(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([w], 0.1)
        opt.register_step_post_hook(lambda o, args, kwargs: o.zero_grad())
        (w * w).sum().backward()
        opt.step()
    """)
    step, zero = of(tape, (Step, Zero))
    assert (type(step), [r.name for r in step.refs], type(zero)) == (Step, ["w"], Zero)


def test_closures_and_parameters_without_gradient(record: Recorded) -> None:
    tape = record("""
        import torch
        w, idle = (torch.ones(2, requires_grad=True) for _ in range(2))
        opt = torch.optim.LBFGS([w, idle], max_iter=2)
        def closure():
            opt.zero_grad()
            loss = (w * w).sum()
            loss.backward()
            return loss
        opt.step(closure)
    """)
    step = of(tape, Step)[0]
    assert ([r.name for r in step.refs], [r.name for r in step.without]) == (["w"], ["idle"])
    assert not any(e.refused for e in of(tape, Backward))


def test_module_that_writes(record: Recorded) -> None:
    tape = record("""
        import torch
        from torch import nn
        net = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Dropout(0.5, inplace=True))
        net(torch.ones(1, 2)).sum().backward()
    """)
    assert [(e.how, e.module) for e in of(tape, Mutate)] == [("module", "net.2")]
    assert of(tape, Backward)[0].refused


def test_max_norm(record: Recorded) -> None:
    tape = record("""
        import torch
        table = torch.nn.Embedding(4, 3, max_norm=0.1)
        other = (table.weight @ torch.ones(3, 1)).exp().sum()
        loss = other + table(torch.tensor([0, 1])).sum() + (table.weight * table.weight).sum()
        late = (table.weight * table.weight).sum()
        table(torch.tensor([0, 1]))
        late.backward()
    """)
    assert {"table.weight"} == {e.ref.name for e in of(tape, Mutate)}
    assert of(tape, Backward)[0].refused


def test_stack_and_names_through_methods(record: Recorded) -> None:
    tape = record("""
        import torch
        class Trainer:
            def __init__(self):
                self.net = torch.nn.Linear(2, 1)
            def loss(self):
                return self.net(torch.ones(1, 2)).mean()
            def fit(self):
                self.loss().backward()
        trainer = Trainer()
        trainer.fit()
    """)
    backward = of(tape, Backward)[0]
    assert [s.function for s in backward.stack] == ["<module>", "Trainer.fit"]
    assert {"trainer.net.weight", "trainer.net.bias"} == {r.name for r in backward.accumulates}
    addmm = next(e for e in of(tape, Record) if e.op == "aten.addmm")
    assert [s.function for s in addmm.stack] == ["<module>", "Trainer.fit", "Trainer.loss"]
    assert {~r.storage for r in backward.accumulates} <= set(backward.nodes)


@pytest.mark.parametrize(
    "loop",
    [
        "for i, net in enumerate((netG, netD)): torch.nn.init.ones_(net.weight)",
        "for i, (net, _) in enumerate(((netG, 0), (netD, 1))): torch.nn.init.ones_(net.weight)",
        "made = [torch.optim.SGD(n.parameters(), lr=.1) for n in (netG, netD)]",
    ],
)
def test_a_loop_variable_names_nothing_that_has_a_name(record: Recorded, loop: str) -> None:
    tape = record(f"""
        import torch
        netG, netD = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        {loop}
        def one_pass():
            netD(netG(torch.ones(1, 2))).mean().backward()
        one_pass()
    """)
    assert {"netG.weight", "netG.bias", "netD.weight", "netD.bias"} == {
        r.name for r in of(tape, Backward)[0].accumulates
    }


@pytest.mark.parametrize(
    ("gathers", "each"), [("*nets", "nets"), ("lr=.1, **nets", "nets.values()"), ("first, *nets", "nets")]
)
def test_arguments_that_a_function_gathers_are_called_as_its_callers_do(
    record: Recorded, gathers: str, each: str
) -> None:
    given = (
        "g=self.g, d=self.d"
        if "**" in gathers
        else "self.g, self.d"
        if gathers[0] == "*"
        else ".1, self.g, self.d"
    )
    tape = record(f"""
        import torch
        def optimizer({gathers}):
            return torch.optim.SGD([p for n in {each} for p in n.parameters()], lr=.1)
        class Trainer:
            def __init__(self):
                self.g, self.d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
                self.opt = optimizer({given})
            def step(self):
                self.opt.zero_grad()
                self.d(self.g(torch.ones(1, 2))).mean().backward()
                self.opt.step()
        def main():
            Trainer().step()
        main()
    """)
    assert {"self.g.weight", "self.g.bias", "self.d.weight", "self.d.bias"} == {
        r.name for r in of(tape, Backward)[0].accumulates
    }


def test_inputs_limit_the_walk(record: Recorded) -> None:
    tape = record("""
        import torch
        a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
        (a.exp().sum() + b.sin().sum()).backward(inputs=[b])
        g, = torch.autograd.grad((a * b).sum(), a, create_graph=True)
        (g * g).sum().backward()
    """)
    first, second, third = of(tape, Backward)
    ops = {e.node: e.op for e in of(tape, Record)}
    assert "aten.exp" not in {ops.get(n) for n in first.nodes}
    assert "aten.sin" in {ops.get(n) for n in first.nodes}
    assert ([r.name for r in first.accumulates], first.inputs) == (["b"], True)
    assert (second.create, second.inputs, second.accumulates) == (True, True, ())
    assert [r.name for r in third.accumulates] == ["b"]


def test_regions_that_are_not_watched(record: Recorded) -> None:
    text = """
        import torch
        from torch.utils.checkpoint import checkpoint
        net = torch.nn.Linear(2, 2)
        def block(x):
            y = net(x) * 2
            y += 1
            return y.tanh()
        for reentrant in (False, True):
            x = torch.ones(1, 2, requires_grad=True)
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
            print(x.grad.sum().item())
        print(torch.func.grad(lambda t: (t * t).sum())(torch.ones(2)))
        print(torch.vmap(torch.sin)(torch.ones(2)))
        def work():
            q = torch.ones(2, requires_grad=True)
            (q * q).sum().backward()
            print(q.grad)
        import threading
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    record(text, plain=True)
    expected = record.out
    tape = record(text)
    assert expected == record.out
    assert not any(e.refused or e.wrong for e in of(tape, Backward))
    assert any("torch.func" in e.text for e in of(tape, Note))


def test_training_in_a_thread_is_recorded_before_and_after_other_threads(record: Recorded) -> None:
    """The main thread has made a graph, and runs no backward before the second thread has ended."""
    tape = record("""
        import threading, torch
        w = torch.ones(2, requires_grad=True)
        print((w * 3).sum().item())
        def work():
            y = (w * 2).exp()
            loss = y.sum()
            y += 1
            (loss + y.sum()).backward()
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        (w * w).sum().backward()
    """)
    assert [bool(b.refused) for b in of(tape, Backward)] == [True, True, False]
    nodes = [n for b in of(tape, Backward) for n in b.nodes if n >= 0]
    assert len(nodes) == len(set(nodes))
    assert {e.stack[-1].line for e in of(tape, Record)} == {4, 6, 7, 8, 9, 14}
    assert not of(tape, Note)


@pytest.mark.parametrize(
    "begin",
    [
        "for t in [threading.Thread(target=work) for _ in 'ab']: t.start(); t.join(0.5)",
        "(w * w).sum().backward(); t = threading.Thread(target=work); t.start(); t.join()",
    ],
    ids=["two_at_once", "main_has_trained"],
)
def test_a_thread_that_is_not_recorded_is_said(record: Recorded, begin: str) -> None:
    tape = record(f"""
        import threading, time, torch
        w = torch.ones(2, requires_grad=True)
        def work():
            (w * 2).exp().sum().backward()
            time.sleep(1)
        {begin}
    """)
    assert len(of(tape, Backward)) == 1
    assert [n.text for n in of(tape, Note)] == [
        "Only one thread is recorded: what the others train is not watched."
    ]


def test_a_forked_process_that_trains_is_said(record: Recorded) -> None:
    tape = record("""
        import multiprocessing, torch
        w = torch.ones(2, requires_grad=True)
        def work():
            (w * w).sum().backward()
        p = multiprocessing.get_context("fork").Process(target=work)
        p.start()
        p.join()
    """)
    assert not of(tape, Backward)
    assert [n.text for n in of(tape, Note)] == [
        "What the script trains in processes that it starts is not watched."
    ]


def test_rounding_is_no_gradient(record: Recorded) -> None:
    """Each row of a softmax sums to one: what comes back through its mean is nothing but rounding, before and after."""
    text = """
        import torch
        torch.manual_seed(0)
        x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3)
        loss = (x @ w).softmax(-1){}.mean()
        w.data *= 2
        loss.backward()
    """
    assert [c.kind for c in detect(record(text.format("[:, 0]"))) if c.severity != "note"] == [
        "silent-overwrite"
    ]
    assert [c.kind for c in detect(record(text.format(""))) if c.severity != "note"] == []


def test_workers_do_not_write_to_the_tape(record: Recorded) -> None:
    tape = record("""
        import os, torch
        w = torch.ones(2, requires_grad=True)
        if not (pid := os.fork()):
            (w * w).sum().backward()
            os._exit(0)
        os.waitpid(pid, 0)
        (w * 2).sum().backward()
    """)
    assert len(of(tape, Backward)) == 1
    assert tape.complete


def test_late_fault_is_not_lost_in_the_flood(record: Recorded) -> None:
    tape = record("""
        import torch
        w = torch.ones(2, requires_grad=True)
        for i in range(90):
            y = (w * 2).exp()
            loss = y.sum()
            if i == 80:
                y += 1
            loss.backward()
    """)
    late = [bool(e.refused) for e in of(tape, Backward) if e.time > of(tape, Note)[0].time]
    assert late[:3] == [False, False, True]  # with its neighbours
    assert sum(late) == 1
    refused = next(e for e in of(tape, Backward) if e.refused)
    assert {"aten.exp", "aten.sum", "aten.mul"} == {e.op for e in of(tape, Record) if e.node in refused.nodes}
    assert len(of(tape, Backward)) < 60


GAN = """
    import torch
    from torch import nn
    G, D = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    opt_g, opt_d = torch.optim.Adam(G.parameters(), 0.01), torch.optim.Adam(D.parameters(), 0.01)
    def pretrain():
        opt_g.zero_grad()
        (G(torch.randn(4, 2)) ** 2).mean().backward()
        opt_g.step()
    def adversarial():
        fake = G(torch.randn(4, 2))
        opt_d.zero_grad()
        (D(torch.randn(4, 2)).mean() - D(fake.detach()).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        D(fake).mean().backward()
        opt_g.step()
    def faulty():
        fake = G(torch.randn(4, 2))
        score = D(fake)
        opt_d.zero_grad()
        (D(torch.randn(4, 2)).mean() - D(fake.detach()).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        score.mean().backward()
        opt_g.step()
"""


@pytest.mark.parametrize("warm_up", ["pretrain", "adversarial"])
def test_fault_after_warm_up_is_told_as_it_is(record: Recorded, warm_up: str) -> None:
    tape = record(f"{GAN}\n    for i in range(105):\n        faulty() if i >= 101 else {warm_up}()\n")
    found = list(detect(tape))
    assert [c.kind for c in found] == ["stale-saved-tensor"]
    assert "opt_d.step()" in found[0].message
    assert list(detect(record(f"{GAN}\n    for i in range(105):\n        {warm_up}()\n"))) == []


def test_fault_in_the_midst_of_a_loop_has_its_neighbours(record: Recorded) -> None:
    """The very statements that ran a hundred times well: a clearing or a step left out would look like a
    fault."""
    tape = record("""
        import torch
        from torch import nn
        G, D = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.01), torch.optim.SGD(D.parameters(), 0.01)
        for i in range(110):
            fake = G(torch.randn(4, 2))
            score = D(fake)
            opt_d.zero_grad()
            (D(torch.randn(4, 2)).mean() - D(fake.detach()).mean()).backward()
            opt_d.step()
            score = D(fake) if i < 100 else score
            opt_g.zero_grad()
            score.mean().backward()
            opt_g.step()
    """)
    assert [(c.kind, c.backward.at.line) for c in detect(tape)] == [("stale-saved-tensor", 14)]


def test_span_of_stores_is_the_statement(record: Recorded) -> None:
    tape = record("""
        import torch
        größe = torch.ones(3, requires_grad=True); y = größe.exp(); y[0] = 3; z = (y
            .sum())
        z.backward()
    """)
    write = next(e for e in of(tape, Mutate))
    assert (write.at.line, write.at.column, write.at.end_line, write.at.end_column) == (3, 60, 3, 68)
    total = next(e for e in of(tape, Record) if e.op == "aten.sum")
    assert (total.at.line, total.at.column, total.at.end_line, total.at.end_column) == (3, 75, 4, 10)


@given(
    st.text(alphabet="ab =é漢😀\t\x0c\u2028", max_size=20), st.text(alphabet="abé漢", min_size=1, max_size=4)
)
def test_columns_count_code_points(before: str, name: str) -> None:
    line = f"{before}{name}\n"
    assert len(before) == code_points([line], 1, len(before.encode()))


@pytest.mark.parametrize("head", ["", "\ufeff", "\x0c", "'''\u2028 \x0b\x1c'''\n", "# é\r\n"])
def test_lines_are_the_tokenizers(head: str) -> None:
    text = head + "é = 1; wert = é.bit_length()\n"
    code = compile(text.encode(), "/nowhere/x.py", "exec")
    sites = Sites({"/nowhere/x.py": text})
    spans = {sites.span(code, i) for i in range(0, len(code.co_code), 2)}
    lines = sites.lines("/nowhere/x.py")
    texts = {lines[a - 1][b:d] for a, b, c, d in spans if a == c and a}
    assert "é.bit_length()" in texts


def test_write_that_no_call_shows(record: Recorded) -> None:
    tape = record("""
        import torch
        @torch.jit.script
        def scale(x):
            return x.mul_(2)
        w = torch.ones(2, requires_grad=True)
        y = w.exp()
        scale(y)
        y.sum().backward()
    """)
    write, backward = of(tape, Mutate)[0], of(tape, Backward)[0]
    assert (write.op, write.stack) == ("unknown", ())
    assert write.time < backward.time
    assert backward.refused


LINEAR = """
    import torch

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return x @ weight.t() + bias

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, {given}, grad.sum(0)

    weight, bias = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight, bias], 0.1)
    for _ in range(3):
        loss = Linear.apply(torch.randn(4, 3), weight, bias).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {after}
"""


@pytest.mark.parametrize(
    ("given", "after", "found"),
    [
        ("None", "", [("cut-graph", "withheld", 18)]),
        ("grad.t() @ x", "", []),
        ("None", "with torch.no_grad(): weight.mul_(0.9)", []),  # trained otherwise: a moving average
        ("None", "weight.grad = None; weight.requires_grad_(False)", []),  # frozen: no gradient was wanted
    ],
)
def test_a_function_that_returns_none_for_a_parameter(
    record: Recorded, given: str, after: str, found
) -> None:
    tape = record(LINEAR.format(given=given, after=after))
    assert found == [(c.kind, c.pattern, c.at.line) for c in detect(tape) if c.severity != "note"]
    assert all("`Linear.backward` returns None for `weight`" in c.message for c in detect(tape))


def test_a_function_that_was_only_evaluated_first_is_told_of_where_it_trains(record: Recorded) -> None:
    text = LINEAR.format(given="None", after="")
    looked = "first = Linear.apply(torch.randn(4, 3), weight, bias)\n    first.detach().numpy()\n    for _ in"
    tape = record(text.replace("for _ in", looked))
    assert [(c.pattern, c.at.line) for c in detect(tape) if c.severity != "note"] == [("withheld", 20)]


def test_a_counter_that_two_tensors_share_is_asked(record: Recorded) -> None:
    """An alias keeps its memory when ``x.data = y`` gives x another one, and yet counts what is written to x."""
    tape = record("""
        import torch
        w, x, y = torch.rand(3, requires_grad=True), torch.rand(3), torch.rand(3)
        loss = (w * x.detach()).sum()
        loss.backward(retain_graph=True)
        (w * y).sum().backward()
        x.data = torch.rand(3)
        x.data = y
        x.sub_(0.5)
        loss.backward()
    """)
    assert [c.kind for c in detect(tape) if c.severity == "error"] == ["stale-saved-tensor"]


def test_a_helpers_variable_names_no_optimizer_that_has_another_name(record: Recorded) -> None:
    tape = record("""
        import torch
        nets = {k: torch.nn.Linear(2, 2) for k in "gd"}
        opts = {k: torch.optim.SGD(v.parameters(), lr=0.1) for k, v in nets.items()}
        def update(loss, opt):
            opt.zero_grad()
            loss.backward()
            opt.step()
        def main():
            for _ in range(2):
                update(nets["d"](torch.ones(2)).sum(), opts["d"])
                update(nets["g"](torch.ones(2)).sum(), opts["g"])
        main()
    """)
    assert {o.optimizer: o.name for o in of(tape, Optimizer)} == {0: "opts['g']", 1: "opts['d']"}


def test_an_optimizer_of_the_programs_own_is_not_called_self(record: Recorded) -> None:
    tape = record("""
        import torch
        class Plain(torch.optim.SGD):
            def __init__(self, parameters, lr):
                super().__init__(parameters, lr)
                for p in self.param_groups[0]["params"]:
                    self.state[p]["step"] = torch.zeros(1)
            def step(self, closure=None):
                with torch.no_grad():
                    for p in self.param_groups[0]["params"]:
                        p -= 0.1 * p.grad
        net = torch.nn.Linear(2, 2)
        optimizer = Plain(net.parameters(), lr=0.1)
        def train():
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.ones(2)).sum().backward()
                optimizer.step()
        train()
    """)
    assert [o.name for o in of(tape, Optimizer)] == ["optimizer"]
