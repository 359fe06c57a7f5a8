"""The exact gradients of a program as written, computed without gradfix and without any write in place.

Every storage is a value of PyTorch's graph that a write replaces by another (``index_put`` at the places that the
view shows), so no graph is ever spoilt or freed. A tensor and its detached alias share a storage and not a graph: a
write through one gives the other new numbers and leaves the other's graph as it was. A parameter that is written is
a new leaf; a backward adds up the gradients of every leaf that the parameter ever was, which is what a graph that
was made of the old one stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import language as lang
import torch
import torch.nn.functional as F


class NoOracle(Exception):
    """What the program means is not said here: its loss has no graph, its numbers overflow, PyTorch's rules forbid
    what it does for a reason of its own."""


Grads = dict[str, torch.Tensor | None]


@dataclass
class Meaning:
    """The gradients of every parameter after each backward, those of its own at each optimizer's step, and the
    gradients, parameters and the random generator's state at the end."""

    after_backward: list[Grads] = field(default_factory=list)
    at_step: list[Grads] = field(default_factory=list)
    grads: Grads = field(default_factory=dict)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    random: torch.Tensor = field(default_factory=torch.get_rng_state)  # the generator's state at the end


def meaning(
    program: lang.Program,
    *,
    still: bool = False,
    cut: str = "",
    names: frozenset[str] = frozenset(),
    through: bool = False,
    emptied: Collection[tuple[int, str]] = (),
) -> Meaning:
    """What `program` computes. Raises NoOracle.

    `still`: its optimizers move nothing. `cut`: no graph is taken over from pass to pass of the ``loop``, or past a
    ``step``: by none of the variables, or by those called `names` alone. `through`: a write through ``.data`` or
    ``.detach()`` is one like any other. `emptied`: the list of this name is, behind the step that is the n-th in the
    text (from 0).
    """
    torch.manual_seed(0)
    try:
        return _Evaluation(program, still, cut, names, through, emptied).run()
    except RuntimeError as problem:  # sizes that do not fit
        raise NoOracle(str(problem)) from problem


# ---- values

PURE: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "sin": torch.sin,
    "square": lambda x: x**2,
    "softmax": lambda x: F.softmax(x, dim=-1),
    "clone": torch.clone,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda x, y: x / (y**2 + 1),
    "matmul": operator.matmul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "stack": lambda x, y: torch.stack([x, y]),
    "sum": torch.sum,
    "mean": torch.mean,
    "mse": F.mse_loss,
    "scale": lambda x: x * 0.5,
    "shift": lambda x: x + 1,
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": lambda x: x[0],
    "last_row": lambda x: x[-1],
    "column": lambda x: x[:, 0],
    "corner": lambda x: x[:, :2],
    "flat": lambda x: x.reshape(-1),
    "reshaped": lambda x: x.reshape(2, 3),
    "transposed": lambda x: x.t(),
    "expanded": lambda x: x.expand(2, 3),
}
SPLITS: dict[str, Callable[[int], Callable[[torch.Tensor], torch.Tensor]]] = {
    "unbind": lambda i: lambda x: x[i],
    "chunk": lambda i: lambda x: x[i : i + 1],
    "split": lambda i: lambda x: x[i : i + 1],
}
WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "add_": operator.add,
    "mul_": operator.mul,
    "sub_": operator.sub,
    "copy_": lambda x, y: torch.as_tensor(y).expand(x.shape) + torch.zeros_like(x),
    "exp_": torch.exp,
    "tanh_": torch.tanh,
    "sigmoid_": torch.sigmoid,
    "relu_": torch.relu,
    "neg_": torch.neg,
    "zero_": torch.zeros_like,
    "fill_": lambda x: torch.full_like(x, 0.5),
    "clamp_": lambda x: x.clamp(-0.5, 0.5),
}


