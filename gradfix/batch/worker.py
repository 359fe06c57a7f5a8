"""The process that works on one repository: ``python -m gradfix.batch.worker FOLDER``, a scratch folder of its own.

It is given one line of JSON (spec, options), answers in lines of JSON on what was its standard output, the last of them
the result, and ends when its standard input does: with whoever started it. However that comes, it takes its processes
and the folder along.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gradfix.batch.processes import kill_below
from gradfix.run.child.linux import adopt_orphans


def main() -> None:
    """Read what to do, do it, say what came of it."""
    scratch = Path(sys.argv[1])
    given = sys.stdin.buffer.readline()
    if not given.endswith(b"\n"):
        _leave(scratch)
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints is no answer
    asked = json.loads(given)
    with suppress(AttributeError, OSError):  # not Linux
        adopt_orphans()
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    from gradfix.batch.repository import migrate_one
    from gradfix.batch.values import Options, Spec, dumps, loads

    def say(what: str) -> None:
        print(json.dumps({"say": what}), file=answer, flush=True)

    spec, options = loads(Spec, asked["spec"]), loads(Options, asked["options"])
    result = migrate_one(spec, options, scratch, say)
    kill_below(os.getpid())
    shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"result": dumps(result)}), file=answer, flush=True)
    sys.stderr.flush()
    os._exit(0)  # the thread that waits for the parent holds what Python would want to close


def _end_with_parent(scratch: Path) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    _leave(scratch)


def _leave(scratch: Path) -> NoReturn:
    kill_below(os.getpid())
    # another program in the place of this one: no thread of it works on meanwhile
    remove = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
    os.execv(sys.executable, [sys.executable, "-ISc", remove, str(scratch)])


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # said, and the end all the same: see above
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
