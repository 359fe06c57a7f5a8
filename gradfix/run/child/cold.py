"""``python gradfix/run/child cold [FOLDER]``: one run in a process of its own, where there is no fork.

Without FOLDER it only says what the zygote would: versions, or why no run is possible here. FOLDER is the
scratch folder, with the copy of the project in it and two files: REQUEST, whose removal says that torch is
imported and the run's time counts from now, and CHANNEL, to which the run's lines are added. Standard output
and error are the script's. The host (gradfix.run.cold) ends what has not ended itself; until then a thread of
this process keeps time, so that a run whose host was killed ends too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from . import channel, confine, execute, guard, linux, start, view

REQUEST, CHANNEL = "request.json", "channel"


def main(words: list[str]) -> None:
    """``cold [FOLDER]``"""
    gc.disable()  # torch's import makes no garbage worth looking for
    if words[1:] and sys.platform.startswith("linux"):
        linux.die_with_parent()
    hello = start.prepare()
    if words[1:] and not hello["problem"]:
        _run(words[1])
    print(json.dumps(hello), flush=True)
    execute.EXIT(0)


def _run(folder: str) -> None:
    append = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    said = os.open(os.path.join(folder, CHANNEL), append)
    request = _take(os.path.join(folder, REQUEST))
    line = channel.Channel(said, request["tag"])
    try:
        guard.refuse(request["wall"], request["strict"])
    except guard.NoGuard as refused:
        line({"x": "refused", "why": str(refused)})
        line.flush()
        execute.EXIT(0)
    guard.install(request)
    line({"x": "inside"})  # from here on the script may have a hand in what is said
    line.flush()
    request["files"] = view.write_texts(request["files"])
    confine.confine(request, granted=False)
    # Only now: what a thread was allowed before it is allowed for ever.
    execute.start_clock(request["timeout"], lambda: execute.EXIT(execute.LOST))
    execute.run(request, line)


def _take(path: str) -> dict[str, Any]:
    with open(path, encoding="ascii") as stream:
        request: dict[str, Any] = json.load(stream)
    os.remove(path)
    return request
