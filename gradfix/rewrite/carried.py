"""Values that outlive a pass of the loop: where the graph of an earlier pass enters this one, and under
which name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from gradfix.edit import Project, View
from gradfix.graph import Crossing
from gradfix.rewrite.boundary import frame, meeting, shape_of
from gradfix.rewrite.drawn import views
from gradfix.rewrite.liveness import first_use
from gradfix.rewrite.spelling import descendants, function_of, torch_names
from gradfix.rewrite.statements import (
    Unit,
    body_of,
    bound,
    dotted,
    every_parameter,
    names,
    reads_of,
    stored,
    touches,
    units,
    walk,
)
from gradfix.rewrite.stored import appended
from gradfix.tape import Backward, Mutate, Record, Stack

NUMBERS = ("None", "0", "0.0", "0.", "1", "1.0")


def entries(project: Project, backward: Backward) -> tuple[Crossing, ...]:
    """Edges of `backward`'s walk from a node made since its previous execution to one made before it."""
    graph = project.graph
    since = graph.pass_begin(backward)
    found, walked = [], set(backward.nodes)
    for node in backward.nodes:
        consumer = graph.records.get(node)
        if consumer is None or consumer.time < since:
            continue
        for parent in consumer.parents:
            producer = graph.records.get(parent)
            if producer is not None and producer.time < since and parent in walked and graph.reaches(parent):
                found.append(Crossing(consumer, producer))
    return tuple(found)


def entered(project: Project, backward: Backward) -> tuple[Record, ...]:
    """The nodes of before its previous execution that `backward` walks into; what it starts from where that is one of
    them itself."""
    producers = [e.producer for e in entries(project, backward)]
    known = project.graph.records
    return tuple(producers or [known[n] for n in backward.roots if n in known])


def made_outside(project: Project, record: Record, backward: Backward) -> bool:
    """Whether `record` was made outside the innermost loop around the backward (or around the call that
    leads to it); without a loop in the source, before the backward ran first."""
    depth = meeting(record.stack, backward.stack)
    if _looped_since(project, record, backward, depth):
        return True
    made, needed = frame(project, record.stack, depth), frame(project, backward.stack, depth)
    loop = needed[0].loop(needed[1]) if needed else None
    if made and needed and loop is not None:
        # (a loop that goes through a generator stands on the stack itself)
        return made[0] is not needed[0] or loop not in (made[1], *made[0].ancestors(made[1]))
    # of a function that a loop calls both are inside that loop
    if any(view.loop(node) is not None for view, node in project.frames(backward.stack[: max(depth, 0)])):
        return False
    return record.time < min(b.time for b in project.graph.passes(backward))


def _looped_since(project: Project, record: Record, backward: Backward, depth: int) -> bool:
    """Whether the backward is in a loop of a function that the frame `depth` calls, of which it is not the first pass
    since `record` was made: ``update(buffer.get())``. (What is made anew between two passes is another call's.)"""
    graph = project.graph
    before = graph.previous(backward)
    inner = list(project.frames(backward.stack[depth + 1 :])) if depth >= 0 else []
    return (
        any(view.loop(node) is not None for view, node in inner)
        and before is not None
        and record.time < before.time
        and not graph.made_between(record.stack, before.time, backward.time)
    )


