"""git's plumbing on repositories of strangers: nothing of theirs is executed.

Hooks, filters, fsmonitor, pagers, credential helpers, lazy fetches of partial clones: a repository's own configuration
can name programs for all of these. Only commands that read and write objects, indexes of our own and refs are called
here, none that looks at a working tree, and what could still start a program is turned off by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GITLINK, LINK = "160000", "120000"
OFF = (
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.fsmonitor=false",
    "protocol.allow=never",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "safe.directory=*",  # another user's configuration does no harm where nothing of it is executed
)
SECONDS = 120.0
SILENT = "git refused, and did not say why"
LONGEST = 250  # bytes of a part of a branch's name: a file of this name, and a lock beside it
_LOCK = re.compile(r"Unable to create '(.+\.lock)': File exists")


class GitError(Exception):
    """What git refused, as a sentence."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A tracked file: its mode, its object, its size in bytes where that was asked for."""

    mode: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Repository:
    """A git directory; `work` is its working tree, None where it is bare."""

    directory: Path
    work: Path | None

    def head(self) -> str:
        """The commit that is checked out. Raises GitError where there is none."""
        try:
            return self._text("rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}")
        except GitError as problem:
            if str(problem) != SILENT:
                raise
            raise GitError("nothing is committed in it, or its HEAD can't be read") from None

    def branch(self) -> str:
        """The branch that is checked out; "" where HEAD is detached."""
        try:
            return self._text("symbolic-ref", "--quiet", "HEAD").removeprefix("refs/heads/")
        except GitError:
            return ""

    def shallow(self) -> bool:
        """Whether its history ends where a clone was cut."""
        return self._text("rev-parse", "--is-shallow-repository") == "true"

    def tree(self, commit: str, sizes: bool = False) -> dict[str, Blob]:
        """The files of a commit, by path; with their `sizes`, for which all of them must be there."""
        out = {}
        for line in self._git("ls-tree", "-r", *["-l"] * sizes, "-z", "--full-tree", commit).split(b"\0"):
            if line:
                about, _, path = line.partition(b"\t")
                mode, _, name, *size = about.decode().split()
                out[os.fsdecode(path)] = Blob(mode, name, int(size[0]) if size and size[0].isdigit() else 0)
        return out

    def staged(self, tree: Mapping[str, Blob]) -> set[str]:
        """The files of a commit's `tree` that the index has otherwise: what was added there would be committed next,
        wherever the working tree is."""
        index: dict[str, set[str]] = {}
        for line in self._git("ls-files", "--stage", "-z").split(b"\0"):
            if line:
                about, _, path = line.partition(b"\t")
                _, name, stage = about.decode().split()
                index.setdefault(os.fsdecode(path), set()).add(name if stage == "0" else "")
        return {path for path, blob in tree.items() if index.get(path) != {blob.name}}

    def contents(self, blobs: Iterable[str]) -> Iterator[bytes]:
        """The contents of blobs, in order. Raises GitError where one is missing."""
        process = subprocess.Popen(
            self._command("cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            for name in blobs:
                process.stdin.write(f"{name}\n".encode())
                process.stdin.flush()
                about = process.stdout.readline().split()
                if len(about) != 3:
                    raise GitError(f"object {name} is not in it (a partial clone?)")
                yield process.stdout.read(int(about[2]))
                process.stdout.read(1)

    def ref(self, branch: str) -> str:
        """The commit a branch is at; "" where there is no such branch."""
        try:
            return self._text("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}")
        except GitError:
            return ""

    def beside(self, branch: str) -> str:
        """A branch beside which git can have none called `branch`: one is a folder of the other; "" where there is
        none."""
        above = [branch[:n] for n, letter in enumerate(branch) if letter == "/"]
        below = self._text("for-each-ref", "--format=%(refname)", f"refs/heads/{branch}/").splitlines()
        return next((x for x in above if self.ref(x)), below[0].removeprefix("refs/heads/") if below else "")

    def checked_out(self) -> set[str]:
        """The branches that working trees of this repository are on."""
        lines = self._text("worktree", "list", "--porcelain").splitlines()
        return {
            x.removeprefix("branch refs/heads/") for x in lines if x.startswith("branch ")
        } | self._stopped()

    def _stopped(self) -> set[str]:
        """The branches whose working trees stand in the middle of a rebase or a bisection, with a detached HEAD: it
        ends by moving them, or by going back to them."""
        shared = self.directory / "commondir"
        common = self.directory / shared.read_text().strip() if shared.is_file() else self.directory
        found = set()
        for tree in (common, *(common / "worktrees").glob("*")):
            for name in ("rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START"):
                with suppress(OSError):
                    found.add(os.fsdecode((tree / name).read_bytes()).strip().removeprefix("refs/heads/"))
        return found

    def commit(self, parent: str, files: Mapping[str, tuple[str, bytes]], message: str, scratch: Path) -> str:
        """A commit on top of `parent` in which `files` (path to mode and bytes) are changed; no branch moves. The same
        arguments give the same commit, whenever and by whom it is made. Its index lies below `scratch`."""
        with tempfile.TemporaryDirectory(prefix="index-", dir=scratch) as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._git("read-tree", parent, more=index)
            entries = b""
            for path, (mode, data) in sorted(files.items()):
                name = self._git("hash-object", "-w", "-t", "blob", "--no-filters", "--stdin", given=data)
                entries += b"%s %s\t%s\0" % (mode.encode(), name.strip(), os.fsencode(path))
            self._git("update-index", "-z", "--index-info", given=entries, more=index)
            tree = self._text("write-tree", "--missing-ok", more=index)
        date = self._text("show", "--no-patch", "--no-show-signature", "--format=%ct +0000", parent)
        who = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "gradfix"), ("EMAIL", "gradfix@localhost"), ("DATE", date))
        }
        return self._text("commit-tree", tree, "-p", parent, given=message.encode(), more=who)

    def move(self, branch: str, new: str, old: str) -> None:
        """Set a branch that is at `old` ("": not there) to `new`: at once, or not at all. Raises GitError."""
        self._git("update-ref", "--no-deref", f"refs/heads/{branch}", new, old or "0" * len(new))

    def _text(self, *words: str, given: bytes = b"", more: Mapping[str, str] | None = None) -> str:
        return self._git(*words, given=given, more=more).decode("utf-8", "replace").strip()

    def _git(self, *words: str, given: bytes = b"", more: Mapping[str, str] | None = None) -> bytes:
        return _run(self._command(*words), given, more)

    def _command(self, *words: str) -> list[str]:
        return [*_git(), f"--git-dir={self.directory}", *words]


