"""The effect table against what autograd really saves, op by op on the samples of op_db (every eighth, and every one in
the soak tier)."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

from gradfix.read import effects, ops, shapes
from gradfix.read.values import Storage, Tensor

QUICK = {
    "exp",
    "sigmoid",
    "mul",
    "div",
    "sqrt",
    "tanh",
    "matmul",
    "softmax",
    "prod",
    "atan2",
    "cumsum",
    "pow",
    "gelu",
}


PARTS = [8, pytest.param(1, marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def tool():
    path = Path(__file__).parent.parent / "tools" / "effect_table.py"
    spec = importlib.util.spec_from_file_location("effect_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def disagreements(tool, wanted=None, every=1):
    """(how many ops were compared, op -> (seen, table) of those that differ)."""
    from torch.testing._internal.common_methods_invocations import op_db

    compared, differing = 0, {}
    for op in op_db[::every]:
        name = op.name.removeprefix("nn.functional.")
        for space in ("linalg", "special", "fft"):
            name = name.replace(space + ".", space + "_")
        if op.variant_test_name or name.startswith(("_", "jiterator")) or "backward" in name:
            continue
        if (wanted is not None and name not in wanted) or not effects.overloads(name) or not callable(op.op):
            continue
        schema = [a.name for a in effects.overloads(name)[0].arguments]
        seen = tool.observe(op, tool.parameter_names(op) or schema)
        row = next((o for o in effects.overloads(name) if seen is not None and o.node == seen.node), None)
        if seen is None or row is None:
            continue
        compared += 1
        own = dict(zip(seen.arguments, (a.name for a in row.arguments), strict=False))
        own = {
            n: n if set(seen.saves) <= {a.name for a in row.arguments} else own.get(n, n)
            for n in seen.arguments
        }
        watched = {own.get(n, n) for n in seen.saves} | {"result"}
        for argument, kept in seen.saves.items():
            told = {
                ("result" if k == row.names[0] else k) for k in row.saves.get(own.get(argument, argument), ())
            }
            if {own.get(k, k) for k in kept} & watched != told & watched:
                differing[name] = (sorted(kept), sorted(told))
    return compared, differing


# op -> why its row says other than what was seen
EXPLAINED: dict[str, str] = {}


@pytest.mark.parametrize("every", PARTS)
def test_every_op_saves_what_the_table_says_or_there_is_a_reason(tool, every):
    compared, differing = disagreements(tool, every=every)
    assert compared >= {8: 35, 1: 365}[every]
    assert differing.keys() <= EXPLAINED.keys()


def test_common_ops_save_what_the_table_says(tool):
    compared, differing = disagreements(tool, QUICK)
    assert compared >= len(QUICK) - 3
    assert not differing


def shapeful(value):
    """What the reader takes a sample's value for: tensors by their shapes."""
    import torch

    if isinstance(value, torch.Tensor):
        return Tensor(Storage(0), shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))
    return type(value)(map(shapeful, value)) if type(value) in (list, tuple) else value


def misjudged(op, name, samples):
    """The first sample of `op` whose result is told another shape than it has."""
    for sample in samples:
        args = [shapeful(v) for v in (sample.input, *sample.args)]
        matched = ops._match(name, args, {k: shapeful(v) for k, v in sample.kwargs.items()})
        told = matched and shapes.result_of(name, matched[1])
        if not told and told != ():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = op.op(sample.input, *sample.args, **sample.kwargs)
        while isinstance(made, list | tuple) and made:
            made = made[0]
        seen = getattr(made, "shape", told)
        if len(told) != len(seen) or any(t not in (None, s) for t, s in zip(told, seen, strict=True)):
            return told, tuple(seen)
    return None


@pytest.mark.parametrize("every", PARTS)
def test_what_is_told_of_a_results_shape_is_so(tool, every):
    from torch.testing._internal.common_methods_invocations import op_db

    wrong = {}
    for op in op_db[::every]:
        name = tool.public_name(op)
        if name and effects.overloads(name):
            dtype = next((t for t in tool.TYPES if t in op.dtypes), None)
            found = misjudged(op, name, tool._samples(op, dtype)) if dtype is not None else None
            wrong |= {name: found} if found else {}
    assert wrong == {}
