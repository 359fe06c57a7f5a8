"""See :class:`Undetach`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, targets
from gradfix.rewrite.arrays import statement_gone
from gradfix.rewrite.blocks import method, of_torch
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.callers import Part, Served, moved, served, unproved
from gradfix.rewrite.calls import with_arguments
from gradfix.rewrite.carried import outlives
from gradfix.rewrite.dropped import asked_of_loss
from gradfix.rewrite.liveness import dotted, scope_of, statement_before
from gradfix.rewrite.peeling import MAKERS, innermost, layer_in, outermost, peel, put
from gradfix.rewrite.recording import Way, cut_for_others, drawn_anew, of_one, recorded
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import body_of, reads_of, walk
from gradfix.tape import Cut
from gradfix.verdict import GAINS, TERM

SERVES = Effect(
    "changes-value",
    "what the optimizer steps gets its gradient; so does whatever else the function that has the cut serves, which "
    "the run did not come to",
)
PATTERNS = frozenset(
    (
        *("no-graph", "dead-parameter", "rewrapped", "partly", "bypassed", "fast-weights"),
        *("constant-term", "idle-term"),
    )
)
FROZEN = re.compile(r"\b(frozen|freez(e|es|ing))\b|\blinear[ -]prob", re.IGNORECASE)
PLACES = 4  # cuts of one pass that are tried


class Undetach(Codemod):
    """Take away what cuts a loss from the parameters it is to train.

    Why: `.detach()`, `.data`, `.item()`, `torch.tensor(t)` and `no_grad` leave the graph. With
    `requires_grad=True` put on the result, backward() runs and trains nothing. The loss itself has to be
    differentiated; numbers gathered in a list become tensors, stacked. A reentrant checkpoint leaves it, too, where
    none of its inputs requires grad; one with `use_reentrant=False` does not.

    When not: where the gradient is handed on by hand (`out.backward(leaf.grad)`), or the parameters are
    frozen on purpose.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient", "changes-value")
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = torch.tensor(net(x).pow(2).mean(), requires_grad=True)  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.severity == "note" or conflict.pattern not in PATTERNS:
            return
        if conflict.pattern in ("bypassed", "fast-weights"):
            yield from _taken_whole(conflict, project)
            return
        if conflict.pattern == "constant-term" and (inner := _in_the_sum(conflict, project)) is not None:
            yield inner
            return
        every: list[Part] = []
        effect = TERM if conflict.pattern in ("constant-term", "idle-term") else GAINS
        for rank, cut in enumerate(_cuts(conflict, project)):
            found = _found(cut, project)
            if found is not None and conflict.severity == "warning" and _decided(cut, project, found.parts):
                continue
            if found is not None and conflict.pattern == "partly" and _said_to_be_frozen(found.parts):
                continue
            if found is not None:
                said, parts = found.said, [*found.parts, *asked_of_loss(conflict.backward, project)]
                calls = () if found.depth is None else served(cut, found.depth, conflict.backward, project)
                kept = _kept_for_others(cut, calls, project) if calls else None
                if kept and (unproved(calls) or conflict.pattern != "no-graph"):
                    whole = f"{said}, and cut it where others call the function"
                    yield Proposal(whole, effect, gather(*parts, *kept), rank + 1)
                if found.several or (unproved(calls) and kept is None):
                    yield Proposal(said, SERVES, gather(*parts), rank)
                if found.several or unproved(calls):
                    continue
                every += parts
                yield Proposal(said, effect, gather(*parts), rank + (conflict.pattern == "dead-parameter"))
                if others := cut_for_others(cut, conflict.backward, project):
                    said = f"{said}, and detach it where another loss takes it"
                    yield Proposal(said, effect, gather(*parts, *others), rank + 1)
        if len(every) > 1:
            seen: set[int] = set()
            together: list[Part] = []
            for view, edits in every:
                new = [e for e in edits if not {id(n) for n in targets(e)} & seen]
                seen |= {id(n) for e in new for n in targets(e)}
                together.append((view, new))
            rank = 0 if conflict.pattern == "dead-parameter" else PLACES
            yield Proposal("keep every value of the loss in its graph", GAINS, gather(*together), rank)


