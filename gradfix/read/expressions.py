"""Expressions of the program, one function a kind; and what can be assigned to."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from gradfix.read import (
    calls,
    containers,
    flags,
    growing,
    indexing,
    iteration,
    libraries,
    names,
    objects,
    ops,
    python,
    strings,
    tensors,
)
from gradfix.read.frames import Frame, Machine
from gradfix.read.growing import Grown
from gradfix.read.operators import binary, compared, in_place
from gradfix.read.truth import truth
from gradfix.read.values import Array, Instance, Later, Lazy, Lib, Tensor, Unknown, Value

_DISPLAYS = (ast.List, ast.Tuple, ast.Dict)


def evaluate(m: Machine, node: ast.expr) -> Value:
    """The value of an expression."""
    kind = type(node)
    if kind is ast.Constant:
        return node.value  # type: ignore[attr-defined]
    run = EVALUATE.get(kind)
    if run is None:
        return m.unknown(kind.__name__)
    return run(m, node)


def _name(m: Machine, node: ast.Name) -> Value:
    name = node.id
    frame: Frame | None = m.frame
    while frame is not None:
        if name in frame.names and name not in frame.declared:
            return settled(frame.names, name)
        frame = frame.parent
    names = m.frame.unit.names
    if name in names:
        return settled(names, name)
    if name in python.BUILTINS:
        return Lib("builtins." + name)
    return m.unknown("name " + name)


def settled(names: dict[str, Value], name: str) -> Value:
    """A variable's value; what was only imported so far is read now."""
    value = names[name]
    if isinstance(value, Later):
        names[name] = value = value.find()
    return value


def _attribute(m: Machine, node: ast.Attribute) -> Value:
    value = evaluate(m, node.value)
    m.frame.node = node
    if value is None:
        _missing(m, node)
    return objects.attribute(m, value, node.attr)


def _missing(m: Machine, node: ast.Attribute) -> None:
    """An attribute of None: of a gradient that was a tensor of zeros before PyTorch 2.0, or that was never kept."""
    where, leaf = m.gone
    if node.value is not where:
        return
    said = f"'NoneType' object has no attribute {node.attr!r}"
    if leaf is None and m.sure():
        m.fail("AttributeError", said)
    elif leaf is not None and m.trace.cleared(leaf):
        m.outdated("AttributeError", said)


