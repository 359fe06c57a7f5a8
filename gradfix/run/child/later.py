"""Terms that a loss is given behind what the run came to: ``if step > warmup: loss = loss + …``. What no loss has
trained yet, that one may."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from .phases import FUNCTIONS, ORDERS, last_name
from .sites import Sites


def more_terms(sites: Sites) -> bool:
    """Whether a file of the user's adds to a loss in a branch that a number decides, and in which no op was met."""
    trees = sites.trees()
    met = sites.met()
    differentiating = {
        function.name
        for tree in trees.values()
        for function in _functions(tree)
        if any(_calls(node, {"backward"}) for node in ast.walk(function))
    }
    for file, tree in trees.items():
        lines = {line for each, line in met if each == file}
        for around in (tree, *_functions(tree)):
            losses = _losses(around, differentiating | {"backward"})
            if losses and any(_adds(s, losses) for body in _not_met(around, lines) for s in _inside(body)):
                return True
    return False


def _functions(tree: ast.AST) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def _losses(around: Any, differentiating: set[str]) -> set[str]:
    """The variables and attributes that a function, or the module, differentiates, or gives back to who may."""
    found = set()
    for node in _inside(around.body):
        if isinstance(node, ast.Return) or (
            isinstance(node, ast.Expr) and any(_calls(each, differentiating) for each in ast.walk(node))
        ):
            found |= {name for each in ast.walk(node) if (name := last_name(each))}
    for node in _inside(around.body) if found else ():
        if (
            isinstance(node, ast.Assign)
            and _is_sum(node.value)
            and any(last_name(t) in found for t in node.targets)
        ):
            found |= {name for each in ast.walk(node.value) if (name := last_name(each))}
    return found


def _not_met(around: Any, lines: set[int]) -> Iterator[Iterable[ast.stmt]]:
    """The branches without an op of the run, where it is decided by how much or how many there is of something."""
    for node in _inside(around.body):
        if isinstance(node, ast.If) and any(isinstance(each, ORDERS) for each in ast.walk(node.test)):
            for body in (node.body, node.orelse):
                if body and lines.isdisjoint(range(body[0].lineno, (body[-1].end_lineno or 0) + 1)):
                    yield body


def _inside(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of its blocks, not those of functions in it."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and value and isinstance(value[0], (ast.stmt, ast.excepthandler)):
                    inner = (
                        [s for h in value for s in h.body]
                        if isinstance(value[0], ast.excepthandler)
                        else value
                    )
                    yield from _inside(inner)


def _adds(node: ast.stmt, losses: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, (ast.Add, ast.Sub)) and last_name(node.target) in losses
    return (
        isinstance(node, ast.Assign)
        and _is_sum(node.value)
        and any(last_name(t) in losses for t in node.targets)
    )


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))


def _calls(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in names
