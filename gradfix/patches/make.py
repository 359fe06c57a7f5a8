"""A Result's change as a fix: hunks with as much context as tells their place from every other."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix import __version__
from gradfix.detect import Conflict
from gradfix.notebook import locate
from gradfix.patches.file import TABLE, PatchError, allowed, inside
from gradfix.patches.fit import Place, Text, Touched, places, rival
from gradfix.patches.flow import callers, sides
from gradfix.patches.lines import lexed
from gradfix.patches.names import Bindings
from gradfix.patches.shown import shown
from gradfix.patches.values import Bound, Cured, FilePatch, Fix, Hunk, Meant, Patch
from gradfix.report.diff import unified
from gradfix.report.places import Paths
from gradfix.source import Source, SourceError
from gradfix.verdict import Verdict

if TYPE_CHECKING:
    from gradfix.result import Cure, Result

LEAST, MOST = 4, 40  # lines of code that are kept on either side of a change
ALIKE = 0.5  # another place that fits better than this asks for more of them

Texts = Mapping[str, tuple[str, str]]  # by path from the root, with slashes: a file before and after


def patch(fixes: Iterable[Fix], torch: str = "") -> Patch:
    """The fixes as one patch; `torch` is the version that ran, "" where nothing did."""
    made = {"gradfix": __version__, "torch": torch, "python": platform.python_version()}
    return Patch(made, tuple(fixes))


def of_results(results: Iterable[Result], cwd: Path, leave: Callable[[str], None]) -> Patch:
    """What `fix` came to, as a patch whose root is `cwd`, else what all of it lies in; `leave` hears, as a sentence
    without its full stop, of each fix that no patch can hold."""
    changing = [r for r in results if r.files]
    named = [Path(p) for r in changing for p in (str(r.entry), *r.files)]
    root = (
        cwd
        if all(p.is_relative_to(cwd) for p in named)
        else Path(os.path.commonpath([p.parent for p in named]))
    )
    fixes = []
    for result in changing:
        try:
            one = of_result(result, root)
            fixes += [one] if one is not None else []
        except PatchError as problem:
            leave(str(problem))
    return patch(fixes, next((r.torch for r in changing if r.torch), ""))


def of_result(result: Result, root: Path) -> Fix | None:
    """The fix that `result` comes to; None where nothing changes. Its files are below `root`. Raises PatchError where
    no patch can hold it: a file has a name that is none in a patch."""
    if not result.files or result.verdict is None:
        return None

    def name(path: str) -> str:
        if not Path(path).is_relative_to(root):
            raise PatchError(f"it names {path!r}, which is not below {str(root)!r}")
        return Path(path).relative_to(root).as_posix()

    texts = {name(path): both for path, both in result.files.items()}
    done = [cured(d.conflict, d.cures[0], name(d.conflict.at.file)) for d in result.diagnoses
            if d.status == "cured"]  # fmt: skip
    return fix(name(str(result.entry)), result.verdict, done, texts, root)


def cured(conflict: Conflict, cure: Cure, path: str) -> Cured:
    """What a patch says of one cure; `path` is the name of the file that the fault is in."""
    effect, verdict = cure.effect, cure.verdict
    return Cured(
        conflict.kind,
        conflict.message,
        path,
        conflict.at.line,
        cure.codemod,
        cure.summary,
        Meant(effect.kind, effect.words),
        verdict.status,
        verdict.reason,
        dict(verdict.measured),
    )


def fix(entry: str, verdict: Verdict, cures: Sequence[Cured], texts: Texts, root: Path) -> Fix:
    """The change `texts` as one fix with this verdict. The program `entry` is read where it lies, below `root`. Raises
    PatchError where a name is none that a patch may have."""
    for path in (entry, *texts):
        inside(path)
    before = {str(root / path): old for path, (old, _) in texts.items()}
    after = {str(root / path): new for path, (_, new) in texts.items()}
    seen = shown(root / entry, before, after)
    files = tuple(file_patch(path, old, new) for path, (old, new) in sorted(texts.items()))
    known = {path: old for path, (old, _) in texts.items()}
    with suppress(SourceError):
        known = {entry: Source.read(root / entry).text, **known}
    made = Fix(
        entry,
        verdict.status,
        verdict.reason,
        dict(verdict.measured),
        tuple(cures),
        seen.faults,
        seen.reading,
        {what: len(places) for what, places in seen.gradients.items()},
        {path: seen.kinds[str(root / path)] for path in sorted(texts)},
        tuple(path for path in sorted(texts) if str(root / path) in seen.used),
        {path: callers(text, names) for path, text in known.items() if (names := handed_on(files, path))},
        files,
        "".join(f"{line}\n" for line in unified(texts, Paths(root))),
    )
    allowed(made)
    return made


def handed_on(files: Iterable[FilePatch], path: str) -> set[str]:
    """The functions of other files than `path` that hand on what a fix changes."""
    return {name for f in files if f.path != path and f.flow is not None for name in f.flow.escapes}


def digest(text: str) -> str:
    """What a patch knows a text by."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_patch(path: str, old: str, new: str) -> FilePatch:
    """The change of one file."""
    steps = SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False).get_opcodes()
    changes = [(i, end, j, stop) for tag, i, end, j, stop in steps if tag != "equal"]
    flow = sides(old, new, [(i, end) for i, end, _, _ in changes], [(j, stop) for _, _, j, stop in changes])
    tables = (
        [x for side in (flow.before, flow.after) for x in (side.order, side.origins, side.readers)]
        if flow
        else []
    )
    flow = None if any(len(x) > TABLE for x in tables) else flow
    return FilePatch(path, digest(old), _hunks(path, old, new, changes), flow)


def _hunks(path: str, old: str, new: str, changes: Iterable[tuple[int, int, int, int]]) -> tuple[Hunk, ...]:
    text, b = Text(old), new.split("\n")
    known, became = _bindings(old), _bindings(new)
    out = []
    for i, end, j, stop in changes:
        found = locate(old, i + 1) if path.endswith(".ipynb") else None
        hunk = _placed(text, i, end, tuple(b[j:stop]), found[0] if found else None)
        lines = (*Touched.of(hunk).lines, *hunk.old, *hunk.new)
        used = {name for line in lines for name in lexed(line).used}
        names: dict[str, Bound] = {}
        for name in sorted(used):
            if known is None or became is None:
                break
            names[name] = known.where(name, i + 1)
            if names[name] == "free" and became.where(name, j + 1) in ("block", "file"):
                names[name] = "new"
        out.append(replace(hunk, names=names))
    return tuple(out)


def _bindings(text: str) -> Bindings | None:
    try:
        return Bindings.of(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _placed(text: Text, start: int, end: int, new: tuple[str, ...], cell: int | None) -> Hunk:
    """The hunk with the least context that no other place fits too well; with the most there may be, if none does."""
    old = tuple(text.lines[start:end])
    size = LEAST
    while True:
        above, below = text.around(start, end, size, size)
        first, last = (above or [start])[0], (below or [end - 1])[-1]
        # the file's first and last lines are a hold, too
        first = first if len(above) == size else 0
        last = last if len(below) == size else len(text.lines) - 1
        hunk = Hunk(
            start + 1, tuple(text.lines[first:start]), old, new, tuple(text.lines[end : last + 1]), cell=cell
        )
        own = Place(start, end, {}, 1.0)
        others = [p.score for p in places(hunk, text) if (p.start, p.end) != (start, end)]
        alike = max([rival(hunk, text, own)[0], *others])
        if alike <= ALIKE or size >= MOST or len(above) + len(below) < size:
            return replace(hunk, alike=round(alike, 3))
        size += LEAST
