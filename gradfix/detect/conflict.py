"""The values that detection yields: kinds, severities, labels, conflicts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from gradfix import wording
from gradfix.dataclass import dataclass
from gradfix.tape import Backward, Event, Mutate, Record, Ref, Site, Stack

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
    """A place the person is shown, `stack` the user's frames there, `text` what stands under the span.

    `role` is ``saved``, ``overwritten``, ``needed``, ``freed``, ``made``, ``used`` (where a later pass, a
    second loss or another model takes the value made), ``crossing`` (where the loss that freed a shared value
    had taken it), ``read``, ``cut``, ``zero``, ``step`` or ``target``.
    """

    role: str
    stack: Stack
    text: str

    @property
    def at(self) -> Site:
        """The innermost frame."""
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
    also: tuple[Conflict, ...] = field(default=())  # consequences folded into this one

    @property
    def at(self) -> Site:
        """Where the diagnostic points."""
        return self.labels[self.primary].at

    def label(self, role: str) -> Label | None:
        """The first label of that role."""
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
        "data": "a write through .data",
        "detach": "a write through a detached alias",
        "numpy": "a write through a NumPy array that shares the memory",
        "fused-step": "a fused optimizer's step, which moves no version counter",
        "set_data": "x.data = y",
        "write": "any other write the version counter does not see",
        "ctx-attribute": "a tensor kept as an attribute of a custom Function's ctx, where no version is checked",
        "checkpoint": "a tensor saved within a checkpoint, where no version is checked",
        "unmarked-input": "a custom Function's forward wrote into its input and did not mark it dirty",
        "input-changed": "a custom Function's forward wrote into its input, which it does not return",
        "spoilt-save": "a custom Function's forward overwrote what it had kept for its backward",
        "result-saved": "a custom Function saved its result, and its backward takes it for the input",
        "hook-gradient": "a tensor's hook wrote into the gradient it was given",
        "grad-output": "a custom Function's backward wrote into the gradient it was given",
    },
    "leaf-write": {"leaf": "an in-place op on a leaf that requires grad", "view": "... on a view of one"},
    "forbidden-view-write": {
        "multi-view": "an output of unbind, split, chunk, ...",
        "behind-views": "what such outputs are views of, before one of them is read",
        "custom-view": "an output of a custom Function, or of a module with a full backward hook",
        "expanded": "several elements share one memory location",
        "detached-view": "detach_() of a view",
        "no-grad-view": "a view made under no_grad or inference_mode",
    },
    "cut-graph": {
        "no-graph": "the loss has no grad_fn",
        "uncalled": "a statement names the loss's backward, and does not call it",
        "turned-off": "the loss has no grad_fn, since a call turned gradients off for good",
        "dead-parameter": "no loss reaches an optimizer's parameters",
        "updated-copies": "each loss trains copies of an optimizer's parameters, which an inner update has changed",
        "zero-derivative": "every loss knows some of an optimizer's parameters through sign(), round(), ... alone",
        "frozen": "parameters were frozen where a gradient was meant for them",
        "partly": "all that is made of some of an optimizer's parameters ends in a cut",
        "rewrapped": "a gradient arrives at a leaf made of a cut value, and is never passed on to the graph "
        "behind it",
        "plain-gradient": "a term of the loss is made of gradients that autograd.grad gave without a graph",
        "bypassed": "a forward() reads parameters that are stepped with by .data or .detach() alone",
        "drawn": "all that a model's loss knows of it are indices, which were drawn or chosen, and train nothing",
        "quantized": "a term of the loss knows what an encoder makes by codes alone, and does not train it",
        "constant-term": "a term of the loss was cut off its graph, and trains nothing",
        "computed-term": "a term of the loss was computed past torch, and trains nothing",
        "withheld": "a custom Function's backward returns None for parameters that nothing else reaches",
        "second-order": "an update that create_graph=True was asked for goes through .data",
        "fast-weights": "... or is made of the parameters' values, without their graph",
    },
    "missing-grad": {
        "read": ".grad of a non-leaf is read",
        "parameter": "an optimizer or module got a non-leaf",
    },
    "wasted-backward": {
        "discarded": "gradients flow into parameters whose .grad is cleared before any step",
        "idle-retain": "retain_graph=True that no later backward needs",
        "kept-losses": "the losses of all passes are held, with graphs that are freed",
        "running-sum": "a sum over passes that keeps their graphs, and that no backward walks",
    },
    "mixed-gradient": {
        "left-over": "a backward meant for another optimizer's step left its gradient behind",
        "flows-on": "a backward's loss also flows into a model that another loss trains",
        "flows-back": "a backward's loss flows through a model that another loss trains, to the opposite end",
        "attack": "a backward for the gradient of an input fills the network's, too",
        "opposed": "one backward of two losses that pull apart what one model gives to another",
    },
    "attached-target": {
        "bootstrap": "r + gamma * value(next), regressed on with its graph",
        "return": "a return that is folded of values with their graph, and that they are regressed on",
        "advantage": "a weight of a log-probability that a value loss also trains",
        "ratio": "a ratio to the probabilities of before, which are equal and carry their graph",
        "kept-up": "what a target network made that the optimizer holds, and that is kept up with the other's values",
        "dropped": "a tensor that a statement detaches for nothing: what detach() returns is thrown away",
        "itself": "the target is the prediction itself, by another name, and what is meant for the one is written "
        "into both",
    },
    "unreset-grad": {
        "never-cleared": "no zero_grad() between steps",
        "never-cleared-leaf": "a tensor is updated by hand with its .grad, which nothing clears between",
        "cleared-before-step": "zero_grad() between backward() and step()",
        "cleared-between": "several passes for one step, each cleared before the next",
        "cleared-apart": "losses of several models for one step, the gradients of all cleared before each",
        "never-stepped": "gradients computed and cleared in every pass, of an optimizer that no call steps",
    },
    "stray-optimizer": {
        "replaced": "a parameter was replaced after the optimizer was made",
        "replaced-later": "a parameter was replaced between two steps of the optimizer that holds it",
        "another-models": "the optimizer holds what another one holds, and the model that its loss trains is nobody's",
        "unregistered": "a plain tensor of a module, or layers in a plain list or dictionary, of which parameters() "
        "knows nothing",
    },
    "data-attribute": {"": ".data is read or written"},
    "legacy-api": {
        "removed": "an API that current PyTorch no longer has",
        "compared": "a type is compared with Variable, which no tensor's is today",
        "cleared": "a gradient is used that zero_grad() set to zero once, and sets to None today",
        "filled": "torch.full of a whole number, of floats once, of whole numbers today, in a loss that takes none",
        "variable": "a tensor is wrapped in Variable",
        "deprecated": "PyTorch warns that a name has a successor",
    },
}


def describe(conflict: Conflict, sources: Mapping[str, str]) -> str:
    """`conflict`'s one sentence, with the source text of its places (``optimD.step()``) where `sources`, a
    mapping of file to text, has them; without them, what the tape alone says."""
    sentence = conflict.message
    texts = [wording.quote(label.at, sources) for label in conflict.labels]
    for label, text in zip(conflict.labels, texts, strict=True):
        if not text:
            continue
        words = f"the value of `{text}`" if label.role in ("made", "target") else f"`{text}`"
        lines = {x.at.line for x, t in zip(conflict.labels, texts, strict=True) if t == text and x.stack}
        if len(lines) > 1:  # two losses, both `loss.backward()`
            words += f" in {wording.line(label.at, sources)}"
        sentence = words.join(re.split(re.escape(wording.at(label.role, label.stack)) + r"(?!\d)", sentence))
    return sentence
