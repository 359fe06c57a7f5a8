"""A run that says more about itself than is read ends with what it has said, as one whose time was up."""

from __future__ import annotations

import os

import pytest

from gradfix.run.child import channel


def test_enough_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HIGH", 380)
    monkeypatch.setattr(channel, "_ENOUGH", 200)
    read, write = os.pipe()
    line = channel.Channel(write, "tag")
    called: list[int] = []
    line.enough = lambda: called.append(line.sent)
    for size in (10, 90, 150, 300):
        line({"e": "x" * size})
        line.flush()
    assert len(called) == 1
    assert called[0] > 200
    assert len(os.read(read, 1 << 16)) == line.sent
    os.close(line.fd)
    os.close(read)
