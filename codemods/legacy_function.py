"""See :class:`LegacyFunction`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from gradfix import wording
from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.rewrite.blocks import copy
from gradfix.rewrite.boundary import returns
from gradfix.rewrite.drawn import views
from gradfix.rewrite.spelling import descendants, last_name
from gradfix.rewrite.statements import (
    body_of,
    dotted,
    every_parameter,
    line_of,
    names,
    renamed,
    stored,
    units,
    walk,
)

OLD = Effect("restored", "the Function runs as it did before PyTorch 1.5")
SAID = "Legacy autograd function"
PLACES = 3  # classes that may be meant


class LegacyFunction(Codemod):
    """Make the methods of an autograd Function static, and call its `apply`.

    Why: before there was `apply`, a Function was an object: made with its settings, called with its inputs, and `self`
    kept what the backward needs. Today each call has a `ctx` of its own for that, the settings are inputs like
    others, whose gradient is None, and PyTorch refuses to call the object.

    When not: where the object does more than that: methods of its own, settings that change after it is made, or a
    class that others derive from.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch


class Reverse(torch.autograd.Function):
    def __init__(self, weight):
        self.weight = weight

    def forward(self, x):
        return x.view_as(x)

    def backward(self, grad_output):
        return -self.weight * grad_output


net, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*net.parameters(), *judge.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    loss = judge(Reverse(0.5)(net(x))).pow(2).mean()  # conflict: legacy-api
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.weight * grad_output, None


net, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*net.parameters(), *judge.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    loss = judge(Reverse.apply(net(x), 0.5)).pow(2).mean()  # conflict: legacy-api
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "removed" or SAID not in conflict.message:
            return
        cured: list[tuple[str, dict[str, list[Edit]], bool]] = []
        said = _said(conflict, project)
        for view, old in _found(project):
            edits = _calls(project, old)
            if edits is not None:
                edits.setdefault(view.path, []).append(Replace(old.node, old.rebuilt))
                cured.append((old.name, edits, not said.isdisjoint(_called(project, old))))
        meant = [c for c in cured if c[2]]
        for rank, some in enumerate([meant, *([c] for c in cured if c not in meant)][: PLACES + 1]):
            if some:
                names_ = [name for name, *_ in some]
                apply = wording.listed([f"`{name}.apply`" for name in names_])
                words = f"make the methods of {wording.listed([f'`{n}`' for n in names_])} static, and call {apply}"
                yield Proposal(words, OLD, _gathered([edits for _, edits, _ in some]), rank)


def _gathered(several: Sequence[Mapping[str, Sequence[Edit]]]) -> dict[str, tuple[Edit, ...]]:
    found: dict[str, tuple[Edit, ...]] = {}
    for edits in several:
        for path, some in edits.items():
            found[path] = (*found.get(path, ()), *some)
    return found


def _said(conflict: Conflict, project: Project) -> frozenset[str]:
    """The names in the statement that failed."""
    found = project.node(conflict.at)
    small = found[0].small_statement(found[1]) or found[1] if found is not None else None
    return (
        frozenset(part for r in names(small).reads for part in r.split("."))
        if small is not None
        else frozenset()
    )


def _found(project: Project) -> Iterator[tuple[View, _Old]]:
    for view in views(project):
        for node in view.parents:
            old = _old(node)
            if old is not None:
                yield view, old


