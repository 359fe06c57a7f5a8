"""See :class:`LeafAfterConversion`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.blocks import as_receiver, method
from gradfix.rewrite.liveness import dotted, reads, statement_before
from gradfix.rewrite.spelling import drop_keyword, function_of, small_statements, without_arguments
from gradfix.tape import GradRead

LEAF = Effect("adds-gradient", "the converted tensor is the leaf and gets the gradient")

# Factories that draw nothing: a dtype given to them gives the values that converting afterwards would.
_PLAIN = ("zeros", "ones", "full", "tensor", "eye", "arange", "linspace")
_DTYPES = {"double": "double", "float": "float", "half": "half", "bfloat16": "bfloat16"}


class LeafAfterConversion(Codemod):
    """Convert first, then make it a leaf that requires grad.

    Why: `.to(device)`, `.double()`, `* 0.1` are ops: what they give for a tensor that requires grad is the
    result of an op, not a leaf. It never gets a `.grad`, no optimizer takes it, and as an attribute of a
    module it is no parameter. `torch.ones(3, dtype=torch.double, requires_grad=True)`,
    `nn.Parameter(t.to(device))` are leaves.

    When not: where the leaf before the conversion is what is trained, and the converted tensor is made anew
    in every iteration.
    """

    kinds = ("missing-grad", "cut-graph", "stray-optimizer")
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(3, requires_grad=True).double()
optimizer = torch.optim.SGD([w], 0.1)  # conflict: missing-grad
for step in range(3):
    loss = (w - 3).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

w = torch.ones(3, dtype=torch.double, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)  # conflict: missing-grad
for step in range(3):
    loss = (w - 3).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            "adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        for view, value in _conversions(conflict, project):
            rank = 0
            for new, more in _leaves(view, value):
                code = " ".join(view.module.code_for_node(new).split())
                edits: tuple[Edit, ...] = (exchange(value, new), *more)
                yield Proposal(f"convert first: `{code}`", LEAF, {view.path: edits}, rank)
                rank += 1
            if rank:
                return


def _conversions(conflict: Conflict, project: Project) -> Iterator[tuple[View, cst.BaseExpression]]:
    """The assigned expressions that may have made the non-leaf: where the tape says it was made, else where
    the name whose .grad is read was bound."""
    for site in reversed(conflict.record.stack) if conflict.record is not None else ():
        found = project.node(site)
        small = found[0].small_statement(found[1]) if found else None
        if found and isinstance(small, cst.Assign):
            yield found[0], small.value
        elif found and isinstance(found[1], cst.BaseExpression):
            yield found[0], found[1]
    if conflict.record is None and conflict.pattern == "parameter":
        yield from _given(conflict, project)
    if isinstance(conflict.event, GradRead) and conflict.event.stack:
        found = project.node(conflict.event.stack[-1])
        node = found[1] if found else None
        if found and isinstance(node, cst.Attribute) and dotted(node.value):
            made = statement_before(found[0], node, dotted(node.value))
            for small in made.body if isinstance(made, cst.SimpleStatementLine) else ():
                if isinstance(small, cst.Assign):
                    yield found[0], small.value


def _given(conflict: Conflict, project: Project) -> Iterator[tuple[View, cst.BaseExpression]]:
    """What the names were bound to that stand in the call of the optimizer."""
    found = project.node(conflict.at)
    if found is None:
        return
    view, node = found
    for name in sorted(reads(node)):
        made = statement_before(view, node, name)
        for small in made.body if isinstance(made, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets):
                yield view, small.value


def _leaves(view: View, value: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, tuple[Edit, ...]]]:
    """Expressions that give the converted tensor as a leaf, for one that converts a leaf."""
    core = next((c for c in _core(value) if c is not value), None)
    if core is None:
        return
    if isinstance(core, cst.Name | cst.Attribute):
        if _only_converts(view, value, core):
            yield from _named(view, value, core)
        return
    call = cast(cst.Call, core)
    name = function_of(call)
    if name == "Parameter":
        inner = call.args[0].value
        args = [
            call.args[0].with_changes(value=_put(value, core, as_receiver(inner))),
            *call.args[1:],
        ]
        yield call.with_changes(args=args), ()
    elif name == "requires_grad_":
        inner = cast(cst.Attribute, call.func).value
        yield method(_put(value, core, inner), "requires_grad_"), ()
    else:
        plain = drop_keyword(call, "requires_grad")
        assert plain is not None
        if (typed := _with_keyword(value, call)) is not None:
            yield typed, ()
        yield method(_put(value, core, plain), "requires_grad_"), ()


def _only_converts(view: View, value: cst.BaseExpression, core: cst.Name | cst.Attribute) -> bool:
    """Whether the assignment takes the name's place (``w = w.to(device)``), or is the only one to read it."""
    name = dotted(core)
    if f"{name}.grad" in reads(value):
        return False  # an update by hand
    small = view.small_statement(value)
    if isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets):
        return True
    return sum(name in reads(s) for s in small_statements(view.module)) == 1


