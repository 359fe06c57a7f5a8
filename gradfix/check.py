"""Files to Results without running anything: found, looked up, read side by side, told once."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix import suppress
from gradfix.asked import selected
from gradfix.cache import Cache, digest
from gradfix.dataclass import dataclass
from gradfix.detect import Conflict
from gradfix.discover import Search
from gradfix.examine import Examined, Place, examine, matters, own_fault
from gradfix.result import Diagnosis, Problem, Result, Settings
from gradfix.source import Source, SourceError, check_syntax
from gradfix.tape import Site

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from gradfix.read.kept import Kept

SUFFIXES = (".py", ".ipynb")
TIDIED, MANY = 1_500_000, 3_000_000  # objects: between two files, inside one
FEW = 4  # files that are read here: another process would take longer to start

Wanted = tuple[Path, Settings]


@dataclass(frozen=True, slots=True)
class Checking:
    """How to check: `settings` of a file, `search` for those of a folder, `jobs` processes, where results are kept.

    `say` hears (files done, files in all).
    """

    settings: Callable[[Path], Settings]
    search: Callable[[Path], Search]
    jobs: int = 1
    cache: Cache | None = None
    say: Callable[[int, int], None] = lambda _, __: None


def check(paths: Sequence[Path], how: Checking) -> Iterator[Result]:
    """A Result for every file of `paths` that has something to say, and one more for those whose comments are idle.

    Files come as they are given, those of a folder in order. A fault is told once, though several files lead to it.
    Raises config.ConfigError from `how.settings`.
    """
    wanted, problems = _find(paths, how)
    yield from problems
    told = _Told()
    for n, ((path, settings), examined) in enumerate(_all(wanted, how), 1):
        how.say(n, len(wanted))
        result = told.result(path, settings, examined)
        yield result
    if how.cache is not None:
        how.cache.close()
    yield from told.idle()


def check_text(
    source: Source, settings: Settings, files: Mapping[str, str] | None = None, kept: Kept | None = None
) -> Iterator[Result]:
    """The Results of a text that is not on the disk, under the name it goes by, among `files` that may not be
    there either; where it is read again and again, with what is `kept` of it."""
    told = _Told()
    path = Path(os.path.abspath(source.path))
    texts = {**(files or {}), str(path): source.text}
    yield told.result(path, settings, examine(path, settings, source, files, kept), texts)
    yield from told.idle(texts)


@dataclass(slots=True)
class _Told:
    """What one check has said so far."""

    faults: set[object] = field(default_factory=set)
    met: set[Place] = field(default_factory=set)
    commented: dict[Path, Settings] = field(default_factory=dict)

    def result(
        self, path: Path, settings: Settings, examined: Examined, texts: dict[str, str] | None = None
    ) -> Result:
        """The Result of one file, without the faults that another file has shown already."""
        self.met.update(examined.met)
        if examined.comments and examined.whole:
            self.commented[path] = settings
        new = []
        for diagnosis in examined.diagnoses:
            key = (diagnosis.conflict.kind, diagnosis.conflict.at)
            if key not in self.faults:
                self.faults.add(key)
                new.append(diagnosis)
        return Result(
            path,
            tuple(new),
            sources=_sources(new, texts or {}),
            problem=examined.problem,
            ended="read",
            withheld=examined.unsure,
            minor=examined.minor,
            trained=examined.interpreted,
        )

    def idle(self, texts: dict[str, str] | None = None) -> Iterator[Result]:
        """Comments that ignore nothing, known once all files have been read. Only in files where every backward was
        reached; a note, since a recorded run may see more."""
        for path, settings in self.commented.items():
            text = _sources_of({str(path)}, texts or {}).get(str(path), "")
            met = [(line, kind) for file, line, kind in self.met if file == str(path)]
            found = [replace(c, severity="note") for c in suppress.unused(str(path), text, met)]
            asked = [c for c in found if selected(c, settings) and not suppress.suppressed(c, text)]
            if asked:
                diagnoses = tuple(Diagnosis(c, evidence="certain") for c in asked)
                yield Result(path, diagnoses, sources={str(path): text}, ended="read")


def _sources(diagnoses: Sequence[Diagnosis], texts: dict[str, str]) -> dict[str, str]:
    conflicts = [c for d in diagnoses for c in (d.conflict, *d.conflict.also)]
    return _sources_of({site.file for c in conflicts for site in _sites(c)}, texts)


def _sites(conflict: Conflict) -> Iterator[Site]:
    for label in conflict.labels:
        yield from label.stack


def _sources_of(files: set[str], texts: dict[str, str]) -> dict[str, str]:
    out = {}
    for file in sorted(files):
        try:
            out[file] = texts[file] if file in texts else Source.read(file).text
        except SourceError:
            continue
    return out


def _find(paths: Sequence[Path], how: Checking) -> tuple[list[Wanted], list[Result]]:
    """The files to read, each once, and what can't be."""
    wanted: dict[Path, Settings] = {}
    problems: dict[Path, Result] = {}

    def told(path: Path, problem: Problem) -> None:
        problems.setdefault(path, Result(path, problem=problem, ended="read"))

    def blocked(problem: OSError) -> None:
        reason = (problem.strerror or str(problem)).lower()
        told(Path(str(problem.filename)), Problem(f"{problem.filename}: can't be read ({reason})"))

    for given in paths:
        path = Path(os.path.abspath(given))
        try:
            folder = path.is_dir()
        except OSError as problem:
            blocked(problem)
            continue
        if not folder:
            if (wrong := _no_python(path)) is not None:
                told(path, wrong)
            else:
                wanted.setdefault(path, how.settings(path))
            continue
        search = replace(how.search(path), suffixes=SUFFIXES, blocked=blocked)
        for file in search.below(path):
            if not how.search(file.parent).excludes(file):  # a configuration further down has its own
                wanted.setdefault(file, how.settings(file))
    return [each for each in wanted.items() if each[0] not in problems], list(problems.values())


