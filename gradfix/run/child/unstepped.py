"""Whether the script's text has a call left that may step an optimizer which has not stepped, or give it more: read
from the names that hold it. Where an optimizer is handed around under other names, that is taken to be so."""

from __future__ import annotations

import ast
import functools
import gc
import linecache
import sys
from collections.abc import Iterator
from typing import Any

from . import failure
from .sites import parsed
from .words import asked_otherwise

_ASKING = ("parameters", "named_parameters")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def calls(frame: Any, name: str) -> bool:
    """Whether the line that `frame` is at calls something by this name: ``step`` or ``backward``. Otherwise that is
    done behind the scenes."""
    return frame is not None and _text(frame.f_code.co_filename).calls_at(frame.f_lineno, name)


def may_step(optimizer: Any, frame: Any) -> bool:
    """Whether some file of the user's that is loaded may come to step it. `frame` and those that it was called from may
    know it as a variable."""
    names = set(_names(optimizer, frame))
    texts = [_text(file) for file in user_files()]
    return not names or any(_May(names, texts).steps_in(text) for text in texts)


class _Text:
    """A file: its calls, those of ``….step(…)`` among them, and the function that each node stands in. `handed` are
    reads of ``….step`` alone, but for such as are a statement (where only the parentheses are missing); `open` says
    that a method is looked up by a name that may be that."""

    def __init__(self, tree: ast.AST) -> None:
        self.calls: list[ast.Call] = []
        self.steps: list[ast.Call] = []
        self.within: dict[ast.AST, Any] = {}  # a node -> the function or the module around it
        self.handed: list[ast.Attribute] = []
        self.open = False
        pending: list[tuple[ast.AST, Any]] = [(tree, tree)]
        while pending:
            node, around = pending.pop()
            self.within[node] = around
            inner = node if isinstance(node, _Function) else around
            pending += [(child, inner) for child in ast.iter_child_nodes(node)]
            if isinstance(node, ast.Call):
                self.calls.append(node)
                if isinstance(node.func, ast.Attribute) and node.func.attr == "step":
                    self.steps.append(node)
        called = {id(call.func) for call in self.steps}
        called |= {id(node.value) for node in self.within if isinstance(node, ast.Expr)}
        for node in self.within:
            if isinstance(node, ast.Attribute) and node.attr == "step" and id(node) not in called:
                self.handed.append(node)
            elif isinstance(node, ast.Call) and _last(node.func) == "getattr":
                self.open = self.open or any(_says_step(a) for a in node.args[1:2])

    def calls_at(self, line: int, name: str) -> bool:
        own = (call for call in self.calls if _last(call.func) == name)
        return any(call.lineno <= line <= (call.end_lineno or line) for call in own)


class _May:
    def __init__(self, names: set[str], texts: list[_Text]) -> None:
        self.names, self.texts = names, texts
        self.asked: set[int] = set()

    def steps_in(self, text: _Text) -> bool:
        """Whether the file may step it: by its own method, or by a scaler's that is given it."""
        if text.open or any(_last(node.value) in self.names for node in text.handed):
            return True
        for call in text.steps:
            given = [a for a in call.args if isinstance(a, (ast.Name, ast.Attribute))]
            if any(self.hold(node, text) for node in (call.func.value, *given)):  # type: ignore[attr-defined]
                return True
        return False

    def hold(self, node: ast.AST, text: _Text) -> bool:
        """Whether an expression may be the optimizer."""
        if isinstance(node, ast.Attribute):
            return node.attr in self.names
        if not isinstance(node, ast.Name):
            return True
        if node.id in self.names:
            return True
        if id(node) in self.asked:
            return False
        self.asked.add(id(node))
        around = text.within[node]
        while True:
            if isinstance(around, _Function) and node.id in _parameters(around):
                return self._given(around, node.id)
            bound = [n for n in text.within if text.within[n] is around and _binds(n, node.id)]
            if bound or not isinstance(around, _Function):
                return any(self._bound(n, node.id, text) for n in bound)
            around = text.within[around]

    def _bound(self, node: ast.AST, name: str, text: _Text) -> bool:
        """Whether the statement that binds the name may bind it to the optimizer; what a call gives is another."""
        if not isinstance(node, ast.Assign):
            return True  # a loop's variable, say
        for target, value in _pairs(node):
            if not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)):
                continue
            if not isinstance(value, ast.Call) and (
                not isinstance(target, ast.Name) or self.hold(value, text)
            ):
                return True
        return False

    def _given(self, function: Any, name: str) -> bool:
        """Whether some call of the function may give it the optimizer as its parameter `name`."""
        own = getattr(function, "name", None)
        every = [(call, text) for text in self.texts for call in text.calls if _last(call.func) == own]
        if own is None or not every:
            return True
        listed = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        for call, text in every:
            if any(isinstance(a, ast.Starred) for a in call.args) or any(
                k.arg is None for k in call.keywords
            ):
                return True
            place = listed.index(name) if name in listed else -1
            if listed[:1] in (["self"], ["cls"]):
                place -= 1
            given = [k.value for k in call.keywords if k.arg == name]
            given += call.args[place : place + 1] if place >= 0 else []
            if any(self.hold(a, text) for a in given if not isinstance(a, ast.Constant)):
                return True
        return False


