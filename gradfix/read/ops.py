"""Tensor ops: from the effect table and what the arguments are, to nodes, saves, writes and views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradfix.read import behind, constants, effects, itself, outgrown, shapes, strides
from gradfix.read.effects import Overload
from gradfix.read.frames import Machine
from gradfix.read.trace import LEAF, LEAF_VIEW, VIEWS
from gradfix.read.values import Lib, Node, Shape, Taken, Tensor, Truth, Unknown, Value

# ops of Python's operators that take a number where a tensor is declared
NUMBERS = {
    "add",
    "sub",
    "mul",
    "div",
    "floor_divide",
    "remainder",
    "true_divide",
    "multiply",
    "divide",
    "subtract",
    "rsub",
}
SYNONYMS = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "self",
    "input": "self",
    "min_val": "min",
    "max_val": "max",
}
REDUCTIONS = ("mean", "sum", "none", "batchmean")  # whole numbers below torch.nn.functional
INTEGERS = {"int64", "int32", "int16", "int8", "uint8", "bool"}
WHOLE = {"argmax", "argmin", "argsort", "nonzero", "bincount", "searchsorted", "bucketize", "multinomial"}
# ops whose saved parts the table can't name: each tensor of the list is kept for the others
PRODUCTS = {"einsum", "tensordot", "chain_matmul", "linalg_multi_dot", "cartesian_prod"}
# a view in any case, and none of a tensor that may be the same: refused where it was made under no_grad
UNSEEN = {
    "alias", "chunk", "expand", "narrow", "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view", "view_as",
}  # fmt: skip
FILLING = {"fill", "zero"}
JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack"}
SLICED = {"tensor_split", "hsplit", "vsplit", "dsplit"}  # each piece by an op of its own, that may be written


def operator_(m: Machine, name: str, left: Value, right: Value) -> Value:
    """A binary operator of which one side is a tensor."""
    if left is None or right is None:
        kinds = ("NoneType", "Tensor") if left is None else ("Tensor", "NoneType")
        m.fail("TypeError", f"unsupported operand type(s): {kinds[0]!r} and {kinds[1]!r}")
    if not isinstance(left, Tensor):
        if isinstance(left, list | tuple | dict | str):
            return m.unknown("operator")
        if name == "sub":
            return apply(m, "rsub", [right, left], {})
        if name == "div":
            return apply(m, "mul", [apply(m, "reciprocal", [right], {}), left], {})
        if name in ("add", "mul"):
            left, right = right, left
    return apply(m, name, [left, right], {})


def apply(m: Machine, name: str, args: Sequence[Value], kwargs: dict[str, Value], module: str = "") -> Value:
    """Call the op `name` of the table."""
    if m.constants:
        m.leaving.clear()
    made = _applied(m, name, args, kwargs, module)
    if m.constants:
        constants.follow(m, name, args, made)
    return made


def _applied(m: Machine, name: str, args: Sequence[Value], kwargs: dict[str, Value], module: str) -> Value:
    out = kwargs.pop("out", None) if "out" in kwargs else None
    found = _match(name, args, kwargs)
    if found is None:
        return outgrown.unmatched(m, name, args)
    overload, bound = found
    first = next(iter(bound.values()), None)
    if name.startswith("masked_"):
        outgrown.masked(m, name, bound.get("mask"))
    if name.endswith("_") and overload.results.startswith("w"):
        return _in_place(m, name, overload, bound, module) if isinstance(first, Tensor) else first
    if overload.results == "n":
        return m.unknown(name)
    if overload.results.startswith(("v", "m")) and isinstance(first, Tensor):
        return view(m, name, overload, bound)
    result = _compute(m, name, overload, bound)
    if isinstance(out, Tensor) and isinstance(result, Tensor):
        if m.grad and out.requires:
            return out  # hardly an op takes one that requires grad
        write(m, out, "aten." + name, result.requires, result.node)
        return out
    return result


def _match(
    name: str, args: Sequence[Value], kwargs: dict[str, Value]
) -> tuple[Overload, dict[str, Value]] | None:
    candidates = effects.overloads(name)
    loose = name.strip("_") in NUMBERS
    for lenient in (False, True):
        for overload in candidates:
            bound = _bind(overload, args, kwargs, loose or lenient)
            if bound is not None:
                return overload, bound
    return None


def _bind(
    overload: Overload, args: Sequence[Value], kwargs: dict[str, Value], numbers: bool
) -> dict[str, Value] | None:
    bound: dict[str, Value] = {}
    arguments = overload.arguments
    i = 0
    for argument in overload.positional:
        if i >= len(args):
            break
        value = args[i]
        if argument.kind == "J" and isinstance(value, int | Unknown) and len(args) > i + 1:
            rest = list(args[i:])
            if all(isinstance(v, int | Unknown) and not isinstance(v, bool) for v in rest):
                bound[argument.name] = rest
                i = len(args)
                break
        bound[argument.name] = value
        i += 1
    if i < len(args):
        return None
    names = {a.name for a in arguments} if kwargs else ()
    for key, value in kwargs.items():
        other = SYNONYMS.get(key, key)
        if key not in names and other in names:
            key = other
        elif key not in names and key in ("input", "self") and arguments:
            key = arguments[0].name
        if key not in names:
            if key in (
                "dtype",
                "device",
                "generator",
                "requires_grad",
                "layout",
                "inplace",
                "memory_format",
                "**",
            ):
                continue
            return None
        bound[key] = value
    for argument in arguments:
        if argument.name in bound:
            if not _fits(argument.kind, argument.optional, bound[argument.name], numbers):
                return None
        elif not argument.optional:
            return None
    ordered = {a.name: bound[a.name] for a in arguments if a.name in bound}
    return ordered


def _fits(kind: str, optional: bool, value: Value, numbers: bool) -> bool:
    if isinstance(value, Unknown) or kind == "X":
        return True
    if value is None:
        return optional
    if kind == "T":
        return isinstance(value, Tensor) or (numbers and isinstance(value, int | float | complex))
    if kind == "L":
        return isinstance(value, list | tuple) and all(isinstance(v, Tensor | Unknown) for v in value)
    if kind == "S":
        return isinstance(value, int | float | complex) or (isinstance(value, Tensor) and numbers)
    if kind == "I":
        return isinstance(value, int) or value in REDUCTIONS
    if kind == "J":
        return isinstance(value, int | list | tuple) and not (
            isinstance(value, list | tuple) and any(isinstance(v, Tensor | list | tuple | str) for v in value)
        )
    if kind == "D":
        return isinstance(value, Lib)
    return isinstance(value, bool | int)


# ---- graph


def edge(m: Machine, tensor: Tensor) -> Node | Tensor:
    """What the graph has for `tensor`: its node, or itself where it is a leaf. A view of what was written to gets a
    node of its new graph."""
    base = tensor.base
    if (
        base is not None
        and tensor.rebased != base.rebased
        and base.node is not None
        and tensor.alias != "numpy"
        and tensor.view != "custom"
        and not (tensor.view and behind.outdated(tensor))
    ):
        origin = "as_strided" if tensor.guessed else tensor.origin or "as_strided"
        node = m.trace.node(effects.node_of(origin), "aten." + origin, [base.node])
        node.output = tensor
        tensor.node, tensor.rebased, tensor.requires = node, base.rebased, True
    return tensor if tensor.node is None else tensor.node


def requires(m: Machine, tensor: Tensor) -> Truth:
    """requires_grad of a tensor, written to through a view or not."""
    edge(m, tensor)
    return tensor.requires


def joined(truths: Iterable[Truth]) -> Truth:
    """Whether any of them holds."""
    known = list(truths)
    return True if True in known else None if None in known else False


def tensors_of(value: Value) -> list[Tensor]:
    """The tensors in an argument: itself, or those in a list."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [v for v in value if isinstance(v, Tensor)]
    return []


