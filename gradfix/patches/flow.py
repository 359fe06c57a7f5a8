"""What the lines that a fix changes have to do with the lines around them: which values they take, which they hand on.

A fix that was right is right elsewhere only if it stands in the same relation to the rest there. That is compared, and
not how the text looks: three tables of def-use chains, of the text before the fix and of that after it.

order     in one function, what lies among the changes and uses a name of theirs, in which blocks; what calls the
          same with the same counts as one of them, for a fix may say once more what stands elsewhere
origins   which names of a change read one and the same value, and which change made it
readers   who else reads a value that a change makes or overwrites, and who else overwrites one that it reads
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from gradfix.patches.callees import ARGUMENT, Effects, calls, effects, of_call
from gradfix.patches.lines import Names, lexed
from gradfix.patches.uses import (
    PARAMETER,
    SCOPES,
    Function,
    Statement,
    functions,
    names,
    objects,
    parts,
    takes_parameters,
)
from gradfix.patches.values import Flow, Reader, Sides

Ranges = Sequence[tuple[int, int]]  # lines of a text, from 0, the end exclusive


CHANGE, OVER = "a change", " over"
TORCH_CALLS = {"forward", "backward"}  # and not the program by these names
_NAMED = (*SCOPES, ast.Import, ast.ImportFrom)


def sides(old: str, new: str, before: Ranges, after: Ranges) -> Sides | None:
    """The tables of a change from the lines `before` of `old` to the lines `after` of `new`; None where one of the
    texts can't be parsed."""
    a, b = _Tables.of(old, before, {}), _Tables.of(new, after, {})
    if a is None or b is None:
        return None
    names = {*a.used(), *b.used()}
    flows = a.fill(names).flow(), b.fill(names).flow()
    return Sides(tuple(sorted(names)), *flows, tuple(sorted(a.escapes | b.escapes)))


def callers(text: str, names: Iterable[str]) -> tuple[Reader, ...]:
    """Who in `text` calls, or takes, the functions `names` of another file."""
    tables = _Tables.of(text, (), {})
    return tables.calling(names).flow().readers if tables is not None else ()


def new_caller(was: Sequence[Reader], text: str, names: Iterable[str]) -> str:
    """One in `text` that is not among `was`, as a sentence; "" where there is none."""
    tables = _Tables.of(text, (), {})
    if tables is None:
        return "it can't be parsed"
    for reader, statement in _unknown(was, tables.calling(names).readers):
        return f"{_said(tables, statement)} takes what the fix changes (`{reader.name}`), and did not when it was made"
    return ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Where a change stands in another relation to the rest of its text than it did, as a sentence; "" where nowhere.
    Where that is only that statements came in among its lines which do no more with its names than take a module's
    parameters, these are `beside` it: by their lines (from 1), before and after. Who follows the program may know more
    of them."""

    said: str = ""
    beside: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


def differs(was: Sides, old: str, new: str, before: Ranges, after: Ranges, called: Names) -> Doubt:
    """Where the change stands in another relation to the rest of its text than `was`. `called` are the fix's names as
    they are called here."""
    first, beside = "", []
    for text, lines, then in ((old, before, was.before), (new, after, was.after)):
        tables = _Tables.of(text, lines, called)
        if tables is None:
            return Doubt("it would be no Python any more")
        tables.fill({called.get(n) or n for n in was.names})
        among = _among(then, tables)
        said = _differs(then, tables, among)
        if said:
            return Doubt(said)
        if among:
            first = (
                first or f"{_said(tables, among[0])} is among the lines that it changes, and uses their names"
            )
        beside.append(frozenset(n for s in among for n in range(s.first, (s.node.end_lineno or s.last) + 1)))
    return Doubt(first, (beside[0], beside[1]))


def _among(was: Flow, now: _Tables) -> list[Statement]:
    """The statements that came in among the changes and only take a module's parameters."""
    order = [fact for fact, _ in now.order]
    steps = SequenceMatcher(None, was.order, order, autojunk=False).get_opcodes()
    new = [s for tag, _, _, j, stop in steps if tag == "insert" for _, s in now.order[j:stop]]
    return new if all(takes_parameters(s.node, now.names) for s in new) else []


