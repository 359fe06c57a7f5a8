"""The command line: words to calls, results to exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from gradfix import __version__
from gradfix.cli.apply import APPLY, apply
from gradfix.cli.check import CHECK, check
from gradfix.cli.fix import FIX, RUN, fix, run
from gradfix.cli.ide import IDE, ide
from gradfix.cli.migrate import MIGRATE, migrate
from gradfix.cli.options import FAILED, INTERRUPTED, NOTHING, PIPE
from gradfix.cli.pages import EXPLAIN, explain, rules
from gradfix.cli.quick import plain
from gradfix.cli.record import RECORD, record
from gradfix.cli.server import SERVER, server
from gradfix.cli.usage import Command, Group, ScriptCommand
from gradfix.packages import CodemodError

# Heavy modules (libcst, the pipeline, rich) are imported by the commands that need them: --help stays quick.

# click's ClickException: older releases of typer import click, newer ones ship a copy of it
ClickException: type[Exception] = typer.BadParameter.__mro__[2]

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


app.command(cls=ScriptCommand, epilog=FIX)(fix)
app.command(cls=Command, epilog=CHECK)(check)
app.command(cls=ScriptCommand, epilog=RUN)(run)
app.command(cls=ScriptCommand, epilog=RECORD)(record)
app.command(cls=Command, epilog=MIGRATE)(migrate)
app.command(cls=ScriptCommand, epilog=APPLY)(apply)
app.command(cls=Command, epilog=EXPLAIN)(explain)
app.command(cls=Command)(rules)
app.command(cls=Command, epilog=SERVER)(server)
app.command(cls=Command, epilog=IDE)(ide)
SCRIPTED = ("fix", "run", "record", "apply")  # what follows -- is the script's
PLAIN: dict[str, Callable[..., int]] = {f.__name__: f for f in (check, explain, rules)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command ``gradfix``: never returns."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    scripted = given[0] in SCRIPTED and "--" in given  # elsewhere -- only says that no option follows
    cut = given.index("--") if scripted else len(given)
    ours, theirs = given[:cut], tuple(given[cut + 1 :])
    _refuse_files(ours)
    atexit.register(gc.freeze)  # Python would go through every object once more before it ends
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # let `with` end the children
    try:
        code = _plainly(ours, theirs)
        if code is None:
            code = app(args=ours, prog_name="gradfix", standalone_mode=False, obj=theirs) or NOTHING
        if code == INTERRUPTED:  # newer releases of typer make Ctrl-C this exit code themselves
            raise KeyboardInterrupt
        sys.stdout.flush()
    except typer.Exit as ended:
        code = ended.exit_code
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
    except CodemodError as problem:
        _say(f"{problem}: a fault of that codemod's, not of your script's")
        code = FAILED
    except Exception:
        traceback.print_exc()
        _say("this is a fault of gradfix's own; please report it with the lines above")
        code = FAILED
    sys.exit(code)


def _refuse_files(words: Sequence[str]) -> None:
    """A file's name is not to be taken for an option, where a shell's * or a hook has put it."""
    for word in words[: words.index("--") if "--" in words else None]:
        if word.startswith("-") and word != "-" and os.path.lexists(word):
            _say(f"{word} is an option and the name of a file here: say ./{word} for the file")
            sys.exit(FAILED)


def _plainly(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    """The exit code of a command whose words are plain; None where typer is to read them."""
    command = PLAIN.get(ours[0]) if ours and not theirs else None
    words = plain(command, ours[1:]) if command is not None else None
    return command(**words) if command is not None and words is not None else None


def _say(sentence: str) -> None:
    print(f"gradfix: {sentence}", file=sys.stderr)
