"""A function that returns losses by key, split into one that gives those needed before a step and one for the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.boundary import returns
from gradfix.rewrite.drawn import views
from gradfix.rewrite.elsewhere import mentioned
from gradfix.rewrite.rerun import Plan
from gradfix.rewrite.returned import item_key, returned_by_key
from gradfix.rewrite.slices import (
    Build,
    Cutter,
    Split,
    boundary_cuts,
    called_as,
    imported_as,
    new_names,
    unneeded,
)
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import dotted, line_of, names, put_after, touches, units


def split_by_keys(project: Project, found: Plan, function: cst.FunctionDef) -> Split | None:
    """``losses = f(x)`` as ``losses = f_d(x)``, and behind the step ``losses.update(f_g(x))``."""
    call, elements = found.kept[0].node, returned_by_key(function)
    assert isinstance(call, cst.Assign)
    assert isinstance(call.value, cst.Call)
    name = dotted(call.targets[0].target)
    groups = _groups(found, name, list(elements)) if elements and name else None
    if (
        elements is None
        or groups is None
        or name is None
        or len(found.again) != 1
        or found.around is not None
    ):
        return None
    between = found.flat[found.flat.index(found.kept[0]) + 1 : found.flat.index(found.until) + 1]
    if any(touches(u.writes, names(call.value).reads) for u in between):
        return None
    home = next(v for v in views(project) if function in v.parents)
    inner = home.function(function) is not None or home.enclosing(function, cst.ClassDef) is not None
    new = new_names(project, function, [g[0] for g in groups])
    cuts = boundary_cuts(project, found, function)
    blank = [cst.EmptyLine(indent=False)] * (1 if inner else 2)
    parts = [
        _part(function, elements, g, n, cuts if k == 0 else {})
        for k, (g, n) in enumerate(zip(groups, new, strict=True))
    ]
    keep = _kept(project, function.name.value, call.value, found.view)
    first = parts[0].with_changes(leading_lines=blank) if keep else parts[0]
    second = parts[1].with_changes(leading_lines=blank)

    def both(n: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
        return cst.FlattenSentinel([n, first, second] if keep else [first, second])

    edits = [(home, (Replace(function, both),)), (found.view, _called(found, call, name, new, cuts))]
    edits += _imported(function.name.value, found.view, new, call.value)
    return Split(tuple(new), tuple(edits))


def _groups(found: Plan, name: str, keys: list[str]) -> tuple[list[str], list[str]] | None:
    """The keys that are read before the step, and the others; None where the dictionary is used as a whole by then."""
    start = found.flat.index(found.kept[0]) + 1
    early = [u.node for u in found.flat[start : found.flat.index(found.until) + 1]]
    reads = [n for e in early for n in (e, *descendants(e)) if isinstance(n, cst.BaseExpression)]
    first = {key for n in reads if (key := item_key(n, name))}
    whole = sum(dotted(n) == name for n in reads) - sum(bool(item_key(n, name)) for n in reads)
    other = [key for key in keys if key not in first]
    return (
        ([k for k in keys if k in first], other)
        if first and other and not whole and first <= set(keys)
        else None
    )


def _part(
    function: cst.FunctionDef,
    elements: Mapping[str, cst.CSTNode],
    keys: Collection[str],
    name: str,
    cuts: Mapping[int, Build],
) -> cst.FunctionDef:
    """The function with what it returns under `keys`, under a new name."""
    (last,) = returns(function)
    kept = [n for n, key in enumerate(elements) if key in keys]
    builds: dict[int, Build] = {}
    gone: set[int] = set()
    thinned: dict[int, Build] = {}
    if isinstance(last.value, cst.Dict):
        values = [e.value for n, e in enumerate(last.value.elements) if n in kept]
        wanted = set[str]().union(*(names(v).reads for v in values))
        builds[id(last.value)] = lambda node: _only(node, kept)
    else:
        wanted = set(names(last).reads)
        out = [e for key, e in elements.items() if key not in keys]
        gone |= {id(u.line) for u in units(function.body) if any(u.node is e for e in out)}
    unneeded(function.body, last, wanted, gone, thinned)
    part = function.visit(Cutter(gone, dict(cuts) | thinned | builds))
    assert isinstance(part, cst.FunctionDef)
    return part.with_changes(name=cst.Name(name))


def _only(node: cst.CSTNode, kept: Sequence[int]) -> cst.CSTNode:
    assert isinstance(node, cst.Dict)
    some = [node.elements[n] for n in kept]
    some[-1] = some[-1].with_changes(comma=node.elements[-1].comma)
    return node.with_changes(elements=some)


def _called(
    found: Plan, call: cst.Assign, name: str, new: Sequence[str], cuts: Mapping[int, Build]
) -> tuple[Edit, ...]:
    """The call of the first function in the place of that of both, and behind the step what the second adds."""
    given = cst.ensure_type(call.value, cst.Call)
    first = cst.ensure_type(given.visit(Cutter(set(), cuts)), cst.Call)
    update = cst.parse_expression(f"{name}.update(_)")
    late = cst.ensure_type(update, cst.Call).with_changes(args=[cst.Arg(called_as(given, new[1]))])
    return (
        Replace(call, lambda n: n.with_changes(value=called_as(first, new[0]))),
        put_after(found.behind, line_of(cst.Expr(late))),
    )


def _uses(view: View, old: str, but: cst.Call) -> bool:
    """Whether the file says the name of the function otherwise than to make it, to import it, or in the call `but`."""
    for node in view.parents:
        if isinstance(node, cst.Name) and node.value == old:
            above = [node, *view.ancestors(node)][:4]
            said = isinstance(above[1], (cst.ImportAlias, cst.ImportFrom, cst.FunctionDef))
            if not said and but.func not in above:
                return True
    return False


def _imported(
    old: str, at: View, new: Sequence[str], call: cst.Call
) -> Iterator[tuple[View, tuple[Edit, ...]]]:
    """The import of the function, where its caller has one, as that of the two (and of itself where it is still used);
    in other files as it is."""
    keep = _uses(at, old, call)
    for node in at.parents:
        if isinstance(node, cst.ImportAlias) and dotted(node.name) == old and node.asname is None:
            yield at, (Replace(node, imported_as([*([old] if keep else []), *new])),)


def _kept(project: Project, old: str, call: cst.Call, at: View) -> bool:
    """Whether somebody uses the function otherwise, or imports it elsewhere."""
    if mentioned(project, old):
        return True
    imports = (
        n
        for v in views(project)
        for n in (v.parents if v is not at else ())
        if isinstance(n, cst.ImportAlias) and dotted(n.name) == old
    )
    return any(_uses(v, old, call) for v in views(project)) or any(True for _ in imports)
