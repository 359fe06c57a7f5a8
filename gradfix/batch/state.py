"""What a workspace remembers: SQLite in WAL mode, so that a kill at any moment loses what was in the air and nothing
else. One process works in a workspace at a time; others may look.

A result is stored whole or not at all. Texts are ASCII JSON: a path may hold bytes that are no text.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from gradfix.batch.values import Branch, Ended, Options, RepoResult, Spec, Written, dumps, loads
from gradfix.verdict import HELD

FORMAT = "3"
MADE = {"lock", ".gitignore"}  # what is in a workspace before its state
HINTS = 1000  # at most: they travel with every repository
TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS repos (
    name TEXT PRIMARY KEY, place TEXT NOT NULL UNIQUE, position INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
    name TEXT PRIMARY KEY REFERENCES repos, options TEXT NOT NULL, ended TEXT NOT NULL, result TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS faults (
    name TEXT NOT NULL REFERENCES repos, fingerprint TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    codemod TEXT NOT NULL, verdict TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attempts (name TEXT NOT NULL REFERENCES repos, began TEXT NOT NULL, ended TEXT);
CREATE TABLE IF NOT EXISTS effects (
    name TEXT NOT NULL REFERENCES repos, effect TEXT NOT NULL, result TEXT NOT NULL, said TEXT NOT NULL,
    PRIMARY KEY (name, effect)
);
CREATE TABLE IF NOT EXISTS decisions (fingerprint TEXT PRIMARY KEY, decision TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_fingerprint ON faults (fingerprint);
"""


class StateError(Exception):
    """Why a workspace can't be used, as a sentence."""


def aside(workspace: Path, specs: Iterable[Spec]) -> None:
    """See to it that a workspace inside a folder that is migrated is no part of it, for git and for who reads its
    sources: ``gradfix migrate .`` makes one there, and its reports are not the project's. Raises StateError where it
    would lie among files that are, or is a folder of something else; the repositories themselves may lie in it."""
    specs = list(specs)
    if specs and workspace.is_dir() and not (workspace / "state.db").is_file():
        own = {(workspace / n) for n in MADE} | {
            p for s in specs for p in (Path(s.place), *Path(s.place).parents)
        }
        foreign = next((file for file in sorted(workspace.iterdir()) if file not in own), None)
        if foreign is not None and not any(workspace.is_relative_to(s.place) for s in specs):
            raise StateError(
                f"{workspace} is a folder of something else (it holds {foreign.name}); name another --workspace"
            )
    for place in (Path(spec.place) for spec in specs):
        if not workspace.is_relative_to(place):
            continue
        around = [folder for folder in (workspace, *workspace.parents) if folder.is_relative_to(place)]
        if any((f / "HEAD").is_file() and (f / "objects").is_dir() for f in around):
            raise StateError(f"{workspace} lies in git's own files; name another --workspace")
        mark = workspace / ".gitignore"
        ours = (workspace / "state.db").is_file() or not workspace.is_dir() or not any(workspace.iterdir())
        if workspace == place or not ours:
            raise StateError(f"{workspace} holds files of {place}; name a folder of its own as --workspace")
        workspace.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text("*\n", encoding="ascii")


@contextmanager
def locked(workspace: Path) -> Iterator[None]:
    """Hold the workspace. Raises StateError with who holds it. A kill lets go of it too."""
    workspace.mkdir(parents=True, exist_ok=True)
    with open(workspace / "lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise StateError(
                f"{workspace} is in use by {holder}; --status looks without disturbing it"
            ) from None
        lock.truncate(0)
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        lock.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
        lock.flush()
        yield
        lock.truncate(0)


