"""State that waits under a key for the next pass: ``self.state["hidden"]``, ``memory[user]``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from gradfix.edit import Edit, Project, View
from gradfix.graph import Crossing
from gradfix.rewrite.boundary import detach, detached
from gradfix.rewrite.carried import bodies
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import (
    Unit,
    dotted,
    line_of,
    literal_key,
    put_after,
    put_before,
    stored,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """`said` is an entry under a key, a literal or what `body` does not bind, that it reads before it binds it anew.
    `reads` are where it does, `stores` the statements that bind it."""

    said: str
    view: View
    body: cst.CSTNode
    first: Unit
    last: Unit
    reads: tuple[cst.Subscript, ...]
    stores: tuple[Unit, ...]

    def stored(self, shape: str) -> list[Edit]:
        """``self.state["h"] = h.detach()``, where the pass reads it no more behind that."""
        edits: list[Edit] = []
        for unit in self.stores:
            line = self.view.span(unit.node).end.line
            plain = isinstance(unit.node, cst.Assign) and len(unit.node.targets) == 1
            if not plain or not isinstance(unit.node, cst.Assign):
                return []
            target = unit.node.targets[0].target
            if self.view.code(target) != self.said or any(
                self.view.span(r).start.line > line for r in self.reads
            ):
                return []
            edits.append(detach(unit.node.value, shape))
        return edits

    def read(self, shape: str) -> list[Edit]:
        """Detached in the one expression that takes it over."""
        bound = min(self.view.span(u.node).end.line for u in self.stores)
        taken = [r for r in self.reads if self.view.span(r).start.line <= bound]
        return [detach(taken[0], shape)] if len(taken) == 1 and shape == "tensor" else []

    def before(self, shape: str) -> list[Edit]:
        """Detached before the pass takes it over."""
        return [put_before(self.first, self._again(shape))]

    def after(self, shape: str) -> list[Edit]:
        """Detached behind the last statement of the pass that needs it."""
        return [] if isinstance(self.last.node, cst.Return) else [put_after(self.last, self._again(shape))]

    def _again(self, shape: str) -> cst.BaseStatement:
        target = cst.ensure_type(cst.parse_expression(self.said), cst.Subscript)
        return line_of(cst.Assign([cst.AssignTarget(target)], detached(target.deep_clone(), shape)))


def kept_items(project: Project, edges: Sequence[Crossing], backward: Backward) -> tuple[Item, ...]:
    """The entries through which `edges` may lead from an earlier pass to this one."""
    found: dict[tuple[str, int], Item] = {}
    for edge in edges:
        for _, view, outer, node in bodies(project, edge.consumer.stack, backward.stack):
            for body in (outer, *_inner(view, outer, node)):
                if not isinstance(body, (cst.IndentedBlock, cst.Module)):
                    continue
                here = unit_in(view, body, node)
                for item in _of_body(view, body) if here is not None else ():
                    if any(item.first.node is u.node for u in units(body)[: (here or 0) + 1]):
                        found.setdefault((item.said, id(body)), item)
    return tuple(found.values())


def _inner(view: View, body: cst.CSTNode, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The bodies of the loops within `body` that go through the keys: ``for i, cell in enumerate(cells):``."""
    for above in view.ancestors(node):
        if above is body:
            return
        if isinstance(above, cst.For):
            yield above.body


def _of_body(view: View, body: cst.BaseSuite | cst.Module) -> Iterator[Item]:
    top = units(body)
    inner = {id(n): u for u in walk(body) for n in (u.node, *descendants(u.node))}
    outer = {id(n): u for u in top for n in (u.node, *descendants(u.node))}
    loops = (u.node for u in walk(body) if isinstance(u.node, cst.For))
    own = frozenset(w for u in walk(body) for w in u.names.binds).union(*(stored(x.target) for x in loops))
    several: dict[str, list[cst.Subscript]] = {}
    for node in view.parents:
        if (
            isinstance(node, cst.Subscript)
            and id(node) in inner
            and (literal_key(node) or _steady(node, own))
        ):
            holder = node.value
            while isinstance(holder, cst.Subscript) and (literal_key(holder) or _steady(holder, own)):
                holder = holder.value
            held = dotted(holder)
            if held is not None and not {held, held.split(".")[0]} & own:
                several.setdefault(view.code(node), []).append(node)
    for said, nodes in several.items():
        nodes.sort(key=lambda n: (view.span(n).start.line, view.span(n).start.column))
        stores = [n for n in nodes if _bound(view, n)]
        reads = [n for n in nodes if n not in stores]
        lines = [view.span(inner[id(n)].node).start.line for n in stores]
        if reads and stores and view.span(reads[0]).start.line <= min(lines):
            every = [outer[id(n)] for n in nodes]
            binding = dict.fromkeys(inner[id(n)] for n in stores)
            yield Item(said, view, body, outer[id(reads[0])], every[-1], tuple(reads), tuple(binding))


def _steady(node: cst.Subscript, own: Collection[str]) -> bool:
    """Whether the key is a name that the body does not bind, and so the same all through it: a parameter."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    name = dotted(index.value) if isinstance(index, cst.Index) else None
    return name is not None and not {name, name.split(".")[0]} & set(own)


def _bound(view: View, node: cst.CSTNode) -> bool:
    """Whether an assignment binds the entry, alone or beside others."""
    above = view.parents.get(node)
    while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
        node, above = above, view.parents.get(above)
    return isinstance(above, cst.AssignTarget)
