"""A Result in, text out: one module a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradfix.dataclass import dataclass
from gradfix.report.layout import BOXES, Glyphs
from gradfix.report.places import Paths

if TYPE_CHECKING:
    from gradfix.result import Diagnosis, Result


@dataclass(frozen=True, slots=True)
class View:
    """How a report is wanted: names of files, width and glyphs of the output, and what is done with the new
    text (`action`: ``diff`` shows it, ``write`` has written it, ``run`` asked for none). Where nobody looks on
    (`piped`) a diff is one of the files' bytes."""

    paths: Paths
    width: int = 80
    glyphs: Glyphs = BOXES
    verbose: int = 0
    action: str = "diff"
    diff: bool = True
    piped: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line to be written as it is: never wrapped, tabs kept."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """A line of bytes for another program, whatever the output's encoding."""

    data: bytes


def faults(result: Result) -> list[Diagnosis]:
    """The diagnoses above a note: those that decide the exit code."""
    return [d for d in result.diagnoses if d.conflict.severity != "note"]


def shown(result: Result) -> list[Diagnosis]:
    """The diagnoses to report: all but the notes that were not asked for."""
    return [d for d in result.diagnoses if d.status != "note"]
