"""See :class:`TorchFunctions`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange, parenthesized
from gradfix.graph import Graph
from gradfix.rewrite.blocks import method, of_torch
from gradfix.rewrite.boundary import functions, gather
from gradfix.rewrite.calls import taken_as
from gradfix.rewrite.liveness import dotted, statement_before
from gradfix.rewrite.peeling import MAKERS, innermost, layer_in, outermost, peel, put
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import block_of, body_of, reads_of, take_away, unit_in, units
from gradfix.run.child.words import ELEMENTWISE, IN_TORCH
from gradfix.tape import Added, Backward, Cut, Stack

TERM = Effect(
    "adds-gradient", "this term of the loss trains what it is computed from; the others do as before"
)
# NumPy's names -> torch's, for functions that take and give the same
SAME = {
    name: IN_TORCH.get(name, name)
    for name in (
        *ELEMENTWISE,
        *("mean", "sum", "prod", "max", "min", "amax", "amin", "linalg.norm"),
        *("clip", "power", "matmul", "dot", "outer", "diff"),
    )
}
WHOLE = ("max", "min")  # of one axis, torch's give indices as well
COPIES = ("array", "asarray", "ascontiguousarray", "float32", "float64")
METHODS = frozenset(
    (
        "mean",
        "sum",
        "prod",
        "clip",
        "reshape",
        "flatten",
        "ravel",
        "squeeze",
        "max",
        "min",
        "dot",
        "abs",
        "pow",
    )
)
REDUCING = ("mean", "sum", "prod", "max", "min", "amax", "amin", "linalg.norm")
DEEP = 40


class TorchFunctions(Codemod):
    """Compute a term of the loss with torch's functions, not NumPy's.

    Why: autograd sees nothing of what NumPy or Python computes. A term of the loss that is made there, of an array or
    of numbers that were read of a tensor, is a constant: the loss shows it, and nothing is trained by it.

    When not: where the number is meant as one: a weight, a target, a baseline, what is shown.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import numpy as np
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(4, 5, 3):
    y = net(x)
    loss = (y - 1).pow(2).mean() + 0.1 * np.mean(np.abs(y.detach().numpy()))  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import numpy as np
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(4, 5, 3):
    y = net(x)
    loss = (y - 1).pow(2).mean() + 0.1 * torch.mean(torch.abs(y))  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        cut, used = conflict.event, conflict.label("used")
        if (
            not isinstance(cut, Cut)
            or used is None
            or conflict.pattern not in ("computed-term", "constant-term")
        ):
            return
        found = project.node(cut.stack[-1])
        layer = layer_in(*found) if found is not None else None
        if found is None or layer is None:
            return
        way = _Way(project, cut.stack, used.stack, conflict.backward)
        if way.value(found[0], layer) and way.functions:
            yield Proposal("compute this term with torch's functions", TERM, gather(*way.parts))


