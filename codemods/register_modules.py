"""See :class:`RegisterModules`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import torch_names
from gradfix.rewrite.statements import dotted
from gradfix.tape import Optimizer

HELD = Effect("adds-gradient", "the optimizer trains the layers that the list holds, too")
_MAPS = (cst.Dict, cst.DictComp)
_ROWS = (cst.List, cst.ListComp, cst.Tuple)


class RegisterModules(Codemod):
    """Keep layers in an `nn.ModuleList` or `nn.ModuleDict` (parameters in an `nn.ParameterList`), not in a plain list.

    Why: `parameters()`, `to()`, `train()` and `state_dict()` know only what is registered: an attribute that is a
    module or a parameter itself. What a plain list or dictionary holds gets gradients, is not stepped, is not moved to
    the GPU and not saved, without a word.

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
        names = [r.name for r in made.unregistered]
        attributes = {n.partition("[")[0].rpartition(".")[2]: n.partition("]")[2] for n in names}
        edits: dict[str, tuple[Edit, ...]] = {}
        said: list[str] = []
        for view in filter(None, map(project.view, project.files)):
            for node in view.parents:
                attribute = _bound(node)
                value = node.value if isinstance(node, (cst.Assign, cst.AnnAssign)) else None
                prefix = _prefix(view) if attribute in attributes else None
                if (
                    value is None
                    or attribute is None
                    or prefix is None
                    or not isinstance(value, (*_MAPS, *_ROWS))
                ):
                    continue
                kind = "Dict" if isinstance(value, _MAPS) else "List"
                called = f"{prefix}{'Module' if attributes[attribute] else 'Parameter'}{kind}"
                edits[view.path] = (*edits.get(view.path, ()), _into(value, called))
                said.append(f"`{called}`")
        if edits:
            where = " and ".join(f"`{a}`" for a in sorted(attributes))
            yield Proposal(f"make {where} a {' and a '.join(dict.fromkeys(said))}", HELD, edits)


def _bound(node: cst.CSTNode) -> str | None:
    """``layers`` of ``self.layers = …``."""
    if isinstance(node, cst.AnnAssign):
        target: cst.BaseExpression = node.target
    elif isinstance(node, cst.Assign) and len(node.targets) == 1:
        target = node.targets[0].target
    else:
        return None
    return target.attr.value if isinstance(target, cst.Attribute) and dotted(target.value) == "self" else None


def _prefix(view: View) -> str | None:
    """How the file spells what stands before ``Module``: ``nn.``."""
    for node in view.parents:
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                name = dotted(base.value) or ""
                if name.endswith(".Module"):
                    return name.removesuffix("Module")
    return "torch.nn." if "torch" in torch_names(view) else None


def _into(value: cst.BaseExpression, called: str) -> Edit:
    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        given = node
        if isinstance(node, (cst.List, cst.Tuple, cst.Dict)) and not node.elements:
            return cst.Call(cst.parse_expression(called))
        return cst.Call(cst.parse_expression(called), [cst.Arg(given)])

    return Replace(value, build)
