"""Where a program leaves the graph in one phase of its training and not in another: ``if not self.joint: f =
f.detach()``, with ``self.joint = True`` behind what the run came to, or ``if epoch < 5:`` around it; and loops that
step one optimizer one after the other.

`gradfix.read` imports this, too: standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_LEAVING = frozenset(("detach", "detach_", "data", "no_grad", "set_grad_enabled", "inference_mode"))
_MAKING = frozenset(("__init__", "__new__", "__post_init__"))


def phases(trees: Mapping[str, ast.Module]) -> list[list[Any]]:
    """[file, first line, last line, True] of each branch that leaves the graph where the program says when, and with
    False of each loop, or function, that steps an optimizer which another steps, too."""
    switched = {name for tree in trees.values() for name in _switched(tree)}
    given = _given(trees.values())
    functions = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, FUNCTIONS)]
    differentiating = {"backward"} | {f.name for f in functions if "backward" in map(last_name, ast.walk(f))}
    found = []
    for file, tree in trees.items():
        for function in (tree, *(n for n in ast.walk(tree) if isinstance(n, FUNCTIONS))):
            own = given.get(_name(function), set())
            for node in _own(function):
                # (what a loop goes through may lack a gradient, say)
                without = isinstance(node, (ast.If, ast.IfExp)) and _of_nothing(node.test, function)
                if (
                    isinstance(node, (ast.If, ast.IfExp))
                    and not without
                    and _counts(node.test, switched | own)
                ):
                    found += [[file, *lines, True] for lines in _leaving(node, differentiating)]
                elif isinstance(node, ast.With) and any(_chooses(i, switched | own) for i in node.items):
                    found.append([file, node.lineno, node.end_lineno or node.lineno, True])
    return [*found, *_one_after_the_other(trees)]


def _one_after_the_other(trees: Mapping[str, ast.Module]) -> Iterator[list[Any]]:
    """The loops that step the same optimizer, as its name says, where there are several; of functions without a loop,
    the whole. What is called nowhere does not count."""
    every = [(file, node) for file, tree in trees.items() for node in ast.walk(tree)]
    calls = [node for _, node in every if isinstance(node, ast.Call)]
    called = {last_name(call.func) for call in calls}
    cleared = _receivers(calls, "zero_grad")  # (a schedule steps, too)
    found: dict[str, set[tuple[str, int, int]]] = {}
    for file, function in every:
        if isinstance(function, ast.Module) or (isinstance(function, FUNCTIONS) and function.name in called):
            for around in _outermost(function):
                inside = (n for n in _own(around) if isinstance(n, ast.Call))
                for name in _receivers(inside, "step") & cleared:
                    found.setdefault(name, set()).add((file, around.lineno, around.end_lineno))
    for places in found.values():
        if len(places) > 1:
            yield from ([*place, False] for place in sorted(places))


def _outermost(function: Any) -> Iterator[Any]:
    """The outermost loops of a function; the function itself where it has none."""
    loops = [n for n in _own(function) if isinstance(n, (ast.For, ast.While))]
    inner = {id(n) for loop in loops for n in _own(loop)}
    outermost = [loop for loop in loops if id(loop) not in inner]
    yield from outermost or ([] if isinstance(function, ast.Module) else [function])


def _receivers(calls: Iterable[ast.Call], method: str) -> set[str]:
    """The last names of what a method of this name is called of."""
    methods = (c.func for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == method)
    return {name for each in methods if (name := last_name(each.value))}


def _switched(tree: ast.Module) -> Iterator[str]:
    """Attributes that are set elsewhere than where their object is made, names that are bound more than once, keys
    that are given a value."""
    bound: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _given_keys(node)
    for function in (tree, *(n for n in ast.walk(tree) if isinstance(n, FUNCTIONS))):
        making = _name(function) in _MAKING
        for node in _own(function):
            for target in _targets(node):
                decided = isinstance(node, ast.Assign) and _orders(node.value)
                if isinstance(target, ast.Name) and decided:
                    yield target.id
                if isinstance(target, ast.Attribute) and not making:
                    yield target.attr
                elif isinstance(target, ast.Subscript):
                    yield from _text(target.slice)
                elif isinstance(target, ast.Name):
                    often = 1 if isinstance(node, ast.Assign) else 2
                    bound[target.id] = bound.get(target.id, 0) + often
    yield from (name for name, times in bound.items() if times > 1)


def _given_keys(call: ast.Call) -> Iterator[str]:
    """``config.update(frozen=False)``, ``config.update({"frozen": False})``, ``setattr(model, "frozen", False)``"""
    if last_name(call.func) == "update":
        yield from (k.arg for k in call.keywords if k.arg)
        keys = (key for a in call.args if isinstance(a, ast.Dict) for key in a.keys)
        yield from (text for key in keys if key is not None for text in _text(key))
    elif last_name(call.func) == "setattr" and len(call.args) == 3:
        yield from _text(call.args[1])


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _targets(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Assign):
        return [
            n for t in node.targets for n in ast.walk(t) if isinstance(getattr(n, "ctx", None), ast.Store)
        ]
    if isinstance(node, (ast.AugAssign, ast.For)):
        return [n for n in ast.walk(node.target) if isinstance(getattr(n, "ctx", None), ast.Store)]
    return []


def _given(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """By function: its parameters that calls give something other than one constant."""
    every = [node for tree in trees for node in ast.walk(tree)]
    calls = [n for n in every if isinstance(n, ast.Call)]
    found: dict[str, set[str]] = {}
    for function in (n for n in every if isinstance(n, FUNCTIONS)):
        names = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
        for at, name in enumerate(names):
            values = [
                value
                for call in calls
                if function.name in ("forward", "__call__", last_name(call.func))
                for value in _passed(
                    call, at, name, len(names) if function.name in ("forward", "__call__") else 0
                )
            ]
            constants = {repr(v.value) for v in values if isinstance(v, ast.Constant)}
            if len(constants) > 1 or any(
                isinstance(v, (ast.Compare, ast.BoolOp, ast.UnaryOp)) for v in values
            ):
                found.setdefault(function.name, set()).add(name)
    return found


def _passed(call: ast.Call, at: int, name: str, exactly: int) -> Iterator[ast.expr]:
    if at < len(call.args) and (not exactly or len(call.args) == exactly):
        yield call.args[at]
    yield from (k.value for k in call.keywords if k.arg == name)


def _orders(value: ast.expr) -> bool:
    """``epoch < 5``"""
    return isinstance(value, ast.Compare) and any(isinstance(op, ORDERS) for op in value.ops)


def _counts(test: ast.expr, names: set[str]) -> bool:
    """Whether a test is of a number that counts, or of what the program switches."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERS) for op in node.ops):
            return True
        if isinstance(node, ast.Compare) and any(_is_number(n) for n in (node.left, *node.comparators)):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in names:
            return True
        if any(text in names for text in _text(node)):
            return True  # ``config["frozen"]``
    return False


