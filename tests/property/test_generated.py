"""Properties of generated training programs: what is reported, what a repair computes, what is left alone.

The default tier is a derandomized sample; ``-m soak`` draws thousands anew.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from difflib import SequenceMatcher

import judge
import language
import odd
import plain
import pytest
import reference
import strategies
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from language import Program

from gradfix.pipeline import fix
from gradfix.result import Result, Settings
from gradfix.run.zygote import Zygote

STEPS = 100  # no generated program has as many: none is cut short

common = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
sample = settings(common, derandomize=True)
soak = settings(common, max_examples=3000, print_blob=True)

Fix = Callable[..., Result]


@pytest.fixture(scope="module")
def repaired(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Fix:
    """fix() of a text as it stands on the disk."""
    script = tmp_path_factory.mktemp("generated") / "train.py"

    def run(text: str, repair: bool = True) -> Result:
        script.write_bytes(text.encode())
        (result,) = fix(script, Settings(steps=STEPS, repair=repair, timeout=60.0), zygote=zygote)
        assert result.problem is None, result.problem
        return result

    return run


# ---- what is reported


def reported_if_and_only_if_wrong(program: Program, repaired: Fix) -> None:
    fault = judge.fault(program)
    told = [d.conflict for d in repaired(program.text(), repair=False).diagnoses]
    reported = {
        c.kind for main in told for c in (main, *main.also)
    } & judge.KINDS  # a consequence is told with it
    note(f"PyTorch and the exact gradients say {fault or 'sound'}, reported: {sorted(reported)}")
    if fault == "differs":
        assert reported
    else:
        assert fault in reported if fault else not reported


@settings(sample, max_examples=50)
@given(program=strategies.any_program())
def test_faults_are_reported_if_and_only_if_they_are_there(program, repaired):
    reported_if_and_only_if_wrong(program, repaired)


@pytest.mark.soak
@soak
@given(program=strategies.any_program())
def test_faults_are_reported_soak(program, repaired):
    reported_if_and_only_if_wrong(program, repaired)


# ---- what a repair computes


def repairs_are_exact(program: Program, repaired: Fix) -> None:
    assume(judge.fault(program))
    result = repaired(program.text())
    assume(result.files)
    ((_, text),) = result.files.values()
    note(text)
    effects = {d.cures[0].effect.kind for d in result.diagnoses if d.status == "cured"} - {"none"}
    note(f"declared: {sorted(effects)}; {result.verdict}")
    ran = plain.run(text, program.parameters)
    assert ran.error is None
    assert _explained(program, text, ran, effects)
    again = repaired(text)
    assert not again.files, "a second run makes it\n" + next(iter(again.files.values()))[1]


def _explained(program: Program, text: str, ran: plain.Ran, effects: set[str]) -> bool:
    """Whether what the repaired text computes is what the program means, under the one effect declared."""
    try:
        if not effects:
            return any(judge.alike(ran, reference.meaning(program, through=x)) for x in (False, True))
        if effects == {"cut-round"}:
            cuts = itertools.product(("loop", "step"), {frozenset[str](), _detached(text, program.text())})
            emptied = _emptied(text, program.text())
            return any(judge.alike(ran, reference.meaning(program, cut=x, names=n)) for x, n in cuts) or (
                bool(emptied) and judge.alike(ran, reference.meaning(program, emptied=emptied))
            )
        if effects == {"later-parameters"}:
            frozen = plain.run(text.replace("lr=0.1", "lr=0.0"), program.parameters)
            meant = reference.meaning(program, still=True)
            drawn = not torch.equal(frozen.random, meant.random)  # what is computed once more draws once more
            if drawn or _draws_later(text, program.text()) or judge.alike(frozen, meant):
                return True
            # what the program itself writes into parameters is a change of theirs, as a step's is
            text, program = _unwritten(text, program)
            frozen = plain.run(text.replace("lr=0.1", "lr=0.0"), program.parameters)
            return judge.alike(frozen, reference.meaning(program, still=True))
    except reference.NoOracle:
        return True
    return True  # what these effects impose is not said here


def _unwritten(text: str, program: Program) -> tuple[str, Program]:
    """Both without what they write into leaves."""
    leaves = {leaf.name for leaf in program.leaves}
    without = replace(program, body=language.left_out(program.body, leaves))
    pairs = zip(program.text().splitlines(), without.text().splitlines(), strict=True)
    instead = {old.strip(): new.strip() for old, new in pairs if old != new}
    lines = (
        line.replace(line.strip(), instead.get(line.strip(), line.strip())) for line in text.splitlines()
    )
    return "\n".join(lines) + "\n", without


def _draws_later(text: str, written: str) -> bool:
    """Whether a line that stands elsewhere now draws random numbers, itself or in what it calls: others are drawn in
    its place."""
    called, _, body = written.partition("torch.manual_seed")
    old = body.splitlines()
    kept = SequenceMatcher(None, old, text.partition("torch.manual_seed")[2].splitlines(), autojunk=False)
    moved = [line for tag, i, j, *_ in kept.get_opcodes() if tag != "equal" for line in old[i:j]]
    return any("rand" in line or ("(" in line and "rand" in called) for line in moved)


def _detached(text: str, written: str) -> frozenset[str]:
    """The variables that are bound to themselves detached in `text`, and were not in what was written."""
    new = [line.strip() for line in text.splitlines() if line not in written.splitlines()]
    return frozenset(m[1] for m in (re.match(r"(\w+) = .*\b\w+\.detach\(\)", line) for line in new) if m)


def _emptied(text: str, written: str) -> list[tuple[int, str]]:
    """(The number of the step that stands before it, the list) of each that is emptied in `text`, and was not."""
    found, steps = [], -1
    for line in text.splitlines():
        steps += bool(re.fullmatch(r"\s*\w+\.step\(\)", line))
        if line not in written.splitlines() and (m := re.fullmatch(r"\s*(\w+)\.clear\(\)", line)):
            found.append((steps, m[1]))
    return found


@settings(sample, max_examples=5)
@given(program=strategies.any_program())
def test_repaired_programs_compute_what_was_written(program, repaired):
    repairs_are_exact(program, repaired)


@pytest.mark.soak
@soak
@given(program=strategies.any_program())
def test_repaired_programs_compute_what_was_written_soak(program, repaired):
    repairs_are_exact(program, repaired)


# ---- what is left alone


def sound_programs_stay(drawn: tuple[str, str], repaired: Fix) -> None:
    _, text = drawn
    result = repaired(text)
    said = [d.conflict.message for d in result.diagnoses if d.conflict.severity != "note"]
    assert not said
    assert not result.files


@settings(sample, max_examples=8)
@given(drawn=strategies.sound().flatmap(lambda p: odd.oddly(p.text())))
def test_sound_programs_stay_as_they_are(drawn, repaired):
    sound_programs_stay(drawn, repaired)


@pytest.mark.soak
@soak
@given(drawn=strategies.sound().flatmap(lambda p: odd.oddly(p.text())))
def test_sound_programs_stay_soak(drawn, repaired):
    sound_programs_stay(drawn, repaired)


def formatting_is_kept(drawn: tuple[str, str], repaired: Fix) -> None:
    assume(plain.run(drawn[0], ()).kind in judge.KINDS)
    result = repaired(drawn[1])
    assume(result.files)
    ((before, after),) = result.files.values()
    note(before)
    note(after)
    assert not odd.comments(before) - odd.comments(after)
    assert not odd.disturbed(before, after)
    assert odd.one_ending(after)
    assert before.startswith("\ufeff") == after.startswith("\ufeff")
    assert not repaired(after).files


@settings(sample, max_examples=4)
@given(drawn=strategies.any_program().flatmap(lambda p: odd.oddly(p.text())))
def test_formatting_outside_the_change_is_kept(drawn, repaired):
    formatting_is_kept(drawn, repaired)


@pytest.mark.soak
@soak
@given(drawn=strategies.any_program().flatmap(lambda p: odd.oddly(p.text())))
def test_formatting_is_kept_soak(drawn, repaired):
    formatting_is_kept(drawn, repaired)
