"""What libcst leaves to you: finding a node by its span, parentheses, insertion and removal, fresh names,
liveness.

A codemod *finds* nodes in a View (libcst's MetadataWrapper over one file) and says what should happen to them
as Edits; one transformer applies all edits of a file at once. Edits hold nodes of `View.module` by identity
and build on the updated node, so that edits of a node and of its children compose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from gradfix import suite
from gradfix.graph import Graph
from gradfix.tape import Site, Stack, Tape

Node = TypeVar("Node", bound=cst.CSTNode)
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True, eq=False)
class Replace:
    """`node` becomes what `build` makes of its updated self (cst.RemoveFromParent() removes it)."""

    node: cst.CSTNode
    build: Callable[[cst.CSTNode], cst.CSTNode | cst.FlattenSentinel[Any] | cst.RemovalSentinel]


@dataclass(frozen=True, slots=True, eq=False)
class Insert:
    """Statements put before and after `node`, a statement or a small statement among semicolons. There small ones join
    the line, and lines split it."""

    node: cst.CSTNode
    before: tuple[cst.CSTNode, ...] = ()
    after: tuple[cst.CSTNode, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Wrap:
    """Neighbouring statements of one body, in order, become the one statement that `build` makes of them
    (updated)."""

    nodes: tuple[cst.CSTNode, ...]
    build: Callable[[Sequence[cst.BaseStatement]], cst.BaseStatement]


Edit = Replace | Insert | Wrap


def exchange(node: cst.CSTNode, new: cst.CSTNode) -> Replace:
    """`node` becomes `new`; what else is edited inside it is lost."""
    return Replace(node, lambda _: new)


def targets(edit: Edit) -> tuple[cst.CSTNode, ...]:
    """The nodes an edit speaks of."""
    return edit.nodes if isinstance(edit, Wrap) else (edit.node,)


class View:
    """One file, parsed, with positions and parents. Raises cst.ParserSyntaxError."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.wrapper = MetadataWrapper(suite.parse(text))
        self.module = self.wrapper.module

    @cached_property
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Where every node stands: lines from 1, columns in code points from 0."""
        return self.wrapper.resolve(PositionProvider)

    @cached_property
    def parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """The parent of every node but the module."""
        return self.wrapper.resolve(ParentNodeProvider)

    def code(self, node: cst.CSTNode) -> str:
        """The source of `node`."""
        return self.module.code_for_node(node)

    def span(self, node: cst.CSTNode) -> CodeRange:
        """Where `node` stands."""
        return self.positions[node]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Parents of `node`, nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing(self, node: cst.CSTNode, *types: type[Node]) -> Node | None:
        """The nearest ancestor (or `node` itself) of one of `types`."""
        for x in (node, *self.ancestors(node)):
            if isinstance(x, types):
                return x
        return None

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """The statement `node` stands in: a line of small statements or a compound statement."""
        around = (node, *self.ancestors(node))
        return next(
            (x for x in around if isinstance(x, cst.SimpleStatementLine | cst.BaseCompoundStatement)), None
        )

    def small_statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """The small statement `node` stands in, or is: an assignment, an expression, a return."""
        around = (node, *self.ancestors(node))
        return next((x for x in around if isinstance(x, cst.BaseSmallStatement)), None)

    def loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """The innermost loop around `node` in the same function."""
        for x in self.ancestors(node):
            if isinstance(x, (cst.For, cst.While)):
                return x
            if isinstance(x, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
                return None
        return None

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Lambda | None:
        """The function or lambda around `node`."""
        return next((x for x in self.ancestors(node) if isinstance(x, (cst.FunctionDef, cst.Lambda))), None)

    def at(self, site: Site) -> cst.CSTNode | None:
        """The largest expression or small statement with exactly the site's span; where none has it (or only
        the line is known), the smallest statement around it."""
        exact = self._by_span.get((site.line, site.column, site.end_line, site.end_column))
        if exact:
            return exact[0]
        return self.statement_at(site)

    def call_at(self, site: Site) -> cst.Call | None:
        """The call a frame stands in: the one with the site's span, or the only one of its line."""
        for node in self._by_span.get((site.line, site.column, site.end_line, site.end_column), ()):
            if isinstance(node, cst.Call):
                return node
            if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
                return node.value
        calls = [
            n for n, r in self.positions.items() if isinstance(n, cst.Call) and r.start.line == site.line
        ]
        return calls[0] if len(calls) == 1 and not site.end_column else None

    def statement_at(self, site: Site) -> Statement | cst.BaseSmallStatement | None:
        """The smallest small or compound statement that contains the site's start."""
        best: tuple[tuple[int, int], cst.CSTNode] | None = None
        here = (site.line, site.column)
        for node, r in self.positions.items():
            if not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                continue
            start, end = (r.start.line, r.start.column), (r.end.line, r.end.column)
            inside = start <= here < end if site.end_line else start[0] <= site.line <= end[0]
            if inside and (best is None or start >= best[0]):
                best = (start, node)
        return best[1] if best else None  # type: ignore[return-value]

    @cached_property
    def _by_span(self) -> dict[tuple[int, int, int, int], list[cst.CSTNode]]:
        table: dict[tuple[int, int, int, int], list[cst.CSTNode]] = {}
        for node, r in self.positions.items():  # parents come after their children
            if isinstance(node, (cst.BaseExpression, cst.BaseSmallStatement)):
                table.setdefault((r.start.line, r.start.column, r.end.line, r.end.column), []).insert(0, node)
        for node, r in self.positions.items():
            # CPython says where a method is called by the line of the method's name, not where the chain
            # begins.
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                name = self.positions[node.func.attr].start
                if name.line != r.start.line:
                    table.setdefault((name.line, name.column, r.end.line, r.end.column), []).append(node)
        return table

    def apply(self, edits: Iterable[Edit]) -> str:
        """The file's text after `edits`, every line that they leave alone as it was."""
        return _relaid(self.text, self.module.code, self.module.visit(_Apply(edits)).code)


