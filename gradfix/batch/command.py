"""One call of ``gradfix migrate``: the workspace held, the batch run, the reports written, the totals said."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gradfix.batch import written
from gradfix.batch.display import display
from gradfix.batch.engine import EngineError
from gradfix.batch.git import GitError, no_branch
from gradfix.batch.intake import listed, nothing, specs
from gradfix.batch.migrate import Batch
from gradfix.batch.outcome import DONE, REFUSED, SHOWN, UNAPPLIED, outcome
from gradfix.batch.state import State, StateError, aside, locked, wanted
from gradfix.batch.summary import summary
from gradfix.batch.values import Spec
from gradfix.batch.words import sentence
from gradfix.fingerprint import is_fingerprint
from gradfix.report.layout import safe
from gradfix.report.terminal import Terminal

SAID = 10  # of a list's repositories that are not there, so many are named


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
    drop: tuple[str, ...] = ()  # repositories

    def go(self, terminal: Terminal) -> Left:
        """Do it. Raises CommandError."""
        self._checked()
        new, missing = self._named()
        workspace = self.batch.workspace
        self._tell(missing, terminal)
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
            return self._close(state, done, terminal, (*self.batch.wish.effects, "revert"), missing)

    def dropping(self, terminal: Terminal) -> Left:
        """Take repositories out of the workspace, say what was done to them, and do nothing else. Raises
        CommandError."""
        workspace = self.batch.workspace
        if not (workspace / "state.db").is_file():
            raise CommandError(f"{workspace} holds no migration")
        with self._opened([]) as state:
            for name, stays in self.batch.drop(state, self.drop).items():
                terminal.write(safe(f"{name}: dropped{stays}"))
            written.write(workspace, state, state.specs())
            self._close(state, state.specs(), terminal, ())
        return Left(0, 0)

    def status(self, terminal: Terminal) -> Left:
        """Say how far it is. Raises CommandError."""
        try:
            return self._status(terminal)
        except sqlite3.Error as problem:
            raise CommandError(f"{self.batch.workspace}: can't be used ({problem})") from None

    def _status(self, terminal: Terminal) -> Left:
        try:
            state = State(self.batch.workspace, create=False)
            asked = wanted(state.specs(), self.batch.only)
        except StateError as problem:
            raise CommandError(str(problem)) from None
        ended = state.ended()
        for spec in asked:
            effects = state.effects(spec.name)
            said = [
                f"{effect} refused: {e}" if came == REFUSED else e for effect, (came, e) in effects.items()
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

    def _named(self) -> tuple[list[Spec], list[str]]:
        """What the call names, and of its list, why some of it is nothing. Raises CommandError where a REPO is."""
        if any(not place.strip() for place in self.places):
            raise CommandError("an empty REPO names nothing; . is the directory that this is called in")
        known = self._known() if self.places or self.list_ else set()
        for place in self.places:
            if (why := nothing(place)) and os.path.realpath(place) not in known:
                raise CommandError(f"{place}: {why}; nothing was done")
        listed_ = [(place, nothing(place)) for place in self._listed()]
        there = [place for place, why in listed_ if not why or os.path.realpath(place) in known]
        if listed_ and not there:
            raise CommandError(f"{self.list_}: nothing that it names is there ({': '.join(listed_[0])})")
        new = specs([*self.places, *there])
        return new, [f"{self.list_}: {place}: {why}" for place, why in listed_ if place not in there]

    def _known(self) -> set[str]:
        """Where the repositories of the workspace are, or were."""
        try:
            state = State(self.batch.workspace, create=False)
        except StateError:  # there is none yet, or _opened() says why it can't be used
            return set()
        try:
            return {spec.place for spec in state.specs()}
        finally:
            state.close()

    def _tell(self, missing: Sequence[str], terminal: Terminal) -> None:
        """Say what a list names and is not there: before the work, which may take a night, and after it."""
        more = f"{self.list_}: {len(missing) - SAID} more that are not there"
        for line in [*missing[:SAID], *[more] * bool(missing[SAID:])]:
            terminal.err.out(safe(line), highlight=False)

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
        except sqlite3.Error as problem:  # a full disk, a page that is damaged
            raise CommandError(f"{self.batch.workspace}: can't be used ({problem})") from None
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise CommandError(
                f"{problem.filename or self.batch.workspace}: can't be used ({reason})"
            ) from None

    def _close(
        self,
        state: State,
        asked: list[Spec],
        terminal: Terminal,
        effects: tuple[str, ...] | None = None,
        missing: Sequence[str] = (),
    ) -> Left:
        """The end of a call that was about these `effects` (None: about all that were ever asked for)."""
        results = [r for s in asked if (r := state.result(s.name)) is not None]
        refused = [
            f"{s.name}: {effect}: {said}"
            for s in asked
            for effect, (result, said) in state.effects(s.name).items()
            if result != DONE and (effects is None or effect in effects)
        ]
        if not terminal.quiet:
            for line in refused:
                terminal.err.out(safe(line), highlight=False)
            self._tell(missing, terminal)
            terminal.write(safe(sentence(summary(state, asked)["totals"])))
            workspace = self.batch.workspace
            if (workspace / "report.json").is_file():
                page = (workspace / "report.html").is_file()
                more = ", report.html" if page else ""
                if find_spec("jinja2") is None:
                    more += " (report.html needs jinja2: pip install 'gradfix[batch]')"
                terminal.write(safe(f"Reports: {workspace}/report.md, report.json{more}"))
        left = ("", SHOWN, UNAPPLIED)
        faults = sum(
            f.severity != "note" and outcome(f, state.effects(r.name)) in left
            for r in results
            for f in r.faults
        )
        failed = sum(r.ended != "done" or bool(r.crashes) for r in results)
        return Left(faults, failed + len(refused) + len(missing))
