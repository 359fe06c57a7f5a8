"""An editor for tests and benchmarks: the language server over standard input and output, as a real client has it."""

import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Client:
    """One session. What the server sends is kept in the order it came; its requests are answered at once."""

    def __init__(self, folder: Path, options: Message | None = None, **capabilities: Any) -> None:
        words = [sys.executable, "-P", "-m", "gradfix", "server", "--stdio"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.numbers = itertools.count(1)
        self.arrived: queue.Queue[Message] = queue.Queue()
        self.seen: list[Message] = []
        self.versions: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self.answers: dict[str, Any] = {}  # by method, to what the server asks; else null
        threading.Thread(target=self._listen, daemon=True).start()
        about = {
            "processId": None,
            "rootUri": folder.as_uri(),
            "capabilities": capabilities,
            "initializationOptions": options,
        }
        self.capabilities = self.request("initialize", about)["capabilities"]
        self.notify("initialized", {})

    # -- messages

    def send(self, message: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> int:
        number = next(self.numbers)
        self.send({"id": number, "method": method, "params": params})
        return number

    def request(self, method: str, params: Any, timeout: float = 60) -> Any:
        number = self.ask(method, params)
        answer = self.wait(lambda m: m.get("id") == number and "method" not in m, timeout)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def wait(self, wanted: Any, timeout: float = 60) -> Message:
        """The next message that is `wanted`."""
        end = time.monotonic() + timeout
        while True:
            message = self.arrived.get(timeout=max(end - time.monotonic(), 0.001))
            self.seen.append(message)
            if wanted(message):
                return message

    def _listen(self) -> None:
        out = self.process.stdout
        while True:
            length = 0
            while (line := out.readline()) not in (b"", b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if not length:
                return
            message = json.loads(out.read(length))
            message["at"] = time.monotonic()
            if "method" in message and "id" in message:
                self.send({"id": message["id"], "result": self.answers.get(message["method"])})
            self.arrived.put(message)

    def close(self) -> int:
        self.request("shutdown", None)
        self.notify("exit", None)
        code = self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()
        return code

    # -- documents

    def open(self, path: Path, text: str, language: str = "python") -> str:
        uri = path.as_uri()
        self.versions[uri], self.texts[uri] = 1, text
        item = {"uri": uri, "languageId": language, "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def change(self, uri: str, *changes: Message) -> None:
        self.versions[uri] += 1
        document = {"uri": uri, "version": self.versions[uri]}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": list(changes)})

    def replace(self, uri: str, text: str) -> None:
        self.texts[uri] = text
        self.change(uri, {"text": text})

    def diagnostics(self, uri: str, version: int | None = None, timeout: float = 60) -> list[Message]:
        """Those of the document's newest version, once they come."""
        wanted = version or self.versions[uri]

        def mine(message: Message) -> bool:
            params = message.get("params") or {}
            published = message.get("method") == "textDocument/publishDiagnostics"
            return published and params["uri"] == uri and params.get("version") == wanted

        return self.wait(mine, timeout)["params"]["diagnostics"]

    def actions(self, uri: str, line: int, *only: str) -> list[Message]:
        spot = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 0}}
        context: Message = {"diagnostics": []} | ({"only": list(only)} if only else {})
        params = {"textDocument": {"uri": uri}, "range": spot, "context": context}
        return self.request("textDocument/codeAction", params)


def applied(text: str, edits: list[Message], encoding: str = "utf-16") -> str:
    """`text` after edits of a workspace edit."""
    lines = text.split("\n")
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]

    def offset(at: Message) -> int:
        if at["line"] >= len(lines):
            return len(text)
        line, units = lines[at["line"]], 0
        for column, character in enumerate(line):
            if units >= at["character"]:
                return starts[at["line"]] + column
            units += len(character.encode(f"{encoding}-le" if encoding == "utf-16" else encoding)) // (
                2 if encoding == "utf-16" else 1
            )
        return starts[at["line"]] + len(line)

    for edit in sorted(edits, key=lambda e: offset(e["range"]["start"]), reverse=True):
        start, end = offset(edit["range"]["start"]), offset(edit["range"]["end"])
        text = text[:start] + edit["newText"] + text[end:]
    return text
