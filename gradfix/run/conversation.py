"""One run as the host sees it: the request out, streams in, an Outcome at the end.

How they go out and come in depends on where the run is: forked from the zygote (gradfix.run.forked) or in a
process of its own (gradfix.run.cold).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from gradfix.run import Outcome, Run, withheld
from gradfix.run.child.network import MOST
from gradfix.run.measured import is_measurement
from gradfix.run.scratch import Copy
from gradfix.run.walls import Terms
from gradfix.tape import Failure, Site, Tape
from gradfix.tapefile import TapeError, parse_tape

KEPT = 64 * 1024  # bytes of stdout and of stderr
LONGEST = 1 << 29  # bytes on the channel; a run that says more will not fit here
DRAIN = 2.0  # seconds for the streams to close after the run's end
SHARE = 0.8  # of the memory that is free at the start, where the run has no limit of its own


class Refused(Exception):
    """The machine does not let the run have this scratch view; the message says why."""


class Gone(Exception):
    """The interpreter ended without a word about this run."""


class Conversation:
    """What has come in from one run, and what it means."""

    begins_inside = True  # the run's process says nothing before its wall stands: a refusal from it is forged

    def __init__(self, run: Run, terms: Terms, copy: Copy | None) -> None:
        self.run, self.terms, self.copy = run, terms, copy
        self.tag = token_hex(8)  # only this run's own lines carry it
        self.said = bytearray()  # on the channel
        self.spoken = 0
        self.out, self.err = bytearray(), bytearray()
        self.flooded = False
        self.needs_dynamo = False  # the script made torch._dynamo be imported

    def request(self) -> dict[str, Any]:
        run = self.run
        request: dict[str, Any] = {
            "script": str(run.script),
            "root": str(run.root),
            "cwd": str(run.cwd),
            "arguments": list(run.arguments),
            "files": dict(run.files),
            "record": run.record,
            "measure": run.measure,
            "impose": run.impose,
            "steps": run.steps,
            "calls": run.calls,
            "making": run.making,
            "timeout": run.timeout,
            "seed": run.seed,
            "memory": run.memory,
            "file_size": run.file_size,
            "resident": _resident_limit(run),
            "fill_empty": run.fill_empty,
            "on_cpu": run.on_cpu,
            "wall": self.terms.wall.name,
            "strict": self.terms.strict,
            "tag": self.tag,
        }
        if self.copy is not None:
            request = {**self.copy.inward(request), "scratch": str(self.copy.folder)}
        return {**request, "masked": self.terms.masked}

    def keep(self, stream: bytearray, data: bytes) -> None:
        if stream is self.said:
            if self.spoken < LONGEST <= self.spoken + len(data):
                self.flooded = True
            self.spoken += len(data)
            if self.spoken >= LONGEST:
                return
        stream += data
        if (stream is self.out or stream is self.err) and len(stream) > 4 * KEPT:
            del stream[:-KEPT]

    def outcome(self, seconds: float, status: int | None, why: str) -> Outcome:
        """`status` is subprocess's returncode of the run's process, None where nobody knows; `why` is what it
        was ended for: ``timeout``, ``memory``, ``processes``, or nothing. Raises Refused."""
        if self.copy is not None:
            self.said = self.copy.outward_json(self.said)
            self.out, self.err = self.copy.outward(self.out), self.copy.outward(self.err)
        speech = _Speech(self.said, self.tag, self.begins_inside)
        if speech.refused:
            raise Refused(speech.refused)
        self.needs_dynamo = bool(speech.end and speech.end.get("dynamo"))
        ended, detail = self._ending(status, why, speech)
        out, err = _text(self.out), _text(self.err)
        return Outcome(
            ended=ended,
            tape=speech.tape,
            measurement=tuple(speech.measurement),
            failure=speech.failure,
            stdout=out,
            stderr=err,
            seconds=seconds,
            wall=self.terms.wall.name,
            detail=detail,
            status=status if speech.end is None else speech.end.get("status"),
            missed=tuple(
                withheld.missed(self.terms.wall, ended, speech.failure, err, speech.hosts, self.run.file_size)
            ),
        )

    def _ending(self, status: int | None, why: str, speech: _Speech) -> tuple[str, str]:
        """`ended` and `detail` of the Outcome."""
        end = speech.end
        if self.spoken >= LONGEST:
            return "memory", f"the run said more than {LONGEST >> 20} MiB about itself; try fewer --steps."
        if speech.trouble:
            return "tampered", (
                "tampered: what gradfix does in the run failed there: a fault of gradfix's, or the script had a hand "
                f"in it. {speech.trouble}"
            )
        if why == "memory":
            return "memory", "the run used up the memory it may have."
        if why == "processes":
            return "killed", "the run had started hundreds of processes and was ended."
        if speech.nonsense:
            return (
                "tampered",
                f"tampered: the run's channel to gradfix carried something else ({speech.nonsense}).",
            )
        if why == "timeout":
            return "timeout", f"the run was not over after {self.run.timeout:g} s."
        if end is not None and end["how"] == "timeout":
            return "timeout", str(end.get("detail") or f"the run was not over after {self.run.timeout:g} s.")
        if end is not None:
            if speech.memory is not None and end.get("how") == "failed":
                return "memory", f"the run used up the memory it may have. {speech.memory}".rstrip()
            return str(end["how"]), str(end.get("detail", ""))
        if status is None:
            return "killed", "the process that watched over the run was killed."
        if status < 0:
            return self._killed(-status)
        if status > 0xFF:  # Windows: the exception that ended it
            return "killed", f"the run was killed by exception 0x{status:08X}."
        return (
            "tampered",
            "tampered: the run ended without a word: it closed gradfix's channel or replaced its own process.",
        )

    def _killed(self, number: int) -> tuple[str, str]:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if self.run.memory is not None and b"bad_alloc" in self.err:
            return "memory", "the run used up the memory it may have."
        hint = " (by itself, or by a kernel that was out of memory)" if name == "SIGKILL" else ""
        return "killed", f"the run was killed by {name}{hint}."


class _Speech:
    """What the channel carried, sorted by whose word it is."""

    def __init__(self, data: bytearray, tag: str, inside: bool) -> None:
        self.tag = tag.encode()
        self.inside = inside  # whether the wall stood already when the next line was said
        self.hosts: list[str] = []
        self.measurement: list[Mapping[str, Any]] = []
        self.failure: Failure | None = None
        self.end: Mapping[str, Any] | None = None
        self.memory: str | None = None
        self.nonsense = ""
        self.refused = ""
        self.trouble = ""
        self.tape: Tape | None = None
        lines: list[str] = []
        for raw in bytes(data).split(b"\n")[:-1]:  # the last piece is empty, or a line that broke off
            try:
                self._line(raw, lines)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.nonsense = self.nonsense or repr(raw[:60])
        if lines:
            try:
                self.tape = parse_tape(lines)
            except (TapeError, RecursionError) as problem:
                self.nonsense = self.nonsense or f"a tape {problem}"

    def _line(self, raw: bytes, tape: list[str]) -> None:
        kind, tag, text = raw[:1], raw[1 : 1 + len(self.tag)], raw[1 + len(self.tag) :].decode("ascii")
        if tag != self.tag or self.end is not None:
            raise ValueError(raw)
        if kind == b"t":
            tape.append(text + "\n")
        elif kind == b"m":
            line = _object(text)
            if not is_measurement(line):
                raise ValueError(line)
            self.measurement.append(line)
        elif kind == b"x":
            self._executor(_object(text))
        else:
            raise ValueError(kind)

    def _executor(self, word: Mapping[str, Any]) -> None:
        what = word["x"]
        if what == "end":
            self.end = word
        elif what == "memory":
            self.memory = str(word["detail"])
        elif what == "failure":
            stack = tuple(Site(*site) for site in word["stack"])
            self.failure = Failure(0, stack, str(word["type"]), str(word["message"]), str(word["traceback"]))
        elif what == "missed":
            if len(self.hosts) < MOST:
                self.hosts.append(str(word["detail"])[:200])
        elif what == "inside" and not self.inside:
            self.inside = True
        elif what == "refused" and not self.inside:
            self.refused = str(word["why"])
        elif what == "trouble":
            self.trouble = str(word["text"])
        else:
            raise ValueError(what)


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _text(data: bytearray) -> str:
    return bytes(data[-KEPT:]).decode("utf-8", "replace")


def _resident_limit(run: Run) -> int | None:
    """Bytes that all processes of the run together may hold."""
    if run.memory is not None:
        return run.memory + (256 << 20)  # what a forked torch holds by itself
    free = free_memory()
    limits = [run.resident, int(free * SHARE) if free else None]
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory() -> int:
    """Bytes that could be had now; 0 where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
    return int(free.split()[1]) * 1024
