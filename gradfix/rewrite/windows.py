"""The end of a pass, or of a window of passes, that a backward closes: where state that is carried on is detached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.edit import Edit, Project, View
from gradfix.graph import Crossing
from gradfix.rewrite.boundary import frame, meeting, rebinding
from gradfix.rewrite.calls import taken_as
from gradfix.rewrite.carried import Carried
from gradfix.rewrite.spelling import function_of, unused
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
from gradfix.tape import Backward, Stack

_FEW = 2  # objects whose state is detached by a line for each


def window_ends(
    project: Project, found: Sequence[Carried], edges: Sequence[Crossing], backward: Backward
) -> Iterator[tuple[str, list[tuple[View, list[Edit]]]]]:
    """``if (t + 1) % k == 0: …``, or a loop of its own for each window: the state is detached behind the step, all
    its names together, as they are called there; of many objects of one class in a loop over them."""
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
    spread: list[Carried] = []  # what several objects hold, or one that has no name here
    for item in found:
        if item.view is view and item.depth == depth and "." not in item.name:
            # (of a pass that ends in the backward, what it reads first says where to detach)
            own = not whole_pass and item.body is (loop.body if loop is not None else None)
            several = [item.name if own else ""]
        else:
            several = [_called(project, item.name, place, depth) for place in item.places]
            spread += [item] if len(several) > 1 or "" in several else []
            several = [] if "" in several else several
        for name in several:
            if name and not touches({name}, bound):  # bound anew there: it starts afresh
                group.setdefault(name, item)
    body = units(block)
    steps = [u for u in body[index:] if ".step(" in view.code(u.node)]
    end = (steps or [body[index]])[-1]
    direct = {n: i for n, i in group.items() if i.direct}
    ways = list(_by_class(project, view, spread, depth))
    for some in (direct, group) if 0 < len(direct) < len(group) else (group,):
        shapes = {n: i.shapes(project, edges) for n, i in some.items()}
        for k in range(max(map(len, shapes.values()), default=0)):
            kinds = {name: held[min(k, len(held) - 1)] for name, held in shapes.items()}
            lines: list[cst.BaseStatement] = [line_of(rebinding(n, way)) for n, way in kinds.items()]
            named = (", ".join(f"`{name}`" for name in some), lines)
            ways.insert(0, named) if len(some) <= _FEW else ways.append(named)
    for said, lines in ways:
        yield f"detach {said} at the end of each window", [(view, [put_after(end, *lines)])]


def _by_class(
    project: Project, view: View, found: Sequence[Carried], depth: int
) -> Iterator[tuple[str, list[cst.BaseStatement]]]:
    """``for module in net.modules(): if isinstance(module, Layer): …``: the state that several layers of one class keep
    in attributes, detached in all of them."""
    held: dict[tuple[str, str], list[str]] = {}
    for item in found:
        kind = item.view.enclosing(item.body, cst.ClassDef)
        function = item.view.function(item.body)
        first, _, attribute = item.name.partition(".")
        own = isinstance(function, cst.FunctionDef) and first == next(iter(parameters(function)), "")
        roots = {_receiver(project, stack, depth) for stack, _ in item.places}
        root = roots.pop() if len(roots) == 1 else ""
        if own and root and attribute and kind is not None and _knows(view, item.view, kind):
            held.setdefault((root, kind.name.value), []).append(attribute)
    for (root, name), attributes in held.items():
        module = unused(view, "module")
        lines = [cst.Module([]).code_for_node(rebinding(f"{module}.{a}")) for a in attributes]
        test = f"for {module} in {root}.modules():\n    if isinstance({module}, {name}):\n"
        text = test + "".join(f"        {line}\n" for line in lines)
        said = " and ".join(f"`{a}`" for a in attributes)
        yield f"{said} of every `{name}`", [cst.parse_statement(text)]


def _knows(view: View, home: View, kind: cst.ClassDef) -> bool:
    """Whether the class, made in `home`, has its name in `view`."""
    if view is home:
        return isinstance(home.parents.get(kind), cst.Module)
    named = (n for n in view.parents if isinstance(n, cst.ImportAlias) and n.asname is None)
    return any(dotted(n.name) == kind.name.value for n in named)


def _receiver(project: Project, stack: Stack, depth: int) -> str:
    """What the frame `depth` calls, or calls a method of, or hands to a function that does: ``net`` of ``net(x)`` and
    of ``roll_out(net, x)``; "" where it has no name."""
    call, inner = _call(project, stack, depth), frame(project, stack, depth + 1)
    if call is None:
        return ""
    function = inner[0].function(inner[1]) if inner is not None else None
    if inner is None or not isinstance(function, cst.FunctionDef) or function.name.value != function_of(call):
        return dotted(call.func) or ""
    if isinstance(call.func, cst.Attribute) and inner[0].enclosing(function, cst.ClassDef) is not None:
        return dotted(call.func.value) or ""
    return _handed(call, function, inner[0], _receiver(project, stack, depth + 1))


def _call(project: Project, stack: Stack, depth: int) -> cst.Call | None:
    calling = frame(project, stack, depth)
    call = calling[1] if calling is not None else None
    call = call.value if isinstance(call, cst.Expr) else call
    return call if isinstance(call, cst.Call) else None


def _handed(call: cst.Call, function: cst.FunctionDef, home: View, name: str) -> str:
    """What the caller of a function, which `home` defines, calls a parameter of it, or its attribute."""
    first, dot, rest = name.partition(".")
    given = next(
        (a.value for a in call.args if first and taken_as(call, a.value, function, home) == first), None
    )
    outer = dotted(given) if given is not None else None
    return f"{outer}{dot}{rest}" if outer else ""


def _called(project: Project, name: str, place: tuple[Stack, int], depth: int) -> str:
    """What the frame `depth` calls an attribute that a method further in knows as its own: ``self.state`` is
    ``model.state`` where ``model(x)`` is called, or handed to a function that calls it; "" where it has no name
    there, or is called by an nn.Sequential."""
    stack, own = place
    for inner in range(own, depth, -1):
        within, calling = frame(project, stack, inner), frame(project, stack, inner - 1)
        if within is not None and calling is not None and calling[1] in list(within[0].ancestors(within[1])):
            continue  # a comprehension has a frame of its own
        function = within[0].function(within[1]) if within is not None else None
        call = _call(project, stack, inner - 1)
        if within is None or calling is None or not isinstance(function, cst.FunctionDef) or call is None:
            return ""
        first, _, attribute = name.partition(".")
        by_name = function_of(call) == function.name.value
        if by_name and within[0].enclosing(function, cst.ClassDef) is None:
            name = _handed(call, function, within[0], name)
            if not name:
                return ""
            continue
        if not attribute or first != next(iter(parameters(function)), ""):
            return ""
        method = isinstance(call.func, cst.Attribute) and by_name
        receiver = dotted(call.func.value if method and isinstance(call.func, cst.Attribute) else call.func)
        if receiver is None:
            return ""
        name = f"{receiver}.{attribute}"
    here = frame(project, stack, depth)
    if here is not None and _is_sequential(here[0], name.partition(".")[0]):
        return ""
    return name if own >= depth and "." in name else ""


def _is_sequential(view: View, name: str) -> bool:
    made = (n for n in view.parents if isinstance(n, cst.Assign) and dotted(n.targets[0].target) == name)
    return any(isinstance(n.value, cst.Call) and function_of(n.value) == "Sequential" for n in made)
