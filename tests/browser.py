"""A headless Chromium, driven over a pipe in its own debugging protocol; nothing beside the standard library."""

import json
import os
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip


class Page:
    """One page; use as a context. `errors` are what it wrote to the console, and requests it made."""

    def __init__(self, file: Path, profile: Path) -> None:
        self._file, self._profile = file, profile
        self._number = 0
        self.errors: list[str] = []

    def __enter__(self) -> "Page":
        (hear, theirs_out), (theirs_in, say) = os.pipe(), os.pipe()

        command = [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={self._profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        moved = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'  # where the browser listens and speaks
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "sh", *command],
            pass_fds=[theirs_in, theirs_out],
            env=os.environ | {"HOME": str(self._profile)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._say, self._hear = os.fdopen(say, "wb", 0), os.fdopen(hear, "rb")
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self._loaded = False
        self.ask("Page.navigate", url=self._file.as_uri())
        while not self._loaded:
            self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._say.close()
        self._hear.close()

    def ask(self, method: str, **words: object) -> dict:
        self._number += 1
        said = {"id": self._number, "method": method, "params": words}
        if hasattr(self, "_session"):
            said["sessionId"] = self._session
        self._say.write(json.dumps(said).encode() + b"\0")
        while True:
            heard = self._listen()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                return heard["result"]

    def js(self, expression: str) -> object:
        """What an expression comes to in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        middle = self.js(
            f"(e => {{ e.scrollIntoView(); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({selector!r}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent", type=kind, x=middle[0], y=middle[1], button="left", clickCount=1
            )

    def type(self, text: str) -> None:
        """Keys into what has the focus."""
        self.ask("Input.insertText", text=text)

    def _listen(self) -> dict:
        raw = bytearray()
        while (byte := self._hear.read(1)) != b"\0":
            assert byte, "the browser is gone"
            raw += byte
        heard = json.loads(raw)
        method, about = heard.get("method"), heard.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith("file:"):
            self.errors.append(f"asked for {about['request']['url']}")
        return heard
