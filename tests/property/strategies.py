"""Hypothesis strategies for programs of the small language.

A program is drawn the way people write trainings: models, optimizers, a loop, losses, backwards, steps, and between
them the statements that autograd may or may not forgive. What is not legal Python or has no meaning is left to the
property to assume away; shapes and what holds a graph are kept track of so that this is seldom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import language as lang
from hypothesis.strategies import DrawFn

Shape = tuple[int, ...]
MATRIX: Shape = (2, 3)
ROW: Shape = (3,)
SCALAR: Shape = ()

SMOOTH = ("tanh", "sigmoid", "sin", "exp", "relu", "square", "neg", "softmax", "clone", "scale", "shift")
BOTH = ("mul", "add", "sub", "div", "maximum", "minimum")
SHAPED: dict[Shape, tuple[tuple[str, Shape], ...]] = {  # the views of a shape
    (2, 3): (("row", (3,)), ("last_row", (3,)), ("column", (2,)), ("corner", (2, 2)), ("flat", (6,))),
    (6,): (("reshaped", (2, 3)),),
    (3, 3): (("row", (3,)), ("corner", (3, 2)), ("transposed", (3, 3)), ("column", (3,))),
    (3,): (("expanded", (2, 3)),),
}
INDEXED = ("row", "last_row", "column", "corner")


@dataclass
class Scope:
    """The names a statement may use. `graph` are those that (probably) need a gradient."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    graph: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    callees: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # argument's, result's
    leaves: tuple[str, ...] = ()
    counter: str = ""
    made: int = 0

    def names(self, *shapes: Shape) -> list[str]:
        return [n for n, s in self.shapes.items() if not shapes or s in shapes]

    def new(self, shape: Shape, graph: bool) -> str:
        stems = {MATRIX: "x", ROW: "r", SCALAR: "loss"}
        self.made += 1
        name = f"{stems.get(shape, 'v')}{self.made}"
        self.bind(name, shape, graph)
        return name

    def bind(self, name: str, shape: Shape, graph: bool) -> None:
        self.shapes[name] = shape
        (self.graph.add if graph else self.graph.discard)(name)

    def inner(self) -> Scope:
        return Scope(
            dict(self.shapes),
            set(self.graph),
            set(self.lists),
            dict(self.callees),
            self.leaves,
            self.counter,
            self.made,
        )


Drawn = tuple[lang.Expr, bool]  # an expression, and whether it needs a gradient


def tensor(draw: DrawFn, scope: Scope, shape: Shape, depth: int = 2) -> Drawn:
    """An expression of `shape`."""
    names = scope.names(shape)
    ways = ["name"] * (4 if names else 0) + ["fresh"]
    if depth:
        ways += ["one"] * 3 + ["two"] * 2
        ways += ["call"] * (3 if any(s == shape for _, s in scope.callees.values()) else 0)
        ways += ["view"] * bool(_viewed(scope, shape))
        ways += ["matmul"] * (2 if scope.names((3, 3)) and shape in (MATRIX, ROW) else 0)
        ways += ["detached"] * bool(names)
        ways += ["stack"] * (shape == MATRIX and bool(scope.names(ROW)))
    way = draw(st.sampled_from(ways))
    if way == "name":
        name = draw(st.sampled_from(names))
        return lang.Name(name), name in scope.graph
    if way == "fresh":
        how = draw(st.sampled_from(("randn", "ones", "zeros", "rand")))
        return lang.Fresh(how, shape), False
    if way == "one":
        inner, graph = tensor(draw, scope, shape, depth - 1)
        ops = [op for op in SMOOTH if op != "softmax" or shape]
        return lang.Pure(draw(st.sampled_from(ops)), (inner,)), graph
    if way == "two":
        a, graph_a = tensor(draw, scope, shape, depth - 1)
        other = shape if shape != MATRIX else draw(st.sampled_from((MATRIX, ROW)))
        b, graph_b = tensor(draw, scope, other, depth - 1)
        return lang.Pure(draw(st.sampled_from(BOTH)), (a, b)), graph_a or graph_b
    if way == "call":
        callee = draw(st.sampled_from([c for c, (_, s) in scope.callees.items() if s == shape]))
        argument, _ = tensor(draw, scope, scope.callees[callee][0], depth - 1)
        return lang.Call(callee, (argument,)), True
    if way == "view":
        how, name = draw(st.sampled_from(_viewed(scope, shape)))
        return lang.View(how, lang.Name(name)), name in scope.graph
    if way == "matmul":
        a, graph = tensor(draw, scope, shape, depth - 1)
        name = draw(st.sampled_from(scope.names((3, 3))))
        return lang.Pure("matmul", (a, lang.Name(name))), graph or name in scope.graph
    if way == "stack":
        a, graph_a = tensor(draw, scope, ROW, depth - 1)
        b, graph_b = tensor(draw, scope, ROW, depth - 1)
        return lang.Pure("stack", (a, b)), graph_a or graph_b
    how = draw(st.sampled_from(("detached", "data")))
    return lang.View(how, lang.Name(draw(st.sampled_from(names)))), False


