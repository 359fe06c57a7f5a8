"""A patch in a tree: each fix placed in all of its files, or refused with a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from gradfix.discover import Search, is_script
from gradfix.patches.file import SUFFIXES, PatchError
from gradfix.patches.flow import new_caller
from gradfix.patches.make import handed_on
from gradfix.patches.place import Placed, Refused, place
from gradfix.patches.shown import BACKWARD, GRADIENT, PARAMETER, Kinds, Shown, shown
from gradfix.patches.values import FilePatch, Fix, Patch
from gradfix.source import Source, SourceError
from gradfix.suppress import REPORTED
from gradfix.verdict import Verdict
from gradfix.wording import listed

LOOKED = 2000  # files that are searched for one that was moved

Status = Literal["placed", "already", "refused"]
Files = Mapping[str, tuple[str, str]]
Proof = Callable[[Fix, Path, Mapping[str, str], Mapping[str, str]], Verdict]


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of one fix. `why` it was refused; `files` are old and new text by absolute path; `lines` where each
    hunk was and is, by path; `seen` what the text alone shows of it; `verdict` that of a proof in this tree."""

    fix: Fix
    status: Status
    why: str = ""
    files: Files = field(default_factory=dict)
    lines: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    seen: str = ""
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Where a patch is applied: below `root`. `prove` runs a program before and after; `accept` are the verdicts of it
    that are good enough. `write` puts new texts on the disk (raises SourceError, and then nothing is changed)."""

    root: Path
    prove: Proof | None = None
    accept: Sequence[str] = ("proved", "preserved", "intended")
    write: Callable[[Files], None] = lambda _: None


def apply(patch: Patch, tree: Tree) -> Iterator[Applied]:
    """What comes of each fix, one on top of the other. Raises PatchError, before anything is written, where a file of
    the patch lies outside the tree."""
    for fix in patch.fixes:
        for path in (fix.entry, *(f.path for f in fix.files)):
            _within(tree.root, path)
    known: dict[str, Source] = {}
    texts: dict[str, str] = {}
    for fix in patch.fixes:
        try:
            done = _applied(fix, tree, known, texts)
            if done.status == "placed":
                tree.write(done.files)
                texts |= {path: new for path, (_, new) in done.files.items()}
        except Refused as why:
            done = Applied(fix, "refused", _ended(str(why)))
        except SourceError as problem:
            done = Applied(fix, "refused", _ended(_from(tree.root, problem.sentence)))
        yield done


def _within(root: Path, path: str) -> None:
    real, base = os.path.realpath(root / path), os.path.realpath(root)
    inside = Path(real).is_relative_to(base)
    if not inside or ".git" in Path(real).relative_to(base).parts:
        raise PatchError(f"it names {path!r}, which leads out of {root}")


def _applied(fix: Fix, tree: Tree, known: dict[str, Source], texts: Mapping[str, str]) -> Applied:
    """Raises Refused and SourceError."""
    placed: dict[str, Placed] = {}
    for file in fix.files:
        path = str(tree.root / file.path)
        if path not in known:
            known[path] = _read(file, tree.root)
        placed[path] = place(file, texts.get(path, known[path].text))
        known[path].encode(placed[path].text)  # the file's encoding may lack a character
    lines = {file.path: placed[str(tree.root / file.path)].lines for file in fix.files}
    there = [path for path, p in placed.items() if p.already]
    if len(there) == len(placed):
        return Applied(fix, "already", lines=lines)
    if any(
        path not in texts for path in there
    ):  # what an earlier fix of this patch has made is shared with it
        raise Refused(
            f"{_from(tree.root, there[0])} is changed as the fix has it, and the other files are not"
        )
    before = {path: texts.get(path, known[path].text) for path in placed}
    after = {path: each.text for path, each in placed.items()}
    changed = {path: (before[path], after[path]) for path in placed if before[path] != after[path]}
    doubt = next((p.doubt for p in placed.values() if p.doubt and not p.open), "")
    doubt = doubt or _calls(fix, tree.root, {**texts, **before})
    if doubt and tree.prove is None:
        raise Refused(f"{doubt} (--reprove runs it)")
    here = shown(tree.root / fix.entry, {**texts, **before}, {**texts, **after})
    doubt = doubt or next(
        (p.doubt for path, p in placed.items() if not _told(fix, here, tree.root, path, p)), ""
    )
    if doubt and tree.prove is None:
        raise Refused(f"{doubt} (--reprove runs it)")
    seen = _seen(fix, tree, here)
    said = f"{_ended(doubt)} {seen}" if doubt else seen
    done = Applied(fix, "placed", "", changed, lines, said)
    if tree.prove is None:
        return done
    verdict = tree.prove(fix, tree.root, {**texts, **before}, {**texts, **after})
    done = replace(done, verdict=verdict)
    if verdict.status in tree.accept:
        return done
    return replace(
        done, status="refused", why=_ended(f"here it is {verdict.status}: {verdict.reason}"), files={}
    )


def _calls(fix: Fix, root: Path, texts: Mapping[str, str]) -> str:
    """Who calls for what the fix changes from another file, and did not; the entry's text may be no file's of it."""
    for path in dict.fromkeys([fix.entry, *(file.path for file in fix.files)]):
        names = handed_on(fix.files, path)
        if not names:
            continue
        try:
            text = texts[str(root / path)] if str(root / path) in texts else Source.read(root / path).text
        except SourceError:
            continue
        said = new_caller(fix.callers.get(path, ()), text, names)
        if said:
            return f"{path}: {said}"
    return ""


def _read(file: FilePatch, root: Path) -> Source:
    """Raises Refused, and SourceError."""
    path = root / file.path
    try:
        there = path.exists()
    except OSError as problem:  # a name that is too long
        raise Refused(f"{file.path} can't be read ({(problem.strerror or str(problem)).lower()})") from None
    if not there:
        found = _moved(file, root)
        hint = f"; its lines are in {found}: was it moved?" if found else ""
        raise Refused(f"{file.path} is not there{hint}")
    if not path.suffix and not is_script(path):
        raise Refused(f"{file.path} does not begin as a Python script does (#!/usr/bin/env python)")
    return Source.read(path)


def _moved(file: FilePatch, root: Path) -> str:
    """A file of the tree that all hunks of `file` have a place in, one of the same name before others."""
    name = Path(file.path).name
    below = list(islice(Search(suffixes=SUFFIXES, scripts=True).below(root), LOOKED))
    for path in sorted(below, key=lambda p: p.name != name):
        try:
            if path.suffix == Path(name).suffix and not place(file, Source.read(path).text).open:
                return path.relative_to(root).as_posix()
        except (Refused, SourceError):
            continue
    return ""


def _told(fix: Fix, here: Shown, root: Path, path: str, placed: Placed) -> bool:
    """Whether what is open of a place is told by who follows the program: the fault shows before the fix, no error
    after it, and of the values that its lines use as much is known as in the source. What came in beside its lines
    must write to gradients alone, of which `here` tells what becomes of them, or to parameters, where the fix means to
    see them as they are later."""
    if not placed.open:
        return True
    then, now = fix.kinds.get(os.path.relpath(path, root), ()), here.kinds.get(path, ())
    known = [[bool(kind) for kind in some] for some in now]
    if [len(some) for some in then] != [len(some) for some in now] or any(
        kind and not found for a, b in zip(then, known, strict=True) for kind, found in zip(a, b, strict=True)
    ):
        return False
    shows = any(here.faults.get(c.kind, (0, 0))[0] > here.faults.get(c.kind, (0, 0))[1] for c in fix.cures)
    left = any(new for kind, (_, new) in here.faults.items() if REPORTED.get(kind) == "error")
    if not shows or left:
        return False
    allowed = {GRADIENT}
    if all(cure.effect.kind == "later-parameters" for cure in fix.cures):
        allowed.add(PARAMETER)
    for lines, done in zip(placed.beside, here.done[path], strict=True):
        said = frozenset().union(*(done.get(line, frozenset()) for line in lines))
        if lines and (not said or not said <= allowed):
            return False
    return True


def _seen(fix: Fix, tree: Tree, here: Shown) -> str:
    """What the text alone shows of the fix, as a sentence. Raises Refused where it shows that the fault is gone
    already, or is not cured, or that there is a new one; a run may know better."""
    cured = {c.kind for c in fix.cures}
    visible = {kind for kind, (old, new) in fix.faults.items() if old > new and kind in cured}
    now = here.faults
    new = [k for k, (old, then) in now.items() if then > old and REPORTED.get(k) == "error"]
    brought = [k for k in new if fix.faults.get(k, (0, 0))[0] >= fix.faults.get(k, (0, 0))[1]]
    gone = sorted(k for k in visible if not now.get(k, (0, 0))[0])
    left = sorted(k for k in visible if k not in gone and now[k][1] >= now[k][0])
    said = ""
    if gone:
        said = f"{listed(gone)} does not show in the text any more, as it did in the source of the fix"
    elif left:
        said = f"{listed(left)} shows in the text after the fix as it does before"
    elif brought:
        said = f"with the fix, {listed(brought)} shows in the text, which it did not before"
    elif worse := [k for k, (old, then) in here.reading.items() if _worse(k, old, then)
                   and not _worse(k, *fix.reading.get(k, (0, 0)))]:  # fmt: skip
        said = _less(worse[0])
    else:
        said = _unlike(fix, here, tree.root)
    if said and tree.prove is None:
        raise Refused(f"{fix.entry}: {said} (--reprove runs it)")
    if said:
        return f"{said}."
    if not visible:
        fault = listed(sorted(cured)) if cured else "the fault"
        return (
            f"Whether {fault} is still there does not show in the text alone, nor did it in the source of the fix: "
            "--reprove runs the script."
        )
    return f"The text alone shows {listed(sorted(visible))} before the fix, and not after it."


def _unlike(fix: Fix, here: Shown, root: Path) -> str:
    """What the fix does to the training here and did not in its source, as a sentence; "" where that is nothing."""
    for what, places in here.gradients.items():
        if len(places) > fix.gradients.get(what, 0):
            return f"with the fix, {what} ({listed(list(places))}), which is not so in the source of the fix"
    for path, kinds in fix.kinds.items():
        full = str(root / path)
        for said, then, now in _others(kinds, here.kinds.get(full, ()), here.names.get(full, ())):
            return f"`{said}`, which the fix uses, is {now} here, and {then} in the source of the fix"
    for path in fix.used:
        if str(root / path) not in here.used:
            return f"it does not come to {path}, which the fix changes, as it does in the source of the fix"
    return ""


def _others(then: Kinds, now: Kinds, names: Kinds) -> Iterator[tuple[str, str, str]]:
    """The values that are of another kind than they were: their name, and both kinds."""
    if [len(some) for some in then] != [len(some) for some in now]:
        return  # some of the lines were not come to: nobody knows
    for old, new, said in zip(chain(*then), chain(*now), chain(*names), strict=True):
        known = set(old.split(", "))
        more = sorted(set(new.split(", ")) - known - {""})
        if old and more:
            yield said, listed(sorted(map(_one, known))), listed(list(map(_one, more)))


def _one(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else kind if kind == "None" else f"a {kind}"


def _worse(what: str, before: int, after: int) -> bool:
    return after < before if what == BACKWARD else after > before


def _less(what: str) -> str:
    """That the program can't be read as far as before the fix; `what` as Fix.reading has it."""
    if what == BACKWARD:
        return "with the fix, fewer of its backward passes show in the text"
    if what == "failed":
        return "with the fix, it ends with an error"
    what = what.removeprefix("not know: ")
    return f"with the fix, the text does not tell any more what it does ({what})"


def _from(root: Path, sentence: str) -> str:
    """`sentence` with paths from the root on."""
    return sentence.replace(f"{root}/", "")


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."