def sets_back(unit: Unit, name: str) -> bool:
    """Whether the statement binds the name to None or a number: ``hidden = None`` at the end of a document."""
    node = unit.node
    return (
        isinstance(node, cst.Assign)
        and any(dotted(t.target) == name for t in node.targets)
        and cst.Module([]).code_for_node(node.value).strip() in NUMBERS
    )


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """`name` is read by `reader` before the body binds it anew: it holds the value of the pass before.
    `stores` are the body's statements that bind it; `body` is a loop's, or a function's for an attribute
    or a global name. `direct`: one of them runs what made the value that enters this pass. `places` are stacks on which
    it is read, of several callers (that may be of several objects), each with the frame that the body belongs to."""

    name: str
    view: View
    body: cst.CSTNode
    reader: Unit
    stores: tuple[Unit, ...]
    direct: bool
    places: tuple[tuple[Stack, int], ...]

    @property
    def depth(self) -> int:
        """The frame that the body belongs to, where the name was first seen to be read."""
        return self.places[0][1]

    @property
    def in_loop(self) -> bool:
        """Whether the body is a loop's, not a function's that is called in one."""
        return isinstance(self.view.parents.get(self.body), (cst.For, cst.While))

    def read_after(self, unit: Unit) -> bool:
        """Whether the body reads the name after `unit` has bound it (for attributes: anything may)."""
        every = list(walk(self.body))
        here = next(n for n, u in enumerate(every) if u.node is unit.node)
        return any(touches(u.reads, {self.name}) for u in every[here + 1 :])

    def read_elsewhere(self, project: Project) -> bool:
        """Whether an attribute is read outside the body: what another method reads may not be cut off yet."""
        last = self.name.rpartition(".")[2]
        own = {id(n) for n in descendants(self.body)}
        return any(
            isinstance(node, cst.Attribute)
            and node.attr.value == last
            and id(node) not in own
            and not isinstance(view.parents.get(node), cst.AssignTarget)
            for view in filter(None, map(project.view, project.files))
            for node in view.parents
        )

    def reads_until_stored(self) -> list[cst.BaseExpression]:
        """Where the body reads the name until it first binds it, that statement's own reads among them."""
        found: list[cst.BaseExpression] = []
        for unit in walk(self.body):
            found += reads_of(unit.node, self.name)
            if any(unit.node is s.node for s in self.stores):
                break
        return found

    def guarded_reads(self) -> list[cst.BaseExpression]:
        """Where the body takes the name's value until it first binds it, if each is behind a test of the name."""
        tests = (cst.If, cst.IfExp, cst.While)
        found: dict[cst.CSTNode, cst.BaseExpression] = {}
        inner: cst.CSTNode
        for read in self.reads_until_stored():
            guarded, inner = False, read
            for node in self.view.ancestors(read):
                if isinstance(node, tests) and inner is node.test:
                    break  # it is asked there, and not taken
                guarded |= isinstance(node, tests) and bool(reads_of(node.test, self.name))
                inner = node
            else:
                if not guarded:
                    return []
                found[read] = read
        return list(found.values())

    def starts_bare(self) -> bool:
        """Whether the name first holds something that is no tensor (None, a number), or nothing at all; or is set back
        to that on the way."""
        return (
            self._unbound_before()
            or any(self.view.code(v).strip() in NUMBERS for v in self.first_values())
            or any(sets_back(u, self.name) for u in walk(self.body))
        )

    def _unbound_before(self) -> bool:
        """Whether only the loop itself binds the name: its first pass goes without, as a test on it says."""
        if not self.in_loop or "." in self.name:
            return False
        function = self.view.function(self.body)
        if not isinstance(function, cst.FunctionDef):
            outer: cst.CSTNode = self.view.module
        elif self.name in _parameters(function) | _outliving(self.view, function.body):
            return False
        else:
            outer = function.body
        inside = {id(u.node) for u in walk(self.body)}
        bound = {w for u in walk(outer) if id(u.node) not in inside for w in u.writes} | _targets(outer)
        return self.name not in bound

    def first_values(self) -> Iterator[cst.BaseExpression]:
        """What the name is bound to outside the body: a parameter by its default, too."""
        inside = {id(u.node) for u in walk(self.body)}
        last = self.name.rpartition(".")[2]
        function = self.view.function(self.body)
        given = every_parameter(function) if self.in_loop and function is not None else ()
        yield from (p.default for p in given if p.name.value == self.name and p.default is not None)
        for node in self.view.parents:
            for target, value in bound(node) if id(node) not in inside else ():
                said = dotted(target) or ""
                if said == self.name or ("." in said and "." in self.name and said.endswith("." + last)):
                    yield value

    def shapes(self, project: Project, edges: Sequence[Crossing]) -> tuple[str, ...]:
        """What the name may hold, likeliest first."""
        values = list(self.first_values())
        said = [shape_of(self.view, v, project) for v in values]
        known = next((s for s in said if s != "tensor"), None)
        if known and any(isinstance(v, cst.Call) for v in values):
            return (known, "tensor")  # another class's method of that name may be the one that is called
        if known in ("list", "dict") and "LSTM" in self.view.text:
            return (known, f"{known} of tuples")
        if known:
            return (known,)
        if self._unpacked() or any(e.producer.output and e.producer.output.name == self.name for e in edges):
            return ("tensor",)
        if any("lstm" in e.consumer.op.lower() for e in edges) or self._called_with("LSTM"):
            return ("tuple", "tensor")
        return ("tensor", "tuple")

    def _unpacked(self) -> bool:
        """Whether the body hands the name over beside others, as one of a tuple: ``cell(x, (hx, cx))``."""
        return any(
            isinstance(node, cst.Tuple) and any(dotted(e.value) == self.name for e in node.elements)
            for node in (self.reader.node, *descendants(self.reader.node))
            if not isinstance(node, cst.AssignTarget)
            and not isinstance(self.view.parents.get(node), cst.AssignTarget)
        )

    def _called_with(self, kind: str) -> bool:
        return kind in self.view.text and any(touches(self.reader.reads, {self.name}) for _ in (0,))