def _vague(value: Value) -> bool:
    """Whether a tensor that isn't known may be in `value`: it, or one of the list that is joined."""
    if isinstance(value, list | tuple):
        return not value or any(isinstance(v, Unknown) for v in value)
    return isinstance(value, Unknown) and not isinstance(value, Taken)


def graph(m: Machine, op: str, name: str, wanted: Iterable[Value]) -> tuple[Truth, Node | None, list[Tensor]]:
    """(requires_grad of the result, its node, the inputs that need a gradient)."""
    inputs = [t for value in wanted for t in tensors_of(value) if t.dtype not in INTEGERS]
    vague = any(_vague(v) for v in wanted)
    if not m.grad:
        cut = next((t for t in inputs if t.requires and (t.node is not None or t.parameter)), None)
        if cut is not None and not m.inference:
            no_grad(m, cut)
        return False, None, []
    behind.met(m, (t for t in inputs if t.view))
    needing = [t for t in inputs if requires(m, t)]
    if not needing:
        return (None if vague or any(t.requires is None for t in inputs) else False), None, []
    node = m.trace.node(name, op, [edge(m, t) for t in needing])
    node.vague, node.needing = vague or any(t.requires is None for t in inputs), needing
    return True, node, needing


def no_grad(m: Machine, tensor: Tensor) -> None:
    """A function of a tensor that requires grad, under no_grad."""
    key = "no_grad"
    m.asked[key] = m.asked.get(key, 0) + 1
    if m.asked[key] <= 64:
        how = "no_grad" if m.checkpoint is None else "checkpoint"
        m.leaving.add(m.trace.cut(how, tensor, tensor.node, m.checkpoint))
        m.constants = True


