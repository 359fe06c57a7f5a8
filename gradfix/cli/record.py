"""``gradfix record``: a run into a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
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
)

if TYPE_CHECKING:
    import typer

RECORD = "[bold]Example[/bold]\n\n  gradfix record train.py -o run.tape -- --data /data/full"


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
    from gradfix.discover import project_root
    from gradfix.report.terminal import Terminal
    from gradfix.run import InterpreterError
    from gradfix.run.zygote import Zygote
    from gradfix.source import Source, SourceError
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
            asked = replace(settings, arguments=tuple(context.obj), seed=seed)
            outcome = zygote.run(asked.template(entry, project_root(entry), {}))
        if outcome.tape is None:
            return failed(
                terminal,
                f"{script}: nothing was recorded ({outcome.detail or outcome.ended})",
                outcome.stderr,
            )
        write_tape(outcome.tape, output)
    except (SourceError, InterpreterError) as problem:
        return failed(terminal, str(problem), getattr(problem, "detail", ""))
    except OSError as problem:
        return failed(terminal, f"{output}: can't be written ({(problem.strerror or str(problem)).lower()})")
    if not quiet:
        terminal.err.print(
            f"{len(outcome.tape.events)} events of {script} in {output} (the run: {outcome.ended})."
        )
    return NOTHING
