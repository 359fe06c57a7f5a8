"""``python gradfix/run/child record SCRIPT -o run.tape``: a tape made where the GPU and the data are.

Needs this folder and torch, not gradfix. The tape goes to ``gradfix fix --tape run.tape`` anywhere else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, TextIO

from . import execute

UNREAD = ("SyntaxError", "IndentationError", "TabError")
EPILOG = """\
The script runs for real, in its own folder and with its own threads: files that it writes are written. It is
ended after every optimizer has stepped --steps times. Exit status: 0 the tape is written; 1 it is, and ends with
the exception that the script died of; 2 there is none: it could not be written, or Python can't read the script.

  python gradfix/run/child record train.py -o run.tape --steps 2 -- --data /mnt/data --gpu 0
"""


def main(words: list[str]) -> int:
    """The command line. Gives an exit status only where nothing was run; a run ends the process."""
    own, script_words = _split(words)
    options = _parser().parse_args(own[1:] if own[:1] == ["record"] else own)
    script = os.path.abspath(options.script)
    if not os.path.isfile(script):
        return _refuse(f"{options.script}: there is no such file.")
    try:
        import torch  # noqa: F401
    except ImportError as problem:
        return _refuse(f"{sys.executable} has no usable torch ({problem}).")
    try:
        out = open(options.output, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as problem:
        return _refuse(f"{options.output} can't be written: {problem.strerror}.")
    tape = _TapeFile(out, options.output)
    execute.start_clock(options.timeout, lambda: tape.leave("timeout"))
    request = {
        "script": script,
        "root": os.path.dirname(script),
        "cwd": os.getcwd(),
        "arguments": script_words,
        "record": True,
        "steps": options.steps,
        "timeout": options.timeout,
        "seed": options.seed,
        "one_thread": False,
    }
    execute.run(request, tape)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and the script's after ``--``."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python gradfix/run/child record",
        description="Run SCRIPT once and write what it did to the autograd graph to a tape.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="run.tape", help="the tape (default: run.tape)"
    )
    parser.add_argument("--steps", type=int, default=3, help="of every optimizer (default: 3; 0: to the end)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of random, NumPy and torch (default: 0)")
    return parser


def _refuse(sentence: str) -> int:
    sys.stderr.write(sentence + "\n")
    return 2


class _TapeFile:
    """Stands where elsewhere the channel does: keeps the tape's lines, says how it ended, leaves."""

    def __init__(self, out: TextIO, name: str) -> None:
        self.out, self.name = out, name
        self.pid = os.getpid()
        self.events = 0
        self.busy = False
        self.died_of, self.trained = "", False

    def __call__(self, obj: dict[str, Any]) -> None:
        if os.getpid() != self.pid or "m" in obj:
            return
        if "x" in obj:
            if obj["x"] == "end":
                self.leave(str(obj["how"]))
            elif obj["x"] == "failure":
                self.died_of = str(obj["type"])
            elif obj["x"] == "trouble":
                sys.stderr.write(f"gradfix failed in the run:\n{obj['text']}")
            return
        self.busy = True
        self.events += "e" in obj
        self.trained = self.trained or obj.get("e") == "Backward"
        self.out.write(json.dumps(obj, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")
        self.busy = False

    def flush(self) -> None:
        if os.getpid() == self.pid:
            self.out.flush()

    def leave(self, how: str) -> None:
        self.flush()
        unread = how == "failed" and self.died_of in UNREAD and not self.trained
        if unread:
            os.unlink(self.name)
        said = "nothing was recorded" if unread else f"{self.events} events; the run ended: {how}"
        sys.stderr.write(f"{self.name}: {said}.\n")
        sys.stderr.flush()
        execute.EXIT(2 if unread else 1 if how == "failed" else 0)
