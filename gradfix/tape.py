"""The tape: what one run did to the autograd graph, as a list of events.

Both emitters (the recorded run in :mod:`gradfix.run` and, later, the symbolic run in ``gradfix.read``) write
these events, and :mod:`gradfix.detect` reads nothing else. The name is the one automatic differentiation uses
for the record of a forward pass. Standard library only, so that a tape can be read anywhere.

The tape file is JSON lines, documented in ``docs/tape.md``: a header, then one object an event. Sites, stacks
and refs repeat endlessly in a training loop, so they are interned: a line ``{"site": 3, ...}`` or ``{"stack":
7, ...}`` defines an index that later events use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

FORMAT = "gradfix-tape"
VERSION = 1


class TapeError(ValueError):
    """The file is not a tape, or of a version this gradfix does not read. The message is a sentence for the
    user."""


@dataclass(frozen=True, slots=True)
class Site:
    """A span of source text: lines from 1, columns in code points from 0 (libcst's terms), end exclusive.

    `end_column` is 0 together with `column` where only the line is known (interpreters before 3.11).
    `function` is the code object's qualified name, ``<module>`` at the top level.
    """

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = "<module>"


Stack = tuple[Site, ...]  # the user's own frames, outermost first; never a frame of torch or of site-packages


@dataclass(frozen=True, slots=True)
class Ref:
    """A storage at one version. Views share a storage; storages are numbered by the emitter, never by
    address.

    `version` counts every write the emitter saw, whether or not PyTorch's own version counter moved.
    `name` is what the user calls the tensor (``D.net.0.weight``, ``h``), or "" where no name was found.
    `shape` is that of the tensor the event speaks of; `dtype` like ``float32``. `counter` is PyTorch's own version
    counter, in the saves of a Record and the ref of a counted Mutate: the numbers in PyTorch's errors.
    """

    storage: int
    version: int
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    counter: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at `time` (a counter, unique in a tape) while the user's frames were `stack`."""

    time: int
    stack: Stack

    @property
    def at(self) -> Site | None:
        """The innermost frame of the user's, or None for what happened outside every user file."""
        return self.stack[-1] if self.stack else None


@dataclass(frozen=True, slots=True)
class Record(Event):
    """A forward op joined the graph as `node`.

    Nodes are numbered from 0; a leaf's gradient accumulator is ``~storage`` (negative) of that leaf and has
    no Record of its own. `parents` are the nodes whose outputs this one consumed (``next_functions``), leaves
    among them. `op` is the ATen name (``aten.addmm``) or the autograd.Function's class name. `name` is
    PyTorch's node name (``AddmmBackward0``). `output` is the result's storage where the emitter knows it.
    """

    node: int
    op: str
    name: str = ""
    parents: tuple[int, ...] = ()
    saves: tuple[Ref, ...] = ()
    output: Ref | None = None


@dataclass(frozen=True, slots=True)
class Mutate(Event):
    """An op wrote into a storage; `ref` carries the version after the write.

    `counted` is False where PyTorch's version counter did not move (``.data``, a NumPy alias, a fused
    optimizer). `how` says by what route it came: ``""`` an op on the tensor itself, ``data`` through
    ``.data``, ``numpy`` a NumPy alias, ``detach`` through a detached alias, ``set_data`` for ``x.data = y``,
    ``module`` a torch.nn module called with ``inplace=True`` or max_norm.
    `optimizer` is the number of the optimizer in whose step() it happened, else None.
    `refused` is PyTorch's own error sentence where a plain run would have raised here (leaf write, forbidden
    view write) and the recorder let the write through.
    `module` names the torch.nn module whose forward did the write (``net.2``), where there is one.
    """

    op: str
    ref: Ref
    counted: bool = True
    how: str = ""
    optimizer: int | None = None
    refused: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class Backward(Event):
    """The engine walked `nodes` from `roots` (backward() or autograd.grad()).

    `accumulates` are the leaves whose ``.grad`` it filled, `inputs` whether they were chosen by
    ``inputs=``/grad(). `retain` and `create` are the caller's retain_graph and create_graph.
    `refused` is PyTorch's error sentence where a plain run would have raised in this backward.
    `wrong` is the relative difference (2-norm over all gradients) between the gradient of the program as
    written and the one plain PyTorch would have computed silently from overwritten values; 0.0 where they
    agree.
    """

    roots: tuple[int, ...]
    nodes: tuple[int, ...]
    retain: bool = False
    create: bool = False
    inputs: bool = False
    accumulates: tuple[Ref, ...] = ()
    refused: str = ""
    wrong: float = 0.0


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The saved tensors of `nodes` were released (by the Backward of the same `time` - 1)."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Optimizer(Event):
    """An optimizer was made (or got more groups): its number, class name, user's name and the parameters it
    steps.

    `refs` are in the order of its param_groups. A tensor among them that is not a leaf is a non-leaf
    "parameter".
    """

    optimizer: int
    kind: str
    name: str = ""
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Step(Event):
    """optimizer.step(): `refs` are the parameters that had a gradient and were updated, `without` those that
    had none.

    `refs` carry the versions after the step.
    """

    optimizer: int
    refs: tuple[Ref, ...] = ()
    without: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Zero(Event):
    """These parameters' gradients were cleared (optimizer or module zero_grad, ``p.grad = None``,
    ``p.grad.zero_()``)."""

    refs: tuple[Ref, ...]
    optimizer: int | None = None


@dataclass(frozen=True, slots=True)
class GradWrite(Event):
    """The user wrote into the gradients of these parameters (``p.grad.mul_(0.9)``), or set them to other tensors
    (``p.grad = g``: `assigned`)."""

    refs: tuple[Ref, ...]
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Cut(Event):
    """The graph was left: `how` is ``detach``, ``data``, ``item``, ``numpy``, ``tensor`` (torch.tensor(t)),
    ``no_grad``.

    `ref` is the tensor it was done to, `node` its grad_fn (None for a leaf).
    """

    how: str
    ref: Ref
    node: int | None = None


@dataclass(frozen=True, slots=True)
class GradRead(Event):
    """``.grad`` of a non-leaf that does not retain it was read: PyTorch warns and gives None."""

    ref: Ref
    node: int | None = None


_AUTOGRAD = (
    "modified by an inplace operation",
    "backward through the graph a second time",
    "leaf Variable that requires grad",
    "is being modified inplace",
    "refers to a single memory location",
    "does not require grad and does not have a grad_fn",
    "can't optimize a non-leaf Tensor",
    "grad can be implicitly created only for scalar outputs",
    "appears to not have been used in the graph",
    "on Tensor that requires grad",
    "on Variable that requires grad",
)


@dataclass(frozen=True, slots=True)
class Failure(Event):
    """The exception that ended the script, as the user would see it."""

    type: str
    message: str
    traceback: str = ""

    @property
    def autograd(self) -> bool:
        """Whether the wording is autograd's."""
        return any(words in self.message for words in _AUTOGRAD)


@dataclass(frozen=True, slots=True)
class Note(Event):
    """Something the emitter could not watch (a torch.func region, evidence dropped for memory), in a
    sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class End(Event):
    """How the run ended: ``finished``, ``steps`` (each optimizer stepped enough), ``timeout``, ``exit``,
    ``failed``."""

    how: str
    seconds: float = 0.0


AnyEvent = (
    Record
    | Mutate
    | Backward
    | Free
    | Optimizer
    | Step
    | Zero
    | GradWrite
    | Cut
    | GradRead
    | Failure
    | Note
    | End
)
EVENTS: dict[str, type[Event]] = {
    c.__name__: c
    for c in (
        Record,
        Mutate,
        Backward,
        Free,
        Optimizer,
        Step,
        Zero,
        GradWrite,
        Cut,
        GradRead,
        Failure,
        Note,
        End,
    )
}


@dataclass(frozen=True)
class Tape:
    """A run's events in order of time, with what is known of the run itself."""

    events: tuple[AnyEvent, ...]
    script: str = ""
    torch: str = ""
    python: str = ""
    sources: dict[str, str] = field(default_factory=dict)  # file -> sha256 of the bytes that ran
    complete: bool = True  # False where the file broke off before its End


def read_tape(path: Path | str) -> Tape:
    """Read a tape file.

    Raises TapeError where the file is no tape or of a newer version; a file that breaks off (the run was
    killed) is read as far as it goes, with ``complete=False``.
    """
    with open(path, encoding="utf-8", errors="strict") as lines:
        try:
            return parse_tape(lines)
        except UnicodeDecodeError:
            raise TapeError(f"{path} is not a gradfix tape.") from None
        except TapeError as problem:
            raise TapeError(f"{path}: {problem}") from None


def parse_tape(lines: Iterable[str]) -> Tape:
    """The tape that `lines` (of a tape file, or as they come from a recorder) describe. Raises TapeError."""
    reader = _Reader()
    for text in lines:
        if not text.endswith("\n"):
            break  # cut off in the middle of a line: the run was killed
        try:
            reader.line(json.loads(text))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            if isinstance(problem, TapeError):
                raise
            if reader.header is None:
                raise TapeError("not a gradfix tape.") from None
            raise TapeError(f"damaged after {len(reader.events)} events.") from None
    if reader.header is None:
        raise TapeError("not a gradfix tape.")
    return reader.tape()


def relocated(tape: Tape, script: Path) -> Tape:
    """`tape` as if its script had been `script`: every file below the old script's folder is below the new one's.

    For a tape made on another machine, or before the project was moved.
    """
    old, new = Path(tape.script).parent, script.parent
    if not tape.script or Path(tape.script) == script:
        return tape

    def moved(file: str) -> str:
        if file == tape.script:
            return str(script)
        return str(new / Path(file).relative_to(old)) if Path(file).is_relative_to(old) else file

    stacks: dict[Stack, Stack] = {}
    for event in tape.events:
        if event.stack not in stacks:
            stacks[event.stack] = tuple(replace(s, file=moved(s.file)) for s in event.stack)
    return replace(
        tape,
        events=tuple(replace(e, stack=stacks[e.stack]) for e in tape.events),
        script=str(script),
        sources={moved(file): digest for file, digest in tape.sources.items()},
    )


def write_tape(tape: Tape, path: Path | str) -> None:
    """Write `tape` so that read_tape gives an equal one."""
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for line in format_tape(tape):
            out.write(line)


def format_tape(tape: Tape) -> Iterator[str]:
    """The lines of the tape's file."""
    header = {"format": FORMAT, "version": VERSION, "script": tape.script, "torch": tape.torch}
    yield _line(header | {"python": tape.python, "sources": tape.sources})
    sites: dict[Site, int] = {}
    stacks: dict[Stack, int] = {}
    names: dict[int, str] = {}
    for event in tape.events:
        for site in event.stack:
            if site not in sites:
                sites[site] = len(sites)
                yield _line({"site": sites[site], "v": [getattr(site, f.name) for f in fields(Site)]})
        if event.stack not in stacks:
            stacks[event.stack] = len(stacks)
            yield _line({"stack": stacks[event.stack], "v": [sites[s] for s in event.stack]})
        for ref in _refs(event):
            if ref.name and names.get(ref.storage) != ref.name:
                names[ref.storage] = ref.name
                yield _line({"name": ref.storage, "v": ref.name})
        line: dict[str, Any] = {"e": type(event).__name__, "t": event.time, "s": stacks[event.stack]}
        for f in fields(event):
            value = getattr(event, f.name)
            if f.name not in ("time", "stack") and value != f.default:
                line[f.name] = _plain(value)
        yield _line(line)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _refs(event: Event) -> Iterator[Ref]:
    for f in fields(event):
        value = getattr(event, f.name)
        if isinstance(value, Ref):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if isinstance(v, Ref))


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        found = [value.storage, value.version, list(value.shape), value.dtype]
        return found if value.counter is None else [*found, value.counter]
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


