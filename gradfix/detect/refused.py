"""What PyTorch refuses on the spot, in its own words: writes to leaves and views, losses without a graph,
gradients of non-leaves, and API that is gone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.frozen import frozen_before
from gradfix.detect.legacy import removed
from gradfix.graph import Graph
from gradfix.tape import (
    Backward,
    Cut,
    Failure,
    Frozen,
    GradRead,
    Mutate,
    Off,
    Optimizer,
    Record,
    Stack,
    Step,
    ViewUse,
)

NO_GRAPH = "does not require grad"
NOT_A_LEAF = "can't optimize a non-leaf Tensor"
NO_INPUT = "differentiated Tensors does not"  # a loss with a graph, but no gradient of what it is asked for

# PyTorch's words -> (kind, pattern); the first that fits
REFUSED_WRITES = (
    ("a view of a leaf Variable", "leaf-write", "view"),
    ("a leaf Variable that requires grad", "leaf-write", "leaf"),
    ("single memory location", "forbidden-view-write", "expanded"),
    ("detach views", "forbidden-view-write", "detached-view"),
    ("no_grad", "forbidden-view-write", "no-grad-view"),
    ("inference", "forbidden-view-write", "no-grad-view"),
    ("inside a custom Function", "forbidden-view-write", "custom-view"),
    ("is a view and is being modified inplace", "forbidden-view-write", "multi-view"),
    ("is a view and its base", "forbidden-view-write", "multi-view"),
    ("view", "forbidden-view-write", "multi-view"),
)


def refused_writes(graph: Graph) -> Findings:
    """leaf-write and forbidden-view-write: one conflict a statement."""
    found = Findings()
    for event in graph.tape.events:
        if isinstance(event, Mutate) and event.refused:
            found.add(refusal_key(event), event.time, _refused_write(event))
        elif isinstance(event, ViewUse):
            writes = [w for w in graph.writes.get(event.ref.storage, ()) if w.time < event.time]
            write = next((w for w in writes if w.time == event.write), None)
            if isinstance(write, Mutate) and not _made_without_graph(event):
                found.add(refusal_key(write), event.time, _stale_view(graph, write, event))
            elif writes and _made_without_graph(event):
                last = write or writes[-1]
                found.add(refusal_key(last), event.time, _view_without_graph(last, event))
    return found


def _stale_view(graph: Graph, write: Mutate, use: ViewUse) -> Conflict | None:
    base, view = wording.name(write.ref, "a tensor"), f"`{use.view}`" if use.view else "one of them"
    record = graph.records.get(use.node) if use.node is not None else None
    by = f"by {wording.at('overwritten', write.stack)} " if write.optimizer is not None else ""
    made = [("made", record.stack, f"several views of {base} are made by one op here")] if record else []
    return make(
        "forbidden-view-write",
        "behind-views",
        f"{base} is written in place {by}after one op made several views of it: autograd refuses to have {view} read "
        "afterwards",
        [
            *made,
            ("overwritten", write.stack, "written in place here, behind its views"),
            ("used", use.stack, f"{view}{', which is such a view,' if use.view else ''} is read here"),
        ],
        "overwritten",
        ref=write.ref,
        record=record,
        write=write,
        event=use,
    )


def _made_without_graph(use: ViewUse) -> bool:
    return "no_grad mode" in use.refused or "inference mode" in use.refused


def _view_without_graph(write: Mutate | Step, use: ViewUse) -> Conflict | None:
    base, view = wording.name(use.ref, "a tensor"), f"`{use.view}`" if use.view else "the view"
    by = f"by {wording.at('overwritten', write.stack)} " if write.optimizer is not None else ""
    return make(
        "forbidden-view-write",
        "behind-views",
        f"{base} is written in place {by}after a view of it was made where gradients are off: autograd refuses to have "
        f"{view} read where they are on",
        [
            ("overwritten", write.stack, "written in place here, behind its view"),
            ("used", use.stack, f"{view} is read here"),
        ],
        "overwritten",
        ref=use.ref,
        write=write if isinstance(write, Mutate) else None,
        event=use,
    )


def refusal_key(write: Mutate | Step) -> Hashable:
    """The fault a refused write belongs to: where its call begins. Those chained to it (``p.mul_(a).add_(b)``) begin
    there, too."""
    site = write.stack[-1] if write.stack else None
    return "refused", site and (site.file, site.line, site.column)


def _refused_write(write: Mutate) -> Conflict | None:
    kind, pattern = next(
        ((k, p) for words, k, p in REFUSED_WRITES if words in write.refused),
        ("forbidden-view-write", "multi-view"),
    )
    name = wording.name(write.ref, "")
    what = {
        "leaf": f"{name or 'a leaf'} requires grad and is a leaf: autograd refuses to have it changed in "
        "place",
        "view": f"this writes into a view of {name or 'a leaf'}, a leaf that requires grad: autograd refuses "
        "that",
        # (they share a storage, and its name may be another's)
        "multi-view": f"{wording.at('overwritten', write.stack)} changes in place one of several views that one op "
        "made: autograd refuses that",
        "custom-view": f"{name or 'this tensor'} is a view that a custom Function made (a module's full backward hook "
        "makes one): autograd refuses to have it changed in place",
        "expanded": f"several elements of {name or 'this tensor'} share one memory location (expand): they "
        "can't be "
        "changed in place",
        "detached-view": f"{wording.at('overwritten', write.stack)} detaches a view in place: autograd refuses that",
        "no-grad-view": f"{wording.at('overwritten', write.stack)} changes in place a view made under no_grad: "
        "autograd refuses that where gradients are on",
    }[pattern]
    named = write.ref.name and pattern not in ("multi-view", "no-grad-view", "detached-view")
    done = "detached in place" if pattern == "detached-view" else "written in place"
    return make(
        kind,
        pattern,
        what,
        [
            (
                "overwritten",
                write.stack,
                f"{done} here{': ' + wording.shaped(write.ref) if named else ''}",
            )
        ],
        "overwritten",
        ref=write.ref,
        write=write,
    )


def refusals(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """cut-graph (no-graph), missing-grad and legacy-api."""
    found = Findings()
    cuts: list[Cut] = []
    off: Off | None = None
    frozen: list[Frozen] = []
    given: Optimizer | None = None  # what PyTorch refused, if it did: a detached copy shares its op's memory
    for event in graph.tape.events:
        if isinstance(event, Cut):
            cuts.append(event)
        elif isinstance(event, Off):
            off = event
        elif isinstance(event, Frozen):
            frozen.append(event)
        elif isinstance(event, Backward) and NO_GRAPH in event.refused:
            if NO_INPUT in event.refused:
                without = _no_input(event)
            elif off is not None:
                without = _turned_off(event, off)
            else:
                without = frozen_before(graph, event, frozen) or _no_graph(graph, event, cuts)
            found.add(("no-graph", event.stack), event.time, without)
            off = None
        elif isinstance(event, GradRead):
            made = graph.records.get(event.node) if event.node is not None else None
            place = (
                made.stack[-1:] if made is not None else ()
            )  # one that is made elsewhere has a cure of its own
            found.add(("read", event.stack[-1:], place), event.time, _grad_read(graph, event))
        elif isinstance(event, Optimizer):
            given = event
        elif isinstance(event, Failure):
            if NOT_A_LEAF in event.message and given is not None:
                found.add(("parameter", given.stack), given.time, _non_leaf_parameter(graph, given))
            found.add(("failure",), event.time, _failure(graph, event, found))
    return found.conflicts()


def _no_graph(graph: Graph, backward: Backward, cuts: list[Cut]) -> Conflict | None:
    previous = graph.previous(backward)
    recent = [c for c in cuts if c.stack and (previous is None or c.time > previous.time)]
    read = _last_reads(graph, backward)
    # (not where a parameter that is read with a graph since was given its first values, or evaluated)
    cut = _likeliest(
        [c for c in recent if c.how != "no_grad" or c.node is not None or read.get(c.ref.storage, 0) < c.time]
    )
    labels: list[tuple[str, Stack, str]] = []
    if cut is not None:
        labels.append(("cut", cut.stack, CUT_WORDS.get(cut.how, "the graph is left here")))
    labels.append(("needed", backward.stack, "this loss has no graph"))
    why = "its loss has no graph"
    if cut is not None and cut.how == "discrete":
        why = (
            f"its loss is made of what {wording.at('cut', cut.stack)} gives, and not of the scores behind it, nor of "
            "their log-probabilities"
        )
    return make(
        "cut-graph",
        "no-graph",
        f"{wording.at('needed', backward.stack)} has nothing to differentiate: {why}",
        labels,
        "cut" if cut is not None else "needed",
        ref=cut.ref if cut else None,
        backward=backward,
        event=cut,
    )


def _last_reads(graph: Graph, backward: Backward) -> dict[int, int]:
    """When each leaf was last read by an op that has a graph, before `backward`."""
    before = (r for r in graph.records.values() if r.time < backward.time)
    return {~p: r.time for r in before for p in r.parents if p < 0}


def _no_input(backward: Backward) -> Conflict | None:
    return make(
        "cut-graph",
        "no-graph",
        f"{wording.at('needed', backward.stack)} is asked for the gradient of a tensor that does not require grad",
        [("needed", backward.stack, "one of the inputs named here does not require grad")],
        "needed",
        backward=backward,
    )


def _turned_off(backward: Backward, off: Off) -> Conflict | None:
    return make(
        "cut-graph",
        "turned-off",
        f"{wording.at('needed', backward.stack)} has nothing to differentiate: {wording.at('cut', off.stack)} turned "
        "gradients off, and nothing has turned them on again",
        [
            ("cut", off.stack, "gradients are off from here on"),
            ("needed", backward.stack, "this loss has no graph"),
        ],
        "cut",
        backward=backward,
        event=off,
    )


CUT_WORDS = {
    "no_grad": "no graph is recorded here (no_grad)",
    "checkpoint": "no input requires grad, so a reentrant checkpoint gives no graph here",
    "tensor": "torch.tensor() copies the value and leaves the graph here",
    "item": "a plain number from here on",
    "numpy": "a NumPy array from here on",
    "data": ".data leaves the graph here",
    "detach": "detached from the graph here",
    "discrete": "indices, whole numbers and truth values have no gradient: the graph ends here",
}


def _likeliest(cuts: list[Cut]) -> Cut | None:
    """The cut that fed a loss without a graph, as far as a tape can tell: the last that took a tensor with a
    graph out of it for good; a number read for a log comes before nothing else."""
    for hows in (("tensor", "no_grad"), ("detach", "data", "numpy"), ("discrete",), ("item",)):
        chosen = [c for c in cuts if c.how in hows]
        if chosen:
            return chosen[-1]
    return None


def _grad_read(graph: Graph, event: GradRead) -> Conflict | None:
    record = graph.records.get(event.node) if event.node is not None else None
    name = wording.name(event.ref, "this tensor")
    labels: list[tuple[str, Stack, str]] = []
    if record is not None:
        labels.append(("made", record.stack, f"{name} is made by an op here: not a leaf"))
    labels.append(("read", event.stack, "its .grad is read here, and is None"))
    return make(
        "missing-grad",
        "read",
        f"`.grad` of {name} is read, but it is not a leaf: autograd keeps no gradient for it",
        labels,
        "read",
        ref=event.ref,
        record=record,
        event=event,
    )


def _non_leaf_parameter(graph: Graph, event: Optimizer) -> Conflict | None:
    made = _made_by_op(graph)
    for ref in event.refs:
        record = made.get(ref.storage)
        if record is not None and record.time < event.time:
            return _parameter(ref.name, record, event)
    return None


def _made_by_op(graph: Graph) -> dict[int, Record]:
    """storage -> the op that made it, for storages that no node knows as a leaf."""
    leaves = {~p for r in graph.records.values() for p in r.parents if p < 0}
    return {
        r.output.storage: r
        for r in graph.records.values()
        if r.output is not None and r.output.storage not in leaves
    }


def _parameter(name: str, record: Record | None, event: Optimizer | Failure) -> Conflict | None:
    what = f"`{name}`" if name else "a tensor"
    labels: list[tuple[str, Stack, str]] = []
    if record is not None:
        labels.append(
            ("made", record.stack, f"{what} is the result of {record.op.split('.')[1:2] or ['an op']}")
        )
        labels[0] = ("made", record.stack, f"{what} is made by an op here: not a leaf")
    labels.append(("read", event.stack, "given to the optimizer here"))
    return make(
        "missing-grad",
        "parameter",
        f"{what} that the optimizer is given is not a leaf: it never gets a `.grad`",
        labels,
        "made",
        record=record,
        event=event,
    )


def _failure(graph: Graph, event: Failure, found: Findings) -> Conflict | None:
    if NOT_A_LEAF in event.message:
        if any(c.kind == "missing-grad" and c.pattern == "parameter" for _, c in found.conflicts()):
            return None
        record = max(
            (r for r in graph.records.values() if any(p < 0 for p in r.parents) and r.time < event.time),
            key=lambda r: r.time,
            default=None,
        )
        return _parameter(record.output.name if record and record.output else "", record, event)
    return removed(graph, event)
