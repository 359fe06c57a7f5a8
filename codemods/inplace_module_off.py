"""See :class:`InplaceModuleOff`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.held import kept_beyond
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import function_of, inplace_argument, small_statements, without_arguments
from gradfix.rewrite.tensors import is_renormalised
from gradfix.rewrite.writes import write_of

# Where `inplace` stands among the positional arguments of torch.nn's constructors.
_POSITION = {
    "ReLU": 0,
    "ReLU6": 0,
    "SELU": 0,
    "SiLU": 0,
    "Mish": 0,
    "Hardswish": 0,
    "Hardsigmoid": 0,
    "LeakyReLU": 1,
    "ELU": 1,
    "CELU": 1,
    "Dropout": 1,
    "Dropout1d": 1,
    "Dropout2d": 1,
    "Dropout3d": 1,
    "AlphaDropout": 1,
    "FeatureAlphaDropout": 1,
    "RReLU": 2,
    "Hardtanh": 2,
    "Threshold": 2,
}
_OPS = {
    "relu_": ("ReLU",),
    "leaky_relu_": ("LeakyReLU",),
    "hardtanh_": ("ReLU6", "Hardtanh"),
    "relu6_": ("ReLU6",),
    "elu_": ("ELU", "CELU", "SELU"),
    "celu_": ("CELU",),
    "selu_": ("SELU",),
    "silu_": ("SiLU",),
    "mish_": ("Mish",),
    "hardswish_": ("Hardswish",),
    "hardsigmoid_": ("Hardsigmoid",),
    "rrelu_with_noise_": ("RReLU",),
    "threshold_": ("Threshold",),
    "dropout_": ("Dropout",),
    "alpha_dropout_": ("AlphaDropout",),
    "feature_dropout_": ("Dropout1d", "Dropout2d", "Dropout3d"),
    "feature_alpha_dropout_": ("FeatureAlphaDropout",),
}
_SEVERAL = 4  # more places than that are switched off together only


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A constructor's call with ``inplace=True`` in a file."""

    view: View
    call: cst.Call


