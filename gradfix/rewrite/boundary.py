"""Where the tape's graph meets the source: the frame two stacks share, the expression through which one
model's value enters another, the backward calls of one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View, parenthesized
from gradfix.graph import Crossing, Graph
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import body_of, dotted, names, stored, touches, walk
from gradfix.tape import Backward, Event, Record, Ref, Stack, Step, Zero
from gradfix.verdict import Effect

LITERALS = (cst.BaseNumber, cst.BaseString, cst.Ellipsis)

OWN = Effect("cut-own-loss", "each loss feeds only the parameters that are stepped with it")


def meeting(*stacks: Stack) -> int:
    """The index of the first frame in which `stacks` differ, in one function for all of them; -1 where
    they share none. Equal stacks meet in their innermost frame."""
    if not all(stacks):
        return -1
    depth = 0
    while all(depth + 1 < len(s) and s[depth] == stacks[0][depth] for s in stacks):
        depth += 1
    first = stacks[0][depth]
    same = all((s[depth].file, s[depth].function) == (first.file, first.function) for s in stacks)
    return depth if same else depth - 1


def frame(project: Project, stack: Stack, depth: int) -> tuple[View, cst.CSTNode] | None:
    """The view and node of one frame, None where it is not the user's to edit."""
    return project.node(stack[depth]) if 0 <= depth < len(stack) else None


def owned(graph: Graph, node: int) -> frozenset[int]:
    """Optimizers that own a leaf which `node` reaches (a leaf's own for an accumulator)."""
    return graph.owners.get(~node, frozenset()) if node < 0 else graph.reached_optimizers(node)


def crossings(graph: Graph, backward: Backward) -> tuple[Crossing, ...]:
    """Edges of `backward`'s walk from a node that reaches what its loss is meant to train to one that
    reaches other leaves only."""
    mine, walked = graph.serves(backward), set(backward.nodes)
    found = []
    for node in backward.nodes:
        consumer = graph.records.get(node)
        if consumer is None or not owned(graph, node) & mine:
            continue
        for parent in consumer.parents:
            producer = graph.records.get(parent)
            if (
                producer is not None
                and parent in walked
                and graph.reaches(parent)
                and not owned(graph, parent) & mine
            ):
                found.append(Crossing(consumer, producer))
    return tuple(found)


def shared(graph: Graph, backward: Backward, node: int) -> tuple[Backward, ...]:
    """The other backwards that walk `node`."""
    return tuple(b for b in graph.backwards if b.time != backward.time and node in b.nodes)


def pass_end(graph: Graph, event: Event) -> int:
    """The time at which the same place is reached again (the next pass of its loop), or the end of the
    tape."""
    later = (
        e.time
        for e in graph.tape.events
        if e.time > event.time and type(e) is type(event) and e.stack == event.stack
    )
    return min(later, default=graph.tape.events[-1].time + 1)


def cleared(graph: Graph, backward: Backward, storages: Iterable[int]) -> bool:
    """Whether what `backward` adds to these leaves' ``.grad`` never reaches a step, wherever the call ran
    and a step followed: it is cleared first."""
    for b in graph.passes(backward):
        for storage in storages:
            for e in graph.tape.events:
                if e.time <= b.time:
                    continue
                if isinstance(e, Zero) and _holds(e.refs, storage):
                    break
                if isinstance(e, Step) and _holds(e.refs, storage):
                    return False
    return True


