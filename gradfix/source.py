"""Source: the bytes of a file as text that Python and libcst agree on, and back to bytes with everything
else kept.

`Source.text` is what Python's own reader would make of the file: decoded by its PEP 263 cookie or byte
order mark, every line ending a ``\\n``. On the way back `Source.encode` lays the new text over the old lines and
gives each unchanged line its own ending again.
"""

from __future__ import annotations

import ast
import codecs
import os
import re
import stat
import tokenize
import unicodedata
import warnings
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Literal

from gradfix import notebook
from gradfix.dataclass import dataclass

NEWLINE = re.compile(r"\r\n|\r|\n")
EXCERPT = 120  # characters of a line that are shown
ASYNC = re.compile(r"\basync\s*=")  # of Tensor.cuda, before it was a keyword


class SourceError(Exception):
    """A file that can't be read, understood or written. `sentence` says so to the person; `detail` is an
    excerpt."""

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was read. `raw` are its bytes, `text` its text with ``\\n`` endings and no byte order
    mark."""

    path: Path
    raw: bytes = field(repr=False)
    text: str = field(repr=False)
    encoding: str = "utf-8"
    kind: Literal["script", "notebook"] = "script"

    @classmethod
    def read(cls, path: Path | str) -> Source:
        """The file at `path`. Raises SourceError: not there, not a file, not readable, not in its
        encoding."""
        path = Path(path)
        try:
            if not path.is_file():
                what = "is not a regular file" if path.exists() else absent(path, "there is no such file")
                raise SourceError(f"{path}: {what}")
            raw = path.read_bytes()
        except (OSError, ValueError) as problem:
            raise SourceError(f"{path}: can't be read ({_reason(problem)})") from None
        return cls.decode(path, raw)

    @classmethod
    def decode(cls, path: Path | str, raw: bytes) -> Source:
        """`raw` as a file called `path`. Raises SourceError."""
        encoding = _encoding(Path(path), raw)
        try:
            text = _body(raw).decode(encoding)
        except UnicodeDecodeError as problem:
            before = _body(raw)[: problem.start]
            line = len(re.findall(rb"\r\n|\r|\n", before)) + 1
            byte = f"byte 0x{_body(raw)[problem.start]:02x}"
            hint = "" if encoding != "utf-8" else "; declare the file's encoding in its first line (PEP 263)"
            raise SourceError(f"{path}:{line}: {byte} is not {encoding}{hint}") from None
        if "\0" in text:
            line = len(split_lines(text[: text.index("\0")]))
            raise SourceError(f"{path}:{line}: holds a null byte; this is not Python source")
        if "\r" in text:
            text = NEWLINE.sub("\n", text)
        if Path(path).suffix == ".ipynb":
            try:
                return cls(Path(path), raw, notebook.join(text), encoding, "notebook")
            except notebook.NotebookError as problem:
                raise SourceError(f"{path}: {problem}") from None
        return cls(Path(path), raw, text, encoding)

    @property
    def sha256(self) -> str:
        from hashlib import sha256

        return sha256(self.raw).hexdigest()

    @property
    def newline(self) -> str:
        """The line ending that text put in between gets: the first of the file."""
        found = NEWLINE.search(_body(self.raw).decode(self.encoding)) if self.kind != "notebook" else None
        return found[0] if found else "\n"

    def check(self) -> None:
        """Raises SourceError where the text is empty, or is no Python (with the line and a caret)."""
        if not self.text.strip():
            raise SourceError(f"{self.path} is empty: there is nothing to run")
        check_syntax(self.text, str(self.path))

    def encode(self, text: str) -> bytes:
        """The file's bytes with `text` in place of its text: byte order mark, encoding and line endings
        as they were. Raises SourceError where the encoding has no such character."""
        if text == self.text:
            return self.raw
        old = _body(self.raw).decode(self.encoding)
        if old.encode(self.encoding) != _body(self.raw):
            raise SourceError(f"{self.path}: its bytes are not the only way to write it in {self.encoding}")
        if self.kind == "notebook":
            try:
                text = notebook.edit(NEWLINE.sub("\n", old), text)
            except notebook.NotebookError as problem:
                raise SourceError(f"{self.path}: {problem}; nothing was written") from None
        laid = _laid(old, text)
        try:
            body = laid.encode(self.encoding)
        except UnicodeEncodeError as problem:
            line = len(split_lines(laid[: problem.start]))
            what = f"{laid[problem.start]!r}, which {self.encoding} does not have"
            raise SourceError(
                f"{self.path}:{line}: the new text holds {what}; the file is as it was"
            ) from None
        return self.raw[: len(self.raw) - len(_body(self.raw))] + body


def absent(path: Path, otherwise: str) -> str:
    """Why there is nothing at `path`, where it is a link; `otherwise`, where it is none."""
    try:
        target = os.readlink(path)
    except (OSError, ValueError):
        return otherwise
    try:
        path.stat()
    except FileNotFoundError:
        return f"is a link to {target}, which is not there"
    except OSError as problem:
        return f"is a link that leads nowhere ({_reason(problem)})"
    return otherwise


def split_lines(text: str) -> list[str]:
    """Lines as Python's tokenizer counts them, without their endings: only CR, LF and CRLF end a line
    (str.splitlines also breaks at form feeds and U+2028, and then every later line number is off)."""
    return NEWLINE.split(text)


def check_syntax(text: str, name: str) -> None:
    """Raises SourceError with the line and a caret where `text` is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text, name)
    except SyntaxError as problem:
        # the tokenizer's limits are those of every Python, and libcst has none before its stack ends
        if "too many" not in problem.msg and _newer_python(text):
            return
        line, column = problem.lineno or 1, problem.offset or 1
        old = ASYNC.search(problem.text or "")
        hint = " (async is a keyword since Python 3.7; PyTorch calls it non_blocking)" if old else ""
        cell = notebook.locate(text, line) if name.endswith(".ipynb") else None
        place = f"cell {cell[0]}:{cell[1]}" if cell is not None else str(line)
        raise SourceError(f"{name}:{place}:{column}: {problem.msg}{hint}", _caret(text, problem)) from None
    except (RecursionError, MemoryError):
        raise SourceError(f"{name}: nested too deeply to be parsed") from None
    except ValueError as problem:
        raise SourceError(f"{name}: {problem}") from None