def repository(folder: Path) -> Repository | None:
    """The repository that `folder` is the top of; None where it is none. Raises GitError where git is missing."""
    marked = (folder / ".git").exists()
    bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()
    if not marked and not bare:
        return None
    if shutil.which("git") is None:
        raise GitError("git is not installed, and this is a git repository")
    given = folder / ".git" if marked else folder
    directory = _run([*_git(), "-C", str(folder), "rev-parse", "--resolve-git-dir", str(given)])
    return Repository(Path(os.fsdecode(directory.rstrip(b"\n"))).absolute(), folder if marked else None)


def no_branch(name: str) -> str:
    """Why git takes no branch called `name`, as the end of a sentence; "" where it does. Raises GitError where git is
    missing."""
    if any(len(os.fsencode(part)) > LONGEST for part in name.split("/")):
        return f"of a name so long: git keeps a file for it, and {LONGEST} bytes is what a name may have"
    if name.startswith("-") or name in ("HEAD", "@") or "\0" in name:
        return f"called {name!r}"
    if name.startswith("refs/"):
        return f"called {name!r} that could be told from a full name of git's: leave refs/heads/ away"
    try:
        _run([*_git(), "check-ref-format", f"refs/heads/{name}"])
    except GitError as problem:
        if "is not installed" in str(problem):
            raise
        return f"called {name!r}"
    return ""


def blob_name(data: bytes, like: str) -> str:
    """The object name of a file's bytes, by the hash that the name `like` was made with."""
    import hashlib

    made = hashlib.sha256() if len(like) == 64 else hashlib.sha1()
    made.update(b"blob %d\0" % len(data) + data)
    return made.hexdigest()


def _git() -> list[str]:
    return ["git", "--no-pager", "--no-replace-objects", *(w for one in OFF for w in ("-c", one))]


def _environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "TMPDIR", "SYSTEMROOT") if key in os.environ}
    return kept | {
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "false",
    }


def _run(command: list[str], given: bytes = b"", more: Mapping[str, str] | None = None) -> bytes:
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            env=_environment() | dict(more or {}),
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git did not answer within {SECONDS:.0f} s") from None
    if done.returncode:
        raise GitError(_refusal(done.stderr.decode("utf-8", "replace")))
    return done.stdout


def _refusal(said: str) -> str:
    """What git said, as a sentence: its first word on the matter, without its advice."""
    if held := _LOCK.search(said):
        return (
            f"{held[1]} is there: another git is at work in the repository, or one that was killed has left it; "
            "where none is at work, delete that file, then call again"
        )
    lines = [line for line in said.strip().splitlines() if line.strip()]
    first = next((line for line in lines if line.startswith(("fatal: ", "error: "))), next(iter(lines), ""))
    return f"git: {first.partition(': ')[2] or first}" if first else SILENT
