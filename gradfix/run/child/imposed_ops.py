"""What is done to a run op by op: tensors kept or marked where they are made, draws keyed, writes left out.

Standard library and torch only; see impose.py.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .pretend import DATA, about, foreign, lines, user_line

if TYPE_CHECKING:
    from .impose import Imposer

MADE = "gradfix made in a place"
SET_DATA = "aten.set_"  # as the tape calls it


class Keep(TorchFunctionMode):
    """retain_grad() of every tensor made in some lines of the user's, or a leaf instead of it."""

    def __init__(self, sites: Any) -> None:
        super().__init__()
        self.sites = {(os.path.realpath(file), line): how for file, line, how in sites}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else (result,)
        for tensor in made:
            inner = isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf
            how = self.sites.get(user_line(), "") if inner else ""
            if how == "keep":
                tensor.retain_grad()
            elif how == "leaf" and tensor is result:
                return tensor.detach().requires_grad_()
        return result


class Recorded(TorchFunctionMode):
    """Records the graph of what is called in some lines of the user's, whatever turns gradients off there."""

    def __init__(self, sites: Any) -> None:
        super().__init__()
        self.sites = lines(sites)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        switches = func is torch._C._set_grad_enabled  # (by no_grad itself)
        if torch.is_grad_enabled() or switches or not self._here():
            return func(*args, **(kwargs or {}))
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))

    def _here(self) -> bool:
        frame: Any = sys._getframe(2)
        while frame is not None:
            if (os.path.realpath(frame.f_code.co_filename), frame.f_lineno) in self.sites:
                return True
            frame = frame.f_back
        return False


class Place:
    """A place of the user's program as its innermost frames: [file, first line, last line], outermost first."""

    def __init__(self, frames: Any) -> None:
        self.frames = [(os.path.realpath(f), a, b) for f, a, b in frames]

    def here(self) -> bool:
        """Whether the program is there now."""
        found: list[tuple[str, int]] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(found) < len(self.frames):
            if not foreign(frame.f_code.co_filename):
                found.append((os.path.realpath(frame.f_code.co_filename), frame.f_lineno))
            frame = frame.f_back
        found.reverse()
        return len(self.frames) == len(found) and all(
            f == g and a <= n <= b
            for (f, a, b), (g, n) in zip(self.frames, found)  # noqa: B905
        )


class Made(TorchFunctionMode):
    """Marks the nodes of every tensor that is made in some places of the user's program."""

    def __init__(self, places: Any, mark: str = MADE) -> None:
        super().__init__()
        self.places = [Place(place) for place in places]
        self.mark = mark

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else (result,)
        nodes = [x.grad_fn for x in made if isinstance(x, torch.Tensor) and x.grad_fn is not None]
        if nodes and any(place.here() for place in self.places):
            for node in nodes:
                marks: Any = node.metadata
                marks[self.mark] = True
        return result


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keyed random draws, and writes left out."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import torch._dynamo, which takes as long as torch, to keep it off this mode."""
        return False

    def __init__(self, imposer: Imposer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.imposer = imposer
        self.draws: Any = imposer.request.get("draws")
        self.constant = set((self.draws or {}).get("constant", ()))
        self.write: Any = imposer.request.get("write")
        self.round = -1
        self.met: dict[str, int] = {}  # draws of a key in this round
        self.counts: dict[str, list[int]] = {}  # key -> draws per round
        self.writes: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            self.draws is not None
            and torch.Tag.nondeterministic_seeded in func.tags
            and not kwargs.get("generator")
        ):
            self._seed(func, args, kwargs)
        elif self._left_out(func, args):
            return args[0]
        return func(*args, **kwargs)

    def _seed(self, func: Any, args: Any, kwargs: Any) -> None:
        seed = self.seed_of("{} {}".format(func, ",".join(about(x) for x in args)))
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)

    def seed_of(self, key: str) -> int:
        """The seed of the coming draw of `key`."""
        number = self.imposer.rounds.number
        if number != self.round:
            self.round, self.met = number, {}
        index = self.met.get(key, 0)
        self.met[key] = index + 1
        counts = self.counts.setdefault(key, [])
        counts.extend([0] * (number + 1 - len(counts)))
        counts[number] += 1
        if key in self.constant:
            index, number = 0, -1 if self.draws.get("everywhere") else number
        return zlib.crc32(f"{number}|{key}|{index}".encode())

    def _left_out(self, func: Any, args: Any) -> bool:
        """Whether the op is a write that is not to be made."""
        if not _writes_first(func, args):
            return False
        if self.imposer.leaves and args[0].untyped_storage().data_ptr() in self.imposer.leaves:
            return True
        if self.imposer.depth:
            return False
        if self.imposer.request.get("clips") and self.imposer.backwards and self._of_parameter(args[0]):
            self._count(func, args)
            return True
        return self.write is not None and self._suppressed(func, args)

    def _of_parameter(self, target: Any) -> bool:
        where = target.untyped_storage().data_ptr()
        return any(
            p.untyped_storage().data_ptr() == where for _, _, p in self.imposer.optimizers.parameters()
        )

    def _count(self, func: Any, args: Any) -> None:
        what = "{} {}".format(func, ",".join(about(x) for x in args[1:]))
        self.writes[what] = self.writes.get(what, 0) + 1

    def _suppressed(self, func: Any, args: Any) -> bool:
        op, name = self.write["op"], str(func).rpartition(".")[0]
        # the tape knows the call (aten.embedding), this mode what it comes to (aten.embedding_renorm_)
        return (name == op or name.startswith(op + "_")) and self._meant(func, args)

    def leave_data(self) -> None:
        """Leave out ``x.data = y`` where that is the write: no op of PyTorch's comes to this mode then."""
        if self.write is None or self.write["op"] != SET_DATA:
            return

        def put(tensor: Any, value: Any) -> None:
            if foreign(sys._getframe(1).f_code.co_filename) or not self._meant(SET_DATA, (tensor, value)):
                DATA.__set__(tensor, value)

        torch.Tensor.data = property(DATA.__get__, put)  # type: ignore

    def _meant(self, func: Any, args: Any) -> bool:
        """Whether the write to the first of `args` is the one to be left out; it is counted then."""
        target = args[0]
        wanted = self.write.get("parameters")
        if wanted is not None:
            where = target.untyped_storage().data_ptr()
            mine = [
                [k, j]
                for k, j, p in self.imposer.optimizers.parameters()
                if p.untyped_storage().data_ptr() == where
            ]
            if not any(x in wanted for x in mine):
                return False
        elif list(target.shape) != self.write.get("shape"):
            return False
        self._count(func, args)
        return True


def _writes_first(func: Any, args: Any) -> bool:
    """Whether the op writes into its first argument."""
    if not args or not isinstance(args[0], torch.Tensor):
        return False
    into = func._schema.arguments[0].alias_info
    return into is not None and bool(into.is_write)