def _no_python(path: Path) -> Problem | None:
    """What is wrong with a file that was asked for by its name and is no Python, where nothing in it matters. Of those
    of a folder it is not asked: they are seldom wrong, and to parse them all would take the most time."""
    if not path.is_file():
        return None
    try:
        source = Source.read(path)
        if source.kind == "script" and not matters(source.raw):
            check_syntax(source.text, str(path))
    except SourceError as problem:
        return Problem(problem.sentence, problem.detail)
    return None


def _all(wanted: list[Wanted], how: Checking) -> Iterator[tuple[Wanted, Examined]]:
    """Every file with what came of it, in order: from the cache, or read now."""
    known: list[Examined | None] = []
    digests: list[str] = []
    for path, settings in wanted:
        found, digest_ = _known(path, settings, how.cache)
        known.append(found)
        digests.append(digest_)
    fresh = _read([w for w, found in zip(wanted, known, strict=True) if found is None], how.jobs)
    for (path, settings), found, digest_ in zip(wanted, known, digests, strict=True):
        if found is None:
            found = next(fresh)
            if how.cache is not None and digest_:
                how.cache.put(str(path), digest_, settings, found)
        yield (path, settings), found


def _known(path: Path, settings: Settings, cache: Cache | None) -> tuple[Examined | None, str]:
    """What is known of a file without reading it as a program, and the digest of its bytes. Whether a notebook is one
    has to be seen, and what its cells hold; those of format 3 are none of a folder's faults."""
    try:
        raw = path.read_bytes() if path.is_file() else None
    except (OSError, ValueError):
        raw = None
    if raw is None:
        return None, ""  # examine says why
    digest_ = digest(raw) if cache is not None else ""
    found = cache.get(str(path), digest_, settings) if cache is not None else None
    if found is None and not matters(raw) and (path.suffix != ".ipynb" or b'"worksheets"' in raw):
        found = Examined()
        if cache is not None:
            cache.put(str(path), digest_, settings, found)
    return found, digest_


def _read(wanted: list[Wanted], jobs: int) -> Iterator[Examined]:
    """What comes of each file, in order. A file that ends the process it is read in is one Problem."""
    if jobs < 2 or len(wanted) <= FEW:
        usual = gc.get_threshold()
        _seldom()
        try:
            yield from map(_one, wanted)
        finally:
            gc.freeze()
            gc.unfreeze()  # all that is there is old now: else the next object made would have it gone through
            gc.set_threshold(*usual)
        return
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    while done < len(wanted):
        rest = wanted[done:]
        chunk = max(1, min(16, len(rest) // (jobs * 4)))
        with _pool(min(jobs, len(rest))) as pool:
            try:
                for examined in pool.map(_one, rest, chunksize=chunk):
                    yield examined
                    done += 1
                return
            except BrokenProcessPool:
                pass
            finally:
                pool.shutdown(cancel_futures=True)
        for each in wanted[done : done + chunk]:  # the culprit is among them
            yield _alone(each)
            done += 1


def _alone(wanted: Wanted) -> Examined:
    from concurrent.futures.process import BrokenProcessPool

    with _pool(1) as pool:
        try:
            return pool.submit(_one, wanted).result()
        except BrokenProcessPool:
            return Examined(
                problem=Problem(f"{wanted[0]}: reading it ended the process that did; it was left out")
            )


def _one(wanted: Wanted) -> Examined:
    try:
        examined = examine(*wanted)
    except Exception as problem:
        said, detail = own_fault(problem)
        sentence = f"{wanted[0]}: a fault of gradfix's own, so it was left out; please report it: {said}"
        examined = Examined(problem=Problem(sentence, detail))
    if gc.get_count()[0] > TIDIED:
        gc.collect()
        gc.freeze()  # what is left are trees that others import: no cycles in them
    return examined


def _seldom() -> None:
    """Let Python look for what refers to itself between files, and inside one only where it makes very much: it would
    go through the same trees over and over, which took more than a third of a check."""
    gc.set_threshold(MANY, 10, 10)


def _pool(jobs: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    return ProcessPoolExecutor(jobs, multiprocessing.get_context(method), _quietly)


def _quietly() -> None:
    """Ctrl-C and the end are the parent's business."""
    _seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