class _Way:
    """From where a value is cut off to the sum: `parts` keep it in its graph, `functions` are taken from torch."""

    def __init__(self, project: Project, cut: Stack, used: Stack, loss: Backward | None) -> None:
        self.project, self.stack, self.loss = project, cut, loss
        self.parts: list[tuple[View, list[Edit]]] = []
        self.functions: list[str] = []
        self.number = False  # the value is one number by now
        self._sum = used
        place = project.node(used[-1])
        self._end = place[1] if place is not None else None
        self._done: set[cst.CSTNode] = set()  # reads of names, and what has been come to by another
        self._walked: set[cst.CSTNode] = set()
        self._importing: list[View] = []
        self._calls: list[tuple[View, cst.Call]] = []  # of functions that are given the value

    def value(self, view: View, layer: cst.BaseExpression) -> bool:
        """Keep what is cut off in `layer` in its graph, and go on from there."""
        whole = outermost(view, layer)
        made = view.parents.get(whole)
        if isinstance(made, cst.Assign) and self._taken(view, made, whole):
            return True
        if isinstance(made, cst.Assign) and _same(made, innermost(whole)):
            self._edit(view, *_gone(view, made))
        else:
            self._edit(view, put(view, whole, innermost(whole)))
        return _torch_made(whole) or self._goes_on(view, whole)

    def _taken(self, view: View, made: cst.Assign, whole: cst.BaseExpression) -> bool:
        """``a = x.detach().numpy()``, and others take the array as it is: the term takes ``x``."""
        source, name = dotted(innermost(whole)), dotted(made.targets[0].target)
        if not source or not name or source == name or len(made.targets) > 1:
            return False
        reads = [r for r in reads_of(body_of(view, made), name) if _after(view, made, r)]
        going = [r for r in reads if self._may(view, r)]
        same = statement_before(view, made, source)
        if len(going) == len(reads) or any(statement_before(view, r, source) is not same for r in going):
            return False
        for read in going:
            self._edit(view, exchange(read, cst.parse_expression(source)))
        return bool(going) and all(self._goes_on(view, read) for read in going)

    def _may(self, view: View, read: cst.BaseExpression) -> bool:
        """Whether the value goes on from a read; nothing is edited."""
        trial = _Way(self.project, self.stack, self._sum, self.loss)
        trial._done, trial._walked, trial._calls = set(self._done), set(self._walked), list(self._calls)
        trial.number = self.number
        return trial._goes_on(view, read)

    def _edit(self, view: View, *edits: Edit) -> None:
        self.parts.append((view, list(edits)))

    def _of_torch(self, view: View, call: cst.Call, name: str) -> None:
        """Call torch's function instead, and import torch once where the file doesn't."""
        named = of_torch(view, name)
        self._edit(
            view, exchange(call.func, named.expression), *(() if view in self._importing else named.edits)
        )
        self._importing.append(view)

    def _goes_on(self, view: View, node: cst.BaseExpression) -> bool:
        """Follow the value of an expression to the sum, or to where it is made a tensor."""
        for _ in range(DEEP):
            above = view.parents.get(node)
            if above is None or above is self._end or above in self._walked:
                return above is not None
            self._walked.add(above)
            step = self._step(view, node, above)
            if not isinstance(step, cst.BaseExpression):
                return step
            node = step
        return False

    def _step(self, view: View, node: cst.BaseExpression, above: cst.CSTNode) -> cst.BaseExpression | bool:
        """The expression that has the value next, or whether the way ends well here."""
        if isinstance(above, cst.BinaryOperation):
            self._beside(view, above.right if node is above.left else above.left)
            return above
        if isinstance(above, cst.UnaryOperation) or (
            isinstance(above, cst.Subscript) and node is above.value
        ):
            return above
        if isinstance(above, cst.GeneratorExp | cst.ListComp) and node is above.elt:
            return above
        outer = view.parents.get(above)
        if isinstance(above, cst.Attribute) and isinstance(outer, cst.Call):
            return self._method(view, above, outer)
        if isinstance(above, cst.Arg) and isinstance(outer, cst.Call):
            return self._argument(view, above, outer)
        if isinstance(above, cst.Element) and isinstance(outer, cst.List):
            return self._listed(view, above, outer)
        if isinstance(above, cst.Element) and isinstance(outer, cst.Tuple):
            return self._one_of_several(view, outer.elements.index(above), outer)
        if isinstance(above, cst.Assign | cst.AugAssign | cst.Return):
            return self._bound(view, above)
        return False

    def _method(self, view: View, method: cst.Attribute, call: cst.Call) -> cst.BaseExpression | bool:
        name = method.attr.value
        if peel(call) is method.value or name == "cpu":
            self._edit(view, Replace(call, lambda new: _within(new, view, call)))
            return call
        self.functions.append(name)
        self.number |= name in REDUCING and not call.args
        return call if name in METHODS and not (name in WHOLE and call.args) else False

    def _argument(self, view: View, arg: cst.Arg, call: cst.Call) -> cst.BaseExpression | bool:
        name = function_of(call)
        of = dotted(call.func) or ""
        handed = None if of.startswith(("np.", "numpy.")) else self._handed(view, arg, call)
        if handed is not None:
            return handed
        if arg is not call.args[0] and not (
            of.startswith(("np.", "numpy.")) and name in ("matmul", "dot", "outer")
        ):
            return False
        if of.startswith(("np.", "numpy.")):
            path = of.partition(".")[2]
            if path in COPIES and len(call.args) == 1:
                self._edit(view, Replace(call, lambda new: _within(new, view, call)))
                return call
            if path not in SAME or (path in WHOLE and len(call.args) > 1):
                return False
            self._of_torch(view, call, SAME[path])
            self.functions.append(path)
            self.number |= path in REDUCING and len(call.args) == 1
            for other in call.args:
                if other is not arg:
                    self._beside(view, other.value)
            return call
        if (
            name == "append"
            and isinstance(call.func, cst.Attribute)
            and isinstance(call.func.value, cst.Name)
        ):
            return self._read(view, call, call.func.value.value)
        if name in MAKERS:
            self._edit(view, Replace(call, lambda new: _within(new, view, call)))
            return True if _torch_made(call) else call
        return call if isinstance(call.func, cst.Name) and name in ("sum", "abs") else False

    def _listed(self, view: View, element: cst.Element, listed: cst.List) -> cst.BaseExpression | bool:
        """``torch.tensor([a.item(), 0.1 * b.item()])``: a stack of all of them."""
        arg = view.parents.get(listed)
        call = view.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call) or function_of(call) not in MAKERS or len(call.args) != 1:
            return False
        for other in listed.elements:
            if other is element:
                continue
            layer = layer_in(view, other.value)
            if layer is None:
                return False
            self._edit(view, put(view, outermost(view, layer), innermost(outermost(view, layer))))
        self._of_torch(view, call, "stack")
        self.functions.append("stack")
        return True

    def _bound(self, view: View, statement: cst.Assign | cst.AugAssign | cst.Return) -> bool:
        """Whatever takes the name takes a tensor from now on; or the call takes what its function returns."""
        if isinstance(statement, cst.Return) and self._calls:
            return self._goes_on(*self._calls.pop())
        if isinstance(statement, cst.Return):
            self.stack = self.stack[:-1]
            found = self.project.node(self.stack[-1]) if self.stack else None
            ends = found is not None and found[1] is self._end
            if found is None or ends or not isinstance(found[1], cst.Call):
                return False
            return self._goes_on(found[0], found[1])
        targets = (
            [t.target for t in statement.targets] if isinstance(statement, cst.Assign) else [statement.target]
        )
        return len(targets) == 1 and self._named(view, statement, targets[0])

    def _one_of_several(self, view: View, index: int, several: cst.Tuple) -> bool:
        """``loss, term = f(x), np.mean(a)``"""
        made = view.parents.get(several)
        if not isinstance(made, cst.Assign) or len(made.targets) != 1:
            return False
        targets = made.targets[0].target
        plain = isinstance(targets, cst.Tuple) and len(targets.elements) == len(several.elements)
        return plain and self._named(view, made, targets.elements[index].value)  # type: ignore[attr-defined]

    def _named(self, view: View, statement: cst.CSTNode, target: cst.BaseExpression) -> bool:
        """Go on from a name; from an attribute where only this function reads it: elsewhere a number is expected."""
        name = dotted(target)
        if isinstance(target, cst.Attribute):
            function, attribute = view.function(statement), target.attr.value
            views = filter(None, map(self.project.view, self.project.files))
            reads = [
                (v, n) for v in views for n in v.parents if isinstance(n, cst.Attribute) and n is not target
            ]
            theirs = [(v, n) for v, n in reads if n.attr.value == attribute]
            if function is None or any(v.function(n) is not function for v, n in theirs):
                return False
        plain = isinstance(target, cst.Name | cst.Attribute) and name is not None
        return plain and self._read(view, statement, name or "")

    def _handed(self, view: View, arg: cst.Arg, call: cst.Call) -> bool | None:
        """The value goes on in a function of this file that is called here alone, and what that is given besides is no
        array either; None where it is another function. (One of another file may be called by other programs.)"""
        called = function_of(call)
        defined = functions(view, called)
        views = filter(None, map(self.project.view, self.project.files))
        uses = [n for v in views for n in v.parents if isinstance(n, cst.Name) and n.value == called]
        name = taken_as(call, arg.value, defined[0], view) if len(defined) == 1 else ""
        if not name or len(uses) != 2:  # (its definition is one of them)
            return None
        for other in call.args:
            if other is not arg:
                self._beside(view, other.value)
        self._calls.append((view, call))
        return self._read(view, defined[0].params, name)

    def _read(self, view: View, statement: cst.CSTNode, name: str) -> bool:
        """Whatever reads the name behind the statement takes a tensor from now on."""
        reads = [r for r in reads_of(body_of(view, statement), name) if r not in self._done]
        reads = [
            r for r in reads if _after(view, statement, r) and not _bound_again(view, statement, r, name)
        ]
        self._done.update(reads)
        going = [r for r in reads if self._may(view, r)]
        shown = [r for r in reads if r not in going]
        if not going or (shown and not self.number) or not all(map(view.parents.__contains__, shown)):
            return False
        for read in shown:
            above = view.parents[read]
            if not isinstance(above, cst.Arg | cst.Element | cst.FormattedStringExpression | cst.DictElement):
                return False
            call = view.parents.get(above)
            if not (isinstance(call, cst.Call) and function_of(call) == "float"):
                self._edit(view, exchange(read, method(read, "item")))
        return all(self._goes_on(view, read) for read in going)

    def _beside(self, view: View, other: cst.BaseExpression) -> None:
        """An array that the value meets, made of another tensor, is that tensor: with its graph where the same sum was
        to train it, too."""
        inside = [
            n for n in (other, *descendants(other)) if isinstance(n, cst.BaseExpression) and _is_numpy(n)
        ]
        for node in inside:
            whole = outermost(view, node)
            cuts = _cuts_at(self.project.graph, self._sum, self.loss)
            places = [self.project.node(c.stack[-1]) for c in cuts]
            cut = any(p is not None and p[1] in (whole, *descendants(whole)) for p in places)
            self._edit(view, put(view, whole, innermost(whole) if cut else _plain(whole)))