def _viewed(scope: Scope, shape: Shape) -> list[tuple[str, str]]:
    return [(how, n) for n, s in scope.shapes.items() for how, result in SHAPED.get(s, ()) if result == shape]


def trained(draw: DrawFn, scope: Scope, shape: Shape, depth: int = 2) -> lang.Expr:
    """An expression that needs a gradient if any can: something of the graph is multiplied in where none came up."""
    value, graph = tensor(draw, scope, shape, depth)
    if graph:
        return value
    known = [n for n in scope.names(shape) if n in scope.graph]
    if known:
        return lang.Pure(
            draw(st.sampled_from(("mul", "add"))), (value, lang.Name(draw(st.sampled_from(known))))
        )
    fitting = [c for c, sizes in scope.callees.items() if sizes == (shape, shape)]
    if fitting:
        return lang.Call(draw(st.sampled_from(fitting)), (value,))
    if not scope.leaves:
        return value
    return lang.Pure("matmul", (value, lang.Name(draw(st.sampled_from(scope.leaves)))))


def scalar(draw: DrawFn, scope: Scope) -> lang.Expr:
    """A loss."""
    known = [n for n in scope.names(SCALAR) if n in scope.graph]
    if known and draw(st.integers(0, 3)) == 3:
        extra, _ = tensor(draw, scope, MATRIX, 1)
        more = lang.Pure(draw(st.sampled_from(("mean", "sum"))), (extra,))
        return lang.Pure(
            draw(st.sampled_from(("add", "mul"))), (lang.Name(draw(st.sampled_from(known))), more)
        )
    value = trained(draw, scope, MATRIX)
    if draw(st.booleans()):
        return lang.Pure("mse", (value, tensor(draw, scope, MATRIX, 1)[0]))
    return lang.Pure(draw(st.sampled_from(("mean", "sum"))), (value,))


# ---- statements


def assign(draw: DrawFn, scope: Scope) -> lang.Statement:
    shape = draw(st.sampled_from((MATRIX, MATRIX, MATRIX, ROW)))
    value, graph = tensor(draw, scope, shape)
    rebound = [n for n in scope.names(shape) if n not in scope.leaves]
    if rebound and draw(st.integers(0, 3)) == 3:
        target = draw(st.sampled_from(rebound))
        scope.bind(target, shape, graph)
    else:
        target = scope.new(shape, graph)
    return lang.Assign(target, value)


def view(draw: DrawFn, scope: Scope) -> lang.Statement:
    name = draw(st.sampled_from([n for n, s in scope.shapes.items() if s in SHAPED]))
    how, shape = draw(st.sampled_from((*SHAPED[scope.shapes[name]], ("detached", scope.shapes[name]))))
    graph = how != "detached" and name in scope.graph
    return lang.Assign(scope.new(shape, graph), lang.View(how, lang.Name(name)))


def split(draw: DrawFn, scope: Scope) -> lang.Statement:
    name = draw(st.sampled_from(scope.names(MATRIX)))
    how, shape = draw(st.sampled_from((("unbind", ROW), ("chunk", (1, 3)), ("split", (1, 3)))))
    graph = name in scope.graph
    return lang.Split((scope.new(shape, graph), scope.new(shape, graph)), how, lang.Name(name))


