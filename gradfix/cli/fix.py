"""``gradfix fix`` and ``gradfix run``: what runs a script."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
    NOTHING,
    BaselineOption,
    ConfigOption,
    ForceExclude,
    Format,
    Ignore,
    Isolated,
    Python,
    Quiet,
    Sandbox,
    Seed,
    Select,
    ShowSettings,
    Steps,
    Timeout,
    UpdateBaseline,
    Verbose,
    configuration,
    fail,
    kinds,
    known_faults,
    refuse_empty,
    seeded,
    show_settings,
)
from gradfix.cli.words import codemods, verdicts

if TYPE_CHECKING:
    import typer

FIX = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix fix train.py                       show faults, cures and a diff\n\n"
    "  gradfix fix train.py --write               apply the cures that hold\n\n"
    "  gradfix fix train.py -- --data toy         what follows -- goes to the script\n\n"
    "  gradfix fix train.py --select freed-graph  one kind of fault only\n\n"
    "  gradfix fix train.py --tape run.tape       a run recorded where the data is\n\n"
    "  gradfix fix train.py --traceback err.txt   an error from where it ran\n\n"
    "  gradfix fix - --stdin-filename x.py <x.py  a buffer; --write gives it back"
)
RUN = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix run train.py               every fault of one recorded run\n\n"
    "  gradfix run train.py --steps 50    faults that come late\n\n"
    "  gradfix run train.py --output-format concise -- --epochs 1"
)


def fix(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="PATH", help="Scripts to run and cure, or - for standard input."),
    ] = None,
    diff: Annotated[
        bool,
        Option("--diff", metavar="", help="Show what would change (the default); with --write, what has."),
    ] = False,
    write: Annotated[
        bool, Option("--write", "--fix", metavar="", help="Write the cures into the files.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    codemod: Annotated[
        list[str] | None, Option("--codemod", metavar="NAME", help="Only these cures.")
    ] = None,
    notes: Annotated[
        bool, Option("--notes", metavar="", help="Notes too: what wastes time or is old style.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        Option(
            "--accept",
            metavar="VERDICTS",
            help="Verdicts good enough to apply [dim](default: the first three)[/dim]: "
            "proved, preserved, intended, untried.",
        ),
    ] = None,
    tape: Annotated[
        Path | None, Option("--tape", metavar="FILE", help="Read a recorded run; run nothing.")
    ] = None,
    traceback: Annotated[
        Path | None,
        Option(
            "--traceback",
            metavar="FILE",
            help="What PyTorch said elsewhere (- for standard input); run nothing.",
        ),
    ] = None,
    entry: Annotated[
        list[str] | None,
        Option("--entry", metavar="SCRIPT", help="With a directory: the script of it to run."),
    ] = None,
    prove: Annotated[
        bool,
        Option("--prove", metavar="", help="With a directory: run every script of it that trains."),
    ] = False,
    no_run: Annotated[
        bool,
        Option(
            "--no-run",
            metavar="",
            help="Run nothing: cures come from the text and stay untried; --accept untried applies those that "
            "mean to change nothing in the training. What follows -- are paths.",
        ),
    ] = False,
    force_exclude: ForceExclude = False,
    output_patch: Annotated[
        Path | None,
        Option(
            "--output-patch",
            metavar="FILE",
            help="Write the cures into a file for [bold]gradfix apply[/bold].",
        ),
    ] = None,
    output_format: Format = "full",
    python: Python = None,
    steps: Steps = None,
    timeout: Timeout = None,
    seed: Seed = 0,
    sandbox: Sandbox = None,
    stdin_filename: Annotated[
        str | None, Option("--stdin-filename", metavar="NAME", help="The name of what comes with -.")
    ] = None,
    config: ConfigOption = None,
    isolated: Isolated = False,
    settings: ShowSettings = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """Run a script, say what autograd faults it has, and cure them.

    Every cure is proved: the script runs before and after, and all gradients are compared.
    """
    arguments: tuple[str, ...] = context.obj
    if no_run:  # no script gets arguments: what follows -- are paths, as in `check`
        paths, arguments = [*(paths or []), *arguments], ()
    refuse_empty(paths or ())
    if force_exclude and paths:
        paths = _kept(paths, config, isolated)
        if not paths:
            return NOTHING
    found = configuration(
        [*(entry or []), *(paths or []), *([stdin_filename] if stdin_filename else [])],
        config,
        isolated,
        select=kinds(select),
        ignore=kinds(ignore),
        accept=verdicts(accept),
        python=python,
        steps=steps,
        timeout=timeout,
    )
    if settings:
        return show_settings(found)
    if no_run and (prove or entry):
        fail("--no-run runs nothing, and --prove and --entry say what to run: drop one of them")
    if prove and found.value("python") and not (python or config):
        # it would be started before there is a wall
        fail(
            f"{found.file} names an interpreter, and --prove runs scripts that nobody has named: "
            "name the interpreter here (--python), or leave the file out (--isolated)"
        )
    from gradfix.commands.fix import Entries, Work
    from gradfix.report.terminal import Terminal

    asked = found.settings(
        codemods=codemods(codemod),
        notes=notes,
        arguments=arguments,
        seed=seeded(seed),
        sandbox=sandbox,
        tape=tape,
        traceback=_traceback(traceback),
        run=not no_run,
        careful=no_run,
    )
    entries = Entries(paths or [], entry or [], prove, stdin_filename, found.excluded())
    action: Literal["write", "diff"] = "write" if write else "diff"
    work = Work(asked, action, diff or not write, output_format, verbose, Terminal(quiet))
    return replace(work, output_patch=output_patch).go(entries)


def run(
    context: typer.Context,
    script: Annotated[str, Argument(metavar="SCRIPT", help="The script to run.")],
    select: Select = None,
    ignore: Ignore = None,
    output_format: Format = "full",
    baseline: BaselineOption = None,
    update_baseline: UpdateBaseline = False,
    python: Python = None,
    steps: Steps = None,
    timeout: Timeout = None,
    seed: Seed = 0,
    sandbox: Sandbox = None,
    config: ConfigOption = None,
    isolated: Isolated = False,
    settings: ShowSettings = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """The sanitizer alone: record one run, report every fault, rewrite nothing."""
    refuse_empty([script])
    found = configuration(
        [script],
        config,
        isolated,
        select=kinds(select),
        ignore=kinds(ignore),
        python=python,
        steps=steps,
        timeout=timeout,
    )
    if settings:
        return show_settings(found)
    from gradfix.baseline import BaselineError
    from gradfix.commands.fix import Entries, Work
    from gradfix.report.terminal import Terminal

    asked = found.settings(
        notes=True, arguments=context.obj, seed=seeded(seed), sandbox=sandbox, repair=False
    )
    known = known_faults(baseline, update_baseline)
    work = Work(asked, "run", False, output_format, verbose, Terminal(quiet), known, update_baseline)
    try:
        return work.go(Entries([script]))
    except BaselineError as problem:
        fail(str(problem))


def _kept(paths: list[str], config: list[str] | None, isolated: bool) -> list[str]:
    """The paths that the project they lie in does not exclude; directories leave out for themselves."""
    from gradfix.config import ConfigError, Projects

    projects = Projects(tuple(config or ()), isolated)
    try:
        return [p for p in paths if p == "-" or not projects.excludes(Path(p).absolute())]
    except ConfigError as problem:
        fail(str(problem))


def _traceback(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as problem:
        fail(f"{file}: can't be read ({(problem.strerror or str(problem)).lower()})")
    text = raw.decode("utf-8", "replace")
    return text if text.strip() else fail(f"--traceback {file}: there is nothing in it")
