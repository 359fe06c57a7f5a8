"""What every op saves, writes and views: effects.json, made by tools/effect_table.py, read when first asked.

An overload is ``(arguments)|results|names|node|saves``. An argument is ``name:kind``, where kind is T tensor, L
tensors, S number, I int, J ints, B bool, D dtype, X other; then ``?`` optional, ``!`` written to, ``=`` has a default;
a ``*`` stands before those that are keywords only. A result is ``t`` a new tensor, ``v`` a view of the first argument,
``m`` several views at once, ``l`` a list, ``w`` what was written to, ``n`` no tensor. ``self<other,result``
in saves: if the argument self requires grad, other and result are kept for the backward; ``#`` is a tensor of the op's
own. The node ``-`` stands for an op without a gradient.

``reshaping`` names the ops that give, of tensors alone, another shape than these are broadcast to.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from gradfix.dataclass import dataclass

NODE_NAMES = {"linear": "AddmmBackward0", "matmul": "MmBackward0", "nn.cross_entropy": "NllLossBackward0"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an op."""

    name: str
    kind: str
    optional: bool
    keyword: bool
    written: bool


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of an op. `saves` maps a differentiable argument to what is kept for its gradient; `positional` are
    the arguments but for those that are keywords only."""

    arguments: tuple[Argument, ...]
    positional: tuple[Argument, ...]
    results: str
    names: tuple[str, ...]
    node: str
    saves: dict[str, tuple[str, ...]]


@functools.cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("effects.json").read_text(encoding="utf-8"))
    return found


def table() -> dict[str, list[str]]:
    """Every op's overloads as the file has them."""
    ops: dict[str, list[str]] = _file()["ops"]
    return ops


@functools.cache
def reshaping() -> frozenset[str]:
    """The ops that give, of tensors alone, another shape than these are broadcast to."""
    return frozenset(_file()["reshaping"])


@functools.cache
def overloads(name: str) -> tuple[Overload, ...]:
    """The signatures of a public op (``mul``, ``mul_``, ``nn.gelu``), or () where the table has none."""
    found = tuple(_parsed(name, text) for text in table().get(name, ()))
    if not found and name.startswith("nn."):
        return overloads(name[3:])
    if name.endswith("_") and found and not any(o.saves for o in found):
        return tuple(_in_place(o, overloads(name[:-1])) for o in found)
    return found


def _in_place(own: Overload, plain: tuple[Overload, ...]) -> Overload:
    """An in-place op keeps what the plain op does, except its own self, of which it keeps a copy."""
    names = [(a.name, a.kind) for a in own.arguments]
    match = next((p for p in plain if [(a.name, a.kind) for a in p.arguments] == names), None)
    if match is None:
        return own
    first = own.arguments[0].name
    saves = {w: tuple("#" if k == first else k for k in kept) for w, kept in match.saves.items()}
    return Overload(own.arguments, own.positional, own.results, match.names, match.node, saves)


def _parsed(op: str, text: str) -> Overload:
    arguments, results, names, node, saves = text.split("|")
    parsed, keyword = [], False
    for each in filter(None, arguments.strip("()").split(",")):
        if each == "*":
            keyword = True
            continue
        name, _, kind = each.partition(":")
        parsed.append(Argument(name, kind[0], "?" in kind or "=" in kind, keyword, "!" in kind))
    kept = {}
    for each in saves.split():
        wanted, _, values = each.partition("<")
        kept[wanted] = tuple(filter(None, values.split(",")))
    positional = tuple(a for a in parsed if not a.keyword)
    known = tuple(names.split(","))
    return Overload(tuple(parsed), positional, results, known, NODE_NAMES.get(op, node), kept)


@functools.cache
def op_of(node: str) -> str:
    """``aten.add`` of ``AddBackward0``: the name under which the tape knows a node."""
    base, found, digits = node.rpartition("Backward")
    if not found or not digits.isdigit():
        return base or node
    letters = []
    for i, c in enumerate(base):
        if c.isupper() and i and not (base[i - 1].isupper() or base[i - 1] == "_"):
            letters.append("_")
        letters.append(c.lower())
    return "aten." + "".join(letters)


@functools.cache
def node_of(op: str) -> str:
    """A node name for an op whose row gives none: ``AddBackward0`` of ``add``."""
    return "".join(part.capitalize() for part in op.strip("_").split("_")) + "Backward0"