@dataclass(frozen=True, slots=True, eq=False)
class _Old:
    """A Function whose methods take `self`; `settings` are the parameters of its constructor, `kept` what that sets.
    They come behind the inputs, or `first` where not every input has to be given."""

    node: cst.ClassDef
    init: cst.FunctionDef | None
    forward: cst.FunctionDef
    backward: cst.FunctionDef | None
    settings: tuple[cst.Param, ...]
    kept: tuple[cst.Assign, ...]
    first: bool

    @property
    def name(self) -> str:
        return self.node.name.value

    def rebuilt(self, now: cst.CSTNode) -> cst.CSTNode:
        """The class with static methods and without a constructor."""
        assert isinstance(now, cst.ClassDef)
        lines: list[Any] = []
        above: Sequence[cst.EmptyLine] | None = None
        for was, line in zip(self.node.body.body, now.body.body, strict=True):
            if was is self.init:
                above = getattr(line, "leading_lines", ())
                continue
            new = line
            if was is self.forward:
                new = self._static(cst.ensure_type(line, cst.FunctionDef), self.settings, self.kept)
            elif was is self.backward:
                new = self._backward(cst.ensure_type(line, cst.FunctionDef))
            lines.append(new if above is None else new.with_changes(leading_lines=above))
            above = None
        return now.with_changes(body=now.body.with_changes(body=lines))

    def _static(
        self, method: cst.FunctionDef, more: Sequence[cst.Param] = (), kept: Sequence[cst.Assign] = ()
    ) -> cst.FunctionDef:
        taken = {n.value for n in descendants(method) if isinstance(n, cst.Name)}
        ctx = "ctx" if "ctx" not in taken else method.params.params[0].name.value
        given = method.params.params
        last = [given[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if more else [given[-1]]
        added = [p.deep_clone().with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in more]
        if more and self.first:
            added = [p.with_changes(default=None, equal=cst.MaybeSentinel.DEFAULT) for p in added]
            params = method.params.with_changes(params=[given[0], *added, *given[1:]])
        else:
            params = method.params.with_changes(params=[*given[:-1], *last, *added])
        begun = [line_of(_renamed(a, _self(self.init), ctx)) for a in kept if self.init is not None]
        new = _renamed(method.with_changes(params=params), given[0].name.value, ctx)
        assert isinstance(new, cst.FunctionDef)
        own = list(new.body.body)
        at = 1 if new.get_docstring() is not None else 0
        static = cst.Decorator(cst.Name("staticmethod"))
        body = new.body.with_changes(body=[*own[:at], *begun, *own[at:]])
        return new.with_changes(decorators=[static, *new.decorators], body=body)

    def _backward(self, method: cst.FunctionDef) -> cst.FunctionDef:
        """With a None for each setting among what it returns."""
        ends: dict[cst.CSTNode, cst.CSTNode] = {
            r: _longer(r, method, len(self.settings), self._single) for r in returns(method) if self.settings
        }
        new = method.visit(_Exchange(ends)) if ends else method
        return self._static(cst.ensure_type(new, cst.FunctionDef))

    @property
    def _single(self) -> bool:
        return len(self.forward.params.params) == 2


def _old(node: cst.CSTNode) -> _Old | None:
    """The class where it is a Function of old style that does nothing but forward and backward."""
    if not isinstance(node, cst.ClassDef) or [last_name(b.value) for b in node.bases] != ["Function"]:
        return None
    methods: dict[str, cst.FunctionDef] = {}
    for line in node.body.body:
        if isinstance(line, cst.FunctionDef):
            methods[line.name.value] = line
        elif not _says_nothing(line):
            return None
    forward, backward, init = (methods.pop(n, None) for n in ("forward", "backward", "__init__"))
    every = [m for m in (forward, backward, init) if m is not None]
    if methods or forward is None or not all(_plain(m) for m in every):
        return None
    settings = tuple(init.params.params[1:]) if init is not None else ()
    kept = _kept(init) if init is not None else ()
    taken = [p.name.value for p in every_parameter(forward)]
    clash = any(p.name.value in taken for p in settings)
    defaults = any(p.default is not None for p in forward.params.params)
    more = forward.params.star_arg is not cst.MaybeSentinel.DEFAULT or forward.params.star_kwarg is not None
    if kept is None or any(_counts(m, kept) for m in (forward, backward) if m is not None):
        return None
    if clash or (settings and (more or (defaults and backward is not None))):
        return None
    return _Old(node, init, forward, backward, settings, kept, defaults)


def _counts(method: cst.FunctionDef, kept: Sequence[cst.Assign]) -> bool:
    """Whether it writes what the constructor set, which the object has from call to call and `ctx` has not."""
    own = {(dotted(t.target) or "").rpartition(".")[2] for each in kept for t in each.targets}
    mine = f"{_self(method)}."
    return any(w.startswith(mine) and w.split(".")[1] in own for u in walk(method.body) for w in u.writes)


def _plain(method: cst.FunctionDef) -> bool:
    """Whether it takes `self` and what else it takes is positional."""
    given = method.params
    if not given.params or given.kwonly_params or given.posonly_params or given.star_kwarg is not None:
        return False
    if not isinstance(method.body, cst.IndentedBlock):
        return False
    return not any(last_name(d.decorator) in ("staticmethod", "classmethod") for d in method.decorators)


def _says_nothing(line: cst.CSTNode) -> bool:
    """A docstring, or ``pass``."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    return isinstance(small, cst.Pass) or (
        isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)
    )


def _kept(init: cst.FunctionDef) -> tuple[cst.Assign, ...] | None:
    """What a constructor sets on its object, where that is all it does."""
    if init.params.star_arg is not cst.MaybeSentinel.DEFAULT:
        return None
    found: list[cst.Assign] = []
    own = _self(init)
    for unit in units(init.body):
        node = unit.node
        value = node.value if isinstance(node, cst.Expr) else None
        if isinstance(value, cst.Call) and last_name(value.func) == "__init__":
            continue
        if isinstance(node, cst.Pass) or isinstance(value, cst.SimpleString):
            continue
        if not isinstance(node, cst.Assign) or any(
            r.partition(".")[0] == own for r in names(node.value).reads
        ):
            return None
        if any((dotted(t.target) or "").rpartition(".")[0] != own for t in node.targets):
            return None
        found.append(node)
    return tuple(found)


def _self(method: cst.FunctionDef | None) -> str:
    return method.params.params[0].name.value if method is not None else "self"


def _longer(end: cst.Return, method: cst.FunctionDef, more: int, single: bool) -> cst.Return:
    """The return with as many more Nones."""
    nones = [cst.Element(cst.Name("None")) for _ in range(more)]
    value = end.value
    if value is None:
        value = cst.Name("None")
    if isinstance(value, cst.Tuple):
        own = [e.with_changes(comma=cst.MaybeSentinel.DEFAULT) for e in value.elements]
        return end.with_changes(value=value.with_changes(elements=[*own, *nones]))
    name = dotted(value)
    bound = [u.node for u in walk(method.body) if name is not None and name in u.writes]
    several = any(isinstance(n, cst.Assign) and isinstance(n.value, cst.Tuple) for n in bound)
    first = cst.Element(value) if single and not several else cst.StarredElement(value)
    after = end.whitespace_after_return or cst.SimpleWhitespace(" ")
    return end.with_changes(value=cst.Tuple([first, *nones], lpar=[], rpar=[]), whitespace_after_return=after)


class _Exchange(cst.CSTTransformer):
    def __init__(self, new: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self.new = new

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        return self.new.get(original_node, updated_node)


def _renamed(node: cst.CSTNode, old: str, new: str) -> cst.CSTNode:
    """`node` with another name for its object."""
    named = (n for n in (node, *descendants(node)) if isinstance(n, cst.Name) and n.value == old)
    return renamed(node, dict.fromkeys(named, new))


# -- where it is made and called -------------------------------------------------------------------------


def _calls(project: Project, old: _Old) -> dict[str, list[Edit]] | None:
    """The edits that call `apply`, by file; None where the class is used in other ways."""
    found: dict[str, list[Edit]] = {}
    for view in views(project):
        for node in view.parents:
            if not _refers(view, node, old):
                continue
            assert isinstance(node, cst.BaseExpression)
            call = view.parents.get(node)
            edit = _applied(view, call, old) if isinstance(call, cst.Call) and call.func is node else None
            if edit is None:
                return None
            found.setdefault(view.path, []).append(edit)
    return found


def _refers(view: View, node: cst.CSTNode, old: _Old) -> bool:
    """Whether it is an expression outside of the class that means it."""
    if not isinstance(node, cst.Name | cst.Attribute) or last_name(node) != old.name:
        return False
    above = view.parents.get(node)
    if isinstance(above, cst.Attribute) and above.attr is node:
        return False  # (that one is the expression)
    if isinstance(above, cst.ImportAlias):
        return above.asname is not None
    return above is not old.node and not any(x is old.init for x in view.ancestors(node))


def _called(project: Project, old: _Old) -> frozenset[str]:
    """The name of the class, and those its objects are bound to."""
    found = {old.name}
    for view in views(project):
        for node in view.parents:
            value = node.value if isinstance(node, cst.Assign) else None
            if (
                isinstance(node, cst.Assign)
                and isinstance(value, cst.Call)
                and last_name(value.func) == old.name
            ):
                found |= {(dotted(t.target) or "").rpartition(".")[2] for t in node.targets}
    return frozenset(found - {""})


def _applied(view: View, made: cst.Call, old: _Old) -> Edit | None:
    """``Reverse(0.5)(x)`` as ``Reverse.apply(x, 0.5)``; ``Reverse(0.5)`` alone as what does that."""
    settings = _given(made, old)
    if settings is None:
        return None
    apply = cst.Attribute(copy(made.func), cst.Name("apply"))
    call = view.parents.get(made)
    if isinstance(call, cst.Call) and call.func is made:
        if any(a.keyword is not None or a.star for a in call.args):
            return None
        return Replace(call, lambda now: _through_apply(now, apply, settings, old.first))
    if _looked_into(view, call):
        return None
    if not settings:
        return exchange(made, apply)
    if not all(_lasting(view, made, value) for value in settings):
        return None
    star = cst.Param(cst.Name("inputs"), star="*")
    inputs, more = [cst.Arg(cst.Name("inputs"), star="*")], [*map(cst.Arg, settings)]
    inner = cst.Call(apply, [*more, *inputs] if old.first else [*inputs, *more])
    return exchange(made, cst.Lambda(cst.Parameters(star_arg=star), inner))


def _through_apply(
    now: cst.CSTNode, apply: cst.Attribute, settings: Sequence[cst.BaseExpression], first: bool
) -> cst.Call:
    call = cst.ensure_type(now, cst.Call)
    inputs = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in call.args] if settings else call.args
    more = [*map(cst.Arg, settings)]
    return call.with_changes(func=apply, args=[*more, *inputs] if first else [*inputs, *more])


def _given(made: cst.Call, old: _Old) -> list[cst.BaseExpression] | None:
    """The settings in order, as far as they have to be given."""
    order = [p.name.value for p in old.settings]
    found: dict[str, cst.BaseExpression] = {}
    for n, arg in enumerate(made.args):
        name = arg.keyword.value if arg.keyword is not None else order[n] if n < len(order) else ""
        if arg.star or name not in order:
            return None
        found[name] = copy(arg.value)
    last = len(order) - 1 if old.first else max((order.index(n) for n in found), default=-1)
    for param in old.settings[: last + old.first]:
        if param.name.value not in found and (param.default is None or not _literal(param.default)):
            return None
        if param.default is not None:
            found.setdefault(param.name.value, copy(param.default))
    return [found[n] for n in order[: last + 1]]


def _looked_into(view: View, holder: cst.CSTNode | None) -> bool:
    """Whether more is done with the object, under the name it is given, than to call it."""
    if not isinstance(holder, cst.Assign):
        return False
    bound = {(dotted(t.target) or "").rpartition(".")[2] for t in holder.targets}
    return any(
        isinstance(n, cst.Attribute) and (dotted(n.value) or "").rpartition(".")[2] in bound
        for n in view.parents
    )


def _lasting(view: View, made: cst.Call, value: cst.BaseExpression) -> bool:
    """Whether the value is the same whenever it is read: a number, a name that is bound once."""
    if _literal(value):
        return True
    if not isinstance(value, cst.Name) or view.loop(made) is not None:
        return False
    if any(isinstance(x, cst.BaseComp) for x in view.ancestors(made)):
        return False
    scope = body_of(view, made)
    bound = [u for u in walk(scope) if value.value in u.writes]
    looped = any(
        isinstance(n, cst.For | cst.CompFor) and value.value in stored(n.target) for n in descendants(scope)
    )
    return not looped and len(bound) <= 1


def _literal(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.UnaryOperation):
        return _literal(value.expression)
    if isinstance(value, cst.Name):
        return value.value in ("None", "True", "False")
    return isinstance(value, cst.BaseNumber | cst.SimpleString)
