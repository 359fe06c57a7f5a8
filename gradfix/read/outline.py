"""What a program could do, from its words: definitions and what they name, found without parsing.

A file is cut at its margin: a chunk for every ``def`` and ``class`` that stands there, and the rest, which runs when
the file does. Whatever can't be told apart (a line of a string at the margin, a definition inside an ``if``) counts as
part of the rest, so that more is taken for reachable than is, and never less.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Protocol

from gradfix.dataclass import dataclass
from gradfix.read import gate

# these are looked for in texts that begin with a line's end: that is found far sooner than the beginning of one
_STATEMENT = re.compile(rb"\n[^\s#)\]}]")
_HEAD = re.compile(rb"\n(?:(?:(?:async\s+)?def|class)\s+([^\s(:\[]+)|__all__)")
_NAME = rb"[A-Za-z_\x80-\xff][\w\x80-\xff]*"
_WORD = re.compile(_NAME)
_IMPORT = re.compile(
    rb"\n[ \t]*(?:from\s+(\.*)\s*([\w.\x80-\xff]*)\s+import\s+(?:\(([^)]*)\)|([^\n;#]*))|import\s+([^\n;#]*))"
)
_COMMENT = re.compile(rb"#[^\n]*")
_CLASS = re.compile(rb"\nclass\s+[^\s(:\[]+\s*(?:\(([^()\[\]=]*)\)\s*)?:")
_NO_MODULE = frozenset(
    [b"object", b"abc.ABC", b"torch.autograd.Function", b"torch.autograd.function.Function"]
)
_ENTRY = re.compile(rb"^(?:if\s+__name__|(?:[\w\x80-\xff]+\.)*(?:main|train|run|fit|learn)\w*\s*\()", re.M)
_ACTS = re.compile(rb"^(?:(for|while|with|async)\b|(" + _NAME + rb")[\w.\x80-\xff]*\s*\()", re.M)
_BOUND = re.compile(rb"^(" + _NAME + rb")\s*(?::[^=\n]*)?=(?!=)", re.M)
_STRING = r"(?:{0}{0}{0}(?:[^\\]|\\.)*?{0}{0}{0}|{0}(?:[^{0}\\\n]|\\.)*{0})"
_ANY = "|".join(map(_STRING.format, "\"'"))
# between these is code: of comments and strings nothing stays, but of those that hold code themselves
_CODE = re.compile(rf"#[^\n]*|((?:[fF][rR]?|[rR][fF])(?:{_ANY}))|{_ANY}".encode(), re.S)
_AS = re.compile(rb"\s+as\s+")


class Files(Protocol):
    """The program's files, and how modules are looked up among them."""

    def locate(self, importer: str, level: int, name: str) -> str | None: ...
    def outline(self, path: str) -> Outline | None: ...


@dataclass(frozen=True, slots=True)
class Import:
    """``from .module import name`` (`name` is "" for a whole module, "*" for everything)."""

    level: int
    module: str
    name: bytes


