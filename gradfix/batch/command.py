"""One call of ``gradfix migrate``: the workspace held, the batch run, the reports written, the totals said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradfix.batch import written
from gradfix.batch.display import display
from gradfix.batch.engine import EngineError
from gradfix.batch.git import GitError, no_branch
from gradfix.batch.intake import listed, specs
from gradfix.batch.migrate import Batch
from gradfix.batch.outcome import SHOWN, UNAPPLIED, outcome
from gradfix.batch.state import State, StateError, aside, locked, wanted
from gradfix.batch.summary import summary
from gradfix.batch.values import Spec
from gradfix.batch.words import sentence
from gradfix.fingerprint import is_fingerprint
from gradfix.report.layout import safe
from gradfix.report.terminal import Terminal


class CommandError(Exception):
    """Why the call came to nothing, as a sentence."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left to be done by somebody: faults that are not cured, repositories and effects that came to nothing."""

    faults: int
    failed: int


@dataclass(frozen=True, slots=True)
class Command:
    """What was said on the command line."""

    batch: Batch
    places: tuple[str, ...] = ()
    list_: Path | None = None
    accept: tuple[str, ...] = ()  # fingerprints
    refuse: tuple[str, ...] = ()
    reconsider: tuple[str, ...] = ()
    revert: tuple[str, ...] = ()  # codemods

    def go(self, terminal: Terminal) -> Left:
        """Do it. Raises CommandError."""
        self._checked()
        if any(not place.strip() for place in self.places):
            raise CommandError("an empty REPO names nothing; . is the directory that this is called in")
        new = specs([*self.places, *self._listed()])
        workspace = self.batch.workspace
        if not new and not (workspace / "state.db").is_file():
            raise CommandError(
                f"name repositories (gradfix migrate REPO …): {workspace} holds no migration to go on with"
            )
        with self._opened(new) as state:
            state.add(new)
            for name in self.reconsider:
                state.undecide(name)
            for name in self.accept:
                state.decide(name, "accept")
            for name in self.refuse:
                state.decide(name, "refuse")
            for name in self.revert:
                self.batch.revert(state, name)
            try:
                with display(terminal) as say:
                    done = self.batch.run(state, say)
            finally:
                written.write(workspace, state, state.specs())
            return self._close(state, done, terminal, (*self.batch.wish.effects, "revert"))

    def status(self, terminal: Terminal) -> Left:
        """Say how far it is. Raises CommandError."""
        try:
            state = State(self.batch.workspace, create=False)
            asked = wanted(state.specs(), self.batch.only)
        except StateError as problem:
            raise CommandError(str(problem)) from None
        ended = state.ended()
        for spec in asked:
            effects = state.effects(spec.name)
            said = [
                f"{effect} refused: {e}" if came == "refused" else e for effect, (came, e) in effects.items()
            ]
            terminal.write(safe("  ".join([f"{ended.get(spec.name, 'waiting'):8}", spec.name, *said])))
        return self._close(state, asked, terminal)

    def _checked(self) -> None:
        for name in (*self.batch.options.only, *self.refuse, *self.reconsider):
            if not is_fingerprint(name):
                raise CommandError(f"{name!r} is no fingerprint; the reports show them beside every fault")
        branch = self.batch.wish.branch
        try:
            if branch and (why := no_branch(branch)):
                raise CommandError(f"--branch: git takes no branch {why}")
        except GitError as problem:
            raise CommandError(f"--branch: {problem}") from None

    def _listed(self) -> list[str]:
        if self.list_ is None:
            return []
        try:
            lines = listed(self.list_.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError as problem:
            raise CommandError(
                f"{self.list_}: can't be read ({(problem.strerror or str(problem)).lower()})"
            ) from None
        if any("\0" in line for line in lines):
            raise CommandError(f"{self.list_}: no list of repositories, one a line")
        return [str(self.list_.parent / line) for line in lines]

    @contextmanager
    def _opened(self, new: list[Spec]) -> Iterator[State]:
        try:
            aside(self.batch.workspace, new)
            with locked(self.batch.workspace):
                state = State(self.batch.workspace, create=bool(new))
                try:
                    yield state
                finally:
                    state.close()
        except (StateError, EngineError) as problem:
            raise CommandError(str(problem)) from None
        except sqlite3.OperationalError as problem:  # a full disk
            raise CommandError(f"{self.batch.workspace}: can't be used ({problem})") from None
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise CommandError(
                f"{problem.filename or self.batch.workspace}: can't be used ({reason})"
            ) from None

    def _close(
        self, state: State, asked: list[Spec], terminal: Terminal, effects: tuple[str, ...] | None = None
    ) -> Left:
        """The end of a call that was about these `effects` (None: about all that were ever asked for)."""
        results = [r for s in asked if (r := state.result(s.name)) is not None]
        refused = [
            f"{s.name}: {effect}: {said}"
            for s in asked
            for effect, (result, said) in state.effects(s.name).items()
            if result == "refused" and (effects is None or effect in effects)
        ]
        if not terminal.quiet:
            for line in refused:
                terminal.err.out(safe(line), highlight=False)
            terminal.write(safe(sentence(summary(state, asked)["totals"])))
            workspace = self.batch.workspace
            if (workspace / "report.json").is_file():
                page = (workspace / "report.html").is_file()
                more = (
                    ", report.html" if page else " (report.html needs jinja2: pip install 'gradfix[batch]')"
                )
                terminal.write(f"Reports: {workspace}/report.md, report.json{more}")
        left = ("", SHOWN, UNAPPLIED)
        faults = sum(
            f.severity != "note" and outcome(f, state.effects(r.name)) in left
            for r in results
            for f in r.faults
        )
        return Left(faults, sum(r.ended != "done" or bool(r.crashes) for r in results) + len(refused))