def discrete(m: Machine, inputs: Iterable[Value]) -> None:
    """Indices, other whole numbers or truth values are made of these: they have no gradient."""
    from gradfix.read import names

    cut = next((t for t in inputs if isinstance(t, Tensor) and t.requires and t.node is not None), None)
    m.asked["discrete"] = m.asked.get("discrete", 0) + 1
    if cut is not None and m.grad and m.asked["discrete"] <= 64:
        names.local(m, cut)
        m.leaving.add(m.trace.cut("discrete", cut, cut.node))
        m.constants = True


def keep(
    m: Machine, node: Node, overload: Overload, bound: dict[str, Value], needing: list[Tensor]
) -> list[str]:
    """Save what the gradients of `needing` read; the results among it are returned by name."""
    later: list[str] = []
    kept: set[str] = set()
    for wanted, names in overload.saves.items():
        if any(t in needing for t in tensors_of(bound.get(wanted))):
            kept.update(names)
    for name in sorted(kept):
        if name in bound:
            value = bound[name]
            for tensor in tensors_of(value):
                if m.autocast:
                    m.trace.save_own(node)
                else:
                    m.trace.save(node, tensor, _as_it_is(node, bound))
            if isinstance(value, int | float | complex):
                node.bare = True
            elif isinstance(value, Unknown):
                m.trace.save_own(node)  # a tensor, whichever
        elif name in overload.names:
            later.append(name)
        else:
            m.trace.save_own(node)
    return later


def _as_it_is(node: Node, bound: dict[str, Value]) -> bool:
    """Whether an op keeps its arguments themselves: a linear layer keeps its weight transposed, and a product of
    batches what it has made two dimensions of."""
    if node.op == "aten.addmm" and "weight" in bound:
        return False
    tensors = tensors_of(list(bound.values()))
    return node.op != "aten.mm" or all(t.shape is not None and len(t.shape) <= 2 for t in tensors)


