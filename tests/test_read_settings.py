"""A module of the program that parses its settings when it is loaded: neither what that takes nor where it might raise
is the end of what asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

TRAIN = """\
import torch
from settings import settings


class Agent:
    def __init__(self):
        self.net = torch.nn.Linear(settings.get("inputs"), 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=settings.get("lr"))

    def update(self, batch):
        out = self.net(batch).exp()
        out += 1
        self.optimizer.zero_grad()
        out.mean().backward()
        self.optimizer.step()
"""
RAISES = """\
class Settings:
    def __init__(self):
        with open("settings.txt") as file:
            self.found = self.parse(file.read())

    def parse(self, text):
        for line in text.splitlines():
            for mark in "=:":
                if mark in line:
                    break
            else:
                if not line.startswith("#"):
                    raise ValueError(line)
                raise EOFError
        return {}

    def get(self, name):
        return self.found[name]


settings = Settings()
"""
LONG = """\
class Settings:
    def __init__(self):
        self.found = {}
        for line in open("settings.txt"):
            self.read(line, 0)

    def read(self, line, depth):
        for mark in range(12):
            if depth < 5:
                self.read(line[mark:], depth + 1)

    def get(self, name):
        return self.found[name]


settings = Settings()
"""


@pytest.mark.parametrize("settings", [RAISES, LONG], ids=["raises", "long"])
def test_what_loads_it_is_read(tmp_path: Path, settings: str) -> None:
    (tmp_path / "settings.py").write_text(settings, encoding="utf-8")
    program = tmp_path / "train.py"
    program.write_text(TRAIN, encoding="utf-8")
    found = [(r.entry, c.kind) for r in read(program, TRAIN) for c in detect(r.tape) if c.severity != "note"]
    assert found == [("Agent.update", "stale-saved-tensor")]