def _names(optimizer: Any, frame: Any) -> Iterator[str]:
    """The variables and attributes of the user's that hold it."""
    held: list[Any] = []
    while frame is not None:
        if failure.is_user_file(frame.f_code.co_filename):
            held.append(frame.f_locals)
        frame = frame.f_back
    for holder in gc.get_referrers(optimizer):
        if isinstance(holder, dict):
            held.append(holder)
        elif not type(holder).__module__.startswith("torch."):
            held.append(getattr(holder, "__dict__", {}))
    for each in held:
        yield from [
            name for name, value in list(each.items()) if value is optimizer and isinstance(name, str)
        ]


def adds_groups() -> bool:
    """Whether some file of the user's speaks of ``add_param_group``: what an optimizer lacks, it may yet be given."""
    return any("add_param_group" in "".join(linecache.getlines(file)) for file in user_files())


def speaks_of_optimizers() -> bool:
    """Whether some file of the user's does: one may be made later."""
    return any("optim" in "".join(linecache.getlines(file)).lower() for file in user_files())


def asks_otherwise() -> bool:
    """Whether some file of the user's says that a program without a step is there for something else."""
    return asked_otherwise("".join(linecache.getlines(file)) for file in user_files())


def gives_later(attribute: str) -> bool:
    """Whether some file of the user's asks what this attribute holds for its parameters, or lists what it holds as one:
    an optimizer that is made later may be given them."""
    nodes = (node for file in user_files() for node in _text(file).within)
    return any(_asks(node, attribute) or _lists(node, attribute) for node in nodes)


def _lists(node: ast.AST, attribute: str) -> bool:
    """Whether an optimizer, a variable or a group of parameters is given a list with the attribute. (What a function is
    given, ``torch.cat([self.token, x])``, is computed with.)"""
    given: list[Any] = []
    if isinstance(node, ast.Call) and (_last(node.func) or "")[:1].isupper():
        given = [*node.args, *(k.value for k in node.keywords)]
    elif isinstance(node, ast.Assign):
        given = [node.value]
    elif isinstance(node, ast.Dict):
        given = node.values
    inner = [e for each in given if isinstance(each, ast.List) for e in each.elts]
    if isinstance(node, ast.Dict):
        inner += given
    return any(isinstance(e, ast.Attribute) and e.attr == attribute for e in inner)


def _asks(node: ast.AST, attribute: str) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in _ASKING:
        return _speaks_of(node.value, attribute)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
        held = any(_speaks_of(each.iter, attribute) for each in node.generators)
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        held = _speaks_of(node.iter, attribute)
    else:
        return False
    return held and any(isinstance(n, ast.Attribute) and n.attr in _ASKING for n in ast.walk(node))


def _speaks_of(node: ast.AST, attribute: str) -> bool:
    every = list(ast.walk(node))  # ("layers" of getattr(net, "layers", []), too)
    return any(isinstance(n, ast.Attribute) and n.attr == attribute for n in every) or any(
        isinstance(n, ast.Constant) and n.value == attribute for n in every
    )


def user_files() -> set[str]:
    """Those of the program that are loaded."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in found if isinstance(file, str) and failure.is_user_file(file)}


@functools.cache
def _text(file: str) -> _Text:
    tree = parsed("".join(linecache.getlines(file)))
    found = _Text(tree or ast.Module([], []))
    found.open = found.open or tree is None
    return found


def _last(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _says_step(node: ast.AST) -> bool:
    return not isinstance(node, ast.Constant) or node.value == "step"


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What an assignment binds to what; ``a, b = x, y`` is two."""
    value = node.value
    for target in node.targets:
        several = isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List))
        if several and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            yield from zip(target.elts, value.elts)  # type: ignore[attr-defined]  # noqa: B905 (Python 3.9)
        else:
            yield target, value


def _parameters(function: Any) -> set[str]:
    a = function.args
    every = (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg)
    return {p.arg for p in every if p is not None} - {"self", "cls"}


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a statement, a loop or a comprehension binds the name."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AnnAssign, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        return False
    return any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target))
