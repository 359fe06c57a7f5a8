"""See :class:`LegacyAmp`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import dotted

SAID = re.compile(r"`torch\.(?P<device>cuda|cpu)\.amp\.(?:GradScaler|autocast)\(args\.\.\.\)` is deprecated")
BOTH = ("GradScaler", "autocast")
OF_AUTOCAST = (
    "enabled",
    "dtype",
    "cache_enabled",
)  # the order that its arguments had; they have another one now


class LegacyAmp(Codemod):
    """Name the device in mixed precision's calls: `torch.amp.autocast("cuda")`.

    Why: `torch.cuda.amp.autocast()` and `torch.cuda.amp.GradScaler()` are deprecated since PyTorch 2.4; those of
    `torch.amp` take the device first.

    When not: where the code must still run on a PyTorch older than 2.3, whose `torch.amp` has no GradScaler.
    """

    kinds = ("legacy-api",)
    examples = (
        Example(
            """\
import torch
from torch.cuda.amp import GradScaler, autocast

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = GradScaler()  # conflict: legacy-api
for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    with autocast(False):  # conflict: legacy-api
        loss = net(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            """\
import torch
from torch.amp import GradScaler, autocast

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = GradScaler("cuda")  # conflict: legacy-api
for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    with autocast("cuda", enabled=False):  # conflict: legacy-api
        loss = net(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        said = SAID.search(conflict.message) if conflict.pattern == "deprecated" else None
        found = project.node(conflict.at)
        if said is None or found is None:
            return
        view, node = found
        calls = (n for n in (node, *descendants(node)) if isinstance(n, cst.Call) and function_of(n) in BOTH)
        call = next(calls, None)
        spelling = _spelling(view, call, said["device"]) if call is not None else None
        if spelling is None:
            return
        quote = "'" if view.module.code.count("'") > view.module.code.count('"') else '"'
        device = cst.SimpleString(f"{quote}{said['device']}{quote}")
        given = [(c, new) for c in spelling.calls if (new := _given(c, device)) is not None]
        if len(given) == len(spelling.calls):
            edits = (*spelling.imports, *(exchange(c, new) for c, new in given))
            yield Proposal(f"`torch.amp` for `torch.{said['device']}.amp`", NONE, {view.path: edits})


@dataclass(frozen=True, slots=True)
class _Spelling:
    """All calls in a file that reach the old module by one name, and what is edited of its import."""

    calls: tuple[cst.Call, ...]
    imports: tuple[Edit, ...] = ()


def _spelling(view: View, call: cst.Call, device: str) -> _Spelling | None:
    """How the file reaches the old module at `call`; None where more than calls of the two would change with it."""
    old = f"torch.{device}.amp"
    module, _, name = (dotted(call.func) or "").rpartition(".")
    if module == old:
        return _Spelling(tuple(_calls(view, f"{old}.")))
    if "." in module or PurePath(view.path).name == "__init__.py":
        return None  # (others import from a package's front)
    imports, bound = _imports(view, old, module) if module else _names(view, old)
    calls = tuple(_calls(view, f"{module}." if module else ""))
    reached = {c.func.value if isinstance(c.func, cst.Attribute) else c.func for c in calls}
    if not imports or (module or name) not in bound or any(n not in reached for n in _uses(view, bound)):
        return None
    return _Spelling(calls, imports)


def _calls(view: View, prefix: str) -> Iterator[cst.Call]:
    for node in descendants(view.module):
        if isinstance(node, cst.Call) and dotted(node.func) in {f"{prefix}{name}" for name in BOTH}:
            yield node


def _names(view: View, old: str) -> tuple[tuple[Edit, ...], frozenset[str]]:
    """The edits of ``from torch.cuda.amp import autocast``, and the names it binds; none where it takes others too."""
    edits: list[Edit] = []
    bound: set[str] = set()
    for node in descendants(view.module):
        if isinstance(node, cst.ImportFrom) and node.module is not None and dotted(node.module) == old:
            taken = () if isinstance(node.names, cst.ImportStar) else node.names
            if not taken or any(dotted(n.name) not in BOTH or n.asname is not None for n in taken):
                return (), frozenset()
            bound |= {dotted(n.name) or "" for n in taken}
            edits.append(exchange(node.module, cst.parse_expression("torch.amp")))
    return tuple(edits), frozenset(bound)


def _imports(view: View, old: str, name: str) -> tuple[tuple[Edit, ...], frozenset[str]]:
    """The edits of what binds the old module to `name`: ``from torch.cuda import amp``, ``import torch.cuda.amp as
    amp``."""
    edits: list[Edit] = []
    parent = old.rpartition(".")[0]
    for node in descendants(view.module):
        if isinstance(node, cst.ImportFrom) and node.module is not None and dotted(node.module) == parent:
            taken = () if isinstance(node.names, cst.ImportStar) else node.names
            if len(taken) == 1 and _binds(taken[0], "amp", name):
                edits.append(exchange(node.module, cst.Name("torch")))
        elif isinstance(node, cst.ImportAlias) and node.asname is not None and _binds(node, old, name):
            edits.append(exchange(node.name, cst.parse_expression("torch.amp")))
    return tuple(edits), frozenset({name})


def _binds(alias: cst.ImportAlias, what: str, name: str) -> bool:
    if dotted(alias.name) != what:
        return False
    return name == (dotted(alias.asname.name) if alias.asname is not None else what)


def _uses(view: View, names: frozenset[str]) -> Iterator[cst.Name]:
    """Where one of the names is read or bound, imports aside."""
    for node in descendants(view.module):
        if not isinstance(node, cst.Name) or node.value not in names:
            continue
        parent = view.parents[node]
        attribute = isinstance(parent, cst.Attribute) and parent.attr is node
        keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        if not (attribute or keyword or isinstance(parent, (cst.ImportAlias, cst.AsName))):
            yield node


def _given(call: cst.Call, device: cst.SimpleString) -> cst.Call | None:
    """The call with the device before what it was given; None where that does not say which argument is which."""
    if any(a.star for a in call.args):
        return None
    args = list(call.args)
    if function_of(call) == "autocast":
        if len([a for a in args if a.keyword is None]) > len(OF_AUTOCAST):
            return None
        args = [_by_name(a, OF_AUTOCAST[n]) if a.keyword is None else a for n, a in enumerate(args)]
    space = call.whitespace_before_args  # (one argument a line, where the first begins one)
    plain = (
        not isinstance(space, cst.ParenthesizedWhitespace) or space.first_line.comment or space.empty_lines
    )
    after = cst.SimpleWhitespace(" ") if plain else space
    comma = cst.Comma(whitespace_after=after) if args else cst.MaybeSentinel.DEFAULT
    func = call.func
    if dotted(func) not in BOTH and (dotted(func) or "").count(".") > 1:
        func = cst.parse_expression(f"torch.amp.{function_of(call)}")
    return call.with_changes(func=func, args=[cst.Arg(device, comma=comma), *args])


def _by_name(arg: cst.Arg, name: str) -> cst.Arg:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(name), equal=tight)