def _of_nothing(test: ast.expr, function: Any) -> bool:
    """Whether a test is ``x is not None`` for each `x` of a loop."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name):
        return False
    nothing = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    loops = (n for n in _own(function) if isinstance(n, ast.For))
    return nothing and any(
        isinstance(n, ast.Name) and n.id == test.left.id for loop in loops for n in ast.walk(loop.target)
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _chooses(item: ast.withitem, names: set[str]) -> bool:
    """``with torch.set_grad_enabled(epoch > 5):``, ``with torch.no_grad() if warm else nullcontext():``"""
    context = item.context_expr
    if isinstance(context, ast.IfExp):
        return any(last_name(n) in _LEAVING for n in ast.walk(context))  # (an option is asked for a choice)
    called = isinstance(context, ast.Call) and last_name(context.func) == "set_grad_enabled" and context.args
    return bool(called) and _counts(context.args[0], names)  # type: ignore[attr-defined]


def _leaving(node: Any, differentiating: set[str]) -> Iterator[tuple[int, int]]:
    """The lines of its branches in which the graph is left. One that differentiates a loss of its own is a step that is
    taken now and then: where that leaves the graph, it always does."""
    for branch in (node.body, node.orelse):
        body = branch if isinstance(branch, list) else [branch]
        within = {last_name(n) for part in body for n in ast.walk(part)}
        if within & _LEAVING and not within & differentiating:
            yield body[0].lineno, body[-1].end_lineno or body[-1].lineno


def _own(around: Any) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of functions in it."""
    waiting = list(ast.iter_child_nodes(around))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def _name(node: Any) -> str:
    return getattr(node, "name", "")


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``; "" of what is no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
