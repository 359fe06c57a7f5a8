"""Optimizers: whose parameters they own, their steps and clearings; GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradfix.read import calls, iteration, names, ops, unstepped
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Tensor, Unknown, Value
from gradfix.tape import Optimizer

TYPED = ("torch.optim.Adam", "torch.optim.AdamW")  # those whose betas are floats or tensors


class State(dict[Any, Any]):
    """``optimizer.state``: by parameter, a dictionary, made where there is none."""

    def __missing__(self, key: Any) -> Value:
        self[key] = made = dict[Any, Any]()
        return made


def make(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.optim.SGD(parameters, …)``."""
    optimizer = Instance(None, kind=path)
    initialise(m, optimizer, args, kwargs)
    return optimizer


def initialise(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    """The optimizer's groups from its arguments."""
    given = args[0] if args else kwargs.get("params")
    groups, known = _groups(m, given)
    if optimizer.kind in TYPED:
        _typed(m, args[2] if len(args) > 2 else kwargs.get("betas"))
    optimizer.extra.update(
        parameters=groups, number=len(m.optimizers), vague=not known, fused=kwargs.get("fused") is True
    )
    # the one optimizer that runs its closure several times a step
    most = args[2] if len(args) > 2 else kwargs.get("max_iter")
    optimizer.extra["again"] = optimizer.kind.endswith(".LBFGS") and most != 1
    m.optimizers.append(optimizer)
    bad = next((t for t in owned(optimizer) if ops.requires(m, t) and t.node is not None), None)
    _told(m, optimizer)
    if bad is not None and not bad.retains:
        m.fail("ValueError", "can't optimize a non-leaf Tensor")


def _typed(m: Machine, betas: Value) -> None:
    """PyTorch asks before it looks at the parameters. (What is out of range was refused at all times.)"""
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        return
    numbers = [b for b in betas if isinstance(b, int | float)]
    if any(isinstance(b, int) for b in numbers) and all(0 <= b < 1 for b in numbers):
        m.outdated("ValueError", "betas must be either both floats or both Tensors")


def state(optimizer: Instance) -> Value:
    """``optimizer.state``."""
    made: Value = optimizer.extra.setdefault("state", State())
    return made


def _told(m: Machine, optimizer: Instance) -> None:
    found = list(owned(optimizer))
    for each in found:
        each.storage.known = True
    names.look(m, True)
    kind = optimizer.cls.name if optimizer.cls else optimizer.kind.rpartition(".")[2]
    hidden = names.unregistered(m, found)
    made = Optimizer(
        m.trace.tick(),
        m.stack(),
        optimizer.extra["number"],
        kind,
        names.owner(m, optimizer),
        tuple(map(m.trace.ref, found)),
        tuple(m.trace.ref(tensor) for _, tensor in hidden),
        tuple(held for held, _ in hidden),
    )
    m.trace.add(made)


def _groups(m: Machine, given: Value) -> tuple[list[dict[str, Value]], bool]:
    if isinstance(given, Tensor):
        return [{"params": [given]}], True
    items = iteration.listed(m, given)
    if items is None:
        return [{"params": []}], False
    groups: list[dict[str, Value]] = []
    plain: list[Value] = []
    known = True
    for each in items:
        if isinstance(each, dict):
            inner = each.get("params")
            found = [inner] if isinstance(inner, Tensor) else iteration.listed(m, inner)
            known = known and found is not None
            groups.append({**each, "params": [t for t in found or [] if isinstance(t, Tensor)]})
        elif isinstance(each, Tensor):
            plain.append(each)
        elif isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], Tensor):
            plain.append(each[1])
        else:
            known = False
    if plain or not groups:
        groups.insert(0, {"params": plain})
    return groups, known


def owned(optimizer: Instance) -> Iterator[Tensor]:
    """The tensors that it steps."""
    for group in optimizer.extra.get("parameters", ()):
        yield from (t for t in group["params"] if isinstance(t, Tensor))


def strange(optimizer: Instance) -> bool:
    """Whether nothing is known of what it owns. (PyTorch makes none that owns nothing.)"""
    return "parameters" in optimizer.extra and next(owned(optimizer), None) is None


def groups(m: Machine, optimizer: Instance) -> Value:
    """``optimizer.param_groups``."""
    found = optimizer.extra.get("parameters", [])
    for group in found:
        group.setdefault("lr", m.unknown("lr"))
    return found


