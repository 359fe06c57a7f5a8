"""See :class:`RegisterModules`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.stray import left_out
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.drawn import views
from gradfix.rewrite.holders import as_list, bound, holders
from gradfix.rewrite.registering import Held, added, by_strings, how, in_call, within
from gradfix.rewrite.spelling import drop_keyword, function_of, torch_names
from gradfix.rewrite.statements import dotted
from gradfix.tape import Optimizer
from gradfix.wording import listed

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
        attributes: dict[str, list[tuple[str, ...]]] = {}
        leaves: dict[str, set[int]] = {}
        left = {r.storage for r in left_out(project.graph, made)}
        for ref, each in zip(made.unregistered, made.attributes, strict=True):
            if ref.storage in left:
                attributes.setdefault(each[0], []).append(each)
                leaves.setdefault(each[0], set()).add(ref.storage)
        edits: dict[str, list[Edit]] = {}
        said: dict[str, None] = {}
        for attribute, all_of_it in attributes.items():
            held = how(all_of_it)
            kinds = holders(project, attribute, leaves[attribute])
            made_of = _edits(project, attribute, held, kinds) if held is not None else None
            if made_of is None:
                return
            said[f"`{made_of[0]}`"] = None
            for path, some in made_of[1].items():
                edits.setdefault(path, []).extend(some)
        where = listed([f"`{a}`" for a in sorted(attributes)])
        summary = f"make {where} {'an' if len(attributes) == 1 else 'each an'} {' or '.join(said)}"
        yield Proposal(summary, HELD, {path: tuple(some) for path, some in edits.items()})


def _edits(
    project: Project, attribute: str, held: Held, kinds: tuple[cst.ClassDef, ...]
) -> tuple[str, dict[str, list[Edit]]] | None:
    """What the attribute comes to be, and by which edits."""
    if held.types and as_list(project, attribute):
        return None
    edits: dict[str, list[Edit]] = {}
    called = ""
    for view in views(project):
        prefix = _prefix(view)
        for node in view.parents:
            name, value = bound(node)
            if (
                name != attribute
                or value is None
                or view.enclosing(node, cst.ClassDef) not in kinds
                or not prefix
            ):
                continue
            names = [f"{prefix}{kind}" for kind in held.kinds] or [f"{prefix}Parameter"]
            kept = value if held.types else _values(value)
            inner = within(value, held, names[-1]) if held.types else []
            if kept is not None and inner is not None:
                edits.setdefault(view.path, []).extend((*inner, _into(value, kept, names[0])))
                called = "` of `".join(names)
    if not edits:
        return None
    for more in (
        added(project, attribute, kinds, called.rpartition("`")[2]) if len(held.types) > 1 else {},
        by_strings(project, attribute, kinds) if held.whole else {},
    ):
        if more is None:
            return None
        for path, some in more.items():
            edits.setdefault(path, []).extend(some)
    return called, edits


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
    return Replace(value, lambda node: in_call(node if kept is value else kept.deep_clone(), called))