def _cuts(conflict: Conflict, project: Project) -> list[Cut]:
    """The cut that the conflict names, and where the loss has no graph at all the others of the same pass,
    the last first; one a place. (A loss that has one may be cut elsewhere on purpose.)"""
    first = conflict.event if isinstance(conflict.event, Cut) else None
    if conflict.pattern == "dead-parameter" and first is not None:
        return _beside(first, conflict, project)
    if conflict.pattern != "no-graph":
        return [first] if first is not None and first.stack else []
    backward = conflict.backward
    end = backward.time if backward is not None else first.time if first is not None else 0
    begin = max((s.time for s in project.graph.steps if s.time < end), default=-1)
    cuts = (e for e in project.graph.tape.events if isinstance(e, Cut) and e.how != "discrete")
    others = [e for e in cuts if e.stack and begin < e.time < end]
    found: dict[object, Cut] = {}
    for cut in (*((first,) if first is not None else ()), *reversed(others)):
        found.setdefault(cut.stack[-1], cut)
    return list(found.values())[:PLACES]


def _beside(first: Cut, conflict: Conflict, project: Project) -> list[Cut]:
    """The cut that keeps an optimizer's parameters from every loss, and those beside it in the same statement that do
    so, too: ``return out.detach(), state.detach()``."""
    step = conflict.label("step")
    optimizer = next((s.optimizer for s in project.graph.steps if step and s.stack == step.stack), None)
    starved = project.graph.owned_mask([] if optimizer is None else [optimizer])
    place = project.node(first.stack[-1]) if first.stack else None
    if place is None:
        return []
    statement = place[0].small_statement(place[1])
    found: dict[object, Cut] = {first.stack[-1]: first}
    for cut in project.graph.tape.events:
        if not isinstance(cut, Cut) or cut.how != first.how or cut.node is None or not cut.stack:
            continue
        if not project.graph.reach_mask(cut.node) & starved or cut.stack[-1] in found:
            continue
        other = project.node(cut.stack[-1])
        if other is not None and statement is not None and other[0].small_statement(other[1]) is statement:
            found[cut.stack[-1]] = cut
    return list(found.values())[:PLACES]


