"""Whether a sum may be a plain number: where what is made of it is asked for what only a tensor has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import dotted

# what makes a number, or nothing, of a number as of a tensor
_PLAIN = {"float", "int", "str", "print", "len", "isinstance", "format", "tensor", "as_tensor", "is_tensor"}
# methods and attributes of containers and of numbers; a tensor's own are all others
_SHARED = {
    "append", "appendleft", "add", "extend", "insert", "update", "setdefault", "get", "pop", "popleft", "clear",
    "items", "keys", "values", "copy", "sort", "index", "count", "remove", "format", "join",
}  # fmt: skip
_TENSORS = {
    "item", "detach", "cpu", "numpy", "tolist", "backward", "clone", "to", "mean", "sum", "std", "max", "min",
    "data", "grad", "shape", "device", "dtype", "requires_grad", "requires_grad_", "grad_fn", "size", "dim",
    "squeeze", "unsqueeze", "view", "reshape", "float", "double", "cuda", "abs", "sqrt", "exp", "log", "pow",
    "add_", "mul_", "div_", "zero_", "backward_", "detach_", "type", "numel", "expand", "repeat", "T",
}  # fmt: skip

Key = tuple[int, str]  # a plain name in its function; in none a module's name, ``.attribute``, ``function()``
_ANYWHERE = 0


def needs_tensor(
    project: Project, starts: Iterable[tuple[View, cst.CSTNode]], but: Collection[cst.CSTNode] = ()
) -> bool:
    """Whether a text asks something of a tensor of what `starts` hold, or of what is made of it, those calls left out
    that are in `but`. Told by names alone, in doubt yes: no run goes to the end of an epoch."""
    views = [v for v in map(project.view, project.files) if v is not None]
    known = {key for view, node in starts for key in _keys(view, node)}
    while True:
        grown = known | {k for view in views for k in _made_of(view, known, views)}
        if grown == known:
            break
        known = grown
    return any(_asks(view, node, known) for view in views for node in view.parents if node not in but)


def parameters_of(project: Project, name: str) -> Iterator[tuple[View, cst.CSTNode]]:
    """The parameters of the project's functions of that name, where what is handed to one goes on."""
    for view in filter(None, map(project.view, project.files)):
        for node in view.parents:
            if isinstance(node, cst.FunctionDef) and node.name.value == name:
                yield from ((view, n) for n in _parameter_names(node))


def _scope(view: View, node: cst.CSTNode) -> int:
    function = view.enclosing(node, cst.FunctionDef)
    return id(function) if function is not None else _ANYWHERE


def _keys(view: View, target: cst.CSTNode) -> Iterator[Key]:
    """What a target holds its value under: the container of an item."""
    if isinstance(target, (cst.Subscript, cst.StarredElement)):
        yield from _keys(view, target.value)
    elif isinstance(target, cst.Attribute):
        yield _ANYWHERE, f".{target.attr.value}"
    elif isinstance(target, cst.Name):
        yield _scope(view, target), target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _keys(view, element.value)


def _mentions(view: View, node: cst.CSTNode, known: set[Key]) -> bool:
    """Whether an expression is made of something known, other than as a number."""
    if isinstance(node, cst.Call):
        name = function_of(node)
        if name in _PLAIN:
            return False
        receiver = node.func.value if isinstance(node.func, cst.Attribute) else None
        own = name not in _TENSORS or (receiver is not None and dotted(receiver) is not None)
        if own and (_ANYWHERE, f"{name}()") in known:
            return True
        inner = [*([receiver] if receiver is not None else []), *(a.value for a in node.args)]
        return any(_mentions(view, n, known) for n in inner)
    if isinstance(node, cst.Attribute):
        held = {(_ANYWHERE, f".{node.attr.value}"), (_ANYWHERE, f"{node.attr.value}()")}
        return bool(held & known) or _mentions(view, node.value, known)
    if isinstance(node, cst.Name):
        return (_scope(view, node), node.value) in known or (_ANYWHERE, node.value) in known
    if isinstance(node, (cst.FormattedString, cst.Comparison)):
        return False
    return any(_mentions(view, child, known) for child in node.children)


def _made_of(view: View, known: set[Key], views: Iterable[View]) -> Iterator[Key]:
    for node in view.parents:
        if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            if node.value is not None and _mentions(view, node.value, known):
                for target in targets:
                    yield from _keys(view, target)
        elif isinstance(node, (cst.For, cst.CompFor)) and _mentions(view, node.iter, known):
            yield from _keys(view, node.target)
        elif isinstance(node, (cst.Return, cst.Yield)) and node.value is not None:
            function = view.enclosing(node, cst.FunctionDef)
            made = node.value
            if function is not None and _mentions(view, made, known):
                yield _ANYWHERE, f"{function.name.value}()"
        elif isinstance(node, cst.Call) and any(_mentions(view, a.value, known) for a in node.args):
            yield from _handed(view, node, views)


def _handed(view: View, call: cst.Call, views: Iterable[View]) -> Iterator[Key]:
    """Where what a call is given goes on: a container's entries, a function's parameters."""
    name = function_of(call)
    if name in _SHARED and isinstance(call.func, cst.Attribute):
        yield from _keys(view, call.func.value)
    for other in views:
        for node in other.parents:
            if isinstance(node, cst.FunctionDef) and node.name.value == name:
                yield from ((id(node), n.value) for n in _parameter_names(node))


def _parameter_names(function: cst.FunctionDef) -> Iterator[cst.Name]:
    p = function.params
    for x in [*p.posonly_params, *p.params, *p.kwonly_params, p.star_arg, p.star_kwarg]:
        if isinstance(x, cst.Param):
            yield x.name


def _asks(view: View, node: cst.CSTNode, known: set[Key]) -> bool:
    """Whether the node asks of something known what only a tensor has."""
    if isinstance(node, cst.Attribute) and node.attr.value in _TENSORS:
        called = view.parents.get(node)
        own = (_ANYWHERE, f".{node.attr.value}") in known and not isinstance(called, cst.Call)
        return not own and _mentions(view, node.value, known)
    if isinstance(node, cst.Call):
        said = dotted(node.func) or ""
        of_torch = said.startswith("torch.") and function_of(node) not in (*_PLAIN, "save")
        return of_torch and any(_mentions(view, a.value, known) for a in node.args)
    return False
