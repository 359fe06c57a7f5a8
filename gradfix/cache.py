"""What was found in files before, by their contents: JSON below a folder that nobody need keep.

Never pickle: a repository may bring such a folder along, and what lies in it is not trusted to be ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache as once
from pathlib import Path
from typing import Any

from gradfix import __version__
from gradfix.dataclass import dataclass
from gradfix.detect import Conflict, Label
from gradfix.examine import Examined
from gradfix.packages import locations
from gradfix.result import Cure, Diagnosis, Settings
from gradfix.source import Source, SourceError
from gradfix.tape import Site
from gradfix.verdict import Effect, Verdict

FOLDER = ".gradfix_cache"
KEPT = 30 * 24 * 3600  # seconds a set of results outlives its last use
NOTE = "Signature: 8a477f597d28d172789f06886806bc55\n# This is gradfix's cache; it can go at any time.\n"


@dataclass(slots=True)
class Cache:
    """The results below `folder`: of one version of gradfix, a file for each set of settings."""

    folder: Path
    _shelves: dict[str, dict[str, Any]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _digests: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, digest: str, settings: Settings) -> Examined | None:
        """What came of the file at `path` with those contents, if nothing it rests on has changed since."""
        entry = self._shelf(_key(settings)).get(path)
        self._digests[path] = digest
        try:
            if entry is None or entry["digest"] != digest:
                return None
            if any(self._digest(file) != was for file, was in entry.get("used", {}).items()):
                return None
            if entry.get("codemods", "") != _codemods(bool(entry.get("diagnoses"))):
                return None
            return _examined(entry)
        except (KeyError, TypeError, ValueError, AttributeError, SourceError):
            return None  # not written by us, or by another version

    def put(self, path: str, digest: str, settings: Settings, examined: Examined) -> None:
        """Keep what came of a file; nothing is written before `close`. Problems are looked at again each time."""
        if examined.problem is not None:
            return
        key = _key(settings)
        used = {file: self._digest(file) for file in examined.used}
        entry = {"digest": digest, "codemods": _codemods(bool(examined.diagnoses)), "used": used}
        self._shelf(key)[path] = {**{k: v for k, v in entry.items() if v}, **_entry(examined)}
        self._changed.add(key)

    def close(self) -> None:
        """Write what is new. A folder that can't be written is no fault: there is no cache then."""
        try:
            for key in self._changed:
                shelf = {
                    p: e for p, e in self._shelves[key].items() if p in self._digests or os.path.exists(p)
                }
                _write(self._file(key), json.dumps(shelf, separators=(",", ":")))
            if self._changed:
                _tidy(self.folder)
        except OSError:
            pass
        self._changed.clear()

    def _shelf(self, key: str) -> dict[str, Any]:
        if key not in self._shelves:
            try:
                found = json.loads(self._file(key).read_bytes())
            except (OSError, ValueError):
                found = {}
            self._shelves[key] = found if isinstance(found, dict) else {}
        return self._shelves[key]

    def _file(self, key: str) -> Path:
        return self.folder / _build() / f"{key}.json"

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            try:
                self._digests[file] = digest(Path(file).read_bytes())
            except (OSError, ValueError):
                self._digests[file] = "gone"
        return self._digests[file]


def digest(raw: bytes) -> str:
    """The name that content is kept under."""
    from hashlib import sha256  # OpenSSL, which takes longer to load than a small script to be read

    return sha256(raw).hexdigest()


@once
def _build() -> str:
    """The version of what results come from, and the Python that parses."""
    return f"{__version__}-{digest(f'{sys.version} {_state(str(Path(__file__).parent))}'.encode())[:16]}"


@once
def _codemods(any_: bool) -> str:
    """The state of the installed codemods, where there is any fault for them."""
    return digest(" ".join(map(_state, locations())).encode())[:16] if any_ else ""


def _state(package: str) -> str:
    """Sizes and times of a package's files: a checkout changes without a new version."""
    out = []
    for root, folders, files in os.walk(package):
        folders.sort()
        for name in sorted(files):
            if name.endswith((".py", ".json")):
                about = os.stat(os.path.join(root, name))
                out.append(f"{name} {about.st_size} {about.st_mtime_ns}")
    return " ".join(out)


@once
def _key(settings: Settings) -> str:
    return digest(repr(settings).encode("utf-8", "surrogatepass"))[:16]


def _write(file: Path, text: str) -> None:
    import tempfile

    folder = file.parent.parent
    if not (folder / "CACHEDIR.TAG").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("# made by gradfix\n*\n")
        (folder / "CACHEDIR.TAG").write_text(NOTE)
    file.parent.mkdir(exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(name, file)


def _tidy(folder: Path) -> None:
    """Drop what no call has written for long, other versions' results among it."""
    for file in folder.glob("*/*"):
        if file.is_file() and time.time() - file.stat().st_mtime > KEPT:
            file.unlink()
    for version in folder.iterdir():
        if version.is_dir() and not any(version.iterdir()):
            version.rmdir()


# -- to JSON values and back


def _entry(examined: Examined) -> dict[str, Any]:
    if not examined.interpreted:
        return {}
    return {
        "diagnoses": [_diagnosis(d) for d in examined.diagnoses],
        "unsure": examined.unsure,
        "met": examined.met,
        "comments": examined.comments,
        "whole": examined.whole,
        "minor": examined.minor,
        "starts": examined.starts,
    }


def _examined(entry: Mapping[str, Any]) -> Examined:
    if "diagnoses" not in entry:
        return Examined()
    return Examined(
        tuple(_to_diagnosis(d) for d in entry["diagnoses"]),
        entry["unsure"],
        tuple((file, line, kind) for file, line, kind in entry["met"]),
        entry["comments"],
        entry["whole"],
        tuple(entry.get("used", ())),
        None,
        tuple(entry["minor"]),
        True,
        entry["starts"],
    )


def _diagnosis(d: Diagnosis) -> dict[str, Any]:
    cures = [
        [c.codemod, c.summary, c.effect.kind, c.effect.words, c.verdict.reason, dict(c.after)]
        for c in d.cures
    ]
    return {"conflict": _conflict(d.conflict), "cures": cures, "status": d.status, "evidence": d.evidence}


def _to_diagnosis(value: Mapping[str, Any]) -> Diagnosis:
    cures = (
        Cure(name, summary, Effect(kind, words), Verdict("untried", reason), _read(after), after)
        for name, summary, kind, words, reason, after in value["cures"]
    )
    return Diagnosis(_to_conflict(value["conflict"]), tuple(cures), value["status"], {}, value["evidence"])


def _read(files: Iterable[str]) -> dict[str, str]:
    """The texts as they are: their digests are what they were."""
    return {file: Source.read(file).text for file in files}


def _conflict(c: Conflict) -> list[Any]:
    labels = [[x.role, x.text, [list(_site(s)) for s in x.stack]] for x in c.labels]
    return [c.kind, c.severity, c.message, labels, c.primary, c.pattern, [_conflict(a) for a in c.also]]


def _to_conflict(value: Any) -> Conflict:
    kind, severity, message, labels, primary, pattern, also = value
    places = tuple(Label(role, tuple(Site(*s) for s in stack), text) for role, text, stack in labels)
    more = tuple(_to_conflict(a) for a in also)
    return Conflict(kind, severity, message, places, primary, pattern, also=more)


def _site(s: Site) -> Iterator[str | int]:
    yield from (s.file, s.line, s.column, s.end_line, s.end_column, s.function)
