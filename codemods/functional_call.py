"""See :class:`FunctionalCall`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, Replace, View, exchange
from gradfix.rewrite.adapted import LISTED, Adapted, Update, adapted, asked_elsewhere, called_unseen
from gradfix.rewrite.blocks import of_torch
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.callers import Part
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.recording import stops, without_context
from gradfix.rewrite.spelling import descendants, unused
from gradfix.rewrite.statements import block_of, take_away, unit_in, units
from gradfix.verdict import GAINS


class FunctionalCall(Codemod):
    """Adapt weights instead of a copy: `torch.func.functional_call(model, weights, inputs)`.

    Why: meta-learning differentiates a loss of adapted weights by the weights they were adapted from. A copy of the
    model (`copy.deepcopy`) that is updated through `.data` or under `no_grad` has no way back to it: its parameters get
    the gradients, and the optimizer of the model steps without one. `w - rate * g` in a dictionary of weights, with
    which the model is called, keeps the way.

    When not: where the copy's gradients are handed to the model by hand (first-order MAML), or the model moves
    towards the copy (Reptile).
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import copy
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    fast = copy.deepcopy(net)
    inner = fast(x).pow(2).mean()
    gradients = torch.autograd.grad(inner, fast.parameters(), create_graph=True)
    for p, g in zip(fast.parameters(), gradients):
        p.data = p.data - 0.1 * g  # conflict: cut-graph
    loss = (fast(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import copy
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    weights = dict(net.named_parameters())

    def fast(*inputs):
        return torch.func.functional_call(net, weights, inputs)

    inner = fast(x).pow(2).mean()
    gradients = torch.autograd.grad(inner, weights.values(), create_graph=True)
    for (name, p), g in zip(weights.items(), gradients):
        weights[name] = p - 0.1 * g  # conflict: cut-graph
    loss = (fast(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "updated-copies":
            return
        sites = [label.stack[-1] for label in conflict.labels if label.role == "cut" and label.stack]
        copies = adapted(project, sites) or []
        parts: list[Part] = []
        for copy in copies:
            here, there = _functional(copy), _modes(project, copy)
            if not here or there is None or called_unseen(project, copy):
                return
            parts += [(copy.view, here), *there]
        if parts:
            modules = ", ".join(f"`{copy.module}`" for copy in copies)
            yield Proposal(f"call {modules} with weights that are adapted, not a copy", GAINS, gather(*parts))


def _modes(project: Project, copy: Adapted) -> list[Part] | None:
    """The modes that callers put the copy in are its module's, where the function that gives it to them says first
    which it is in; None where they ask for more."""
    asked = asked_elsewhere(project, copy)
    chosen = [n for n in descendants(copy.body) if isinstance(n, cst.Attribute) and _mode(copy.view, n)]
    own = any(dotted(n.value) == copy.name for n in chosen) and copy.module.startswith("self.")
    home = copy.view.enclosing(copy.made[0].node, cst.ClassDef)
    for view, attribute in asked:
        if not own or not _mode(view, attribute) or view.enclosing(attribute, cst.ClassDef) is not home:
            return None
    return [
        (view, [Replace(attribute.value, lambda _: cst.parse_expression(copy.module))])
        for view, attribute in asked
    ]


def _mode(view: View, attribute: cst.Attribute) -> bool:
    """``copy.train()``, ``copy.eval()``."""
    call = view.parents[attribute]
    return attribute.attr.value in ("train", "eval") and isinstance(call, cst.Call) and call.func is attribute


def _functional(copy: Adapted) -> list[Edit]:
    """The copy as a function: its module, called with weights that the updates make anew. Nothing where more is asked
    of it than to be called, to list its parameters, or to be in a mode."""
    view, body = copy.view, copy.body
    weights, key = unused(view, "weights", body), unused(view, "name", body)
    looped = {u.listing for u in copy.updates}
    own = {n for unit in copy.made for n in descendants(unit.node)}
    edits: list[Edit] = []
    for use in [
        n for n in descendants(body) if isinstance(n, cst.Attribute) and dotted(n.value) == copy.name
    ]:
        call, how = view.parents[use], use.attr.value
        if use in own or call in looped:
            continue
        if not isinstance(call, cst.Call) or call.func is not use:
            return []
        if _mode(view, use):
            edits.append(Replace(use.value, lambda _: cst.parse_expression(copy.module)))
        elif how in LISTED and not call.args:
            values = cst.Attribute(cst.Name(weights), cst.Name(LISTED[how]))
            edits.append(Replace(use, lambda _, values=values: values))  # type: ignore[misc]
        else:
            return []
    for update in copy.updates:
        changed = _made_anew(update, weights, key)
        if not changed:
            return []
        edits += changed
    return [*edits, *_called(copy, weights)]


def _made_anew(update: Update, weights: str, key: str) -> list[Edit]:
    """``for (name, p), g in zip(weights.items(), grads): weights[name] = p - rate * g``."""
    holder, written, edits = update.holder, cst.Name(update.written), list[Edit]()
    named = cast(cst.Attribute, update.listing.func).attr.value == "named_parameters"
    if named:
        pair = [e.value for e in holder.elements] if isinstance(holder, cst.Tuple) else []
        if len(pair) != 2 or not isinstance(pair[0], cst.Name) or dotted(pair[1]) != update.written:
            return []
        key = pair[0].value
    elif dotted(holder) != update.written:
        return []
    else:
        bare = holder is update.loop.target
        both = cst.Tuple(
            [cst.Element(cst.Name(key)), cst.Element(written)],
            lpar=[] if bare else [cst.LeftParen()],
            rpar=[] if bare else [cst.RightParen()],
        )
        edits.append(Replace(holder, lambda _: both))
    items = cst.Call(cst.Attribute(cst.Name(weights), cst.Name("items")))
    place = cst.Subscript(cst.Name(weights), [cst.SubscriptElement(cst.Index(cst.Name(key)))])
    anew = cst.Assign([cst.AssignTarget(place)], update.value)
    edits.append(Replace(update.listing, lambda _: items))
    edits.append(
        Replace(update.small, lambda now: anew.with_changes(semicolon=getattr(now, "semicolon", None)))
    )
    block = update.view.enclosing(update.loop, cst.With)
    if block is not None and any(stops(item.item) for item in block.items):
        if [u.node for u in units(block.body)] != [update.loop]:
            return []
        edits.append(without_context(block))
    return edits


def _called(copy: Adapted, weights: str) -> list[Edit]:
    """A dictionary of the weights and a function of the copy's name, in place of what makes the copy."""
    view, (first, *others) = copy.view, copy.made
    block = block_of(view, first.node)
    at = unit_in(view, block, first.node) if block is not None else None
    alone = isinstance(first.line, cst.SimpleStatementLine) and len(first.line.body) == 1
    if block is None or at is None or not alone:
        return []
    called = of_torch(view, "func.functional_call")
    words = any(
        a.keyword is not None or a.star == "**"
        for n in descendants(view.module)
        if isinstance(n, cst.Call) and dotted(n.func) == copy.name
        for a in n.args
    )
    given = "*inputs, **words" if words else "*inputs"
    passed = "inputs, words" if words else "inputs"
    code = view.module.code_for_node(called.expression)
    define = cst.parse_statement(
        f"def {copy.name}({given}):\n    return {code}({copy.module}, {weights}, {passed})\n",
        config=view.module.config_for_parsing,
    )
    gap = cst.EmptyLine(indent=False)
    define = cast(cst.FunctionDef, define).with_changes(leading_lines=[gap])
    held = cst.parse_statement(f"{weights} = dict({copy.module}.named_parameters())")
    assigned = cast(cst.SimpleStatementLine, held).body[0]
    edits: list[Edit] = [
        exchange(first.node, assigned),
        Insert(first.line, after=(define,)),
        *called.edits,
    ]
    for unit in others:
        edits += take_away(unit, view)
    gone = {id(u.node) for u in others}
    behind = [u for u in units(block)[at + 1 :] if id(u.node) not in gone]
    if behind and not getattr(behind[0].line, "leading_lines", ()):
        edits.append(Replace(behind[0].line, lambda now: now.with_changes(leading_lines=[gap])))
    return edits
