"""The command line: words to calls, results to exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from gradfix import __version__

if TYPE_CHECKING:
    from gradfix.report.terminal import Terminal

# Heavy modules (libcst, the pipeline, rich) are imported by the commands that need them: --help stays quick.

# click's ClickException: older releases of typer import click, newer ones ship a copy of it
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
NOTHING, FAULTS, FAILED, INTERRUPTED, PIPE = 0, 1, 2, 130, 141

app = typer.Typer(
    name="gradfix",
    help="Find autograd faults in PyTorch training scripts, cure them, and prove the cure by running it.",
    epilog=(
        "[bold]Begin with[/bold]\n\n"
        "  gradfix fix train.py                      what is wrong, and a cure\n\n"
        "  gradfix fix train.py --write              the same, applied\n\n"
        "  gradfix fix train.py -- --epochs 1        with arguments of the script's own\n\n"
        "  python train.py 2>&1 | gradfix explain -  which fault is this error?\n\n"
        "Scripts run in a child process, in a scratch view of your project, for three steps of every "
        "optimizer. "
        "Exit codes: 0 nothing wrong (or all of it written), 1 faults found or left, 2 gradfix could not "
        "do its work."
    ),
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="KIND", help="Only these kinds of fault (again, or with commas)."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="KIND", help="Not these kinds of fault.")
]
Format = Annotated[
    Literal["full", "concise", "json"], typer.Option("--output-format", help="How the report is written.")
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The interpreter that runs the script [dim](default: this one)[/dim].",
    ),
]
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", min=1, help="Stop after so many steps of every optimizer.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Stop after so many seconds.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of random, numpy and torch.")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        metavar="",
        count=True,
        show_default=False,
        help="Also every number, and what the script printed.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="The faults alone: no progress, no closing line.")
]


def _version(value: bool) -> None:
    if value:
        print(f"gradfix {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", metavar="", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


@app.command(
    epilog=(
        "[bold]Examples[/bold]\n\n"
        "  gradfix fix train.py                       show faults, cures and a diff\n\n"
        "  gradfix fix train.py --write               apply the cures that hold\n\n"
        "  gradfix fix train.py -- --data toy         what follows -- goes to the script\n\n"
        "  gradfix fix train.py --select freed-graph  one kind of fault only\n\n"
        "  gradfix fix train.py --tape run.tape       a run recorded where the data is\n\n"
        "  gradfix fix - --stdin-filename x.py <x.py  a buffer; --write gives it back"
    )
)
def fix(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Scripts to run and cure, or - for standard input."),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", metavar="", help="Show what would change (the default).")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", "--fix", metavar="", help="Write the cures into the files.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    codemod: Annotated[
        list[str] | None, typer.Option("--codemod", metavar="NAME", help="Only these cures.")
    ] = None,
    notes: Annotated[
        bool, typer.Option("--notes", metavar="", help="Notes too: what wastes time or is old style.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="VERDICTS",
            help="Verdicts good enough to apply [dim](default: all three)[/dim]: "
            "proved, preserved, intended.",
        ),
    ] = None,
    tape: Annotated[
        Path | None, typer.Option("--tape", metavar="FILE", help="Read a recorded run; run nothing.")
    ] = None,
    entry: Annotated[
        list[str] | None,
        typer.Option("--entry", metavar="SCRIPT", help="With a directory: the script of it to run."),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option("--prove", metavar="", help="With a directory: run every script of it that trains."),
    ] = False,
    output_format: Format = "full",
    python: Python = None,
    steps: Steps = 3,
    timeout: Timeout = 120.0,
    seed: Seed = 0,
    stdin_filename: Annotated[
        str | None, typer.Option("--stdin-filename", metavar="NAME", help="The name of what comes with -.")
    ] = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """Run a script, say what autograd faults it has, and cure them.

    Every cure is proved: the script runs before and after, and all gradients are compared.
    """
    from gradfix.report.terminal import Terminal
    from gradfix.result import Settings
    from gradfix.work import Entries, Work

    settings = Settings(
        select=_kinds(select),
        ignore=_kinds(ignore),
        codemods=_codemods(codemod),
        notes=notes,
        arguments=context.obj,
        python=python,
        steps=steps,
        timeout=timeout,
        seed=seed,
        tape=tape,
    )
    if accept:
        settings = replace(settings, accept=_verdicts(accept))
    entries = Entries(paths or [], entry or [], prove, stdin_filename)
    return Work(
        settings, "write" if write else "diff", diff or not write, output_format, verbose, Terminal(quiet)
    ).go(entries)


@app.command(
    epilog=(
        "[bold]Examples[/bold]\n\n"
        "  gradfix run train.py               every fault of one recorded run\n\n"
        "  gradfix run train.py --steps 50    faults that come late\n\n"
        "  gradfix run train.py --output-format concise -- --epochs 1"
    )
)
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script to run.")],
    select: Select = None,
    ignore: Ignore = None,
    output_format: Format = "full",
    python: Python = None,
    steps: Steps = 3,
    timeout: Timeout = 120.0,
    seed: Seed = 0,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> int:
    """The sanitizer alone: record one run, report every fault, rewrite nothing."""
    from gradfix.report.terminal import Terminal
    from gradfix.result import Settings
    from gradfix.work import Entries, Work

    settings = Settings(
        select=_kinds(select),
        ignore=_kinds(ignore),
        notes=True,
        arguments=context.obj,
        python=python,
        steps=steps,
        timeout=timeout,
        seed=seed,
        repair=False,
    )
    return Work(settings, "run", False, output_format, verbose, Terminal(quiet)).go(Entries([script]))


@app.command(epilog="[bold]Example[/bold]\n\n  gradfix record train.py -o run.tape -- --data /data/full")
def record(
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script to run.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the tape goes.")],
    python: Python = None,
    steps: Steps = 3,
    timeout: Timeout = 120.0,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> int:
    """Record one run into a file, to be read elsewhere with [bold]fix --tape[/bold]."""
    from gradfix.repair import project_root
    from gradfix.report.terminal import Terminal
    from gradfix.run import InterpreterError, Run
    from gradfix.run.zygote import Zygote
    from gradfix.source import Source, SourceError
    from gradfix.tape import write_tape

    terminal = Terminal(quiet)
    entry = Path(script).resolve()
    try:
        Source.read(script).check()
        with terminal.progress(entry.name) as say, Zygote(python) as zygote:
            say("recording a run")
            outcome = zygote.run(
                Run(
                    entry,
                    project_root(entry),
                    Path.cwd(),
                    arguments=context.obj,
                    steps=steps,
                    timeout=timeout,
                    seed=seed,
                )
            )
        if outcome.tape is None:
            return _failed(
                terminal,
                f"{script}: nothing was recorded ({outcome.detail or outcome.ended})",
                outcome.stderr,
            )
        write_tape(outcome.tape, output)
    except (SourceError, InterpreterError) as problem:
        return _failed(terminal, str(problem), getattr(problem, "detail", ""))
    except OSError as problem:
        return _failed(terminal, f"{output}: can't be written ({(problem.strerror or str(problem)).lower()})")
    if not quiet:
        terminal.err.print(
            f"{len(outcome.tape.events)} events of {script} in {output} (the run: {outcome.ended})."
        )
    return NOTHING


@app.command(
    epilog=(
        "[bold]Examples[/bold]\n\n  gradfix explain freed-graph\n\n  python train.py 2>&1 | gradfix explain -"
    )
)
def explain(
    name: Annotated[str, typer.Argument(metavar="KIND|CODEMOD|-", help="What to explain; - reads an error.")],
) -> int:
    """The page of a fault or a cure; or, from standard input, which fault a PyTorch error shows."""
    from gradfix import explain as pages
    from gradfix.report.terminal import Terminal

    terminal = Terminal()
    if name == "-":
        from gradfix.messages import recognise
        from gradfix.report.finding import render

        finding = recognise(sys.stdin.buffer.read().decode("utf-8", "replace"))
        if finding is None:
            return _failed(terminal, "there is no error in that; pipe in what Python printed (2>&1)")
        terminal.show(render(finding, terminal.out.width))
        return NOTHING if finding.autograd else FAULTS
    text = pages.page(name)
    if text is None:
        return _failed(
            terminal,
            f"there is no kind or codemod {name!r}{pages.nearest(name, pages.names())} (gradfix rules)",
        )
    if terminal.out.is_terminal:
        from rich.markdown import Markdown

        terminal.out.print(Markdown(text), width=min(terminal.out.width, 100))
    else:
        terminal.write(text.rstrip())
    return NOTHING


@app.command()
def rules(
    output_format: Annotated[
        Literal["full", "json"], typer.Option("--output-format", help="How the catalogue is written.")
    ] = "full",
) -> int:
    """The catalogue: every kind of fault, and every cure."""
    from gradfix.report import catalogue
    from gradfix.report.terminal import Terminal

    terminal = Terminal()
    if output_format == "json":
        terminal.write(json.dumps(catalogue.document(), ensure_ascii=False, indent=2))
    else:
        terminal.show(catalogue.render(terminal.out.width))
    return NOTHING


def _kinds(given: list[str] | None) -> tuple[str, ...]:
    from gradfix.detect import KINDS

    return _known("kind", given, list(KINDS))


def _codemods(given: list[str] | None) -> tuple[str, ...]:
    if not given:
        return ()
    from gradfix.codemod import codemods

    return _known("codemod", given, [m.name() for m in codemods()])


def _verdicts(given: list[str]) -> tuple[Literal["proved", "preserved", "intended"], ...]:
    return _known("verdict", given, ["proved", "preserved", "intended"])  # type: ignore[return-value]


def _known(what: str, given: list[str] | None, known: list[str]) -> tuple[str, ...]:
    """Names given again or with commas, each one known; else a sentence with the nearest right one."""
    from gradfix.explain import nearest

    names = [name.strip() for words in given or () for name in words.split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = f"; they are {', '.join(known)}" if what == "verdict" else " (gradfix rules lists them)"
            _fail(f"there is no {what} {name!r}{nearest(name, known) or hint}")
    return tuple(dict.fromkeys(names))


def _failed(terminal: Terminal, sentence: str, detail: str = "") -> int:
    terminal.error(sentence, detail)
    return FAILED


def _fail(sentence: str, detail: str = "") -> NoReturn:
    from gradfix.report.terminal import Terminal

    raise typer.Exit(_failed(Terminal(), sentence, detail))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command ``gradfix``: never returns."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    cut = given.index("--") if "--" in given else len(given)
    ours, theirs = given[:cut], tuple(given[cut + 1 :])
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # let `with` end the children
    try:
        code = app(args=ours, prog_name="gradfix", standalone_mode=False, obj=theirs) or NOTHING
        if code == INTERRUPTED:  # newer releases of typer make Ctrl-C this exit code themselves
            raise KeyboardInterrupt
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:  # `| head`: nobody is listening any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = PIPE
    except ClickException as problem:
        say = getattr(problem, "format_message", problem.__str__)
        sentence = str(say()).rstrip(".").replace("Value error, ", "")
        hint = " (arguments of the script go after --)" if "No such option" in sentence else ""
        _say(sentence + hint)
        code = FAILED
    except Exception:
        traceback.print_exc()
        _say("this is a fault of gradfix's own; please report it with the lines above")
        code = FAILED
    sys.exit(code)


def _say(sentence: str) -> None:
    print(f"gradfix: {sentence}", file=sys.stderr)
