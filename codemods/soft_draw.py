"""See :class:`SoftDraw`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, View, exchange, parenthesized
from gradfix.rewrite.blocks import assignment, copy, line, method, of_torch
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.liveness import dotted, statement_before
from gradfix.rewrite.recording import cut_for_others
from gradfix.rewrite.spelling import function_of, unused
from gradfix.rewrite.statements import body_of, reads_of
from gradfix.tape import Cut

GAINS = Effect(
    "adds-gradient",
    "what is drawn passes the gradient to its probabilities; every value and other gradient stays",
)
ANOTHER = Effect(
    "changes-value", "other actions are drawn, of the same distribution, with a gradient of their own"
)
CASTS = ("float", "double", "to", "type", "type_as", "detach")
SHAPED = ("squeeze", "flatten", "view", "reshape", "long")  # an index, and the same one
SOFT = ("softmax", "_softmax")  # ops that made the probabilities
LOGARITHM = ("log_softmax", "_log_softmax")


class SoftDraw(Codemod):
    """Let the gradient of what was drawn pass to its probabilities.

    Why: an index has no gradient: `argmax()`, `sample()` of a Categorical and `multinomial` give indices, and what
    `one_hot` makes of them is a constant. What only they lead to is never trained. `drawn + (p - p.detach())` has the
    same value, and the derivative of the probabilities (the straight-through estimator, Bengio, Leonard and Courville
    2013); `F.gumbel_softmax(logits, hard=True)` draws anew, and does the same (Jang, Gu and Poole 2016).

    When not: where the draw is an action of an environment, and what it leads to is trained by its log-probability.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient", "changes-value")
    examples = (
        Example(
            """\
import torch
import torch.nn.functional as F

actor, critic = torch.nn.Linear(4, 3), torch.nn.Linear(7, 1)
actor_optimizer = torch.optim.SGD(actor.parameters(), 9.0)
for state in torch.randn(3, 5, 4):
    p = torch.softmax(actor(state), dim=-1)
    action = F.one_hot(p.argmax(dim=-1), 3).float()  # conflict: cut-graph
    loss = -critic(torch.cat([state, action], dim=-1)).mean()
    actor_optimizer.zero_grad()
    loss.backward()
    actor_optimizer.step()
""",
            """\
import torch
import torch.nn.functional as F

actor, critic = torch.nn.Linear(4, 3), torch.nn.Linear(7, 1)
actor_optimizer = torch.optim.SGD(actor.parameters(), 9.0)
for state in torch.randn(3, 5, 4):
    p = torch.softmax(actor(state), dim=-1)
    action = F.one_hot(p.argmax(dim=-1), 3).float()  # conflict: cut-graph
    action = action + (p - p.detach())
    loss = -critic(torch.cat([state, action], dim=-1)).mean()
    actor_optimizer.zero_grad()
    loss.backward()
    actor_optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        cut = conflict.event
        if not isinstance(cut, Cut) or not (
            conflict.pattern == "drawn" or (conflict.pattern == "partly" and cut.how == "discrete")
        ):
            return
        found = project.node(cut.stack[-1])
        index = found[1] if found is not None else None
        if found is None or not isinstance(index, cst.Call):
            return
        view = found[0]
        hot = _hot(view, index)
        record = conflict.record
        soft = _probabilities(view, index, record.op.partition(".")[2] if record is not None else "")
        if hot is None or soft is None:
            return
        probabilities, logits, more = soft
        said = "let the gradient pass straight to the probabilities"
        edits = (*_passed(view, hot, probabilities), *more)
        yield Proposal(said, GAINS, {view.path: edits})
        named = view.small_statement(hot) is view.small_statement(index)
        if others := cut_for_others(cut, conflict.backward, project) if named else []:
            said = f"{said}, and detach it where another loss takes it"
            yield Proposal(said, GAINS, gather((view, edits), *others), 1)
        if logits is not None:
            drawn = f"F.gumbel_softmax({view.code(logits)}, hard=True)"
            gumbel = _gumbel(view, logits)
            if gumbel is not None:
                cuts = gather((view, [exchange(hot, gumbel)]), *others)
                yield Proposal(f"draw with `{drawn}`", ANOTHER, cuts, 2)


def _hot(view: View, index: cst.Call) -> cst.BaseExpression | None:
    """``F.one_hot(index, n).float()``, which `index` goes into, by a name of its own maybe."""
    node: cst.BaseExpression = index
    while (outer := _method_of(view, node, SHAPED)) is not None:
        node = outer
    small = view.small_statement(index)
    if isinstance(small, cst.Assign) and small.value is node and len(small.targets) == 1:
        name, made = dotted(small.targets[0].target), view.statement(small)
        reads = reads_of(body_of(view, index), name) if name else []
        hot = [r for r in reads if _into_one_hot(view, r) and statement_before(view, r, name or "") is made]
        if len(hot) != 1:
            return None
        node = hot[0]
    call = _into_one_hot(view, node)
    if call is None:
        return None
    while True:
        outer = _method_of(view, call, CASTS)
        if outer is None:
            return call if function_of(call) != "one_hot" else None
        call = outer


def _method_of(view: View, node: cst.BaseExpression, names: tuple[str, ...]) -> cst.Call | None:
    """The call of one of these methods of what `node` gives."""
    above = view.parents.get(node)
    outer = (
        view.parents.get(above) if isinstance(above, cst.Attribute) and above.attr.value in names else None
    )
    return outer if isinstance(outer, cst.Call) else None


def _into_one_hot(view: View, node: cst.BaseExpression) -> cst.Call | None:
    arg = view.parents.get(node)
    call = view.parents.get(arg) if isinstance(arg, cst.Arg) else None
    hot = isinstance(call, cst.Call) and function_of(call) == "one_hot" and call.args[0] is arg
    return call if hot else None  # type: ignore[return-value]


def _probabilities(
    view: View, index: cst.Call, op: str
) -> tuple[cst.BaseExpression, cst.BaseExpression | None, tuple[Edit, ...]] | None:
    """The probabilities that the index was drawn by, with what their logits are called, and an import."""
    name = function_of(index)
    func = index.func
    if name == "sample" and isinstance(func, cst.Attribute) and not index.args:
        if dotted(func.value):
            return cst.Attribute(copy(func.value), cst.Name("probs")), None, ()
        made = func.value
        given = made.args[0] if isinstance(made, cst.Call) and len(made.args) == 1 else None
        if given is None or not dotted(given.value) or function_of(made) != "Categorical":  # type: ignore[arg-type]
            return None
        if given.keyword is None or given.keyword.value == "probs":
            return given.value, None, ()
        return _softmax(view, given.value)
    if name == "multinomial" and isinstance(func, cst.Attribute) and op in SOFT:
        function = dotted(func.value) == "torch"
        source = index.args[0].value if function else func.value
        count = index.args[function].value if len(index.args) > function else None
        once = isinstance(count, cst.Integer) and count.value == "1"
        return (source, None, ()) if once and dotted(source) else None
    if name == "argmax" and isinstance(func, cst.Attribute):
        source = func.value if dotted(func.value) != "torch" else index.args[0].value
        if not dotted(source):
            return None
        if op in SOFT:
            return source, None, ()
        if op in LOGARITHM:
            return method(source, "exp"), None, ()
        return _softmax(view, source)
    return None


def _softmax(
    view: View, logits: cst.BaseExpression
) -> tuple[cst.BaseExpression, cst.BaseExpression, tuple[Edit, ...]]:
    named = of_torch(view, "softmax")
    last = cst.Arg(cst.parse_expression("-1"), keyword=cst.Name("dim"), equal=_EQUAL)
    return cst.Call(named.expression, [cst.Arg(copy(logits)), last]), logits, named.edits


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _passed(view: View, hot: cst.BaseExpression, soft: cst.BaseExpression) -> tuple[Edit, ...]:
    """``hot + (soft - soft.detach())``, in a statement of its own where that is named, and so are the probabilities
    where they are computed."""
    before: tuple[Edit, ...] = ()
    small = view.small_statement(hot)
    assert small is not None
    if not isinstance(soft, cst.Name | cst.Attribute):
        name = cst.Name(unused(view, "soft"))
        before = (Insert(small, before=(line(assignment(name, soft)),)),)
        soft = name
    rest = cst.BinaryOperation(copy(soft), cst.Subtract(), method(copy(soft), "detach"))
    if isinstance(small, cst.Assign) and small.value is hot and len(small.targets) == 1:
        target = small.targets[0].target
        if isinstance(target, cst.Name):
            then = assignment(target, cst.BinaryOperation(copy(target), cst.Add(), parenthesized(rest)))
            return (*before, Insert(small, after=(line(then),)))
    total = cst.BinaryOperation(copy(hot), cst.Add(), parenthesized(rest))
    alone = isinstance(view.parents[hot], cst.Arg | cst.Assign | cst.Return | cst.Element)
    return (*before, exchange(hot, total if alone else parenthesized(total)))


def _gumbel(view: View, logits: cst.BaseExpression) -> cst.BaseExpression | None:
    """``F.gumbel_softmax(logits, hard=True)``, by the name that the file has for torch.nn.functional."""
    function = next(
        (dotted(n.func) for n in view.parents if isinstance(n, cst.Call) and function_of(n) == "one_hot"),
        None,
    )
    if not function or "." not in function:
        return None
    hard = cst.Arg(cst.Name("True"), keyword=cst.Name("hard"), equal=_EQUAL)
    return cst.Call(
        cst.parse_expression(function.rpartition(".")[0] + ".gumbel_softmax"), [cst.Arg(copy(logits)), hard]
    )
