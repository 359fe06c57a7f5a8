"""The language server in sessions of a real client: what it tells while somebody types, and what it offers."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from client import Client, applied
from pygls.workspace import PositionCodec
from test_baseline import CURED_LOOP, FAULT, MEANT

from gradfix.server.actions import ignored
from gradfix.server.documents import Buffer
from gradfix.server.readers import Crashed, Readers
from gradfix.source import Source
from gradfix.suppress import ignores

EDITS = {"workspaceEdit": {"documentChanges": True}}
EMOJI = FAULT.replace("y += 1", 'é = "😀"; y += 1')


@pytest.fixture
def folder(tmp_path) -> Path:
    """A project whose files must not be run: each says so if it is."""
    for name in ("json", "select", "gradfix"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    return tmp_path


@pytest.fixture
def session(folder):
    """Starts a client; in the end the server has run nothing, and leaves in peace."""
    clients = []

    def start(options=None, **capabilities) -> Client:
        client = Client(folder, options, workspace=EDITS, **capabilities)
        clients.append(client)
        return client

    yield start
    codes = [client.close() for client in clients]
    assert codes == [0] * len(clients)
    assert not (folder / "ran").exists()


def line_of(text: str, piece: str) -> int:
    return text[: text.index(piece)].count("\n")


def edits(action: dict, uri: str) -> list[dict]:
    (change,) = action["edit"]["documentChanges"]
    assert change["textDocument"]["uri"] == uri
    return change["edits"]


def test_typing_and_a_quick_fix(session, folder):
    client = session()
    uri = client.open(folder / "new.py", "import torch\n")  # not on the disk
    assert client.diagnostics(uri) == []
    client.replace(uri, FAULT)
    (found,) = client.diagnostics(uri)
    assert (found["code"], found["severity"], found["source"]) == ("stale-saved-tensor", 1, "gradfix")
    assert found["range"] == {"start": {"line": 4, "character": 0}, "end": {"line": 4, "character": 6}}
    related = [(x["message"], x["location"]["range"]["start"]["line"]) for x in found["relatedInformation"]]
    assert related == [
        ("y (8×4) saved here, version 0", 3),
        ("overwritten here, version 1", 4),
        ("needed here", 5),
    ]
    first, *_ = client.actions(uri, 4)
    assert first["title"] == "Out of place: `y = y + 1` [out-of-place, untried]"
    assert first["isPreferred"]
    new = applied(FAULT, edits(first, uri))
    assert new == FAULT.replace("y += 1", "y = y + 1")
    client.replace(uri, new)
    assert client.diagnostics(uri) == []
    assert client.actions(uri, 4) == []


def test_half_a_statement_has_no_diagnostics(session, folder):
    client = session()
    uri = client.open(folder / "a.py", FAULT)
    assert len(client.diagnostics(uri)) == 1
    client.replace(uri, FAULT + "if (")
    assert client.diagnostics(uri) == []
    client.replace(uri, FAULT)
    assert len(client.diagnostics(uri)) == 1


@pytest.mark.parametrize(("encoding", "start"), [("utf-16", 10), ("utf-8", 13), ("utf-32", 9)])
def test_position_encodings(session, folder, encoding, start):
    client = session(general={"positionEncodings": [encoding]})
    assert client.capabilities["positionEncoding"] == encoding
    uri = client.open(folder / "a.py", EMOJI)
    (found,) = client.diagnostics(uri)
    assert found["range"]["start"] == {"line": 4, "character": start}
    assert found["range"]["end"] == {"line": 4, "character": start + 6}


def test_incremental_changes_behind_form_feeds_and_emoji(session, folder):
    text = "# a\x0cb\u2028c\r\n" + EMOJI.replace("\n", "\r\n")
    client = session()
    uri = client.open(folder / "a.py", text.replace("y += 1", "y + 1"))
    assert client.diagnostics(uri) == []
    spot = {"line": 5, "character": 12}
    client.change(uri, {"range": {"start": spot, "end": spot}, "text": "+="})
    client.change(
        uri, {"range": {"start": {**spot, "character": 14}, "end": {**spot, "character": 16}}, "text": ""}
    )
    (found,) = client.diagnostics(uri)
    assert found["range"]["start"] == {"line": 5, "character": 10}


def test_fix_all_applies_what_means_to_change_nothing(session, folder):
    text = FAULT + MEANT.removeprefix("import torch\n")
    client = session()
    uri = client.open(folder / "a.py", text)
    assert [d["code"] for d in client.diagnostics(uri)] == ["stale-saved-tensor", "freed-graph"]
    (action,) = client.actions(uri, 0, "source.fixAll")
    assert action["kind"] == "source.fixAll.gradfix"
    assert applied(text, edits(action, uri)) == text.replace("y += 1", "y = y + 1")
    client.replace(uri, text.replace("y += 1", "y = y + 1"))
    assert client.actions(uri, 0, "source.fixAll.gradfix") == []
    assert client.actions(uri, 0, "source.organizeImports") == []


def test_proving_runs_the_buffer_and_says_the_verdict(session, folder):
    shutil.rmtree(folder, ignore_errors=True)  # a project that may be run
    folder.mkdir()
    on_disk = folder / "train.py"
    on_disk.write_text("raise SystemExit('the file on the disk was run')\n")
    text = FAULT + "open('written', 'w').close()\n"
    client = session(window={"workDoneProgress": True})
    uri = client.open(on_disk, text)
    client.diagnostics(uri)
    command = next(a["command"] for a in client.actions(uri, 4) if "command" in a)
    said = client.request(
        "workspace/executeCommand", {"command": command["command"], "arguments": command["arguments"]}, 200
    )
    assert said == "out-of-place is proved: every gradient equal to the exact one over 1 backward"
    progress = [m["params"]["value"] for m in client.seen if m.get("method") == "$/progress"]
    assert [x["kind"] for x in progress][:: len(progress) - 1] == ["begin", "end"]
    assert "recording a run" in [x.get("message") for x in progress]
    assert client.actions(uri, 4)[0]["title"] == "Out of place: `y = y + 1` [out-of-place, proved]"
    assert not (folder / "written").exists()
    assert not any(m.get("method") == "workspace/applyEdit" for m in client.seen)  # nobody said so
    client.answers = {
        "window/showMessageRequest": {"title": "Apply"},
        "workspace/applyEdit": {"applied": True},
    }
    words = {"command": command["command"], "arguments": command["arguments"]}
    client.request("workspace/executeCommand", words, 200)
    asked = client.wait(lambda m: m.get("method") == "workspace/applyEdit")["params"]
    assert applied(text, edits(asked, uri)) == text.replace("y += 1", "y = y + 1")
    (offer, _) = [m["params"] for m in client.seen if m.get("method") == "window/showMessageRequest"]
    assert offer["actions"] == [{"title": "Apply"}]
    client.replace(uri, "\n" + text)
    client.diagnostics(uri)
    assert client.actions(uri, 5)[0]["title"].endswith("[out-of-place, untried]")  # another text


def test_a_proof_can_be_cancelled(session, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    client = session(window={"workDoneProgress": True})
    uri = client.open(folder / "train.py", "import time\n" + FAULT + "time.sleep(600)\n")
    client.diagnostics(uri)
    words = {"command": "gradfix.prove", "arguments": [uri, "stale-saved-tensor", 6]}
    number = client.ask("workspace/executeCommand", words)
    begun = client.wait(
        lambda m: m.get("method") == "$/progress" and m["params"]["value"]["kind"] == "report"
    )
    client.notify("window/workDoneProgress/cancel", {"token": begun["params"]["token"]})
    assert client.wait(lambda m: m.get("id") == number and "method" not in m)["result"] == "cancelled"


def test_the_editor_leaves_while_a_proof_runs(session, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    client = session(window={"workDoneProgress": True})
    uri = client.open(folder / "train.py", "import time\n" + FAULT + "time.sleep(600)\n")
    client.diagnostics(uri)
    words = {"command": "gradfix.prove", "arguments": [uri, "stale-saved-tensor", 6]}
    client.ask("workspace/executeCommand", words)
    client.wait(lambda m: m.get("method") == "$/progress" and m["params"]["value"]["kind"] == "report")
    assert client.request("shutdown", None) is None
    begun = time.monotonic()
    client.notify("exit", None)
    assert client.process.wait(20) == 0
    assert time.monotonic() - begun < 5
    client.close = lambda: 0  # it has left


def test_hovering_below_the_last_line(session, folder):
    client = session()
    uri = client.open(folder / "new.py", "import torch\n")
    client.diagnostics(uri)
    where = {"textDocument": {"uri": uri}, "position": {"line": 99, "character": 0}}
    assert client.request("textDocument/hover", where) is None


def test_hover(session, folder):
    client = session()
    text = FAULT + "# gradfix: ignore-file[leaf-write]\n"
    uri = client.open(folder / "a.py", text)
    client.diagnostics(uri)

    def over(line: int, character: int) -> str:
        at = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        found = client.request("textDocument/hover", at)
        return found["contents"]["value"] if found else ""

    assert over(4, 2).startswith("**stale-saved-tensor**: Autograd saved this tensor")
    assert over(6, 25).startswith("# leaf-write (error)")
    assert over(3, 2) == ""
    assert over(6, 3).startswith("**unused-ignore**")


def test_ignoring_with_a_comment(session, folder):
    client = session()
    uri = client.open(folder / "a.py", FAULT)
    client.diagnostics(uri)
    action = next(a for a in client.actions(uri, 4) if a["title"] == "Ignore stale-saved-tensor here")
    new = applied(FAULT, edits(action, uri))
    assert new == FAULT.replace("y += 1", "y += 1  # gradfix: ignore[stale-saved-tensor]")
    client.replace(uri, new)
    assert client.diagnostics(uri) == []


@pytest.mark.parametrize(
    ("text", "line", "new"),
    [
        ("x = 1\n", 1, "x = 1  # gradfix: ignore[leaf-write]\n"),
        ("x = 1  # why\n", 1, "x = 1  # why  # gradfix: ignore[leaf-write]\n"),
        ("x = 1  # gradfix: ignore[cut-graph]\n", 1, "x = 1  # gradfix: ignore[cut-graph, leaf-write]\n"),
        (
            "if a:\n    x = f(1,\n      2)\n",
            2,
            "if a:\n    x = f(1,  # gradfix: ignore[leaf-write]\n      2)\n",
        ),
        (
            "if a:\n    x = 1 + \\\n  2\n",
            2,
            "if a:\n    # gradfix: ignore[leaf-write]\n    x = 1 + \\\n  2\n",
        ),
        ("x = '''\n'''\n", 1, "# gradfix: ignore[leaf-write]\nx = '''\n'''\n"),
    ],
    ids=["plain", "comment", "another_kind", "brackets", "backslash", "string"],
)
def test_where_an_ignoring_comment_goes(text, line, new):
    assert ignored(text, "leaf-write", line) == new
    assert ignores(new)[0].covers("leaf-write", line + new.count("\n") - text.count("\n"))


def test_notebooks(session, folder):
    client = session()
    book, markdown, one, two = (f"vscode-notebook-cell:/{n}" for n in ("book", "m", "1", "2"))
    book = (folder / "a.ipynb").as_uri()
    head, tail = FAULT.split("y += 1\n")
    magic = "%matplotlib inline\n" + head.rstrip("\n")
    cells = [
        (markdown, 1, "text", "markdown"),
        (one, 2, magic, "python"),
        (two, 2, "y += 1\n" + tail, "python"),
    ]
    params = {
        "notebookDocument": {
            "uri": book,
            "notebookType": "jupyter-notebook",
            "version": 1,
            "cells": [{"kind": kind, "document": uri} for uri, kind, _, _ in cells],
        },
        "cellTextDocuments": [
            {"uri": uri, "languageId": language, "version": 1, "text": text}
            for uri, _, text, language in cells
        ],
    }
    client.notify("notebookDocument/didOpen", params)
    assert client.diagnostics(one, 1) == []
    (found,) = client.diagnostics(two, 1)
    assert found["range"]["start"] == {"line": 0, "character": 0}
    places = [
        (x["location"]["uri"], x["location"]["range"]["start"]["line"]) for x in found["relatedInformation"]
    ]
    assert places == [(one, 4), (two, 0), (two, 1)]
    offered = [a for a in client.actions(two, 0) if "edit" in a]
    actions = {a["title"].partition("[")[2]: a for a in offered}
    assert applied("y += 1\n" + tail, edits(actions["out-of-place, untried]"], two)) == "y = y + 1\n" + tail
    saving = next(a for a in offered if "Save a copy" in a["title"])
    assert applied(magic, edits(saving, one)) == magic.replace(".exp()", ".exp().clone()")
    change = {
        "cells": {
            "textContent": [
                {"document": {"uri": two, "version": 2}, "changes": [{"text": "y = y + 1\n" + tail}]}
            ]
        }
    }
    client.notify(
        "notebookDocument/didChange", {"notebookDocument": {"uri": book, "version": 2}, "change": change}
    )
    assert client.diagnostics(two, 2) == []


def test_a_line_added_at_the_end_of_a_cell_stays_in_it(session, folder):
    client = session()
    book = (folder / "a.ipynb").as_uri()
    head, tail = CURED_LOOP
    texts = {"cell:1": head, "cell:2": tail}
    params = {
        "notebookDocument": {
            "uri": book,
            "notebookType": "jupyter-notebook",
            "version": 1,
            "cells": [{"kind": 2, "document": uri} for uri in texts],
        },
        "cellTextDocuments": [
            {"uri": uri, "languageId": "python", "version": 1, "text": text} for uri, text in texts.items()
        ],
    }
    client.notify("notebookDocument/didOpen", params)
    (found,) = client.diagnostics("cell:2", 1)
    assert found["code"] == "stale-saved-tensor"
    copied = next(a for a in client.actions("cell:2", 0) if "`y.clone()`" in a["title"])
    new = applied(tail, edits(copied, "cell:2"))
    assert new == "y = y.clone()\n" + tail


def test_configuration_is_read_again(session, folder):
    client = session()
    uri = client.open(folder / "a.py", FAULT)
    assert len(client.diagnostics(uri)) == 1
    (folder / "gradfix.toml").write_text('ignore = ["stale-saved-tensor"]\n')
    changed = {"changes": [{"uri": (folder / "gradfix.toml").as_uri(), "type": 1}]}
    client.notify("workspace/didChangeWatchedFiles", changed)
    assert client.diagnostics(uri) == []
    (folder / "gradfix.toml").write_text('ignroe = ["stale-saved-tensor"]\n')
    client.notify("workspace/didChangeWatchedFiles", changed)
    said = client.wait(lambda m: m.get("method") == "window/showMessage")["params"]["message"]
    assert "did you mean ignore?" in said
    assert len(client.diagnostics(uri)) == 1


def test_what_the_editor_configures(session, folder):
    noted = FAULT.replace("y += 1\n", "y = y + 1\n").replace("backward()", "backward(retain_graph=True)")
    client = session({"notes": True})
    uri = client.open(folder / "a.py", noted)
    assert [d["severity"] for d in client.diagnostics(uri)] == [3]
    client.notify("workspace/didChangeConfiguration", {"settings": {"gradfix": {"notes": False}}})
    assert client.diagnostics(uri) == []


def test_a_fault_of_another_file_shows_at_the_call(session, folder):
    (folder / "lib.py").write_text("def spoil(y):\n    y += 1\n")
    text = FAULT.replace("y += 1", "lib.spoil(y)").replace("import torch", "import torch\nimport lib")
    client = session()
    uri = client.open(folder / "a.py", text)
    (found,) = client.diagnostics(uri)
    assert found["range"]["start"]["line"] == 5
    assert (folder / "lib.py").as_uri() in {x["location"]["uri"] for x in found["relatedInformation"]}


def test_an_unsaved_file_is_read_as_the_editor_has_it(session, folder):
    """It counts for those that import it while it is typed, until it is closed; saved or not, there or not."""
    text = FAULT.replace("y += 1", "lib.calm(y)").replace("import torch", "import torch\nimport lib")
    client = session()
    lib = client.open(folder / "lib.py", "def calm(y):\n    y += 1\n")
    uri = client.open(folder / "a.py", text)
    assert [d["range"]["start"]["line"] for d in client.diagnostics(uri)] == [5]
    client.replace(lib, "def calm(y):\n    return y + 1\n")
    assert client.diagnostics(uri) == []
    client.replace(lib, "def calm(y):\n    y *= 2\n")
    assert len(client.diagnostics(uri)) == 1
    client.notify("textDocument/didClose", {"textDocument": {"uri": lib}})
    assert client.diagnostics(uri) == []


def test_a_file_that_changes_before_it_was_ever_read_is_read_by_its_importers(session, folder):
    text = FAULT.replace("y += 1", "lib.calm(y)").replace("import torch", "import torch\nimport lib")
    client = session()
    assert client.diagnostics(client.open(folder / "warm.py", FAULT))
    lib = client.open(folder / "lib.py", "# of a\ndef calm(y):\n    y += 1\n")  # read later: it speaks of a
    uri = client.open(folder / "a.py", text)
    assert client.diagnostics(uri)
    client.replace(lib, "def calm(y):\n    return y + 1\n")
    assert client.diagnostics(uri) == []


def test_a_file_opened_otherwise_than_the_disk_is_read_by_its_importers(session, folder):
    model = "def grow(y):\n    y = y + 1\n    return y\n"
    (folder / "model.py").write_text(model)
    text = "import model\n" + FAULT.replace("y += 1", "y = model.grow(y)")
    client = session()
    uri = client.open(folder / "train.py", text)
    assert client.diagnostics(uri) == []
    client.open(folder / "model.py", model.replace("y = y + 1", "y += 1"))
    assert client.diagnostics(uri)


def test_a_closed_file_has_no_diagnostics(session, folder):
    client = session()
    uri = client.open(folder / "a.py", FAULT)
    assert len(client.diagnostics(uri)) == 1
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    gone = client.wait(lambda m: m.get("method") == "textDocument/publishDiagnostics")
    assert gone["params"]["diagnostics"] == []


def test_only_the_newest_text_is_told_of(session, folder):
    """Two hundred keystrokes: none but the last version has diagnostics that name its lines."""
    client = session({"debounce": 0})
    uri = client.open(folder / "a.py", FAULT)
    client.diagnostics(uri)
    for _ in range(200):
        client.replace(uri, "\n" + client.texts[uri])
    (found,) = client.diagnostics(uri)
    assert found["range"]["start"]["line"] == 204
    published = [m["params"] for m in client.seen if m.get("method") == "textDocument/publishDiagnostics"]
    assert all(p["diagnostics"][0]["range"]["start"]["line"] == p["version"] + 3 for p in published)
    versions = [p["version"] for p in published]
    assert versions == sorted(versions)
    time.sleep(0.3)
    assert not [m for m in list(client.arrived.queue) if "publishDiagnostics" in m.get("method", "")]


def test_a_reader_that_dies_while_nobody_waits(session, folder):
    client = session()
    uri = client.open(folder / "a.py", FAULT)
    client.diagnostics(uri)
    (forks,) = children(client.process.pid)
    os.kill(children(forks)[0], 9)
    client.replace(uri, "\n" + FAULT)
    assert len(client.diagnostics(uri)) == 1


def test_a_reading_that_ends_its_process_is_one_answer():
    async def session() -> str:
        readers = Readers()
        with pytest.raises(Crashed):
            await readers.ask("check", "a", partial(os._exit, 3))
        return await readers.ask("check", "a", partial(str.upper, "fine"))

    assert asyncio.run(session()) == "FINE"


def test_an_older_reading_is_ended(tmp_path):
    async def session() -> float:
        readers = Readers()
        await readers.ask("check", "a", partial(str.upper, "warm"))
        old = asyncio.ensure_future(readers.ask("check", "a", partial(time.sleep, 60)))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        assert await readers.ask("check", "a", partial(str.upper, "new")) == "NEW"
        with pytest.raises(asyncio.CancelledError):
            await old
        return time.monotonic() - started

    assert asyncio.run(session()) < 10


def children(pid: int) -> list[int]:
    """From /proc: the processes that a process started."""
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_without_pygls_it_says_what_to_install(tmp_path):
    (tmp_path / "pygls.py").write_text("raise ImportError\n")
    words = [sys.executable, "-m", "gradfix", "server", "--stdio"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'gradfix[lsp]'" in done.stderr


@pytest.mark.skipif(
    shutil.which("nvim") is None, reason="Neovim is not installed (Debian: apt-get install neovim)"
)
def test_neovim(folder):
    """The editor itself, headless: diagnostics in its list, the preferred action applied to its buffer."""
    (folder / "train.py").write_text(EMOJI)
    command = json.dumps([sys.executable, "-P", "-m", "gradfix", "server", "--stdio"])
    script = f"""
    vim.cmd('edit train.py')
    local command = vim.json.decode('{command}')
    local id = vim.lsp.start_client({{ cmd = command, root_dir = vim.fn.getcwd(), name = 'gradfix' }})
    vim.lsp.buf_attach_client(0, id)
    vim.wait(30000, function() return #vim.diagnostic.get(0) > 0 end, 20)
    local found = vim.diagnostic.get(0)
    local out = {{ count = #found, line = found[1].lnum, column = found[1].col, code = found[1].code }}
    vim.api.nvim_win_set_cursor(0, {{ 5, 0 }})
    local params = vim.lsp.util.make_range_params()
    params.context = {{ diagnostics = {{}} }}
    local answers = vim.lsp.buf_request_sync(0, 'textDocument/codeAction', params, 30000)
    local action = answers[id].result[1]
    vim.lsp.util.apply_workspace_edit(action.edit, 'utf-16')
    vim.wait(30000, function() return #vim.diagnostic.get(0) == 0 end, 20)
    out.left = #vim.diagnostic.get(0)
    vim.cmd('write!')
    io.stdout:write(vim.json.encode(out))
    vim.cmd('qall!')
    """
    (folder / "session.lua").write_text(script)
    words = ["nvim", "--clean", "--headless", "-c", "luafile session.lua"]
    (folder / "home").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")} | {"HOME": str(folder / "home")}
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert json.loads(done.stdout) == {
        "count": 1,
        "line": 4,
        "column": 13,  # Neovim counts bytes
        "code": "stale-saved-tensor",
        "left": 0,
    }, done.stderr
    assert (folder / "train.py").read_text() == EMOJI.replace("y += 1", "y = y + 1")


def test_what_an_edit_puts_in_has_the_line_endings_of_its_buffer():
    buffer = Buffer("file:///a.py", 1, Source.decode("a.py", b"a\r\nb\r\nc\r\n"), PositionCodec())
    (edits,) = buffer.edits("a\nx\ny\nc\nz\n").values()
    assert [e.new_text for e in edits] == ["x\r\ny", "z\r\n"]