class _NewNumbers(torch.autograd.Function):
    """`numbers` with the graph of `old`."""

    @staticmethod
    def forward(ctx: Any, old: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


@dataclass(eq=False)
class _Graph:
    """One reading of a storage: its numbers with a graph. A parameter's has no graph: it is a leaf."""

    value: torch.Tensor
    storage: list[_Graph]
    parameter: _Parameter | None = None

    def renumber(self, numbers: torch.Tensor) -> None:
        if self.parameter is not None:
            self.value = self.parameter.new_leaf(numbers)
        else:
            with torch.enable_grad():
                self.value = _NewNumbers.apply(self.value, numbers)


@dataclass(eq=False)
class _Parameter:
    leaves: list[torch.Tensor] = field(default_factory=list)
    grad: torch.Tensor | None = None
    tensor: _Tensor | None = None

    def new_leaf(self, numbers: torch.Tensor) -> torch.Tensor:
        self.leaves.append(numbers.detach().clone().requires_grad_())
        return self.leaves[-1]

    @property
    def numbers(self) -> torch.Tensor:
        assert self.tensor is not None
        return self.tensor.graph.value.detach()


@dataclass(eq=False)
class _Tensor:
    """What a variable holds: a graph, and the views that lead from its storage to it."""

    graph: _Graph
    path: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()

    def get(self) -> torch.Tensor:
        value = self.graph.value
        for view in self.path:
            value = view(value)
        return value

    def view(self, how: Callable[[torch.Tensor], torch.Tensor]) -> _Tensor:
        base = self if torch.is_grad_enabled() else self.detached()
        found = _Tensor(base.graph, (*self.path, how))
        found.get()  # not every shape has this view
        return found

    def detached(self) -> _Tensor:
        other = _Graph(self.graph.value.detach(), self.graph.storage)
        other.storage.append(other)
        return _Tensor(other, self.path)

    def put(self, value: torch.Tensor) -> None:
        """Write `value`, with its graph if there is to be one."""
        graph = self.graph
        places = torch.arange(graph.value.numel()).reshape(graph.value.shape)
        for view in self.path:
            places = view(places)
        if value.dim() > places.dim():
            raise NoOracle("the value has more dimensions than what is written")
        if places.unique().numel() < places.numel():
            raise NoOracle(
                "elements of what is written are one in memory, and nobody can say which value that gets"
            )
        flat = value.expand(places.shape).reshape(-1).to(graph.value.dtype)
        new = graph.value.reshape(-1).index_put((places.reshape(-1),), flat).reshape(graph.value.shape)
        if torch.is_grad_enabled():
            if graph.parameter is not None:
                if value.requires_grad:
                    raise NoOracle("a leaf can't be written with what needs a gradient")
                graph.renumber(new.detach())
            else:
                graph.value = new
        else:
            graph.renumber(new.detach())
        for other in graph.storage:
            if other is not graph:
                other.renumber(new.detach())


def fresh(value: torch.Tensor) -> _Tensor:
    graph = _Graph(value, [])
    graph.storage.append(graph)
    return _Tensor(graph)


# ---- statements


def _steps(statements: Iterable[lang.Statement]) -> Iterator[lang.Step]:
    """The steps among them, in the order of the text."""
    for each in statements:
        if isinstance(each, lang.Step):
            yield each
        yield from _steps((*getattr(each, "body", ()), *getattr(each, "orelse", ())))


class _Evaluation:
    def __init__(
        self,
        program: lang.Program,
        still: bool,
        cut: str,
        names: frozenset[str],
        through: bool,
        emptied: Collection[tuple[int, str]],
    ) -> None:
        self.program, self.still, self.cut, self.names, self.through = program, still, cut, names, through
        steps = list(_steps(program.body))
        self.emptied = [(steps[n], name) for n, name in emptied if n < len(steps)]
        self.functions = {f.name: f for f in program.functions}
        self.models = {m.name: m for m in program.models}
        self.parameters: dict[str, _Parameter] = {}
        self.meaning = Meaning()
        self.globals: dict[str, Any] = {}
        self.depth = 0

    def run(self) -> Meaning:
        for model in self.program.models:
            for layer in model.layers:
                linear = torch.nn.Linear(3, 3)
                for part in ("weight", "bias"):
                    self._declare(f"{model.name}.{layer}.{part}", getattr(linear, part))
        for leaf in self.program.leaves:
            self._declare(leaf.name, torch.randn(leaf.shape))
            self.globals[leaf.name] = self.parameters[leaf.name].tensor
        self.shadows = {n: p.numbers.clone().requires_grad_() for n, p in self.parameters.items()}
        self.optimizers = {o.name: self._optimizer(o) for o in self.program.optimizers}
        self._block(self.program.body, self.globals)
        self.meaning.grads = self._grads()
        self.meaning.values = {n: p.numbers.clone() for n, p in self.parameters.items()}
        self.meaning.random = torch.get_rng_state()
        return self.meaning

    def _declare(self, name: str, value: torch.Tensor) -> None:
        parameter = _Parameter()
        parameter.tensor = fresh(parameter.new_leaf(value))
        parameter.tensor.graph.parameter = parameter
        self.parameters[name] = parameter

    def _optimizer(self, o: lang.Optimizer) -> tuple[torch.optim.Optimizer, list[str]]:
        names = [
            n
            for owner in o.owners
            for n in (self.models[owner].parameters if owner in self.models else [owner])
        ]
        options = {k: v for k, v in o.options if k != "fused"}
        if self.still:
            options["lr"] = 0.0
        return getattr(torch.optim, o.kind)([self.shadows[n] for n in names], **options), names

    def _block(self, body: Sequence[lang.Statement], env: dict[str, Any]) -> None:
        for statement in body:
            getattr(self, "_" + type(statement).__name__)(statement, env)

    def _Assign(self, s: lang.Assign, env: dict[str, Any]) -> None:
        env[s.target] = self.eval(s.value, env)

    def _Split(self, s: lang.Split, env: dict[str, Any]) -> None:
        whole = self.eval(s.of, env)
        for i, target in enumerate(s.targets):
            env[target] = whole.view(SPLITS[s.how](i))

    def _written(self, target: lang.Expr, env: dict[str, Any]) -> Any:
        hidden = isinstance(target, lang.View) and target.how in ("detached", "data")
        return self.eval(target.of if hidden and self.through else target, env)

    def _Write(self, s: lang.Write, env: dict[str, Any]) -> None:
        target = self._written(s.target, env)
        if not isinstance(target, _Tensor):  # total += loss on a number: bound anew
            assert s.augmented
            assert isinstance(s.target, lang.Name)
            value = WRITES[s.op](target, _plain(self.eval(s.value, env)))
            env[s.target.id] = fresh(value) if isinstance(value, torch.Tensor) else value
            return
        args = [] if s.value is None else [_plain(self.eval(s.value, env))]
        with self._as_leaf_write(target, args):
            target.put(WRITES[s.op](target.get(), *args))
        if s.result:
            env[s.result] = target

    def _SetItem(self, s: lang.SetItem, env: dict[str, Any]) -> None:
        target = self.eval(s.target, env)
        value = _plain(self.eval(s.value, env))
        with self._as_leaf_write(target, [value]):
            target.put(WRITES["copy_"](target.get(), value))

    @staticmethod
    def _as_leaf_write(target: _Tensor, args: list[Any]) -> Any:
        """PyTorch refuses to write a leaf where gradients are on; what was meant is a change of its numbers."""
        leaf = target.graph.parameter is not None and torch.is_grad_enabled()
        if leaf and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            raise NoOracle("a leaf can't be written with what needs a gradient")
        return torch.set_grad_enabled(torch.is_grad_enabled() and not leaf)

    def _NumpyWrite(self, s: lang.NumpyWrite, env: dict[str, Any]) -> None:
        target = env[s.target].detached()
        with torch.no_grad():
            part = target.view(lambda x: x[0])
            part.put(torch.full_like(part.get(), 0.25))

    def _SetData(self, s: lang.SetData, env: dict[str, Any]) -> None:
        """The tensor lies in another storage from now on; its views and aliases stay with the old one. A parameter
        stays one."""
        target, value = env[s.target], self.eval(s.value, env)
        if not isinstance(value, _Tensor):
            raise NoOracle("a number is no data")
        if target.path or any(t is not target and t.graph is target.graph for t in _tensors(env)):
            raise NoOracle("a view is given other data")
        graph, numbers = target.graph, value.get().detach()
        old = graph.storage
        old.remove(graph)
        old.append(_Graph(graph.value, old))
        graph.storage = value.graph.storage
        if value.path or value.graph.value.shape != graph.value.shape:
            raise NoOracle("the data is a view")
        graph.storage.append(graph)
        graph.renumber(numbers)

    def _NoGrad(self, s: lang.NoGrad, env: dict[str, Any]) -> None:
        with torch.no_grad():
            self._block(s.body, env)

    def _If(self, s: lang.If, env: dict[str, Any]) -> None:
        counters = {k: v for k, v in env.items() if isinstance(v, int)}
        self._block(s.body if eval(s.test, {}, counters) else s.orelse, env)

    def _For(self, s: lang.For, env: dict[str, Any]) -> None:
        self.depth += 1
        for i in range(s.times):
            env[s.counter] = i
            if self.cut == "loop" and self.depth == 1:
                self._cut(env)
            self._block(s.body, env)
        self.depth -= 1

    def _Backward(self, s: lang.Backward, env: dict[str, Any]) -> None:
        loss = _plain(self.eval(s.of, env))
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise NoOracle("the loss has no graph")
        if not loss.isfinite():
            raise NoOracle("the loss is not finite")
        owners = [(p, leaf) for p in self.parameters.values() for leaf in p.leaves]
        grads = torch.autograd.grad(loss, [leaf for _, leaf in owners], retain_graph=True, allow_unused=True)
        for (parameter, _), grad in zip(owners, grads, strict=True):
            if grad is not None:
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad + grad
        self.meaning.after_backward.append(self._grads())

    def _grads(self) -> Grads:
        found = {n: None if p.grad is None else p.grad.clone() for n, p in self.parameters.items()}
        if any(g is not None and not (g.isfinite().all() and g.norm() < 1e6) for g in found.values()):
            raise NoOracle("the gradients overflow")
        return found

    def _Step(self, s: lang.Step, env: dict[str, Any]) -> None:
        optimizer, names = self.optimizers[s.optimizer]
        self.meaning.at_step.append({n: g for n, g in self._grads().items() if n in names})
        with torch.no_grad():
            for name in names:
                self.shadows[name].copy_(self.parameters[name].numbers)
                self.shadows[name].grad = self.parameters[name].grad
            optimizer.step()
            for name in names:
                if self.parameters[name].grad is not None:
                    tensor = self.parameters[name].tensor
                    assert tensor is not None
                    tensor.put(self.shadows[name].detach().clone())

        if self.cut == "step":
            self._cut(env)
        for step, name in self.emptied:
            if step is s:
                env[name] = []

    def _cut(self, env: dict[str, Any]) -> None:
        """One name that is detached leaves its other names their graph; where nothing is taken over, none has one."""
        for name in self.names & env.keys():
            held = env[name]
            if isinstance(held, _Tensor):
                env[name] = held.detached()
            elif isinstance(held, list):
                env[name] = [t.detached() for t in held]
        for tensor in [] if self.names else _tensors(env):
            if tensor.graph.parameter is None:
                tensor.graph.value = tensor.graph.value.detach()

    def _Zero(self, s: lang.Zero, env: dict[str, Any]) -> None:
        for name in self.optimizers[s.optimizer][1]:
            self.parameters[name].grad = None

    def _EmptyList(self, s: lang.EmptyList, env: dict[str, Any]) -> None:
        env[s.target] = []

    def _Append(self, s: lang.Append, env: dict[str, Any]) -> None:
        env[s.target].append(self.eval(s.value, env))

    def _Item(self, s: lang.Item, env: dict[str, Any]) -> None:
        number, total = _plain(env[s.of]).item(), env[s.target]
        if isinstance(total, _Tensor):
            total.put(total.get() + number)
        else:
            env[s.target] = total + number

    # ---- expressions

    def eval(self, e: Any, env: dict[str, Any]) -> Any:
        """A _Tensor, a number or a list of them."""
        match e:
            case lang.Name(id):
                return env[id] if id in env else self.globals[id]
            case lang.Number(value):
                return value
            case lang.Grad(of):
                grad = self.parameters[of].grad
                if grad is None:
                    raise NoOracle("there is no gradient to read")
                return fresh(grad)
            case lang.Fresh(how, shape):
                return fresh(getattr(torch, how)(shape))
            case lang.Pure(op, args):
                value = PURE[op](*(_plain(self.eval(a, env)) for a in args))
                return fresh(value) if isinstance(value, torch.Tensor) else value
            case lang.View(how, of):
                base = self.eval(of, env)
                if how in ("detached", "data"):
                    return base.detached()
                return base.view(VIEWS[how])
            case lang.Summed(of):
                return fresh(torch.as_tensor(sum(_plain(t) for t in env[of])))
            case lang.Call(callee, args):
                return self._call(callee, [self.eval(a, env) for a in args], env)
        raise TypeError(e)

    def _call(self, callee: str, args: list[Any], env: dict[str, Any]) -> Any:
        if callee.startswith("self."):
            name = f"{env['self']}.{callee.removeprefix('self.')}"
            weight, bias = (self.parameters[f"{name}.{part}"].tensor for part in ("weight", "bias"))
            assert weight is not None
            assert bias is not None
            return fresh(F.linear(_plain(args[0]), weight.get(), bias.get()))
        if callee in self.models:
            model = self.models[callee]
            local = {"self": model.name, "x": args[0]}
            self._block(model.body, local)
            return self.eval(model.result, local)
        function = self.functions[callee]
        local = dict(zip(function.parameters, args, strict=True))
        self._block(function.body, local)
        return self.eval(function.result, local)


def _plain(value: Any) -> Any:
    return value.get() if isinstance(value, _Tensor) else value


def _tensors(env: dict[str, Any]) -> list[_Tensor]:
    found = []
    for value in env.values():
        found += [value] if isinstance(value, _Tensor) else value if isinstance(value, list) else []
    return found