class Chunk:
    """A definition at the margin, or all that is none."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @cached_property
    def words(self) -> frozenset[bytes]:
        return frozenset(_WORD.findall(self.raw))

    @cached_property
    def backward(self) -> bool:
        return gate.differentiates(self.raw) and (gate.named(self.raw) or gate.differentiates(self._code))

    @cached_property
    def writes(self) -> bool:
        return (gate.writes(self.raw) or gate.own(self.raw)) and (
            gate.writes(self._code) or gate.own(self._code)
        )

    @cached_property
    def leaves(self) -> bool:
        return gate.leaves(self.raw) and gate.leaves(self._code)

    @cached_property
    def _code(self) -> bytes:
        """Without strings and comments: only for what their words speak for, since they take longest to find."""
        return code(self.raw)


class Outline:
    """One file: `rest` runs at its margin, `chunks` are defined there, `imports` are the names it brings in."""

    def __init__(self, path: str, raw: bytes) -> None:
        self.path, self._raw = path, raw
        self.chunks: dict[bytes, list[Chunk]] = {}
        self.decorated: set[bytes] = set()
        self._rest: list[bytes] = []
        begin, name = 0, b""
        # a definition ends with the next statement, the rest goes on up to the next definition
        while found := (_STATEMENT if name else _HEAD).search(raw, begin + bool(name)):
            self._cut(raw[begin : found.start()], name)
            before, begin = begin, found.start()
            head = _HEAD.match(raw, begin)
            decorated = not name and b"\n@" in raw[before:begin]
            name = (head[1] or b"__all__") if head else b""
            if name and decorated:
                self.decorated.add(name)
        self._cut(raw[begin:], name)

    def _cut(self, raw: bytes, name: bytes) -> None:
        if name:
            self.chunks.setdefault(name, []).append(Chunk(raw))
        else:
            self._rest.append(raw)

    @cached_property
    def rest(self) -> Chunk:
        return Chunk(code(_IMPORT.sub(b"", b"".join(self._rest))))

    @cached_property
    def paths(self) -> str:
        """Its text, if it says where else modules are."""
        return self._raw.decode("utf-8", "replace") if b"sys.path" in self._raw else ""

    @cached_property
    def backward(self) -> bool:
        """Whether it calls a backward."""
        if not gate.differentiates(self._raw):
            return False
        every = (chunk for several in self.chunks.values() for chunk in several)
        return gate.imported(self._raw) or self.rest.backward or any(chunk.backward for chunk in every)

    @cached_property
    def touches(self) -> bool:
        """Whether it touches gradients and optimizers."""
        return gate.own(self._raw)

    @cached_property
    def module(self) -> bool:
        """Whether it defines what a module does."""
        return gate.is_module(self._raw)

    @property
    def imports(self) -> dict[bytes, list[Import]]:
        return self._brought[0]

    @property
    def starred(self) -> list[Import]:
        return self._brought[1]

    @cached_property
    def known(self) -> frozenset[bytes]:
        return frozenset(self.chunks) | frozenset(self.imports)

    @cached_property
    def _brought(self) -> tuple[dict[bytes, list[Import]], list[Import]]:
        imports: dict[bytes, list[Import]] = {}
        starred: list[Import] = []
        for dots, module, inside, line, plain in _IMPORT.findall(self._raw):
            if plain:
                for each in plain.split(b","):
                    full, name = _named(each)
                    if full:
                        bound = name or full.partition(b".")[0]
                        imports.setdefault(bound, []).append(Import(0, full.decode(errors="replace"), b""))
                continue
            where = (len(dots), module.decode(errors="replace"))
            names = _COMMENT.sub(b"", inside) if b"#" in inside else inside or line
            for each in names.replace(b"\\", b" ").split(b","):
                full, name = _named(each)
                if full == b"*":
                    starred.append(Import(*where, b"*"))
                elif full:
                    imports.setdefault(name or full, []).append(Import(*where, full))
        return imports, starred


def code(raw: bytes) -> bytes:
    """`raw` without its strings and comments."""
    return b"".join(filter(None, _CODE.split(raw)))


def outlined(path: str, raw: bytes) -> Outline:
    """The outline of the file at `path`."""
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return Outline(path, b"\n" + raw)


def _named(each: bytes) -> tuple[bytes, bytes]:
    full, *name = _AS.split(each.strip())
    return full.strip(), name[0].strip() if name else b""


class Outlines:
    """The outlines of files that were looked at last, as many as `most` bytes of text make."""

    def __init__(self, most: int = 24_000_000) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[str, tuple[tuple[int, int], Outline]] = OrderedDict()

    def of(self, path: str) -> Outline | None:
        """The outline of the file at `path` as it is now; None where there is none to be had."""
        try:
            about = os.stat(path)
            state = (about.st_mtime_ns, about.st_size)
            found = self._kept.get(path)
            if found is not None and found[0] == state:
                self._kept.move_to_end(path)
                return found[1]
            with open(path, "rb") as file:
                raw = file.read()
        except (OSError, ValueError):
            return None
        if found is not None:
            self._size -= found[0][1]
        outline = outlined(path, raw)
        self._kept[path] = (state, outline)
        self._size += state[1]
        while self._size > self._most and len(self._kept) > 1:
            _, (old, _) = self._kept.popitem(last=False)
            self._size -= old[1]
        return outline


OUTLINES = Outlines()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ways into a file that could come to a fault: how far to follow its main part (``far``, ``near``, or ""),
    whether there is any; the classes whose forward is none."""

    main: str = "far"
    any: bool = True
    harmless: frozenset[str] = frozenset()


def wanted(path: str, text: str, files: Files) -> Wanted:
    """What of the file is worth interpreting."""
    own = outlined(path, text.encode("utf-8", "replace"))
    main = _main(own, files)
    modules = []
    if own.module:
        modules = [n for n, several in own.chunks.items() if any(_forwards(chunk.raw) for chunk in several)]
    harmless = {
        name
        for name in modules
        if not any(c.writes or c.backward for c in _inside(own, [name])) or not _derives(own, name)
    }
    some = bool(main) or own.backward or len(harmless) < len(modules) or gate.is_module(own.rest.raw)
    return Wanted(main, some, frozenset(name.decode("utf-8", "replace") for name in harmless))


def _forwards(raw: bytes) -> bool:
    """Whether `raw` is a class with a forward: one inside a function is nobody's way into a program."""
    return raw.startswith(b"\nclass") and (gate.is_module(raw) or b"def __call__" in raw)