def write(draw: DrawFn, scope: Scope) -> lang.Statement:
    """An in-place op on a name, on a view of it, or through an alias that autograd does not watch."""
    name = draw(st.sampled_from(_writable(draw, scope)))
    shape = scope.shapes[name]
    target: lang.Expr = lang.Name(name)
    watched = True
    if shape in SHAPED and draw(st.integers(0, 2)) == 2:
        how, shape = draw(st.sampled_from(SHAPED[shape]))
        target = lang.View(how, target)
    if draw(st.integers(0, 3)) == 3:
        target = lang.View(draw(st.sampled_from(("data", "detached"))), target)
        watched = False
    op = draw(st.sampled_from(tuple(lang.WRITES)))
    value, graph = None, False
    if op in lang.TAKES_VALUE:
        if draw(st.booleans()):
            value = lang.Number(draw(st.sampled_from((0.5, 2.0))))
        else:
            value, graph = tensor(draw, scope, shape, 1)
    if graph and watched:
        scope.graph.add(name)
    plain = isinstance(target, lang.Name | lang.View) and _index(target)
    augmented = op in lang.AUGMENTED and plain and draw(st.booleans())
    result = ""
    if not augmented and isinstance(target, lang.Name) and draw(st.integers(0, 3)) == 3:
        result = scope.new(shape, name in scope.graph)
    return lang.Write(target, op, value, augmented, result)


def _index(target: lang.Expr) -> bool:
    return isinstance(target, lang.Name) or (
        isinstance(target, lang.View) and target.how in INDEXED and isinstance(target.of, lang.Name)
    )


def _writable(draw: DrawFn, scope: Scope) -> list[str]:
    """Names to write to: a parameter only now and then, since that ends a program at once."""
    names = [n for n in scope.shapes if n not in scope.leaves and scope.shapes[n] != SCALAR]
    if not names or (scope.leaves and draw(st.integers(0, 9)) == 9):
        names = list(scope.leaves) or names
    return names


def set_item(draw: DrawFn, scope: Scope) -> lang.Statement:
    names = [n for n in _writable(draw, scope) if scope.shapes[n] in ((2, 3), (3, 3))]
    if not names:
        return assign(draw, scope)
    name = draw(st.sampled_from(names))
    how, shape = draw(st.sampled_from([v for v in SHAPED[scope.shapes[name]] if v[0] in INDEXED]))
    if draw(st.booleans()):
        value, graph = tensor(draw, scope, shape, 1)
    else:
        value, graph = lang.Number(0.5), False
    if graph:
        scope.graph.add(name)
    return lang.SetItem(lang.View(how, lang.Name(name)), value)


def hidden(draw: DrawFn, scope: Scope) -> lang.Statement:
    names = scope.names(MATRIX, ROW)
    if not names:
        return assign(draw, scope)
    name = draw(st.sampled_from(names))
    if draw(st.booleans()):
        return lang.NumpyWrite(name)
    return lang.SetData(name, tensor(draw, scope, scope.shapes[name], 1)[0])


def no_grad(draw: DrawFn, scope: Scope) -> lang.Statement:
    inner = scope.inner()
    inner.leaves = ()  # all may be written here
    body = []
    for _ in range(draw(st.integers(1, 2))):
        if scope.leaves and draw(st.integers(0, 2)) == 2:
            leaf = draw(st.sampled_from(scope.leaves))
            value = draw(st.sampled_from((lang.Number(0.5), lang.Pure("scale", (lang.Name(leaf),)))))
            body.append(lang.Write(lang.Name(leaf), draw(st.sampled_from(("mul_", "sub_"))), value))
        else:
            how = draw(st.sampled_from((write, write, assign)))
            body.append(how(draw, inner))
    for name in set(inner.shapes) - set(scope.shapes):
        scope.bind(name, inner.shapes[name], False)
    scope.made = inner.made
    return lang.NoGrad(tuple(body))


