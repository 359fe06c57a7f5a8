"""The tape: what one run did to the autograd graph, as a list of events.

Both emitters (the recorded run in :mod:`gradfix.run`, the symbolic one in :mod:`gradfix.read`) write it, and
:mod:`gradfix.detect` reads nothing else. It has its name from automatic differentiation. Standard library only.
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import get_args

from gradfix.dataclass import dataclass


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
    PyTorch's node name (``AddmmBackward0``). `output` is the result's storage where the emitter knows it. `held` are
    tensors that autograd checks no version of: what a custom Function keeps as attributes of its ctx; with
    `checkpoint`, what the op saved within a checkpoint that is not reentrant.
    """

    node: int
    op: str
    name: str = ""
    parents: tuple[int, ...] = ()
    saves: tuple[Ref, ...] = ()
    output: Ref | None = None
    held: tuple[Ref, ...] = ()
    checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Mutate(Event):
    """An op wrote into a storage; `ref` carries the version after the write.

    `counted` is False where PyTorch's version counter did not move (``.data``, a NumPy alias, a fused optimizer). `how`
    says by what route it came: ``""`` an op on the tensor itself, ``data`` through ``.data``, ``numpy`` a NumPy alias,
    ``detach`` through a detached alias, ``set_data`` for ``x.data = y``, ``module`` a torch.nn module called with
    ``inplace=True`` or max_norm, ``alias`` an update of a leaf under one of several names, or as an element of a list,
    which the recorder gave a new tensor. `optimizer` is the number of the optimizer in whose step() it happened.
    `refused` is PyTorch's own error sentence where a plain run would have raised here (leaf write, forbidden view
    write) and the recorder let the write through. `module` names the torch.nn module whose forward did the write.
    `holders` have the tensor: what the innermost frame calls each, what an outer one does, how many frames outwards.
    """

    op: str
    ref: Ref
    counted: bool = True
    how: str = ""
    optimizer: int | None = None
    refused: str = ""
    module: str = ""
    holders: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Backward(Event):
    """The engine walked `nodes` from `roots` (backward() or autograd.grad()).

    `accumulates` are the leaves whose ``.grad`` it filled, `inputs` whether they were chosen by
    ``inputs=``/grad(). `retain` and `create` are the caller's retain_graph and create_graph.
    `refused` is PyTorch's error sentence where a plain run would have raised in this backward.
    `wrong` is the relative difference (2-norm over all gradients) between the gradient of the program as
    written and the one plain PyTorch would have computed silently from overwritten values; 0.0 where they
    agree. Where writes at several places share in it, `blame` has (the time of a write there, the difference
    that the writes of this place make alone) for each.
    """

    roots: tuple[int, ...]
    nodes: tuple[int, ...]
    retain: bool = False
    create: bool = False
    inputs: bool = False
    accumulates: tuple[Ref, ...] = ()
    refused: str = ""
    wrong: float = 0.0
    blame: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The saved tensors of `nodes` were released (by the Backward of the same `time` - 1)."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Optimizer(Event):
    """An optimizer was made (or got more groups): its number, class name, user's name and the parameters it
    steps.

    `refs` are in the order of its param_groups. A tensor among them that is not a leaf is a non-leaf
    "parameter". `unregistered` are leaves that a module, all of whose own parameters it steps, holds as a plain tensor
    or in plain lists, tuples and dictionaries; `attributes` says for each how the module holds it: the attribute, what
    of that it is, and the types on the way there: ``("layers", "[0].weight", "list")``.
    """

    optimizer: int
    kind: str
    name: str = ""
    refs: tuple[Ref, ...] = ()
    unregistered: tuple[Ref, ...] = ()
    attributes: tuple[tuple[str, ...], ...] = ()


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
class Clip(Event):
    """``clip_grad_norm_``, ``clip_grad_value_`` and the like: PyTorch clipped the gradients of these parameters."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Cut(Event):
    """The graph was left: `how` is detach, data, item, numpy, tensor (torch.tensor), no_grad, checkpoint (a reentrant
    one of whose inputs none requires grad). `ref` is the tensor it was done to, `node` its grad_fn (None for a leaf),
    `leaf` the storage of the leaf that torch.tensor made; where it is `dropped`, its result is thrown away."""

    how: str
    ref: Ref
    node: int | None = None
    leaf: int | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Off(Event):
    """Gradients are off at the Backward that comes next, since the call at `stack`: ``torch.set_grad_enabled(False)``
    as a statement, which nothing has taken back."""


@dataclass(frozen=True, slots=True)
class Frozen(Event):
    """These leaves have required no gradient since the call at `stack`, which turned theirs off: told once, at the
    Backward without a graph that comes next, or at the Step that finds them without a gradient. `until` is the time
    when they were made to require one again, if they were by then."""

    refs: tuple[Ref, ...]
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Added(Event):
    """What has no graph was added to a tensor that has one: `ref` is the term, `node` the sum's node. It is made of
    gradients that have none (``autograd.grad`` without ``create_graph``), or of what was cut off the node `cut`
    (``~storage`` of a leaf), as a `function` of it where NumPy computed it. For a number, `ref` is its tensor."""

    ref: Ref
    node: int
    cut: int | None = None
    function: bool = False


@dataclass(frozen=True, slots=True)
class Fed(Event):
    """What has no graph went into the op of `node`, which has one: made of what the Cuts at the times `cuts` took."""

    node: int
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mode(Event):
    """The module of these parameters was put into training mode, or (`training` is False) into evaluation mode."""

    refs: tuple[Ref, ...]
    training: bool = False


@dataclass(frozen=True, slots=True)
class Custom(Event):
    """The custom Function of `node` made a gradient wrong without a word.

    `what`: ``unmarked``, its forward wrote into the input `ref` and returned it (`alias` is the node of that output)
    without ctx.mark_dirty, and the input is read again; ``grad_output``, its backward wrote into the gradient `ref`
    that it was given, which belongs to others, too; ``hook``, a hook of what `node` made did that; ``spoilt``, its
    forward wrote into what it had kept on ctx, `ref`, and its backward is the derivative with the value as it was kept.
    ``instead``, its forward saved its result `ref`, its backward needs the argument of the number `alias`. How wrong is
    in the `blame` of Backward. ``changed``: it wrote into the input `ref`, of the node `alias`, and returned another.
    """

    node: int
    what: str
    ref: Ref
    alias: int | None = None


@dataclass(frozen=True, slots=True)
class Terms(Event):
    """Two terms `nodes` of the one loss of the backward at `stack`, both through the same two optimizers' networks; or
    two losses, that of an earlier backward and that of this one, with no step between. `cosine` is that of their
    gradients (of a term that both losses have, where one is) for the value of `node`, where one network enters the
    other, or for what that makes of it. None: not measured, but told by the text or two targets of one output."""

    nodes: tuple[int, int]
    node: int
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class Unbounded(Event):
    """The loss of the backward at `stack` is linear in what the last layer of the `optimizer`'s network makes of the
    value of `node`, which another's made, and wants all of that higher (`sign` 1) or all lower (-1): it has no best
    value."""

    node: int
    optimizer: int
    sign: int


@dataclass(frozen=True, slots=True)
class GradRead(Event):
    """``.grad`` of a non-leaf that does not retain it was read: PyTorch warns and gives None."""

    ref: Ref
    node: int | None = None


@dataclass(frozen=True, slots=True)
class GradUse(Event):
    """The user's code read the ``.grad`` of the leaf `ref`, which has one. `leaf` is the number of that leaf: others of
    the same memory (``x = x.detach().requires_grad_()``) have gradients of their own."""

    ref: Ref
    leaf: int = 0


@dataclass(frozen=True, slots=True)
class ViewUse(Event):
    """An op read an output of unbind, split or chunk (`view` is its variable), or a view made where gradients were off,
    after the tensor `ref` that it is a view of was written, at the time `write`: a plain run would have said `refused`
    here. `node` made the view, where one did."""

    ref: Ref
    write: int
    view: str = ""
    refused: str = ""
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Legacy(Event):
    """Something of autograd's past that today's PyTorch still takes.

    `use` is ``Variable`` (a tensor was wrapped in one; `said` is ``volatile`` where that was asked for), ``type`` (a
    tensor's type was compared with Variable: never equal today), ``cleared`` (a leaf's ``.grad`` was read and is None),
    ``filled`` (torch.full made whole numbers of a whole number) or ``deprecated`` (`said` is PyTorch's warning). `ref`
    is the tensor, or the leaf; `attached` says that it required grad, which Variable() takes away today.
    """

    use: str
    ref: Ref | None = None
    attached: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True)
class Kept(Event):
    """At the end of the run something still held the losses `nodes`, the newest of the backward at `stack`, each of a
    step of its own, though their graphs were freed."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Uncalled(Event):
    """The statement at `stack` names the ``backward`` of the loss `ref`, which `node` made, and does not call it."""

    node: int
    ref: Ref


@dataclass(frozen=True, slots=True)
class Alike(Event):
    """A call at `stack` compared two values that both have a graph (took one off the other, or gave their distance).
    In its first calls they were equal in `nodes`, the results', and in `apart` others they were not: of these by
    rounding alone in `near`."""

    nodes: tuple[int, ...]
    apart: int = 0
    near: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Itself(Event):
    """A call gave the difference or the distance of a value and itself: both are all of one piece of memory, `ref`.
    `node` is the result's. With `wrote`, `stack` is where that memory was written through an array before."""

    node: int
    ref: Ref
    wrote: bool = False


_AUTOGRAD = (
    "modified by an inplace operation",
    "backward through the graph a second time",
    "leaf Variable that requires grad",
    "is being modified inplace",
    "is a view and its base",
    "its base or another view of its base has been modified inplace",
    "refers to a single memory location",
    "does not require grad and does not have a grad_fn",
    "differentiated Tensors does not require grad",
    "can't optimize a non-leaf Tensor",
    "grad can be implicitly created only for scalar outputs",
    "appears to not have been used in the graph",
    "on Tensor that requires grad",
    "on Variable that requires grad",
    "change requires_grad flags of leaf variables",
    "can't retain_grad on Tensor that has requires_grad=False",
    "Inference tensors cannot be saved for backward",
    "Can't detach views in-place",
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
    """How the run ended: ``finished``, ``steps`` (each optimizer stepped enough), ``timeout``, ``exit``, ``failed``.
    `unstepped` are optimizers that never stepped, got gradients again and again, and that no call in the text may step.
    Where it ended at so many ``steps``, some of them without a gradient, `later` says that a loss may be given terms
    behind that, and `phases` (file, first and last line) where the program says when it leaves the graph, or steps one
    optimizer in one loop after the other (False)."""

    how: str
    seconds: float = 0.0
    unstepped: tuple[int, ...] = ()
    later: bool = False
    phases: tuple[tuple[str, int, int, bool], ...] = ()


AnyEvent = (
    Record
    | Mutate
    | Backward
    | Free
    | Optimizer
    | Step
    | Zero
    | GradWrite
    | Clip
    | Cut
    | Off
    | Frozen
    | Added
    | Fed
    | Mode
    | Custom
    | Terms
    | Unbounded
    | GradRead
    | GradUse
    | ViewUse
    | Legacy
    | Kept
    | Uncalled
    | Alike
    | Itself
    | Failure
    | Note
    | End
)
EVENTS: dict[str, type[Event]] = {c.__name__: c for c in get_args(AnyEvent)}


@dataclass(frozen=True)
class Tape:
    """A run's events in order of time, with what is known of the run itself."""

    events: tuple[AnyEvent, ...]
    script: str = ""
    torch: str = ""
    python: str = ""
    sources: dict[str, str] = field(default_factory=dict)  # file -> sha256 of the bytes that ran
    complete: bool = True  # False where the file broke off before its End


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
