"""Backwards: ``backward()``, ``autograd.grad``, ``autograd.backward``."""

from __future__ import annotations

import ast
from dataclasses import replace

from gradfix.read import iteration, opposed, ops, optimizers
from gradfix.read.frames import Machine
from gradfix.read.trace import NO_INPUT
from gradfix.read.values import Node, Tensor, Unknown, Value
from gradfix.tape import Cut, Uncalled


def backward(m: Machine, roots: list[Value], given: dict[str, Value]) -> Value:
    """Fill the gradients of the leaves behind `roots`."""
    inputs = _listed(m, given.get("inputs"))
    _run(m, roots, given, inputs, True)
    return None


def alone(m: Machine, value: ast.expr) -> None:
    """The expression is a statement of its own: nothing takes what ``x.detach()`` gave."""
    if isinstance(value, ast.Attribute) and value.attr == "backward":
        _uncalled(m, value)
    elif (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "detach"
    ):
        last = m.trace.events[-1] if m.trace.events else None
        if isinstance(last, Cut):
            m.trace.events[-1] = replace(last, dropped=True)


def _uncalled(m: Machine, named: ast.Attribute) -> None:
    """``loss.backward`` as a statement."""
    from gradfix.read.expressions import evaluate

    loss = evaluate(m, named.value) if isinstance(named.value, ast.Name | ast.Attribute) else None
    if isinstance(loss, Tensor) and loss.requires and loss.node is not None:
        m.frame.node = named
        m.trace.add(Uncalled(m.trace.tick(), m.stack(), loss.node.number, m.trace.ref(loss)))


def grad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.autograd.grad``: the gradients of some inputs, none filled."""
    names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    roots = _listed(m, given.get("outputs")) or []
    inputs = _listed(m, given.get("inputs"))
    if inputs is None:
        _run(m, roots, given, [], False)
        return m.unknown("autograd.grad")
    create = given.get("create_graph") is True
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    walked = _run(m, roots, given, inputs, False)
    results: list[Value] = []
    node = None
    plain = given.get("create_graph") in (None, False) and bool(walked)
    if create and walked and roots:
        parents = [ops.edge(m, t) for t in [*roots, *tensors] if isinstance(t, Tensor) and t.requires]
        node = m.trace.node("GradBackward0", "aten.grad", parents)
        # a second backward reads what the first one read
        for each in walked:
            node.saves += [s for s in each.saves if s not in node.saves][:64]
            for saved in each.saves:
                saved.storage.saved.append(node)
    # (that of something unknown may have a graph, where one is asked for)
    requires = node is not None or (False if given.get("create_graph") in (None, False) else None)
    for each in inputs:
        if isinstance(each, Tensor):
            result = ops.new(m, each.shape, each.dtype, requires, node)
            result.storage.plain = plain
            m.constants = m.constants or plain
            results.append(result)
        else:
            results.append(m.unknown("autograd.grad"))
    if node is not None and results:
        node.output = results[0] if isinstance(results[0], Tensor) else None
    return tuple(results)


def _run(
    m: Machine, roots: list[Value], given: dict[str, Value], inputs: list[Value] | None, accumulate: bool
) -> list[Node]:
    from gradfix.read import names

    tensors = [t for t in roots if isinstance(t, Tensor)]
    site = m.stack()[-1]
    if "retain_variables" in given:
        m.outdated("TypeError", "Tensor.backward() got an unexpected keyword argument 'retain_variables'")
    if len(tensors) < len(roots):
        blur(m)
    if not tensors:
        return []
    m.reached.add(site)
    m.backwards += 1
    create = given.get("create_graph") is True
    retain = given.get("retain_graph", given.get("retain_variables"))
    if isinstance(retain, Unknown):
        return []
    retain = create if retain is None else bool(retain)
    names.look(m)
    known = [ops.requires(m, t) for t in tensors]
    if None in known:
        blur(m)
    if False in known and len(tensors) == 1 and all(isinstance(t, Tensor) for t in roots):
        if m.grad and any(optimizers.strange(each) for each in m.optimizers):
            blur(m)  # what is trained may have been put into a network whose own weights are frozen
            return []
        if any(t is tensors[0] for t in m.initial):
            blur(m)
            return []
        if not m.grad and m.turned_off:
            m.trace.off(m.turned_off)
        m.trace.no_graph(tensors[0], retain, create, inputs is not None)
        return []
    edges = [ops.edge(m, t) for t, k in zip(tensors, known, strict=True) if k]
    if not edges:
        return []
    if not accumulate and all(known) and any(_constant(m, t) for t in inputs or ()):
        m.trace.no_graph(tensors[0], retain, create, True, NO_INPUT)
        return []
    chosen = None
    if inputs is not None:
        chosen = [ops.edge(m, t) for t in inputs if isinstance(t, Tensor)]
    for root in tensors:
        if isinstance(root.node, Node) and root.node.output is None:
            root.node.output = root
    filled = walk(m, edges, chosen, retain, create, accumulate)
    _fill(m, filled)
    for root in tensors:
        if root.retains:
            root.grad = ops.new(m, root.shape, root.dtype)
    walked, _ = m.trace.reached(edges, chosen)
    for node in walked:
        output = node.output
        if output is not None and output.retains and output.grad is None:
            output.grad = ops.new(m, output.shape, output.dtype)
    if any(node.vague for node in walked) or any(t.node is None and t.storage.guessed for t in tensors):
        blur(m)  # (a loss made anew where things went wrong, say)
    if len(edges) == 1 and isinstance(edges[0], Node) and chosen is None and len(m.optimizers) > 1:
        opposed.look(m, edges[0], walked, filled)
    return walked


def _constant(m: Machine, tensor: Value) -> bool:
    """Whether autograd refuses the gradient of `tensor`, which nothing unknown has had in its hands."""
    return (
        isinstance(tensor, Tensor)
        and ops.requires(m, tensor) is False
        and not tensor.storage.handed
        and not any(t is tensor for t in m.initial)
    )


def _fill(m: Machine, leaves: list[Tensor]) -> None:
    for leaf in leaves:
        if leaf.grad is None or isinstance(leaf.grad, Unknown):
            leaf.grad = made = ops.new(m, leaf.shape, leaf.dtype)
            made.storage.grad_of = leaf


def outside(m: Machine, loss: Value) -> None:
    """A backward that a library calls for a loss which the program gives it."""
    if not isinstance(loss, Tensor) or ops.requires(m, loss) is None:
        blur(m)
    elif loss.requires:
        root = ops.edge(m, loss)
        nodes, _ = m.trace.reached([root], None)
        _fill(m, walk(m, [root], None, False, False, True))
        if any(node.vague for node in nodes):
            blur(m)


def walk(
    m: Machine, roots: list[Node | Tensor], inputs: list[Node | Tensor] | None, retain: bool, create: bool,
    accumulate: bool,
) -> list[Tensor]:  # fmt: skip
    """Walk the graph from `roots`, custom Functions and hooks on the way; the leaves whose gradient was filled."""
    if not (m.functions or m.hooked):
        return m.trace.backward(roots, inputs, retain, create, accumulate)
    from gradfix.read import walked

    return m.trace.backward(roots, inputs, retain, create, accumulate, walked.met(m, roots, inputs, create))


def blur(m: Machine) -> None:
    """A backward went where the text doesn't show: any parameter may have got a gradient by it."""
    m.blurs += 1


def _listed(m: Machine, value: Value) -> list[Value] | None:
    if value is None or isinstance(value, Unknown):
        return None
    if isinstance(value, Tensor):
        return [value]
    return iteration.listed(m, value)
