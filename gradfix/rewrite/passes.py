"""The backwards of one pass that share a graph: which they are, what each trains, and how the source names that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.boundary import pass_end
from gradfix.rewrite.calls import step_expression
from gradfix.rewrite.optimized import parameters_held, parameters_of
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import names, parameters, walk
from gradfix.tape import Backward, Step


def pass_of(project: Project, backward: Backward) -> list[Backward]:
    """Every backward of the same pass."""
    graph = project.graph
    since = graph.pass_begin(backward)
    until = pass_end(graph, backward)
    return [b for b in project.tape.events if isinstance(b, Backward) and since < b.time < until]


def sharing(project: Project, backward: Backward) -> tuple[Backward, ...]:
    """The backwards of the same pass that share nodes with `backward`, or with one that does."""
    window = pass_of(project, backward)
    nodes = {n for n in backward.nodes if n >= 0}
    chosen: list[Backward] = []
    while True:
        more = [b for b in window if b not in chosen and nodes & set(b.nodes)]
        if not more:
            return tuple(sorted(chosen, key=lambda b: b.time))
        chosen += more
        nodes |= {n for b in more for n in b.nodes if n >= 0}


def stepped_with(project: Project, backward: Backward, step: Step) -> list[Backward]:
    """The backwards of the same pass whose gradient `step` uses. (A pass that comes to `backward` now and then only
    may hold several steps, each with its own.)"""
    graph = project.graph
    own = graph.before_step(step)
    return [b for b in pass_of(project, backward) if b in own and step.optimizer in graph.serves(b)]


def trained(project: Project, backward: Backward, group: Sequence[Backward]) -> frozenset[int]:
    """The optimizers that a backward is for; of several that step behind it, not those that another backward of the
    pass is there for."""
    graph = project.graph
    serves = graph.serves(backward)
    taken = [graph.serves(b) for b in group if b.time != backward.time]
    return serves.difference(*(t for t in taken if t < serves)) or serves


def overlap(one: Backward, other: Backward) -> bool:
    """Whether both walk a node."""
    return any(n >= 0 for n in set(one.nodes) & set(other.nodes))


def inputs_of(
    project: Project, view: View, call: cst.Call, optimizers: frozenset[int]
) -> cst.BaseExpression | None:
    """What the backward of `call` trains, the parameters of these optimizers, as an expression."""
    found: list[cst.BaseExpression] = []
    for optimizer in sorted(optimizers):
        expression = parameters_of(project, optimizer, view, call)
        if expression is None:
            return None
        found.append(expression)
    if len(found) < 2:
        return found[0] if found else None
    return cst.List([cst.StarredElement(_unlisted(f)) for f in found])


def _unlisted(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` of ``list(x)`` and of ``x or None``."""
    if isinstance(node, cst.BooleanOperation):
        return node.left
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "list":
        return node.args[0].value
    return node


def named_inputs(
    project: Project, view: View, call: cst.Call, steps: Sequence[Step]
) -> Iterator[cst.BaseExpression]:
    """What a backward trains that runs for several losses, as the function around it may say it for each: the
    parameters of a network that it names (to clip their gradients, say), then what the optimizer of `steps` holds."""
    function, line = view.function(call), view.span(call).start.line
    if not isinstance(function, cst.FunctionDef):
        return
    given = set(parameters(function))
    body = list(walk(function.body))
    early = {w for u in body if view.span(u.node).end.line < line for w in u.writes}
    late = {w for u in body if view.span(u.node).end.line >= line for w in u.writes}

    def said(node: cst.BaseExpression) -> bool:
        roots = {n.split(".")[0] for n in names(node).reads}
        return bool(roots & (given | early) - {"self"}) and not roots & (late - early - given)

    owners = {
        view.code(c.func.value): c.func.value
        for c in descendants(function.body)
        if isinstance(c, cst.Call)
        and isinstance(c.func, cst.Attribute)
        and c.func.attr.value == "parameters"
        and said(c.func.value)
    }
    if len(owners) == 1:
        yield cst.parse_expression(f"list({next(iter(owners))}.parameters())")
    held = [step_expression(project, s) for s in steps]
    places = [project.node(s.stack[-1]) for s in steps if s.stack]
    inside = all(p is not None and p[0] is view and view.function(p[1]) is function for p in places)
    written = {view.code(h) for h in held if h is not None}
    first = held[0] if inside and len(written) == 1 and None not in held else None
    if first is not None and said(first):
        yield parameters_held(project, steps[0].optimizer, view, first)