def branch(draw: DrawFn, scope: Scope) -> lang.Statement:
    if not scope.counter:
        return assign(draw, scope)
    test = draw(
        st.sampled_from((f"{scope.counter} > 0", f"{scope.counter} % 2 == 0", f"{scope.counter} == 0"))
    )
    bodies = []
    for _ in range(draw(st.integers(1, 2))):
        inner = scope.inner()
        how = draw(st.sampled_from((write, set_item, rebind)))
        bodies.append((how(draw, inner),))
        scope.graph |= inner.graph & set(scope.shapes)
    return lang.If(test, *bodies)


def rebind(draw: DrawFn, scope: Scope) -> lang.Statement:
    names = [n for n in scope.names(MATRIX, ROW) if n not in scope.leaves]
    if not names:
        return assign(draw, scope)
    name = draw(st.sampled_from(names))
    value, graph = tensor(draw, scope, scope.shapes[name])
    scope.bind(name, scope.shapes[name], graph)
    return lang.Assign(name, value)


FORWARD: tuple[Callable[[DrawFn, Scope], lang.Statement], ...] = (
    assign, assign, assign, assign, write, write, set_item, view, split, no_grad, branch, hidden, rebind,
)  # fmt: skip


def forward(draw: DrawFn, scope: Scope, most: int) -> list[lang.Statement]:
    return [draw(st.sampled_from(FORWARD))(draw, scope) for _ in range(draw(st.integers(0, most)))]


# ---- the whole


def body_of(draw: DrawFn, scope: Scope, most: int) -> tuple[lang.Statement, ...]:
    ways = (assign, assign, write, set_item, view)
    return tuple(draw(st.sampled_from(ways))(draw, scope) for _ in range(draw(st.integers(0, most))))


def model(draw: DrawFn, name: str) -> lang.Model:
    layers = draw(st.sampled_from((("first",), ("first", "last"))))
    scope = Scope({"x": MATRIX}, {"x"}, callees={f"self.{x}": (MATRIX, MATRIX) for x in layers})
    first = lang.Assign("x", lang.Call("self.first", (lang.Name("x"),)))
    body = (first, *body_of(draw, scope, 2))
    last = trained(draw, scope, MATRIX, 1)
    if len(layers) == 2:
        last = lang.Call("self.last", (last,))
    return lang.Model(name, layers, body, last)


def function(draw: DrawFn, name: str, callees: dict[str, tuple[Shape, Shape]]) -> tuple[lang.Function, Shape]:
    scope = Scope({"x": MATRIX}, {"x"}, callees=dict(callees))
    body = body_of(draw, scope, 2)
    if draw(st.booleans()):
        return lang.Function(name, ("x",), body, scalar(draw, scope)), SCALAR
    return lang.Function(name, ("x",), body, trained(draw, scope, MATRIX)), MATRIX


def optimizer(draw: DrawFn, name: str, owners: tuple[str, ...]) -> lang.Optimizer:
    kind = draw(st.sampled_from(("SGD", "SGD", "SGD", "Adam")))
    options: tuple[tuple[str, object], ...] = (("lr", 0.1),)
    if kind == "SGD" and draw(st.integers(0, 3)) == 3:
        options += (("momentum", 0.9),)
    if draw(st.integers(0, 7)) == 7:
        options += (("fused", True),)
    return lang.Optimizer(name, kind, owners, options)


@dataclass
class Training:
    """What is drawn before the loop."""

    models: tuple[lang.Model, ...]
    leaves: tuple[lang.Leaf, ...]
    optimizers: tuple[lang.Optimizer, ...]
    functions: tuple[lang.Function, ...]
    scope: Scope


def training(draw: DrawFn) -> Training:
    models = tuple(model(draw, name) for name in ("net", "critic")[: draw(st.integers(0, 2))])
    count = draw(st.integers(0 if models else 1, 2))
    leaves = tuple(lang.Leaf(n, (3, 3)) for n in ("w", "u")[:count])
    owners = [m.name for m in models] + [x.name for x in leaves]
    cut = draw(st.integers(1, len(owners)))
    groups = [tuple(owners[:cut]), tuple(owners[cut:])]
    optimizers = tuple(
        optimizer(draw, name, group) for name, group in zip(("opt", "opt2"), groups, strict=True) if group
    )
    scope = Scope(leaves=tuple(x.name for x in leaves))
    for leaf in leaves:
        scope.bind(leaf.name, leaf.shape, True)
    scope.callees = {m.name: (MATRIX, MATRIX) for m in models}
    functions = []
    if draw(st.integers(0, 2)) == 2:
        made, shape = function(draw, "helper", scope.callees)
        functions.append(made)
        scope.callees["helper"] = (MATRIX, shape)
    return Training(models, leaves, optimizers, tuple(functions), scope)