_REFS = {"saves", "refs", "without", "accumulates"}
_REF = {"ref", "output"}


class _Reader:
    """Interned tables and events of a tape as its lines come in."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.sites: dict[int, Site] = {}
        self.stacks: dict[int, Stack] = {}
        self.names: dict[int, str] = {}
        self.sources: dict[str, str] = {}
        self.optimizers: dict[int, str] = {}
        self.events: list[tuple[type[Event], dict[str, Any]]] = []

    def line(self, value: dict[str, Any]) -> None:
        if self.header is None:
            if value.get("format") != FORMAT:
                raise TapeError("not a gradfix tape.")
            if value.get("version") != VERSION:
                theirs = value.get("version")
                raise TapeError(f"a tape of version {theirs}; this gradfix reads version {VERSION}.")
            self.header = value
        elif "site" in value:
            self.sites[value["site"]] = Site(*value["v"])
        elif "stack" in value:
            self.stacks[value["stack"]] = tuple(self.sites[s] for s in value["v"])
        elif "source" in value:
            self.sources[value["source"]] = value["v"]
        elif "optimizer" in value and "e" not in value:
            self.optimizers[value["optimizer"]] = value["v"]
        elif "name" in value and "e" not in value:
            self.names[value["name"]] = value["v"]
        elif "source" in value and "e" not in value:
            self.sources[value["source"]] = value["v"]
        else:
            kind = EVENTS[value.pop("e")]
            value["time"], value["stack"] = int(value.pop("t")), self.stacks[value.pop("s")]
            self.events.append((kind, value))

    def tape(self) -> Tape:
        assert self.header is not None
        try:
            events = tuple(sorted((self._event(k, v) for k, v in self.events), key=lambda e: e.time))
        except (TypeError, ValueError, KeyError, IndexError):
            raise TapeError("its events are not of this version.") from None
        return Tape(
            events,  # type: ignore[arg-type]
            script=str(self.header.get("script", "")),
            torch=str(self.header.get("torch", "")),
            python=str(self.header.get("python", "")),
            sources=dict(self.header.get("sources", {})) | self.sources,
            complete=any(k is End for k, _ in self.events),
        )

    def _event(self, kind: type[Event], value: dict[str, Any]) -> Event:
        fixed: dict[str, Any] = {}
        for key, v in value.items():
            if key in _REF:
                fixed[key] = self._ref(v) if v is not None else None
            elif key in _REFS:
                fixed[key] = tuple(self._ref(r) for r in v)
            elif isinstance(v, list):
                fixed[key] = tuple(v)
            else:
                fixed[key] = v
        if kind is Optimizer and not fixed.get("name"):
            fixed["name"] = self.optimizers.get(fixed["optimizer"], "")
        return kind(**fixed)

    def _ref(self, value: list[Any]) -> Ref:
        storage, version, shape, dtype, *counter = value
        return Ref(storage, version, self.names.get(storage, ""), tuple(shape), dtype, *counter)
