"""legacy-api: what autograd's past had and today's PyTorch refuses, takes in another sense, or warns of."""

from __future__ import annotations

import re

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make
from gradfix.graph import Graph
from gradfix.tape import Backward, Cut, Failure, Legacy, Site, Stack, Zero

# (exception, wording) of API that autograd's past had and today's PyTorch refuses
REMOVED = (
    ("IndexError", r"invalid index of a 0-dim tensor"),
    ("TypeError", r"unexpected keyword argument '(retain_variables|volatile|async|reduce_graph)'"),
    ("AttributeError", r"has no attribute '(clip_grad_norm|volatile|creator|cuda_async|data_ptr_async)'"),
    ("RuntimeError", r"Legacy autograd function with non-static forward method"),
    ("AttributeError", r"module 'torch\.nn\.init' has no attribute '\w+'"),
    ("AttributeError", r"module 'torch\.autograd' has no attribute '\w+'"),
    ("ImportError", r"from 'torch\.autograd"),
)

BYTES = "a mask is of truth values since PyTorch 1.2, and one of bytes is refused; `.bool()` makes it one"
BYTE_MASKS = re.compile(
    r"only supports boolean masks, but got mask with dtype (unsigned char|Byte)"
    r"|masked_select: expected BoolTensor for mask"
)
DRAWS = "multinomial() drew one before PyTorch 0.4, and has to be told how many today"
UNTOLD = re.compile(r"multinomial\(\) missing .*num_samples")
TRUTH = (
    "what a comparison gives is of truth values since PyTorch 1.2, and no `-` takes them; `~` inverts a mask"
)
SUBTRACTED = re.compile(r"^Subtraction, the `-` operator, with a bool tensor is not supported")
NEXT = "an iterator over a data loader has no next() since PyTorch 1.13; the built-in `next()` takes its next batch"
LATER = (BYTES, TRUTH, NEXT)
BATCHES = re.compile(r"'_\w*DataLoaderIter' object has no attribute 'next'")
INT_BETAS = "betas must be either both floats"  # what Adam says of (0, 0.9)
INT_STEPS = "argument must contain a list of singleton tensors"  # and of a count of steps that is none
STEPS = "an optimizer's count of steps is a tensor today"
# what a loss raises for a target of whole numbers
WHOLE = re.compile(
    r"Found dtype (Long|Bool) but expected \w+|can't be cast to the desired output type (Long|Bool)"
    r"|expected scalar type \w+ but found (Long|Bool)"
)

# what reading the first number of a tensor without dimensions raises once it has left torch: .numpy()[0], .tolist()[0]
UNDIMENSIONED = (
    ("IndexError", "array is 0-dimensional"),
    ("IndexError", "invalid index to scalar variable"),
    ("TypeError", "object is not subscriptable"),
)


def removed(graph: Graph, event: Failure) -> Conflict | None:
    """An API that is gone, or a gradient that is, where that ended the run."""
    said = _cleared(graph, event) or _filled(graph, event)
    if said is not None:
        return said
    what = _gone(graph, event)
    if not what:
        return None
    # (of later than PyTorch 0.x)
    refused = what in LATER or any(words in event.message for words in (INT_BETAS, INT_STEPS))
    return make(
        "legacy-api",
        "removed",
        what,
        [("read", event.stack, "refused today" if refused else "as PyTorch 0.x had it")],
        "read",
        severity="error",
        event=event,
    )


def _filled(graph: Graph, failure: Failure) -> Conflict | None:
    """A loss that takes no whole numbers, after torch.full made some."""
    if not WHOLE.search(failure.message):
        return None
    before = [
        e for e in graph.tape.events if isinstance(e, Legacy) and e.use == "filled" and e.at is not None
    ]
    if not before:
        return None
    near = before[-1].at
    beside = {
        e.at: e for e in before if e.at and near and (e.at.file, e.at.function) == (near.file, near.function)
    }
    made = next(iter(beside.values()))
    return make(
        "legacy-api",
        "filled",
        f"{wording.at('made', made.stack)} is of whole numbers since PyTorch 1.7, where it was of floats, and the loss "
        "takes none",
        [
            *(("made", e.stack, "whole numbers today, as what it is filled with") for e in beside.values()),
            ("read", failure.stack, f"fails: {failure.message.splitlines()[0]}"),
        ],
        "made",
        severity="error",
        ref=made.ref,
        event=failure,
    )


