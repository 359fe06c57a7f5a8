"""Give each loss of a shared loss function a pass of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.boundary import gather, returns
from gradfix.rewrite.drawn import views
from gradfix.rewrite.elsewhere import mentioned
from gradfix.rewrite.keyed import split_by_keys
from gradfix.rewrite.rerun import DRAW, LATER, Plan
from gradfix.rewrite.returned import shared_losses
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
from gradfix.rewrite.stale import plan
from gradfix.rewrite.statements import (
    Unit,
    dotted,
    line_of,
    names,
    put_after,
    stored,
    touches,
    units,
)


class SplitLossFunction(Codemod):
    """Split a function that returns the losses of both models into one function for each, or call it once
    more.

    Why: `d_loss, g_loss = losses(d, g, x)` builds both losses over one forward pass; by the time
    `g_loss.backward()` runs, `d`'s step has overwritten the weights that the pass saved. With a function for
    each loss the generator's is computed behind the discriminator's step, from the updated discriminator, and
    the discriminator's part takes detached fakes. Every caller is rewritten; signature, docstring and
    comments stay.

    When not: where both gradients are meant at the same parameters; then take them before either step
    (`backward-inputs`). A pass of its own draws its own random numbers.
    """

    kinds = ("stale-saved-tensor", "freed-graph", "silent-overwrite")
    effects = ("later-parameters", "new-draw")

    examples = (
        Example(
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)


def losses(z):
    fake = G(z)
    score = D(fake).mean()
    d_loss, g_loss = score, -score
    return d_loss, g_loss


for z in torch.randn(2, 4, 2):
    d_loss, g_loss = losses(z)
    opt_d.zero_grad()
    d_loss.backward(retain_graph=True)
    opt_d.step()  # conflict: stale-saved-tensor
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
""",
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)


def losses_d(z):
    fake = G(z)
    score = D(fake.detach()).mean()
    d_loss = score
    return d_loss


def losses_g(z):
    fake = G(z)
    score = D(fake).mean()
    g_loss = -score
    return g_loss


for z in torch.randn(2, 4, 2):
    d_loss = losses_d(z)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()  # conflict: stale-saved-tensor
    g_loss = losses_g(z)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
""",
            effect="later-parameters",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = plan(project, conflict.backward) if conflict.backward else None
        if found is None or len(found.kept) != 1:
            return
        function = shared_losses(project, found.kept[0].node)
        if function is None:
            return
        effect = DRAW if found.draws() else LATER
        drops = found.drops()
        cuts = [(v, [e]) for v, e in found.cuts()]
        split = None
        if not _dispatched(project, function):
            split = _split(project, found, function) or split_by_keys(project, found, function)
        if split is not None:
            summary = f"split `{function.name.value}` into {' and '.join(f'`{n}`' for n in split.names)}"
            yield Proposal(summary, effect, gather(*split.edits, *drops), 0, idea="split")
            if drops:
                yield Proposal(summary, effect, gather(*split.edits), 1, idea="split")
        summary = f"call `{function.name.value}` again for the later loss"
        if cuts:
            whole = gather((found.view, found.edits()), *cuts, *drops)
            yield Proposal(f"{summary}, and detach what the earlier takes", effect, whole, 1, idea="again")
        yield Proposal(summary, effect, gather((found.view, found.edits()), *drops), 2, idea="again")
        if drops:
            yield Proposal(summary, effect, gather((found.view, found.edits())), 3, idea="again")


def _dispatched(project: Project, function: cst.FunctionDef) -> bool:
    """Whether another class of its family has a method of this name: whoever calls it may get that one as well."""
    classes = {n.name.value: n for v in views(project) for n in v.parents if isinstance(n, cst.ClassDef)}
    own = next((c for c in classes.values() if function in c.body.body), None)
    family = _ancestry(classes, own.name.value) if own is not None else set()
    return any(
        c is not own
        and any(isinstance(n, cst.FunctionDef) and n.name.value == function.name.value for n in c.body.body)
        and family & _ancestry(classes, name)
        for name, c in classes.items()
    )


def _ancestry(classes: Mapping[str, cst.ClassDef], name: str) -> set[str]:
    """A class and what it is derived from, of the project's own."""
    found, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one in classes and one not in found:
            found.add(one)
            waiting += [(dotted(base.value) or "").rpartition(".")[2] for base in classes[one].bases]
    return found


