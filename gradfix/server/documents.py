"""What an editor has open, as one text each, and where its lines and columns are for the editor.

A notebook is its cells joined, as everywhere in gradfix; what is in a cell is told of that cell's document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from lsprotocol import types
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec, TextDocument, Workspace

from gradfix.notebook import locate
from gradfix.source import NEWLINE, Source, split_lines

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class _Lines(TextDocument):
    """A document whose lines end where the protocol says; pygls' own end at form feeds, too."""

    @property
    def lines(self) -> Sequence[str]:
        return _LINES.findall(self.source)


class Documents(Workspace):
    """The workspace with such documents."""

    def _create_text_document(
        self,
        doc_uri: str,
        source: str | None = None,
        version: int | None = None,
        language_id: str | None = None,
    ) -> TextDocument:
        return _Lines(
            doc_uri,
            source=source,
            version=version,
            language_id=language_id,
            sync_kind=types.TextDocumentSyncKind.Incremental,
            position_codec=self.position_codec,
        )


@dataclass(frozen=True)
class Buffer:
    """One file as the editor has it now: `source` its text, `cells` the documents of a notebook's code cells by the
    cell's number, empty for a script."""

    uri: str
    version: int | None
    source: Source
    codec: PositionCodec = field(repr=False)
    cells: dict[int, tuple[str, int | None]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.source.path

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.source.text)

    def uris(self) -> Iterator[tuple[str, int | None]]:
        """The documents that diagnostics are published for, with their versions."""
        yield from self.cells.values() if self.cells else [(self.uri, self.version)]

    def position(self, line: int, column: int) -> tuple[str, types.Position]:
        """Document and position of a line from 1 and a column in code points from 0."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        units = self.codec.client_num_units(text[:column])
        found = locate(self.source.text, line) if self.cells else None
        if found is None:
            return self.uri, types.Position(max(line - 1, 0), units)
        cell, inside = found
        return self.cells.get(cell, (self.uri, None))[0], types.Position(max(inside - 1, 0), units)

    def range(self, line: int, column: int, end_line: int, end_column: int) -> tuple[str, types.Range]:
        """Document and range of such a span."""
        uri, start = self.position(line, column)
        return uri, types.Range(start, self.position(end_line, end_column)[1])

    def line_of(self, uri: str, line: int) -> int:
        """The line of the text, from 1, that is `line`, from 0, of the document `uri`."""
        number = next((n for n, (cell, _) in self.cells.items() if cell == uri), None)
        if number is None:
            return line + 1
        return self.lines.index(f"# %% cell {number}") + 2 + line

    def edits(self, new: str) -> dict[str, list[types.TextEdit]]:
        """What makes this text `new`, in whole lines, by document."""
        out: dict[str, list[types.TextEdit]] = {}
        for line, end, lines in replaced(self.lines, split_lines(new)):
            uri, edit = self._edit(line, end, lines)
            out.setdefault(uri, []).append(edit)
        return out

    def _edit(self, first: int, end: int, lines: list[str]) -> tuple[str, types.TextEdit]:
        """Lines `first` to `end` (from 0, exclusive) become `lines`."""
        newline = self.source.newline
        text = newline.join(lines)
        if first < end and lines:
            uri, span = self.range(first + 1, 0, end, len(self.lines[end - 1]))
            return uri, types.TextEdit(span, text)
        # lines come or go with one line ending: the one behind them, or at the end of a document the one before
        last = end >= len(self.lines) or (
            self.cells and self.position(end + 1, 0)[0] != self.position(max(first, 1), 0)[0]
        )
        if last and first:
            uri, start = self.position(first, len(self.lines[first - 1]))
            stop = self.position(end, len(self.lines[end - 1]))[1] if end > first else start
            return uri, types.TextEdit(types.Range(start, stop), f"{newline}{text}" if lines else "")
        uri, start = self.position(first + 1, 0)
        stop = self.position(end + 1, 0)[1] if end > first else start
        return uri, types.TextEdit(types.Range(start, stop), f"{text}{newline}" if lines else "")


def replaced(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, list[str]]]:
    """(first, end, lines) of every run of old lines that others take the place of."""
    for tag, i, end, j, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield i, end, list(new[j:stop])


def buffer(workspace: Workspace, uri: str) -> Buffer | None:
    """The file that the document `uri` is, or is a cell of; None where it is not open."""
    notebook = workspace.get_notebook_document(notebook_uri=uri) or workspace.get_notebook_document(
        cell_uri=uri
    )
    if notebook is not None:
        return _notebook(workspace, notebook)
    document = workspace.text_documents.get(unquote(uri))
    if document is None:
        return None
    source = _source(file_of(uri, ".py"), document.source)
    return Buffer(document.uri, document.version, source, workspace.position_codec)


def on_disk(path: str, text: str, codec: PositionCodec) -> Buffer:
    """A file that no editor has open."""
    return Buffer(from_fs_path(path) or path, None, _source(Path(path), text), codec)


def file_of(uri: str, suffix: str) -> Path:
    """The file of a document; for one that has none yet, a name in the working directory."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    if path:
        return Path(path)
    name = re.sub(r"\W+", "-", uri.rpartition("/")[2].rpartition(":")[2]).strip("-") or "untitled"
    return Path.cwd() / f"{name}{suffix}"


def _notebook(workspace: Workspace, notebook: types.NotebookDocument) -> Buffer:
    cells, shown = [], {}
    for number, cell in enumerate(notebook.cells):
        document = workspace.get_text_document(cell.document)
        code = cell.kind == types.NotebookCellKind.Code and document.language_id in ("python", None)
        cells.append({"cell_type": "code" if code else "raw", "source": document.source})
        if code:
            shown[number] = (cell.document, document.version)
    path = file_of(notebook.uri, ".ipynb").with_suffix(".ipynb")
    raw = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    source = Source.decode(path, raw.encode())
    return Buffer(notebook.uri, notebook.version, source, workspace.position_codec, shown)


def _source(path: Path, text: str) -> Source:
    """A text that an editor has decoded already, whatever encoding it declares."""
    text = NEWLINE.sub("\n", text.removeprefix("\ufeff"))
    return Source(path, text.encode("utf-8", "surrogatepass"), text)
