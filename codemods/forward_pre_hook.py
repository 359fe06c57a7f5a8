"""See :class:`ForwardPreHook`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.registered import Registration, registrations
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.tensors import is_leaf

EARLIER = {
    "register_forward_hook": "register_forward_pre_hook",
    "register_module_forward_hook": "register_module_forward_pre_hook",
}
BEFORE = Effect("moved-write", "the hook writes before the forward pass, which uses what it wrote")


class ForwardPreHook(Codemod):
    """Register a hook that writes a module's own weights before the forward: `register_forward_pre_hook`.

    Why: a forward hook is called when the module has computed its output, and has saved its weights for the backward.
    A hook that clamps, masks or renormalises them overwrites what was saved. A forward pre-hook is called before: the
    same write harms nothing, and the pass uses the weights that were written.

    When not: where the hook needs the output.
    """

    kinds = ("silent-overwrite", "stale-saved-tensor", "leaf-write")
    effects = ("moved-write",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def clip(module, inputs, output):
    module.weight.data.clamp_(-0.1, 0.1)  # conflict: silent-overwrite


net[2].register_forward_hook(clip)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = (net(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def clip(module, inputs):
    module.weight.data.clamp_(-0.1, 0.1)  # conflict: silent-overwrite


net[2].register_forward_pre_hook(clip)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = (net(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            "moved-write",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write = conflict.write
        if write is None or write.optimizer is not None or write.how == "module":
            return
        if not is_leaf(project, write.ref.storage):
            return
        for view, node in reversed(list(project.frames(write.stack))):
            function = view.function(node)
            found = registrations(project, view, function, EARLIER) if function is not None else ()
            if function is None or not found:
                continue
            own = _without_output(view, function, found)
            if own is not None:
                edits: dict[str, tuple[Edit, ...]] = {view.path: own}
                for one in found:
                    edits[one.view.path] = (*edits.get(one.view.path, ()), _earlier(one.call))
                said = f"write before the forward: `{EARLIER[function_of(found[0].call)]}`"
                yield Proposal(said, BEFORE, edits)
            return


def _earlier(call: cst.Call) -> Edit:
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    assert isinstance(name, cst.Name)
    return Replace(name, lambda _: name.with_changes(value=EARLIER[name.value]))


def _without_output(
    view: View, function: cst.FunctionDef | cst.Lambda, found: Sequence[Registration]
) -> tuple[Edit, ...] | None:
    """The hook's signature without the output; None where the hook reads it, or hands out something else (which would
    take the place of the input)."""
    places = {r.bound + (3 if "with_kwargs" in _said(r.call) else 2) for r in found}
    place = min(places)
    named = [*function.params.posonly_params, *function.params.params]
    if len(places) > 1 or any("always_call" in _said(r.call) for r in found):
        return None
    if place >= len(named):
        gathered = isinstance(function.params.star_arg, cst.Param)
        return () if gathered and not list(_returns(function)) else None
    name = named[place].name.value
    back = list(_returns(function))
    every = sum(isinstance(n, cst.Name) and n.value == name for n in descendants(function.body))
    if place < len(named) - 1 or every > len(back) or any(dotted(r.value) != name for r in back if r.value):
        return None
    last = function.body.body[-1] if isinstance(function.body, cst.IndentedBlock) else None
    edits = [
        Replace(each, lambda _: cst.RemoveFromParent())
        if last is not None and view.parents[each] is last
        else exchange(each, cst.Return())
        for each in back
    ]
    return (Replace(function.params, _shortened), *edits)


def _said(call: cst.Call) -> list[str]:
    """Its keywords."""
    return [a.keyword.value for a in call.args if a.keyword is not None]


def _returns(function: cst.FunctionDef | cst.Lambda) -> Iterator[cst.Return]:
    """What hands out a value."""
    for node in descendants(function.body):
        if isinstance(node, cst.Return) and node.value is not None and dotted(node.value) != "None":
            yield node


def _shortened(parameters: cst.CSTNode) -> cst.CSTNode:
    """Without the last of the positional parameters."""
    assert isinstance(parameters, cst.Parameters)
    field = "params" if parameters.params else "posonly_params"
    rest = list(getattr(parameters, field))[:-1]
    if rest:
        last = getattr(parameters, field)[-1].comma
        rest[-1] = rest[-1].with_changes(comma=last)
    return parameters.with_changes(**{field: rest})
