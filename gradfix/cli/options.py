"""Options that commands share, and the way from their words to settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from gradfix.cli.declared import Ended, Option
from gradfix.report import formats

if TYPE_CHECKING:
    from gradfix.baseline import Baseline
    from gradfix.config import Config
    from gradfix.report.terminal import Terminal

NOTHING, FAULTS, FAILED, INTERRUPTED, PIPE = 0, 1, 2, 130, 141

Select = Annotated[
    list[str] | None,
    Option("--select", metavar="KIND", help="Only these kinds of fault (again, or with commas)."),
]
Ignore = Annotated[list[str] | None, Option("--ignore", metavar="KIND", help="Not these kinds of fault.")]
Format = Annotated[formats.Format, Option("--output-format", help="How the report is written.")]
BaselineOption = Annotated[
    Path | None,
    Option("--baseline", metavar="FILE", help="Report only the faults that this file does not know."),
]
UpdateBaseline = Annotated[
    bool,
    Option("--update-baseline", metavar="", help="Make that file know every fault there is now."),
]
ForceExclude = Annotated[
    bool,
    Option("--force-exclude", metavar="", help="Leave out what the project excludes even where it is named."),
]
Python = Annotated[
    str | None,
    Option(
        "--python",
        metavar="PATH",
        help="The interpreter that runs the script [dim](default: this one)[/dim].",
    ),
]
Steps = Annotated[
    int | None,
    Option(
        "--steps",
        metavar="N",
        min=1,
        help="Stop after so many steps of every optimizer [dim](default: 3)[/dim].",
    ),
]
Timeout = Annotated[
    float | None,
    Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="Stop a run after so many seconds; where one took all of them, those after it get as much, together "
        "[dim](default: 120)[/dim].",
    ),
]
Seed = Annotated[int, Option("--seed", metavar="N", help="Seed of random, numpy and torch.")]
Sandbox = Annotated[
    Literal["auto", "strict", "off"] | None,
    Option(
        "--sandbox",
        help="What stands between the script and this machine: the best there is, only what holds against "
        "hostile code, or nothing [dim](default: auto; strict with --prove)[/dim].",
        show_default=False,
    ),
]
Verbose = Annotated[
    int,
    Option(
        "--verbose",
        "-v",
        metavar="",
        count=True,
        show_default=False,
        help="Also every number, and what the script printed.",
    ),
]
Quiet = Annotated[
    bool, Option("--quiet", "-q", metavar="", help="The faults alone: no progress, no closing line.")
]
ConfigOption = Annotated[
    list[str] | None,
    Option(
        "--config",
        metavar="FILE|'KEY = VALUE'",
        help="A configuration file instead of the nearest one, or one setting on top of it.",
    ),
]
Isolated = Annotated[bool, Option("--isolated", metavar="", help="Look for no configuration file.")]
ShowSettings = Annotated[
    bool,
    Option("--show-settings", metavar="", help="Show what would be done with, and who says so."),
]


def configuration(paths: list[str] | None, config: list[str] | None, isolated: bool, **given: Any) -> Config:
    """The settings for what lies at the first of `paths`, the command line's own on top."""
    from gradfix.config import ConfigError, configured

    finite("--timeout", given.get("timeout"))
    first = Path(next((p for p in paths or () if p != "-"), "."))
    try:
        found = configured(first if first.is_dir() else first.parent, config or (), isolated)
    except ConfigError as problem:
        fail(str(problem))
    return found.under("the command line", given)


def finite(option: str, value: float | None) -> None:
    """Refuse infinity, which is a number to typer."""
    if value == float("inf"):
        fail(f"{option} must be a finite number, not inf")


def seeded(seed: int) -> int:
    """`seed`, if torch takes it."""
    if not -(2**63) <= seed < 2**64:
        fail(f"--seed must be at least -2**63 and less than 2**64, not {seed}")
    return seed


def known_faults(file: Path | None, update: bool) -> Baseline | None:
    """The faults that are not to be reported again; none yet where the file is to be made."""
    from gradfix.baseline import Baseline, BaselineError

    if file is None:
        return fail("--update-baseline: name the file with --baseline FILE") if update else None
    if update and not file.exists():
        return Baseline(file)
    try:
        return Baseline.load(file)
    except BaselineError as problem:
        fail(str(problem))


def show_settings(config: Config) -> int:
    """Every setting with the place that says so."""
    for line in config.show():
        print(line)
    return NOTHING


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kinds(given: list[str] | None) -> tuple[str, ...]:
    """Kinds of fault, given again or with commas."""
    from gradfix.suppress import REPORTED

    return known("kind", given, list(REPORTED))


def known(what: str, given: list[str] | None, known: list[str]) -> tuple[str, ...]:
    """Names given again or with commas, each one known; else a sentence with the nearest right one."""
    from gradfix.wording import nearest

    names = [name.strip() for words in given or () for name in words.split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = f"; they are {', '.join(known)}" if what == "verdict" else " (gradfix rules lists them)"
            fail(f"there is no {what} {name!r}{nearest(name, known) or hint}")
    return tuple(dict.fromkeys(names))


def failed(terminal: Terminal, sentence: str, detail: str = "") -> int:
    """Say why the work could not be done; gives the exit code."""
    terminal.error(sentence, detail)
    return FAILED


def refuse_empty(paths: Iterable[str]) -> None:
    """Leave where a path is empty, as a variable of a shell's may be: it would be taken for the working directory."""
    if "" in paths:
        fail("an empty path names nothing: there is no such file (. is the directory that this is called in)")


def say(sentence: str) -> None:
    """A sentence of gradfix's own, beside what is reported."""
    print(f"gradfix: {sentence}", file=sys.stderr)


def fail(sentence: str, detail: str = "") -> NoReturn:
    """Say why the work could not be done, and leave."""
    from gradfix.report.terminal import Terminal

    raise Ended(failed(Terminal(), sentence, detail))
