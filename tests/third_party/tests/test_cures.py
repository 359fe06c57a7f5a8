"""What gradfix.testing gives a package: every fixture and every example through every check."""

from pathlib import Path

import pytest

from gradfix import testing

FOLDER = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize("fixture", testing.fixtures(FOLDER), ids=str)
def test_fixture(fixture, zygote):
    testing.check(fixture, zygote)


@pytest.mark.parametrize("case", testing.examples("acme_cures"), ids=str)
def test_example(case, zygote):
    testing.check_example(case, zygote)


def test_complete():
    testing.check_complete("acme_cures", FOLDER)
