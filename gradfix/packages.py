"""The packages that hold codemods: found by their entry points, and imported from where they were installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Found = TypeVar("Found")

GROUP = "gradfix.codemods"


class CodemodError(Exception):
    """An installed codemod can't be used, or does what it did not declare: a bug of its own, never of the script it
    looked at."""


def unique(named: Iterable[tuple[str, str, Found]]) -> tuple[Found, ...]:
    """What is found, in order of its names; each comes with its name and where it was found.

    Raises CodemodError where two have one name.
    """
    found: dict[str, tuple[str, Found]] = {}
    for name, where, each in named:
        if name in found:
            raise CodemodError(f"{found[name][0]} and {where} both have a codemod {name}")
        found[name] = where, each
    return tuple(found[name][1] for name in sorted(found))


def packages() -> tuple[EntryPoint, ...]:
    """The packages that hold codemods, one entry point each."""
    from importlib.metadata import entry_points  # which brings half an email library along

    return tuple(sorted(entry_points(group=GROUP), key=lambda e: e.value))


def outside_here(find: Callable[[str], Found], module: str) -> Found:
    """``find(module)``: ours from where gradfix itself lies, nobody's from a folder of that name in the directory
    the person works in."""
    if module in sys.modules:
        return find(module)
    here, kept = Path.cwd(), list(sys.path)
    elsewhere = [p for p in kept if p and Path(p).resolve() != here]
    sys.path[:] = [str(Path(__file__).resolve().parents[1]), *elsewhere]
    try:
        found = _unless_missing(find, module)
        if found is None:
            sys.path[:] = kept  # a checkout that is only found because it is the working directory
            found = find(module)
        return found
    finally:
        sys.path[:] = kept


def _unless_missing(find: Callable[[str], Found], module: str) -> Found | None:
    try:
        return find(module)
    except ModuleNotFoundError:
        return None


def locations() -> tuple[str, ...]:
    """The folders of those packages."""
    specs = [outside_here(find_spec, entry.module) for entry in packages()]
    return tuple(f for spec in specs if spec for f in spec.submodule_search_locations or ())