def _cleared(graph: Graph, failure: Failure) -> Conflict | None:
    """A gradient that is None where the run ended, though a backward had filled it before it was cleared."""
    here = failure.at
    if here is None or "'NoneType'" not in failure.message:
        return None
    events = graph.tape.events
    reads = [e for e in events if isinstance(e, Legacy) and e.use == "cleared" and e.at is not None]
    read = next(
        (e for e in reads if e.at is not None and (e.at.file, e.at.line) == (here.file, here.line)), None
    )
    leaf = read.ref.storage if read is not None and read.ref is not None else None
    zero: Zero | None = None
    filled = lost = False
    for event in events:
        if event is read:
            break
        if isinstance(event, Backward) and any(r.storage == leaf for r in event.accumulates):
            filled, lost = True, False
        elif isinstance(event, Zero) and filled and any(r.storage == leaf for r in event.refs):
            zero, lost = event, True
    if read is None or read.ref is None or zero is None or not lost:
        return None
    name = f"`{read.ref.name}`" if read.ref.name else "a parameter"
    return make(
        "legacy-api",
        "cleared",
        f"the gradient of {name} is None here: since PyTorch 2.0 zero_grad() takes gradients away, where it had set "
        "them to zero, and no backward has given this one again",
        [
            ("zero", zero.stack, "sets gradients to None today"),
            ("read", failure.stack, f"fails: {failure.message.splitlines()[0]}"),
        ],
        "read",
        severity="error",
        ref=read.ref,
        event=failure,
    )


def outdated(graph: Graph) -> Found:
    """Uses of autograd's past that still run: one conflict a place."""
    failure = next((e for e in graph.tape.events if isinstance(e, Failure)), None)
    for event in graph.tape.events:
        if not isinstance(event, Legacy) or event.at is None or event.use in ("cleared", "filled"):
            continue  # (only where that ends the run)
        found = _compared(event, failure) if event.use == "type" else _noted(event)
        yield ("legacy", event.use, event.stack[-1]), event, found


def _compared(event: Legacy, failure: Failure | None) -> Conflict | None:
    """A type compared with Variable: it was a tensor's, and is no more. Often the other branch then takes the tensor
    for a container, and fails."""
    labels: list[tuple[str, Stack, str]] = [("read", event.stack, "never true of a tensor")]
    ended = failure is not None and event.at is not None and _came_of(failure, event.at)
    if ended and failure is not None:
        labels.append(("needed", failure.stack, f"fails: {failure.message.splitlines()[0]}"))
    return make(
        "legacy-api",
        "compared",
        "no tensor's type is Variable since PyTorch 0.4, so this comparison never holds",
        labels,
        "read",
        severity="error" if ended else "warning",
        event=failure if ended else event,
    )


def _came_of(failure: Failure, compared: Site) -> bool:
    """Whether the run ended in the function that made the comparison."""
    return any(
        s.file == compared.file and s.function.split(".<locals>")[0] == compared.function
        for s in failure.stack
        if compared.function != "<module>" or s.line == compared.line
    )


def _noted(event: Legacy) -> Conflict | None:
    if event.use == "Variable":
        pattern = "variable"
        what = "Variable does nothing since PyTorch 0.4: a tensor has its own gradient"
        if event.said:
            what = "volatile=True does nothing since PyTorch 0.4; what it did is torch.no_grad()'s to do"
        elif event.attached:
            what = "Variable detaches a tensor from its graph today, and did not before PyTorch 0.4"
    else:
        pattern, what = "deprecated", event.said.splitlines()[0].rstrip(".")
    label = "as PyTorch 0.x had it" if pattern == "variable" else "PyTorch warns here"
    return make(
        "legacy-api", pattern, what, [("read", event.stack, label)], "read", ref=event.ref, event=event
    )


def _gone(graph: Graph, event: Failure) -> str:
    """How a failure shows that PyTorch gave up what the script was written for, or ""."""
    kind, said = event.type.rpartition(".")[2], event.message.split("\n")[0]
    left = any(kind == k and words in said for k, words in UNDIMENSIONED) and _left_undimensioned(
        graph, event
    )
    if left or "0-dim tensor" in said:
        return (
            "this tensor has no dimensions since PyTorch 0.4, so its number is not at [0]; `.item()` reads it"
        )
    if kind == "ValueError" and INT_BETAS in said:
        return "Adam takes no int among its betas today: `0.0` is what `0` was"
    if kind == "AttributeError" and BATCHES.search(said):
        return NEXT
    if kind == "RuntimeError" and BYTE_MASKS.search(said):
        return BYTES
    if kind == "RuntimeError" and SUBTRACTED.search(said):
        return TRUTH
    if kind == "TypeError" and UNTOLD.search(said):
        return DRAWS
    if kind == "RuntimeError" and INT_STEPS in said:
        return f"{STEPS}: `torch.tensor(0.0)` is what `0` was"
    if any(kind == k and re.search(words, event.message) for k, words in REMOVED):
        return f"this API is gone from current PyTorch: {said}"
    return ""


def _left_undimensioned(graph: Graph, event: Failure) -> bool:
    """Whether a tensor without dimensions left torch in the very expression that failed."""
    here = event.at
    return here is not None and any(
        isinstance(e, Cut) and e.at is not None and not e.ref.shape and _inside(e.at, here)
        for e in graph.tape.events
    )


def _inside(one: Site, other: Site) -> bool:
    return one.file == other.file and (
        (other.line, other.column) <= (one.line, one.column)
        and (one.end_line, one.end_column) <= (other.end_line, other.end_column)
    )