def _relaid(text: str, printed: str, new: str) -> str:
    """`new` with the lines of `text` where it has those of `printed`: libcst, printing what it has parsed, drops form
    feeds, blanks before them, and the empty line before a last line of blanks."""
    if printed == text:
        return new
    was, plain, now = ([*_LINE.findall(x), ""] for x in (text, printed, new))
    # line of `printed` -> line of `text`; what was dropped belongs to what follows it
    begins = {len(plain): len(was)}
    for _, i, j, k, m in SequenceMatcher(None, plain, was, autojunk=False).get_opcodes():
        for n in range(max(j - i, 1)):
            begins.setdefault(i + n, min(k + n, m))
    out: list[str] = []
    for tag, i, j, k, m in SequenceMatcher(None, plain, now, autojunk=False).get_opcodes():
        out += was[begins[i] : begins[j]] if tag == "equal" else now[k:m]
    return "".join(out)


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: Iterable[Edit]) -> None:
        super().__init__()
        self.replace: dict[int, list[Replace]] = {}
        self.insert: dict[int, list[Insert]] = {}
        self.wrap: dict[int, Wrap] = {}
        self.held: dict[int, list[cst.BaseStatement]] = {}  # a Wrap's statements until its last one is met
        self.beside: dict[
            int, tuple[list[Any], list[Any]]
        ] = {}  # lines before and after a small statement, as it is
        for edit in edits:
            if isinstance(edit, Replace):
                self.replace.setdefault(id(edit.node), []).append(edit)
            elif isinstance(edit, Insert):
                self.insert.setdefault(id(edit.node), []).append(edit)
            else:
                self.wrap.update((id(n), edit) for n in edit.nodes)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        result: Any = super().on_leave(original_node, updated_node)
        for r in self.replace.get(id(original_node), ()):
            result = r.build(result)
        if isinstance(result, cst.SimpleStatementLine) and self.beside:
            result = self._parted(result)
        around = self.insert.get(id(original_node))
        if around:
            result = self._with_neighbours(original_node, result, around)
        wrap = self.wrap.get(id(original_node))
        if wrap:
            held = self.held.setdefault(id(wrap), [])
            held.extend(_nodes(result))
            if original_node is not wrap.nodes[-1]:
                return cst.RemoveFromParent()
            return wrap.build(held)
        return result

    def _with_neighbours(self, node: cst.CSTNode, result: Any, around: Sequence[Insert]) -> Any:
        before = [x for i in around for x in i.before]
        after = [x for i in around for x in i.after]
        middle = _nodes(result)
        if isinstance(result, cst.BaseSmallStatement) and _lines(before) and _lines(after):
            self.beside[id(result)] = before, after
            return result
        if isinstance(node, cst.BaseSmallStatement):
            before, after = _smalls(before), _smalls(after)
        if before and middle and _leading(middle[0]) and not _leading(before[0]):
            # blank lines and comments stand above what is put first
            before[0] = before[0].with_changes(leading_lines=middle[0].leading_lines)
            middle[0] = middle[0].with_changes(leading_lines=())
        return cst.FlattenSentinel([*before, *middle, *after])

    def _parted(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | cst.FlattenSentinel[Any]:
        """A line as the lines that it becomes where others stand beside its small statements."""
        out: list[Any] = []
        together: list[cst.BaseSmallStatement] = []
        last = 0  # where the comment of the line belongs

        def end() -> None:
            nonlocal last
            if together:
                final = together.pop().with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
                last = len(out)
                out.append(cst.SimpleStatementLine([*together, final]))
                together.clear()

        for small in line.body:
            before, after = self.beside.pop(id(small), ((), ()))
            if before:
                end()
                out += before
            together.append(small)
            if after:
                end()
                out += after
        end()
        if out[1:]:
            out[0] = out[0].with_changes(leading_lines=[*line.leading_lines, *_leading(out[0])])
            out[last] = out[last].with_changes(trailing_whitespace=line.trailing_whitespace)
            return cst.FlattenSentinel(out)
        return line


def _lines(nodes: Sequence[Any]) -> bool:
    return not any(isinstance(x, cst.BaseSmallStatement) for x in nodes)


def _smalls(nodes: Sequence[Any]) -> list[Any]:
    """The small statements of lines."""
    return [x for node in nodes for x in (node.body if isinstance(node, cst.SimpleStatementLine) else [node])]


def _nodes(result: Any) -> list[Any]:
    if isinstance(result, cst.RemovalSentinel):
        return []
    return list(result) if isinstance(result, cst.FlattenSentinel) else [result]


def _leading(node: Any) -> Sequence[cst.EmptyLine]:
    return getattr(node, "leading_lines", ())


def unparsed(text: str) -> str:
    """Why libcst can't parse `text`, which Python can; "" where it can."""
    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as problem:
        return f"libcst can't parse it near line {problem.raw_line}"
    except RecursionError:
        return "it is nested too deeply for libcst"
    return ""


@dataclass(frozen=True)
class Project:
    """What a codemod may ask about: the user's files as they are now, and the tape of their run.

    `files` maps absolute path to text of every file of the user's that the run executed and that may be
    edited.
    """

    tape: Tape
    files: Mapping[str, str]
    _views: dict[str, View | None] = field(default_factory=dict, repr=False)

    @cached_property
    def graph(self) -> Graph:
        """What the tape tells of the autograd graph, to be asked instead of the events."""
        return Graph(self.tape)

    def view(self, path: str) -> View | None:
        """The parsed file, or None where it is not the user's to edit, or is nothing libcst can parse: of a later
        Python, or nested too deeply."""
        if path not in self._views and path in self.files:
            try:
                self._views[path] = View(path, self.files[path])
            except (cst.ParserSyntaxError, RecursionError):
                self._views[path] = None
        return self._views.get(path)

    def node(self, site: Site) -> tuple[View, cst.CSTNode] | None:
        """The view of the site's file and the node there."""
        view = self.view(site.file)
        node = view.at(site) if view else None
        return (view, node) if view and node is not None else None

    def apply(self, edits: Mapping[str, Sequence[Edit]]) -> dict[str, str]:
        """The new text of every file that `edits` (by absolute path) change."""
        texts = {}
        for path, some in edits.items():
            view = self.view(path)
            if view is not None and (text := view.apply(some)) != view.text:
                texts[path] = text
        return texts

    def frames(self, stack: Stack) -> Iterator[tuple[View, cst.CSTNode]]:
        """The nodes of a stack's frames, outermost first, those that may be edited."""
        for site in stack:
            found = self.node(site)
            if found:
                yield found


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """`node` in parentheses, unless it is already, or never needs them (a name, a call, an attribute, a
    literal)."""
    atoms = (
        cst.Name,
        cst.Call,
        cst.Attribute,
        cst.Subscript,
        cst.BaseNumber,
        cst.BaseString,
        cst.List,
        cst.Dict,
    )
    if node.lpar or isinstance(node, atoms):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def parse_small(text: str) -> cst.BaseSmallStatement:
    """`text` as a small statement: ``y = y.exp()``. Raises cst.ParserSyntaxError."""
    line = cst.parse_statement(text)
    assert isinstance(line, cst.SimpleStatementLine)
    return line.body[0]