def readable(sources: Mapping[str, str], root: Path, known: Mapping[str, str]) -> dict[str, str]:
    """The texts of the files a run executed (`sources`, with their digests) that are the user's: inside the project,
    readable, and the very bytes that ran. `known` are texts that need not be read."""
    files = dict(known)
    for path, digest in sources.items():
        if path in files or not Path(path).is_relative_to(root):
            continue
        try:
            source = Source.read(Path(path))
        except SourceError:
            continue
        if not digest or source.sha256 == digest:
            files[path] = source.text
    return files


def write(changes: Mapping[str, tuple[str, str]], token: str = "") -> None:
    """Write new texts, all of them or none: `changes` maps a path to (text as it was read, new text).

    Every file is first written whole beside the old one, then moved over it, so that a reader sees the old
    or the new file and never half of one; mode, owner and extended attributes are kept as far as the system
    lets us. A symbolic link stays one: the file it points at is replaced. Of several hard links only this
    name gets the new text, which keeps package caches that hard-link into environments whole.
    Who gives a `token` can tell by `beside` what a kill has left, and take it away.
    Raises SourceError, and nothing is changed, where a file is not what was read any more, is read-only or
    full.
    """
    token = token or os.urandom(4).hex()
    staged: list[tuple[Path, bytes, Path]] = []
    replaced: list[tuple[Path, bytes]] = []
    try:
        for path, (old, new) in changes.items():
            source = Source.read(path)
            if source.text != old:
                raise SourceError(f"{path} has changed since it was read; nothing was written. Run again")
            real = Path(os.path.realpath(path))
            refuse_read_only(Path(path))
            staged.append((real, source.raw, _stage(Path(path), token, source.encode(new))))
        for real, raw, temporary in staged:
            if real.read_bytes() != raw:
                raise SourceError(f"{real} has changed since it was read; nothing was written. Run again")
            replaced.append((real, raw))
            os.replace(temporary, real)
            _sync_folder(real.parent)
    except BaseException as problem:  # Ctrl-C between two files too: put back what was replaced
        for real, raw in replaced:
            if real.read_bytes() != raw:
                os.replace(_stage(real, token, raw), real)
        if isinstance(problem, OSError):
            raise SourceError(f"nothing was written: {problem.filename}: {_reason(problem)}") from None
        raise
    finally:
        for _, _, temporary in staged:
            temporary.unlink(missing_ok=True)


def beside(path: Path | str, token: str) -> Path:
    """Where `write` puts the new text of a file before it is moved over the old one."""
    from hashlib import sha256

    real = Path(os.path.realpath(path))
    own = sha256(os.fsencode(real) + token.encode()).hexdigest()[:12]
    return real.with_name(f".{real.name[:100]}.{own}.tmp")


