"""One call of migrate: what is open goes to the engine, what comes back is kept, what was asked for is done with it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gradfix.batch import delivery, engine
from gradfix.batch.engine import Engine, EngineError
from gradfix.batch.order import largest_first
from gradfix.batch.outcome import DONE, PART, REFUSED, Effects
from gradfix.batch.state import State, wanted
from gradfix.batch.values import Branch, Options, RepoResult, Spec, Written, loads
from gradfix.source import beside


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
    """What a display is told: how many of how many are done, the result that came in last (None: the beginning), and
    what came of its effects."""

    done: int
    of: int
    running: int
    last: RepoResult | None = None
    effects: Effects = field(default_factory=dict)


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
        state.sweep()
        self._again(state, asked)
        stuck = self._taken_back(state, asked)
        names = {s.name for s in asked} - stuck
        how = {s.name: state.decided(self._how(state, s.name)) for s in asked}
        todo = [s for s in asked if s.name in names and not state.has(s.name, how[s.name])]
        waiting = {s.name for s in todo}
        done = [s for s in asked if s.name not in waiting]
        say(Progress(len(done), len(asked), 0))
        with self._scratch() as scratch:
            for spec in done:
                if spec.name not in stuck:
                    self._affect(state, spec, scratch)
            results = self._results(state, todo, how, scratch)
            for count, (spec, result, running) in enumerate(results, len(done) + 1):
                renewed = ("diff",) if delivery.no_patch(self._patch(spec)) else ()
                state.store(result, how[spec.name])
                self._affect(state, spec, scratch, renewed)
                say(Progress(count, len(asked), running, result, state.effects(spec.name)))
        if reverted := set(state.reverted()):
            for spec in asked:
                if spec.name not in stuck:
                    self._left_on_branches(state, spec, reverted)
        return asked

    def _how(self, state: State, name: str) -> Options:
        """What a repository is looked at with. What was proved is not read instead: without `prove`, the options that
        it was proved with hold, but for those that this call chooses."""
        proved = None if self.options.prove else state.proved(name)
        if proved is None:
            return self.options
        usual = Options()
        said = {f.name: getattr(self.options, f.name) for f in fields(Options)}
        return replace(proved, **{k: v for k, v in said.items() if k == "only" or v != getattr(usual, k)})

    def revert(self, state: State, codemod: str) -> None:
        """Have what a codemod has done taken back: run() puts written files back, and looks at these repositories again
        without it, so that what is left is proved anew; their branches move when it comes to them."""
        state.revert(codemod)
        for spec in wanted(state.specs(), self.only):
            written, result = state.written(spec.name), state.result(spec.name)
            if codemod in written.codemods:
                back = tuple(sorted({*written.back, codemod}))
                state.note_written(spec.name, replace(written, back=back))
            elif result is not None and any(codemod in step.codemod.split("+") for step in result.steps):
                state.forget([spec.name])

    def drop(self, state: State, words: Iterable[str]) -> dict[str, str]:
        """Take repositories out of the workspace; nothing of theirs is touched. Gives, by name, what was done to them
        and stays. Raises StateError, and then none is dropped."""
        out = {}
        for spec in wanted(state.specs(), words, "--drop"):
            out[spec.name] = _stays(state, spec)
            delivery.no_patch(self._patch(spec))
            (self.workspace / "pull-requests" / f"{spec.name}.md").unlink(missing_ok=True)
            state.drop(spec.name)
        return out

    def _taken_back(self, state: State, asked: list[Spec]) -> set[str]:
        """Put back what was written and is not wanted any more; gives the names of those where that can't be done. They
        stay as they are, and it is tried again and said again each time."""
        stuck = set()
        for spec in asked:
            written = state.written(spec.name)
            if not written.back:
                continue
            try:
                with _staging(state, spec, written.changes) as token:
                    delivery.back(written, spec, token)
            except delivery.Undone as why:
                state.affected(spec.name, "revert", REFUSED, str(why))
                stuck.add(spec.name)
            else:
                state.note_written(spec.name, Written())
                state.forget([spec.name])
        return stuck

    def _left_on_branches(self, state: State, spec: Spec, reverted: set[str]) -> None:
        """Say which branches still have what was taken back: they move when they are asked for."""
        left = [
            f"branch {name} still has {', '.join(sorted(codemods))}: --branch {name} takes it back"
            for name, made in state.branches(spec.name).items()
            if (codemods := made.codemods & reverted) and delivery.is_there(Path(spec.place), name, made)
        ]
        if left:
            state.affected(spec.name, "revert", REFUSED, "; ".join(left))
        else:
            state.unaffected(spec.name, "revert")

    def _again(self, state: State, asked: list[Spec]) -> None:
        ended = state.ended()
        for word in self.retry:
            if word in ("failed", "refused", "all"):
                state.forget(s.name for s in asked if s.name in ended and word in ("all", ended[s.name]))
            else:
                named = [s.name for s in wanted(asked, (word,), "--retry")]
                state.forget(named)
                for name in named:
                    if state.written(name).back:  # it was taken back by hand, or is to stay
                        state.note_written(name, Written())

    def _results(
        self, state: State, todo: list[Spec], how: Mapping[str, Options], scratch: Path
    ) -> Iterator[tuple[Spec, RepoResult, int]]:
        """Every result as it comes, with how many are being worked on."""
        if todo:
            with self._engine(scratch, min(self.jobs, len(todo))) as there:
                yield from _through(there, todo, how, state)

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

    def _affect(self, state: State, spec: Spec, scratch: Path, renewed: tuple[str, ...] = ()) -> None:
        """Have the effects that are asked for and not had yet, and those that a new result has to have `renewed`."""
        had = state.effects(spec.name)
        due = [e for e in dict.fromkeys((*self.wish.effects, *renewed)) if had.get(e, ("", ""))[0] != DONE]
        result = state.result(spec.name) if due else None
        if result is None:
            return
        branch = self.wish.branch
        for effect, (came, _) in had.items():
            if came == REFUSED and branch and effect.startswith("branch ") and effect not in due:
                state.unaffected(spec.name, effect)  # another name is the answer to it
        if not result.changes:  # nothing to do, but for a branch that was made when there was
            due = [f"branch {branch}"] if branch in state.branches(spec.name) else []
        for effect in due:
            try:
                said = self._do(effect, result, spec, state, scratch)
                lacks = delivery.uncommitted(result) if effect.startswith("branch ") else ""
                state.affected(
                    spec.name,
                    effect,
                    PART if lacks else DONE,
                    f"{said}; without the rest: {lacks}" if lacks else said,
                )
            except delivery.Undone as why:
                state.affected(spec.name, effect, REFUSED, str(why))
            except OSError as problem:
                said = f"{problem.filename}: can't be written ({(problem.strerror or str(problem)).lower()})"
                state.affected(spec.name, effect, REFUSED, said)

    def _patch(self, spec: Spec) -> Path:
        return self.workspace / "patches" / f"{spec.name}.patch"

    def _do(self, effect: str, result: RepoResult, spec: Spec, state: State, scratch: Path) -> str:
        place = Path(spec.place)
        if effect == "diff":
            return delivery.to_patch(result, place, self._patch(spec))
        if effect == "write":
            return self._write(result, spec, state)
        branch = self.wish.branch
        made = state.branches(spec.name).get(branch, Branch())

        def making(what: Branch) -> None:
            state.making(spec.name, branch, what)

        return delivery.to_branch(result, place, branch, scratch, made, making)

    def _write(self, result: RepoResult, spec: Spec, state: State) -> str:
        before = state.written(spec.name)
        state.note_written(spec.name, before.then(result))
        try:
            with _staging(state, spec, result.changes) as token:
                return delivery.to_tree(result, Path(spec.place), token)
        except BaseException:  # nothing was written
            state.note_written(spec.name, before)
            raise


def _stays(state: State, spec: Spec) -> str:
    """What was done to a repository that --revert could still take back, as the end of a sentence."""
    written = state.written(spec.name)
    done = [f"{', '.join(written.changes)} written ({', '.join(sorted(written.codemods))})"] * bool(
        written.changes
    )
    done += [
        f"branch {name} ({', '.join(sorted(made.codemods))})"
        for name, made in state.branches(spec.name).items()
        if delivery.is_there(Path(spec.place), name, made)
    ]
    return f". This stays, and --revert can't take it back any more: {'; '.join(done)}" if done else ""


@contextmanager
def _staging(state: State, spec: Spec, paths: Iterable[str]) -> Iterator[str]:
    """A token for source.write, whose staged files are remembered meanwhile."""
    token = secrets.token_hex(8)
    with state.staging(beside(Path(spec.place, path), token) for path in paths):
        yield token


def _through(
    there: Engine, todo: Iterable[Spec], how: Mapping[str, Options], state: State
) -> Iterator[tuple[Spec, RepoResult, int]]:
    """Results as they come. Nothing waits at the executor: what waits there waits behind one worker, and would still
    when another has nothing to do. Raises EngineError where it is gone."""
    left = largest_first(todo)
    flying: dict[Future[str], Spec] = {}
    hints: dict[str, str] = {}
    begun = renewed = 0

    def fill() -> None:
        nonlocal begun, renewed, hints
        while len(flying) < there.room and (spec := next(left, None)) is not None:
            if begun >= renewed:  # seldom enough to cost the thousandth repository no more than the first
                hints, renewed = state.hints(), begun + 1 + begun // 10
            begun += 1
            state.began(spec.name)
            flying[there.submit(spec, replace(how[spec.name], hints=hints))] = spec

    try:
        fill()
        while flying:
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                spec = flying.pop(future)
                try:
                    result = loads(RepoResult, future.result())
                except (CancelledError, OSError, TimeoutError) as problem:
                    why = f" ({problem})" if str(problem) else ""
                    raise EngineError(f"the engine has gone{why}; the same call goes on from here") from None
                fill()  # before the result is kept: nobody waits for that
                yield spec, result, len(flying)
    finally:
        for future in flying:
            with suppress(OSError):
                future.cancel()
