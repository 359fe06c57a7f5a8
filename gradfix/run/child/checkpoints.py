"""Checkpoints that are not reentrant: they save nothing, and make anew in the backward what their function saved.

Hooks of their own hide the saves from the recorder's, and PyTorch checks no version under hooks: what is written over
behind its save, in the function or, a parameter, by a step before the backward, is handed to the backward as the
function's second run leaves it, without a word. The recorded run hands out what the first run saved, so that its
gradients are exact; the engine measures how far off plain PyTorch is.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils import checkpoint

from .functions import Held
from .saves import EVERYWHERE, GONE, NOBODY, number_of_maker

BUDGET = 64 << 20  # bytes of activations that the program itself would not have kept
FULL = (
    f"What checkpoints save beyond {BUDGET >> 20} MiB is not kept: parameters that are written between such a "
    "checkpoint and its backward are not noticed there."
)
_sequence = torch._C._autograd._get_sequence_nr


class Recomputed(Held):
    """What an op within the function saved. `packed` is what the checkpoint keeps in its place, `again` what it has
    made of that in the last backward of the program's own."""

    __slots__ = ("again", "frame", "packed")

    again: Any
    frame: _Frame
    packed: Any


class _Frame:
    """One call of a checkpoint: what its function saved, and the `size` of that. `places` are where it was overwritten,
    as of `walk`."""

    __slots__ = ("__weakref__", "entries", "places", "size", "walk")

    def __init__(self) -> None:
        self.entries: list[weakref.ref[Recomputed]] = []
        self.places: set[Any] = set()
        self.size = 0
        self.walk = -1

    def living(self) -> list[Recomputed]:
        return [entry for ref in self.entries if (entry := ref()) is not None]


class Checkpoints:
    """Wraps the hooks of torch.utils.checkpoint. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._again = 0  # functions that run a second time
        self._walk = 0  # of the program's own
        self._kept: list[weakref.ref[_Frame]] = []
        self._asked: list[Recomputed] = []

    def install(self) -> None:
        hook = getattr(checkpoint, "_checkpoint_hook", None)
        second = getattr(checkpoint, "_recomputation_hook", None)
        if hook is None or second is None:
            return
        me = self
        plain_init, plain_exit = hook.__init__, hook.__exit__
        plain_enter, plain_leave = second.__enter__, second.__exit__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(self, *args, **kwargs)
            if not (me._again or me.r.off() or me.r.quiet):
                me._join(self)

        def leave(self: Any, *args: Any) -> Any:
            result = plain_exit(self, *args)
            frame = vars(self).get("gradfix")
            if frame is not None:
                me._bound(frame)
            return result

        def enter_again(self: Any) -> Any:
            me._again += 1
            return plain_enter(self)

        def leave_again(self: Any, *args: Any) -> Any:
            me._again -= 1
            return plain_leave(self, *args)

        hook.__init__, hook.__exit__ = init, leave
        second.__enter__, second.__exit__ = enter_again, leave_again

    def _join(self, hook: Any) -> None:
        """Let what passes `hook` be an entry, too."""
        plain_pack, plain_unpack = hook.pack_hook, hook.unpack_hook
        hook.gradfix = frame = _Frame()

        def pack(tensor: Any) -> Any:
            packed = plain_pack(tensor)
            return packed if self.r.saves.off else self._saved(frame, tensor, packed)

        def unpack(packed: Any) -> Any:
            if type(packed) is not Recomputed:
                return plain_unpack(packed)
            return self._given(packed, plain_unpack)

        hook.pack_hook, hook.unpack_hook = pack, unpack

    def _saved(self, frame: _Frame, tensor: Any, packed: Any) -> Recomputed:
        r, entry = self.r, Recomputed()
        with torch._C.DisableTorchFunction():
            entry.node, entry.version = _sequence() - 1, tensor._version
            entry.fate = entry.freed = entry.again = None
            entry.time, entry.maker = r.clock.now, number_of_maker(tensor)
            entry.tensor = tensor.detach() if entry.output else tensor
            entry.packed, entry.frame = packed, frame
            r.saves.add((entry,))
            r.saves.keep_if_written(entry)
        frame.entries.append(weakref.ref(entry))
        return entry

    def _given(self, entry: Recomputed, plain: Any) -> Any:
        """What a backward is given. What the function's second run gives it is what plain PyTorch would, be it right or
        not; where that is not asked for, it is not run again, for it may print, or count."""
        saves, frame, fate = self.r.saves, entry.frame, entry.fate
        if frame.walk != self._walk:
            fates = [e.fate for e in frame.living()]
            frame.places = {f.place for f in fates if f is not None and f.time is not None}
            frame.walk = self._walk
        places = frame.places
        if saves.used is not None:
            saves.used.append(entry)
            self._asked.append(entry)
            again = plain(entry.packed)
            if not places:
                return again
            entry.again = again
        elif places and self._as_plain(entry, places):
            return plain(entry.packed) if entry.again is None else entry.again
        if fate is not None and fate.value is not None:
            return fate.value
        if entry.tensor is GONE:
            return plain(entry.packed) if entry.again is None else entry.again
        return entry.tensor

    def _as_plain(self, entry: Recomputed, places: set[Any]) -> bool:
        place = self.r.saves.as_plain
        if place is None or place == EVERYWHERE:
            return place is not None
        fate = entry.fate
        if fate is not None and fate.time is not None:
            return bool(fate.place == place)
        return places == {place}

    def _bound(self, frame: _Frame) -> None:
        """The function has ended: from now on it is parameters that may be overwritten. What was saved with them is
        kept, for as much as there is room: then the program's own run is followed, whatever is written."""
        living = frame.living()
        frame.size = sum({e.address: e.tensor.nbytes for e in living if e.maker != NOBODY}.values())
        self._kept = [ref for ref in (*self._kept, weakref.ref(frame)) if ref() is not None]
        if sum(f.size for ref in self._kept if (f := ref()) is not None) <= BUDGET:
            return
        self.r.note_once(FULL)
        frame.size = 0
        for entry in living:
            if entry.fate is None or entry.fate.time is None:
                entry.tensor = GONE

    def walked(self) -> None:
        """A backward of the program's own begins."""
        self._walk += 1
        self._asked.clear()

    def saved(self) -> dict[int, list[Recomputed]]:
        """node -> what it saved, of those that this backward has asked for."""
        found: dict[int, list[Recomputed]] = {}
        for entry in self._asked:
            found.setdefault(entry.node, []).append(entry)
        return found
