"""The command line: words to calls, results to exit codes."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from gradfix.cli.check import check
from gradfix.cli.declared import Ended
from gradfix.cli.options import FAILED, INTERRUPTED, PIPE, say
from gradfix.cli.pages import explain, rules
from gradfix.cli.quick import plain
from gradfix.packages import CodemodError
from gradfix.report.terminal import Unwritten, written

# Heavy modules (typer, libcst, the pipeline, rich) are imported where they are needed: `check` stays quick.

SCRIPTED = ("fix", "run", "record", "apply")  # what follows -- is the script's
PLAIN: dict[str, Callable[..., int]] = {f.__name__: f for f in (check, explain, rules)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command ``gradfix``: never returns."""
    _have_streams()
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    scripted = given[0] in SCRIPTED and "--" in given  # elsewhere -- only says that no option follows
    cut = given.index("--") if scripted else len(given)
    ours, theirs = given[:cut], tuple(given[cut + 1 :])
    _refuse_files(ours)
    atexit.register(gc.freeze)  # Python would go through every object once more before it ends
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # let `with` end the children
    interrupted = _told_of_interrupts()
    try:
        code = _plainly(ours, theirs)
        if code is None:
            from gradfix.cli import typed

            code = typed.run(ours, theirs)
        if code == INTERRUPTED:  # newer releases of typer make Ctrl-C this exit code themselves
            raise KeyboardInterrupt
        with written():
            sys.stdout.flush()
    except Ended as ended:
        code = ended.code
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:  # `| head`: nobody is listening any more
        _unheard()
        code = PIPE
    except Unwritten as problem:
        code = _unwritten(str(problem))
    except CodemodError as problem:
        say(f"{problem}: a fault of that codemod's, not of your script's")
        code = FAILED
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:  # of help that typer writes
            code = _unwritten((problem.strerror or str(problem)).lower())
        elif interrupted:  # the children were, too, and one may be missed before this process hears of it
            say("interrupted")
            code = INTERRUPTED
        else:
            import traceback

            traceback.print_exc()
            say("this is a fault of gradfix's own; please report it with the lines above")
            code = FAILED
    sys.exit(code)


def _have_streams() -> None:
    """What was closed where gradfix was started (``>&-``, a daemon) is nothing to Python: now it is an empty file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _unwritten(reason: str) -> int:
    """The exit code where standard output takes no more."""
    _unheard()  # what is left of it would be tried once more at the end
    say(f"the output can't be written ({reason})")
    return FAILED


def _unheard() -> None:
    """Let the rest of the output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told_of_interrupts() -> list[int]:
    """The interrupts of this process, as they come. Where somebody else decides what they do, there are none."""
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    return heard


def _refuse_files(words: Sequence[str]) -> None:
    """A file's name is not to be taken for an option, where a shell's * or a hook has put it."""
    for word in words[: words.index("--") if "--" in words else None]:
        if word.startswith("-") and word != "-" and os.path.lexists(word):
            say(f"{word} is an option and the name of a file here: say ./{word} for the file")
            sys.exit(FAILED)


def _plainly(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    """The exit code of a command whose words are plain; None where typer is to read them."""
    command = PLAIN.get(ours[0]) if ours and not theirs else None
    words = plain(command, ours[1:]) if command is not None else None
    return command(**words) if command is not None and words is not None else None