def _split(project: Project, found: Plan, function: cst.FunctionDef) -> Split | None:
    """Edits that make one function of what the earlier loss needs and one of the rest, in every file."""
    home = next(v for v in views(project) if function in v.parents)
    inner = home.function(function) is not None or home.enclosing(function, cst.ClassDef) is not None
    call = found.kept[0].node
    assert isinstance(call, cst.Assign)
    assert isinstance(call.value, cst.Call)
    target = call.targets[0].target
    last = units(function.body)[-1].node if units(function.body) else None
    if not isinstance(last, cst.Return) or len(returns(function)) != 1:
        return None
    if not isinstance(last.value, cst.Tuple) or not isinstance(target, (cst.Tuple, cst.List)):
        return None
    if len(found.again) != 1 or len(target.elements) != len(last.value.elements):
        return None
    groups = _groups(found, [stored(e.value) for e in target.elements])
    if groups is None:
        return None
    between = found.flat[found.flat.index(found.kept[0]) + 1 : found.flat.index(found.until) + 1]
    if any(touches(u.writes, names(call.value).reads) for u in between):
        return None
    words = [dotted(last.value.elements[g[0]].value) or dotted(target.elements[g[0]].value) for g in groups]
    new = new_names(project, function, [word or "first" for word in words])
    cuts = boundary_cuts(project, found, function)
    parts = [
        _part(function, last, g, n, cuts if k == 0 else {})
        for k, (g, n) in enumerate(zip(groups, new, strict=True))
    ]
    if any(p is None for p in parts):
        return None
    first, second = (p for p in parts if p is not None)
    blank = [cst.EmptyLine(indent=False)] * (1 if inner else 2)
    second = second.with_changes(leading_lines=blank)
    callers = _callers(project, function, found, groups, new, cuts)
    after = first.with_changes(leading_lines=blank)

    def both(n: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
        return cst.FlattenSentinel([n, after, second] if callers.keep else [first, second])

    replaced = Replace(function, both)
    return Split(tuple(new), ((home, (replaced,)), *callers.edits))


def _groups(found: Plan, targets: Sequence[frozenset[str]]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Indexes of the returned values that are read before the step, and of those read behind it."""
    start = found.flat.index(found.kept[0]) + 1
    before = {r for u in found.flat[start : found.flat.index(found.until) + 1] for r in u.reads}
    first = tuple(n for n, t in enumerate(targets) if touches(t, before))
    second = tuple(n for n, t in enumerate(targets) if n not in first and touches(t, found.read_later))
    if not first or not second or len(first) + len(second) != len(targets):
        return None
    return first, second


def _part(
    function: cst.FunctionDef, last: cst.Return, group: Sequence[int], name: str, cuts: Mapping[int, Build]
) -> cst.FunctionDef | None:
    """The function with what `group` of its returned values needs, under a new name."""
    assert isinstance(last.value, cst.Tuple)
    elements = [last.value.elements[n] for n in group]
    wanted: set[str] = set().union(*(names(e.value).reads for e in elements))
    gone: set[int] = set()
    thinned: dict[int, Build] = {}
    unneeded(function.body, last, wanted, gone, thinned)
    value: cst.BaseExpression = elements[0].value
    if len(elements) > 1:
        value = last.value.with_changes(elements=elements)
    builds = dict(cuts) | thinned | {id(last): lambda n: n.with_changes(value=value)}
    part = function.visit(Cutter(gone, builds))
    assert isinstance(part, cst.FunctionDef)
    return part.with_changes(
        name=cst.Name(name), returns=_annotation(function.returns, group, len(last.value.elements))
    )


def _annotation(given: cst.Annotation | None, group: Sequence[int], count: int) -> cst.Annotation | None:
    """``-> Tensor`` of ``-> tuple[Tensor, Tensor]``; None where the annotation does not say the parts."""
    if given is None or not isinstance(given.annotation, cst.Subscript) or len(group) != 1:
        return None
    if (dotted(given.annotation.value) or "").rpartition(".")[2].lower() != "tuple":
        return None
    parts = given.annotation.slice
    if len(parts) != count or not isinstance(parts[group[0]].slice, cst.Index):
        return None
    index = parts[group[0]].slice
    assert isinstance(index, cst.Index)
    return given.with_changes(annotation=index.value)


@dataclass(frozen=True, slots=True)
class _Callers:
    edits: tuple[tuple[View, tuple[Edit, ...]], ...]
    keep: bool  # somebody uses the function in another way: it has to stay as well


def _callers(
    project: Project,
    function: cst.FunctionDef,
    found: Plan,
    groups: Sequence[Sequence[int]],
    new: Sequence[str],
    cuts: Mapping[int, Build],
) -> _Callers:
    old = function.name.value
    edits: list[tuple[View, tuple[Edit, ...]]] = []
    keep = mentioned(project, old)
    for view in views(project):
        imports: list[cst.ImportAlias] = []
        otherwise = False
        for node in list(view.parents):
            if isinstance(node, cst.ImportAlias) and dotted(node.name) == old and node.asname is None:
                imports.append(node)
                continue
            if not isinstance(node, cst.Name) or node.value != old:
                continue
            parent = view.parents[node]
            if isinstance(parent, (cst.ImportAlias, cst.FunctionDef)):
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            named = parent if isinstance(parent, cst.Attribute) and parent.attr is node else node
            call = view.parents[named]
            small = view.parents.get(call)
            rewritten = None
            if isinstance(call, cst.Call) and call.func is named and isinstance(small, cst.Assign):
                rewritten = _rewritten(view, small, call, found, groups, new, cuts)
            if rewritten is None:
                otherwise = True
            else:
                edits.append((view, rewritten))
        keep = keep or otherwise
        several = imported_as([old, *new] if otherwise else new)
        edits += [(view, (Replace(alias, several),)) for alias in imports]
    return _Callers(tuple(edits), keep)


def _rewritten(
    view: View,
    small: cst.Assign,
    call: cst.Call,
    found: Plan,
    groups: Sequence[Sequence[int]],
    new: Sequence[str],
    cuts: Mapping[int, Build],
) -> tuple[Edit, ...] | None:
    """One caller's ``a, b = f(x)`` as ``a = f_d(x)`` and ``b = f_g(x)``, the latter behind the step where
    it is the caller at fault."""
    target = small.targets[0].target
    if len(small.targets) != 1 or not isinstance(target, (cst.Tuple, cst.List)):
        return None
    if len(target.elements) != sum(map(len, groups)):
        return None
    calls = []
    for group, name in zip(groups, new, strict=True):
        elements = [target.elements[n] for n in group]
        bound: cst.BaseExpression = elements[0].value
        if len(elements) > 1:
            bound = target.with_changes(elements=elements)
        elif dotted(bound) == "_":
            continue
        given = call.visit(Cutter(set(), cuts)) if name == new[0] else call
        assert isinstance(given, cst.Call)
        assert isinstance(bound, cst.BaseAssignTargetExpression)
        calls.append(
            small.with_changes(
                targets=[small.targets[0].with_changes(target=bound)], value=called_as(given, name)
            )
        )
    if not calls:
        return None
    line = view.statement(small)
    assert isinstance(line, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    unit = Unit(small, line, names(small))
    edits: list[Edit] = [Replace(small, lambda n: calls[0].with_changes(semicolon=n.semicolon))]  # type: ignore[attr-defined]
    if len(calls) > 1:
        late = line_of(calls[1])
        if small is found.kept[0].node and found.around is not None:
            late_block = found.around.deep_clone().with_changes(
                body=cst.IndentedBlock([late]), leading_lines=()
            )
            edits.append(put_after(found.behind, late_block))
        else:
            edits.append(put_after(found.behind if small is found.kept[0].node else unit, late))
    return tuple(edits)