def losses(draw: DrawFn, scope: Scope, optimizers: tuple[lang.Optimizer, ...]) -> list[lang.Statement]:
    """One loss with what belongs to it, in an order that may be wrong."""
    body: list[lang.Statement] = []
    chosen = draw(st.sampled_from(optimizers)).name
    if draw(st.integers(0, 4)) < 4:
        body.append(lang.Zero(chosen))
    body += forward(draw, scope, 2)
    value = scalar(draw, scope)
    loss = scope.new(SCALAR, True)
    body.append(lang.Assign(loss, value))
    kinds = draw(st.sampled_from(("plain",) * 6 + ("write", "total", "listed")))
    if kinds == "write":
        body.append(draw(st.sampled_from((write, set_item, hidden, no_grad)))(draw, scope))
    retain = draw(st.integers(0, 3)) == 3
    backward: lang.Expr = lang.Name(loss)
    if kinds == "total":
        body.append(draw(st.sampled_from((
            lang.Assign("total", lang.Pure("add", (lang.Name("total"), lang.Name(loss)))),
            lang.Write(lang.Name("total"), "add_", lang.Name(loss), augmented=True),
            lang.Item("total", loss),
        ))))  # fmt: skip
        if not isinstance(body[-1], lang.Item) and draw(st.booleans()):
            backward = lang.Name("total")
    if kinds == "listed":
        body.append(lang.Append("history", lang.Name(loss)))
        if draw(st.booleans()):
            backward = lang.Summed("history")
    body.append(lang.Backward(backward, retain))
    if draw(st.integers(0, 4)) < 4:
        body.append(lang.Step(chosen))
    return body


@st.composite
def programs(draw: DrawFn) -> lang.Program:
    """Any training program."""
    made = training(draw)
    scope = made.scope
    body: list[lang.Statement] = []
    scope.bind("data", MATRIX, False)
    body.append(lang.Assign("data", lang.Fresh("randn", MATRIX)))
    if draw(st.booleans()):
        scope.bind("state", MATRIX, False)
        body.append(lang.Assign("state", lang.Fresh("zeros", MATRIX)))
    if draw(st.integers(0, 3)) == 3:
        body += forward(draw, scope, 2)
    start = len(body)
    scope.counter = "step"
    inner: list[lang.Statement] = []
    for _ in range(draw(st.integers(1, 3))):
        inner += forward(draw, scope, 2)
        inner += losses(draw, scope, made.optimizers)
    if "state" in scope.shapes and draw(st.booleans()):
        value, _ = tensor(draw, scope, MATRIX, 1)
        inner.append(lang.Assign("state", value))
    before = []
    if _uses(inner, "total"):
        before.append(lang.Assign("total", lang.Number(0.0)))
    if _uses(inner, "history"):
        before.append(lang.EmptyList("history"))
    body[start:start] = before
    body.append(lang.For("step", draw(st.integers(1, 3)), tuple(inner)))
    return lang.Program(made.models, made.leaves, made.optimizers, made.functions, tuple(body))


def _uses(body: list[lang.Statement], name: str) -> bool:
    return any(name in line for s in body for line in s.lines())


