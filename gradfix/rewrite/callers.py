"""Who else calls the function that a cut of the graph stands in, and the cut moved to those calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst
import libcst.matchers as m

from gradfix.edit import Edit, Project, Replace, View, parenthesized
from gradfix.rewrite.blocks import method
from gradfix.rewrite.liveness import binds, dotted
from gradfix.rewrite.peeling import innermost, outermost, peel
from gradfix.rewrite.spelling import descendants, function_of, without_grad
from gradfix.rewrite.statements import parameters
from gradfix.tape import Backward, Cut, Fed, Site

Part = tuple[View, list[Edit]]
ENTRIES = frozenset(("forward", "__call__", "training_step"))  # whose calls do not say their name
ENDS = frozenset(("detach", "item", "tolist", "argmax", "argmin", "size", "dim"))  # methods
SHOWS = frozenset(("print", "str", "repr", "format", "float", "int", "bool", "len"))


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A call of a function that holds a cut. `trains` says whether the cut kept this call's value from what is to be
    trained, `ran` whether it ran while the tape was recorded, `met` whether what it was given had a graph then."""

    view: View
    call: cst.Call
    trains: bool
    ran: bool
    met: bool


def served(cut: Cut, depth: int, loss: Backward | None, project: Project) -> tuple[Served, ...]:
    """The calls of the function that the frame `depth` of the cut's stack is in: those that the program makes for a
    value with a graph, and not under no_grad. Empty where it is no function, or one whose calls don't name it."""
    found = project.node(cut.stack[depth])
    function = found[0].function(found[1]) if found is not None else None
    if found is None or not isinstance(function, cst.FunctionDef) or function.name.value in ENTRIES:
        return ()
    if not depth or _has_the_loss(function, cut, depth, loss, project):
        return ()
    graph, inner = project.graph, cut.stack[depth]
    alike = [e for e in graph.tape.events if isinstance(e, Cut) and inner in e.stack[1:]]
    walks = [graph.walk(b) for b in graph.backwards if loss is not None and b.stack == loss.stack]
    fed = {
        time
        for e in graph.tape.events
        if isinstance(e, Fed) and any(e.node in walk for walk in walks)
        for time in e.cuts
    }
    cutting: dict[Site, bool] = {}
    for e in alike:
        site = e.stack[e.stack.index(inner) - 1]
        cutting[site] = cutting.get(site, False) or e is cut or e.time in fed
    ran: dict[tuple[str, int, int], list[Site]] = {}
    for site in {site for stack in {e.stack for e in graph.tape.events} for site in stack}:
        ran.setdefault((site.file, site.end_line, site.end_column), []).append(site)
    calls: list[Served] = []
    for view, call in _calls(function, found[0], project):
        at = _ran_at(view, call, ran)
        trains = at is not None and cutting.get(at, False)
        if trains or not (without_grad(view, call) or _needs_no_graph(view, call)):
            calls.append(Served(view, call, trains, at is not None, at in cutting))
    return tuple(calls)


def _has_the_loss(
    function: cst.FunctionDef, cut: Cut, depth: int, loss: Backward | None, project: Project
) -> bool:
    """Whether the call of `function` that has cut runs the backward as well: what it gives back is no part of that."""
    if loss is None or len(loss.stack) <= depth or loss.stack[:depth] != cut.stack[:depth]:
        return False
    found = project.node(loss.stack[depth])
    return found is not None and found[0].function(found[1]) is function


def _ran_at(view: View, call: cst.Call, ran: Mapping[tuple[str, int, int], Sequence[Site]]) -> Site | None:
    """The place of a call in the stacks of the run."""
    end = view.span(call).end
    some = ran.get((view.path, end.line, end.column), ())
    return next((site for site in some if view.call_at(site) is call), None)


def _calls(function: cst.FunctionDef, home: View, project: Project) -> Iterator[tuple[View, cst.Call]]:
    """The calls, of every file, of a function by its name: of a method those of an attribute."""
    name = function.name.value
    bound = home.enclosing(function, cst.ClassDef) is not None
    for path, text in project.files.items():
        view = project.view(path) if name in text else None
        for node in descendants(view.module) if view is not None else ():
            if view is None or not isinstance(node, cst.Call) or function_of(node) != name:
                continue
            if not bound or isinstance(node.func, cst.Attribute):
                yield view, node


def _needs_no_graph(view: View, call: cst.Call) -> bool:
    """Whether a graph of the call's value goes no further than its expression, and none is refused there:
    ``f(x).detach()``, ``f(x).argmax(1)``, ``f(x) > 0``, ``print(f(x))``."""
    below: cst.CSTNode = call
    for above in view.ancestors(call):
        if isinstance(above, cst.Attribute):
            if above.attr.value in ("data", "shape"):
                return True
            if above.attr.value == "numpy":
                return False
        elif isinstance(above, cst.Comparison | cst.Expr | cst.FormattedStringExpression):
            return True
        elif isinstance(above, cst.Call):
            own = above.func is below and isinstance(below, cst.Attribute)
            if function_of(above) in (ENDS if own else SHOWS):
                return True
            if not own:
                return False
        elif not isinstance(above, cst.Arg | cst.BaseExpression | cst.Index | cst.SubscriptElement):
            return False
        below = above
    return False


def unproved(calls: tuple[Served, ...]) -> bool:
    """Whether there is a call that the run has not come to, which may rest on the cut."""
    return any(not c.ran for c in calls)