def _step(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    closure = args[0] if args else kwargs.get("closure")
    result: Value = None
    if closure is not None and not isinstance(closure, Unknown):
        node, grad = m.frame.node, m.grad
        m.grad = True  # whatever it is around the step
        for _ in range(2 if optimizer.extra.get("again") else 1):
            result = calls.call(m, closure, [], {})
            m.frame.node = node
        m.grad = grad
    if optimizer.extra.get("escaped") or "number" not in optimizer.extra:
        return result
    own = optimizer.extra.get("state", {}).values() if optimizer.kind in TYPED else ()
    if any(isinstance(each, dict) and type(each.get("step")) is int for each in own):
        m.outdated("RuntimeError", "`state_steps` argument must contain a list of singleton tensors")
    _call_by_name(m, optimizer)
    found = list(owned(optimizer))
    having = [t for t in found if isinstance(t.grad, Tensor)]
    without = [t for t in found if t.grad is None]
    _emit_step(m, optimizer, found, having, without)
    return result


def _call_by_name(m: Machine, optimizer: Instance) -> None:
    names.look(m)
    m.trace.optimizer_names[optimizer.extra["number"]] = names.owner(m, optimizer)


def _emit_step(
    m: Machine, optimizer: Instance, found: list[Tensor], having: list[Tensor], without: list[Tensor]
) -> None:
    kind = optimizer.cls.name if optimizer.cls else optimizer.kind.rpartition(".")[2]
    vague = [t for t in found if isinstance(t.grad, Unknown)]
    if m.blurs > optimizer.extra.get("blurs", 0):
        vague, without = vague + without, []
    perhaps = m.escaped and m.blurs > optimizer.extra.get("stepped_at", 0)
    optimizer.extra["stepped_at"] = m.blurs
    counted = not optimizer.extra.get("fused")
    m.trace.step(optimizer.extra["number"], kind, having, without, vague, counted)
    if perhaps:
        m.trace.zero(found)  # what nobody knows may have cleared them
    optimizer.extra["stepped"] = True
    for hook in optimizer.extra.get("hooks", ()):
        calls.call(m, hook, [optimizer, (), {}], {})


def own_step(
    m: Machine, optimizer: Instance, function: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A step() of the program's own: what it writes, it writes as the optimizer."""
    number = optimizer.extra.get("number")
    if number is None or m.trace.stepping is not None:
        return calls.call(m, function, [optimizer, *args], kwargs)
    _call_by_name(m, optimizer)
    found = list(owned(optimizer))
    having = [t for t in found if isinstance(t.grad, Tensor)]
    optimizer.extra["stepped"] = False
    m.trace.stepping, node = number, m.frame.node
    try:
        result = calls.call(m, function, [optimizer, *args], kwargs)
    finally:
        m.trace.stepping = None
    m.frame.node = node
    if not optimizer.extra["stepped"]:
        rest = [t for t in found if t not in having]
        known = m.blurs <= optimizer.extra.get("blurs", 0) and all(t.grad is None for t in rest)
        m.losses = []
        m.trace.stepped(number, having, rest if known else [], [] if known else rest)
    m.trace.settle()
    return result


def clear(m: Machine, parameters: list[Tensor], to_none: Value) -> None:
    """Take the gradients of `parameters` away, unless zeros are asked for."""
    if isinstance(to_none, Unknown):
        m.blurs += 1
    for each in parameters:
        if to_none is not False:
            each.grad = None


def known_again(m: Machine, cleared: list[Tensor]) -> None:
    """Whatever has filled the gradients of optimizers that have these parameters alone, they have none now."""
    among = {id(t) for t in cleared}
    for optimizer in m.optimizers:
        own = list(owned(optimizer))
        if own and among.issuperset(map(id, own)):
            optimizer.extra["blurs"] = m.blurs


def _zero_grad(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if "number" not in optimizer.extra:
        return None
    found = list(owned(optimizer))
    unstepped.cleared(m, optimizer)
    clear(m, found, args[0] if args else kwargs.get("set_to_none", True))
    optimizer.extra["blurs"] = m.blurs
    m.trace.zero(found, optimizer.extra["number"])
    return None


def _add_group(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    more, known = _groups(m, [args[0]] if args else None)
    optimizer.extra["parameters"] += [g for g in more if g["params"]]
    optimizer.extra["vague"] = optimizer.extra.get("vague") or not known
    _told(m, optimizer)
    return None


def _init(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    initialise(m, optimizer, args, kwargs)
    return None


def _hook(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    optimizer.extra.setdefault("hooks", []).append(args[0] if args else None)
    return m.unknown("hook")


METHODS: dict[str, Callable[..., Value]] = {
    "__init__": _init,
    "register_step_post_hook": _hook,
    "step": _step,
    "zero_grad": _zero_grad,
    "add_param_group": _add_group,
    "state_dict": lambda m, optimizer, args, kwargs: m.unknown("state_dict"),
    "load_state_dict": lambda m, optimizer, args, kwargs: None,
}


# ---- GradScaler


def _scale(m: Machine, scaler: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], Tensor):
        return ops.apply(m, "mul", [args[0], 1.0], {})
    if args and isinstance(args[0], list | tuple):
        return [_scale(m, scaler, [a], {}) for a in args[0]]
    return args[0] if args else None


def _scaled_step(m: Machine, scaler: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return None
    made = calls.call(m, calls_step(m, args[0]), args[1:], kwargs)
    if scaler.extra.get("enabled") is not False and isinstance(args[0], Instance):
        scaled = [t for t in owned(args[0]) if isinstance(t.grad, Tensor)]
        if scaled:  # what the step leaves of them weighs nothing beside the next, which is scaled
            m.trace.grad_write(*scaled)
    return made


def scaler(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Instance:
    """``GradScaler()``."""
    return Instance(None, kind="torch.amp.GradScaler", extra={"enabled": kwargs.get("enabled", True)})


def calls_step(m: Machine, optimizer: Value) -> Value:
    """``optimizer.step``, wherever it was defined."""
    from gradfix.read import objects

    return objects.attribute(m, optimizer, "step")


SCALER: dict[str, Callable[..., Value]] = {
    "scale": _scale,
    "step": _scaled_step,
    "update": lambda m, scaler, args, kwargs: None,
    "unscale_": lambda m, scaler, args, kwargs: None,
    "get_scale": lambda m, scaler, args, kwargs: m.unknown("scale"),
}
