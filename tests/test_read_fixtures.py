"""The two emitters judge each other: what is read from a fixture's text is what its run shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gradfix.detect import Conflict, detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote
from gradfix.testing import fixtures

FOLDER = Path(__file__).parent.parent / "fixtures"
PROGRAMS = [
    path
    for fixture in fixtures(FOLDER)
    for path in (fixture.before, fixture.after)
    if path is not None and not (path.name == "after.py" and path.with_name("after").is_dir())
]
# program -> steps until a run comes to its fault, or to the phase in which there is none
LATER = {"load_in_place/best_of_a_phase/before.py": 6, "undetach/sound_probe_before_the_whole/before.py": 8}


def told(conflicts: Iterable[Conflict]) -> set[tuple[object, ...]]:
    return {
        (c.kind, c.pattern, Path(c.at.file).name, c.at.line, c.at.column, c.at.end_line, c.at.end_column)
        for c in conflicts
        if c.severity != "note"
    }


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.relative_to(FOLDER)))
def test_reading_a_fixture_finds_what_running_it_shows(program: Path, zygote: Zygote) -> None:
    name = str(program.relative_to(FOLDER))
    run = Run(program, program.parent, program.parent, steps=LATER.get(name, 3))
    outcome = zygote.run(run)
    main, *others = read(program, program.read_text(encoding="utf-8"))
    ran, read_ = told(detect(outcome.tape)), told(detect(main.tape))
    assert read_ == ran
    assert not main.problems
    for other in others:
        extra = told(detect(other.tape))
        assert extra <= ran, f"{other.entry} shows what the run does not"


@pytest.mark.parametrize(
    "program", [f.after for f in fixtures(FOLDER) if f.after], ids=lambda p: p.parent.name
)
def test_a_cured_fixture_is_silent(program: Path) -> None:
    if program.with_name("after").is_dir():
        pytest.skip("its siblings are cured in a folder of their own")
    for reading in read(program, program.read_text(encoding="utf-8")):
        assert not told(detect(reading.tape))