class InplaceModuleOff(Codemod):
    """Build a module without `inplace=True` where its write destroys what the module before it saved.

    Why: `nn.ReLU(inplace=True)` saves memory by overwriting its input. After a convolution, a linear layer or
    a normalisation that is sound: none of them needs its result for its backward. After a sigmoid, a tanh,
    another in-place activation, or where the same tensor also goes somewhere else, the value that was
    overwritten was saved.

    When not: everywhere else: the other in-place modules of the program do no harm and stay.
    """

    kinds = ("stale-saved-tensor", "silent-overwrite", "leaf-write", "forbidden-view-write")
    effects = ("none", "changes-value")
    examples = (
        Example(
            """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.ReLU(inplace=True))
net(torch.ones(1, 2)).sum().backward()  # conflict: stale-saved-tensor
""",
            """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.ReLU())
net(torch.ones(1, 2)).sum().backward()  # conflict: stale-saved-tensor
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.write is None or conflict.write.optimizer is not None:
            return
        if not conflict.write.module or is_renormalised(conflict) or write_of(conflict, project) is not None:
            return
        holder = kept_beyond(conflict.write.stack, project)
        words = f"`{holder}` has the input of the module as it was before it"
        effect = Effect("changes-value", words) if holder else NONE
        finder = _Finder(project, conflict.write.op)
        places = finder.constructors(conflict.write.module)
        for rank, place in enumerate(places[:_SEVERAL]):
            edit = exchange(place.call, _off(place.call))
            code = " ".join(place.view.module.code_for_node(_off(place.call)).split())
            yield Proposal(f"not in place: `{code}`", effect, {place.view.path: (edit,)}, rank)
        if len(places) > 1:
            edits: dict[str, tuple[Edit, ...]] = {}
            for place in places:
                edit = exchange(place.call, _off(place.call))
                edits[place.view.path] = (*edits.get(place.view.path, ()), edit)
            yield Proposal("none of these modules in place", effect, edits, _SEVERAL)


def _flag(call: cst.Call) -> cst.Arg | None:
    """The argument that says ``inplace=True``, by keyword or in its place."""
    if (named := inplace_argument(call)) is not None:
        return named
    at = _POSITION.get(function_of(call))
    if at is None or at >= len(call.args) or any(a.keyword or a.star for a in call.args[: at + 1]):
        return None
    value = call.args[at].value
    return call.args[at] if isinstance(value, cst.Name) and value.value == "True" else None


def _off(call: cst.Call) -> cst.Call:
    flag = _flag(call)
    off = without_arguments(call, lambda a: a is flag)
    assert off is not None
    return off


class _Finder:
    """Finds the constructor of a module by its dotted name (``net.2``, ``self.features.relu1``)."""

    def __init__(self, project: Project, op: str) -> None:
        self.views = [v for path in project.files if (v := project.view(path)) is not None]
        self.classes = _OPS.get(op.removeprefix("aten.").partition(".")[0].rstrip("_") + "_", ())
        self.exact = False

    def constructors(self, name: str) -> list[Place]:
        """The likeliest first: the one the name leads to (and, in its Sequential, those before it), else all
        that the op may come from in the part of the program that the name leads to."""
        root, *parts = name.split(".")
        for view in self.views:
            for value in self._assigned(view.module, root):
                chain = self._follow(Place(view, value), parts) if isinstance(value, cst.Call) else []
                if chain and self._fits(chain[0]):
                    self.exact = True
                    return [p for p in chain if _flag(p.call) is not None]
        every = [Place(v, c) for v in self.views for c in _calls(v.module) if _flag(c) is not None]
        fitting = [p for p in every if self._fits(p)]
        return fitting or every

    def _fits(self, place: Place) -> bool:
        if _flag(place.call) is None:
            return False
        name = function_of(place.call)
        return not self.classes or name in self.classes or name not in _POSITION

    def _assigned(self, scope: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
        for small in small_statements(scope):
            if isinstance(small, cst.AnnAssign):
                if small.value is not None and dotted(small.target) == name:
                    yield small.value
            elif isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets):
                yield small.value
            elif isinstance(small, cst.Assign) and isinstance(small.value, cst.Tuple):
                for target in small.targets:
                    if isinstance(target.target, cst.Tuple):
                        pairs = zip(target.target.elements, small.value.elements, strict=False)
                        yield from [right.value for left, right in pairs if dotted(left.value) == name]

    def _follow(self, place: Place, parts: list[str]) -> list[Place]:
        """The place `parts` lead to from a call, with the earlier ones of the same Sequential behind it."""
        if not parts:
            return [place]
        call, part = place.call, parts[0]
        made = function_of(call)
        if made in ("Sequential", "ModuleList", "ModuleDict"):
            items = list(_items(call))
            for i, (key, value) in enumerate(items):
                if key == part:
                    found = self._value(place.view, call, value, parts[1:])
                    if len(parts) == 1:
                        found += [
                            Place(place.view, v) for _, v in reversed(items[:i]) if isinstance(v, cst.Call)
                        ]
                    return found
            return []
        for view in self.views:
            for node in view.module.body:
                if isinstance(node, cst.ClassDef) and node.name.value == made:
                    for value in self._assigned(node, f"self.{part}"):
                        if found := self._value(view, value, value, parts[1:]):
                            return found
                if isinstance(node, cst.FunctionDef) and node.name.value == made:
                    for value in _returned(node):
                        if found := self._value(view, value, value, parts):
                            return found
        if made in (
            "to",
            "cuda",
            "cpu",
            "double",
            "float",
            "half",
            "train",
            "eval",
            "apply",
            "DataParallel",
            "compile",
        ):
            inner = call.args[0].value if made in ("DataParallel", "compile") else call.func.value  # type: ignore[attr-defined]
            return self._value(place.view, call, inner, parts[1:] if parts[0] == "module" else parts)
        return []

    def _value(
        self, view: View, where: cst.CSTNode, value: cst.BaseExpression, parts: list[str]
    ) -> list[Place]:
        if isinstance(value, cst.Call):
            return self._follow(Place(view, value), parts)
        scope = view.enclosing(where, cst.FunctionDef) or view.module
        for assigned in self._assigned(scope, dotted(value)) if dotted(value) else ():
            if isinstance(assigned, cst.Call) and (found := self._follow(Place(view, assigned), parts)):
                return found
        return []


def _returned(function: cst.FunctionDef) -> list[cst.BaseExpression]:
    returns = [s for s in small_statements(function) if isinstance(s, cst.Return)]
    return [s.value for s in returns if s.value is not None]


def _items(call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """(key, module) of a Sequential's or ModuleList's arguments, as far as they are spelled out."""
    values = [a.value for a in call.args]
    first = values[0] if len(values) == 1 else None
    if isinstance(first, cst.Call) and first.args and function_of(first) == "OrderedDict":
        values = [first.args[0].value]  # OrderedDict([("relu", nn.ReLU()), ...])
    if len(values) == 1 and isinstance(values[0], cst.List):
        elements = [e.value for e in values[0].elements]
        if elements and all(isinstance(e, cst.Tuple) and len(e.elements) == 2 for e in elements):
            for e in elements:
                key, value = e.elements[0].value, e.elements[1].value  # type: ignore[attr-defined]
                if isinstance(key, cst.SimpleString):
                    yield str(key.evaluated_value), value
            return
        values = elements
    if len(values) == 1 and isinstance(values[0], cst.Dict):
        for element in values[0].elements:
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                yield str(element.key.evaluated_value), element.value
        return
    for i, value in enumerate(values):
        if i < len(call.args) and call.args[i].star:
            return
        yield str(i), value


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    for child in node.children:
        if isinstance(child, cst.Call) and function_of(child)[:1].isupper():
            yield child
        yield from _calls(child)
