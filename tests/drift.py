"""Scripts that change after a patch was made of them, and what the patch should make of them then.

A document is the lines of a script, where each change of the fix is one node with its old and its new lines. Every edit
is made once on the nodes; the drifted script is its old lines, and what the fix should come to its new ones. (A node's
place is tracked by what it is, not by what it looks like: no matching of any kind is done here.)
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from random import Random


@dataclass(frozen=True)
class Node:
    """One line (`old` is `new`), or one change of the fix."""

    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return self.old != self.new


@dataclass(frozen=True)
class Document:
    """`doubts`: comments of lines that the fix rewrites were changed, and may stand on another of its lines. `copied`:
    what the fix changes is there twice (were the first taken away then, the copy would be where it moved). `destroyed`:
    what the fix changes is not there any more. `rebound`: between two of its lines that use one name, that name is
    bound to something else, so that the fix would change what is computed. `trained`: it trains otherwise now, and what
    is placed is judged by its numbers; `never`: the fix would do harm wherever it is placed."""

    nodes: tuple[Node, ...]
    doubts: bool = False
    copied: bool = False
    destroyed: bool = False
    rebound: bool = False
    trained: bool = False
    never: bool = False
    done: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, old: str, new: str) -> Document:
        a, b = old.split("\n"), new.split("\n")
        nodes: list[Node] = []
        for tag, i, end, j, stop in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag == "equal":
                nodes += [Node((x,), (x,)) for x in a[i:end]]
            else:
                nodes.append(Node(tuple(a[i:end]), tuple(b[j:stop])))
        return cls(tuple(nodes))

    @property
    def old(self) -> str:
        return "\n".join(x for n in self.nodes for x in n.old)

    @property
    def new(self) -> str:
        return "\n".join(x for n in self.nodes for x in n.new)

    def starts(self) -> list[int]:
        """The line, from 0, at which each node's old lines begin."""
        out, at = [], 0
        for node in self.nodes:
            out.append(at)
            at += len(node.old)
        return out


Edit = Callable[[Document, Random], "Document | None"]
EDITS: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    EDITS[function.__name__] = function
    return function


def drifted(document: Document, random: Random, times: int) -> Document:
    """`document` after up to so many edits that leave it Python."""
    for _ in range(times * 4):
        if len(document.done) == times:
            break
        name = random.choice(sorted(EDITS))
        changed = EDITS[name](document, random)
        if changed is not None and parses(changed.old):
            document = replace(changed, done=(*document.done, name))
    return document


def parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError:
            return False
    return True


def _nodes(document: Document, nodes: list[Node]) -> Document:
    return replace(document, nodes=tuple(nodes))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _lines(document: Document) -> list[int]:
    """The nodes that are a line of code and no change of the fix."""
    return [
        n
        for n, node in enumerate(document.nodes)
        if not node.changes and node.old[0].strip() and not node.old[0].lstrip().startswith("#")
    ]


@edit
def inserted(document: Document, random: Random) -> Document | None:
    at = random.choice(_lines(document))
    indent = _indent(document.nodes[at].old[0])
    lines = random.choice(
        [["print('here')"], ["import sys"], ["count = 0", "count += 1"], ["# a thought"], ["", ""], ["pass"]]
    )
    nodes = [Node((x,), (x,)) for line in lines for x in [f"{indent}{line}" if line else ""]]
    return _nodes(document, [*document.nodes[:at], *nodes, *document.nodes[at:]])


