"""``gradfix apply``: fixes from elsewhere, placed here."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
    FAULTS,
    NOTHING,
    Python,
    Quiet,
    Sandbox,
    Seed,
    Steps,
    Timeout,
    fail,
)

if TYPE_CHECKING:
    import typer

    from gradfix.patches.apply import Applied, Proof
    from gradfix.report.terminal import Terminal

APPLY = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix fix train.py --output-patch fix.json   where the script runs\n\n"
    "  gradfix apply fix.json                         what would change here\n\n"
    "  gradfix apply fix.json --write                 the same, written\n\n"
    "  gradfix apply fix.json --reprove --write       what still holds when it is run here"
)


def apply(
    context: typer.Context,
    file: Annotated[
        Path, Argument(metavar="FILE", help="What fix --output-patch wrote, or - for standard input.")
    ],
    root: Annotated[
        Path, Option("--root", metavar="DIR", help="Where the files are [dim](default: .)[/dim].")
    ] = Path(),
    diff: Annotated[bool, Option("--diff", metavar="", help="Show what would change (the default).")] = False,
    write: Annotated[bool, Option("--write", metavar="", help="Write it into the files.")] = False,
    reprove: Annotated[
        bool,
        Option("--reprove", metavar="", help="Run the scripts before and after, and prove it again."),
    ] = False,
    output_format: Annotated[
        Literal["full", "concise", "json"], Option("--output-format", help="How the report is written.")
    ] = "full",
    python: Python = None,
    steps: Steps = None,
    timeout: Timeout = None,
    seed: Seed = 0,
    sandbox: Sandbox = None,
    quiet: Quiet = False,
) -> int:
    """Place fixes in a tree that may have changed since they were made.

    A fix goes where its lines and what stood around them are, or nowhere: it is refused where that is not clear, where
    the result would be no Python, and where its fault does not show any more. All of its files change, or none.
    """
    from gradfix.patches import file as patch_file
    from gradfix.patches.apply import Tree
    from gradfix.patches.apply import apply as applied
    from gradfix.report import applied as report
    from gradfix.report.terminal import Terminal
    from gradfix.run import InterpreterError
    from gradfix.source import write as write_files

    terminal = Terminal(quiet)
    if root.is_file():
        folder = f": its folder is {root.parent}" if str(root.parent) != "." else ""
        return _stopped(
            terminal, output_format, f"--root {root}: this is a file, and DIR is a folder{folder}"
        )
    if not root.is_dir():
        return _stopped(terminal, output_format, f"{root}: there is no such directory")
    top = root.resolve()
    results: list[Applied] = []
    try:
        patch = patch_file.read(sys.stdin.buffer) if str(file) == "-" else patch_file.load(file)
    except patch_file.PatchError as problem:
        return _stopped(terminal, output_format, f"{file}: {problem}")
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        return _stopped(terminal, output_format, f"{file}: can't be read ({reason})")
    try:
        with ExitStack() as stack:
            proof = (
                _proof(stack, terminal, context, python, steps, timeout, seed, sandbox) if reprove else None
            )
            tree = Tree(top, proof, write=write_files if write else lambda _: None)
            for one in applied(patch, tree):
                results.append(one)
                if output_format != "json":
                    render = report.full if output_format == "full" else report.concise
                    terminal.show(render(one, top, write, diff or not write))
    except patch_file.PatchError as problem:
        return _stopped(terminal, output_format, f"{file}: {problem}", results)
    except InterpreterError as problem:
        return _stopped(terminal, output_format, str(problem), results)
    except BrokenPipeError:
        raise
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        return _stopped(terminal, output_format, f"{problem.filename or top}: {reason}", results)
    if output_format == "json":
        terminal.write(report.document(results, top, write))
    elif not quiet:
        terminal.write(report.closing(results, write))
    left = any(r.status == "refused" or (r.status == "placed" and not write) for r in results)
    return FAULTS if left else NOTHING


def _proof(
    stack: ExitStack,
    terminal: Terminal,
    context: typer.Context,
    python: str | None,
    steps: int | None,
    timeout: float | None,
    seed: int,
    sandbox: Sandbox,
) -> Proof:
    """Runs scripts of somebody else's making: behind walls that hold against hostile code, unless told otherwise."""
    from gradfix.patches.reprove import reprove
    from gradfix.result import Settings
    from gradfix.run.zygote import Zygote

    zygote = stack.enter_context(Zygote(python, sandbox=sandbox or "strict"))
    say = stack.enter_context(terminal.progress("apply"))
    plain = Settings()
    settings = Settings(
        arguments=context.obj or (), steps=steps or plain.steps, timeout=timeout or plain.timeout, seed=seed
    )
    return partial(reprove, settings=settings, zygote=zygote, say=say)


def _stopped(terminal: Terminal, format_: str, sentence: str, results: list[Applied] | None = None) -> int:
    if format_ == "json":
        from gradfix.report import applied as report

        terminal.write(report.document(results or [], Path(), False, sentence))
    fail(sentence)
