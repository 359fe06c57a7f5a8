"""The end of a pass, or of a window of passes, that a backward closes: where state that is carried on is detached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.edit import Edit, Project, View
from gradfix.graph import Crossing
from gradfix.rewrite.boundary import frame, meeting, rebinding
from gradfix.rewrite.carried import Carried
from gradfix.rewrite.statements import (
    block_of,
    dotted,
    line_of,
    names,
    parameters,
    put_after,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Backward


def window_ends(
    project: Project, found: Sequence[Carried], edges: Sequence[Crossing], backward: Backward
) -> Iterator[tuple[str, list[tuple[View, list[Edit]]]]]:
    """``if (t + 1) % k == 0: …``, or a loop of its own for each window: the state is detached behind the step, all
    its names together, as they are called there."""
    depth = max((meeting(e.consumer.stack, backward.stack) for e in edges), default=-1)
    here = frame(project, backward.stack, depth)
    block = block_of(*here) if here is not None else None
    index = unit_in(here[0], block, here[1]) if here is not None and block is not None else None
    if here is None or block is None or index is None:
        return
    view, node = here
    loop = view.loop(node)
    whole_pass = loop is not None and block is loop.body
    bound = names(block).writes
    group: dict[str, Carried] = {}
    for item in found:
        if item.view is view and item.depth == depth and "." not in item.name:
            # (of a pass that ends in the backward, what it reads first says where to detach)
            own = not whole_pass and item.body is (loop.body if loop is not None else None)
            name = item.name if own else ""
        else:
            name = called(project, item, depth)
        if name and not touches({name}, bound):  # bound anew there: it starts afresh
            group.setdefault(name, item)
    body = units(block)
    steps = [u for u in body[index:] if ".step(" in view.code(u.node)]
    direct = {n: i for n, i in group.items() if i.direct}
    for some in (direct, group) if 0 < len(direct) < len(group) else (group,):
        shapes = {n: i.shapes(project, edges) for n, i in some.items()}
        for n in range(max(map(len, shapes.values()), default=0)):
            lines = [line_of(rebinding(name, ways[min(n, len(ways) - 1)])) for name, ways in shapes.items()]
            said = ", ".join(f"`{name}`" for name in some)
            end = put_after((steps or [body[index]])[-1], *lines)
            yield f"detach {said} at the end of each window", [(view, [end])]


def called(project: Project, item: Carried, depth: int) -> str:
    """What the frame `depth` calls an attribute that a method further in knows as its own: ``self.state`` is
    ``model.state`` where ``model(x)`` is called; "" where it has no name there."""
    name = item.name
    for inner in range(item.depth, depth, -1):
        within, calling = frame(project, item.stack, inner), frame(project, item.stack, inner - 1)
        function = within[0].function(within[1]) if within is not None else None
        call = calling[1] if calling is not None else None
        call = call.value if isinstance(call, cst.Expr) else call
        if not isinstance(function, cst.FunctionDef) or not isinstance(call, cst.Call):
            return ""
        first, _, attribute = name.partition(".")
        if not attribute or first != next(iter(parameters(function)), ""):
            return ""
        method = isinstance(call.func, cst.Attribute) and call.func.attr.value == function.name.value
        receiver = dotted(call.func.value if method and isinstance(call.func, cst.Attribute) else call.func)
        if receiver is None:
            return ""
        name = f"{receiver}.{attribute}"
    return name if item.depth >= depth and "." in name else ""
