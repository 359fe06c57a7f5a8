"""silent-overwrite by custom autograd Functions: an input they changed without saying so, a gradient that was not
theirs to write into, a value that they kept and then changed. These are faults only where the recorder measured that
the gradient differs, or where something is differentiated that read an input after it was changed."""

from __future__ import annotations

from collections.abc import Iterable

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.overwritten import WRONG
from gradfix.graph import Graph
from gradfix.tape import Backward, Custom, Mutate, Record, Stack


def custom_functions(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """One conflict a statement that wrote."""
    found = Findings()
    events = {e.time: e for e in graph.tape.events if isinstance(e, Custom) and e.stack}
    for change in events.values():
        if change.what == "changed" and not _refused(graph, change):
            _changed(graph, change, found)
    for backward in graph.backwards if events else ():
        for time, wrong in backward.blame:
            event = events.get(time)
            record = graph.records.get(event.node) if event is not None else None
            if event is not None and record is not None and wrong > WRONG and not _refused(graph, event):
                tell = TOLD.get(event.what, _grad_output)
                found.add(
                    (event.what, event.stack[-1]), backward.time, tell(graph, event, record, backward, wrong)
                )
    return found.conflicts()


def _changed(graph: Graph, event: Custom, found: Findings) -> None:
    """An input that the forward changed and did not return, where something reads it behind the Function and is
    differentiated. How far off that is nobody can measure: what the change was, as a function, autograd never saw."""
    maker = graph.records.get(event.node)
    for backward in graph.backwards if maker is not None else ():
        walked = (graph.records[n] for n in sorted(graph.walk(backward)) if n in graph.records)
        reader = next((r for r in walked if event.alias in r.parents and r.node > event.node), None)
        if maker is None or reader is None or backward.time < event.time:
            continue
        name = wording.name(event.ref, "its input")
        conflict = make(
            "silent-overwrite",
            "input-changed",
            f"`{maker.op}` changes {name} in place and returns another tensor: what reads {name} behind it reads the "
            "changed value, and its gradient goes to what made the value of before, no error",
            [
                ("overwritten", event.stack, f"`{maker.op}` writes into its input here"),
                ("used", reader.stack, "reads the changed value; its gradient goes past the change"),
                ("needed", backward.stack, "differentiates that"),
            ],
            "overwritten",
            severity="warning",
            ref=event.ref,
            record=maker,
            backward=backward,
            event=event,
        )
        found.add((event.what, event.stack[-1]), backward.time, conflict)
        return


def _refused(graph: Graph, event: Custom) -> bool:
    """Whether PyTorch refuses what becomes of the tensor later: that is the fault, and what follows was let through."""
    return any(isinstance(w, Mutate) and w.refused for w in graph.writes.get(event.ref.storage, ()))


def _unmarked(
    graph: Graph, event: Custom, record: Record, backward: Backward, wrong: float
) -> Conflict | None:
    name = wording.name(event.ref, "its input")
    labels: list[tuple[str, Stack, str]] = [
        ("overwritten", event.stack, f"`{record.op}` writes into its input here, unmarked")
    ]
    readers = (graph.records[n] for n in sorted(graph.walk(backward)) if n in graph.records)
    reader = next((r for r in readers if event.node in r.parents and r.node != event.alias), None)
    if reader is not None:
        labels.append(("used", reader.stack, "reads the changed value; its gradient goes past the Function"))
    labels.append(("needed", backward.stack, "wrong gradient, no error"))
    return make(
        "silent-overwrite",
        "unmarked-input",
        f"`{record.op}` changes {name} in place and does not mark it dirty: autograd takes {name} for what it was "
        f"before, and the gradient is {wording.off(wrong)}",
        labels,
        "overwritten",
        ref=event.ref,
        record=record,
        backward=backward,
        event=event,
    )


def _spoilt(graph: Graph, event: Custom, record: Record, backward: Backward, wrong: float) -> Conflict | None:
    name = wording.name(event.ref, "a tensor")
    writes = (w for w in graph.writes.get(event.ref.storage, ()) if isinstance(w, Mutate))
    return make(
        "silent-overwrite",
        "spoilt-save",
        f"`{record.op}` keeps {name} for its backward and changes it in its own forward: its backward is the "
        f"derivative with the value as it was kept, so there is no error, and the gradient is {wording.off(wrong)}",
        [
            ("made", record.stack, "the Function is part of the graph here"),
            ("overwritten", event.stack, f"`{record.op}` overwrites here what it has kept"),
            ("needed", backward.stack, "needs it as it was kept: wrong gradient, no error"),
        ],
        "overwritten",
        ref=event.ref,
        record=record,
        write=next((w for w in writes if w.stack == event.stack), None),
        backward=backward,
        event=event,
    )


def _grad_output(
    graph: Graph, event: Custom, record: Record, backward: Backward, wrong: float
) -> Conflict | None:
    return make(
        "silent-overwrite",
        "grad-output",
        f"`{record.op}.backward` writes into the gradient that it was given, which other parts of the graph are given, "
        f"too: no error, and the gradient is {wording.off(wrong)}",
        [
            ("made", record.stack, "the Function is part of the graph here"),
            ("needed", backward.stack, "its backward runs here"),
            ("overwritten", event.stack, "writes into the gradient of others"),
        ],
        "overwritten",
        ref=event.ref,
        record=record,
        backward=backward,
        event=event,
    )


def _hook(graph: Graph, event: Custom, record: Record, backward: Backward, wrong: float) -> Conflict | None:
    return make(
        "silent-overwrite",
        "hook-gradient",
        "a hook writes into the gradient that it is given, which other parts of the graph are given, too: no error, "
        f"and the gradient is {wording.off(wrong)}",
        [
            ("made", record.stack, "the hook is on what is made here"),
            ("needed", backward.stack, "runs the hook"),
            ("overwritten", event.stack, "writes into the gradient of others"),
        ],
        "overwritten",
        ref=event.ref,
        record=record,
        backward=backward,
        event=event,
    )


def _instead(
    graph: Graph, event: Custom, record: Record, backward: Backward, wrong: float
) -> Conflict | None:
    return make(
        "silent-overwrite",
        "result-saved",
        f"`{record.op}` saves its result, and its backward is the derivative with its input in that place: no error, "
        f"and the gradient is {wording.off(wrong)}",
        [
            ("made", record.stack, "the Function is part of the graph here"),
            ("saved", event.stack, f"`{record.op}` saves here what it returns"),
            ("needed", backward.stack, "takes it for the input: wrong gradient, no error"),
        ],
        "saved",
        ref=event.ref,
        record=record,
        backward=backward,
        event=event,
    )


TOLD = {"unmarked": _unmarked, "spoilt": _spoilt, "hook": _hook, "instead": _instead}