@edit
def rebound(document: Document, random: Random) -> Document | None:
    """A name of the fix's lines is bound again, to something made of it, in one of the lines around them."""
    changes = [n for n, node in enumerate(document.nodes) if node.changes]
    tree = ast.parse(document.old)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inner = [n.target for n in ast.walk(tree) if isinstance(n, ast.comprehension)]
    bound -= {
        n.id for target in inner for n in ast.walk(target) if isinstance(n, ast.Name)
    }  # names of their own
    used = {n: bound & {w for x in (*node.old, *node.new) for w in re.findall(r"\w+", x.partition("#")[0])}
            for n, node in enumerate(document.nodes) if node.changes}  # fmt: skip
    names = sorted(set().union(*used.values()))
    places = [n for n in _lines(document) if min(changes, default=n) - 3 <= n <= max(changes, default=n) + 3]
    if not names or not places:
        return None
    name, at = random.choice(names), random.choice(places)
    line = _indent(document.nodes[at].old[0]) + random.choice(
        [f"{name} = {name} * 2", f"{name} = torch.sigmoid({name})"]
    )

    def uses(nodes: range) -> bool:
        """Whether one of the changes there, in the same function, uses the name."""
        for n in nodes:
            if any(re.match(r"\s*(def|class)\b", x) for x in document.nodes[n].old):
                return False
            if name in used.get(n, ()):
                return True
        return False

    between = uses(range(at - 1, -1, -1)) and uses(range(at, len(document.nodes)))
    document = replace(document, rebound=document.rebound or between)
    return _nodes(document, [*document.nodes[:at], Node((line,), (line,)), *document.nodes[at:]])


@edit
def many_inserted(document: Document, random: Random) -> Document | None:
    at = random.choice(_lines(document))
    indent = _indent(document.nodes[at].old[0])
    nodes = [
        Node((x,), (x,)) for n in range(random.randint(5, 60)) for x in [f"{indent}option_{n} = {n} * 2"]
    ]
    return _nodes(document, [*document.nodes[:at], *nodes, *document.nodes[at:]])


@edit
def deleted(document: Document, random: Random) -> Document | None:
    at = random.randrange(len(document.nodes))
    count = random.randint(1, 3)
    gone = document.nodes[at : at + count]
    change = any(n.changes and n.old for n in gone)
    if document.copied and change:
        return None
    between = [n for n in gone if not n.old]  # a place between lines is not deleted with them
    document = replace(document, destroyed=document.destroyed or change)
    return _nodes(document, [*document.nodes[:at], *between, *document.nodes[at + count :]])


@edit
def edited(document: Document, random: Random) -> Document | None:
    """Another number in a line of code, the fix's own among them: then there is nothing to be placed any more."""
    at = random.randrange(len(document.nodes))
    node = document.nodes[at]

    def other(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(re.sub(r"(?<![\w.])\d+(?![\w.])", lambda m: str(int(m[0]) + 3), x) for x in lines)

    if node.changes:
        return None
    new = Node(other(node.old), other(node.new))
    return _nodes(document, [*document.nodes[:at], new, *document.nodes[at + 1 :]]) if new != node else None


@edit
def rewritten(document: Document, random: Random) -> Document | None:
    """What the fix changes says something else now: no fix has a place there."""
    changes = [n for n, node in enumerate(document.nodes) if node.changes and node.old]
    if not changes or document.copied:
        return None
    at = random.choice(changes)
    old = document.nodes[at].old
    line = random.randrange(len(old))
    said = old[line].replace("(", "(0 + ", 1) if random.random() < 0.5 else f"{_indent(old[line])}pass"
    lines = tuple(said if n == line else x for n, x in enumerate(old))
    if lines == old:
        return None
    document = replace(document, destroyed=True)
    return _nodes(
        document, [*document.nodes[:at], *(Node((x,), (x,)) for x in lines), *document.nodes[at + 1 :]]
    )


@edit
def renamed(document: Document, random: Random) -> Document | None:
    """A name that the script binds is another one, everywhere (as an editor's rename has it)."""
    tree = ast.parse(document.old)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    keywords = {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword)}
    parameters = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    names = sorted(bound - keywords - parameters)
    if not names:
        return None
    name = random.choice(names)
    new = f"{name}_{random.choice('abc')}"
    if re.search(rf"\b{new}\b", document.new) or re.search(rf"\b{new}\b", document.old):
        return None
    return _nodes(
        document, [Node(_named(n.old, name, new), _named(n.new, name, new)) for n in document.nodes]
    )