def _holds(refs: Iterable[Ref], storage: int) -> bool:
    return any(r.storage == storage for r in refs)


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """The expression through which a value enters a call, and the call (or other expression) it enters."""

    view: View
    value: cst.BaseExpression
    into: cst.CSTNode

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Where it stands: feeds of one place are one."""
        start = self.view.span(self.value).start
        return self.view.path, start.line, start.column, self.view.span(self.value).end.column


def feeds(project: Project, crossing: Crossing, backward: Backward | None = None) -> tuple[Feed, ...]:
    """The expression at the outermost frame where the crossing value is handed over; several where the
    source does not say which of them carries it. With `backward`, a frame whose call serves other losses
    too is passed over."""
    found: dict[tuple[str, int, int, int], Feed] = {}
    makers = _makers(project.graph, crossing)
    for depth in sorted({meeting(crossing.consumer.stack, m.stack) for m in makers} - {-1}):
        if backward is not None and not _serves_alone(project.graph, backward, crossing.consumer, depth):
            continue
        for maker in makers:
            if meeting(crossing.consumer.stack, maker.stack) == depth:
                found.update((f.key, f) for f in _feeds(project, crossing.consumer, maker, depth, depth + 1))
        if found:
            return tuple(found.values())
    for maker in _handed(project.graph, crossing):
        depth = max(meeting(crossing.consumer.stack, maker.stack), 0)
        deepest = len(crossing.consumer.stack)
        found.update((f.key, f) for f in _feeds(project, crossing.consumer, maker, depth, deepest))
    return tuple(found.values()) or _come_round(project, crossing)


def _come_round(project: Project, crossing: Crossing) -> tuple[Feed, ...]:
    """What a call takes that an earlier pass of its loop gave: ``for net in nets: h = net(h)``."""
    for sites in zip(crossing.consumer.stack, crossing.producer.stack, strict=False):
        place = project.node(sites[0]) if sites[0] == sites[1] else None
        if place is None:
            break
        view, node = place
        small = view.small_statement(node)
        if isinstance(node, cst.Call) and isinstance(small, cst.Assign) and view.loop(small) is not None:
            bound = names(small).writes
            taken = tuple(Feed(view, o, node) for o in operands(node) if dotted(o) in bound)
            if taken:
                return taken
    return ()


def _makers(graph: Graph, crossing: Crossing) -> tuple[Record, ...]:
    """The producer, and further up the graph whatever was made further out: what the consumer's model
    makes of its arguments before a parameter comes in (a cat, a reshape) is not yet a model's of its own."""
    stack = crossing.consumer.stack
    found = {crossing.producer.node: crossing.producer}
    seen: set[int] = set()
    waiting = [(crossing.producer, meeting(stack, crossing.producer.stack))]
    while waiting:
        record, depth = waiting.pop()
        for parent in record.parents if depth > 0 else ():
            above = graph.records.get(parent)
            if above is None or parent in seen:
                continue
            seen.add(parent)
            new = meeting(stack, above.stack)
            if new < depth:
                found[parent] = above
            waiting.append((above, min(new, depth)))
    return tuple(found.values())


def _serves_alone(graph: Graph, backward: Backward, consumer: Record, depth: int) -> bool:
    """Whether nothing that was made under the consumer's frame at `depth` is walked by a backward of another
    place."""
    prefix = consumer.stack[: depth + 1]
    since = graph.pass_begin(backward)
    for other in graph.backwards:
        if other.time > since and other.stack != backward.stack:
            for node in other.nodes:
                record = graph.records.get(node)
                if record and since < record.time < backward.time and record.stack[: depth + 1] == prefix:
                    return False
    return True


def _handed(graph: Graph, crossing: Crossing) -> Iterator[Record]:
    """The nodes that made what the consumer's call was given; its own reshaping of it is passed over."""
    seen: set[int] = set()
    stack = [crossing.producer]
    while stack:
        record = stack.pop()
        if record.stack != crossing.consumer.stack:
            yield record
            continue
        for parent in record.parents:
            if parent in graph.records and parent not in seen:
                seen.add(parent)
                stack.append(graph.records[parent])


def _feeds(project: Project, taker: Record, maker: Record, depth: int, end: int) -> tuple[Feed, ...]:
    consumer, producer = taker.stack, maker.stack
    direct, carried = _carried(project, producer, depth)
    name = maker.output.name if maker.output else ""
    for k in range(depth, min(end, len(consumer))):
        found = frame(project, consumer, k)
        made = frame(project, producer, k) if k == depth else None
        if found is None:
            continue
        view, node = found
        if made and made[1] is node:
            continue  # both inside one call: further in
        options = list(operands(node))
        holding = [o for o in options if made and any(x is made[1] for x in (o, *descendants(o)))]
        named = [o for o in options if name and name in names(o).reads]
        reading = holding or named or [o for o in options if _reads(o, direct)]
        reading = reading or [o for o in options if _reads(o, carried)]
        if not reading and isinstance(node, cst.Call) and _tensor_method(project, node):
            assert isinstance(node.func, cst.Attribute)
            receiver = node.func.value
            inside = made is not None and any(x is made[1] for x in (receiver, *descendants(receiver)))
            reading = [receiver] if inside or dotted(receiver) in carried else []
        if not reading and k > depth and len(options) == 1:
            reading = options
        if reading:
            return tuple(Feed(view, o, node) for o in reading)
    return ()


