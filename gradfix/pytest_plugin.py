"""What pytest gets from an installed gradfix: the fixture `zygote`, for tests written with gradfix.testing.

pytest loads this in every run of an environment that has gradfix, so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradfix.run.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One warm interpreter for the whole session: every run a test makes is forked from it."""
    from gradfix.run.zygote import Zygote

    with Zygote(None) as warm:
        yield warm
