"""The runs that a proof asks for: side by side, and none of them twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import inf

from gradfix.prove.effects import Impose
from gradfix.prove.runs import Baseline
from gradfix.run import Outcome, Run
from gradfix.run.zygote import Zygote

WORKERS = 4  # runs at once, over all candidates


class Runner:
    """Runs a script with texts in place of its files, as `template` says; none goes on past `until`, which is of
    time.monotonic(), but for a second. Where one takes all of its time, as the script itself may not, failing long
    before, those after it get as much, together. Thread-safe."""

    def __init__(self, zygote: Zygote, template: Run, until: float = inf) -> None:
        self.zygote = zygote
        self.template = template
        self.until = until
        self.making = 0  # places where the script as it is makes optimizers
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="gradfix-run")
        self._lock = threading.Lock()
        # by texts: a candidate that is applied is the next baseline
        self._runs: dict[tuple[object, ...], Future[Outcome]] = {}

    def close(self) -> None:
        """Begin no more runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def start(
        self, files: Mapping[str, str], record: bool = False, impose: Impose | None = None
    ) -> Future[Outcome]:
        """A run of `files`, or the one there was; one with `impose` is always a new one."""
        if impose is not None:
            return self._run(files, record, impose)
        key = (record, *sorted(files.items()))
        with self._lock:
            if key not in self._runs:
                self._runs[key] = self._run(files, record)
            return self._runs[key]

    def begin(self, baseline: Baseline, impose: Impose) -> Future[Outcome]:
        """A recorded run of the script as it is with `impose`, begun once; {} is the script once more."""
        impose = {**baseline.base, **impose}
        key = json.dumps(impose, sort_keys=True)
        with self._lock:
            if key not in baseline._imposed:
                baseline._imposed[key] = self._run(baseline.files, record=True, impose=impose or None)
            return baseline._imposed[key]

    def imposed(self, baseline: Baseline, impose: Impose) -> Outcome:
        """What `begin` comes to."""
        return self.begin(baseline, impose).result()

    def _run(
        self, files: Mapping[str, str], record: bool = False, impose: Impose | None = None
    ) -> Future[Outcome]:
        run = replace(self.template, files=dict(files), record=record, measure=True, impose=impose)
        run = replace(run, making=self.making)
        return self._pool.submit(self._bounded, run)

    def _bounded(self, run: Run) -> Outcome:
        left = max(self.until - time.monotonic(), 1.0)
        outcome = self.zygote.run(replace(run, timeout=min(run.timeout, left)))
        if outcome.ended == "timeout":
            self.until = min(self.until, time.monotonic() + run.timeout)
        return outcome