def _core(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The leaf inside a chain of conversions and arithmetic with numbers."""
    if isinstance(value, cst.Call):
        if _tracks(value) or function_of(value) in ("Parameter", "requires_grad_"):
            yield value
        elif isinstance(value.func, cst.Attribute) and value.func.attr.value not in (
            "detach",
            "clone",
            "sum",
            "mean",
        ):
            yield from _core(value.func.value)
    elif isinstance(value, cst.BinaryOperation):
        yield from _core(value.left)
        yield from _core(value.right)
    elif isinstance(value, cst.UnaryOperation):
        yield from _core(value.expression)
    elif isinstance(value, cst.Name | cst.Attribute) and dotted(value):
        yield value


def _tracks(call: cst.Call) -> bool:
    return any(
        a.keyword is not None
        and a.keyword.value == "requires_grad"
        and isinstance(a.value, cst.Name)
        and a.value.value == "True"
        for a in call.args
    )


def _put(
    value: cst.BaseExpression, core: cst.BaseExpression, other: cst.BaseExpression
) -> cst.BaseExpression:
    """`value` with `other` where `core` stands."""
    return other if value is core else cast(cst.BaseExpression, value.deep_replace(core, other))


def _with_keyword(value: cst.BaseExpression, call: cst.Call) -> cst.Call | None:
    """``torch.ones(3, dtype=torch.double, requires_grad=True)`` for ``torch.ones(3,
    requires_grad=True).double()``."""
    if (
        not isinstance(value, cst.Call)
        or not isinstance(value.func, cst.Attribute)
        or value.func.value is not call
    ):
        return None
    keywords = {a.keyword.value for a in call.args if a.keyword is not None}
    if function_of(call) not in _PLAIN or not isinstance(call.func, cst.Attribute):
        return None
    torch = call.func.value
    conversion = value.func.attr.value
    if conversion in _DTYPES and not value.args and "dtype" not in keywords:
        return _inserted(call, "dtype", cst.Attribute(torch, cst.Name(_DTYPES[conversion])))
    if conversion == "to" and len(value.args) == 1:
        given = value.args[0]
        named = given.keyword.value if given.keyword is not None else ""
        kind = named or ("dtype" if _is_dtype(given.value) else "device")
        if kind in ("dtype", "device") and kind not in keywords:
            return _inserted(call, kind, given.value)
    if conversion == "cuda" and not value.args and "device" not in keywords:
        return _inserted(call, "device", cst.SimpleString('"cuda"'))
    return None


def _is_dtype(node: cst.BaseExpression) -> bool:
    name = dotted(node)
    last = name.rpartition(".")[2]
    return "dtype" in last or (
        name != last and last.rstrip("0123456789") in ("float", "double", "half", "bfloat")
    )


def _inserted(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    """The call with another keyword before ``requires_grad``."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    args: list[cst.Arg] = []
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "requires_grad":
            args.append(
                cst.Arg(
                    value, cst.Name(keyword), equal, cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
                )
            )
        args.append(arg)
    return call.with_changes(args=args)


def _named(
    view: View, value: cst.BaseExpression, core: cst.Name | cst.Attribute
) -> Iterator[tuple[cst.BaseExpression, tuple[Edit, ...]]]:
    """``w = torch.randn(3, requires_grad=True)``, then ``w = w.to(device)``: the first line gives a plain
    tensor, the second the leaf."""
    made = statement_before(view, core, dotted(core))
    for small in made.body if isinstance(made, cst.SimpleStatementLine) else ():
        if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call):
            continue
        first = small.value
        if _tracks(first):
            plain: cst.BaseExpression | None = without_arguments(first, _is_tracking)
            new: cst.BaseExpression = method(value, "requires_grad_")
        elif function_of(first) == "Parameter" and first.args:
            plain, new = (
                first.args[0].value,
                first.with_changes(args=[first.args[0].with_changes(value=value)]),
            )
        elif function_of(first) == "requires_grad_":
            plain, new = cast(cst.Attribute, first.func).value, method(value, "requires_grad_")
        else:
            continue
        if plain is not None:
            yield new, (exchange(first, plain),)


def _is_tracking(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "requires_grad"
