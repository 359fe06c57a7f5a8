"""What the user calls a tensor, a module or an optimizer: looked up in the variables of their frames, when
needed."""

from __future__ import annotations

import dis
import inspect
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from .sites import Sites
from .storages import Storages, address_of

_MOST_ITEMS = 64
_DEEPEST = 3
_LOOKS = 4
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_PASSING, _WORST = 2, 9
_REGISTERED = frozenset(vars(torch.nn.Module()))  # a module's own dictionaries


class _Place(NamedTuple):
    passing: bool  # a loop's variable, or what a function gathers of its arguments
    depth: int  # user frames outwards


class _Owner(NamedTuple):
    """A module or an optimizer and what it is called. Ids are given again: only `of` says whose this is."""

    of: weakref.ref[Any]
    rank: tuple[int, int, int]
    name: str


class Names:
    """Fills in the names of storages that have a number; remembers those of modules and optimizers."""

    def __init__(self, sites: Sites, storages: Storages) -> None:
        self._sites = sites
        self._storages = storages
        self._looks: dict[Any, int] = {}
        self._ranks: dict[int, tuple[int, int, int]] = {}  # storage number -> rank of the name it has
        self._owners: dict[int, _Owner] = {}  # by id
        self._passing: dict[CodeType, frozenset[str]] = {}
        # a function's variable -> the optimizer it held first; None once it has held another
        self._held: dict[tuple[CodeType, str], weakref.ref[Any] | None] = {}

    def look(self, frame: FrameType | None, again: bool = False) -> None:
        """Name what the user's variables in `frame` and outwards hold; the first few times at one place, or
        `again`."""
        key = self._sites.stack(frame)
        if not again:
            self._looks[key] = looks = self._looks.get(key, 0) + 1
            if looks > _LOOKS:
                return
        depth = 0
        while frame is not None:
            # a comprehension's variable names another thing in each round, and nothing behind it
            if self._sites.is_user(frame.f_code) and frame.f_code.co_name not in _COMPREHENSIONS:
                seen: set[int] = set()
                passing = self.loop_variables(frame.f_code) | _gathered(frame.f_code)
                for name, value in sorted(variables_of(frame), key=lambda held: held[0] in passing):
                    handed = isinstance(value, torch.optim.Optimizer) and self._is_handed(frame, name, value)
                    self._visit(name, value, _Place(handed or name in passing, depth), 0, seen)
                depth += 1
            frame = frame.f_back

    def local(self, frame: FrameType | None, tensor: Any) -> str:
        """The variable of the innermost user frame that holds `tensor` or a view of it, or ""."""
        while frame is not None and not self._sites.is_user(frame.f_code):
            frame = frame.f_back
        if frame is None:
            return ""
        address = address_of(tensor)
        near = ""
        for name, value in variables_of(frame):
            if isinstance(value, torch.Tensor):
                if value is tensor:
                    return name
                if address and address_of(value) == address and (not near or len(name) < len(near)):
                    near = name
        return near

    def owner(self, thing: Any, frame: FrameType | None = None) -> str:
        """The name of a module or an optimizer, or ""."""
        found = self._known(thing)
        if found is None and frame is not None:
            self.look(frame, again=True)
            found = self._known(thing)
        return found.name if found else ""

    def _known(self, thing: Any) -> _Owner | None:
        found = self._owners.get(id(thing))
        return found if found is not None and found.of() is thing else None

    def unregistered(self, stepped: Any) -> list[tuple[str, tuple[str, ...], Any]]:
        """What modules hold in plain lists, tuples and dictionaries, layer by layer, where all that is registered of a
        module around them is among `stepped`: its name, how the module holds it, and the leaf."""
        known = [(o.name, m) for o in list(self._owners.values()) if isinstance(m := o.of(), torch.nn.Module)]
        hiding = {id(m): some for _, m in known if (some := list(_hidden(m)))}
        own = {id(p) for p in stepped}
        found: dict[int, tuple[str, tuple[str, ...], Any]] = {}
        for name, module in known if hiding else ():
            registered = [p for p in module.parameters() if p.requires_grad]
            if not registered or any(id(p) not in own for p in registered):
                continue
            for inner, child in module.named_modules():
                for held, p in hiding.get(id(child), ()):
                    if p.requires_grad and id(p) not in own:
                        called = ".".join(x for x in (name, inner, held[0] + held[1]) if x)
                        found.setdefault(id(p), (called, held, p))
        return list(found.values())

    def call(self, tensor: Any, name: str) -> None:
        """Let it be a name of this leaf's."""
        self._offer(name, tensor, _Place(False, 0))

    def _is_handed(self, frame: FrameType, name: str, optimizer: Any) -> bool:
        """Whether a function's variable has held another optimizer, which it does not name, either: ``opt`` of
        ``update(loss, opt)``."""
        if frame.f_code.co_name == "<module>":
            return False
        key = (frame.f_code, name)
        held = self._held.setdefault(key, weakref.ref(optimizer))
        first = held() if held is not None else None
        if first is not None and first is not optimizer:
            self._held[key] = None
            known = self._known(first)
            if known is not None and known.name == name and known.rank[0] < _PASSING:
                self._owners[id(first)] = known._replace(rank=(_PASSING, *known.rank[1:]))
        return self._held[key] is None

    def loop_variables(self, code: CodeType) -> frozenset[str]:
        """What ``for`` binds in `code`: ``net`` of ``for net in (G, D)`` outlives its loop and names whatever
        came last."""
        found = self._passing.get(code)
        if found is None:
            found = self._passing[code] = frozenset(_bound_by_for(code))
        return found

    def _visit(self, name: str, value: Any, place: _Place, depth: int, seen: set[int]) -> None:
        if isinstance(value, torch.Tensor):
            self._offer(name, value, place)
            return
        if id(value) in seen and not isinstance(value, torch.nn.Module):
            return
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            self._module(name, value, place)
        elif isinstance(value, torch.optim.Optimizer):
            if name != "self":  # in a method of its own class
                self._own(name, value, place)
        elif depth >= _DEEPEST:
            return
        elif isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
            fields = getattr(type(value), "_fields", None)
            for i, item in enumerate(value):
                inner = f"{name}.{fields[i]}" if fields and i < len(fields) else f"{name}[{i}]"
                self._visit(inner, item, place, depth + 1, seen)
        elif type(value) is dict and len(value) <= _MOST_ITEMS:
            for key, item in list(value.items()):
                if isinstance(key, (str, int)):
                    self._visit(f"{name}[{key!r}]", item, place, depth + 1, seen)
        elif is_plain_object(value):
            for key, item in list(vars(value).items()):
                self._visit(f"{name}.{key}", item, place, depth + 1, seen)

    def _module(self, name: str, module: Any, place: _Place) -> None:
        for inner, child in module.named_modules():
            self._own(f"{name}.{inner}" if inner else name, child, place)
        for inner, tensor in module.named_parameters():
            self._offer(f"{name}.{inner}", tensor, place)
        for inner, tensor in module.named_buffers():
            self._offer(f"{name}.{inner}", tensor, place)
        for child_name, child in module.named_modules():
            # a hidden state kept on self, the network's own optimizer
            for key, item in list(vars(child).items()):
                if isinstance(item, torch.Tensor):
                    self._offer(".".join(x for x in (name, child_name, key) if x), item, place)
                elif isinstance(item, torch.optim.Optimizer):
                    self._own(".".join(x for x in (name, child_name, key) if x), item, place)

    def _offer(self, name: str, tensor: Any, place: _Place) -> None:
        storage = self._storages.at(address_of(tensor))
        if storage is None:
            return
        rank = _rank(name, place)
        if not storage.name or rank < self._ranks.get(storage.number, (_WORST, 0, 0)):
            storage.name = name
            self._ranks[storage.number] = rank

    def _own(self, name: str, thing: Any, place: _Place) -> None:
        rank = _rank(name, place)
        known = self._known(thing)
        if known is None or rank < known.rank:
            self._owners[id(thing)] = _Owner(weakref.ref(thing), rank, name)