def _derives(own: Outline, name: bytes) -> bool:
    """Whether the class called `name` may be a torch.nn.Module: not where all that it derives from is known."""
    seen, todo = {name}, [name]
    while todo:
        name = todo.pop()
        if name in own.decorated or name in own.imports:
            return True
        for chunk in own.chunks[name]:
            head = _CLASS.match(chunk.raw)
            if head is None:
                return True
            for base in filter(None, map(bytes.strip, (head[1] or b"").split(b","))):
                if base in own.chunks:
                    todo += {base} - seen
                    seen.add(base)
                elif _full(own, base) not in _NO_MODULE:
                    return True
    return False


def _full(own: Outline, dotted: bytes) -> bytes:
    """What `dotted` is called where it comes from; "" where that is not certain."""
    first, dot, rest = dotted.partition(b".")
    brought = own.imports.get(first, [])
    if len(brought) != 1:
        return b"" if brought else dotted
    (each,) = brought
    module = each.module.encode()
    if each.level:
        return b""
    if each.name:
        module += b"." + each.name
    elif module.partition(b".")[0] == first:  # import a.b
        module = first
    return module + dot + rest


def _main(own: Outline, files: Files) -> str:
    """How far what runs at the margin of `own` is to be followed: ``far``, ``near``, or not at all where it can't come
    to a fault, here or in a file of the program's."""
    margin = own.rest
    if margin.backward or gate.old(margin.raw) or (margin.leaves and margin.writes):
        return "far"
    if own.backward and any(c.backward for c in _inside(own, margin.words)):
        return "far"
    entered = _ENTRY.search(margin.raw) is not None
    acts = list(_ACTS.finditer(margin.raw))
    called = frozenset(found[2] for found in acts if found[2])
    looped = any(found[1] for found in acts)
    bound = {found[1] for found in _BOUND.finditer(margin.raw)}
    words = margin.words if entered or looped or called & bound or own.starred else called
    reached = (margin, *_inside(own, margin.words if margin.writes else words))
    if any(c.writes for c in reached) and any(c.leaves for c in reached):
        return "far" if entered else "near"
    if entered:
        return "far" if any(other.backward or other.touches for other in _closure(own, files)) else ""
    if (words & own.known or own.starred) and _leads(own, words, files):
        return "far" if looped else "near"
    return ""


def _inside(own: Outline, words: Iterable[bytes]) -> Iterator[Chunk]:
    """The definitions of `own` that `words` lead to."""
    seen = set()
    todo = [w for w in words if w in own.chunks]
    while todo:
        word = todo.pop()
        if word not in seen:
            seen.add(word)
            for chunk in own.chunks[word]:
                yield chunk
                todo += [w for w in chunk.words if w in own.chunks and w not in seen]


def _closure(own: Outline, files: Files) -> Iterable[Outline]:
    """`own` and every file of the program that it imports, and they import."""
    seen, todo = {own.path}, [own]
    while todo:
        outline = todo.pop()
        yield outline
        for each in _targets(outline, files):
            if each not in seen:
                seen.add(each)
                found = files.outline(each)
                if found is not None:
                    todo.append(found)


def _targets(outline: Outline, files: Files) -> Iterable[str]:
    for each in (*(i for several in outline.imports.values() for i in several), *outline.starred):
        yield from filter(None, _places(outline, each, files))


def _places(outline: Outline, each: Import, files: Files) -> tuple[str | None, str | None]:
    """The file that a name comes from, and the one that it is."""
    inner = each.name.decode(errors="replace")
    whole = files.locate(outline.path, each.level, each.module)
    if each.name == b"":
        return None, whole
    if each.name == b"*":
        return whole, None
    return whole, files.locate(outline.path, each.level, f"{each.module}.{inner}" if each.module else inner)


def _leads(own: Outline, words: frozenset[bytes], files: Files) -> bool:
    """Whether the `words` of `own`, or what they lead to in other files, come to a backward."""
    seen: set[tuple[str, bytes]] = set()
    todo: list[tuple[Outline, bytes, frozenset[bytes]]] = []

    def name(outline: Outline, words: frozenset[bytes]) -> None:
        known = words if outline.starred else words & outline.known
        todo.extend((outline, w, words) for w in known if (outline.path, w) not in seen)

    def enter(place: str | None, words: frozenset[bytes]) -> bool:
        other = files.outline(place) if place else None
        if other is None:
            return False
        name(other, words)
        return other.backward and other.rest.backward

    todo += [(own, w, own.rest.words) for w in words]
    while todo:
        outline, word, words = todo.pop()
        if (outline.path, word) in seen:
            continue
        seen.add((outline.path, word))
        for chunk in outline.chunks.get(word, ()):
            if outline.backward and chunk.backward:
                return True
            name(outline, chunk.words)
        for each in outline.imports.get(word, ()):
            source, itself = _places(outline, each, files)
            if enter(source, frozenset((each.name,))) or enter(itself, words):
                return True
        if word not in outline.known:
            for each in outline.starred:
                if enter(_places(outline, each, files)[0], frozenset((word,))):
                    return True
    return False