def _call(m: Machine, node: ast.Call) -> Value:
    m.spend()
    called = evaluate(m, node.func)
    args: list[Value] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            value = evaluate(m, each.value)
            endless = isinstance(value, Lazy) and value.length is None
            items = None if endless else iteration.listed(m, value)
            if items is None:
                args.append(calls.REST)
            else:
                args += items
        else:
            args.append(evaluate(m, each))
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = evaluate(m, keyword.value)
        if keyword.arg is None:
            value = containers.plain(value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs.update((k, v) for k, v in value.items() if isinstance(k, str))
        else:
            kwargs["**"] = value
    m.frame.node = node
    return calls.call(m, called, args, kwargs)


def _binary(m: Machine, node: ast.BinOp) -> Value:
    left, right = evaluate(m, node.left), evaluate(m, node.right)
    m.frame.node = node
    return binary(m, node.op, left, right)


def _unary(m: Machine, node: ast.UnaryOp) -> Value:
    value = evaluate(m, node.operand)
    if isinstance(node.op, ast.Not):
        known = truth(m, value)
        if isinstance(value, Grown):
            return Grown(value.origin, then=not value.then)
        return m.unknown("not") if known is None else not known
    m.frame.node = node
    if isinstance(value, Tensor):
        name = {ast.USub: "neg", ast.Invert: "bitwise_not"}.get(type(node.op))
        return ops.apply(m, name, [value], {}) if name else value
    if isinstance(value, bool | int | float | complex):
        if isinstance(node.op, ast.USub):
            return -value
        if isinstance(node.op, ast.UAdd):
            return +value
        return ~value if isinstance(value, int) else m.unknown("~")
    return value if isinstance(value, Unknown) and not isinstance(value, Array) else m.unknown("unary")


def _bool(m: Machine, node: ast.BoolOp) -> Value:
    wants = isinstance(node.op, ast.Or)
    doubt: Value = None
    for each in node.values:
        value = evaluate(m, each)
        if each is node.values[-1]:
            break  # it is what comes out, true or not
        known = truth(m, value)
        if known is wants:
            return value if doubt is None else doubt
        if known is None:
            doubt = doubt or (value if isinstance(value, Grown) else m.unknown("and/or"))
            if len(node.values) == 2 and wants and isinstance(value, Unknown):
                evaluate(m, node.values[1])
                return value
    return value if doubt is None else doubt


def _compare(m: Machine, node: ast.Compare) -> Value:
    left = evaluate(m, node.left)
    result: Value = True
    for op, each in zip(node.ops, node.comparators, strict=True):
        right = evaluate(m, each)
        m.frame.node = node
        result = compared(m, op, left, right)
        if result is False or len(node.ops) == 1:
            return result
        if isinstance(result, Unknown | Tensor):
            return result
        left = right
    return result


def _conditional(m: Machine, node: ast.IfExp) -> Value:
    value = evaluate(m, node.test)
    known = truth(m, value)
    if known is None:
        known = value.then if isinstance(value, Grown) else m.decide(node.test)
        m.trace.guessed = True
        m.doubts += 1
        try:
            return evaluate(m, node.body if known else node.orelse)
        finally:
            m.doubts -= 1
    if m.open.flags:
        flags.met(m, node)
    return evaluate(m, node.body if known else node.orelse)


def _subscript(m: Machine, node: ast.Subscript) -> Value:
    value = evaluate(m, node.value)
    index = evaluate(m, node.slice)
    m.frame.node = node
    return objects.item(m, value, index)


def _slice(m: Machine, node: ast.Slice) -> Value:
    parts = [None if p is None else evaluate(m, p) for p in (node.lower, node.upper, node.step)]
    return slice(*parts)


def _tuple(m: Machine, node: ast.Tuple) -> Value:
    found = _items(m, node.elts)
    return tuple(found) if isinstance(found, list) else found


def _list(m: Machine, node: ast.List) -> Value:
    return _items(m, node.elts)


def _items(m: Machine, nodes: list[ast.expr]) -> Value:
    found: list[Value] = []
    shared, known = False, True
    for each in nodes:
        if isinstance(each, ast.Starred):
            items = iteration.listed(m, evaluate(m, each.value))
            known &= items is not None
            found += items or ()
        else:
            found.append(evaluate(m, each))
            shared |= isinstance(found[-1], list | tuple | dict) and not isinstance(each, _DISPLAYS)
    if not known:
        return iteration.lost(m, found, "starred")
    return found if not shared or python.light(found) else m.unknown("large value")


def _set(m: Machine, node: ast.Set) -> Value:
    found = _items(m, node.elts)
    return python.hashed(m, set, found)


def _dict(m: Machine, node: ast.Dict) -> Value:
    found: dict[Value, Value] = {}
    whole = True
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            inner = evaluate(m, value)
            if isinstance(inner, dict):
                found.update(inner)
            else:
                whole = False
            continue
        name = evaluate(m, key)
        made = evaluate(m, value)
        if python.hashable(name):
            found[name] = made
    if not whole:
        libraries.escape(m, list(found.values()))
        return m.unknown("dict")
    return found if python.light(found) else m.unknown("large value")


def _joined(m: Machine, node: ast.JoinedStr) -> Value:
    parts: list[str | None] = []
    for each in node.values:
        if isinstance(each, ast.FormattedValue):
            value = evaluate(m, each.value)
            spec = evaluate(m, each.format_spec) if each.format_spec is not None else ""
            conversion = chr(each.conversion) if each.conversion > 0 else None
            parts.append(strings.shown(value, spec, conversion) if isinstance(spec, str) else None)
        elif isinstance(each, ast.Constant):
            parts.append(str(each.value))
    return strings.joined(m, parts)


def _lambda(m: Machine, node: ast.Lambda) -> Value:
    return calls.define(m, node)


def _comprehension(m: Machine, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Value:
    first = evaluate(m, node.generators[0].iter)
    m.frame.node = node
    kind = {ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>"}.get(
        type(node), "<genexpr>"
    )
    outer = m.frame
    name = kind if outer.qualname == "<module>" else f"{outer.qualname}.<locals>.{kind}"
    frame = Frame(outer.unit, name, outer.stack(), {}, None if outer.names is outer.unit.names else outer)
    frame.cls, frame.here = outer.cls, outer.here
    frame.passing.update(name for each in node.generators for name in names.bound(each.target))
    found: list[Value] = []
    with m.inside(frame):
        _generate(m, node, 0, first, found)
    if isinstance(node, ast.DictComp):
        return {k: v for k, v in found if python.hashable(k)}
    if isinstance(node, ast.SetComp):
        return python.hashed(m, set, found)
    return found


def _generate(m: Machine, node: Any, depth: int, source: Value, found: list[Value]) -> None:
    generator = node.generators[depth]

    def one(item: Value) -> bool:
        m.spend()
        assign(m, generator.target, item, generator.target)
        for test in generator.ifs:
            known = truth(m, evaluate(m, test))
            if known is False or (known is None and not m.decide(test)):
                return False
        if depth + 1 < len(node.generators):
            _generate(m, node, depth + 1, evaluate(m, node.generators[depth + 1].iter), found)
        elif isinstance(node, ast.DictComp):
            found.append((evaluate(m, node.key), evaluate(m, node.value)))
        else:
            found.append(evaluate(m, node.elt))
        return False

    items = iteration.listed(m, source, iteration.DRAWN)
    if items is None:
        iteration.each(m, source, one, node)
    else:
        for item in items:
            one(item)


def _starred(m: Machine, node: ast.Starred) -> Value:
    return evaluate(m, node.value)


def _named(m: Machine, node: ast.NamedExpr) -> Value:
    value = evaluate(m, node.value)
    assign(m, node.target, value, node)
    return value


def _yield(m: Machine, node: ast.Yield | ast.YieldFrom) -> Value:
    value = evaluate(m, node.value) if node.value is not None else None
    yielding = m.frame.yielding
    if yielding is None:
        return m.unknown("yield")
    if isinstance(node, ast.YieldFrom):
        for each in iteration.listed(m, value) or []:
            yielding(each)
        return None
    yielding(value)
    return None


def _await(m: Machine, node: ast.Await) -> Value:
    return evaluate(m, node.value)


EVALUATE: dict[type, Callable[..., Value]] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _bool,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Tuple: _tuple,
    ast.List: _list,
    ast.Set: _set,
    ast.Dict: _dict,
    ast.JoinedStr: _joined,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.Starred: _starred,
    ast.NamedExpr: _named,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Await: _await,
}


# ---- targets


def assign(m: Machine, target: ast.expr, value: Value, statement: ast.AST) -> None:
    """Bind `value` to a name, an attribute, an item, or to several of these."""
    if isinstance(target, ast.Name):
        calls.store(m, target.id, value)
    elif isinstance(target, ast.Attribute):
        owner = evaluate(m, target.value)
        m.frame.node = statement
        if isinstance(owner, Unknown) and target.attr == "requires_grad" and value is True:
            assign(m, target.value, tensors.fresh(m, None, requires=True), statement)  # a tensor, then
        else:
            objects.set_attribute(m, owner, target.attr, value)
    elif isinstance(target, ast.Subscript):
        owner, index = evaluate(m, target.value), evaluate(m, target.slice)
        m.frame.node = statement
        objects.set_item(m, owner, index, value)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(m, target.elts, value, statement)
    elif isinstance(target, ast.Starred):
        assign(m, target.value, value, statement)


def _unpack(m: Machine, targets: list[ast.expr], value: Value, statement: ast.AST) -> None:
    items = iteration.listed(m, value, 64)
    star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
    if isinstance(value, Tensor) and value.shape is None and not value.guessed:
        items = indexing.rows(m, value, len(targets))
    if items is None or (star is None and len(items) != len(targets)) or len(items) < len(targets) - 1:
        origin = value.origin if isinstance(value, Unknown) else "unpacked"
        for target in targets:
            assign(m, target, m.unknown(origin), statement)
        return
    if star is None:
        for target, item in zip(targets, items, strict=True):
            assign(m, target, item, statement)
        return
    after = len(targets) - star - 1
    middle = items[star : len(items) - after]
    for target, item in zip(targets[:star], items, strict=False):
        assign(m, target, item, statement)
    assign(m, targets[star], middle, statement)
    for target, item in zip(targets[star + 1 :], items[len(items) - after :], strict=True):
        assign(m, target, item, statement)


def augmented(m: Machine, node: ast.AugAssign) -> None:
    """``x += y``: in place where x is a tensor or a list, else a new binding."""
    target = node.target
    if isinstance(target, ast.Name):
        load = ast.Name(target.id, ast.Load())
        left = _name(m, load)
        right = evaluate(m, node.value)
        m.frame.node = node
        calls.store(m, target.id, growing.counted(m, left, in_place(m, node.op, left, right)))
        return
    owner = evaluate(m, target.value)
    if isinstance(target, ast.Attribute):
        m.frame.node = target
        left = objects.attribute(m, owner, target.attr)
        right = evaluate(m, node.value)
        m.frame.node = node
        result = growing.counted(m, left, in_place(m, node.op, left, right))
        objects.set_attribute(m, owner, target.attr, result)
    else:
        index = evaluate(m, target.slice)
        m.frame.node = target
        left = objects.item(m, owner, index)
        right = evaluate(m, node.value)
        m.frame.node = node
        result = in_place(m, node.op, left, right)
        objects.set_item(m, owner, index, result)


def delete(m: Machine, target: ast.expr) -> None:
    """``del x``, ``del x[i]``."""
    if isinstance(target, ast.Name):
        m.frame.names.pop(target.id, None)
    elif isinstance(target, ast.Subscript):
        owner, index = evaluate(m, target.value), evaluate(m, target.slice)
        python.delete_item(owner, index)
    elif isinstance(target, ast.Attribute):
        owner = evaluate(m, target.value)
        m.frame.node = target
        if isinstance(owner, Instance):
            owner.attrs.pop(target.attr, None)
        elif isinstance(owner, Tensor) and target.attr in tensors.GRADS:
            objects.set_attribute(m, owner, "grad", None)
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            delete(m, each)


__all__ = ["assign", "augmented", "delete", "evaluate", "settled"]
