"""What one reading of an entry takes one way, and could take another: whoever runs the program decides it.

A reading follows one path. Where the program itself says what else there is (the values that an option of the command
line is compared with, a switch of a layer's constructor), the entry is read again, with one such thing taken otherwise;
and where it stops at what PyTorch took away, again as if that were still there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal

from gradfix.dataclass import dataclass
from gradfix.read.values import Unknown

MOST = 4  # readings of one entry beside the first

Kind = Literal["option", "switch", "activations", "outdated", "test"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing taken otherwise. It is `sure` where the program offers it, and what happens then happens for certain
    when that is asked for."""

    kind: Kind
    name: str = ""
    value: Any = None
    sure: bool = False


@dataclass(slots=True)
class Open:
    """What could have been otherwise in a reading, as it was met."""

    # the values that an option is compared with
    options: dict[str, dict[Any, None]] = field(default_factory=dict)
    others: dict[Variant, None] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)  # what each is not unless somebody asks for it
    looked: set[int] = field(default_factory=set)  # tests, by id of the node

    def met(self, *values: Any) -> None:
        """These were compared with each other."""
        for option in values:
            if isinstance(option, Option | Asked):
                for value in values:
                    if isinstance(value, str) and value is not option and value != option:
                        self.options.setdefault(option.name, {})[str(value)] = None

    def choose(self, option: str, choices: Iterable[Any]) -> None:
        """An option that nothing is taken for may be one of these, the first at last: it is what most begin with."""
        known = [c for c in choices if isinstance(c, str | int)]
        self.options.setdefault(option, {}).update(dict.fromkeys([*known[1:], *known[:1]]))

    def add(self, variant: Variant) -> None:
        self.others[variant] = None

    def variants(self) -> list[Variant]:
        """Each of them, as many as are read."""
        found = [Variant("option", name, v, True) for name, values in self.options.items() for v in values]
        return [*self.others, *found][:MOST]


class Option(str):
    """A string from the command line."""

    name: str

    def __new__(cls, value: str, name: str) -> Option:
        made = super().__new__(cls, value)
        made.name = name
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Asked(Unknown):
    """What has to be given on the command line."""

    name: str = ""