def moved(
    cut: Cut, layer: cst.BaseExpression, calls: tuple[Served, ...], project: Project
) -> list[Part] | None:
    """``f(x.detach())`` for every call but those that are to train, where f has cut its parameter x, or
    ``f(x).detach()`` where it has cut what it returns. None where the cut can't be moved to the calls."""
    found = project.node(cut.stack[-1])
    function = found[0].function(found[1]) if found is not None else None
    if found is None or not isinstance(function, cst.FunctionDef):
        return None
    view = found[0]
    top = outermost(view, layer)
    way, name = _way(top), dotted(innermost(top))
    names = parameters(function)
    given = way == "detach" and name in names and name not in binds(function.body)
    if not given and not (way and isinstance(view.parents.get(top), cst.Return)):
        return None
    parts: list[Part] = []
    for each in calls:
        if each.trains or (each.ran and not each.met):
            continue
        old = _argument(each.call, name, function, view) if given else each.call
        if old is None:
            return None
        if not _without_graph(old):
            parts.append((each.view, [Replace(old, lambda now: _cut_by(now, way))]))
    return parts


def _way(top: cst.BaseExpression) -> str:
    """The method by which a value leaves its graph, "" where several do, or none of this name."""
    if isinstance(top, cst.Attribute):
        return "detach"
    called = function_of(top) if isinstance(top, cst.Call) else ""
    return called if called in ("detach", "item") and peel(top) is innermost(top) else ""


def _cut_by(node: cst.CSTNode, way: str) -> cst.CSTNode:
    return method(parenthesized(cast(cst.BaseExpression, node)), way)


def _without_graph(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BaseNumber | cst.BaseString) or peel(node) is not None


def _argument(call: cst.Call, name: str, function: cst.FunctionDef, home: View) -> cst.BaseExpression | None:
    """What a call gives the parameter `name`."""
    static = any(dotted(d.decorator) == "staticmethod" for d in function.decorators)
    names = parameters(function)
    if home.enclosing(function, cst.ClassDef) is not None and not static:
        names = names[1:]
    if any(a.star for a in call.args):
        return None
    for n, argument in enumerate(call.args):
        if (argument.keyword.value if argument.keyword else names[n] if n < len(names) else "") == name:
            return argument.value
    return None


# a decorator that cuts


@dataclass(frozen=True, slots=True, eq=False)
class Decorated:
    """What wraps a function so that it is cut: `own` is the decorator on the one that is to train, where it shows;
    `uses` counts all places where the decorator is used. It is `plain` where it does nothing but cut."""

    own: tuple[View, cst.FunctionDef, cst.Decorator] | None
    uses: int
    plain: bool


def decorated(cut: Cut, depth: int, project: Project) -> Decorated | None:
    """The decorator whose wrapper is the function of the frame `depth` of the cut's stack; or None."""
    found = project.node(cut.stack[depth])
    wrapper = found[0].function(found[1]) if found is not None else None
    if found is None or not isinstance(wrapper, cst.FunctionDef):
        return None
    outer = [f for f in found[0].ancestors(wrapper) if isinstance(f, cst.FunctionDef)]
    if not outer or not _returns(outer[0], wrapper.name.value):
        return None
    uses = tuple(_uses(outer[-1].name.value, project))
    wrapped = [
        (v, f, d) for v, f, d in uses if f is not None and d is not None and _called(f, cut, depth, project)
    ]
    return Decorated(wrapped[0] if len(wrapped) == 1 else None, len(uses), _only_calls(wrapper))


def _uses(name: str, project: Project) -> Iterator[tuple[View, cst.FunctionDef | None, cst.Decorator | None]]:
    """Where a function is named, and what it decorates there."""
    for path, text in project.files.items():
        view = project.view(path) if name in text else None
        for node in descendants(view.module) if view is not None else ():
            if view is None or not isinstance(node, cst.Name) or node.value != name:
                continue
            above = view.parents[node]
            if isinstance(above, cst.FunctionDef | cst.ImportAlias | cst.Param):
                continue
            decorator = view.enclosing(node, cst.Decorator)
            function = view.parents.get(decorator) if decorator is not None else None
            yield view, function if isinstance(function, cst.FunctionDef) else None, decorator


def _called(function: cst.FunctionDef, cut: Cut, depth: int, project: Project) -> bool:
    """Whether it is `function` that the wrapper in the frame `depth` has called: the next frame is its own, or, where
    the cut is the wrapper's, the caller says its name."""
    if depth + 1 < len(cut.stack):
        inner = project.node(cut.stack[depth + 1])
        return inner is not None and inner[0].function(inner[1]) is function
    caller = project.view(cut.stack[depth - 1].file) if depth else None
    call = caller.call_at(cut.stack[depth - 1]) if caller is not None else None
    return call is not None and function_of(call) == function.name.value


def _returns(function: cst.FunctionDef, name: str) -> bool:
    given = [n.value for n in descendants(function) if isinstance(n, cst.Return) and n.value is not None]
    return any(isinstance(n, cst.Name) and n.value == name for v in given for n in (v, *descendants(v)))


def _only_calls(wrapper: cst.FunctionDef) -> bool:
    """Whether a wrapper returns the value of one call, under a context or cut from its graph, and does no more."""
    body: Sequence[cst.CSTNode] = [
        s for s in wrapper.body.body if not m.matches(s, m.SimpleStatementLine([m.Expr(m.SimpleString())]))
    ]
    while len(body) == 1 and isinstance(body[0], cst.With) and len(body[0].items) == 1:
        body = body[0].body.body
    small = body[0].body if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) else body
    given = small[0].value if len(small) == 1 and isinstance(small[0], cst.Return) else None
    inner = innermost(given) if given is not None else None
    plain = isinstance(inner, cst.Call) and isinstance(inner.func, cst.Name)
    return plain and (inner is given or _way(cast(cst.BaseExpression, given)) == "detach")
