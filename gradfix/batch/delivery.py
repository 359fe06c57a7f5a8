"""What is done with a result: a patch file, the working tree, a branch. Every effect can be done again after a kill, at
any moment of it, and comes to the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gradfix.batch.git import LINK, GitError, Repository, repository
from gradfix.batch.values import Branch, RepoResult, Spec, Step, Written
from gradfix.batch.words import escaped
from gradfix.patches.file import dumps
from gradfix.patches.make import patch as carry
from gradfix.report.diff import patch
from gradfix.report.places import Paths
from gradfix.source import Source, SourceError, write


class Undone(Exception):
    """Why an effect was not had, as a sentence; nothing was changed."""


def save(file: Path, data: bytes) -> None:
    """Write a file of the workspace: the old one or the new one is there, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".new-{file.name}")  # the same each time: what a kill leaves is written over
    try:
        new.write_bytes(data)
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def to_patch(result: RepoResult, place: Path, file: Path) -> str:
    """All changes in one patch file, as ``git apply`` and ``patch -p1`` take it, and beside it the same for ``gradfix
    apply``, which finds its place in a tree that has drifted; the sentence that says so."""
    changes = {str(place / path): change for path, change in result.changes.items()}
    raw = {str(place / path): data.encode("latin-1") for path, data in result.raw.items()}
    save(file, b"".join(line + b"\n" for line in patch(changes, Paths(place), raw)))
    carried = file.with_suffix(".json")
    save(carried, dumps(carry(result.fixes, result.torch)).encode("ascii"))
    held = {f.path for fix in result.fixes for f in fix.files}
    lacks = [escaped(path) for path in sorted(result.changes.keys() - held)]
    if lacks:
        return f"{file.name} holds {_files(result)}; {carried.name} lacks {_some(lacks)} (see the remarks)"
    return f"{file.name} and {carried.name} hold {_files(result)}"


def no_patch(file: Path) -> bool:
    """Take away the patch of a result that there is no more. Gives whether there was one."""
    there = file.exists()
    for made in (file, file.with_suffix(".json")):
        made.unlink(missing_ok=True)
    return there


def to_tree(result: RepoResult, place: Path, token: str) -> str:
    """All changes in the working tree; `token` as source.write has it. Raises Undone."""
    _there(place)
    if result.kind not in ("repository", "folder"):
        raise Undone(f"{_article(result.kind)} has no working tree to write to; --diff makes a patch")
    left: dict[str, tuple[str, str]] = {}
    try:
        for path, (old, new) in result.changes.items():
            now = Source.read(place / path).text
            if now not in (old, new):
                raise Undone(f"{path} has changed since it was looked at; --retry {result.name} looks again")
            if now == old:
                if path in result.dirty:
                    raise Undone(f"{path} has changes that are not committed; commit or stash them first")
                left[str(place / path)] = (old, new)
        write(left, token)
    except SourceError as problem:
        raise Undone(str(problem).replace(f"{place}/", "")) from None
    return f"{_files(result)} written"


def back(written: Written, spec: Spec, token: str) -> None:
    """What `to_tree` did, undone. Raises Undone where a file is not what was written any more, or would differ from
    its commit once it is put back."""
    place = Path(spec.place)
    _there(place)
    left: dict[str, tuple[str, str]] = {}
    try:
        for path, (old, new) in written.changes.items():
            now = Source.read(place / path).text
            if now not in (old, new):
                raise Undone(
                    f"{path} has changed since it was written; take the change back by hand, then --retry {spec.name}"
                )
            if now != old:
                left[str(place / path)] = (new, old)
        for path, committed in _committed(place, [p for p in written.changes if str(place / p) in left]):
            if committed != written.changes[path][0]:
                raise Undone(
                    f"{path} was committed since it was written; take that commit back (git revert), then call again"
                )
        write(left, token)
    except SourceError as problem:
        raise Undone(str(problem).replace(f"{place}/", "")) from None
    except GitError as problem:
        raise Undone(str(problem)) from None