def _tensor_method(project: Project, call: cst.Call) -> bool:
    """Whether a call looks like a method of a tensor's: none that the project defines."""
    if not isinstance(call.func, cst.Attribute):
        return False
    named = call.func.attr.value
    return not any(functions(v, named) for v in map(project.view, project.files) if v is not None)


def _carried(project: Project, producer: Stack, depth: int) -> tuple[frozenset[str], frozenset[str]]:
    """Names that hold what the producer made: those its statements bind; and with those that later
    statements bind from them."""
    found: set[str] = set()
    after: set[str] = set()
    for k in range(depth, len(producer)):
        place = frame(project, producer, k)
        if place is None:
            continue
        view, node = place
        small = view.small_statement(node)
        if small is None:
            continue
        found |= {w for w in _bound(view, small, node) if k == depth or "." in w}
        if k == depth:
            after |= found
            line = view.span(small).start.line
            for unit in walk(body_of(view, node)):
                if view.span(unit.node).start.line >= line and touches(unit.reads, after):
                    after |= unit.writes
    return frozenset(found), frozenset(found | after)


def _bound(view: View, small: cst.CSTNode, node: cst.CSTNode) -> frozenset[str]:
    """The names that `small` binds to what holds `node`: of ``a, b = f(x), g(x)`` only one."""
    if isinstance(small, cst.Assign) and isinstance(small.value, cst.Tuple) and len(small.targets) == 1:
        target, value = small.targets[0].target, small.value
        if isinstance(target, cst.Tuple) and len(target.elements) == len(value.elements):
            above = {id(x) for x in (node, *view.ancestors(node))}
            for t, v in zip(target.elements, value.elements, strict=True):
                if id(v.value) in above:
                    return stored(t.value)
    return names(small).writes


def _reads(node: cst.CSTNode, carried: frozenset[str]) -> bool:
    found = names(node).reads
    if touches(found, carried):
        return True
    attributes = {c.rpartition(".")[2] for c in carried if "." in c}
    return any(part in attributes for r in found for part in r.split(".")[1:])


