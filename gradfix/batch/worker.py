"""The process that works on repositories: ``python -m gradfix.batch.worker FOLDER``, which it makes, to work in.

It is given a line of JSON (spec, options) for each, one after the other, answers in lines of JSON on what was its
standard output, the last of them the result, and ends when its standard input does: with whoever started it. However
that comes, it takes its processes and the folder along.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from gradfix.batch.processes import below, kill_below
from gradfix.run.child.linux import adopt_orphans

if TYPE_CHECKING:
    from gradfix.batch.warm import Warm


def main() -> None:
    """Read what to do, do it, say what came of it, until there is no more."""
    scratch = Path(sys.argv[1])
    scratch.mkdir(mode=0o700, exist_ok=True)
    os.chdir(scratch)
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with suppress(AttributeError, OSError):  # not Linux
        adopt_orphans()
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(scratch, asked), daemon=True).start()
    first = asked.get()  # before anything is imported: nobody may be there any more
    from gradfix.batch.warm import Warm

    with Warm() as warm:
        _work(first, scratch, warm, answer)
        while True:
            _work(asked.get(), scratch, warm, answer)


def _work(line: bytes, scratch: Path, warm: Warm, answer: IO[str]) -> None:
    """One repository."""
    from gradfix.batch.repository import migrate_one
    from gradfix.batch.values import Options, Spec, dumps, loads

    def say(what: str) -> None:
        print(json.dumps({"say": what}), file=answer, flush=True)

    asked = json.loads(line)
    spec, options = loads(Spec, asked["spec"]), loads(Options, asked["options"])
    own = Path(tempfile.mkdtemp(dir=scratch))  # no two archives are unpacked at one path
    result = migrate_one(spec, options, own, say, warm)
    kill_below(os.getpid(), warm.processes)
    for orphan in below(os.getpid(), warm.processes):
        with suppress(ChildProcessError):
            os.waitpid(orphan, os.WNOHANG)  # adopted: nobody else asks for its end
    shutil.rmtree(own, ignore_errors=True)
    sys.stderr.flush()
    print(json.dumps({"result": dumps(result)}), file=answer, flush=True)


def _hear(scratch: Path, asked: queue.SimpleQueue[bytes]) -> None:
    """Take what is asked, and leave when nobody is there to ask any more."""
    while (line := sys.stdin.buffer.readline()).endswith(b"\n"):
        asked.put(line)
    _leave(scratch)


def _leave(scratch: Path, status: int = 0) -> NoReturn:
    kill_below(os.getpid())
    # another program in the place of this one: no thread of it works on meanwhile
    remove = f"import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True); sys.exit({status})"
    os.execv(sys.executable, [sys.executable, "-ISc", remove, str(scratch)])


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        with suppress(OSError):  # nobody may be there to read it
            traceback.print_exc()
            sys.stderr.flush()
        # all the same the folder goes: what failed may be an interpreter that the thread which hears has just killed
        _leave(Path(sys.argv[1]), 1)
