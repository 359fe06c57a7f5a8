#!/usr/bin/env python
"""Write gradfix/read/effects.json: what every op of this PyTorch saves for its backward, writes, and views.

    python tools/effect_table.py            writes the table
    python tools/effect_table.py --check    exits 1 where the committed table is not what this PyTorch gives

Ops with a formula of their own come from derivatives.yaml and native_functions.yaml, both in the torch wheel, as
torchgen reads them for autograd's own code. Composite ops have no formula: they are run once on the samples of op_db,
and what they saved is kept. What has another shape than its arguments together is seen there, too. The format is
described in gradfix/read/effects.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torchgen
from torchgen.gen import parse_native_yaml
from torchgen.model import BaseTy, BaseType, ListType, NativeFunction, OptionalType, Type, Variant
from torchgen.packaged.autograd.load_derivatives import load_derivatives

TARGET = Path(__file__).parent.parent / "gradfix" / "read" / "effects.json"
PACKAGED = Path(torchgen.__file__).parent / "packaged"
FILES = [
    PACKAGED / "autograd/derivatives.yaml",
    PACKAGED / "ATen/native/native_functions.yaml",
    PACKAGED / "ATen/native/tags.yaml",
]
KINDS = {BaseTy.Tensor: "T", BaseTy.Scalar: "S", BaseTy.float: "S", BaseTy.int: "I", BaseTy.SymInt: "I"}
TYPES = (torch.float32, torch.int64, torch.complex64)
MOST_SAMPLES = 12
MANY_FORMS = {
    "flatten",
    "reshape",
    "to",
    "contiguous",
    "view_as",
    "reshape_as",
}  # views, or copies where they must


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = table_text()
    if options.check:
        return 0 if TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


def table_text() -> str:
    """The table's file, one op a line."""
    rows = from_formulas()
    for name, seen in from_runs(rows).items():
        plain = name.removeprefix("nn.")
        if plain in MANY_FORMS or (plain in rows and any(seen.node == o.split("|")[3] for o in rows[plain])):
            continue  # the formula is what runs
        if plain in rows:
            rows[plain] = [seen.applied(rows[plain][0]), *rows[plain][1:]]
        else:
            rows[name] = [seen.text()]
    version = importlib.metadata.version("torch").split("+")[0]
    head = json.dumps({"torch": version, "reshaping": sorted(reshaping())})[1:-1]
    body = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows[name])}" for name in sorted(rows))
    return f'{{{head},"ops":{{\n{body}\n}}}}\n'


# ---- formulas


def from_formulas() -> dict[str, list[str]]:
    """Public name -> its overloads, for what a person can call in Python."""
    infos, _ = load_derivatives(*map(str, FILES))
    functions = parse_native_yaml(str(FILES[1]), str(FILES[2])).native_functions
    derivatives = {str(schema.name): by_key.get("Default") for schema, by_key in infos.items()}
    rows: dict[str, list[str]] = defaultdict(list)
    for function in functions:
        name = function.func.name
        base = name.name.base
        called = Variant.function in function.variants or Variant.method in function.variants
        if not called or name.name.dunder_method or function.func.is_out_fn() or base.startswith("_"):
            continue
        if "backward" in base or "Dimname" in str(function.func):
            continue
        public = base + ("_" if name.name.inplace else "")
        rows[public].append(overload(function, derivatives.get(str(name))))
    return dict(rows)


