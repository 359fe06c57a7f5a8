"""What an editor offers at a fault: its cures, a proof, a comment that ignores it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lsprotocol import types

from gradfix import suppress
from gradfix.result import Cure
from gradfix.server.diagnostics import Told
from gradfix.server.documents import Buffer, on_disk
from gradfix.source import SourceError, check_syntax
from gradfix.verdict import HELD, Verdict

PROVE = "gradfix.prove"
FIX_ALL = "source.fixAll.gradfix"

Open = Callable[[str], Buffer | None]  # the buffer of a file, where an editor has it open
Change = tuple[str, str, str]  # a cure as one text knows it: its codemod, and the fault's kind and line


def change(told: Told, cure: Cure) -> Change:
    """What a proof speaks of."""
    return cure.codemod, told.diagnosis.conflict.kind, cure.after.get(str(told.result.entry), "")


def quick_fixes(
    told: Told, buffer: Buffer, open_: Open, verdicts: Mapping[Change, Verdict], versions: bool
) -> Iterator[types.CodeAction]:
    """A fault's cures, those that hold first; then the way to prove the first one, and to ignore it."""
    cures = sorted(
        ((cure, verdicts.get(change(told, cure), cure.verdict)) for cure in told.diagnosis.cures),
        key=lambda each: (each[1].status not in HELD, each[1].status == "rejected"),
    )
    preferred = True
    for cure, verdict in cures:
        edit = workspace_edit(cure.before, cure.after, buffer, open_, versions)
        if edit is None:
            continue
        words = f"; after this, {cure.effect.words.rstrip('.')}" if cure.effect.words else ""
        yield types.CodeAction(
            f"{_capital(cure.summary)}{words} [{cure.codemod}, {verdict.status}]",
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[told.diagnostic],
            is_preferred=preferred and verdict.status != "rejected",
            edit=edit,
        )
        preferred = False
    if cures and cures[0][1].status not in HELD:
        title = "Run the script and prove its cures"
        at: list[Any] = [buffer.uri, told.diagnosis.conflict.kind, told.line]
        yield types.CodeAction(
            title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[told.diagnostic],
            command=types.Command(title, PROVE, arguments=at),
        )
    commented = ignored(buffer.source.text, told.diagnosis.conflict.kind, told.line)
    if commented is not None and told.diagnosis.conflict.at.file == str(buffer.path):
        path = str(buffer.path)
        yield types.CodeAction(
            f"Ignore {told.diagnosis.conflict.kind} here",
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[told.diagnostic],
            edit=workspace_edit({path: buffer.source.text}, {path: commented}, buffer, open_, versions),
        )


def versions(client: types.ClientCapabilities) -> bool:
    """Whether the client takes edits of a certain version of a document."""
    edit = client.workspace.workspace_edit if client.workspace is not None else None
    return bool(edit and edit.document_changes)


def workspace_edit(
    before: Mapping[str, str], after: Mapping[str, str], buffer: Buffer, open_: Open, versions: bool
) -> types.WorkspaceEdit | None:
    """What makes the files `after` of what they were `before`; None where an editor has another text of one."""
    found: dict[str, tuple[int | None, list[types.TextEdit]]] = {}
    for path, new in after.items():
        if new == before.get(path):
            continue
        file = (
            buffer if path == str(buffer.path) else open_(path) or on_disk(path, before[path], buffer.codec)
        )
        if file.source.text != before[path]:
            return None
        known = dict(file.uris())
        for uri, edits in file.edits(new).items():
            found[uri] = (known.get(uri), edits)
    if not versions:
        return types.WorkspaceEdit(changes={uri: edits for uri, (_, edits) in found.items()})
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, version), list(edits))
            for uri, (version, edits) in found.items()
        ]
    )


def ignored(text: str, kind: str, line: int) -> str | None:
    """`text` with a comment that ignores `kind` in `line`, from 1; None where there is no place for one."""
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return None
    old = lines[line - 1]
    named = re.search(r"(#\s*gradfix:\s*ignore\[)([^\]]*)\]", old)
    indent = old[: len(old) - len(old.lstrip())]
    tries = [
        [old[: named.end(2)] + f", {kind}" + old[named.end(2) :]] if named else [],
        [f"{old.rstrip()}  # gradfix: ignore[{kind}]"],
        [
            f"{indent}# gradfix: ignore[{kind}]",
            old,
        ],  # where the line goes on behind a backslash, or in a string
    ]
    for new in filter(None, tries):
        out = [*lines[: line - 1], *new, *lines[line:]]
        covers = any(each.covers(kind, line + len(new) - 1) for each in suppress.ignores("\n".join(out)))
        if covers and _parses("\n".join(out)):
            return "\n".join(out)
    return None


def _parses(text: str) -> bool:
    try:
        check_syntax(text, "")
    except SourceError:
        return False
    return True


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
