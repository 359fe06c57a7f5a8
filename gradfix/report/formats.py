"""Which formats there are, and the module each is in: lines come with every result, a document at the end of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from gradfix.report import Line, View
    from gradfix.result import Problem, Result

Format = Literal["full", "concise", "github", "json", "sarif", "gitlab", "junit"]
DOCUMENTS = ("json", "sarif", "gitlab", "junit")
LINES = ("concise", "github")
CURES = ("full", "json", "sarif")  # those that show cures: looking for some takes longer than all the rest


def lines(format_: str, result: Result, view: View) -> Iterator[Line]:
    """A result in one of LINES."""
    render = cast(
        "Callable[[Result, View], Iterator[Line]]", import_module(f"gradfix.report.{format_}").render
    )
    return render(result, view)


def document(format_: str, results: Iterable[Result], view: View, stopped: Problem | None = None) -> str:
    """All results in one of DOCUMENTS; `stopped` says why there are no more."""
    write = cast("Callable[..., str]", import_module(f"gradfix.report.{format_}").document)
    return write(list(results), view, stopped)