def overload(function: NativeFunction, info: Any) -> str:
    func = function.func
    arguments, seen_star = [], False
    for argument in func.schema_order_arguments():
        if argument.name in {a.name for a in func.arguments.flat_kwarg_only} and not seen_star:
            seen_star = True
            arguments.append("*")
        kind = kind_of(argument.type)
        if argument.annotation is not None and argument.annotation.is_write:
            kind += "!"
        arguments.append(f"{argument.name}:{kind}{'=' if argument.default is not None else ''}")
    results = "".join(result_of(r) for r in func.returns)
    saves, node = [], ""
    if info is not None:
        node = info.op if info.op and info.derivatives else "-"
        tensors = {a.name for a in func.schema_order_arguments() if kind_of(a.type)[0] in "TL"}
        # autograd's code generator keeps results, and what two formulas read, whoever needs the gradient
        reading = Counter(str(s.nctype.name) for d in info.derivatives for s in d.saved_inputs)
        always = {n for n, times in reading.items() if times > 1 and n in tensors}
        always |= {str(s.nctype.name) for d in info.derivatives for s in d.saved_outputs}
        for derivative in info.derivatives:
            kept = [s.nctype.name for s in derivative.saved_inputs if str(s.nctype.name) in tensors]
            kept += [str(s.nctype.name) for s in derivative.saved_outputs]
            for variable in derivative.var_names:
                saves.append(f"{variable}<{','.join(sorted({*map(str, kept), *always}))}")
    names = ",".join(
        r.name or ("result" if len(func.returns) == 1 else f"result{i}") for i, r in enumerate(func.returns)
    )
    return f"({','.join(arguments)})|{results}|{names}|{node}|{' '.join(sorted(saves))}"


def kind_of(type_: Type) -> str:
    if isinstance(type_, OptionalType):
        return kind_of(type_.elem) + "?"
    if isinstance(type_, ListType):
        inner = kind_of(type_.elem)[0]
        return {"T": "L", "I": "J", "S": "J"}.get(inner, "X")
    if isinstance(type_, BaseType):
        if type_.name is BaseTy.bool:
            return "B"
        if type_.name is BaseTy.ScalarType:
            return "D"
        return KINDS.get(type_.name, "X")
    return "X"


def result_of(result: Any) -> str:
    many = isinstance(result.type, ListType)
    if result.annotation is not None and not result.annotation.is_write:
        return "m" if many else "v"
    if result.annotation is not None:
        return "w"
    if isinstance(result.type, BaseType) and result.type.name is not BaseTy.Tensor:
        return "n"
    return "l" if many else "t"


# ---- runs


@dataclass(frozen=True)
class Seen:
    """What a composite op was seen to do: the node made last, and per differentiable argument what it saved."""

    node: str
    arguments: tuple[str, ...]
    saves: dict[str, tuple[str, ...]]

    def text(self) -> str:
        arguments = ",".join(f"{n}:{'T' if n in self.saves else 'X='}" for n in self.arguments)
        return f"({arguments})|t|result|{self.node}|{self._saves(self.arguments)}"

    def applied(self, overload: str) -> str:
        """An overload of the schema's with what was seen."""
        arguments, results, names, _, _ = overload.split("|")
        own = [a.split(":")[0] for a in arguments.strip("()").split(",") if ":" in a]
        return f"{arguments}|{results}|{names}|{self.node}|{self._saves(own)}"

    def _saves(self, names: Sequence[str]) -> str:
        renamed = {} if set(self.saves) <= set(names) else dict(zip(self.arguments, names, strict=False))
        rows = [
            f"{renamed.get(wanted, wanted)}<{','.join(renamed.get(k, k) for k in kept)}"
            for wanted, kept in self.saves.items()
        ]
        return " ".join(sorted(rows))