def _torch_made(whole: cst.BaseExpression) -> bool:
    """Whether a torch tensor is made of the value, so that torch computes what follows."""
    return isinstance(whole, cst.Call) and function_of(whole) in MAKERS and function_of(whole) != "float"


def _cuts_at(graph: Graph, used: Stack, loss: Backward | None) -> list[Cut]:
    """What else was cut off of this sum, and leads to what the loss fills."""
    nodes = {e.cut for e in graph.tape.events if isinstance(e, Added) and e.stack == used}
    filled = graph.mask(r.storage for r in loss.accumulates) if loss is not None else 0
    cuts = (e for e in graph.tape.events if isinstance(e, Cut) and e.stack)
    return [c for c in cuts if c.node in nodes and c.node is not None and graph.reach_mask(c.node) & filled]


def _is_numpy(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.Call) and function_of(node) == "numpy" and isinstance(node.func, cst.Attribute)
    )


def _plain(node: cst.BaseExpression) -> cst.BaseExpression:
    """``target.detach()`` of ``target.detach().cpu().numpy()``."""
    while (
        isinstance(node, cst.Call)
        and function_of(node) in ("numpy", "cpu")
        and isinstance(node.func, cst.Attribute)
    ):
        node = node.func.value
    return node


def _within(new: cst.CSTNode, view: View, call: cst.Call) -> cst.BaseExpression:
    """What a call is made of, in its place."""
    assert isinstance(new, cst.Call)
    inner = new.args[0].value if new.args and not isinstance(call.func, cst.Attribute) else None
    if inner is None:
        takes = new.args and function_of(call) in (*MAKERS, *COPIES)
        inner = new.args[0].value if takes else new.func.value if isinstance(new.func, cst.Attribute) else new
    plain = isinstance(view.parents.get(call), cst.Arg | cst.Assign | cst.Return | cst.AugAssign)
    return inner if plain else parenthesized(inner)


def _same(made: cst.Assign, value: cst.BaseExpression) -> bool:
    """``h = h``, as it would be."""
    return len(made.targets) == 1 and dotted(made.targets[0].target) == dotted(value) is not None


def _gone(view: View, made: cst.Assign) -> tuple[Edit, ...]:
    block = block_of(view, made)
    index = unit_in(view, block, made) if block is not None else None
    return () if block is None or index is None else take_away(units(block)[index], view, comments=True)


def _bound_again(view: View, statement: cst.CSTNode, read: cst.BaseExpression, name: str) -> bool:
    """Whether the name is bound to another value in between, whatever way the program takes."""
    last = statement_before(view, read, name)
    return (
        last is not None
        and last is not view.statement(statement)
        and _after(view, statement, last)
        and block_of(view, last) is block_of(view, statement)
    )


def _after(view: View, statement: cst.CSTNode, read: cst.CSTNode) -> bool:
    """Whether a read stands behind the statement, in the text."""
    end, start = view.span(statement).end, view.span(read).start
    return (start.line, start.column) >= (end.line, end.column)
