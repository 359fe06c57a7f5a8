"""Custom autograd Functions. Their forward is read without gradients and joins the graph as one node; what it saves,
keeps on ctx and writes into is noted, as autograd and its users have it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import field
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.read import calls, derivative, effects, libraries, objects, ops
from gradfix.read.frames import Machine
from gradfix.read.objects import CTX
from gradfix.read.values import Class, Function, Instance, Native, Node, Saved, Tensor, Truth, Unknown, Value
from gradfix.tape import Custom, Mutate, Stack

DIRTY_LEAF = "a leaf Variable that requires grad has been used in an in-place operation."
OLD_STYLE = (
    "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd function "
    "with static forward method. (Example: https://pytorch.org/docs/stable/autograd.html#torch.autograd.Function)"
)
# an op and the one that takes back what it did
_BACK = {"add_": "sub_", "sub_": "add_", "mul_": "div_", "div_": "mul_"}


@dataclass(slots=True, eq=False)
class Unmarked:
    """An input that the forward wrote into and returned without marking it: `alias` is the node of that output,
    `number` says which input it is. `time` is that of the event, once it was told."""

    number: int
    tensor: Tensor
    alias: Node
    write: Mutate
    sure: bool
    time: int = 0


@dataclass(slots=True, eq=False)
class Spoilt:
    """What the forward kept and overwrote by `write`, and the backward needs as it was kept. `time` as of Unmarked."""

    tensor: Tensor
    write: Mutate
    sure: bool
    time: int = 0


@dataclass(slots=True, eq=False)
class Instead:
    """The result that the forward saved at `stack`, where the backward takes it for the argument of that `number`.
    `time` as of Unmarked."""

    tensor: Tensor
    stack: Stack
    number: int
    sure: bool
    time: int = 0


@dataclass(slots=True, eq=False)
class Applied:
    """What one call of apply() left behind, for the node it made: the `inputs` of which it was given, with what the
    graph had for them, what it `held` on ctx and how that was then."""

    cls: Class
    ctx: Instance
    inputs: tuple[Value, ...]
    edges: dict[int, Node | Tensor]  # number of an input that requires grad -> its edge
    outputs: tuple[Value, ...]
    held: list[tuple[Tensor, Saved]]
    unmarked: Unmarked | None = None
    spoilt: list[Spoilt] = field(default_factory=list)
    instead: Instead | None = None
    settled: bool = False  # what its backward reads is known
    told: dict[Stack, int] = field(default_factory=dict)  # writes into gradients that were told -> time

    @property
    def differentiable(self) -> list[int]:
        """The numbers of the outputs that have a gradient."""
        return [n for n, o in enumerate(self.outputs) if isinstance(o, Tensor) and o.requires]


def applying(cls: Class) -> Native:
    """``cls.apply``."""
    return Native("apply", lambda m, args, kwargs: run(m, cls, args, kwargs))


def called(m: Machine) -> Value:
    """``MyFunction()(x)``, as it was before there was ``apply``."""
    m.outdated("RuntimeError", OLD_STYLE)
    m.blurs += 1
    return m.unknown("Function of old style")


def run(m: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls.apply(…)``."""
    m.customized = True
    forward, setup = objects.lookup(cls, "forward"), objects.lookup(cls, "setup_context")
    own = setup if isinstance(setup, Function) else None
    if not isinstance(forward, Function) or calls.REST in args or "**" in kwargs or (kwargs and own is None):
        return _unknown(m, args, kwargs, "custom Function")
    needs = [_needs(m, a) for a in args]
    edges = {n: ops.edge(m, a) for n, a in enumerate(args) if needs[n] is True}
    ctx = Instance(
        None, {"needs_input_grad": tuple(m.unknown("needs") if n is None else n for n in needs)}, CTX
    )
    inputs = [a for a in args if isinstance(a, Tensor)]
    for tensor in inputs:
        tensor.storage.known = True  # so that the tape has what is written into it
    events = len(m.trace.events)
    grad, m.grad = m.grad, False
    try:
        given = args if own is not None else [ctx, *args]
        result = calls.call(m, forward, given, kwargs)
        if own is not None:
            calls.call(m, own, [ctx, _bound(m, forward, args, kwargs), result], {})
    finally:
        m.grad = grad
    outputs = result if isinstance(result, tuple) else (result,)
    if isinstance(result, Unknown | list | dict) or any(_parameter(o, inputs) for o in outputs):
        return _unknown(m, args, kwargs, result.origin if isinstance(result, Unknown) else "forward")
    written = _written(m.trace.events[events:])
    if not grad or not edges:
        known = None if grad and None in needs else False
        made = tuple(_off_graph(m, o, inputs, known) for o in outputs)
        return made if isinstance(result, tuple) else made[0]
    node = m.trace.node(cls.name + "Backward", cls.name, list(edges.values()))
    node.vague = None in needs
    node.custom = applied = Applied(cls, ctx, tuple(args), edges, outputs, [])
    m.functions.setdefault(id(cls), {})
    applied.outputs = tuple(_joined(m, applied, node, o, written) for o in outputs)
    _keep(m, applied, node)
    _changed(m, applied, node, outputs, written)
    applied.spoilt = list(_spoilt(m, applied, written))
    if not applied.spoilt and not written and applied.unmarked is None:
        applied.instead = _instead(m, applied, outputs)
    node.output = next((o for o in applied.outputs if isinstance(o, Tensor) and o.requires), None)
    return applied.outputs if isinstance(result, tuple) else applied.outputs[0]