def refuse_read_only(path: Path) -> None:
    """Raises SourceError where `path` can't be replaced. A rename would go past the file's own mode, and the
    superuser past every mode: the mode is what was meant."""
    real = Path(os.path.realpath(path))
    if not real.stat().st_mode & 0o222 or not os.access(real, os.W_OK):
        raise SourceError(f"{path} is read-only; nothing was written")
    if not real.parent.stat().st_mode & 0o222 or not os.access(real.parent, os.W_OK | os.X_OK):
        raise SourceError(f"{path}: its directory is read-only; nothing was written")


def _encoding(path: Path, raw: bytes) -> str:
    # detect_encoding reads lines that end in \n; Python itself also takes a lone \r for one
    lines = iter([x + b"\n" for x in re.split(rb"\r\n|\r|\n", raw, maxsplit=2)[:2]])
    try:
        encoding, _ = tokenize.detect_encoding(partial(next, lines, b""))
        if not codecs.lookup(encoding)._is_text_encoding:
            raise SyntaxError(f"unknown encoding: {encoding}")
    except SyntaxError as problem:
        if "unknown encoding" in str(problem) or "encoding problem" in str(problem):
            raise SourceError(f"{path}: {str(problem).replace(f' for {str(path)!r}', '')}") from None
        return "utf-8"  # bad bytes in the first lines: decoding says where
    return "utf-8" if encoding == "utf-8-sig" else encoding


def _body(raw: bytes) -> bytes:
    return raw.removeprefix(codecs.BOM_UTF8)


def _laid(old: str, new: str) -> str:
    """`new` (``\\n`` endings) with the endings of those lines of `old` that are still there."""
    from difflib import SequenceMatcher

    was, now = _with_endings(old), _with_endings(new)
    kept: dict[int, str] = {}
    matcher = SequenceMatcher(None, [x for x, _ in was], [x for x, _ in now], autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        kept.update({j + k: was[i + k][1] for k in range(size)})
    ending = next((end for _, end in was if end), "\n")
    out = []
    for j, (text, ended) in enumerate(now):
        ending = kept.get(j) or ending
        out.append(text + (ending if ended else ""))
    return "".join(out)


def _with_endings(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"(\r\n|\r|\n)", text)
    lines = list(zip(parts[::2], [*parts[1::2], ""], strict=True))
    return lines if lines[-1][0] else lines[:-1]


def _newer_python(text: str) -> bool:
    """Whether libcst, which reads newer grammars than the Python that runs gradfix, can parse it: the
    user's own interpreter then has the last word."""
    import libcst as cst

    try:
        cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError):
        return False
    return True


def _caret(text: str, problem: SyntaxError) -> str:
    lines = split_lines(text)
    number = problem.lineno or 1
    if not 0 < number <= len(lines):
        return ""
    line, start = lines[number - 1], max((problem.offset or 1) - 1, 0)
    same = problem.end_lineno == number and (problem.end_offset or 0) - 1 > start
    end = (problem.end_offset or 0) - 1 if same else start + 1
    if len(line) > EXCERPT:  # nobody wrote it by hand: what stands around the mistake
        first = max(start - EXCERPT // 2, 0)
        line, start, end = line[first : first + EXCERPT], start - first, end - first
    under = "".join("\t" if c == "\t" else " " * _width(c) for c in line[:start])
    marks = "^" * max(sum(_width(c) for c in line[start:end]), 1)
    margin = " " * len(str(number))
    return f"{number} | {line.rstrip()}\n{margin} | {under}{marks}"


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _stage(path: Path, token: str, content: bytes) -> Path:
    """A file beside the real one with `content` on the disk, and its mode, owner and attributes."""
    real, temporary = Path(os.path.realpath(path)), beside(path, token)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as problem:
        raise SourceError(f"{path}: can't be written ({_reason(problem)}); nothing was changed") from None
    try:
        with open(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            about = real.stat()
            if (about.st_uid, about.st_gid) != (os.getuid(), os.getgid()):
                _allowed(os.fchown, out.fileno(), about.st_uid, about.st_gid)
            os.fchmod(out.fileno(), stat.S_IMODE(about.st_mode))
            for attribute in _attributes(real):
                _allowed(os.setxattr, temporary, attribute, os.getxattr(real, attribute))
            os.fsync(out.fileno())
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise SourceError(f"{path}: can't be written ({_reason(problem)}); nothing was changed") from None
        raise
    return temporary


def _attributes(real: Path) -> list[str]:
    try:
        return os.listxattr(real) if hasattr(os, "listxattr") else []
    except OSError:
        return []


def _allowed(call: object, *arguments: object) -> None:
    """Do what the system may refuse to an ordinary user."""
    try:
        call(*arguments)  # type: ignore[operator]
    except OSError:
        pass


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _allowed(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _reason(problem: OSError | ValueError) -> str:
    return (getattr(problem, "strerror", None) or str(problem)).lower()
