"""The whole command line as typer has it: help, mistakes, and the commands that run something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from gradfix import __version__
from gradfix.cli.apply import APPLY, apply
from gradfix.cli.check import CHECK, check
from gradfix.cli.declared import Declared, Option
from gradfix.cli.fix import FIX, RUN, fix
from gradfix.cli.fix import run as run_
from gradfix.cli.ide import IDE, ide
from gradfix.cli.migrate import MIGRATE, migrate
from gradfix.cli.options import FAILED, NOTHING, say
from gradfix.cli.pages import EXPLAIN, explain, rules
from gradfix.cli.record import RECORD, record
from gradfix.cli.server import SERVER, server
from gradfix.cli.usage import Command, Group, ScriptCommand

# click's ClickException: older releases of typer import click, newer ones ship a copy of it
ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def run(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The exit code of the command that `ours` call; `theirs` are the script's words."""
    try:
        return app(args=list(ours), prog_name="gradfix", standalone_mode=False, obj=theirs) or NOTHING
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except ClickException as problem:
        told = getattr(problem, "format_message", problem.__str__)
        sentence = str(told()).rstrip(".").replace("Value error, ", "")
        hint = " (arguments of the script go after --)" if "No such option" in sentence else ""
        say(sentence + hint)
        return FAILED


def _typed(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with typer's words in place of those that are declared."""
    function: Any = command
    made = FunctionType(function.__code__, function.__globals__, command.__name__, function.__defaults__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, command.__doc__
    hints = get_type_hints(command, localns={"typer": typer}, include_extras=True)
    made.__annotations__ = {name: _hint(hint) for name, hint in hints.items()}
    return made


def _hint(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    return Annotated[(hint.__origin__, *map(_word, hint.__metadata__))]


def _word(said: Any) -> Any:
    if not isinstance(said, Declared):
        return said
    make = typer.Option if isinstance(said, Option) else typer.Argument
    return make(*said.names, **said.about)


app = typer.Typer(
    name="gradfix",
    cls=Group,
    help="Find autograd faults in PyTorch training scripts, cure them, and prove the cure by running it.",
    epilog=(
        "[bold]Begin with[/bold]\n\n"
        "  gradfix fix train.py                      what is wrong, and a cure\n\n"
        "  gradfix fix train.py --write              the same, applied\n\n"
        "  gradfix fix train.py -- --epochs 1        with arguments of the script's own\n\n"
        "  gradfix check src                         the same faults from the text, nothing is run\n\n"
        "  gradfix migrate --prove repo1 repo2 …     many repositories at once\n\n"
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


app.command(cls=ScriptCommand, epilog=FIX)(_typed(fix))
app.command(cls=Command, epilog=CHECK)(_typed(check))
app.command(cls=ScriptCommand, epilog=RUN)(_typed(run_))
app.command(cls=ScriptCommand, epilog=RECORD)(_typed(record))
app.command(cls=Command, epilog=MIGRATE)(_typed(migrate))
app.command(cls=ScriptCommand, epilog=APPLY)(_typed(apply))
app.command(cls=Command, epilog=EXPLAIN)(_typed(explain))
app.command(cls=Command)(_typed(rules))
app.command(cls=Command, epilog=SERVER)(_typed(server))
app.command(cls=Command, epilog=IDE)(_typed(ide))
