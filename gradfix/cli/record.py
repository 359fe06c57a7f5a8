"""``gradfix record``: a run into a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
    FAULTS,
    NOTHING,
    ConfigOption,
    Isolated,
    Python,
    Quiet,
    Sandbox,
    Seed,
    Steps,
    Timeout,
    configuration,
    failed,
    seeded,
)

if TYPE_CHECKING:
    import typer

RECORD = (
    "Exit codes: 0 the tape is written; 1 it is, and ends where the script died; 2 there is none: nothing came "
    "to a backward().\n\n"
    "[bold]Example[/bold]\n\n  gradfix record train.py -o run.tape -- --data /data/full"
)


def record(
    context: typer.Context,
    script: Annotated[str, Argument(metavar="SCRIPT", help="The script to run.")],
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="Where the tape goes.")],
    python: Python = None,
    steps: Steps = None,
    timeout: Timeout = None,
    seed: Seed = 0,
    sandbox: Sandbox = None,
    config: ConfigOption = None,
    isolated: Isolated = False,
    quiet: Quiet = False,
) -> int:
    """Record one run into a file, to be read elsewhere with [bold]fix --tape[/bold]."""
    from gradfix import ending
    from gradfix.discover import project_root
    from gradfix.report.terminal import Terminal
    from gradfix.run import InterpreterError
    from gradfix.run.zygote import Zygote
    from gradfix.source import Source, SourceError
    from gradfix.tape import Tape
    from gradfix.tapefile import write_tape

    found = configuration([script], config, isolated, python=python, steps=steps, timeout=timeout)
    settings = found.settings()
    terminal = Terminal(quiet)
    entry = Path(script).resolve()
    try:
        Source.read(script).check()
        warm = Zygote(settings.python, sandbox=sandbox or "auto")
        with terminal.progress(entry.name) as say, warm as zygote:
            say("recording a run")
            asked = replace(settings, arguments=tuple(context.obj), seed=seeded(seed))
            outcome = zygote.run(asked.template(entry, project_root(entry), {}))
        nothing = ending.nothing_recorded(Path(script), outcome)
        if nothing is not None:
            return failed(terminal, nothing.message, nothing.detail)
        tape = outcome.tape or Tape(())
        write_tape(tape, output)
    except (SourceError, InterpreterError) as problem:
        return failed(terminal, str(problem), getattr(problem, "detail", ""))
    except OSError as problem:
        return failed(terminal, f"{output}: can't be written ({(problem.strerror or str(problem)).lower()})")
    died = ending.died(Path(script), outcome)
    if not quiet:
        rest = f"{died}; the tape has what came before." if died else f"(The run: {outcome.ended}.)"
        said = f"{len(tape.events)} events of {script} in {output}. {rest}"
        terminal.err.print(said, soft_wrap=True, markup=False, highlight=False)
    return FAULTS if died else NOTHING
