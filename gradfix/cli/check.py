"""``gradfix check``: faults from the text alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
    BaselineOption,
    ConfigOption,
    ForceExclude,
    Format,
    Ignore,
    Isolated,
    Quiet,
    Select,
    ShowSettings,
    UpdateBaseline,
    Verbose,
    cores,
    fail,
    kinds,
    known_faults,
    refuse_empty,
    show_settings,
)

CHECK = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix check                          every file below the working directory\n\n"
    "  gradfix check train.py src             files and directories\n\n"
    "  gradfix check --evidence likely src    also what lies behind a test nobody knows\n\n"
    "  gradfix check - --stdin-filename x.py  a buffer\n\n"
    "  gradfix check --baseline known.json    only faults that are new; --update-baseline makes the file"
)


def check(
    paths: Annotated[
        list[str] | None,
        Argument(
            metavar="PATH", help="Files and directories [dim](default: .)[/dim], or - for standard input."
        ),
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    exclude: Annotated[
        list[str] | None,
        Option("--exclude", metavar="PATTERN", help="Files to leave out, as in .gitignore."),
    ] = None,
    force_exclude: ForceExclude = False,
    evidence: Annotated[
        Literal["certain", "likely"],
        Option("--evidence", help="How sure a fault must be to be reported."),
    ] = "certain",
    notes: Annotated[
        bool, Option("--notes", metavar="", help="Notes too: what wastes time or is old style.")
    ] = False,
    output_format: Format = "full",
    statistics: Annotated[
        bool, Option("--statistics", metavar="", help="Only how often each kind was found.")
    ] = False,
    baseline: BaselineOption = None,
    update_baseline: UpdateBaseline = False,
    exit_zero: Annotated[
        bool, Option("--exit-zero", metavar="", help="Exit with 0 though faults were found.")
    ] = False,
    jobs: Annotated[
        int | None,
        Option(
            "--jobs", "-j", metavar="N", min=1, help="Processes that read [dim](default: one a core)[/dim]."
        ),
    ] = None,
    no_cache: Annotated[
        bool, Option("--no-cache", metavar="", help="Read every file anew, and keep nothing.")
    ] = False,
    cache_dir: Annotated[
        Path | None,
        Option(
            "--cache-dir", metavar="DIR", help="Where results are kept [dim](default: .gradfix_cache)[/dim]."
        ),
    ] = None,
    stdin_filename: Annotated[
        str | None, Option("--stdin-filename", metavar="NAME", help="The name of what comes with -.")
    ] = None,
    config: ConfigOption = None,
    isolated: Isolated = False,
    settings: ShowSettings = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """Read the source, run nothing, and say what autograd faults it has.

    What a run would show is found by following the program from its text: who owns which parameters, what each
    operation saves and overwrites. What can't be known from the text is not guessed.
    """
    from gradfix.baseline import BaselineError
    from gradfix.commands.check import Asked, report
    from gradfix.config import ConfigError, Projects
    from gradfix.report import formats

    if statistics and output_format in formats.DOCUMENTS:
        fail(f"--statistics is for people; the {output_format} report holds every diagnostic to count")
    if stdin_filename and "-" not in (paths or ()):
        fail("--stdin-filename names what comes with -, and - was not given")
    # cures are for those who see them
    helped = output_format in formats.CURES and not statistics and not update_baseline
    more = {"notes": notes, "evidence": evidence, "repair": helped}
    refuse_empty(paths or ())
    given = {"select": kinds(select), "ignore": kinds(ignore), "exclude": tuple(exclude or ())}
    projects = Projects(tuple(config or ()), isolated, given, more)
    asked = Asked(
        tuple(paths or ["."]),
        stdin_filename,
        force_exclude,
        jobs or cores(),
        no_cache,
        cache_dir,
    )
    try:
        if settings:
            return show_settings(projects.of(asked.start()))
        known = known_faults(baseline, update_baseline)
        return report(
            asked, projects, output_format, verbose, quiet, statistics, exit_zero, known, update_baseline
        )
    except (ConfigError, BaselineError) as problem:
        fail(str(problem))