def _differs(was: Flow, now: _Tables, among: Sequence[Statement]) -> str:
    facts = [(fact, s) for fact, s in now.order if s not in among]
    order = [fact for fact, _ in facts]
    if list(was.order) != order:
        for tag, _, _, j, stop in SequenceMatcher(None, was.order, order, autojunk=False).get_opcodes():
            if tag == "equal" or j == stop:
                continue
            fact, statement = facts[j]
            if fact.endswith(CHANGE):
                return f"{_said(now, statement)}, which it changes or says once more, is in other blocks than it was"
            return f"{_said(now, statement)} is among the lines that it changes, and uses their names"
        first, last = (facts[n][1].first for n in (0, -1)) if facts else (0, 0)
        return f"less that uses its names lies among the lines that it changes ({first} to {last}) than did"
    for n, (fact, statement, name) in enumerate(now.origins):
        if n >= len(was.origins) or was.origins[n] != fact:
            if not name:
                return (
                    f"{_said(now, statement)}{fact.lstrip('0123456789')}, and did not when the fix was made"
                )
            where = _binding(now, statement, name)
            return f"`{name}` in {_said(now, statement)} is not bound where it was{where}"
    for reader, statement in _unknown(was.readers, now.readers):
        what = "overwrites what the fix reads" if reader.how.endswith(OVER) else "reads what the fix changes"
        return f"{_said(now, statement)} {what} (`{reader.name.lstrip('.')}`), and did not when it was made"
    return ""


def _unknown(
    was: Sequence[Reader], now: Sequence[tuple[Reader, Statement]]
) -> list[tuple[Reader, Statement]]:
    """Those who do what none did. One that only looks otherwise is the one of `was` that is most like it."""
    known, left = Counter(was), []
    for reader, statement in now:
        if known[reader]:
            known[reader] -= 1
        else:
            left.append((reader, statement))
    for old in known.elements():
        alike = [each for each in left if (each[0].how, each[0].name) == (old.how, old.name)]
        if alike:
            words = {*old.line.split()}
            left.remove(max(alike, key=lambda r: len(words & {*r[0].line.split()})))
    return left


def _said(tables: _Tables, statement: Statement) -> str:
    return f"line {statement.first} (`{tables.lines[statement.first - 1].strip()}`)"


def _binding(tables: _Tables, statement: Statement, name: str) -> str:
    """The line nearest before `statement` that binds what it reads there."""
    numbers = statement.reads.get(name, set()) - {PARAMETER}
    function = next(f for f in tables.functions if statement in f.statements)
    above = [n for n in numbers if n < statement.number] or list(numbers)
    return f", but in {_said(tables, function.statements[max(above)])}" if above else ""