def _hidden(module: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves that attributes hold, and the parameters of layers that they hold as items. A list of a single network
    and one that is in evaluation mode are there so that they are not registered."""
    for key, value in list(vars(module).items()):
        if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
            yield (key, ""), value
        if key in _REGISTERED:
            continue
        items = list(_items(value))
        several = sum(isinstance(item, torch.nn.Module) for _, _, item in items) > 1
        for at, types, item in items:
            if isinstance(item, torch.nn.Parameter):
                yield (key, at, *types), item
            elif isinstance(item, torch.nn.Module) and item.training and several:
                yield from (((key, f"{at}.{inner}", *types), p) for inner, p in item.named_parameters())


def _items(
    value: Any, at: str = "", types: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """What a list, a tuple or a dictionary holds, and those that it holds: where, by way of which types, and what."""
    if type(value) not in (list, tuple, dict) or len(value) > _MOST_ITEMS or len(types) >= _DEEPEST:
        return
    within = (*types, type(value).__name__)
    for key, item in list(value.items() if type(value) is dict else enumerate(value)):
        yield f"{at}[{key!r}]", within, item
        yield from _items(item, f"{at}[{key!r}]", within)


def _rank(name: str, place: _Place) -> tuple[int, int, int]:
    """Outer names before ``self.x`` of a method and those before a loop's variable, names before items, short
    before long, near frames first."""
    inner = _PASSING if place.passing else 1 if name.startswith(("self.", "self[", "_")) else 0
    return (inner, name.count("["), len(name) * 8 + place.depth)


def _gathered(code: CodeType) -> set[str]:
    """``*nets`` and ``**more`` of a function: what its callers have names for."""
    first = code.co_argcount + code.co_kwonlyargcount
    many = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[first : first + many])


def _bound_by_for(code: CodeType) -> Iterator[str]:
    awaited = 0
    for step in dis.get_instructions(code):
        if step.opname == "FOR_ITER":
            awaited = 1
        elif awaited and step.opname == "UNPACK_SEQUENCE":
            awaited += step.arg - 1 if step.arg else 0
        elif awaited and step.opname.startswith("STORE_"):
            awaited -= 1
            if isinstance(step.argval, str):
                yield step.argval
        elif step.opname not in ("EXTENDED_ARG", "CACHE"):
            awaited = 0


def variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The variables of a frame and what they hold, modules and classes left out."""
    for name, value in list(frame.f_locals.items()):
        if not name.startswith("__") and name.isidentifier() and not isinstance(value, (ModuleType, type)):
            yield name, value


def is_plain_object(value: Any) -> bool:
    """An object of a class of the user's, with attributes to look into."""
    module = type(value).__module__ or ""
    if module.split(".")[0] in (
        "torch",
        "builtins",
        "numpy",
        "collections",
        "typing",
        "logging",
        "threading",
        "random",
    ):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)
