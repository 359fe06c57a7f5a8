"""Terms of a loss that were computed past torch: ``lam * np.mean(h.detach().numpy() ** 2)``.

Neither an array nor a number bears a mark, and an array that did would not be the one the script expects. That a value
was taken off its graph is seen, and so is what is added; that this was made of that is read in the text (see flows).
"""

from __future__ import annotations

import ast
import linecache
import sys
from typing import Any

import torch

from .flows import FUNCTION, Text
from .numbers import number_of
from .sites import Key
from .unstepped import user_files

_MOST = 64  # places at which values are taken
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
_HOWS = frozenset(("detach", "data", "item", "numpy"))


class _Cut:
    """What was last taken off its graph at one place: its node (``~storage`` of a leaf), when, the tensor, and the time
    of the Cut where one was told."""

    __slots__ = ("node", "ref", "time", "told")

    def __init__(self, node: int, time: int, ref: Any, told: int | None) -> None:
        self.node, self.time, self.ref, self.told = node, time, ref, told


class Computed:
    """`living` are by their place the values taken last; empty in a run that takes none. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.living: dict[Key, _Cut] = {}
        self._texts: dict[str, Text] = {}
        self._ways: dict[tuple[Key, Key], int] = {}
        self._ends: dict[tuple[Key, str], Any] = {}
        self._met: dict[Key, float] = {}

    def taken(self, how: str, tensor: Any, frame: Any, told: int | None) -> None:
        """`tensor` is taken off its graph in `frame`, by the Cut of the time `told`."""
        if how not in _HOWS or sys.version_info < (3, 11):
            return
        r, place = self.r, self.r.sites.stack(frame)
        known = self.living.get(place)
        if known is not None and known.time > r.kept.stepped:
            return  # the first of a pass is told whole (see Recorder.cut)
        if place and (known is not None or len(self.living) < _MOST):
            storage = r.storages.of(tensor)
            node = tensor.grad_fn._sequence_nr() if tensor.grad_fn is not None else ~storage.number
            self.living[place] = _Cut(node, r.clock.tick(), r.tape.ref(storage, tensor), told)

    def met(self, name: str, args: Any, made: Any, stack: Key) -> None:
        """A call of `name` at `stack` made a tensor with a graph of the first two of `args`: of a number, maybe."""
        if not stack:
            return
        operand = args[1]
        if isinstance(operand, torch.Tensor):
            if not self._text(stack).legacy:
                return
            unseen = [at for at in (0, 1) if self._is_unseen(args[at])]
            if len(unseen) != 1:
                return
            operand = float(args[unseen[0]].detach())
            name = name if unseen[0] else "__radd__"
        if not number_of(operand) or (end := self._end(stack, name)) is None:
            return
        before = self._met.setdefault(stack, number_of(operand))
        if before == number_of(operand):
            return  # the first pass, or a number that is the same in all
        for cut, way in self._behind(stack, end):
            self.r.added_number(cut.ref, made, cut.node, stack, way == FUNCTION)

    def _is_unseen(self, value: Any) -> bool:
        """Whether it is a tensor of one number of which nothing is known: ``torch.FloatTensor([number])`` is a call
        that comes to no mode."""
        known = not isinstance(value, torch.Tensor) or value.requires_grad or value.numel() != 1
        return not known and value.is_floating_point() and not self.r.constants.nodes_of(value)

    def filled(self, tensor: Any, stack: Key) -> None:
        """A call at `stack` made `tensor` of an array, numbers, or a list of such."""
        if not stack or (end := self._end(stack, "")) is None:
            return
        found = self._behind(stack, end)
        if found:
            functions = {cut.node for cut, way in found if way == FUNCTION}
            told = frozenset(cut.told for cut, _ in found if cut.told is not None)
            self.r.constants.computed(tensor, frozenset(cut.node for cut, _ in found), functions, told)

    def _end(self, stack: Key, name: str) -> Any:
        """The operand that is no tensor, in the text of a call at `stack`; None for a number that is written there."""
        key = stack[:2], name
        if key not in self._ends:
            self._ends[key] = _operand(self._node(stack), name)
        return self._ends[key]

    def _behind(self, stack: Key, end: ast.AST) -> list[tuple[_Cut, int]]:
        """What was taken, in this pass, of which `end` is made: in the same call of its function, or in one that this
        has made."""
        found = []
        for place, cut in self.living.items():
            if cut.time <= self.r.kept.stepped:
                continue
            inner = len(place) - len(stack)
            within = inner >= 0 and place[inner] == stack[0] and place[inner + 2 :] == stack[2:]
            if way := (within and self._way(place, stack, end)) or self._kept(place, stack, end):
                found.append((cut, way))
        return found

    def _way(self, place: Key, stack: Key, end: ast.AST) -> int:
        key = place, stack
        if key not in self._ways:
            inner, ways, start = len(place) - len(stack), [], None
            others = {node for node in self._ends.values() if node is not None}
            for at in range(0, inner + 2, 2):
                start = start or self._node(place[at:])
                if at < inner and self.r.sites.resolve(place[at : at + 2])[0][5].endswith(_COMPREHENSIONS):
                    continue  # part of the function around it, in the text
                text = self._text(place[at:])
                ways.append(text.way(start, end if at == inner else None, others) if start else 0)
                start = None
            self._ways[key] = max(ways) if all(ways) else 0
        return self._ways[key]

    def _kept(self, place: Key, stack: Key, end: ast.AST) -> int:
        """The way by an attribute, which another function reads than where the value was taken."""
        key = place[:2], stack[:2]
        if key not in self._ways:
            text, start = self._text(place), self._node(place)
            others = {node for node in self._ends.values() if node is not None}
            apart = start and text is self._text(stack) and text.function(start) is not text.function(end)
            self._ways[key] = text.way(start, end, others) if apart else 0
        return self._ways[key]

    def _text(self, stack: Key) -> Text:
        return self._of_file(self.r.sites.resolve(stack[:2])[0][0])

    def _of_file(self, file: str) -> Text:
        if file not in self._texts:
            sites = self.r.sites
            self._texts[file] = Text(
                sites.text(file),
                sites.lines(file),
                lambda name: _spoken_of(name, file),
                lambda name: self._defining(name, file),
            )
        return self._texts[file]

    def _defining(self, function: str, file: str) -> list[Text]:
        """The other files that define a function."""
        return [self._of_file(each) for each in sorted(user_files() - {file}) if _defines(each, function)]

    def _node(self, stack: Key) -> Any:
        return self._text(stack).node(self.r.sites.resolve(stack[:2])[0][1:5])


def _spoken_of(attribute: str, file: str) -> bool:
    """Whether some other file of the user's that is loaded speaks of the attribute."""
    others = (each for each in user_files() if each != file)
    return any(f".{attribute}" in "".join(linecache.getlines(each)) for each in others)


def _defines(file: str, function: str) -> bool:
    return f"def {function}(" in "".join(linecache.getlines(file))


def _operand(node: Any, name: str) -> Any:
    """What a call, or a sum that Python calls `name` for, is given beside a tensor."""
    if isinstance(node, ast.AugAssign):
        found: Any = node.value
    elif isinstance(node, ast.BinOp):
        found = node.left if name == "__radd__" else node.right
    elif isinstance(node, ast.Call) and node.args:
        found = node.args[-1 if name else 0]
    else:
        return None
    return None if isinstance(found, ast.Constant) else found
