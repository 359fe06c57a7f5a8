"""One warm interpreter for the whole suite: every run a test makes is forked from it."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def zygote() -> Iterator[object]:
    from gradfix.run.zygote import Zygote

    with Zygote(None) as warm:
        yield warm