def carried(project: Project, edges: Sequence[Crossing], backward: Backward) -> tuple[Carried, ...]:
    """The names through which `edges` lead from an earlier pass to this one, outermost frame first."""
    found: dict[tuple[str, str, int], Carried] = {}
    for edge in edges:
        stack = edge.consumer.stack
        for depth, view, body, node in bodies(project, stack, backward.stack):
            for item in _names_of(project, view, body, node, edge.producer.stack, stack, depth):
                key = (view.path, item.name, id(body))
                known = found.setdefault(key, item)
                if all(stack[:depth] != other[:at] for other, at in known.places):
                    found[key] = replace(known, places=(*known.places, *item.places))
    return tuple(found.values())


def bodies(
    project: Project, stack: Stack, needed: Stack
) -> Iterator[tuple[int, View, cst.CSTNode, cst.CSTNode]]:
    """(frame, view, body, the frame's node) of the functions around the frames of a stack and of the loops whose
    passes hold a backward, `needed`, too, or give way to it (a generator's); outermost first."""
    meets = meeting(stack, needed)
    last = frame(project, needed, meets)
    for depth in range(len(stack)):
        found = frame(project, stack, depth)
        if found is None:
            continue
        view, node = found
        loops = [x for x in _own_ancestors(view, node) if isinstance(x, (cst.For, cst.While))]
        for loop in reversed(loops):
            holds = depth < meets or (depth == meets and last and loop in list(view.ancestors(last[1])))
            if holds or (depth > meets and _yields(view, loop)):
                yield depth, view, loop.body, node
        function = view.function(node)
        if isinstance(function, cst.FunctionDef):
            yield depth, view, function.body, node


def _yields(view: View, loop: cst.For | cst.While) -> bool:
    """Whether a pass of the loop hands a value to whoever goes through the generator that it is in."""
    function = view.function(loop)
    given = (n for n in descendants(loop.body) if isinstance(n, cst.Yield))
    return function is not None and any(view.function(n) is function for n in given)


