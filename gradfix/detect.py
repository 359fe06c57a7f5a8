"""From a tape to the faults it shows: pure, without torch and without libcst.

`detect` returns conflicts, one a fault: consequences are folded into their cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gradfix.tape import Backward, Event, Mutate, Record, Ref, Site, Stack, Tape

Severity = Literal["error", "warning", "note"]

KINDS: dict[str, Severity] = {
    "stale-saved-tensor": "error",
    "silent-overwrite": "error",
    "freed-graph": "error",
    "leaf-write": "error",
    "forbidden-view-write": "error",
    "cut-graph": "error",
    "missing-grad": "error",
    "wasted-backward": "note",
    "mixed-gradient": "warning",
    "attached-target": "warning",
    "unreset-grad": "warning",
    "stray-optimizer": "warning",
    "data-attribute": "note",
    "legacy-api": "note",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A place the person is shown: `role` is ``saved``, ``overwritten``, ``needed``, ``freed``, ``made``, ``read``,
    ``cut`` or ``step``; `stack` the user's frames there; `text` what stands under the span."""

    role: str
    stack: Stack
    text: str

    @property
    def at(self) -> Site:
        return self.stack[-1]


@dataclass(frozen=True, slots=True)
class Conflict:
    """One fault. `labels` are in order of time; `primary` indexes the one the diagnostic points at.

    `pattern` says how it came about, in words a codemod may test; see PATTERNS.
    The events are those the fault was read from; which are set depends on the kind.
    """

    kind: str
    severity: Severity
    message: str
    labels: tuple[Label, ...]
    primary: int = 0
    pattern: str = ""
    ref: Ref | None = None
    record: Record | None = None  # the node that saved (or was freed, or made the non-leaf)
    write: Mutate | None = None  # what overwrote it
    backward: Backward | None = None  # which needed it
    earlier: Backward | None = None  # which freed it / whose gradient got mixed in
    event: Event | None = None  # any other event the fault rests on (Step, Cut, GradRead, Failure)
    also: tuple["Conflict", ...] = field(default=())  # consequences folded into this one

    @property
    def at(self) -> Site:
        return self.labels[self.primary].at

    def label(self, role: str) -> Label | None:
        return next((x for x in self.labels if x.role == role), None)


PATTERNS = {
    "stale-saved-tensor": {
        "optimizer-step": "optimizer.step() updated the tensor between forward and backward",
        "write": "an in-place op, index write, out= or copy_ of the user's",
        "module": "a torch.nn module with inplace=True",
        "renormalised": "an embedding lookup with max_norm",
        "self-write": "the op overwrote its own saved input or output (x *= x)",
    },
    "freed-graph": {
        "two-losses": "two backwards of one iteration share nodes",
        "carried": "nodes made in an earlier pass of the loop, reached through a name that is carried over",
        "before-loop": "nodes made once, before the loop that holds the backward",
        "accumulated": "a loss summed over passes, backward on the sum in every pass",
    },
    "silent-overwrite": {
        "data": "",
        "detach": "",
        "numpy": "",
        "fused-step": "",
        "set_data": "",
        "write": "",
    },
    "leaf-write": {"leaf": "", "view": ""},
    "forbidden-view-write": {"multi-view": "", "expanded": "", "no-grad-view": ""},
    "cut-graph": {"no-graph": "the loss has no grad_fn", "dead-parameter": "an optimizer's parameter no loss reaches"},
    "missing-grad": {"read": "", "parameter": "an optimizer or module got a non-leaf"},
    "wasted-backward": {
        "discarded": "gradients flow into parameters whose .grad is cleared before any step",
        "idle-retain": "retain_graph=True that no later backward needs",
    },
}


def detect(tape: Tape) -> tuple[Conflict, ...]:
    """Every fault `tape` shows, in order of time, one conflict a fault."""
    raise NotImplementedError
