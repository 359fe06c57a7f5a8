"""Which ways into a program can be read by themselves, told from what stands at its margin and the words in it.

An entry is read by itself where all that it can come to is defined there: functions, classes, imports, and values that
nothing at the margin works with later. It is the same then whatever else the file says, so that what came of it holds
as long as those statements do (`gradfix.read.kept`). What can't be told apart is taken for connected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from functools import cached_property

from gradfix.read.gate import LIBRARIES
from gradfix.read.modules import bound, registers
from gradfix.read.project import Unit

_WORD = re.compile(r"\w+")
_GLOBAL = re.compile(r"\n[ \t]*global[ \t]+([^\n#]*)")
_TAMPERED = re.compile(r"\.\w+[ \t]*(?:[-+*/%@&|^<>]|//|\*\*|<<|>>)?=(?!=)")
_DOTTED = re.compile(r"(?<![\w.])\w[\w.]*\Z")
LONGEST = 1000  # characters of a name with its attributes
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_EVERYTHING = frozenset(
    ["globals", "locals", "vars", "eval", "exec", "dir", "__dict__", "__main__", "getmembers", "modules"]
)  # by these a function gets at names that it does not say


class Margin:
    """The statements at a file's margin: what each binds, and what it needs of the others.

    `calls` are the statements of a main part that does nothing but call functions of the file, each of them a way of
    its own; empty where it does anything else.
    """

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._lines = unit.text.split("\n")
        self._always: set[int] = set()  # imports: run for every entry
        self._bound: dict[str, list[int]] = {}
        self._values: set[int] = set()
        self._active: list[int] = []  # those that do more than bind
        self._said: dict[int, frozenset[str]] = {}
        self._linked: dict[int, frozenset[int]] = {}
        for n, statement in enumerate(unit.tree.body):
            names = _names(statement)
            if isinstance(statement, _DEFINES) and any(map(registers, statement.decorator_list)):
                self._active.append(n)
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and names:
                if not _plain(statement.value):
                    self._values.add(n)
            elif _brings(statement):
                self._always.add(n)
            elif not isinstance(statement, _DEFINES) and not _inert(statement):
                self._active.append(n)
            for name in names:
                self._bound.setdefault(name, []).append(n)
        called = calls_only(unit.tree.body[self._active[0]]) if len(self._active) == 1 else []
        self.calls: list[ast.Expr] = self._apart(called) if called else []

    @cached_property
    def _open(self) -> bool:
        """Whether a star brings names that nobody knows."""
        return any(_starred(self._unit.tree.body[n]) for n in self._always)

    @cached_property
    def _shared(self) -> Set[str]:
        """Names that more than the statements which say them may work with."""
        text = self._unit.text
        declared = {name for several in _GLOBAL.findall(text) for name in _WORD.findall(several)}
        stored = {name for n in self._active for name in _stored(self._unit.tree.body[n])}
        tampered = (_tampered(text) & self._bound.keys()) - LIBRARIES
        return _EVERYTHING | declared | stored | tampered

    @cached_property
    def _main(self) -> frozenset[int]:
        """What the main part can come to."""
        return self._closure({*([] if self.calls else self._active), *self._values, *self._always})

    @cached_property
    def _odd(self) -> Set[str]:
        """Names by which a way works with something that the main part, or one of `calls`, does."""
        busy = self._closure([] if self.calls else self._active)
        touched = self._values & busy.union(*map(self.needed, self.calls))
        return self._shared | {name for name, several in self._bound.items() if touched & {*several}}

    def join(self) -> None:
        """Take the calls for what the main part does, which other ways depend on."""
        self.calls = []
        for told in ("_main", "_odd"):
            self.__dict__.pop(told, None)

    def alone(self, root: str) -> frozenset[int] | None:
        """The statements that entering what is called `root` can come to; None where that is not known, or where what
        the margin does may count."""
        reached = self._closure(self._bound.get(root, ()))
        if not reached or self._open or not self._main.isdisjoint(self._bound[root]):
            return None
        return reached | self._always if self._by_itself(reached, self._odd) else None

    def needed(self, call: ast.Expr) -> frozenset[int]:
        """The statements that one of `calls` can come to."""
        named = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        return self._closure(self._leading(named)) | self._always

    def together(self, roots: Iterable[str]) -> frozenset[int]:
        """What the margin itself and entering `roots` can come to."""
        return self._main | self._closure(self._leading({*roots}))

    def _apart(self, calls: list[ast.Expr]) -> list[ast.Expr]:
        """`calls` where each is a way of its own, and no two of them work with one value."""
        met: set[int] = set()
        for call in calls:
            reached = self.needed(call) - self._always
            if not reached or self._open or met & reached & self._values:
                return []
            if not self._by_itself(reached, self._shared):
                return []
            met |= reached
        return calls

    def _by_itself(self, reached: frozenset[int], odd: Set[str]) -> bool:
        """Whether nothing else works with what these statements do: no name among them is `odd`, and no value is
        made of one of theirs."""
        if any(not odd.isdisjoint(self._words(n)) for n in reached):
            return False
        mine = reached & self._values
        return not mine or mine.isdisjoint(self._closure(self._values - reached))

    def _leading(self, words: Set[str]) -> list[int]:
        return [n for w in words & self._bound.keys() for n in self._bound[w]]

    def _closure(self, start: Iterable[int]) -> frozenset[int]:
        seen: set[int] = set()
        todo = list(start)
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                todo += self._links(n) - seen
        return frozenset(seen)

    def _links(self, n: int) -> frozenset[int]:
        """The statements that what statement `n` says leads to."""
        found = self._linked.get(n)
        if found is None:
            found = self._linked[n] = frozenset(self._leading(self._words(n)))
        return found

    def _words(self, n: int) -> frozenset[str]:
        found = self._said.get(n)
        if found is None:
            statement = self._unit.tree.body[n]
            text = "\n".join(self._lines[first(statement) - 1 : statement.end_lineno])
            found = self._said[n] = frozenset(_WORD.findall(text))
        return found


def _tampered(text: str) -> set[str]:
    """The names with an attribute that is assigned to."""
    out = set()
    for found in _TAMPERED.finditer(text):
        dot = found.start()
        dotted = _DOTTED.search(text, max(text.rfind("\n", 0, dot) + 1, dot - LONGEST), dot)
        if dotted is not None:
            out.add(dotted[0].partition(".")[0])
    return out


def first(statement: ast.stmt) -> int:
    """The line in which a statement begins, with its decorators."""
    decorators = getattr(statement, "decorator_list", ())
    return min((d.lineno for d in decorators), default=statement.lineno)


def _names(statement: ast.stmt) -> list[str]:
    """What a statement binds, where it only binds."""
    if isinstance(statement, _IMPORTS):
        return [(a.asname or a.name).split(".")[0] for a in statement.names]
    if isinstance(statement, ast.If):
        return [name for s in (*statement.body, *statement.orelse) for name in _names(s)]
    if isinstance(statement, ast.Try):
        several = (
            statement.body,
            *(h.body for h in statement.handlers),
            statement.orelse,
            statement.finalbody,
        )
        return [name for body in several for s in body for name in _names(s)]
    return bound(statement)


def _inert(statement: ast.stmt) -> bool:
    """Whether it does nothing that anybody could see."""
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return isinstance(statement.target, ast.Name)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _brings(statement: ast.stmt) -> bool:
    """An import, or one that depends on what there is (``try: import x`` …)."""
    if isinstance(statement, _IMPORTS):
        return True
    if isinstance(statement, ast.If):
        if not isinstance(statement.test, ast.Name | ast.Attribute | ast.Constant):
            return False
        return all(map(_brought, (*statement.body, *statement.orelse)))
    if isinstance(statement, ast.Try):
        handled = [s for handler in statement.handlers for s in handler.body]
        return all(map(_brought, (*statement.body, *handled, *statement.orelse, *statement.finalbody)))
    return False


def _brought(statement: ast.stmt) -> bool:
    constant = (
        isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant) and _names(statement)
    )
    return bool(constant) or _inert(statement) or _brings(statement)


def _starred(statement: ast.stmt) -> bool:
    """Whether it brings every name of a module that may be the program's."""
    return any(
        isinstance(node, ast.ImportFrom)
        and any(alias.name == "*" for alias in node.names)
        and (node.level > 0 or (node.module or "").partition(".")[0] not in LIBRARIES)
        for node in ast.walk(statement)
    )


def _plain(value: ast.expr | None) -> bool:
    """Whether it is a value that can't be changed."""
    if isinstance(value, ast.UnaryOp):
        return _plain(value.operand)
    if isinstance(value, ast.Tuple):
        return all(map(_plain, value.elts))
    return isinstance(value, ast.Constant)


def _stored(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement may bind, in whatever way."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, _DEFINES):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def calls_only(statement: ast.stmt) -> list[ast.Expr]:
    """What ``if __name__ == "__main__":`` does, if that is calling functions of the file with nothing of its own."""
    if not isinstance(statement, ast.If) or statement.orelse or not _asks_name(statement.test):
        return []
    if not all(map(_simple_call, statement.body)):
        return []
    return [s for s in statement.body if isinstance(s, ast.Expr)]


def _asks_name(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]):
            return True
    return False


def _simple_call(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name(), args, keywords)):
            return all(map(_plain, args)) and all(k.arg and _plain(k.value) for k in keywords)
    return False