def _named(lines: tuple[str, ...], name: str, new: str) -> tuple[str, ...]:
    return tuple(_outside_strings(x, lambda code: re.sub(rf"(?<![\w.]){name}\b", new, code)) for x in lines)


def _outside_strings(line: str, change: Callable[[str], str]) -> str:
    """`line` with `change` made to what is neither a string nor a comment."""
    out, at = [], 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                start = len(_indent(line)) + token.start[1]
                out += [change(line[at:start]), token.string]
                at = start + len(token.string)
    except (tokenize.TokenError, IndentationError):
        pass
    return "".join(out) + change(line[at:])


@edit
def commented(document: Document, random: Random) -> Document | None:
    at = random.randrange(len(document.nodes))
    node = document.nodes[at]
    if not node.old or any("#" in x for x in node.old) or not all(x.strip() for x in node.old):
        return None
    said = random.choice(["  # why", "  # see the paper"])
    if not node.changes:
        new = Node((node.old[0] + said,), (node.new[0] + said,))
    else:
        one = len(node.old) == len(node.new) == 1
        new = Node((node.old[0] + said, *node.old[1:]), (node.new[0] + said,) if one else node.new)
    document = replace(document, doubts=document.doubts or node.changes)
    return _nodes(document, [*document.nodes[:at], new, *document.nodes[at + 1 :]])


