"""Faults that are known already: what stays of a fault while lines move, and the file that keeps them.

A fault is known by its file, its kind and the source text of its places, however it is laid out; of faults that are
equal in all of this the file keeps how many there are.
"""

from __future__ import annotations

import io
import json
import os
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

from gradfix.dataclass import dataclass
from gradfix.report import shown
from gradfix.result import Diagnosis, Result
from gradfix.source import split_lines
from gradfix.tape import Site

VERSION = 1
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


class BaselineError(Exception):
    """A file of known faults that can't be used; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Key:
    """What stays of a fault: `path` from the baseline's folder on, `spans` the text of its places."""

    path: str
    kind: str
    spans: tuple[str, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis, result: Result, base: Path) -> Key:
        conflict = diagnosis.conflict
        texts = {**result.sources, **diagnosis.sources}
        spans = dict.fromkeys(f"{x.role}: {_text(x.at, texts)}" for x in conflict.labels)
        return cls(_relative(conflict.at.file, base), conflict.kind, tuple(spans))

    def fingerprint(self, occurrence: int = 0) -> str:
        """A short name for it; `occurrence` tells equal ones apart."""
        from hashlib import sha256

        said = json.dumps([self.path, self.kind, self.spans, occurrence])
        return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)
class Baseline:
    """The faults that `file` knows. Results go through `new`, which leaves out the known ones."""

    file: Path
    known: Counter[Key] = field(default_factory=Counter)
    hidden: int = 0
    _left: Counter[Key] = field(default_factory=Counter)
    _met: Counter[Key] = field(default_factory=Counter)
    _read: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, file: Path) -> Baseline:
        """What is in `file`. Raises BaselineError."""
        try:
            value = json.loads(file.read_bytes())
            if value["version"] != VERSION:
                raise BaselineError(
                    f"{file}: a baseline of version {value['version']}, which this gradfix can't read"
                )
            known = Counter(
                {Key(x["path"], x["kind"], tuple(x["spans"])): x["count"] for x in value["faults"]}
            )
            if not all(isinstance(count, int) for count in known.values()):
                raise TypeError
        except FileNotFoundError:
            raise BaselineError(f"{file}: there is no such file; --update-baseline makes it") from None
        except OSError as problem:
            raise BaselineError(
                f"{file}: can't be read ({(problem.strerror or str(problem)).lower()})"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise BaselineError(f"{file}: this is no baseline of gradfix's") from None
        return cls(file, known, 0, known.copy())

    def new(self, result: Result) -> Result:
        """`result` without the faults that are known."""
        base = self.file.absolute().parent
        self._read.add(_relative(str(result.entry), base))
        left, reported = [], {id(d) for d in shown(result)}
        for diagnosis in result.diagnoses:
            key = Key.of(diagnosis, result, base)
            if id(diagnosis) in reported:
                self._met[key] += 1
            if self._left[key] > 0:
                self._left[key] -= 1
                self.hidden += 1
            else:
                left.append(diagnosis)
        return replace(result, diagnoses=tuple(left))

    def gone(self) -> int:
        """How many of the known faults are no longer in the files that were read."""
        return sum(count for key, count in self._left.items() if key.path in self._read)

    def update(self) -> int:
        """Write what was met; what is known of other files stays. Gives how many faults the file holds. Raises
        BaselineError."""
        base = self.file.absolute().parent
        read = self._read | {key.path for key in self._met}
        kept = {k: n for k, n in self.known.items() if k.path not in read and (base / k.path).exists()}
        found = sorted(
            (kept | self._met).items(), key=lambda item: (item[0].path, item[0].kind, item[0].spans)
        )
        faults = [{"path": k.path, "kind": k.kind, "spans": list(k.spans), "count": n} for k, n in found]
        text = json.dumps({"version": VERSION, "faults": faults}, indent=2, ensure_ascii=False)
        try:
            self.file.write_text(text + "\n", encoding="utf-8")
        except OSError as problem:
            raise BaselineError(
                f"{self.file}: can't be written ({(problem.strerror or str(problem)).lower()})"
            ) from None
        return sum(n for _, n in found)


def fingerprints(results: Iterable[Result], base: Path) -> dict[int, str]:
    """For every diagnosis that is shown (by its id), a name that outlives a shift of lines and is its alone."""
    seen: Counter[Key] = Counter()
    out = {}
    for result in results:
        for diagnosis in shown(result):
            key = Key.of(diagnosis, result, base)
            out[id(diagnosis)] = key.fingerprint(seen[key])
            seen[key] += 1
    return out


def _relative(path: str, base: Path) -> str:
    return Path(os.path.relpath(os.path.realpath(path), os.path.realpath(base))).as_posix()


def _text(site: Site, texts: dict[str, str]) -> str:
    """The source at `site` as its tokens: no comments, no layout."""
    lines = split_lines(texts.get(site.file, ""))
    last = max(site.end_line, site.line)
    if not site.line or last > len(lines):
        return ""
    piece = list(lines[site.line - 1 : last])
    if site.end_column or site.end_line > site.line:
        piece[-1] = piece[-1][: site.end_column]
        piece[0] = piece[0][site.column :]
    return _tokens(piece)


def _tokens(lines: Sequence[str]) -> str:
    words: list[str] = []
    # in brackets: a span may be a piece of a statement that goes over lines
    text = "(" + "\n".join(lines) + "\n)"
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _LAYOUT:
                if token.string in (")", "]", "}") and words and words[-1] == ",":
                    words.pop()  # a formatter's trailing comma
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return " ".join(" ".join(lines).split())
    return " ".join(words[1:-1])