@st.composite
def adversaries(draw: DrawFn) -> lang.Program:
    """Two models, two optimizers, and losses that share what the one made: in many orders, sound ones among them."""
    models = (model(draw, "net"), model(draw, "critic"))
    optimizers = (optimizer(draw, "opt", ("net",)), optimizer(draw, "opt2", ("critic",)))
    scope = Scope(callees={m.name: (MATRIX, MATRIX) for m in models}, counter="step")
    name = lang.Name
    body: list[lang.Statement] = [
        lang.Assign("data", lang.Fresh("randn", MATRIX)),
        lang.Assign("fake", lang.Call("net", (lang.Fresh("randn", MATRIX),))),
        lang.Assign("score", lang.Call("critic", (name("fake"),))),
    ]
    scope.bind("data", MATRIX, False)
    scope.bind("fake", MATRIX, True)
    scope.bind("score", MATRIX, True)
    disturbed = scope.inner()
    body += forward(draw, scope, 1)
    seen: lang.Expr = name("fake")
    if draw(st.booleans()):
        seen = lang.View("detached", seen)
    judged: lang.Expr = name("score") if draw(st.integers(0, 2)) == 2 else lang.Call("critic", (seen,))
    real = lang.Pure("mean", (lang.Call("critic", (name("data"),)),))
    loss = lang.Assign("loss_d", lang.Pure("sub", (lang.Pure("mean", (judged,)), real)))
    other: lang.Expr = name("score") if draw(st.booleans()) else lang.Call("critic", (name("fake"),))
    loss_g = lang.Assign("loss_g", lang.Pure("mean", (lang.Pure(draw(st.sampled_from(SMOOTH)), (other,)),)))
    retain = [draw(st.booleans()), draw(st.integers(0, 4)) == 4]
    train_d = [lang.Zero("opt2"), lang.Backward(name("loss_d"), retain[0]), lang.Step("opt2")]
    train_g = [lang.Zero("opt"), lang.Backward(name("loss_g"), retain[1]), lang.Step("opt")]
    order = draw(st.sampled_from(("d first", "g first", "losses first", "backwards first", "zeros first")))
    if order == "d first":
        body += [loss, *train_d, loss_g, *train_g]
    elif order == "g first":
        body += [loss_g, *train_g, loss, *train_d]
    elif order == "losses first":
        body += [loss, loss_g, *train_d, *train_g]
    elif order == "backwards first":
        body += [loss, *train_d[:2], loss_g, *train_g[:2], train_d[2], train_g[2]]
    else:
        body += [train_d[0], train_g[0], loss, loss_g, *train_d[1:], *train_g[1:]]
    _disturb(draw, disturbed, body)
    return lang.Program(models, (), optimizers, (), (lang.For("step", draw(st.integers(2, 3)), tuple(body)),))


@st.composite
def recurrences(draw: DrawFn) -> lang.Program:
    """A state that is carried from pass to pass, cut or not."""
    models = (model(draw, "net"),) if draw(st.booleans()) else ()
    leaves = (lang.Leaf("w", (3, 3)), lang.Leaf("u", (3, 3)))
    optimizers = (optimizer(draw, "opt", (*(m.name for m in models), "w", "u")),)
    scope = Scope(leaves=("w", "u"), counter="step", callees={m.name: (MATRIX, MATRIX) for m in models})
    for leaf in leaves:
        scope.bind(leaf.name, leaf.shape, True)
    name = lang.Name
    scope.bind("state", MATRIX, False)
    scope.bind("data", MATRIX, False)
    inner = lang.Pure("add", (lang.Pure("matmul", (name("data"), name("w"))), _next(draw)))
    body: list[lang.Statement] = [lang.Assign("data", lang.Fresh("randn", MATRIX))]
    if draw(st.booleans()):
        body.append(lang.Zero("opt"))
    body.append(lang.Assign("state", lang.Pure(draw(st.sampled_from(("tanh", "sigmoid", "sin"))), (inner,))))
    scope.bind("state", MATRIX, True)
    disturbed = scope.inner()
    body += forward(draw, scope, 1)
    body.append(lang.Assign("loss", scalar(draw, scope)))
    scope.bind("loss", SCALAR, True)
    many = draw(st.integers(0, 3))
    after: list[lang.Statement] = [lang.Backward(name("loss"), draw(st.integers(0, 3)) == 3)]
    if lang.Zero("opt") not in body:
        after.insert(0, lang.Zero("opt"))
    after.append(lang.Step("opt"))
    if many == 3:  # a window of passes
        body[1:1] = [lang.If("step == 0", (lang.Assign("total", lang.Number(0.0)),))]
        body.append(lang.Assign("total", lang.Pure("add", (name("total"), name("loss")))))
        after = [lang.Backward(name("total"), draw(st.booleans())), lang.Step("opt"), lang.Zero("opt")]
        body.append(lang.If("step % 2 == 1", tuple(after)))
    else:
        body += after
    cut = draw(st.integers(0, 3))
    if cut:
        kept = name("state") if cut == 3 else lang.View(("detached", "data")[cut - 1], name("state"))
        body.append(lang.Assign("state", kept))
    _disturb(draw, disturbed, body)
    start = lang.Assign("state", lang.Fresh("zeros", MATRIX))
    return lang.Program(
        models, leaves, optimizers, (), (start, lang.For("step", draw(st.integers(2, 4)), tuple(body)))
    )


