"""Run a script and prove its cures, in a process of its own, once somebody has asked for it.

The process says what it is doing a line at a time, and then gives the Result.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradfix.result import Problem, Result, Settings
from gradfix.server import frames
from gradfix.server.frames import HEAD, packed, receive, send


@dataclass(frozen=True, slots=True)
class Proof:
    """What to run: the text that an editor has of a file."""

    path: Path
    text: str
    settings: Settings


async def prove(proof: Proof, say: Callable[[str], None]) -> Result:
    """The Result of `proof`; cancelling it ends the run. `say` hears what is being done."""
    process = await asyncio.create_subprocess_exec(
        *frames.process("proving"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=proof.path.parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(packed(proof))
        while True:
            (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            said = pickle.loads(await process.stdout.readexactly(length))
            if isinstance(said, Result):
                return said
            say(said)
    except asyncio.IncompleteReadError:
        return Result(proof.path, problem=Problem("the process that runs the script has ended"))
    finally:
        if process.returncode is None:
            process.terminate()  # its own end takes the runs along
        await process.wait()


def serve() -> None:
    """One Proof from standard input."""
    import signal

    from gradfix import pipeline
    from gradfix.run import InterpreterError

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # let `with` end the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's business
    answers = os.dup(1)
    os.dup2(2, 1)  # nobody's print gets between the frames
    proof: Proof = receive(0)
    try:
        for result in pipeline.fix(proof.path, proof.settings, proof.text, lambda what: send(answers, what)):
            send(answers, result)
    except InterpreterError as problem:
        send(answers, Result(proof.path, problem=Problem(str(problem), getattr(problem, "detail", ""))))
