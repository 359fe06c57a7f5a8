"""Every fixture folder and every example through every check, in one warm process."""

from dataclasses import replace
from pathlib import Path

import pytest

from gradfix import testing

FOLDER = Path(__file__).parent.parent / "fixtures"
FIXTURES = testing.fixtures(FOLDER)


@pytest.mark.parametrize("fixture", FIXTURES, ids=str)
def test_fixture(fixture, zygote):
    testing.check(fixture, zygote)


@pytest.mark.parametrize("case", testing.examples("codemods"), ids=str)
def test_example(case, zygote):
    testing.check_example(case, zygote)


def test_every_codemod_has_an_example_and_a_fixture_that_changes():
    testing.check_complete("codemods", FOLDER)


def test_every_fixture_folder_is_one():
    folders = {p.parent for p in FOLDER.glob("*/*/*.py")}
    assert folders == {f.before.parent for f in FIXTURES}


def test_a_wrong_after_is_refused(tmp_path, zygote):
    """The checks can fail: an after.py that is not what the codemod makes."""
    good = next(f for f in FIXTURES if f.after)
    before = tmp_path / "before.py"
    before.write_bytes(good.before.read_bytes())
    after = tmp_path / "after.py"
    after.write_bytes(good.after.read_bytes() + b"pass\n")
    with pytest.raises(AssertionError, match="became"):
        testing.check(testing.Fixture(good.codemod, "wrong", before, after), zygote)


def test_an_unmarked_fault_is_refused(tmp_path, zygote):
    good = next(f for f in FIXTURES if f.after and f.marks)
    before = tmp_path / "before.py"
    before.write_text(testing.MARK.sub("#", good.before.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(AssertionError):
        testing.check(testing.Fixture(good.codemod, "unmarked", before, good.after), zygote)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"after": "pass\n"}, "became"),
        ({"effect": "restored"}, "was cured with the effects"),
        ({"before": "import torch\n"}, "no line is marked"),
    ],
    ids=["not_as_printed", "another_effect", "unmarked"],
)
def test_a_wrong_example_is_refused(changed, said, zygote):
    good = testing.examples("codemods")[0]
    with pytest.raises(AssertionError, match=said):
        testing.check_example(replace(good, example=replace(good.example, **changed)), zygote)