def _committed(place: Path, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Those of `paths` that are tracked, with their committed texts. Raises GitError, Undone."""
    found = repository(place) if paths else None
    if found is not None:
        tree = found.tree(found.head())
        tracked = [path for path in paths if path in tree]
        contents = found.contents(tree[path].name for path in tracked)
        for path, data in zip(tracked, contents, strict=True):
            yield path, _decoded(path, data).text


def to_branch(
    result: RepoResult,
    place: Path,
    branch: str,
    scratch: Path,
    made: Branch,
    making: Callable[[Branch], None],
) -> str:
    """A branch with one commit a cure (RepoResult.committed), on top of what was checked out. HEAD, index and working
    tree stay untouched, no hook is run, and the commits' own index lies below `scratch`. `made` is what gradfix had
    made of it, `making` hears what it is to be before it is. Raises Undone."""
    _there(place)
    steps = result.committed
    if result.steps and not steps:
        raise Undone(uncommitted(result))
    result = replace(result, steps=steps)
    try:
        found = repository(place)
        if found is None:
            raise Undone(f"{_article(result.kind)} has no branches; --diff makes a patch")
        _unmoved(found, result, branch)
        if other := found.beside(branch):
            raise Undone(
                f"there is a branch {other}, and git has none called {branch} beside it; name another"
            )
        tip = commits(found, result, scratch)
        at = found.ref(branch)
        if at != tip:
            if at and at not in made.commits:
                raise Undone(
                    f"there is a branch {branch} with something else on it; name another, or delete it"
                )
            making(Branch((at, tip) if at else (tip,), tuple(step.had for step in result.steps)))
            try:
                found.move(branch, tip, at)
            except GitError:
                if found.ref(branch) != tip:
                    making(made)
                raise
    except GitError as problem:
        raise Undone(str(problem)) from None
    count = len(result.steps)
    return f"{branch} at {tip[:10]}, {count} commit{'s' * (count != 1)} above {result.commit[:10]}"


def uncommitted(result: RepoResult) -> str:
    """Why no commit can have all of the steps, as a sentence; "" where one can."""
    if len(result.committed) == len(result.steps):
        return ""
    names = list(map(escaped, result.untracked))
    if len(names) == 1:
        return f"{names[0]} is not in the commit that is checked out; commit it first, or --write"
    return f"{_some(names)} are not in the commit that is checked out; commit them first, or --write"


def is_there(place: Path, branch: str, made: Branch) -> bool:
    """Is the branch where gradfix left it? (Not where somebody has removed it, or works on it.)"""
    try:
        found = repository(place)
        return found is not None and found.ref(branch) in made.commits
    except GitError:
        return False


def commits(found: Repository, result: RepoResult, scratch: Path) -> str:
    """The last of the commits that the result's steps make. Raises Undone, GitError."""
    tree = found.tree(result.commit)
    blobs = {path: tree[path] for path in result.changes if path in tree}
    for path in result.changes:
        if path not in blobs or blobs[path].mode == LINK:
            raise Undone(f"{path} is not a file of the commit that is checked out")
    was = {
        path: _decoded(path, data)
        for path, data in zip(blobs, found.contents(b.name for b in blobs.values()), strict=True)
    }
    tip = result.commit
    for step in result.steps:
        files = {}
        for path, text in step.texts.items():
            if path not in was:  # changed, and changed back by a later step
                continue
            if was[path].text != result.originals[path]:
                raise Undone(f"{path} has changes that are not committed; commit or stash them first")
            files[path] = (blobs[path].mode, _encoded(was[path], text))
        tip = found.commit(tip, files, message(step), scratch)
    return tip


def message(step: Step) -> str:
    """What a commit says."""
    lines = [
        f"gradfix: {step.codemod} in {_some(list(step.texts))}",
        "",
        step.summary,
        "",
        f"Fault: {', '.join(step.kinds)}",
        f"Verdict: {step.verdict}",
        f"Measured: {step.reason}",
    ]
    lines += [f"Effect: after this, {step.effect}"] if step.effect else []
    lines += [
        f"Files: {', '.join(step.texts)}",
        f"Script: {step.entry}",
        f"Fingerprint: {', '.join(step.fingerprints)}",
    ]
    return "\n".join(map(escaped, lines)) + "\n"


def _there(place: Path) -> None:
    if not place.exists():
        raise Undone("it is not there any more")


def _unmoved(found: Repository, result: RepoResult, branch: str) -> None:
    head = found.head()
    if head != result.commit:
        was, now = result.commit[:10], head[:10]
        raise Undone(
            f"HEAD has moved from {was} to {now} since it was looked at; --retry {result.name} looks again"
        )
    if branch in found.checked_out():
        raise Undone(f"{branch} is checked out, or being rebased; it would move under the working tree")
    if result.dirty:
        raise Undone(
            f"{_some(list(result.dirty))}: not committed, and what was measured was measured with it"
        )


def _decoded(path: str, data: bytes) -> Source:
    try:
        return Source.decode(path, data)
    except SourceError as problem:
        raise Undone(f"as it is committed, {problem}") from None


def _encoded(source: Source, text: str) -> bytes:
    try:
        return source.encode(text)
    except SourceError as problem:
        raise Undone(str(problem)) from None


def _files(result: RepoResult) -> str:
    count = len(result.changes)
    return f"{count} changed file{'s' * (count != 1)}"


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _article(kind: str) -> str:
    words = {"bare": "a bare repository", "archive": "an archive", "folder": "a plain folder"}
    return words.get(kind, f"a {kind}")