def _next(draw: DrawFn) -> lang.Expr:
    state = lang.Pure("matmul", (lang.Name("state"), lang.Name("u")))
    return state if draw(st.booleans()) else lang.Pure("mul", (lang.Name("state"), state))


def _disturb(draw: DrawFn, scope: Scope, body: list[lang.Statement]) -> None:
    """A statement more, where it may do harm; `scope` is what the third statement knows."""
    scope.made = 50
    for _ in range(draw(st.integers(0, 1))):
        how = draw(st.sampled_from((write, set_item, no_grad, hidden, rebind, assign)))
        used = how(draw, scope)
        places = list(range(3, len(body) + 1))
        body.insert(draw(st.sampled_from(places)), used)


@st.composite
def sound(draw: DrawFn) -> lang.Program:
    """Trainings that nothing is wrong with: what is written in place is nobody's, what is carried is detached, every
    optimizer clears, fills and uses its gradients."""
    x = lang.Name("x")
    hidden_layer = lang.Pure(draw(st.sampled_from(("tanh", "sigmoid", "relu"))), (x,))
    step = lang.Assign("x", lang.Call("self.first", (x,)))
    models = (lang.Model("net", ("first", "last"), (step,), lang.Call("self.last", (hidden_layer,))),)
    optimizers = (optimizer(draw, "opt", ("net",)),)
    name = lang.Name
    body: list[lang.Statement] = [lang.Assign("data", lang.Fresh("randn", MATRIX))]
    if draw(st.booleans()):
        body += [
            lang.Assign("mask", lang.Fresh("ones", MATRIX)),
            lang.SetItem(lang.View(draw(st.sampled_from(INDEXED)), name("mask")), lang.Number(0.5)),
            lang.Write(name("data"), "mul_", name("mask"), draw(st.booleans())),
        ]
    if draw(st.booleans()):
        body.append(lang.Write(name("data"), draw(st.sampled_from(("tanh_", "clamp_", "relu_", "neg_")))))
    body.append(lang.Assign("out", lang.Call("net", (name("data"),))))
    if draw(st.booleans()):
        body.append(
            lang.Write(name("out"), "add_", lang.Number(0.5), True)
        )  # a linear layer does not keep its result
    if draw(st.booleans()):
        body.append(lang.Assign("out", lang.Pure("add", (name("out"), name("state")))))
    body.append(
        lang.Assign(
            "loss", lang.Pure(draw(st.sampled_from(("mean", "sum"))), (lang.Pure("square", (name("out"),)),))
        )
    )
    if draw(st.booleans()):
        body.append(
            lang.Assign("loss", lang.Pure("add", (name("loss"), lang.Pure("scale", (name("loss"),)))))
        )
    body += [lang.Zero("opt"), lang.Backward(name("loss")), lang.Step("opt")]
    body.append(lang.Assign("state", lang.View("detached", name("out"))))
    body.append(lang.Item("total", "loss"))
    start = (lang.Assign("state", lang.Fresh("zeros", MATRIX)), lang.Assign("total", lang.Number(0.0)))
    return lang.Program(
        models, (), optimizers, (), (*start, lang.For("step", draw(st.integers(1, 3)), tuple(body)))
    )


def any_program() -> st.SearchStrategy[lang.Program]:
    return st.one_of(programs(), programs(), adversaries(), recurrences())
