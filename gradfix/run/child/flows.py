"""What a text makes of a value by functions that have a derivative, NumPy's and Python's own: the way from the call
that took a tensor off its graph to the expression it ends in. The values on it bear no mark; their names do.

In doubt there is no way: a value that anything unknown takes may be meant as the number it is.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from .sites import Span, code_points, parsed
from .words import SMOOTH

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)
_MODULES = frozenset(("np", "numpy", "math", "np.linalg", "numpy.linalg", "onp"))
_SMOOTH = SMOOTH | {
    "norm", "pow", "stack", "concatenate", "ascontiguousarray", "float32", "float64", "expand_dims", "fsum",
}  # fmt: skip
_PLAIN = frozenset(("float", "abs", "sum", "max", "min", "list", "tuple", "sqrt", "exp", "log"))
_METHODS = frozenset((
    "mean", "sum", "max", "min", "var", "std", "prod", "clip", "dot", "reshape", "flatten", "ravel", "squeeze", "copy",
    "astype", "item", "tolist", "transpose", "cpu", "numpy", "detach", "clone", "float", "double", "view", "to", "abs",
    "pow", "square", "sqrt", "exp", "log", "norm", "unsqueeze", "contiguous", "cuda",
))  # fmt: skip
_LEGACY = ("FloatTensor", "DoubleTensor")  # of torch, and no functions of its own
_SAME = frozenset((  # of those
    *_LEGACY, "Variable", "cuda",
    "float", "list", "tuple", "array", "asarray", "ascontiguousarray", "copy", "squeeze", "ravel", "reshape", "flatten",
    "float32", "float64", "item", "tolist", "cpu", "numpy", "detach", "clone", "double", "view", "to", "astype",
    "unsqueeze", "contiguous", "transpose", "expand_dims",
))  # fmt: skip
_ASKED = frozenset(("shape", "ndim", "dtype", "size", "device"))
_SHOWING = frozenset((
    "print", "len", "str", "int", "repr", "round", "isinstance", "format", "write", "log", "info", "debug",
    "add_scalar", "add_scalars", "set_postfix", "set_description", "isnan", "isfinite", "isinf", "choice", "argmax",
    "argmin", "bool", "update", "type",
))  # fmt: skip
_DEEP = 4  # functions of the program's own in one another
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

SCALED, FUNCTION = 1, 2
_END, _RETURN, _NOTHING, _ELSEWHERE = "end", "return", "nothing", "elsewhere"


class Text:
    """One file's text. Nodes are found by their spans, in code points as the tape has them. `elsewhere` says of an
    attribute whether other files speak of it, too; `others` gives the other files that define a function."""

    def __init__(
        self,
        text: str,
        lines: list[str],
        elsewhere: Callable[[str], bool] = lambda name: False,
        others: Callable[[str], Sequence[Text]] = lambda name: (),
    ) -> None:
        tree = parsed(text) or ast.Module([], [])
        self.elsewhere, self.others = elsewhere, others
        self.imported: set[str] = set()
        self.legacy = any(f"torch.{name}(" in text for name in _LEGACY)
        self.attributes: dict[str, list[ast.Attribute]] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.names: dict[str, list[ast.Name]] = {}
        self.functions: dict[str, list[Any]] = {}
        self._at: dict[Span, Any] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.Name):
                self.names.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.Attribute):
                self.attributes.setdefault(node.attr, []).append(node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imported.update(alias.asname or alias.name for alias in node.names)
            if isinstance(node, (ast.expr, ast.AugAssign)):
                end = node.end_lineno or node.lineno
                self._at[
                    node.lineno,
                    code_points(lines, node.lineno, node.col_offset),
                    end,
                    code_points(lines, end, node.end_col_offset or 0),
                ] = node

    def node(self, span: Span) -> Any:
        """The expression, or the ``x += y``, at `span`."""
        return self._at.get(span)

    def defining(self, func: ast.AST) -> tuple[Text, Any] | None:
        """The function that a call names and where it is defined: here, or in the one file that it is imported of."""
        name = _last(func)
        if name in self.functions:
            return (self, self.functions[name][0]) if len(self.functions[name]) == 1 else None
        holder = func.value if isinstance(func, ast.Attribute) else func
        if not isinstance(holder, ast.Name) or holder.id not in self.imported:
            return None
        found = [(other, f) for other in self.others(name) for f in other.functions.get(name, ())]
        return found[0] if len(found) == 1 else None

    def way(self, start: ast.AST, end: ast.AST | None, others: Collection[Any] = ()) -> int:
        """Whether the value of `start` goes into that of `end` (for None, into what its function returns) and nowhere
        else but where it is shown, or is one of the `others`: SCALED as it is, as a FUNCTION of it, or 0."""
        way = _Way(self, end, others=others)
        return (FUNCTION if way.function else SCALED) if way.leads([start]) else 0

    def function(self, node: ast.AST) -> Any:
        """The function that a node stands in, None for none."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, _FUNCTIONS):
            above = self.parents.get(above)
        return above


