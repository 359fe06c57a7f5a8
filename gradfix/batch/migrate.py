"""One call of migrate: what is open goes to the engine, what comes back is kept, what was asked for is done with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gradfix.batch import delivery, engine
from gradfix.batch.engine import Engine, EngineError
from gradfix.batch.state import State, wanted
from gradfix.batch.values import Options, RepoResult, Spec, loads

AHEAD = 2  # repositories that wait at an executor beyond those it works on


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done with results: `diff` patch files, `write` the working tree, `branch` a branch of that name."""

    diff: bool = False
    write: bool = False
    branch: str = ""

    @property
    def effects(self) -> tuple[str, ...]:
        """The effects by the names that the state knows them by."""
        return (
            *(["diff"] * self.diff),
            *(["write"] * self.write),
            *([f"branch {self.branch}"] * bool(self.branch)),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What a display is told: how many of how many are done, and the result that came in last (None: the beginning)."""

    done: int
    of: int
    running: int
    last: RepoResult | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A workspace and what is wanted of it. `only` are names of repositories, `retry` those to be looked at again."""

    workspace: Path
    options: Options
    wish: Wish = Wish()
    only: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()
    jobs: int = 1
    scheduler: str = ""  # of Dask; "": this machine

    def run(self, state: State, say: Callable[[Progress], None]) -> list[Spec]:
        """Do what is left to do; gives the repositories that were asked for. Raises StateError, EngineError."""
        asked = wanted(state.specs(), self.only)
        options = state.decided(self.options)
        self._again(state, asked)
        names = {s.name for s in asked}
        todo = [s for s in state.open(options) if s.name in names]
        waiting = {s.name for s in todo}
        done = [s for s in asked if s.name not in waiting]
        say(Progress(len(done), len(asked), 0))
        with self._scratch() as scratch:
            for spec in done:
                self._affect(state, spec, scratch)
            results = self._results(state, todo, options, scratch)
            for count, (spec, result, running) in enumerate(results, len(done) + 1):
                delivery.no_patch(self._patch(spec))
                state.store(result, options)
                self._affect(state, spec, scratch)
                say(Progress(count, len(asked), running, result))
        return asked

    def revert(self, state: State, codemod: str) -> None:
        """Take back what a codemod has done: written files are put back, and run() looks at these repositories again
        without it, so that what is left is proved anew; their branches move when it comes to them."""
        state.revert(codemod)
        for spec in wanted(state.specs(), self.only):
            result = state.result(spec.name)
            if result is None or not any(codemod in step.codemod.split("+") for step in result.steps):
                continue
            try:
                if state.effects(spec.name).get("write", ("", ""))[0] == "done":
                    delivery.back(result, Path(spec.place))
            except delivery.Undone as why:
                state.affected(spec.name, f"revert {codemod}", "refused", str(why))
            else:
                state.forget([spec.name])

    def _again(self, state: State, asked: list[Spec]) -> None:
        ended = state.ended()
        for word in self.retry:
            if word in ("failed", "refused", "all"):
                state.forget(s.name for s in asked if s.name in ended and word in ("all", ended[s.name]))
            else:
                state.forget(s.name for s in wanted(asked, (word,)))

    def _results(
        self, state: State, todo: list[Spec], options: Options, scratch: Path
    ) -> Iterator[tuple[Spec, RepoResult, int]]:
        """Every result as it comes, with how many are being worked on."""
        if todo:
            with self._engine(scratch, min(self.jobs, len(todo))) as there:
                yield from _through(there, todo, options, state)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        scratch = self.workspace / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed call has left
        scratch.mkdir(parents=True)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _engine(self, scratch: Path, jobs: int) -> AbstractContextManager[Engine]:
        return engine.dask(self.scheduler) if self.scheduler else engine.local(jobs, scratch)

    def _affect(self, state: State, spec: Spec, scratch: Path) -> None:
        """Have the effects that are asked for and not had yet."""
        had = state.effects(spec.name)
        due = [e for e in self.wish.effects if had.get(e, ("", ""))[0] != "done"]
        result = state.result(spec.name) if due else None
        if result is None:
            return
        branch = self.wish.branch
        if not result.changes:  # nothing to do, but for a branch that was made when there was
            due = [f"branch {branch}"] if branch and state.made(spec.name, branch) else []
        for effect in due:
            try:
                state.affected(spec.name, effect, "done", self._do(effect, result, spec, state, scratch))
            except delivery.Undone as why:
                state.affected(spec.name, effect, "refused", str(why))
            except OSError as problem:
                said = f"{problem.filename}: can't be written ({(problem.strerror or str(problem)).lower()})"
                state.affected(spec.name, effect, "refused", said)

    def _patch(self, spec: Spec) -> Path:
        return self.workspace / "patches" / f"{spec.name}.patch"

    def _do(self, effect: str, result: RepoResult, spec: Spec, state: State, scratch: Path) -> str:
        place = Path(spec.place)
        if effect == "diff":
            return delivery.to_patch(result, place, self._patch(spec))
        if effect == "write":
            return delivery.to_tree(result, place)
        branch = self.wish.branch

        def making(commit: str) -> None:
            state.making(spec.name, branch, commit)

        return delivery.to_branch(result, place, branch, scratch, state.made(spec.name, branch), making)


def _through(
    there: Engine, todo: Iterable[Spec], options: Options, state: State
) -> Iterator[tuple[Spec, RepoResult, int]]:
    """Results as they come; never more at the executor than it can soon begin. Raises EngineError where it is gone."""
    left = iter(todo)
    flying: dict[Future[str], Spec] = {}
    hints: dict[str, str] = {}
    begun = renewed = 0
    try:
        while True:
            while len(flying) < there.room + AHEAD and (spec := next(left, None)) is not None:
                if begun >= renewed:  # seldom enough to cost the thousandth repository no more than the first
                    hints, renewed = state.hints(), begun + 1 + begun // 10
                begun += 1
                state.began(spec.name)
                flying[there.submit(spec, replace(options, hints=hints))] = spec
            if not flying:
                return
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                spec = flying.pop(future)
                try:
                    yield spec, loads(RepoResult, future.result()), min(len(flying), there.room)
                except (CancelledError, OSError, TimeoutError) as problem:
                    raise EngineError(
                        f"the engine has gone ({problem or type(problem).__name__}); the same call goes on from here"
                    ) from None
    finally:
        for future in flying:
            with suppress(OSError):
                future.cancel()