def from_runs(rows: dict[str, list[str]]) -> dict[str, Seen]:
    """What the ops of op_db were seen to save; nn.functional's under ``nn.``."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        name = public_name(op)
        if not name or torch.float32 not in op.dtypes:
            continue
        schema = [
            a.split(":")[0] for a in rows.get(name, [""])[0].split("|")[0].strip("()").split(",") if ":" in a
        ]
        seen = observe(op, parameter_names(op) or schema)
        if seen is not None:
            found["nn." + name if op.name.startswith("nn.functional.") else name] = seen
    return found


def public_name(op: Any) -> str:
    """What the table calls an op of op_db, or "" where it is none that programs call."""
    name = str(op.name.removeprefix("nn.functional."))
    for space in ("linalg", "special", "fft"):
        name = name.replace(space + ".", space + "_")
    if op.variant_test_name or "backward" in name or not callable(op.op):
        return ""
    return "" if name.startswith(("_", "jiterator")) else name


def reshaping() -> set[str]:
    """The ops of op_db that give, of tensors alone, another shape than these are broadcast to."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = set()
    for op in op_db:
        name = public_name(op)
        for sample in _samples(op, next((t for t in TYPES if t in op.dtypes), torch.bool)) if name else ():
            values = [sample.input, *sample.args, *sample.kwargs.values()]
            if any(isinstance(v, int | list | tuple) and not isinstance(v, bool) for v in values):
                continue  # sizes and dimensions tell what becomes of it
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = op.op(sample.input, *sample.args, **sample.kwargs)
            while isinstance(made, list | tuple) and made:
                made = made[0]
            if isinstance(made, torch.Tensor) and made.shape != _together(tensors):
                found.add(name)
    return found


def _together(tensors: list[torch.Tensor]) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return None


def _samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """Most of an op's samples; none where they can't be made."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = op.sample_inputs("cpu", dtype, requires_grad=False)
            return list(islice((s for s in made if not _empty(s)), MOST_SAMPLES))
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return []


def observe(op: Any, names: list[str]) -> Seen | None:
    """What `op` does with most of its samples, or None where it can't be told."""
    samples = _samples(op, torch.float32)
    saves: dict[str, list[set[str]]] = defaultdict(list)
    given: dict[str, int] = defaultdict(int)
    nodes = Counter[str]()
    for sample in samples:
        tensors = {name_of(names, i): v for i, v in enumerate([sample.input, *sample.args]) if is_real(v)}
        for wanted in tensors:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seen = saved_for(op, sample, tensors, wanted, names)
            if seen is not None:
                nodes[seen[0]] += 1
                saves[wanted].append(seen[1])
                for name in tensors:
                    given[wanted + " " + name] += 1
    if not saves:
        return None
    rows = {}
    for wanted, runs in sorted(saves.items()):
        counts = Counter(k for run in runs for k in run)
        rows[wanted] = tuple(
            sorted(k for k, n in counts.items() if 2 * n > given.get(f"{wanted} {k}", len(runs)))
        )
    return Seen(nodes.most_common(1)[0][0], tuple(names), rows)


def _empty(sample: Any) -> bool:
    """Whether a tensor has no elements, hence no memory of its own by which to know it again."""
    return any(isinstance(v, torch.Tensor) and not v.numel() for v in (sample.input, *sample.args))


def parameter_names(op: Any) -> list[str]:
    try:
        names = list(inspect.signature(op.op).parameters)
    except (ValueError, TypeError):
        return []
    return [] if "args" in names else names


def name_of(names: list[str], index: int) -> str:
    return names[index] if index < len(names) else f"arg{index}"


def is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


def saved_for(
    op: Any, sample: Any, tensors: dict[str, torch.Tensor], wanted: str, names: list[str]
) -> tuple[str, set[str]] | None:
    """(name of the node made last, what was saved of the arguments and the result) if only `wanted` requires grad."""
    fresh = {n: t.detach().clone().requires_grad_(n == wanted) for n, t in tensors.items()}
    given = [sample.input, *sample.args]
    arguments = [fresh.get(name_of(names, i), v) for i, v in enumerate(given)]
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.untyped_storage().data_ptr())
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = op.op(*arguments, **sample.kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return None
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.grad_fn is None:
        return None
    owners = {t.untyped_storage().data_ptr(): n for n, t in fresh.items()}
    own = result.untyped_storage().data_ptr()
    kept = {owners.get(p) or ("result" if p == own else "#") for p in packed}
    return result.grad_fn.name(), kept


if __name__ == "__main__":
    sys.exit(main())