class State:
    """The database of a workspace. Raises StateError where there is none, or one of another version."""

    def __init__(self, workspace: Path, *, create: bool = True) -> None:
        file = workspace / "state.db"
        if not create and not (file.is_file() and file.stat().st_size):
            raise StateError(f"{workspace} holds no migration")
        try:
            self._db = sqlite3.connect(file, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(
                "PRAGMA synchronous = NORMAL"
            )  # in WAL mode: whole after a crash of the machine too
            self._db.executescript(TABLES)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (FORMAT,))
            (found,) = self._db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        except sqlite3.DatabaseError as problem:
            raise StateError(f"{file} can't be used ({problem}); another --workspace can") from None
        if found != FORMAT:
            raise StateError(f"{file} was made by another version of gradfix (format {found}, here {FORMAT})")

    def close(self) -> None:
        """Write back and let go."""
        self._db.close()

    # ---- repositories

    def add(self, specs: Iterable[Spec]) -> None:
        """Take in what is new; a name that is taken by another place gets a number."""
        with self._whole():
            places = {place for (place,) in self._db.execute("SELECT place FROM repos")}
            for spec in specs:
                place = json.dumps(spec.place)
                if place in places:
                    continue
                name, number = spec.name, 2
                while self._db.execute("SELECT 1 FROM repos WHERE name = ?", (name,)).fetchone():
                    name, number = f"{spec.name}-{number}", number + 1
                self._db.execute(
                    "INSERT INTO repos SELECT ?, ?, coalesce(max(position), 0) + 1 FROM repos", (name, place)
                )
                places.add(place)

    def drop(self, name: str) -> None:
        """Know nothing of a repository any more."""
        with self._whole():
            for table in ("results", "faults", "effects", "attempts", "repos"):
                self._db.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
            mark = f"branch {name} "
            self._db.execute("DELETE FROM meta WHERE substr(key, 1, ?) = ?", (len(mark), mark))
            for what in ("proved", "spared", "written"):
                self._db.execute("DELETE FROM meta WHERE key = ?", (f"{what} {name}",))

    def specs(self) -> list[Spec]:
        """All of them, in the order in which they came."""
        rows = self._db.execute("SELECT name, place FROM repos ORDER BY position")
        return [Spec(name, json.loads(place)) for name, place in rows]

    def has(self, name: str, options: Options) -> bool:
        """Is there a result of it with these options and the decisions as they are now?"""
        row = self._db.execute("SELECT options FROM results WHERE name = ?", (name,)).fetchone()
        return row is not None and row[0] == self._wanted(name, options)

    def proved(self, name: str) -> Options | None:
        """What a repository was proved with, if it was."""
        text = self._noted(f"proved {name}")
        return loads(Options, text) if text else None

    # ---- results

    def began(self, name: str) -> None:
        """Note that a repository is being worked on."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._db.execute("INSERT INTO attempts VALUES (?, ?, NULL)", (name, now))

    def store(self, result: RepoResult, options: Options) -> None:
        """Keep a result in the place of an earlier one."""
        with self._whole():
            name = result.name
            self._forget(name)
            for fault in result.faults:
                best = fault.cures[0] if fault.cures else None
                self._db.execute(
                    "INSERT INTO faults VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        name,
                        fault.fingerprint,
                        fault.kind,
                        fault.status,
                        best.codemod if best else "",
                        best.verdict if best else "",
                    ),
                )
            self._db.execute(
                "INSERT INTO results VALUES (?, ?, ?, ?)",
                (name, self._wanted(name, options), result.ended, dumps(result)),
            )
            if options.prove:
                made = dataclasses.replace(options, only=(), spared=(), granted=(), without=(), hints={})
                self._note(f"proved {name}", dumps(made))
            self._db.execute(
                "UPDATE attempts SET ended = ? WHERE name = ? AND ended IS NULL", (result.ended, name)
            )

    def hints(self) -> dict[str, str]:
        """By fingerprint, the codemod that held most often, for the faults that are met most often."""
        marks = ", ".join("?" * len(HELD))
        rows = self._db.execute(
            "SELECT fingerprint, codemod, count(*) AS times FROM faults "
            f"WHERE verdict IN ({marks}) AND codemod != '' GROUP BY fingerprint, codemod "
            "ORDER BY times DESC, fingerprint, codemod LIMIT ?",
            (*HELD, HINTS),
        )
        out: dict[str, str] = {}
        for name, codemod, _ in rows:
            out.setdefault(name, codemod)
        return out

    def forget(self, names: Iterable[str]) -> None:
        """Look at these again."""
        with self._whole():
            for name in names:
                self._forget(name)

    def ended(self) -> dict[str, Ended]:
        """How every repository that has a result ended."""
        return dict(self._db.execute("SELECT name, ended FROM results"))

    def result(self, name: str) -> RepoResult | None:
        """What is known of a repository."""
        row = self._db.execute("SELECT result FROM results WHERE name = ?", (name,)).fetchone()
        return loads(RepoResult, row[0]) if row else None

    def results(self) -> Iterator[RepoResult]:
        """All results, in the order of the repositories, one in memory at a time."""
        for spec in self.specs():
            result = self.result(spec.name)
            if result is not None:
                yield result

    def attempts(self) -> dict[str, int]:
        """How often each repository was begun."""
        return dict(self._db.execute("SELECT name, count(*) FROM attempts GROUP BY name"))

    # ---- effects

    def effects(self, name: str) -> dict[str, tuple[str, str]]:
        """What came of every effect on a repository: ``done`` or ``refused``, and the sentence."""
        rows = self._db.execute(
            "SELECT effect, result, said FROM effects WHERE name = ? ORDER BY effect", (name,)
        )
        return {effect: (result, said) for effect, result, said in rows}

    def affected(self, name: str, effect: str, result: str, said: str) -> None:
        """Note what came of an effect."""
        self._db.execute("INSERT OR REPLACE INTO effects VALUES (?, ?, ?, ?)", (name, effect, result, said))

    def unaffected(self, name: str, effect: str) -> None:
        """Forget what came of an effect."""
        self._db.execute("DELETE FROM effects WHERE name = ? AND effect = ?", (name, effect))

    def branches(self, name: str) -> dict[str, Branch]:
        """The branches of a repository that gradfix has made."""
        mark = f"branch {name} "
        rows = self._db.execute(
            "SELECT key, value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key", (len(mark), mark)
        )
        return {key.removeprefix(mark): loads(Branch, value) for key, value in rows}

    def making(self, name: str, branch: str, made: Branch) -> None:
        """Note, before it happens, what a branch is made to be; one of no commits is none."""
        if made.commits:
            self._note(f"branch {name} {branch}", dumps(made))
        else:
            self._db.execute("DELETE FROM meta WHERE key = ?", (f"branch {name} {branch}",))

    def written(self, name: str) -> Written:
        """What gradfix has written into a repository's working tree."""
        text = self._noted(f"written {name}")
        return loads(Written, text) if text else Written()

    def note_written(self, name: str, written: Written) -> None:
        """Note it, before it happens."""
        self._note(f"written {name}", dumps(written) if written.changes else "")

    @contextmanager
    def staging(self, files: Iterable[Path]) -> Iterator[None]:
        """Remember, meanwhile, files that a kill would leave behind in somebody's tree."""
        self._note("staged", json.dumps([str(file) for file in files]))
        try:
            yield
        finally:
            self._note("staged", "")

    def sweep(self) -> None:
        """Take away what a killed call has staged."""
        for file in json.loads(self._noted("staged") or "[]"):
            Path(file).unlink(missing_ok=True)
        self._note("staged", "")

    # ---- decisions

    def decide(self, fingerprint: str, decision: str) -> None:
        """``accept`` or ``refuse`` a group: its repositories are looked at again."""
        if not self._db.execute("SELECT 1 FROM faults WHERE fingerprint = ?", (fingerprint,)).fetchone():
            known = self._db.execute(
                "SELECT 1 FROM decisions WHERE fingerprint = ?", (fingerprint,)
            ).fetchone()
            if not known:
                raise StateError(f"no fault of this workspace has the fingerprint {fingerprint}")
        self._db.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?)", (fingerprint, decision))

    def undecide(self, fingerprint: str) -> None:
        """Take back what was decided on a group: its repositories are looked at again."""
        if not self._db.execute("DELETE FROM decisions WHERE fingerprint = ?", (fingerprint,)).rowcount:
            raise StateError(f"nothing was decided on {fingerprint}")

    def decisions(self) -> dict[str, str]:
        """What was decided, by fingerprint."""
        return dict(self._db.execute("SELECT fingerprint, decision FROM decisions ORDER BY fingerprint"))

    def decided(self, options: Options) -> Options:
        """The options with the decisions in them."""
        made = self.decisions()
        spared = tuple(f for f, d in made.items() if d == "refuse")
        granted = tuple(f for f, d in made.items() if d == "accept")
        return dataclasses.replace(options, spared=spared, granted=granted, without=self.reverted())

    def revert(self, codemod: str) -> None:
        """No more cures by this codemod in this workspace. What it has done is the caller's to undo."""
        self._note("reverted", " ".join(sorted({*self.reverted(), codemod})))

    def reverted(self) -> tuple[str, ...]:
        """The codemods that were taken back."""
        return tuple(self._noted("reverted").split())

    # ---- helpers

    def _noted(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def _note(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _wanted(self, name: str, options: Options) -> str:
        """What a result of `name` must have been made with to count: decisions on groups it has or had a part in."""
        return f"{options.key} {' '.join(options.only)} {self._own(name, options)}"

    def _own(self, name: str, options: Options) -> str:
        ever = {f for (f,) in self._db.execute("SELECT fingerprint FROM faults WHERE name = ?", (name,))}
        ever |= set(self._noted(f"spared {name}").split())
        return " ".join(f for f in (*options.spared, "|", *options.granted) if f == "|" or f in ever)

    def _forget(self, name: str) -> None:
        had = {f for (f,) in self._db.execute("SELECT fingerprint FROM faults WHERE name = ?", (name,))}
        had |= set(self._noted(f"spared {name}").split())
        self._note(f"spared {name}", " ".join(sorted(had)))
        for table in ("results", "faults", "effects"):
            self._db.execute(f"DELETE FROM {table} WHERE name = ?", (name,))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def wanted(specs: Iterable[Spec], only: Iterable[str], flag: str = "--only") -> list[Spec]:
    """Those that `only` names: by name, by place, or by a shell's pattern of names. Raises StateError with the `flag`
    that named them."""
    specs, only = list(specs), list(only)
    for word in only:
        if not any(_named(word, spec) for spec in specs):
            raise StateError(f"{flag} {word}: no repository of this workspace is called that")
    return [s for s in specs if not only or any(_named(word, s) for word in only)]


def _named(word: str, spec: Spec) -> bool:
    return fnmatchcase(spec.name, word) or os.path.realpath(word) == spec.place