def _compute(m: Machine, name: str, overload: Overload, bound: dict[str, Value]) -> Value:
    plain = name.removeprefix("nn.")
    op = effects.op_of(overload.node) if overload.node else "aten." + plain
    node_name = overload.node or effects.node_of(plain)
    saves = overload.saves
    differentiable = (
        [n for n in bound if n in saves] if saves else [] if _never(plain, overload) else list(bound)
    )
    known: Truth
    known, node, needing = graph(m, op, node_name, [bound.get(n) for n in differentiable])
    later: list[str] = []
    if node is not None:
        node.scaled = "alpha" in bound or (plain == "sub" and bound["self"] not in needing)
        node.given = bound if len(overload.results) == 1 else None
        if plain in PRODUCTS:
            for tensor in needing:
                for other in tensors_of(bound.get("tensors")):
                    if other is not tensor:
                        m.trace.save(node, other)
        later = keep(m, node, overload, bound, needing)
        itself.look(m, plain, bound, node)
    kind = shapes.dtype_of(plain, bound)
    if kind in INTEGERS:
        discrete(m, bound.values())
        known, node = False, None
    if overload.results == "l":
        made = [new(m, None, kind, known, node) for _ in range(2)]
        return made
    results: list[Tensor] = []
    for i, each in enumerate(overload.results):
        whole = (
            overload.names[i] in ("indices", "counts", "inverse_indices")
            if i < len(overload.names)
            else False
        )
        shape = shapes.result_of(plain, bound) if i == 0 or whole else None
        if each in "tvw":
            own = new(
                m, shape, "int64" if whole else kind, False if whole else known, None if whole else node
            )
            results.append(own)
    if plain in JOINS and results:
        parts = ((t.storage, t.storage.version) for t in tensors_of(bound["tensors"]))
        results[0].storage.joined = (plain, bound.get("dim", 0), *parts)
    for label in later:
        at = overload.names.index(label)
        if node is not None and at < len(results):
            m.trace.save(node, results[at])
    if node is not None and results:
        node.output = results[0]
    return results[0] if len(results) == 1 else tuple(results)


def _never(name: str, overload: Overload) -> bool:
    """Whether an op has no gradient: it gives truth values, indices, or the table says so."""
    return overload.node == "-" or name in WHOLE or name.startswith(("is", "bitwise", "logical"))


def new(
    m: Machine, shape: Shape, dtype: str = "float32", known: Truth = False, node: Node | None = None
) -> Tensor:
    """A tensor of its own storage."""
    return Tensor(m.trace.storage(), known, node, shape, dtype)


def fill(tensor: Tensor, number: Value) -> None:
    """All of `tensor` is `number` now."""
    if isinstance(number, int | float):
        tensor.storage.filled = tensor.storage.version, float(number)


# ---- views


def view(
    m: Machine, name: str, overload: Overload, bound: dict[str, Value], count: int | None = None
) -> Value:
    """An op whose result shares the memory of its first argument."""
    source = next(iter(bound.values()))
    op = effects.op_of(overload.node) if overload.node else "aten." + name
    many = overload.results.startswith("m")
    known, node, _ = graph(m, op, overload.node or effects.node_of(name), [source])
    if node is not None and not many:
        node.given = bound
    if many:
        number = count if count is not None else shapes.pieces(name, bound)
        made = [aliased(m, source, known, node, name) for _ in range(number)]
        shape = shapes.piece_of(name, bound, number)
        source.storage.known = source.storage.split = True  # what is written behind them is told
        for each in made:
            each.shape = shape
            each.view = each.view or ("" if name in SLICED else "multi-view")
        if node is not None and made:
            node.output = made[0]
        return tuple(made)
    result = aliased(m, source, known, node, name)
    result.shape = shapes.result_of(name, bound)
    result.spread = strides.of_view(name, source, result.shape, bound)
    return result