def _unknown(m: Machine, args: list[Value], kwargs: dict[str, Value], origin: str) -> Value:
    m.blurs += 1
    libraries.escape(m, [*args, *kwargs.values()])
    return m.unknown(origin)


def _needs(m: Machine, value: Value) -> Truth:
    if isinstance(value, Tensor):
        return False if value.dtype in ops.INTEGERS else ops.requires(m, value)
    return None if isinstance(value, Unknown) else False


def _bound(m: Machine, forward: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The arguments of a forward without ctx as ``setup_context`` gets them: with the defaults."""
    names = calls.bind(m, forward, args, kwargs)
    if names is None:
        return m.unknown("inputs")
    declared = forward.node.args
    bound = [names[a.arg] for a in (*declared.posonlyargs, *declared.args)]
    return (*bound, *args[len(bound) :])


def _parameter(output: Value, inputs: Sequence[Tensor]) -> bool:
    """Whether something else than the forward made `output`: it is a leaf of the program's."""
    return (
        isinstance(output, Tensor) and output.requires is True and output.leaf and _at(inputs, output) is None
    )


def _at(tensors: Sequence[Value], tensor: Value) -> int | None:
    return next((n for n, t in enumerate(tensors) if t is tensor), None)


# ---- what becomes of the outputs


def _off_graph(m: Machine, output: Value, inputs: Sequence[Tensor], known: Truth) -> Value:
    """An output where no input needs a gradient, or none is recorded."""
    if not isinstance(output, Tensor) or output.dtype in ops.INTEGERS:
        return output
    if _at(inputs, output) is not None:
        output = ops.aliased(m, output, known, None, "view")
    elif known is None and output.requires is False:
        output.requires = None
    if output.base is not None:
        output.view = "custom"
    return output


def _joined(
    m: Machine, applied: Applied, node: Node, output: Value, written: dict[int, list[Mutate]]
) -> Value:
    """An output as it joins the graph."""
    plain, dirty = applied.ctx.extra.get("plain", ()), applied.ctx.extra.get("dirty", ())
    if not isinstance(output, Tensor) or output.dtype in ops.INTEGERS or _at(plain, output) is not None:
        return output
    several = sum(1 for o in applied.outputs if isinstance(o, Tensor) and o.dtype not in ops.INTEGERS) > 1
    number = _at(applied.inputs, output)
    if number is None:
        if output.base is not None:
            output.view = "multi-view" if several else "custom"
            output.rebased = output.base.rebased
        output.node, output.requires = node, True
        return output
    if _at(dirty, output) is not None:
        return _rebased(m, output, node)
    if not several and number in applied.edges and _owns(output) and output.storage.number in written:
        return _unmarked(m, applied, node, number, written[output.storage.number])
    base = output.base or output
    view = "multi-view" if several else "custom"
    return Tensor(
        output.storage, True, node, output.shape, output.dtype, base, base.rebased, view, output.alias, "view"
    )


def _rebased(m: Machine, output: Tensor, node: Node) -> Tensor:
    """An input that was written into and marked: it is of the new graph."""
    if output.requires and output.leaf:
        m.fail("RuntimeError", DIRTY_LEAF)
    base = output.base or output
    base.node, base.requires = node, True
    base.rebased += 1
    if output is not base:
        output.node, output.requires, output.rebased = node, True, base.rebased - 1
    return output


def _owns(tensor: Tensor) -> bool:
    """Whether what is written into the memory of `tensor` is written into all that reads it, on a graph of its own."""
    return tensor.base is None and not tensor.alias and isinstance(tensor.node, Node)


def _unmarked(m: Machine, applied: Applied, node: Node, number: int, writes: list[Mutate]) -> Tensor:
    """The output that is an unmarked input, as the view that PyTorch makes of it; what reads the input from now on is
    told from what reads the output, as the recorder does."""
    tensor: Tensor = applied.inputs[number]
    tensor.node, tensor.rebased = node, tensor.rebased + 1
    alias = m.trace.node("ViewBackward0", "aten.view", [node])
    made = Tensor(tensor.storage, True, alias, tensor.shape, tensor.dtype, tensor, tensor.rebased, "custom")
    made.origin = "unmarked"
    alias.output = made
    applied.unmarked = Unmarked(number, tensor, alias, writes[0], _sure(m, writes))
    return made


# ---- what it wrote into


def _written(events: Sequence[Any]) -> dict[int, list[Mutate]]:
    """storage -> the counted writes into it, of those that did not take themselves back."""
    found: dict[int, list[Mutate]] = {}
    for event in events:
        if isinstance(event, Mutate) and event.counted:
            found.setdefault(event.ref.storage, []).append(event)
    return {storage: writes for storage, writes in found.items() if not _taken_back(writes)}


def _taken_back(writes: list[Mutate]) -> bool:
    names = [w.op.removeprefix("aten.").split(".")[0] for w in writes]
    return any(_BACK.get(name) in names for name in names)


def _sure(m: Machine, writes: list[Mutate]) -> bool:
    """Whether these writes change something for certain: several may have put back what was there."""
    return all(w.time not in m.trace.likely for w in writes) and len({w.stack for w in writes}) == 1


def _changed(
    m: Machine, applied: Applied, node: Node, outputs: Sequence[Value], written: dict[int, list[Mutate]]
) -> None:
    """Tell of inputs that were written into and are no output: who reads them now gives their gradient to what made the
    value of before."""
    shown: Set[int] = {o.storage.number for o in outputs if isinstance(o, Tensor)}
    for number in applied.edges:
        tensor: Tensor = applied.inputs[number]
        writes = written.get(tensor.storage.number)
        if not writes or tensor.storage.number in shown or not _owns(tensor):
            continue
        maker = tensor.node
        if maker is None or _several(maker) or _at(applied.ctx.extra.get("dirty", ()), tensor) is not None:
            continue
        time = m.trace.tick()
        event = Custom(time, writes[0].stack, node.number, "changed", m.trace.ref(tensor), maker.number)
        m.trace.add(event)
        if not _sure(m, writes):
            m.trace.likely.add(time)


def _several(maker: Node) -> bool:
    """Whether the op gives several outputs: who reads which of them, a node's parents don't say."""
    if maker.custom is not None:
        return len(maker.custom.differentiable) > 1
    return any(
        len(o.results) > 1 or o.results in "ml" for o in effects.overloads(maker.op.removeprefix("aten."))
    )


# ---- what it keeps


def _keep(m: Machine, applied: Applied, node: Node) -> None:
    """Save what ``save_for_backward`` was given, as it is behind the forward, and note what else ctx holds."""
    for tensor in applied.ctx.extra.get("saved", ()):
        if isinstance(tensor, Tensor):
            m.trace.save(node, tensor)
    for value in applied.ctx.attrs.values():
        for tensor in tensors_on(value):
            applied.held.append((tensor, m.trace.hold(node, tensor)))


def _spoilt(m: Machine, applied: Applied, written: dict[int, list[Mutate]]) -> Iterator[Spoilt]:
    """What it overwrote of what it keeps, where its backward is the derivative with what was kept."""
    slots, code = dict(_slots(applied.ctx)), _code(applied.cls)
    if code is None or not any(t.storage.number in written for t in slots.values()):
        return
    found, mostly = derivative.needed(code, *_elements(applied))
    for slot, statement in found.items():
        writes = written.get(slots[slot].storage.number, []) if slot in slots else []
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        write = next((w for w in writes if w.stack[-1].line in lines), None)
        if write is not None:
            yield Spoilt(slots[slot], write, mostly and _sure(m, writes))


def _instead(m: Machine, applied: Applied, outputs: tuple[Value, ...]) -> Instead | None:
    """The result that it has saved, where its backward is the derivative with an argument in that place."""
    code, inputs = _code(applied.cls), [a for a in applied.inputs if isinstance(a, Tensor)]
    slots = {s: t for s, t in _slots(applied.ctx) if s[0] == derivative.SAVED}
    given, saved = ({id(t.storage) for t in some} for some in (inputs, slots.values()))
    mine = {id(o.storage) for o in outputs if isinstance(o, Tensor)} - given
    results = [s for s, t in slots.items() if id(t.storage) in mine and _real(t)]
    stack = applied.ctx.extra.get("saving")
    if code is None or not results or not stack:
        return None
    args, needs = _elements(applied)
    open_ = [
        n and isinstance(a, Tensor) and id(a.storage) not in saved
        for n, a in zip(needs, applied.inputs, strict=True)
    ]
    if not any(open_):
        return None
    way, mostly = derivative.instead(code, args, needs, results)
    if way is None or not open_[way[1]]:
        return None
    return Instead(slots[way[0]], stack, way[1], mostly and bool(m.sure()))


def _code(cls: Class) -> derivative.Code | None:
    forward, backward, setup = (
        f.node if isinstance(f, Function) and isinstance(f.node, ast.FunctionDef) else None
        for f in (objects.lookup(cls, n) for n in ("forward", "backward", "setup_context"))
    )
    return derivative.Code(forward, backward, setup) if forward is not None and backward is not None else None


def _elements(applied: Applied) -> tuple[list[Value], list[bool]]:
    """The arguments, an element for each tensor, and which of them require grad."""
    args: list[Value] = [derivative.Element(0.0) if _real(a) else a for a in applied.inputs]
    return args, [n in applied.edges for n in range(len(args))]


def _slots(ctx: Instance) -> Iterator[tuple[derivative.Slot, Tensor]]:
    """The tensors that `ctx` keeps, each with its place."""
    for number, value in enumerate(ctx.extra.get("saved", ())):
        if isinstance(value, Tensor):
            yield (derivative.SAVED, number), value
    for name, value in ctx.attrs.items():
        if isinstance(value, Tensor):
            yield (name, derivative.ALONE), value


def _real(value: Value) -> bool:
    return isinstance(value, Tensor) and value.dtype not in ops.INTEGERS


def tensors_on(value: Value) -> list[Tensor]:
    """The tensors of an attribute of ctx: itself, or those of a list, a tuple or a dictionary."""
    return ops.tensors_of(list(value.values()) if isinstance(value, dict) else value)


def _noted(name: str) -> Any:
    def note(m: Machine, ctx: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
        ctx.extra[name] = tuple(args)
        if name == "saved":
            ctx.extra["saving"] = m.stack()
        for tensor in ops.tensors_of(args) if name == "saved" else ():
            tensor.storage.known = True
        return None

    return note


METHODS: dict[str, Any] = {
    "save_for_backward": _noted("saved"),
    "save_for_forward": _noted("forwards"),
    "mark_dirty": _noted("dirty"),
    "mark_non_differentiable": _noted("plain"),
    "set_materialize_grads": _noted("materialize"),
    "mark_shared_storage": _noted("shared"),
}


def of_ctx(m: Machine, ctx: Instance, name: str) -> Value:
    """An attribute that torch gives ctx."""
    method = METHODS.get(name)
    if method is not None:
        return Native(name, lambda machine, args, kwargs: method(machine, ctx, args, kwargs))
    if name in ("saved_tensors", "saved_variables") and "tensors" in ctx.extra:
        ctx.extra["asked"].append(m.sure())
        return ctx.extra["tensors"]
    return m.unknown("ctx." + name)
