"""Every codemod on every fixture, together with all others and in any order: a clean end, always the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gradfix import repair, testing
from gradfix.codemod import codemods
from gradfix.detect import KINDS
from gradfix.result import Settings

FIXTURES = testing.fixtures(Path(__file__).parent.parent.parent / "fixtures")
SAMPLE = FIXTURES[:: len(FIXTURES) // 3]


def converges(fixture, zygote, monkeypatch, tmp_path, seeds):
    """All codemods at once, whatever their order, end at one text, and a second run changes nothing."""
    notes = all(KINDS[kind] == "note" for _, _, kind in fixture.marks)
    wanted = Settings(notes=notes)
    first = testing.one(fixture.before, zygote, wanted)
    new = {path: text for path, (_, text) in first.files.items()}
    for seed in seeds:
        shuffled = list(codemods())
        random.Random(seed).shuffle(shuffled)
        with monkeypatch.context() as patch:
            patch.setattr(repair, "codemods", lambda found=tuple(shuffled): found)
            again = testing.one(fixture.before, zygote, wanted)
        assert {path: text for path, (_, text) in again.files.items()} == new
    if str(fixture.before) in new and len(new) == 1:
        for path in fixture.before.parent.glob("*.py"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        script = tmp_path / fixture.before.name
        script.write_bytes(new[str(fixture.before)].encode())
        second = testing.one(script, zygote, wanted)
        assert not second.files, next(iter(second.files.values()))[1]
        assert not [d.conflict.message for d in second.diagnoses if d.conflict.severity == "error"]


@pytest.mark.parametrize("fixture", SAMPLE, ids=str)
def test_codemods_converge_in_any_order(fixture, zygote, monkeypatch, tmp_path):
    converges(fixture, zygote, monkeypatch, tmp_path, (1,))


@pytest.mark.soak
@pytest.mark.parametrize("fixture", FIXTURES, ids=str)
def test_codemods_converge_in_any_order_soak(fixture, zygote, monkeypatch, tmp_path):
    converges(fixture, zygote, monkeypatch, tmp_path, (1, 2))