def aliased(m: Machine, source: Tensor, known: Truth, node: Node | None, origin: str) -> Tensor:
    """Another tensor of `source`'s memory, its view where autograd knows it."""
    base = source.base or source
    result = Tensor(
        source.storage, known, node, None, source.dtype, base, base.rebased, source.view, source.alias, origin
    )
    result.spread, result.memory = None if source.spread != () else (), source.memory
    result.cut, result.left = source.cut, source.left if known is False else frozenset()
    if not m.grad and source.alias != "numpy" and origin in UNSEEN:
        result.view = "no-grad"
    if node is not None:
        node.output = result
    return result


# ---- writes


def _in_place(m: Machine, name: str, overload: Overload, bound: dict[str, Value], module: str) -> Tensor:
    target: Tensor = next(iter(bound.values()))
    others = list(list(bound.values())[1:])
    plain = name.rstrip("_")
    op = effects.op_of(overload.node) if overload.node else "aten." + plain
    refused = refusal(m, target, others, strides.refused(target, plain))
    known = joined([requires(m, target), *(requires(m, t) for v in others for t in tensors_of(v))])
    node: Node | None = None
    later: list[str] = []
    if m.grad and known and target.alias != "numpy" and not refused:
        node_name = overload.node or effects.node_of(plain)
        _, node, needing = graph(m, op, node_name, [target, *others])
        if node is not None:
            node.scaled = "alpha" in bound or (plain == "sub" and target not in needing)
            node.given = bound
            later = keep(m, node, overload, bound, needing)
    write(m, target, "aten." + name, known, node, refused, module)
    if plain in FILLING and target.base is None and not target.alias:
        fill(target, others[0] if others else 0)
    if node is not None and later:
        m.trace.save(node, target)
    if any(isinstance(v, Unknown) for v in others) and not target.requires:
        target.requires = (
            None if target.requires is False and m.grad and target.alias != "numpy" else target.requires
        )
    return target


def refusal(m: Machine, target: Tensor, others: Sequence[Any] = (), overlaps: bool = False) -> str:
    """What PyTorch says to an in-place write that it doesn't allow; "" where it does. `overlaps`: several elements of
    what is written lie in one place."""
    if target.alias == "numpy" or not m.grad:
        return VIEWS["expanded"] if overlaps else ""
    base = target.base
    if base is None:
        return LEAF if target.requires and target.leaf else ""
    if target.view == "no-grad" and base.requires:  # (which the view says of itself, too)
        return VIEWS["no-grad"]
    if base.leaf and (base.requires or target.requires):
        return LEAF_VIEW
    needing = requires(m, target) or any(requires(m, t) for v in others for t in tensors_of(v))
    if target.view in ("multi-view", "no-grad", "custom") and needing:
        made = target.node
        name = made.name if target.view == "custom" and made is not None else effects.node_of(target.origin)
        return VIEWS[target.view].format(name)
    return VIEWS["expanded"] if overlaps else ""


def write(
    m: Machine, target: Tensor, op: str, known: Truth, node: Node | None, refused: str = "", module: str = ""
) -> None:
    """An op wrote into `target`: its storage's version, and the graph of what shares it."""
    from gradfix.read import names

    names.local(m, target)
    how = target.alias if target.alias in ("data", "detach", "numpy") else "module" if module else ""
    if not m.grad and (target.base or target).node is not None:
        target.storage.known = True  # its graph knows nothing of it
    m.trace.wrote(op, target, target.alias not in ("data", "numpy"), how, refused, module)
    leaf = target.storage.grad_of
    if leaf is not None and isinstance(leaf.grad, Tensor) and leaf.grad.storage is target.storage:
        m.trace.zero([leaf]) if op == "aten.zero_" else m.trace.grad_write(leaf)
    if refused:
        return
    if m.grad and target.alias != "numpy" and node is not None:
        base = target.base or target
        base.node, base.requires = node, True
        base.rebased += 1
        node.output = base
        if target is not base:
            target.node, target.requires, target.rebased = node, True, base.rebased
            target.rebased -= 1  # a view gets a node of its own when it is used next
    elif known is None and m.grad and target.alias != "numpy":
        base = target.base or target
        if base.requires is False:
            base.requires = None
