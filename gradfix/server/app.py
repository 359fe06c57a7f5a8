"""The server itself: what the editor says, and what it is told. Nothing is run before somebody asks for a proof."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path

from gradfix import __version__
from gradfix.config import FILE, ConfigError, Projects
from gradfix.result import Cure as Found
from gradfix.result import Result, Settings
from gradfix.server import actions, diagnostics
from gradfix.server.diagnostics import Told
from gradfix.server.documents import Buffer, Documents, buffer
from gradfix.server.forks import Check, Cure
from gradfix.server.proving import Proof, prove
from gradfix.server.readers import Crashed, Readers
from gradfix.source import Source, SourceError
from gradfix.verdict import HELD, Verdict

DEBOUNCE = 0.02  # seconds without a keystroke before a text is read
LATER = 0.3  # before what imports it is read again
CONFIGURATION = (FILE, "pyproject.toml")
NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithCells(cells=[types.NotebookCellLanguage(language="python")])
    ]
)


@dataclass(slots=True)
class State:
    """What is known of one open file: the text that what imports it was read with (`shared`), its `text` when it was
    read last and the faults of that, what proofs have shown, and what is under way."""

    shared: str | None
    text: str | None = None
    told: tuple[Told, ...] = ()
    cured: tuple[str, tuple[Told, ...]] | None = None
    verdicts: dict[actions.Change, Verdict] = field(default_factory=dict)
    proved: str | None = None  # the text they are about
    reading: asyncio.Task[None] | None = None


class Server(LanguageServer):
    """What lives as long as the connection."""

    def __init__(self) -> None:
        super().__init__("gradfix", __version__, notebook_document_sync=NOTEBOOKS)
        self.readers = Readers()
        self.states: dict[str, State] = {}
        self.dirty: set[str] = set()  # documents that are not as they are on the disk
        self.options: dict[str, Any] = {}
        self.projects = self._projects()
        self.complained: set[str] = set()
        self.proofs = 0
        self.running: set[asyncio.Task[Result]] = set()  # proofs
        self.offers: set[asyncio.Task[None]] = set()  # that wait for somebody's answer

    def start(self, params: types.InitializeParams) -> None:
        """Take the client's options; lines as the protocol has them."""
        given = params.initialization_options
        self.configure(given if isinstance(given, dict) else {})
        theirs = self.workspace
        folders = list(theirs.folders.values())
        self.protocol._workspace = Documents(
            theirs.root_uri,
            workspace_folders=folders,
            position_encoding=theirs.position_encoding,
        )

    def configure(self, options: dict[str, Any]) -> None:
        """Options of the editor's: `evidence`, `notes`, `debounce` in milliseconds."""
        self.options = options
        self.reload()

    def reload(self) -> None:
        """The configuration files have changed, or what the editor wants: read everything that is open again."""
        self.projects = self._projects()
        self.complained.clear()
        for uri in list(self.states):
            self.changed(uri)

    def _projects(self) -> Projects:
        evidence: Literal["certain", "likely"] = (
            "likely" if self.options.get("evidence") == "likely" else "certain"
        )
        return Projects(more={"notes": bool(self.options.get("notes")), "evidence": evidence})

    def settings(self, path: Path) -> Settings | None:
        """What holds for a file; None where it is left out. A configuration that can't be used is said once, and the
        defaults hold."""
        try:
            if self.projects.excludes(path):
                return None
            return self.projects.settings(path)
        except ConfigError as problem:
            if str(problem) not in self.complained:
                self.complained.add(str(problem))
                self.window_show_message(
                    types.ShowMessageParams(types.MessageType.Error, f"gradfix: {problem}")
                )
            return Projects(isolated=True, more=self.projects.more).settings(path)

    def buffer(self, uri: str) -> Buffer | None:
        """The file that has this document."""
        return buffer(self.workspace, uri)

    def open_file(self, path: str) -> Buffer | None:
        """The file as an editor has it, if one has."""
        return self.buffer(from_fs_path(path) or path)

    def changed(self, uri: str, pause: float | None = None) -> None:
        """Another text: what was under way for the older one ends, and this one is read after a moment, or `pause`
        seconds."""
        state = self.states.get(uri)
        if state is None:
            file = self.buffer(uri)
            state = self.states[uri] = State(file.source.text if file is not None else None)
        self.readers.drop(uri)
        if state.reading is not None:
            state.reading.cancel()
        state.reading = asyncio.ensure_future(
            self._read(uri, state, self._pause() if pause is None else pause)
        )

    def closed(self, uri: str, documents: Sequence[str]) -> None:
        """Nothing is told of a file that nobody has open."""
        self.readers.drop(uri)
        self.dirty.discard(uri)
        state = self.states.pop(uri, None)
        if state is not None and state.reading is not None:
            state.reading.cancel()
        for document in documents:
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document, []))

    async def told(self, file: Buffer) -> tuple[Told, ...]:
        """The faults of this text with their cures; none where it is not the text any more."""
        state = self.states.get(file.uri)
        settings = self.settings(file.path)
        if state is None or settings is None or state.text != file.source.text or not state.told:
            return ()
        if state.cured is None or state.cured[0] != file.source.text:
            found = await self._ask("cures", file, replace(settings, repair=True))
            state.cured = (file.source.text, found)
        return state.cured[1]

    async def _read(self, uri: str, state: State, pause: float) -> None:
        await asyncio.sleep(pause)
        file = self.buffer(uri)
        settings = self.settings(file.path) if file is not None else None
        if file is None or settings is None:
            return
        found = await self._ask("check", file, replace(settings, repair=False))
        if state.shared != file.source.text:
            state.shared = file.source.text
            self.beside(file.path)
        state.text, state.told, state.cured = file.source.text, found, None
        for document, version in file.uris():
            mine = [told.diagnostic for told in found if told.uri == document]
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document, mine, version))

    async def _ask(self, what: str, file: Buffer, settings: Settings) -> tuple[Told, ...]:
        """Raises asyncio.CancelledError once the text is another one."""
        try:
            check = Check(file.source, settings, self.unsaved(file))
            results: list[Result] = await self.readers.ask(what, file.uri, check)
        except Crashed as problem:
            self.window_log_message(
                types.LogMessageParams(types.MessageType.Error, f"{file.path}: {problem}")
            )
            return ()
        return tuple(diagnostics.told(results, file))

    def unsaved(self, file: Buffer) -> dict[str, str]:
        """The other scripts that an editor has otherwise than the disk, by their files."""
        found = filter(None, map(self.buffer, sorted(self.dirty)))
        return {
            str(each.path): each.source.text for each in found if each.path != file.path and not each.cells
        }

    def differs(self, uri: str) -> bool:
        """Whether an editor has another text of the document than the disk."""
        file = self.buffer(uri)
        try:
            return file is not None and Source.read(file.path).text != file.source.text
        except SourceError:
            return True

    def beside(self, path: Path) -> None:
        """Another text of a file is known: read again, when there is time, what is open and may import it."""
        name = re.compile(rf"\b{re.escape(path.parent.name if path.stem == '__init__' else path.stem)}\b")
        for uri in list(self.states):
            other = self.buffer(uri)
            if other is not None and other.path != path and name.search(other.source.text):
                self.changed(uri, LATER)

    def _pause(self) -> float:
        given = self.options.get("debounce")
        return given / 1000 if isinstance(given, int | float) and given >= 0 else DEBOUNCE

    async def cured_text(self, file: Buffer) -> str | None:
        """The text with every cure that means to change nothing in the training."""
        settings = self.settings(file.path)
        if settings is None:
            return None
        careful = replace(settings, run=False, careful=True, accept=("untried",), within=(file.path,))
        try:
            return cast(str, await self.readers.ask("fix", file.uri, Cure(file.source, careful)))
        except Crashed:
            return None

    async def prove(self, uri: str, kind: str, line: int) -> str:
        """Run the file's script for the fault of that kind in that line of its text; what came of it, in a sentence."""
        file = self.buffer(uri)
        settings = self.settings(file.path) if file is not None else None
        if file is None or settings is None:
            return "the file is not open any more"
        wanted = replace(settings, select=(kind,), ignore=(), notes=True)
        text = file.source.text
        token = await self._progress(f"Proving cures of {kind}")

        def say(what: str) -> None:
            if token:
                self.work_done_progress.report(
                    token, types.WorkDoneProgressReport(message=what, cancellable=True)
                )

        task = asyncio.ensure_future(prove(Proof(file.path, text, wanted), say))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        if token:
            self.work_done_progress.tokens[token].add_done_callback(
                lambda future: (
                    task.get_loop().call_soon_threadsafe(task.cancel) if future.cancelled() else None
                )
            )
        said, cure = "cancelled", None
        try:
            said, cure = self._proved(file, await task, kind, line)
        except asyncio.CancelledError:
            pass
        finally:
            if token:
                self.work_done_progress.end(token, types.WorkDoneProgressEnd(message=said))
                self.work_done_progress.tokens.pop(token, None)
        if cure is None:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"gradfix: {said}"))
        else:
            self.offers.add(offer := asyncio.ensure_future(self._offer(file, cure, said)))
            offer.add_done_callback(self.offers.discard)
        return said

    async def end_proofs(self) -> None:
        """Before anything else of the session ends: whoever asked is answered, and no run is left."""
        proofs = list(self.running)
        for proof in proofs:
            proof.cancel()
        await asyncio.gather(*proofs, return_exceptions=True)
        await asyncio.sleep(0.05)  # their answers go out

    async def _offer(self, file: Buffer, cure: Found, said: str) -> None:
        """Ask whether a cure that holds is to be applied, and do so to the text that was proved."""
        apply = types.MessageActionItem("Apply")
        asked = types.ShowMessageRequestParams(
            types.MessageType.Info, f"gradfix: {said}. {cure.summary}?", [apply]
        )
        answer = await self.window_show_message_request_async(asked)
        if answer is None or answer.title != apply.title:
            return
        now = self.buffer(file.uri)
        edit = None
        if now is not None and now.source.text == file.source.text:
            versions = actions.versions(self.client_capabilities)
            edit = actions.workspace_edit(cure.before, cure.after, now, self.open_file, versions)
        if edit is None:
            problem = "gradfix: not applied, since the text is another one by now"
            self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, problem))
            return
        await self.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit, cure.summary))

    def _proved(self, file: Buffer, result: Result, kind: str, line: int) -> tuple[str, Found | None]:
        """Keep the verdicts of a run; the one on the fault in a sentence, with the cure if it holds."""
        state = self.states.get(file.uri)
        if state is not None and state.proved != file.source.text:
            state.proved = file.source.text
            state.verdicts.clear()
        for diagnosis in result.diagnoses:
            for cure in diagnosis.cures:
                key = (cure.codemod, diagnosis.conflict.kind, cure.after.get(str(file.path), ""))
                if state is not None:
                    state.verdicts[key] = cure.verdict
        mine = [d for d in result.diagnoses if (d.conflict.kind, d.conflict.at.line) == (kind, line)]
        if not mine:
            said = result.problem.message if result.problem else f"the run shows no {kind} in line {line}"
            return said, None
        if not mine[0].cures:
            return f"the run shows the {kind} in line {line}, and no cure was found", None
        best = mine[0].cures[0]
        if best.verdict.status not in HELD:
            return f"no cure of the {kind} in line {line} holds; {best.codemod}: {best.verdict.reason}", None
        return f"{best.codemod} is {best.verdict.status}: {best.verdict.reason}", best

    async def _progress(self, title: str) -> str | None:
        window = self.client_capabilities.window
        if window is None or not window.work_done_progress:
            return None
        self.proofs += 1
        token = f"gradfix-proof-{self.proofs}"
        await self.work_done_progress.create_async(token)
        self.work_done_progress.begin(token, types.WorkDoneProgressBegin(title, cancellable=True))
        return token


def overlaps(a: types.Range, b: types.Range) -> bool:
    """Whether two ranges meet; lines are enough where an editor asks for a whole line's actions."""
    return a.start.line <= b.end.line and b.start.line <= a.end.line


def same(a: str, b: str) -> bool:
    """Whether two URIs name one document, however they are quoted."""
    return unquote(a) == unquote(b)