def _taken_whole(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """Every parameter that the forward takes by its value, with its graph."""
    parts: list[Part] = []
    for label in conflict.labels:
        found = project.node(label.stack[-1]) if label.role == "cut" else None
        layer = layer_in(*found) if found is not None else None
        if found is None or layer is None:
            continue
        view = found[0]
        top = outermost(view, layer)
        if any(isinstance(n, cst.IfExp | cst.If) for n in view.ancestors(top)):
            return  # whether it is to be trained is decided there
        parts.append((view, [put(view, top, innermost(top))]))
    if parts:
        what = "parameter" if len(parts) == 1 else "parameters"
        yield Proposal(f"take the {what} with the graph, not the value alone", GAINS, gather(*parts))


def _kept_for_others(cut: Cut, calls: tuple[Served, ...], project: Project) -> list[Part] | None:
    """The cut at the other calls of the function that has it; None where it can't be moved there."""
    place = project.node(cut.stack[-1]) if cut.how != "no_grad" else None
    layer = layer_in(*place) if place is not None else None
    return moved(cut, layer, calls, project) if layer is not None else None


def _found(cut: Cut, project: Project) -> Way | None:
    if cut.how == "no_grad":
        return drawn_anew(cut, project) or of_one(cut, recorded(cut, project), project)
    return (
        _kept_apart(cut, project) if cut.how == "checkpoint" else of_one(cut, _value(cut, project), project)
    )


def _decided(cut: Cut, project: Project, parts: list[Part]) -> bool:
    """Whether the program counts steps, or asks for a choice of the person's, to know if it cuts here: that is a phase
    of the training, or an option, and not a slip."""
    site = cut.stack[-1]
    for view, edits in parts:
        for node in (n for e in edits for n in targets(e)):
            for above in view.ancestors(node):
                if isinstance(above, cst.FunctionDef):
                    break
                if isinstance(above, cst.IfExp) and view.path == site.file:
                    return True
                if not isinstance(above, cst.If) or _differentiates(above):
                    continue
                if any(_counts(n) for n in descendants(above.test)):
                    return True
                if cut.how != "checkpoint" and _is_option(above.test):
                    return True
    return False


def _said_to_be_frozen(parts: list[Part]) -> bool:
    """Whether a comment or a docstring of the class around, or the function, says that what is below the cut is not to
    be trained."""
    around = (
        (view, view.enclosing(n, cst.ClassDef) or view.function(n) or n)
        for view, edits in parts
        for e in edits
        for n in targets(e)
    )
    said = (
        n.value
        for _, node in around
        for n in descendants(node)
        if isinstance(n, cst.Comment | cst.SimpleString)
    )
    return any(map(FROZEN.search, said))


def _differentiates(branch: cst.If) -> bool:
    """Whether a loss of its own is differentiated there: a step that is taken now and then cuts whenever it is."""
    return any(isinstance(n, cst.Call) and function_of(n) == "backward" for n in descendants(branch.body))


def _is_option(test: cst.BaseExpression) -> bool:
    """``if not self.finetune:``"""
    if isinstance(test, cst.UnaryOperation):
        return _is_option(test.expression)
    if isinstance(test, cst.BooleanOperation):
        return _is_option(test.left) or _is_option(test.right)
    return isinstance(test, cst.Name | cst.Attribute | cst.Subscript) and dotted(test) != "self.training"


def _counts(node: cst.CSTNode) -> bool:
    ordered = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
    return isinstance(node, (*ordered, cst.Modulo))


def _kept_apart(cut: Cut, project: Project) -> Way | None:
    """``checkpoint(…, use_reentrant=False)``, which records a graph whatever its inputs are."""
    found = project.node(cut.stack[-1])
    if found is None:
        return None
    view, node = found
    calls = [
        n
        for n in (node, *descendants(node))
        if isinstance(n, cst.Call) and function_of(n) in ("checkpoint", "checkpoint_sequential")
    ]
    if len(calls) != 1:
        return None
    edit = with_arguments(calls[0], {"use_reentrant": cst.Name("False")})
    said = "checkpoint with `use_reentrant=False`, which records a graph all the same"
    return Way(said, [(view, [edit])])


# a value taken out of its graph


def _value(cut: Cut, project: Project) -> Way | None:
    found = project.node(cut.stack[-1])
    if found is None:
        return None
    (view, node), depth = found, len(cut.stack) - 1
    made = _made_of_list(view, node) if cut.how == "tensor" else None
    if made is not None:
        items = " ".join(view.code(made.args[0].value).split())
        said = f"stack `{items}`, graphs and all" if len(items) < 40 else "stack the values, graphs and all"
        return Way(said, [(view, _stacked(view, made, cut))], depth)
    layer = layer_in(view, node)
    if layer is None:
        return None
    top = outermost(view, layer)
    core = innermost(top)
    if core is top or outlives(project, view, top) or _given_as_array(view, top):
        return None
    code = " ".join(view.code(core).split())
    said = f"keep `{code}` in its graph" if len(code) < 40 else "keep the value in its graph"
    small, kept = view.small_statement(top), list[Edit]()
    if isinstance(small, cst.Expr) and small.value is top:
        return Way(said, [(view, [*statement_gone(view, small)])], depth)
    if isinstance(small, cst.Assign) and small.value is top and len(small.targets) == 1:
        name = dotted(small.targets[0].target)
        kept = _kept_as_number(view, top, name) if name else []
        if name and name == dotted(core):
            return Way(said, [(view, [*statement_gone(view, small), *kept])], depth)
    edits = [put(view, top, core), *kept]
    holder = _holder(view, top)
    if isinstance(holder, cst.BaseExpression):
        edits += _stacked(view, holder, cut)
    elif holder:
        made_of = [e for call in _read_by(view, top, holder) for e in _from_tensors(view, call, holder, cut)]
        edits += [*made_of, *(_appended_beside(view, top, holder) if made_of else ())]
    return Way(said, [(view, edits)], depth)


def _kept_as_number(view: View, top: cst.BaseExpression, name: str) -> list[Edit]:
    """``history.append(loss.item())``: what outlives the pass is to be the number that it was, where the loss takes the
    name itself."""
    loop = view.loop(top)
    scope = loop.body if loop is not None else scope_of(view, top)
    bound = {dotted(t.target) for n in descendants(scope) if isinstance(n, cst.Assign) for t in n.targets}
    behind = [n for n in descendants(scope) if view.span(n).start.line > view.span(top).start.line]
    kept: list[cst.BaseExpression] = []
    for node in behind:
        into, value = "", None
        if isinstance(node, cst.AugAssign):
            into, value = dotted(node.target), node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and len(node.args) == 1:
            into = dotted(node.func.value) if node.func.attr.value == "append" else ""
            value = node.args[0].value
        outlives_pass = into and into not in bound and (loop is not None or "." in into)
        if value is not None and outlives_pass and dotted(value) == name:
            kept.append(value)
    if sum(isinstance(n, cst.BaseExpression) and dotted(n) == name for n in behind) == len(kept):
        return []
    way = "item" if isinstance(top, cst.Call) and function_of(top) == "item" else "detach"
    return [Replace(n, lambda now: method(cast(cst.BaseExpression, now), way)) for n in kept]


def _given_as_array(view: View, top: cst.BaseExpression) -> bool:
    """``return x.data.numpy()``: whoever calls the function takes an array, which has no graph."""
    if not isinstance(top, cst.Call) or function_of(top) != "numpy":
        return False
    above = view.parents.get(top)
    while isinstance(above, cst.IfExp):
        above = view.parents.get(above)
    return isinstance(above, cst.Return)


def _made_of_list(view: View, node: cst.CSTNode) -> cst.Call | None:
    """``torch.tensor(log_probs)`` at `node`, of a list of tensors."""
    call = node.value if isinstance(node, cst.Expr) else node
    if not isinstance(call, cst.Call) or function_of(call) not in MAKERS or not call.args:
        return None
    return call if _is_list(view, call.args[0].value) else None


def _is_list(view: View, node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.List | cst.ListComp) or (bool(dotted(node)) and _filled(view, dotted(node)))


def _filled(view: View, name: str) -> bool:
    """Whether the name is that of a list: made as one, or appended to."""
    return any(
        isinstance(n, cst.Attribute) and n.attr.value == "append" and dotted(n.value) == name
        for n in view.parents
    ) or any(
        isinstance(n, cst.Assign)
        and any(dotted(t.target) == name for t in n.targets)
        and isinstance(n.value, cst.List | cst.ListComp)
        for n in view.parents
    )


def _holder(view: View, top: cst.BaseExpression) -> str | cst.BaseExpression:
    """Where the number goes: the name of a list it is appended to or of a variable, or the
    ``torch.tensor([…])`` around it; "" for neither."""
    above = view.parents.get(top)
    if isinstance(above, cst.Arg):
        call = view.parents[above]
        func = call.func if isinstance(call, cst.Call) else None
        if isinstance(func, cst.Attribute) and func.attr.value in ("append", "appendleft"):
            return dotted(func.value)
    if isinstance(above, cst.Element | cst.ListComp):
        listed = view.parents[above] if isinstance(above, cst.Element) else above
        outer = view.parents.get(view.parents.get(listed, listed))
        if isinstance(outer, cst.Call) and function_of(outer) in MAKERS:
            return outer
        above = view.parents.get(listed)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        return dotted(above.targets[0].target)
    if isinstance(above, cst.AugAssign):
        return dotted(above.target)
    return ""


def _appended_beside(view: View, top: cst.BaseExpression, name: str) -> Iterator[Edit]:
    """The other numbers that the function puts into the list, each with its graph: those of another branch, say."""
    for call in descendants(body_of(view, top)):
        if (
            not isinstance(call, cst.Call)
            or function_of(call) not in ("append", "appendleft")
            or not call.args
        ):
            continue
        value = call.args[0].value
        if value is not top and peel(value) is not None and _holder(view, value) == name:
            yield put(view, value, innermost(value))


def _in_the_sum(conflict: Conflict, project: Project) -> Proposal | None:
    """``loss = fit + w * value`` with ``value = penalty.item()`` that is shown, too: the number stays one, the sum
    takes the tensor it was made of."""
    cut, used = conflict.label("cut"), conflict.label("used")
    made = project.node(cut.stack[-1]) if cut is not None else None
    summed = project.node(used.stack[-1]) if used is not None else None
    if made is None or summed is None or made[0] is not summed[0]:
        return None
    view, layer = made[0], layer_in(*made)
    if layer is None:
        return None
    top = outermost(view, layer)
    name, source = _holder(view, top), dotted(innermost(top))
    small, target = view.small_statement(top), view.small_statement(summed[1])
    body = body_of(view, top)
    if not isinstance(name, str) or not name or not source or name == source or _filled(view, name):
        return None
    if target is None or small is target or body_of(view, target) is not body:
        return None
    reads = reads_of(target, name)
    shown = len(reads_of(body, name)) > len(reads)
    same = statement_before(view, target, source) is statement_before(view, top, source)
    if not reads or not shown or not same:
        return None
    edits: list[Edit] = [Replace(read, lambda _: cst.parse_expression(source)) for read in reads]
    return Proposal(f"add `{source}` itself, with its graph, and not the number", TERM, gather((view, edits)))


def _read_by(view: View, top: cst.BaseExpression, name: str) -> Iterator[cst.Call]:
    """Calls that make a tensor of what `name` holds, alone or scaled."""
    for unit in walk(body_of(view, top)):
        for read in reads_of(unit.node, name):
            arg = view.parents.get(read)
            while isinstance(arg, cst.BinaryOperation | cst.UnaryOperation):
                arg = view.parents.get(arg)
            call = view.parents.get(arg) if isinstance(arg, cst.Arg) else None
            if isinstance(call, cst.Call) and function_of(call) in MAKERS and call.args[0] is arg:
                yield call


def _from_tensors(view: View, call: cst.Call, name: str, cut: Cut) -> list[Edit]:
    """``torch.stack(losses)`` for a list, the value itself for a single one."""
    if _filled(view, name):
        return _stacked(view, call, cut)
    top = outermost(view, call)
    small = view.small_statement(top)
    if isinstance(small, cst.Assign) and small.value is top and dotted(small.targets[0].target) == name:
        return [*statement_gone(view, small)]
    return [put(view, top, innermost(call))]


def _stacked(view: View, call: cst.BaseExpression, cut: Cut) -> list[Edit]:
    """The tensors of a list as one: ``torch.tensor`` takes each for a number, whatever dimensions it has."""
    assert isinstance(call, cst.Call)
    given, row = call.args[0].value, len(cut.ref.shape) == 1
    nested = isinstance(given, cst.List) and any(_is_list(view, e.value) for e in given.elements)
    whole = of_torch(view, "cat" if row and not nested else "stack")
    part = of_torch(view, "cat" if row else "stack")

    def flat(made: cst.Call) -> cst.Call:
        return cst.Call(cst.Attribute(made, cst.Name("flatten"))) if len(cut.ref.shape) > 1 else made

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        first = node.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        if isinstance(first.value, cst.List):  # the lists in it are tensors, too
            elements = [
                e.with_changes(value=flat(cst.Call(part.expression, [cst.Arg(e.value)])))
                if _is_list(view, e.value)
                else e
                for e in first.value.elements
            ]
            first = first.with_changes(value=first.value.with_changes(elements=elements))
        made = node.with_changes(func=whole.expression, args=[first])
        return made if nested else flat(made)

    top = outermost(view, call)
    edits = whole.edits or (part.edits if nested else ())
    return [Replace(top, build if top is call else lambda _: build(call)), *edits]