def operands(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The values that an expression takes: arguments (elements of literal lists and tuples), operands."""
    if isinstance(node, (cst.Expr, cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Return)):
        if node.value is not None:
            yield from operands(node.value)
    elif isinstance(node, cst.Call):
        for arg in node.args:
            if isinstance(arg.value, (cst.List, cst.Tuple)):
                yield from (e.value for e in arg.value.elements if isinstance(e, cst.Element))
            elif not isinstance(arg.value, LITERALS):
                yield arg.value
    elif isinstance(node, (cst.BinaryOperation, cst.Comparison)):
        yield node.left
        if isinstance(node, cst.BinaryOperation):
            yield node.right
    elif isinstance(node, cst.UnaryOperation):
        yield node.expression


SHAPES = {
    "tuple": "tuple(s.detach() for s in _)",
    "list": "[s.detach() for s in _]",
    "list of tuples": "[tuple(s.detach() for s in t) for t in _]",
    "dict": "{k: s.detach() for k, s in _.items()}",
    "dict of tuples": "{k: tuple(s.detach() for s in t) for k, t in _.items()}",
    "leaf": "_.detach().requires_grad_()",
    "list of leaves": "[s.detach().requires_grad_() for s in _]",
    "dict of leaves": "{k: s.detach().requires_grad_() for k, s in _.items()}",
}
LEAVES = {"tensor": "leaf", "list": "list of leaves", "dict": "dict of leaves"}


def detached(node: cst.BaseExpression, shape: str = "tensor") -> cst.BaseExpression:
    """`node` with every tensor in it cut from its graph. `shape` is "tensor", one of SHAPES, or the name of a named
    tuple's class or of ``deque``."""
    if shape == "tensor":
        return cst.Call(cst.Attribute(parenthesized(node), cst.Name("detach")))
    made = "(s.detach() for s in _), _.maxlen" if _last(shape) == "deque" else "*(s.detach() for s in _)"
    each = cst.parse_expression(SHAPES.get(shape, f"{shape}({made})"))
    filled = each.visit(_Fill(parenthesized(node)))
    assert isinstance(filled, cst.BaseExpression)
    return filled


class _Fill(cst.CSTTransformer):
    def __init__(self, value: cst.BaseExpression) -> None:
        super().__init__()
        self.value = value

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self.value if updated_node.value == "_" else updated_node


def detach(node: cst.BaseExpression, shape: str = "tensor") -> Edit:
    """Edit: `node` detached where it stands."""

    def build(n: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(n, cst.BaseExpression)
        return detached(n, shape)

    return Replace(node, build)


def rebinding(name: str, shape: str = "tensor") -> cst.Assign:
    """``name = name.detach()``."""
    target = cst.parse_expression(name)
    assert isinstance(target, (cst.Name, cst.Attribute))
    return cst.Assign([cst.AssignTarget(target)], detached(target.deep_clone(), shape))


def gather(*parts: tuple[View, Iterable[Edit | None]]) -> dict[str, tuple[Edit, ...]]:
    """Edits by file, of several files and several reasons; what is None is left out."""
    found: dict[str, tuple[Edit, ...]] = {}
    for view, edits in parts:
        found[view.path] = (*found.get(view.path, ()), *(e for e in edits if e is not None))
    return {path: edits for path, edits in found.items() if edits}


def shape_of(view: View, node: cst.CSTNode, project: Project | None = None) -> str:
    """What kind of container the source says an expression is (see `detached`), "tensor" where it does not say."""
    if isinstance(node, (cst.List, cst.ListComp)):
        return "list"
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        return "list" if isinstance(node.left, cst.List) else "tensor"
    if isinstance(node, (cst.Dict, cst.DictComp)):
        return "dict"
    if isinstance(node, cst.Tuple):
        return "tuple"
    if isinstance(node, cst.Call) and _last(dotted(node.func) or "") in ("tuple", "list", "dict", "deque"):
        return str(dotted(node.func))
    if isinstance(node, cst.Call) and _is_named_tuple(view, dotted(node.func) or ""):
        return str(dotted(node.func))
    if isinstance(node, cst.Call):
        called = (dotted(node.func) or "").rpartition(".")[2]
        for other in [view, *(filter(None, map(project.view, project.files)) if project else ())]:
            for function in functions(other, called):
                returned = [r.value for r in returns(function) if r.value is not None]
                made = returned[0] if returned else None
                plain = not isinstance(made, cst.Call) or _is_named_tuple(other, dotted(made.func) or "")
                if made is not None and plain:
                    shape = shape_of(other, made)
                    if shape != "tensor":
                        return shape
        return "tensor"
    name = dotted(node)
    if name is None:
        return "tensor"
    for unit in walk(body_of(view, node)):
        if isinstance(unit.node, cst.Assign) and name in unit.writes and len(unit.node.targets) == 1:
            target = unit.node.targets[0].target
            if dotted(target) == name and dotted(unit.node.value) != name:
                shape = shape_of(view, unit.node.value, project)
                if shape != "tensor":
                    return shape
    return "tensor"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_named_tuple(view: View, name: str) -> bool:
    """Whether the file makes a class of that name from collections.namedtuple or typing.NamedTuple."""
    for node in view.parents if name else ():
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            made = (dotted(node.value.func) or "").endswith("namedtuple")
            if made and any(dotted(t.target) == name for t in node.targets):
                return True
        if isinstance(node, cst.ClassDef) and node.name.value == name:
            return any((dotted(b.value) or "").endswith("NamedTuple") for b in node.bases)
    return False


def functions(view: View, name: str) -> tuple[cst.FunctionDef, ...]:
    """The functions and methods of that name."""
    return tuple(n for n in view.parents if isinstance(n, cst.FunctionDef) and n.name.value == name)


def returns(function: cst.FunctionDef) -> tuple[cst.Return, ...]:
    """A function's own return statements, in order."""
    return tuple(u.node for u in walk(function.body) if isinstance(u.node, cst.Return))
