"""What NumPy or Python computes of a value that was taken out of its graph, followed through the text to the sum it is
added to, or to the tensor that is made of it: each step is edited so that torch computes it, graph and all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.graph import Graph
from gradfix.rewrite.arrays import (
    COPIES,
    array_of,
    bound_again,
    counted,
    detached_of,
    is_data,
    is_numpy,
    leaf_made,
    numpy_function,
    only_element,
    stands_after,
    statement_gone,
    taking_off,
    to_itself,
    to_themselves,
    torch_made,
    within,
)
from gradfix.rewrite.blocks import method, of_torch
from gradfix.rewrite.boundary import functions
from gradfix.rewrite.calls import taken_as
from gradfix.rewrite.dropped import asked
from gradfix.rewrite.liveness import dotted, statement_before
from gradfix.rewrite.peeling import MAKERS, innermost, layer_in, outermost, peel, put
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import body_of, reads_of
from gradfix.run.child.words import ELEMENTWISE, IN_TORCH
from gradfix.tape import Added, Backward, Cut, Stack

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
BOUNDS = {"max": "min", "min": "max"}  # Python's -> what torch.clamp calls its other argument
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

Build = Callable[[cst.Call, cst.BaseExpression], cst.BaseExpression]  # of a call and torch's function


class Computed:
    """From where a value is cut off to the sum: `parts` keep it in its graph, `functions` are taken from torch."""

    def __init__(
        self, project: Project, cut: Stack, used: Stack, loss: Backward | None, whole: bool = False
    ) -> None:
        self.project, self.stack, self.loss, self.whole = project, cut, loss, whole
        self._edits: list[tuple[View, list[Edit]]] = []
        self._gone: dict[cst.Assign, View] = {}  # statements that bind a name to itself by now
        self.functions: list[str] = []
        self.number = False  # the value is one number by now
        # lists that the value is one of: names, and calls that give them
        self._lists: set[str | cst.CSTNode] = set()
        self._sum = used
        place = project.node(used[-1]) if used else None
        self._end = place[1] if place is not None else None
        self._done: set[cst.CSTNode] = set()  # reads of names, and what has been come to by another
        self._walked: set[cst.CSTNode] = set()
        self._importing: list[View] = []
        self._calls: list[tuple[View, cst.Call]] = []  # of functions that are given the value

    @property
    def parts(self) -> list[tuple[View, list[Edit]]]:
        """The edits of each file."""
        last_first = sorted(self._gone.items(), key=lambda g: -g[1].span(g[0]).start.line)
        gone = [(view, list(statement_gone(view, made, self._gone))) for made, view in last_first]
        return [*self._edits, *gone]

    def value(self, view: View, layer: cst.BaseExpression) -> bool:
        """Keep what is cut off in `layer` in its graph, and go on from there."""
        whole = outermost(view, layer)
        made = view.parents.get(whole)
        self._done.add(whole)
        if isinstance(made, cst.Assign) and self._taken(view, made, whole):
            return True
        several = to_themselves(view, whole)
        if several is not None:
            self._gone[several] = view
        elif isinstance(made, cst.Assign) and to_itself(made, innermost(whole)):
            self._gone[made] = view
        else:
            self._edit(view, put(view, whole, innermost(whole)))
        self.number |= isinstance(whole, cst.Call) and function_of(whole) in ("item", "float")
        return self._made(view, whole) if torch_made(whole) else self._goes_on(view, whole)

    def too(self, view: View, layer: cst.BaseExpression, cut: Stack) -> bool:
        """Keep what is cut off there, too, in its graph, where it comes to a tensor; else nothing is edited for it."""
        self.stack = cut
        return self._kept_if(lambda: self.value(view, layer))

    def _taken(self, view: View, made: cst.Assign, whole: cst.BaseExpression) -> bool:
        """``a = x.detach().numpy()``, and others take the array as it is: the term takes ``x``."""
        source, name = dotted(innermost(whole)), dotted(made.targets[0].target)
        if not source or not name or source == name or len(made.targets) > 1:
            return False
        reads = [r for r in reads_of(body_of(view, made), name) if stands_after(view, made, r)]
        going = [r for r in reads if self._may(view, r)]
        same = statement_before(view, made, source)
        if len(going) == len(reads) or any(statement_before(view, r, source) is not same for r in going):
            return False
        for read in going:
            self._edit(view, exchange(read, cst.parse_expression(source)))
        return bool(going) and all(self._goes_on(view, read) for read in going)

    def _may(self, view: View, read: cst.BaseExpression) -> bool:
        """Whether the value goes on from a read; nothing is edited."""
        trial = Computed(self.project, self.stack, self._sum, self.loss, self.whole)
        trial._restore(self._state())
        return trial._goes_on(view, read)

    def _kept_if(self, way: Callable[[], bool]) -> bool:
        """Go a way, and back where it does not end well."""
        before = self._state()
        well = way()
        if not well:
            self._restore(before)
        return well

    def _state(self) -> tuple[Any, ...]:
        sets = (set(self._done), set(self._walked), set(self._lists))
        lists = ([*self._edits], [*self.functions], [*self._calls], [*self._importing])
        return self.stack, self.number, dict(self._gone), sets, lists

    def _restore(self, state: tuple[Any, ...]) -> None:
        self.stack, self.number, self._gone, (self._done, self._walked, self._lists), lists = state
        self._edits, self.functions, self._calls, self._importing = lists

    def _edit(self, view: View, *edits: Edit) -> None:
        self._edits.append((view, list(edits)))

    def _of_torch(self, view: View, call: cst.Call, name: str, build: Build | None = None) -> None:
        """Call torch's function instead, on what the call has or as `build` says, and import torch once where the file
        doesn't."""
        named = of_torch(view, name)
        edit = (
            exchange(call.func, named.expression)
            if build is None
            else Replace(call, lambda now: build(cst.ensure_type(now, cst.Call), named.expression))
        )
        self._edit(view, edit, *(() if view in self._importing else named.edits))
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
        if isinstance(above, cst.Element) and isinstance(outer, cst.List) and outer.elements:
            return self._listed(view, above, outer)
        if isinstance(above, cst.Element) and isinstance(outer, cst.Tuple):
            return self._one_of_several(view, outer.elements.index(above), outer)
        if isinstance(above, cst.Assign | cst.AugAssign | cst.Return):
            return self._bound(view, above)
        return False

    def _method(self, view: View, method: cst.Attribute, call: cst.Call) -> cst.BaseExpression | bool:
        name = method.attr.value
        if peel(call) is method.value or name == "cpu":
            self._edit(view, Replace(call, lambda new: within(new, view, call)))
            return call
        self.functions.append(name)
        self.number |= name in REDUCING and not call.args
        return call if name in METHODS and not (name in WHOLE and call.args) else False

    def _argument(self, view: View, arg: cst.Arg, call: cst.Call) -> cst.BaseExpression | bool:
        name = function_of(call)
        of, path = dotted(call.func) or "", numpy_function(call)
        handed = None if path else self._handed(view, arg, call)
        if handed is not None:
            return handed
        plain = not any(a.keyword or a.star for a in call.args)
        if isinstance(call.func, cst.Name) and name in BOUNDS and len(call.args) == 2 and plain:
            return self._bounded(view, arg, call)
        if self._is_list(arg.value):
            return self._of_list(view, call)
        if arg is not call.args[0] and path not in ("matmul", "dot", "outer"):
            return False
        if path:
            if path in COPIES and len(call.args) == 1:
                self._edit(view, Replace(call, lambda new: within(new, view, call)))
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
        if of.startswith("math.") and name in SAME and len(call.args) == 1:
            self._of_torch(view, call, SAME[name])
            self.functions.append(name)
            return call
        if (
            name == "append"
            and isinstance(call.func, cst.Attribute)
            and isinstance(call.func.value, cst.Name)
        ):
            self._lists.add(call.func.value.value)
            return self._read(view, call, call.func.value.value)
        if name in MAKERS:
            self._edit(view, Replace(call, lambda new: within(new, view, call)))
            return self._made(view, call) if torch_made(call) else call
        return call if isinstance(call.func, cst.Name) and name in ("sum", "abs") else False

    def _bounded(self, view: View, arg: cst.Arg, call: cst.Call) -> cst.BaseExpression:
        """``max(0, value)``, which is a number where the bound is what it gives."""
        name = function_of(call)
        other = call.args[1 if arg is call.args[0] else 0].value
        both = any(isinstance(n, cst.BaseExpression) and peel(n) for n in (other, *descendants(other)))
        bound = cst.Name(BOUNDS[name])
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        first = 0 if arg is call.args[0] else 1

        def build(new: cst.Call, function: cst.BaseExpression) -> cst.BaseExpression:
            value, limit = new.args[first].value, new.args[1 - first].value
            args = [cst.Arg(value), cst.Arg(limit) if both else cst.Arg(limit, bound, equal)]
            return new.with_changes(func=function, args=args)

        self._of_torch(view, call, f"{name}imum" if both else "clamp", build)
        self.functions.append(name)
        return call

    def _is_list(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.ListComp) or (dotted(node) or node) in self._lists

    def _of_list(self, view: View, call: cst.Call) -> cst.BaseExpression | bool:
        """A list of numbers, added up or made one tensor; what is given is its only argument, or the first."""
        path = numpy_function(call)
        if isinstance(call.func, cst.Name) and function_of(call) == "sum":
            return call
        reduced = path if path in REDUCING and len(call.args) == 1 else ""
        if not (reduced or path in COPIES or torch_made(call)) or SAME.get(reduced, "") != reduced:
            return False

        def build(new: cst.Call, function: cst.BaseExpression) -> cst.BaseExpression:
            stacked = cst.Call(function, [cst.Arg(new.args[0].value)])
            return method(stacked, reduced) if reduced else stacked

        self._of_torch(view, call, "stack", build)
        self.functions.append("stack")
        return self._made(view, call) if torch_made(call) else call

    def _made(self, view: View, tensor: cst.BaseExpression) -> bool:
        """Torch has the value again. Where that is the whole loss, nothing makes it a leaf any more."""
        if not self.whole:
            return True
        top = outermost(view, tensor)
        layer: cst.BaseExpression = tensor
        while layer is not top:
            above = view.parents[layer]
            layer = cast(cst.BaseExpression, view.parents[above] if not is_data(above) else above)
            self._edit(view, Replace(layer, taking_off(view, layer)))
        made = view.parents.get(top)
        name = (
            dotted(made.targets[0].target) if isinstance(made, cst.Assign) and len(made.targets) == 1 else ""
        )
        if not name or not isinstance(made, cst.Assign):
            return True
        if to_itself(made, innermost(top)):
            self._gone[made] = view
        self._edit(view, *asked(view, made, name))
        for read in reads_of(body_of(view, made), name):
            around = outermost(view, read)
            if around is read or not stands_after(view, made, read) or not leaf_made(around):
                continue
            again = view.parents.get(around)
            if isinstance(again, cst.Assign) and to_itself(again, read):
                self._gone[again] = view
            else:
                self._edit(view, put(view, around, read))
        return True

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
        if self.whole and len(listed.elements) == 1:
            self._edit(view, Replace(call, only_element))
        else:
            self._of_torch(view, call, "stack")
            self.functions.append("stack")
        return self._made(view, call)

    def _bound(self, view: View, statement: cst.Assign | cst.AugAssign | cst.Return) -> bool:
        """Whatever takes the name takes a tensor from now on; or the call takes what its function returns."""
        several = statement.value is not None and self._is_list(statement.value)
        if isinstance(statement, cst.Return) and self._calls:
            view, call = self._calls.pop()
            self._lists |= {call} if several else set()
            return self._goes_on(view, call)
        if isinstance(statement, cst.Return):
            self.stack = self.stack[:-1]
            found = self.project.node(self.stack[-1]) if self.stack else None
            ends = found is not None and found[1] is self._end
            if found is None or ends or not isinstance(found[1], cst.Call):
                return False
            self._lists |= {found[1]} if several else set()
            return self._goes_on(found[0], found[1])
        targets = (
            [t.target for t in statement.targets] if isinstance(statement, cst.Assign) else [statement.target]
        )
        if statement.value is not None and self._is_list(statement.value):
            self._lists |= {dotted(t) or "" for t in targets}
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
        if self._is_list(arg.value):
            self._lists.add(name)
        return self._read(view, defined[0].params, name)

    def _read(self, view: View, statement: cst.CSTNode, name: str) -> bool:
        """Whatever reads the name behind the statement takes a tensor from now on."""
        reads = [r for r in reads_of(body_of(view, statement), name) if r not in self._done]
        reads = [
            r for r in reads if stands_after(view, statement, r) and not bound_again(view, statement, r, name)
        ]
        self._done.update(reads)
        number, stack, going = self.number, self.stack, []
        for read in reads:
            self.number, self.stack = number, stack
            if self._kept_if(partial(self._goes_on, view, read)):
                going.append(read)
        shown = [r for r in reads if r not in going and not (name in self._lists and counted(view, r))]
        if shown and name in self._lists:
            return False
        if not going or (shown and not number) or not all(map(view.parents.__contains__, shown)):
            return False
        for read in shown:
            above = view.parents[read]
            if not isinstance(above, cst.Arg | cst.Element | cst.FormattedStringExpression | cst.DictElement):
                return False
            call = view.parents.get(above)
            if not (isinstance(call, cst.Call) and function_of(call) == "float"):
                self._edit(view, exchange(read, method(read, "item")))
        return True

    def _beside(self, view: View, other: cst.BaseExpression) -> None:
        """An array that the value meets, made of another tensor, is that tensor: with its graph where the same sum was
        to train it, too."""
        for node in (other, *descendants(other)):
            if isinstance(node, cst.Name) and self.whole:
                array = array_of(view, node)
                if array is not None and array not in self._done:
                    self._done.add(array)
                    self._as_tensor(view, array)
                if array is not None:
                    self._computed(view, node)
            elif isinstance(node, cst.Call) and is_numpy(node):
                self._as_tensor(view, node)

    def _computed(self, view: View, array: cst.Name) -> None:
        """``np.sum(t)`` of an array that is a tensor by now."""
        arg = view.parents.get(array)
        call = view.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call) or call.func in self._done:
            return
        path = numpy_function(call)
        if path in SAME and len(call.args) == 1:
            self._done.add(call.func)
            self._of_torch(view, call, SAME[path])

    def _as_tensor(self, view: View, array: cst.BaseExpression) -> None:
        whole = outermost(view, array)
        several, made = to_themselves(view, whole), view.parents.get(whole)
        places = [self.project.node(c.stack[-1]) for c in _cuts_at(self.project.graph, self._sum, self.loss)]
        cut = any(p is not None and p[1] in (whole, *descendants(whole)) for p in places)
        tensor = innermost(whole) if cut else detached_of(whole)
        if several is not None:
            self._gone[several] = view
        elif isinstance(made, cst.Assign) and to_itself(made, tensor):
            self._gone[made] = view
        else:
            self._edit(view, put(view, whole, tensor))


def _cuts_at(graph: Graph, used: Stack, loss: Backward | None) -> list[Cut]:
    """What else was cut off of this sum, and leads to what the loss fills."""
    nodes = {e.cut for e in graph.tape.events if isinstance(e, Added) and e.stack == used}
    filled = graph.mask(r.storage for r in loss.accumulates) if loss is not None else 0
    cuts = (e for e in graph.tape.events if isinstance(e, Cut) and e.stack)
    return [c for c in cuts if c.node in nodes and c.node is not None and graph.reach_mask(c.node) & filled]