class _Way:
    """One search. `deep` counts the functions it has gone into."""

    def __init__(self, text: Text, end: ast.AST | None, deep: int = 0, others: Collection[Any] = ()) -> None:
        self.text, self.end, self.deep, self._others = text, end, deep, others
        self._begun: set[ast.AST] = set()  # what it begins with
        self._bound: set[ast.AST] = set()  # statements that bind what the value makes
        self._found: set[ast.AST] = set()
        self._around: set[ast.AST] = set()  # what the end is part of
        above = text.parents.get(end) if end is not None else None
        while above is not None and not isinstance(above, ast.stmt):
            self._around.add(above)
            above = text.parents.get(above)
        self._goal = _END if end is not None else _RETURN
        self.function = False  # something on the way is more than a number times the value

    def leads(self, starts: list[ast.AST]) -> bool:
        """Whether one of them comes to the end, and none goes elsewhere."""
        self._begun.update(node for start in starts for node in ast.walk(start))
        pending, reached = list(starts), False
        while pending:
            node = pending.pop()
            if node in self._found:
                continue
            self._found.add(node)
            how, names = self._climb(node)
            if how is _ELSEWHERE:
                return False
            reached = reached or how is self._goal
            for name in names:
                if self._kept(name) if isinstance(name, ast.Attribute) else self._old(name):
                    return False
                pending += self._reads(name)
        return reached

    def _climb(self, node: ast.AST) -> tuple[str, list[Any]]:
        """Where the value of an expression comes to, and the names that it is bound to there. (What comes to the sum
        beside its end is more than a term of it.)"""
        scaled = False
        while True:
            if node is self.end:
                return _END, []
            if node in self._others:
                return _NOTHING, []
            above = self.text.parents[node]
            if isinstance(above, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.comprehension)):
                return self._bind(above, node)
            if above in self._around:
                return _ELSEWHERE, []
            if (one := self._unpacked(above, node)) is not None:
                return _NOTHING, [one]
            if isinstance(above, ast.Return):
                another = self.end is not None and self.text.function(above) is not self.text.function(
                    self.end
                )
                return (_ELSEWHERE if (scaled and self.end is not None) or another else _RETURN), []
            scaled = scaled or isinstance(above, ast.BinOp)
            if isinstance(above, ast.Call) or isinstance(self.text.parents.get(above), ast.Call):
                appended = _appended(above)
                if appended is not None:
                    self._bound.add(above)
                    return _NOTHING, appended
            step = self._step(node, above)
            if not isinstance(step, ast.AST):
                return step, []
            node = step

    def _step(self, node: ast.AST, above: ast.AST) -> Any:
        """The expression that has the value of `node`, or a function of it; or where that ends."""
        if isinstance(above, ast.BinOp):
            self.function |= isinstance(above.op, (ast.Pow, ast.MatMult))
            return above if isinstance(above.op, _OPERATORS) else _ELSEWHERE
        if isinstance(above, ast.UnaryOp):
            return above if isinstance(above.op, (ast.USub, ast.UAdd)) else _NOTHING
        if isinstance(above, ast.Attribute):
            outer = self.text.parents[above]
            if isinstance(outer, ast.Call) and outer.func is above:
                self.function |= above.attr not in _SAME
                return outer if above.attr in _METHODS else _ELSEWHERE
            return above if above.attr in ("T", "data") else _NOTHING if above.attr in _ASKED else _ELSEWHERE
        if isinstance(above, ast.Subscript):
            return above if node is above.value else _NOTHING
        if isinstance(above, ast.IfExp):
            return _NOTHING if node is above.test else above
        if isinstance(above, (ast.List, ast.Tuple, ast.Starred, ast.ListComp, ast.GeneratorExp)):
            return above
        if isinstance(above, ast.keyword):
            return self._given(node, above, self.text.parents[above])
        if isinstance(above, ast.Call):
            return self._given(node, None, above) if node is not above.func else _ELSEWHERE
        shown = (
            ast.Expr,
            ast.Compare,
            ast.BoolOp,
            ast.FormattedValue,
            ast.Dict,
            ast.If,
            ast.While,
            ast.Assert,
        )
        return _NOTHING if isinstance(above, shown) else _ELSEWHERE

    def _given(self, node: ast.AST, keyword: ast.keyword | None, call: Any) -> Any:
        """The same for an argument of a call."""
        name = _last(call.func)
        if name in _SHOWING and not _of_numbers(call.func):
            return _NOTHING
        if _smooth(call.func, self.text):
            self.function |= name not in _SAME
            return call
        defined = self.text.defining(call.func)
        if defined is None or self.deep >= _DEEP or isinstance(node, ast.Starred):
            return _NOTHING if name in _SHOWING else _ELSEWHERE
        text, own = defined
        parameters = [*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs]
        if keyword is not None:
            mine = [p for p in parameters if p.arg == keyword.arg]
        else:
            method = isinstance(call.func, ast.Attribute) and bool(parameters) and parameters[0].arg == "self"
            mine = parameters[call.args.index(node) + method :][:1]
        inner = _Way(text, None, self.deep + 1)
        starts = [n for p in mine for n in inner.given(own, p.arg)]
        found = bool(starts) and inner.leads(starts)
        self.function |= inner.function
        return call if found else _ELSEWHERE

    def given(self, function: Any, name: str) -> list[ast.AST]:
        """Where a function reads its parameter."""
        reads = [n for n in self._of(function, name) if isinstance(n.ctx, ast.Load)]
        return [n for n in reads if self._last_bound(n) is None]

    def _bind(self, statement: Any, value: ast.AST) -> tuple[str, list[Any]]:
        if isinstance(statement, ast.comprehension) and value is not statement.iter:
            return _NOTHING, []
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if isinstance(statement, ast.AugAssign) and not isinstance(statement.op, _OPERATORS):
            return _ELSEWHERE, []
        self._bound.add(statement)
        held = ast.Name if isinstance(statement, ast.AugAssign) else (ast.Name, ast.Attribute)
        names = [t for t in targets if isinstance(t, held)]
        return _NOTHING if len(names) == len(targets) else _ELSEWHERE, names

    def _unpacked(self, above: ast.AST, node: ast.AST) -> ast.Name | None:
        """The name that an element is bound to: ``a, b = x.numpy(), y.numpy()``."""
        statement = self.text.parents.get(above)
        if (
            not isinstance(above, ast.Tuple)
            or not isinstance(statement, ast.Assign)
            or above is not statement.value
        ):
            return None
        target = statement.targets[0]
        same = (
            len(statement.targets) == 1
            and isinstance(target, ast.Tuple)
            and len(target.elts) == len(above.elts)
        )
        one = target.elts[above.elts.index(node)] if same else None  # type: ignore[attr-defined, arg-type]
        if not isinstance(one, ast.Name):
            return None
        self._bound.add(statement)
        return one

    def _of(self, scope: Any, name: str) -> list[ast.Name]:
        return [n for n in self.text.names.get(name, ()) if self.text.function(n) is scope]

    def _kept(self, held: ast.Attribute) -> bool:
        """Whether the attribute may hold something else as well, or what it held before, or be read out of sight."""
        every = [(node, self._statement(node)) for node in self.text.attributes[held.attr]]
        read = {statement for node, statement in every if isinstance(node.ctx, ast.Load)}
        bound = {statement for node, statement in every if not isinstance(node.ctx, ast.Load)}
        others = [each for each in bound - self._bound if not _begins(each)]
        return bool(others or read & self._bound) or self.text.elsewhere(held.attr)

    def _old(self, name: ast.Name) -> bool:
        """Whether the name holds what it held before, too, scaled: an average over the passes."""
        for store in self._of(self.text.function(name), name.id):
            statement: Any = self._statement(store)
            if not isinstance(store.ctx, ast.Store):
                continue
            if isinstance(statement, ast.AugAssign) and statement not in self._bound:
                return True
            if isinstance(statement, ast.AugAssign) and not isinstance(statement.op, (ast.Add, ast.Sub)):
                return True
            inner = ast.walk(statement.value) if isinstance(statement, ast.Assign) else ()
            reads = [n for n in inner if isinstance(n, ast.Name) and n.id == name.id and n not in self._begun]
            strange = statement in self._bound and any(n not in self._found for n in reads)
            if strange and any(self._last_bound(n) in (None, statement) for n in reads):
                return True
        return False

    def _reads(self, name: Any) -> Iterator[ast.AST]:
        """Where a name is read that was last bound to what the value makes, or an attribute of any object."""
        if isinstance(name, ast.Attribute):
            yield from (n for n in self.text.attributes[name.attr] if isinstance(n.ctx, ast.Load))
            return
        for read in self._of(self.text.function(name), name.id):
            if isinstance(read.ctx, ast.Load) and self._last_bound(read) in self._bound:
                yield read

    def _last_bound(self, read: ast.Name) -> Any:
        """The last statement before `read`, in the text, that binds the name; not one that begins a sum."""
        last, latest = None, (0, 0)
        for node in self._of(self.text.function(read), read.id):
            statement = self._statement(node)
            whole = (
                statement
                if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Call))
                else node
            )
            end = whole.end_lineno or 0, whole.end_col_offset or 0
            binds = isinstance(node.ctx, ast.Store) or statement in self._bound
            if binds and latest <= end <= (read.lineno, read.col_offset) and not _begins(statement):
                last, latest = statement, end
        return last

    def _statement(self, node: ast.AST) -> Any:
        while not isinstance(node, (ast.stmt, ast.comprehension)):
            above = self.text.parents[node]
            if isinstance(above, ast.Call) and above in self._bound:
                return above  # (an append)
            node = above
        return node


def _begins(statement: Any) -> bool:
    """``total = 0.0``, ``terms = []``"""
    value = getattr(statement, "value", None)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    return isinstance(value, ast.Constant) or (isinstance(value, ast.List) and not value.elts)


def _appended(above: ast.AST) -> list[ast.Name] | None:
    """The list, where the call is ``terms.append(value)``; no name for one that is kept elsewhere."""
    func = above.func if isinstance(above, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr not in ("append", "appendleft", "extend"):
        return None
    return [func.value] if isinstance(func.value, ast.Name) else []


def _last(func: ast.AST) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _of_numbers(func: ast.AST) -> bool:
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in _MODULES and func.attr in _SMOOTH


def _smooth(func: ast.AST, text: Text) -> bool:
    if isinstance(func, ast.Name):
        known = hasattr(builtins, func.id) or func.id in ("sqrt", "exp", "log")
        return ((func.id in _PLAIN and known) or func.id == "Variable") and func.id not in text.functions
    return _of_numbers(func) or (_last(func) in _LEGACY and ast.unparse(func) == f"torch.{_last(func)}")