def _own_ancestors(view: View, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for x in view.ancestors(node):
        if isinstance(x, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return
        yield x


def _names_of(
    project: Project,
    view: View,
    body: cst.CSTNode,
    node: cst.CSTNode,
    producer: Stack,
    stack: Stack,
    depth: int,
) -> Iterator[Carried]:
    """Names that `body` reads before it binds them, binds, and that lead to `node`."""
    is_loop = isinstance(view.parents.get(body), (cst.For, cst.While))
    top = units(body)
    here = next(
        (n for n, u in enumerate(top) if u.node is node or u.node in list(view.ancestors(node))), None
    )
    if here is None:
        return
    wanted = set(top[here].reads)
    for unit in reversed(top[:here]):
        if touches(unit.writes, wanted):
            wanted |= unit.reads
    shared = _outliving(view, body) if not is_loop else frozenset()
    bound = {w for u in walk(body) for w in u.writes} | _attributes_bound(project, producer)
    modules = torch_names(view)  # (nn.utils.clip_grad_norm_() changes no `nn.utils`)
    bound = {name for name in bound if name.partition(".")[0] not in modules}
    loop = view.parents.get(body)
    if isinstance(loop, cst.For):
        bound -= stored(loop.target)  # new in every pass
    local = {w for u in walk(body) for w in u.writes if "." not in w} | _targets(body)
    made = _bound_by(project, producer)
    updates = _parameter_writes(project, view)
    seen: set[str] = set()
    for unit in top[: here + 1]:
        text = view.code(unit.node)
        for name in sorted(bound, key=text.find):
            exposed = name not in seen and _exposed(unit, name) and not _only_called(unit, name)
            if "." in name and name.split(".")[0] in local:
                continue  # another object in every pass
            outlives = is_loop or "." in name or name in shared
            if exposed and outlives and touches({name}, wanted) and touches({name}, unit.reads):
                stores = tuple(u for u in walk(body) if name in u.writes)
                if stores and all(u.node in updates for u in stores):
                    continue  # a parameter itself, moved by hand
                if not all(_number_or_truth(s.node) for s in stores) or not stores:
                    item = Carried(name, view, body, unit, stores, name in made, ((stack, depth),))
                    if not _is_object(item, project):
                        yield item
                    seen.add(name)
        seen |= {w for w in unit.writes if not isinstance(unit.node, cst.BaseCompoundStatement)}


def _is_object(item: Carried, project: Project) -> bool:
    """Whether an attribute holds an object of one of the project's classes wherever its own class binds it: a memory
    with a state of its own is no state."""
    home = item.view.enclosing(item.body, cst.ClassDef)
    values = [v for v in item.first_values() if item.view.enclosing(v, cst.ClassDef) is home]
    if "." not in item.name or home is None or not values:
        return False
    classes = {n.name.value for view in views(project) for n in view.parents if isinstance(n, cst.ClassDef)}
    return all(isinstance(v, cst.Call) and function_of(v) in classes for v in values)


def _parameter_writes(project: Project, view: View) -> set[cst.CSTNode]:
    """The statements of a file that write into an optimizer's parameters: a clip, a decay, an average."""
    stacks = {
        e.stack
        for e in project.tape.events
        if isinstance(e, Mutate) and e.optimizer is None and e.ref.storage in project.graph.owners
    }
    places = (place for stack in stacks for place in project.frames(stack))
    return {small for at, node in places if at is view and (small := at.small_statement(node)) is not None}


def _number_or_truth(node: cst.CSTNode) -> bool:
    """Whether what a statement stores is no tensor with a graph: a count, or the outcome of a comparison."""
    if isinstance(node, cst.AugAssign):
        return isinstance(node.value, cst.BaseNumber)
    return isinstance(node, cst.Assign) and _plain(node.value)


def _plain(value: cst.BaseExpression) -> bool:
    match value:
        case cst.Comparison() | cst.BaseNumber() | cst.UnaryOperation(operator=cst.Not()):
            return True
        case cst.BooleanOperation():
            return _plain(value.left) and _plain(value.right)
        case cst.Name():
            return value.value in ("True", "False")
    return False


def _exposed(unit: Unit, name: str) -> bool:
    """Whether the unit may read the value that `name` had before it."""
    return first_use([unit.node], name) == "read"


def _only_called(unit: Unit, name: str) -> bool:
    """Whether the unit does nothing with what `name` holds but call it: a module, and no state."""
    called = [dotted(n.func) for n in descendants(unit.node) if isinstance(n, cst.Call)]
    return called.count(name) == len(reads_of(unit.node, name)) > 0


def _targets(body: cst.CSTNode) -> set[str]:
    """Names that loops below `body` bind."""
    return {w for n in (body, *descendants(body)) if isinstance(n, cst.For) for w in stored(n.target)}


def _parameters(function: cst.FunctionDef) -> set[str]:
    return {p.name.value for p in every_parameter(function)}


def _outliving(view: View, body: cst.CSTNode) -> frozenset[str]:
    """Names a function declares global or nonlocal."""
    found = set()
    for unit in walk(body):
        if isinstance(unit.node, (cst.Global, cst.Nonlocal)):
            found |= {n.name.value for n in unit.node.names}
    return frozenset(found)


def _bound_by(project: Project, stack: Stack) -> set[str]:
    """Names bound by the statements that the frames of a stack stand in."""
    small = (view.small_statement(node) for view, node in project.frames(stack))
    return {w for s in small if s is not None for w in names(s).writes}


def _attributes_bound(project: Project, stack: Stack) -> set[str]:
    """Attributes that the functions on a stack bind."""
    found = set()
    for view, node in project.frames(stack):
        found |= {w for u in walk(body_of(view, node)) for w in u.writes if "." in w}
    return found


def cleared_names(view: View, name: str) -> bool:
    """Whether some statement outside constructors empties or rebinds a list of that (last) name."""
    last = name.rpartition(".")[2]
    for function in (None, *functions_of(view)):
        if function is not None and function.name.value == "__init__":
            continue
        body = function.body if function is not None else view.module
        for unit in walk(body):
            node = unit.node
            text = view.code(node).strip()
            if text.endswith(f"{last}.clear()") or (isinstance(node, cst.Del) and f"{last}[" in text):
                return True
            bound = isinstance(node, cst.Assign) and any(w.rpartition(".")[2] == last for w in unit.writes)
            if isinstance(node, cst.Assign) and any(
                isinstance(t.target, cst.Subscript) for t in node.targets
            ):
                bound = bound and f"{last}[:]" in text  # else one element takes another's place
            if bound and (function is not None or view.loop(node) is not None):
                return True
    return False


def outlives(project: Project, view: View, node: cst.CSTNode) -> bool:
    """Whether what the statement of `node` makes is put into a list of an object's that nothing empties, a buffer of
    fakes say: later passes have it as well."""
    small = view.small_statement(node)
    made = names(small).writes if small is not None else frozenset()
    for call, element in appended(body_of(view, node)):
        holder = (dotted(call.func.value) if isinstance(call.func, cst.Attribute) else None) or ""
        kept = element in list(view.ancestors(node)) or touches(names(element).reads, made)
        if kept and "." in holder and not any(cleared_names(v, holder) for v in views(project)):
            return True
    return False


def functions_of(view: View) -> tuple[cst.FunctionDef, ...]:
    """Every function that the file defines."""
    return tuple(n for n in view.parents if isinstance(n, cst.FunctionDef))
