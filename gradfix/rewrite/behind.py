"""What has to go along when an optimizer's step is put behind later statements: code that stands after the step sees
the parameters that the step left, and must go on to see them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.liveness import functions
from gradfix.rewrite.spelling import descendants, small_statements
from gradfix.rewrite.statements import Unit, block_of, dotted, lifted, names, touches, unit_in, units
from gradfix.tape import Event

LEAVES = (cst.Continue, cst.Break, cst.Return, cst.Raise, cst.Yield)
# calls that read the tensors they are given, and neither parameters nor anything else of the program's
PLAIN = frozenset(("print", "len", "float", "int", "str", "round", "abs", "min", "max", "range"))
DRIVES = ("backward", "zero_grad")
METHODS = frozenset(
    ("append", "item", "detach", "tolist", "cpu", "float", "mean", "sum", "format", "numpy", "join")
)
_WORD = re.compile(r"[^\W\d]\w*")
_CALLED = re.compile(r"(?:\b(\w+)\.)?\b(\w+)\(")
_WHOLE = re.compile(r"[(,=]\s*(\w+)\s*(?=[,)])")


def along(
    body: Sequence[Unit],
    first: int,
    last: int,
    steps: Collection[int],
    fixed: Collection[int],
    bound: Collection[str],
) -> tuple[int, ...] | None:
    """Indexes of the units between the step in `first` and the backward in `last` that go with the steps behind `last`:
    all that may read parameters (a metric, an average, a scheduler, a checkpoint), but for those in `fixed` (backwards,
    clearings) and what these are computed from. `bound`: see harmless. None where the body can't be taken apart so."""
    if any(leaves(body[n].node) for n in range(first, last + 1)):
        return None  # a pass that ends in between has stepped, and would not
    wanted: set[str] = set()
    staying: set[int] = set()
    for n in reversed(range(first, last + 1)):
        if n in fixed or (n not in steps and touches(body[n].writes, wanted)):
            staying.add(n)
            wanted |= body[n].reads
    going: list[int] = []
    made: set[str] = set()  # what the units that go bind
    for n in range(first + 1, last):
        loose = n not in staying and n not in steps
        if loose and (touches(body[n].reads, made) or not harmless(body[n].node, bound)):
            going.append(n)
            made |= body[n].writes
    for n in (*going, *steps):
        for m in range(n + 1, last + 1):
            crosses = touches(body[m].writes, body[n].reads | body[n].writes)
            if m not in going and m not in steps and (crosses or touches(body[n].writes, body[m].reads)):
                return None
    return tuple(going)


def harmless(node: cst.CSTNode, bound: Collection[str]) -> bool:
    """Whether a statement only looks at values of its own pass (a loss that is printed or kept in a list): `bound` are
    the names that the pass binds."""
    inner = _calls(node)
    kept = {
        f"{dotted(c.func.value)}.append"
        for c in inner
        if isinstance(c.func, cst.Attribute) and c.func.attr.value == "append"
    }
    reads = names(node).reads
    return all(map(_plain, inner)) and all(r in kept or r in PLAIN or r.split(".")[0] in bound for r in reads)


def beside(
    project: Project, body: Sequence[Unit], events: Sequence[Event], bound: Collection[str]
) -> Iterator[cst.BaseSmallStatement]:
    """What stands in the statements of an update and is no part of it: the average of a target network in the ``if`` of
    a delayed update goes where the update goes. `bound`: see harmless."""
    own = {id(node) for event in events for _, node in project.frames(event.stack)}
    for small in (s for unit in body for s in small_statements(unit.node)):
        part = calls(small, DRIVES) or any(id(node) in own for node in descendants(small))
        if not part and not harmless(small, bound):
            yield small


def may_read(
    project: Project, view: View, node: cst.CSTNode, own: Sequence[str], others: Sequence[str]
) -> bool:
    """Whether a statement, or a function of the project's that it calls, may read parameters named `own`, going by the
    words that tell their names from the `others`; True where none do, and where all of them are handed over whole."""
    apart = frozenset(w for name in others for w in _WORD.findall(name))
    telling = {next((w for w in _WORD.findall(name) if w not in apart), "") for name in own}
    telling |= {a for w in telling - {""} for text in project.files.values() for a in _aliases(text, w)}
    shared = {"self", *(w for name in own for w in _WORD.findall(name))} & {"self", *apart}
    text, seen = view.code(node), set[str]()
    texts = [text]
    while texts:
        text = texts.pop()
        if telling & {"", *_WORD.findall(text)}:
            return True
        for owner, called in _CALLED.findall(text):
            bodies = list(_bodies(project, called)) if called not in seen else []
            if not bodies and called not in seen and owner in shared:
                return True  # agent.state_dict()
            texts += bodies
            seen.add(called)
        if shared & set(_WHOLE.findall(text)):
            return True  # evaluate(agent)
    return False


def _aliases(text: str, word: str) -> list[str]:
    """``policy`` of ``policy = self.actor`` for ``actor``."""
    path = r"(?:\w{1,80}\.){0,4}"  # (bounded, and from the line's start: a file may hold a very long line)
    return re.findall(rf"(?m)^[ \t]*{path}(\w{{1,80}})[ \t]*=[ \t]*{path}{word}[ \t\r]*$", text)


def _bodies(project: Project, name: str) -> Iterator[str]:
    """The bodies of the project's functions of this name."""
    for path, text in project.files.items():
        view = project.view(path) if re.search(rf"\bdef {re.escape(name)}\b", text) else None
        for function in functions(view.module) if view else ():
            if function.name.value == name and view:
                yield view.code(function.body)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A statement of the body, or of an ``if`` without ``else`` in it: then with its test."""

    unit: Unit
    test: cst.BaseExpression | None = None

    def line(self) -> cst.BaseStatement:
        """The statement to put elsewhere."""
        if self.test is None:
            return lifted(self.unit)
        return cst.If(self.test.deep_clone(), cst.IndentedBlock([lifted(self.unit)]))


def guarded(view: View, block: cst.CSTNode, node: cst.CSTNode) -> Guarded | None:
    """The statement of `node` in `block`, or in an ``if`` of it; None where it stands elsewhere."""
    inner = block_of(view, node)
    index = unit_in(view, inner, node) if inner is not None else None
    if inner is None or index is None:
        return None
    unit = units(inner)[index]
    if not isinstance(unit.node, (cst.Expr, cst.Assign)):
        return None
    if inner is block:
        return Guarded(unit)
    around = view.parents.get(inner)
    plain = isinstance(around, cst.If) and around.orelse is None
    if not plain or not isinstance(around, cst.If) or view.parents.get(around) is not block:
        return None
    return Guarded(unit, around.test)


def calls(node: cst.CSTNode, methods: Collection[str]) -> bool:
    """Whether a statement is no more than the call of one of these methods (or functions of a module)."""
    call = node.value if isinstance(node, cst.Expr) else None
    return (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value in methods
    )


def _plain(call: cst.Call) -> bool:
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value in METHODS
    return dotted(call.func) in PLAIN


def _calls(node: cst.CSTNode) -> list[cst.Call]:
    own = [node] if isinstance(node, cst.Call) else []
    return own + [call for child in node.children for call in _calls(child)]


def leaves(node: cst.CSTNode) -> bool:
    """Whether a statement may end the pass or the function it is in."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        return False
    return isinstance(node, LEAVES) or any(map(leaves, node.children))
