"""See :class:`RegisterModules`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.holders import as_list, bound, holders
from gradfix.rewrite.spelling import drop_keyword, function_of, torch_names
from gradfix.rewrite.statements import dotted
from gradfix.tape import Optimizer

HELD = Effect("adds-gradient", "the optimizer trains what the module holds there, too")


class RegisterModules(Codemod):
    """Keep layers in an `nn.ModuleList` or `nn.ModuleDict`; make an `nn.Parameter` of a tensor that is to be trained.

    Why: `parameters()`, `to()`, `train()` and `state_dict()` know only what is registered: an attribute that is a
    module or a parameter itself. A tensor that merely requires a gradient, and what a plain list or dictionary holds,
    is not stepped, not moved to the GPU and not saved, without a word.

    When not: where a network is kept in a list so that it is not registered (a teacher, a loss's own features). Then
    freeze it.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.layers = [nn.Linear(3, 3) for _ in range(2)]

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(torch.tanh(x))
        return x


net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)  # conflict: stray-optimizer
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(torch.tanh(x))
        return x


net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)  # conflict: stray-optimizer
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        made = conflict.event
        if conflict.pattern != "unregistered" or not isinstance(made, Optimizer):
            return
        # what stands behind the item, a layer's parameter; None for no item
        attributes: dict[str, str | None] = {}
        leaves: dict[str, set[int]] = {}
        for ref, end in zip(made.unregistered, made.attributes, strict=True):
            attribute, item, rest = end.partition("[")
            attributes[attribute] = rest.partition("]")[2] if item else None
            leaves.setdefault(attribute, set()).add(ref.storage)
        kinds = {name: holders(project, name, own) for name, own in leaves.items()}
        if any(inner is not None and as_list(project, name) for name, inner in attributes.items()):
            return
        edits: dict[str, list[Edit]] = {}
        said: dict[str, None] = {}
        for view in filter(None, map(project.view, project.files)):
            for node in view.parents:
                attribute, value = bound(node)
                if attribute not in attributes or view.enclosing(node, cst.ClassDef) not in kinds[attribute]:
                    continue
                prefix = _prefix(view)
                kept = _registered(value, attributes[attribute]) if value and prefix else None
                if value is not None and kept is not None:
                    edits.setdefault(view.path, []).append(_into(value, kept[1], f"{prefix}{kept[0]}"))
                    said[f"`{prefix}{kept[0]}`"] = None
        if edits:
            where = " and ".join(f"`{a}`" for a in sorted(attributes))
            summary = f"make {where} {'an' if len(attributes) == 1 else 'each an'} {' or '.join(said)}"
            yield Proposal(summary, HELD, {path: tuple(some) for path, some in edits.items()})


def _registered(value: cst.BaseExpression, inner: str | None) -> tuple[str, cst.BaseExpression] | None:
    """What of torch.nn's registers it, and what that is made of."""
    if inner is None:
        kept = _values(value)
        return None if kept is None else ("Parameter", kept)
    what = "Module" if inner else "Parameter"
    if isinstance(value, (cst.Dict, cst.DictComp)):
        return f"{what}Dict", value
    return (f"{what}List", value) if isinstance(value, (cst.List, cst.ListComp, cst.Tuple)) else None


def _prefix(view: View) -> str | None:
    """How the file spells what stands before ``Module``: ``nn.``."""
    for node in view.parents:
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                name = dotted(base.value) or ""
                if name.endswith(".Module"):
                    return name.removesuffix("Module")
    return "torch.nn." if "torch" in torch_names(view) else None


def _values(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a tensor that was made to require a gradient is made of: ``torch.zeros(3)`` of ``torch.zeros(3,
    requires_grad=True)`` and of ``torch.zeros(3).requires_grad_()``."""
    if not isinstance(value, cst.Call):
        return None
    if function_of(value) == "requires_grad_" and isinstance(value.func, cst.Attribute) and not value.args:
        return value.func.value
    plain = drop_keyword(value, "requires_grad")
    if plain is not None and function_of(plain) == "Variable":
        return plain.args[0].value if len(plain.args) == 1 else None
    return plain


def _into(value: cst.BaseExpression, kept: cst.BaseExpression, called: str) -> Edit:
    empty = isinstance(kept, (cst.List, cst.Tuple, cst.Dict)) and not kept.elements

    def build(node: cst.CSTNode) -> cst.CSTNode:
        given = node if kept is value else kept.deep_clone()
        assert isinstance(given, cst.BaseExpression)
        return cst.Call(cst.parse_expression(called), [] if empty else [cst.Arg(given)])

    return Replace(value, build)
