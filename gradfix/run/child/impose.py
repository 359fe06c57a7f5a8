"""What a rewrite says it will change, done to a run on purpose, so that before and after can be compared.

The request is a JSON object; every key is optional, and they combine:

``null``     ``steps``: a step() leaves parameters and optimizer state as they were. ``rounds``: updates take
             effect when the round ends, not at the step. ``writes``: without an optimizer, in-place writes to
             leaves that a backward has reached are left out. Running statistics stand still in both.
``rounds``   how many steps each round has; the last number goes for all that come behind.
``draws``    random draws (torch's, Python's, NumPy's) depend on (round, op, arguments, how many before in the
             round), not on how many were made in all; for the keys listed under ``constant`` on (round, op,
             arguments) alone, with ``everywhere`` not even on the round.
``cut``      no gradient flows through nodes of an earlier round (``step``), or of before the last run of the
             same backward (``backward``), or that were made in one of the ``places`` (lists of frames, each
             [file, first line, last line], outermost first).
``clips``    once a backward has run, the script's own in-place writes to parameters are left out, and counted.
``own``      the k-th backward fills only the parameters of the optimizers listed for it, and leaves of none.
``summands`` the k-th backward, of two losses added up: each of the two, by its sequence number, fills only the
             parameters of the optimizers listed with it.
``edges``    no gradient flows from the node with the first sequence number to its input with the second; where a
             third number says which input that is, to that one alone.
``write``    an op's in-place writes to some parameters or to tensors of a shape are left out, and counted.
``through``  ``.data``, ``.detach()`` and ``torch.tensor(t)`` in user lines (all, or those listed) give the
             tensor itself; in those listed so do ``.item()``, ``.numpy()`` and ``float(t)``.
``arrays``   NumPy's functions take tensors, and are torch's; ``torch.from_numpy(t)`` gives the tensor.
``apart``    ``.data``, ``.detach()`` and ``.numpy()`` in the [file, line]s listed give a copy.
``selves``   a tensor that is compared with itself at the [file, line]s listed is compared with what it was before
             something was written into it, which keeps its graph.
``adapted``  updates of parameters in the [file, line]s listed stay in the graph, and copies hand the gradient
             on that arrives at them.
``recorded`` what is called in the [file, line]s listed records its graph, under no_grad or not.
``clear``    an optimizer's gradients are cleared after each of its steps (all, or the numbers listed);
             ``leaves``: those of leaves that no optimizer holds, before the next backward, where the script has
             written into them since the last; ``passes``: an optimizer's, whenever a backward runs again, if it
             steps behind that pass or not.
``step``     the [number, place]s: so numbered optimizers step right behind the backward, or the clipping, that is
             called in that place.
``uncalled`` a loss whose backward a statement only names is differentiated before the next step.
``gather``   what clears gradients in the [file, line]s listed does so behind the next step that uses them.
``once``     what clears gradients in the [file, line]s listed does so once for each step that uses them: the first
             time.
``retain``   non-leaf tensors given to an optimizer keep their gradient, as leaves do.
``keep``     tensors made in the [file, line, how]s listed keep their gradient as ``retain_grad()`` has them do
             (``keep``), or are leaves (``leaf``).
``create``   ``torch.autograd.grad`` at the [file, line]s listed makes a graph of its own (``create_graph=True``).
``shims``    calls of PyTorch 0.x that were removed do what they did.
``zeros``    ``zero_grad()`` sets gradients to zero, as before PyTorch 2.0.

Standard library and torch only; installed after the recorder and before the measurer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .elsewhere import each_thread
from .imposed_arrays import compute_with_torch
from .imposed_copies import Adapted, Origins
from .imposed_lists import STORED
from .imposed_ops import MADE, Keep, Made, Ops, Recorded
from .imposed_selves import Selves
from .imposed_steps import Rounds, Steps
from .measure import Optimizers, quiet
from .pretend import (
    OfFloats,
    clear_to_zero,
    differentiate_twice,
    foreign,
    freeze_statistics,
    key_draws_of_others,
    restore_old_calls,
    retain_gradients,
    see_through,
    take_apart,
    without,
)
from .transforms import transformed

Emit = Callable[[dict[str, Any]], None]


class Imposer:
    """Imposes one request on the run: `install` before the script runs, `finish` on every way out."""

    def __init__(self, request: dict[str, Any], recorder: Any, emit: Emit) -> None:
        self.request = request
        self.emit = emit
        self.optimizers = Optimizers()
        self.rounds = Rounds(list(request.get("rounds") or ()))
        self.backwards = 0
        self.depth = 0
        self.edges = {tuple(edge) for edge in request.get("edges", ())}
        self.marks: dict[
            tuple[Any, ...], tuple[int, int]
        ] = {}  # backward's frames -> (sequence number, steps) then
        self.mode: Ops | None = None
        self.leaves: dict[int, Any] = {}  # address -> a leaf that a backward has reached
        self.values: dict[
            int, tuple[Any, Any]
        ] = {}  # id of a leaf -> it, and what it held in its last backward
        self.begun: set[tuple[Any, ...]] = set()  # frames of the backwards that this pass has had
        self.done = False

    def install(self) -> None:
        self.optimizers.watch()
        Steps(self).install()
        still = self.request.get("null") == "writes"
        cleared = self.request.get("clear") in ("leaves", "passes")
        if still or cleared or not {"cut", "own", "summands", "edges", "clips"}.isdisjoint(self.request):
            self._watch_backward()
        if self.request.get("places"):
            each_thread.enter(Made(self.request["places"]))
        if self.request.get("emptied"):
            each_thread.enter(Made(self.request["emptied"], STORED))
        if self.request.get("null"):
            freeze_statistics()
        if "through" in self.request:
            see_through(self.request["through"])
        if self.request.get("arrays"):
            compute_with_torch()
        if self.request.get("apart"):
            take_apart(self.request["apart"])
        if self.request.get("selves"):
            each_thread.enter(Selves(self.request["selves"]))
        if self.request.get("recorded"):
            each_thread.enter(Recorded(self.request["recorded"]))
        if self.request.get("adapted"):
            origins = Origins()
            origins.watch()
            each_thread.enter(Adapted(self.request["adapted"], origins))
        if self.request.get("create"):
            differentiate_twice(self.request["create"])
        if self.request.get("retain"):
            retain_gradients()
        if self.request.get("shims"):
            restore_old_calls()
            each_thread.enter(OfFloats())
        if self.request.get("zeros"):
            clear_to_zero()
        if self.request.get("keep"):
            each_thread.enter(Keep(self.request["keep"]))
        if "draws" in self.request or "write" in self.request:
            self.mode = Ops(self)
            if "draws" in self.request:
                key_draws_of_others(self.mode.seed_of)
            self.mode.leave_data()
            each_thread.enter(self.mode)

    def finish(self, how: str, exc: BaseException | None = None) -> None:
        if self.done:
            return
        self.done = True
        if self.mode is not None:
            self.emit({"m": "d", "draws": self.mode.counts, "writes": self.mode.writes})

    def _watch_backward(self) -> None:
        engine = torch.autograd._engine_run_backward  # type: ignore

        def run(
            roots: Any, grads: Any, retain: Any, create: Any, inputs: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if self.depth or transformed(roots):
                return engine(roots, grads, retain, create, inputs, *args, **kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", False))
            summands = self.request.get("summands", {}).get(str(self.backwards))
            number, self.backwards = self.backwards, self.backwards + 1
            with quiet():
                old, leaves = self._reach(roots)
                if self.request.get("null") == "writes":
                    self.leaves.update((x.untyped_storage().data_ptr(), x) for x in leaves)
                if self.request.get("clear") == "leaves" and accumulates:
                    self._clear(leaves)
                if self.request.get("clear") == "passes" and accumulates:
                    self._begin()
            if accumulates:
                keep = [x for x in leaves if self._feeds(number, x)] if "own" in self.request else leaves
                if inputs:
                    keep = [x for x in inputs if not x.is_leaf or any(x is y for y in keep)]
                elif len(keep) == len(leaves) and not old:
                    keep = []  # nothing to restrict
                elif not keep:
                    return None
                inputs = tuple(keep)
                if not inputs and old:
                    return None
            if summands and accumulates and not inputs:
                return self._apart(
                    summands,
                    roots,
                    lambda keep, mine: engine(roots, grads, retain or keep, create, mine, *args, **kwargs),
                )
            handles = [node.register_prehook(_zeros) for node in old]
            if self.edges:
                handles += self._cut_edges(roots)
            self.depth += 1
            try:
                return engine(roots, grads, retain, create, inputs, *args, **kwargs)
            finally:
                self.depth -= 1
                for handle in handles:
                    handle.remove()

        torch.autograd._engine_run_backward = run  # type: ignore

    def _apart(self, summands: Any, roots: Any, differentiate: Callable[[bool, Any], Any]) -> None:
        """One run for each summand, without what flows through the others, into the parameters it is there for."""
        with quiet():
            nodes = {n._sequence_nr(): n for n in _nodes(roots)}
            _, leaves = self._reach(roots)
        self.depth += 1
        try:
            for number, optimizers in summands:
                owned = [p for k, _, p in self.optimizers.parameters() if k in optimizers]
                mine = tuple(x for x in leaves if any(x is p for p in owned))
                others = [nodes[n] for n, _ in summands if n != number and n in nodes]
                handles = [node.register_prehook(_zeros) for node in others]
                try:
                    if mine:
                        differentiate(number != summands[-1][0], mine)
                finally:
                    for handle in handles:
                        handle.remove()
        finally:
            self.depth -= 1

    def _clear(self, leaves: list[Any]) -> None:
        held = {id(p) for _, _, p in self.optimizers.parameters()}
        for leaf in leaves:
            known = self.values.get(id(leaf))
            if known is not None and id(leaf) not in held and not torch.equal(known[1], leaf):
                leaf.grad = None
            self.values[id(leaf)] = leaf, leaf.detach().clone()

    def _begin(self) -> None:
        """Clear what optimizers step, where a backward that this pass has had begins the next one."""
        here = _frames()
        if here in self.begun:
            self.begun.clear()
            for _, _, p in self.optimizers.parameters():
                p.grad = None
        self.begun.add(here)

    def _reach(self, roots: Any) -> tuple[list[Any], list[Any]]:
        """(nodes of an earlier round where the walk from `roots` stops, leaves it reaches without them)."""
        limit = self._limit() if "cut" in self.request else 0
        old: list[Any] = []
        leaves: list[Any] = []
        seen: set[Any] = set()
        stack: list[Any] = []
        for root in roots:
            node = root.grad_fn if isinstance(root, torch.Tensor) else root.node
            if node is not None:
                stack.append(node)
            elif isinstance(root, torch.Tensor) and root.is_leaf:
                leaves.append(root)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
            elif node._sequence_nr() < limit or node.metadata.get(MADE):
                old.append(node)
            else:
                stack.extend(n for n, _ in node.next_functions if n is not None)
        return old, leaves

    def _cut_edges(self, roots: Any) -> list[Any]:
        """Hooks on the nodes of this walk whose gradient to one of their inputs is left out."""
        handles: list[Any] = []
        consumers = {edge[0] for edge in self.edges}
        for node in _nodes(roots):
            inputs = [n for n, _ in node.next_functions]
            number = node._sequence_nr()
            if number in consumers:
                edges = ((k, (number, n._sequence_nr())) for k, n in enumerate(inputs) if n)
                which = {k for k, edge in edges if not self.edges.isdisjoint((edge, (*edge, k)))}
                if which:
                    handles.append(node.register_hook(without(which)))
        return handles

    def _limit(self) -> int:
        """The sequence number below which a node is of an earlier round for the coming backward."""
        here, now = _frames(), torch._C._autograd._get_sequence_nr()
        number, steps = self.marks.get(here, (0, -1))
        self.marks[here] = (now, self.rounds.steps)
        if self.request["cut"] == "places":
            return 0
        if self.request["cut"] == "backward":
            return number
        return max(self.rounds.start, number if steps != self.rounds.steps else 0)

    def _feeds(self, backward: int, leaf: Any) -> bool:
        own = self.request["own"]
        if backward >= len(own) or own[backward] is None:
            return True
        owners = {k for k, _, p in self.optimizers.parameters() if p is leaf}
        return not owners or bool(owners & set(own[backward]))


def _nodes(roots: Any) -> Any:
    """Every node behind `roots`."""
    seen: set[Any] = set()
    stack = [r.grad_fn if isinstance(r, torch.Tensor) else r.node for r in roots]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [n for n, _ in node.next_functions]
            yield node


def _zeros(grads: Any) -> Any:
    return tuple(None if g is None else torch.zeros_like(g) for g in grads)


def _frames() -> tuple[Any, ...]:
    """The user's frames: which call, of which line, and where in its code."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        if not foreign(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
