"""Modules that a Trainer of Lightning's trains: ``configure_optimizers`` makes their optimizers, and every pass is a
call of ``training_step``."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import backward, calls, containers, forwards, objects, optimizers, stacks
from gradfix.read.frames import Frame, Machine, Raised
from gradfix.read.values import Bound, Function, Instance, Tensor, Unknown, Value

STEP = "training_step"
BACKWARD = "manual_backward"
_OPTIMIZERS, _SCHEDULERS, _FROZEN = "optimizers", "schedulers", "frozen"
# what does otherwise what the Trainer does
_OVERRIDDEN = ("backward", "optimizer_step", "optimizer_zero_grad", "toggle_optimizer", "training_step_end")
_NUMBERS = {"batch_idx", "batch_nb", "batch_id", "batch_index"}  # what the batch's number is called


def trained(module: Instance) -> bool:
    """Whether it is such a module, as far as its class tells."""
    if module.cls is None or not module.kind.startswith("torch.nn."):
        return False
    return isinstance(objects.lookup(module.cls, STEP), Function)


def fit(m: Machine, module: Instance) -> None:
    """What the Trainer does: optimizers are made, then ``training_step`` is called for one batch after the other. Where
    it calls no backward itself, the Trainer does, and steps."""
    step = objects.method(m, module, STEP)
    if not isinstance(step, Bound):
        return
    frame = Frame(step.function.unit, "<module>", (), {"self": module}, None)
    with m.inside(frame):
        _heard(m, module, "configure_model", "setup")
        _configure(m, module)
        _heard(m, module, "on_fit_start", "on_train_start", "on_train_epoch_start")
        manual = objects.attribute(m, module, "automatic_optimization") is False
        manual = manual or BACKWARD in step.function.unit.text
        if not manual and any(objects.method(m, module, name) for name in _OVERRIDDEN):
            return
        for number in range(m.budget.passes):
            _heard(m, module, "on_train_batch_start")
            if manual:
                calls.call(m, step, _arguments(m, step.function, number), {})
            else:
                _automatic(m, module, step, number)
            _heard(m, module, "on_train_batch_end")


def _heard(m: Machine, module: Instance, *names: str) -> None:
    """The Trainer tells the module what it is about to do, or has done."""
    for name in names:
        hook = objects.method(m, module, name)
        m.frame.node = None
        if isinstance(hook, Bound):
            calls.call(m, hook, _arguments(m, hook.function, 0), {})
            m.frame.node = None


def _automatic(m: Machine, module: Instance, step: Bound, number: int) -> None:
    """One batch, for each of the optimizers."""
    found: list[Value] = module.extra.get(_OPTIMIZERS, [])
    given = _arguments(m, step.function, number)
    at = next((n for n, name in enumerate(_names(step.function)) if name == "optimizer_idx"), None)
    if len(found) > 1 and at is None:
        return  # which no Trainer takes
    for index, optimizer in enumerate(found or [None]):
        if at is not None and at < len(given):
            given[at] = index
        if len(found) > 1:
            _toggle(m, module, [optimizer], {})
        loss = containers.plain(calls.call(m, step, given, {}))
        if loss is not None:
            _heard(m, module, "on_before_zero_grad")
            if optimizer is not None:
                optimizers.METHODS["zero_grad"](m, optimizer, [], {})
            _heard(m, module, "on_before_backward")
            backward.outside(m, loss.get("loss", m.unknown("loss")) if isinstance(loss, dict) else loss)
            _heard(m, module, "on_after_backward")
        _heard(m, module, "on_before_optimizer_step")
        if optimizer is not None:
            calls.call(m, optimizers.calls_step(m, optimizer), [], {})
        _untoggle(m, module, [], {})


def _names(function: Function) -> list[str]:
    declared = function.node.args
    return [a.arg for a in (*declared.posonlyargs, *declared.args)][1:]


def _arguments(m: Machine, function: Function, number: int) -> list[Value]:
    names = _names(function)
    given = names[: len(names) - len(function.defaults)]
    return [number if n in _NUMBERS else m.unknown("argument of " + function.qualname) for n in given]


# ---- its optimizers


def _configure(m: Machine, module: Instance) -> None:
    configure = objects.method(m, module, "configure_optimizers")
    made: Value = None
    if configure is not None:
        try:
            made = calls.call(m, configure, [], {})
        except Raised:
            made = m.unknown("configure_optimizers")
    found, schedulers = _parted(made)
    if all(isinstance(each, Instance) and "number" in each.extra for each in found):
        module.extra[_OPTIMIZERS], module.extra[_SCHEDULERS] = found, schedulers
        for each in found:
            each.extra["trains"] = module


def _parted(made: Value) -> tuple[list[Value], list[Value]]:
    """What ``configure_optimizers`` returns: optimizers, and schedulers."""
    if isinstance(made, list | tuple) and len(made) == 2 and all(isinstance(x, list | tuple) for x in made):
        optimizers, schedulers = made
    else:
        optimizers = list(made) if isinstance(made, list | tuple) else [made]
        schedulers = [x["lr_scheduler"] for x in optimizers if isinstance(x, dict) and "lr_scheduler" in x]
    return (
        [x.get("optimizer") if isinstance(x, dict) else x for x in optimizers],
        [x.get("scheduler") if isinstance(x, dict) else x for x in schedulers],
    )


def _one_or_all(kept: str) -> Callable[..., Value]:
    def run(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = module.extra.get(kept)
        if found is None:
            return m.unknown(kept)
        return found[0] if len(found) == 1 else list(found) or None

    return run


# ---- which parameters get gradients


def _toggle(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Freeze what other optimizers step."""
    chosen = args[0] if args else kwargs.get("optimizer")
    if not isinstance(chosen, Instance) or module.extra.get(_FROZEN):
        return None
    own = {id(t) for t in optimizers.owned(chosen)}
    others = [t for each in module.extra.get(_OPTIMIZERS, ()) for t in optimizers.owned(each)]
    module.extra[_FROZEN] = frozen = [(t, t.requires) for t in others if id(t) not in own and t.leaf]
    for tensor, _ in frozen:
        tensor.requires = False
    return None


def _untoggle(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for tensor, before in module.extra.pop(_FROZEN, ()):
        tensor.requires = before
    return None


def toggled(m: Machine, optimizer: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``with optimizer.toggle_model():``"""
    stack = stacks.made(m, [], {})
    module = optimizer.extra.get("trains")
    if isinstance(stack, Instance) and isinstance(module, Instance):
        _toggle(m, module, [optimizer], {})
        stack.extra["leaves"].append(lambda: _untoggle(m, module, [], {}))
    return stack


# ---- methods that torch.nn.Module has not


def _backward(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    loss = args[0] if args else kwargs.get("loss")
    if not isinstance(loss, Tensor | Unknown):
        return None
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    return backward.backward(m, [loss], {**dict(zip(names, args[1:], strict=False)), **kwargs})


def _clip(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    optimizer = args[0] if args else kwargs.get("optimizer")
    if isinstance(optimizer, Instance):
        forwards.utility(m, "clip_grad_norm_", [list(optimizers.owned(optimizer))], {})
    return None


def _nothing(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


METHODS: dict[str, Callable[..., Value]] = {
    "optimizers": _one_or_all(_OPTIMIZERS),
    "lr_schedulers": _one_or_all(_SCHEDULERS),
    BACKWARD: _backward,
    "toggle_optimizer": _toggle,
    "untoggle_optimizer": _untoggle,
    "clip_gradients": _clip,
    **dict.fromkeys(("log", "log_dict", "print", "save_hyperparameters"), _nothing),
}
