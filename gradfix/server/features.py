"""What the protocol's messages mean to the server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import PurePosixPath

from lsprotocol import types

from gradfix.explain import page
from gradfix.server import actions, diagnostics
from gradfix.server.app import CONFIGURATION, Server, overlaps, same
from gradfix.server.documents import Buffer, file_of
from gradfix.suppress import REPORTED

KINDS = [types.CodeActionKind.QuickFix, actions.FIX_ALL]


def serve() -> int:
    """Speak with the client on standard input and output until it leaves; the exit code."""
    server = Server()
    register(server)
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nobody's print gets between the messages
    server.start_io(sys.stdin.buffer, answers)
    return 0 if server.protocol._shutdown else 1


def register(server: Server) -> None:
    """Everything the server does."""
    _documents(server)
    _configuration(server)
    _asked(server)


def _documents(server: Server) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(ls: Server, params: types.InitializeParams) -> None:
        ls.start(params)

    @server.feature(types.SHUTDOWN)
    async def shutdown(ls: Server, *_: object) -> None:
        await ls.end_proofs()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        if ls.differs(uri):
            ls.dirty.add(uri)
            ls.beside(file_of(uri, ".py"))
        ls.changed(uri, 0)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
        ls.dirty.add(params.text_document.uri)
        ls.changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
        """Other files may import it."""
        ls.dirty.discard(params.text_document.uri)
        for uri in list(ls.states):
            if not same(uri, params.text_document.uri):
                ls.changed(uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
        unsaved = params.text_document.uri in ls.dirty
        ls.closed(params.text_document.uri, [params.text_document.uri])
        if unsaved:
            ls.beside(file_of(params.text_document.uri, ".py"))

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_opened(ls: Server, params: types.DidOpenNotebookDocumentParams) -> None:
        ls.changed(params.notebook_document.uri, 0)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_changed(ls: Server, params: types.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        if cells is not None and cells.structure is not None:
            for gone in cells.structure.did_close or ():
                ls.text_document_publish_diagnostics(types.PublishDiagnosticsParams(gone.uri, []))
        ls.changed(params.notebook_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(ls: Server, params: types.DidCloseNotebookDocumentParams) -> None:
        ls.closed(params.notebook_document.uri, [cell.uri for cell in params.cell_text_documents])


def _configuration(server: Server) -> None:
    @server.feature(types.INITIALIZED)
    async def initialized(ls: Server, params: types.InitializedParams) -> None:
        await ls.readers.start()
        workspace = ls.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is None or not watching.dynamic_registration:
            return
        watchers = [types.FileSystemWatcher(glob_pattern=f"**/{name}") for name in CONFIGURATION]
        await ls.client_register_capability_async(
            types.RegistrationParams(
                [
                    types.Registration(
                        id="gradfix-configuration",
                        method=types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                        register_options=types.DidChangeWatchedFilesRegistrationOptions(watchers),
                    )
                ]
            )
        )

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def watched(ls: Server, params: types.DidChangeWatchedFilesParams) -> None:
        if any(PurePosixPath(change.uri).name in CONFIGURATION for change in params.changes):
            ls.reload()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(ls: Server, params: types.DidChangeConfigurationParams) -> None:
        given = params.settings
        ours = given.get("gradfix", given) if isinstance(given, dict) else None
        ls.configure(ours if isinstance(ours, dict) else ls.options)


def _asked(server: Server) -> None:
    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=KINDS, resolve_provider=False),
    )
    async def code_action(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        file = ls.buffer(uri)
        if file is None:
            return []
        only = [str(getattr(kind, "value", kind)) for kind in params.context.only or ()]
        out = []
        try:
            if any(_within(actions.FIX_ALL, kind) for kind in only):
                out += await _fix_all(ls, file)
            if not only or any(_within("quickfix", kind) for kind in only):
                out += await _quick_fixes(ls, file, uri, params.range)
        except asyncio.CancelledError:
            return []  # the text is another one by now
        return out

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        """A kind's page: over a fault, or over its name in a comment."""
        uri, at = params.text_document.uri, params.position
        file = ls.buffer(uri)
        state = ls.states.get(file.uri) if file is not None else None
        if file is None or state is None:
            return None
        number = file.line_of(uri, at.line)
        if number > len(file.lines):
            return None
        line = file.lines[number - 1]
        names = "|".join(map(re.escape, REPORTED))
        for found in re.finditer(rf"(?<![\w-])({names})(?![\w-])", line):
            start, end = (file.codec.client_num_units(line[:column]) for column in found.span())
            if "gradfix" in line[: found.start()] and start <= at.character <= end:
                return _markdown(page(found[1]) or "")
        spot = types.Range(at, at)
        for told in state.told if state.text == file.source.text else ():
            if same(told.uri, uri) and overlaps(told.diagnostic.range, spot):
                known = [
                    f"{c}: {v.status}, {v.reason}"
                    for (c, kind, _), v in state.verdicts.items()
                    if kind == told.diagnosis.conflict.kind
                ]
                return _markdown(diagnostics.hover(told, known))
        return None

    @server.command(actions.PROVE)
    async def prove(ls: Server, uri: str, kind: str, line: int) -> str:
        return await ls.prove(uri, kind, line)


async def _quick_fixes(ls: Server, file: Buffer, uri: str, span: types.Range) -> list[types.CodeAction]:
    state = ls.states.get(file.uri)
    if state is None or not any(same(t.uri, uri) and overlaps(t.diagnostic.range, span) for t in state.told):
        return []
    return [
        action
        for told in await ls.told(file)
        if same(told.uri, uri) and overlaps(told.diagnostic.range, span)
        for action in actions.quick_fixes(
            told, file, ls.open_file, state.verdicts, actions.versions(ls.client_capabilities)
        )
    ]


async def _fix_all(ls: Server, file: Buffer) -> list[types.CodeAction]:
    new = await ls.cured_text(file)
    if new is None or new == file.source.text:
        return []
    path = str(file.path)
    edit = actions.workspace_edit(
        {path: file.source.text}, {path: new}, file, ls.open_file, actions.versions(ls.client_capabilities)
    )
    title = "Apply every cure that means to change nothing in the training (untried)"
    return [types.CodeAction(title, kind=actions.FIX_ALL, edit=edit)]


def _within(kind: str, wanted: str) -> bool:
    return kind == wanted or kind.startswith(f"{wanted}.")


def _markdown(text: str) -> types.Hover:
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