@edit
def uncommented(document: Document, random: Random) -> Document | None:
    at = random.randrange(len(document.nodes))
    node = document.nodes[at]

    def bare(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(re.sub(r"(?<=\S)\s+#[^'\"]*$", "", x) for x in lines)

    new = Node(bare(node.old), bare(node.new))
    if new == node:
        return None
    document = replace(document, doubts=document.doubts or node.changes)
    return _nodes(document, [*document.nodes[:at], new, *document.nodes[at + 1 :]])


def _end(document: Document, i: int, j: int) -> int:
    """The end of a range of nodes: what the fix puts in after it may belong to its last statement."""
    if j == len(document.nodes) or document.nodes[j].old or not document.nodes[j].new[0].strip():
        return j
    first = next((n.old[0] for n in document.nodes[i:j] if n.old), "")
    return j + (len(_indent(document.nodes[j].new[0])) > len(_indent(first)))


def _blocks(document: Document, top: bool) -> list[tuple[int, int]]:
    """Ranges of nodes that are whole statements beside one another; functions and classes of the module where `top`."""
    tree = ast.parse(document.old)
    starts = document.starts()
    at = {line: n for n, line in reversed(list(enumerate(starts)))}
    out = []
    for parent in ast.walk(tree):
        for body in (getattr(parent, x, None) for x in ("body", "orelse", "finalbody")):
            if not isinstance(body, list) or not body or not isinstance(body[0], ast.stmt):
                continue
            for i in range(len(body)):
                for j in range(i, min(i + 4, len(body))):
                    if top and not (
                        parent is tree and i == j and isinstance(body[i], ast.FunctionDef | ast.ClassDef)
                    ):
                        continue
                    first = min(
                        (d.lineno for d in getattr(body[i], "decorator_list", ())), default=body[i].lineno
                    )
                    last = body[j].end_lineno or first
                    if first - 1 in at and (last in at or last == len(document.old.split("\n"))):
                        out.append((at[first - 1], at.get(last, len(starts))))
    return [(i, _end(document, i, j)) for i, j in out if i < j]


@edit
def moved_function(document: Document, random: Random) -> Document | None:
    blocks = _blocks(document, True)
    if not blocks:
        return None
    i, j = random.choice(blocks)
    rest = [*document.nodes[:i], *document.nodes[j:]]
    places = [n for n, node in enumerate(rest) if not node.changes and re.match(r"\w", node.old[0])]
    if not places:
        return None
    to = random.choice(places)
    return _nodes(document, [*rest[:to], *document.nodes[i:j], *rest[to:]])


@edit
def wrapped(document: Document, random: Random) -> Document | None:
    """Statements go below an `if`, four columns to the right."""
    blocks = _blocks(document, False)
    i, j = random.choice(blocks)
    first = next((n.old[0] for n in document.nodes[i:j] if n.old), "")
    indent = _indent(first)

    def right(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"    {x}" if x.strip() else x for x in lines)

    inside = [Node(right(n.old), right(n.new)) for n in document.nodes[i:j]]
    test = Node((f"{indent}if True:",), (f"{indent}if True:",))
    return _nodes(document, [*document.nodes[:i], test, *inside, *document.nodes[j:]])


@edit
def in_function(document: Document, random: Random) -> Document | None:
    """A loop of the module's, and what stands before it, goes into a function that is called in its place."""
    heads = {n for n, node in enumerate(document.nodes) if node.old and not _indent(node.old[0])}
    blocks = [(i, j) for i, j in _blocks(document, False) if i in heads]
    words = ("class ", "def ", "import ", "from ", "@")
    blocks = [(i, j) for i, j in blocks if any(re.match(r"for |while ", x) for n in document.nodes[i:j] for x in n.old)
              and not any(x.startswith(words) for n in document.nodes[i:j] for x in n.old)]  # fmt: skip
    if not blocks or re.search(r"\bmain\b", document.old):
        return None
    i, j = random.choice(blocks)

    def right(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"    {x}" if x.strip() else x for x in lines)

    inside = [Node(right(n.old), right(n.new)) for n in document.nodes[i:j]]
    head, *call = (Node((x,), (x,)) for x in ("def main():", "", "", "main()"))
    return _nodes(document, [*document.nodes[:i], head, *inside, *call, *document.nodes[j:]])


@edit
def swapped(document: Document, random: Random) -> Document | None:
    """Two lines beside each other change places."""
    lines = set(_lines(document))
    pairs = [n for n in lines if n + 1 in lines
             and _indent(document.nodes[n].old[0]) == _indent(document.nodes[n + 1].old[0])]  # fmt: skip
    if not pairs:
        return None
    n = random.choice(sorted(pairs))
    a, b = document.nodes[n : n + 2]
    return _nodes(document, [*document.nodes[:n], b, a, *document.nodes[n + 2 :]])


@edit
def reindented(document: Document, random: Random) -> Document | None:
    """Every level is a tab, or two spaces, instead of four."""
    unit = random.choice(["\t", "  "])
    indents = {_indent(x) for n in document.nodes for x in (*n.old, *n.new) if x.strip()}
    if any("\t" in x or len(x) % 4 for x in indents):
        return None

    def other(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(unit * (len(_indent(x)) // 4) + x.lstrip() if x.strip() else x for x in lines)

    return _nodes(document, [Node(other(n.old), other(n.new)) for n in document.nodes])


@edit
def duplicated(document: Document, random: Random) -> Document | None:
    """A block is copied, right behind itself or elsewhere; the fix was made for the first."""
    blocks = _blocks(document, random.random() < 0.5)
    if not blocks:
        return None
    i, j = random.choice(blocks)
    copy = [Node((x,), (x,)) for node in document.nodes[i:j] for x in node.old]
    indent = _indent(copy[0].old[0])
    places = [n for n in _lines(document) if _indent(document.nodes[n].old[0]) == indent and not i < n < j]
    to = random.choice([j, j, *places])
    document = replace(document, copied=document.copied or any(n.changes for n in document.nodes[i:j]))
    return _nodes(document, [*document.nodes[:to], *copy, *document.nodes[to:]])


@edit
def copied_elsewhere(document: Document, random: Random) -> Document | None:
    """A line that the fix changes, or goes beside, stands somewhere else as well."""
    changes = [n for n, node in enumerate(document.nodes) if node.changes]
    at = random.choice(changes) if changes else 0
    around = document.nodes[max(at - 1, 0) : at + 2]
    copy = [x for node in around for x in node.old if x.strip()]
    to = random.choice(_lines(document))
    indent = _indent(document.nodes[to].old[0])
    document = replace(document, copied=True)
    nodes = [Node((x,), (x,)) for line in copy for x in [indent + line.lstrip()]]
    return _nodes(document, [*document.nodes[:to], *nodes, *document.nodes[to:]])