@dataclass(slots=True)
class _Tables:
    """The tables of one text, with the statement that each entry is about."""

    lines: list[str]
    functions: list[Function]
    ranges: Ranges
    back: Names
    scopes: dict[int, Function]
    effects: Effects
    names: frozenset[str] = frozenset()  # the fix's, as they are called here
    order: list[tuple[str, Statement]] = field(default_factory=list)
    origins: list[tuple[str, Statement, str]] = field(default_factory=list)
    readers: list[tuple[Reader, Statement]] = field(default_factory=list)
    escapes: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, text: str, ranges: Ranges, called: Names) -> _Tables | None:
        """None where `text` is no Python of this version."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = list(functions(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        back = {now: name for name, now in called.items() if now}
        return cls(text.split("\n"), found, ranges, back, {id(f.scope): f for f in found}, effects(found))

    def flow(self) -> Flow:
        return Flow(
            tuple(fact for fact, _ in self.order),
            tuple(fact for fact, _, _ in self.origins),
            tuple(reader for reader, _ in self.readers),
        )

    def changed(self, function: Function) -> list[Statement]:
        return [s for s in function.statements if any(a < s.last and s.first <= b for a, b in self.ranges)]

    def _change(self, changed: list[Statement]) -> int:
        """Which of the changes comes first among these statements: functions may have been moved."""
        first = (n for n, (a, b) in enumerate(self.ranges) for s in changed if a < s.last and s.first <= b)
        return next(first, -1)

    def used(self) -> Iterator[str]:
        """The names of the lines that are changed, but for those that only modules, functions and classes have."""
        values = {
            name
            for f in self.functions
            for name in (
                *(n for s in f.statements if not isinstance(s.node, _NAMED) for n in s.binds),
                *(n for n in f.local if n not in {b for s in f.statements for b in s.binds}),  # parameters
            )
        }
        for function in self.functions:
            for statement in self.changed(function):
                yield from values & {*statement.reads, *statement.binds, *statement.writes}

    def fill(self, names: Set[str]) -> _Tables:
        """The tables for `names`, as they are called here."""
        self.names = frozenset(names)
        found = [(function, self.changed(function)) for function in self.functions]
        for function, changed in sorted(found, key=lambda each: self._change(each[1])):
            if changed:
                anchors = self._anchors(function, changed)
                self._order(function, changed, anchors)
                self._origins(function, changed, anchors)
                self._readers(function, changed)
        return self

    def _anchors(self, function: Function, changed: list[Statement]) -> list[Statement]:
        """What is changed, and what says the same as a part of it."""
        calls = {call for s in changed for call in self._calls(s)}
        return [s for s in function.statements if s in changed or calls & set(self._calls(s))]

    def _calls(self, statement: Statement) -> Iterator[str]:
        """The calls in a statement that are given one of the names."""
        for part in parts(statement.node):
            for call in ast.walk(part):
                if isinstance(call, ast.Call) and any(
                    n in self.names for a in call.args for n, _, _ in names(a)
                ):
                    yield ast.dump(call)

    def _order(self, function: Function, changed: list[Statement], anchors: list[Statement]) -> None:
        shared = _common([s.path for s in anchors])
        gaps = list(self._gaps(function))
        first, last = min([anchors[0].number, *gaps]), max([anchors[-1].number, *(n - 1 for n in gaps)])
        for statement in function.statements[first : last + 1]:
            if statement in anchors:
                said = CHANGE if statement in changed else f"the same as {CHANGE}"
            elif self.names & {
                *self._effects(statement),
                *statement.binds,
                *statement.writes,
                *(statement.reads.keys() - statement.told),
            }:
                said = self._how(statement, self.names)
            else:
                continue
            blocks = "/".join(kind for _, kind in statement.path[shared:])
            self.order.append((f"{blocks}: {said}", statement))

    def _gaps(self, function: Function) -> Iterator[int]:
        """Where lines are only in the other text, as the number of the statement that follows: what is moved passes all
        that lies in between."""
        for line in (a for a, b in self.ranges if a == b):
            inner = [s for s in function.statements if isinstance(s.node, SCOPES)]
            if any(s.first <= line < (s.node.end_lineno or 0) for s in inner):
                continue
            body = function.statements
            if body[0].first - 1 <= line <= (body[-1].node.end_lineno or 0):
                yield next((s.number for s in body if s.first > line), len(body))

    def _origins(self, function: Function, changed: list[Statement], anchors: list[Statement]) -> None:
        own = {s.number: n for n, s in enumerate(changed)}
        values: dict[tuple[str, frozenset[int]], int] = {}
        for n, statement in enumerate(anchors):
            touched = sorted(map(self._called, self._effects(statement) & {*self.names, ARGUMENT}))
            if touched and statement in changed:
                self.origins.append((f"{n} calls what changes {', '.join(touched)}", statement, ""))
            for name in sorted(statement.reads.keys() & self.names, key=self._called):
                if name.startswith("."):
                    continue
                found = statement.reads[name]
                said = [f"change {own[d]}" for d in sorted(found & own.keys())]
                other = frozenset(found - own.keys())
                if other or name not in function.local:
                    before = sum(1 for known, _ in values if known == name)
                    said.append(f"value {values.setdefault((name, other), before)}")
                fact = f"{n} {self._called(name)}: {', '.join(said) or 'none'}"
                self.origins.append((fact, statement, name))

    def _readers(self, function: Function, changed: list[Statement]) -> None:
        own = {s.number for s in changed}
        makes = self.names & {n for s in changed for n in (*s.binds, *s.writes)}
        escapes = False
        for name in sorted(makes, key=self._called):
            if name.startswith(".") or name not in function.local:
                self._anywhere(name, function, own)
                continue
            # what is overwritten has other readers than what is made, and by other names
            over = {d for s in changed if name in s.writes for d in s.reads.get(name, ())}
            values = objects(function, name, over)
            values[name] = values.get(name, set()) | own
            for s in function.statements:
                if s.number in own:
                    continue
                told = s.told & {name}  # by other names the number is another, too
                read = {n for n, d in values.items() if n not in told and s.reads.get(n, set()) & d}
                if read or (isinstance(s.node, SCOPES) and self._free(s.node) & values.keys()):
                    self._add(name, s)
                escapes |= bool(read) and isinstance(s.node, ast.Return)
            escapes |= any(PARAMETER in d for d in values.values())
        self._writers(function, changed)
        called = "" if isinstance(function.scope, ast.Module) else function.scope.name
        if escapes and called and called not in TORCH_CALLS:
            self.escapes.add(called)
            self._anywhere(called, function, own)
            self._anywhere(f".{called}", function, own)

    def _writers(self, function: Function, changed: list[Statement]) -> None:
        """Who else overwrites what is read, by whatever name."""
        own = {s.number for s in changed}
        for name in sorted(self.names, key=self._called):
            values = objects(function, name, {d for s in changed for d in s.reads.get(name, ())})
            for s in function.statements:
                written = any(
                    s.number in d or s.reads.get(n, set()) & d for n, d in values.items() if n in s.writes
                )
                if written and s.number not in own:
                    self._add(name, s, OVER)

    def calling(self, functions: Iterable[str]) -> _Tables:
        """The readers of functions that are another file's."""
        for name in sorted(functions):
            self._anywhere(name, None, set())
            self._anywhere(f".{name}", None, set())
        return self

    def _anywhere(self, name: str, function: Function | None, own: Set[int]) -> None:
        for f in self.functions:
            if name in f.local and not isinstance(f.scope, ast.Module):
                continue
            for s in f.statements:
                if name in s.reads and name not in s.told and not (f is function and s.number in own):
                    self._add(name, s)

    def _add(self, name: str, statement: Statement, how: str = "") -> None:
        said = lexed(self.lines[statement.first - 1]).spelled(self.back)
        self.readers.append(
            (Reader(self._called(name), self._how(statement, self.names | {name}) + how, said), statement)
        )

    def _free(self, scope: ast.AST) -> set[str]:
        """The names that a function takes from around it."""
        f = self.scopes[id(scope)]
        inner = [self._free(s.node) for s in f.statements if isinstance(s.node, SCOPES)]
        return set().union(*(s.reads for s in f.statements), *inner) - f.local

    def _how(self, statement: Statement, names: Set[str]) -> str:
        """What a statement does with `names`."""
        node = statement.node
        kind = type(node).__name__.lower()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            kind = f"call {self._called(word)}"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            kind = "assign"
        reads = sorted(map(self._called, statement.reads.keys() & names))
        changes = (statement.binds | self._effects(statement)) & names
        binds = sorted(map(self._called, changes)) + ["…"] * bool(statement.binds - names)
        return f"{kind} {', '.join(reads)} -> {', '.join(binds)}"

    def _effects(self, statement: Statement) -> frozenset[str]:
        """What its calls may change besides."""
        return frozenset().union(*(of_call(self.effects, name) for name in calls(statement)))

    def _called(self, name: str) -> str:
        return self.back.get(name, name)


def _common(paths: Sequence[tuple[tuple[int, str], ...]]) -> int:
    """How many of the blocks around all of them are the same."""
    length = 0
    for blocks in zip(*paths, strict=False):
        if len(set(blocks)) > 1:
            break
        length += 1
    return length
