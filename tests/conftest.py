"""One warm interpreter for the whole suite, also where gradfix was installed before it had a pytest plugin; and a
home directory of its own, which must be what it was when the suite is over, as must the fixtures."""

import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gradfix.pytest_plugin import zygote

# A shell ignores SIGINT in what it starts in the background, and children inherit that: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["zygote"]

os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore = ["third_party"]  # test_third_party.py installs it first

# Before anything is started: all that runs inherit it.
# (Removed by hand: what a forked run does at its exit would remove a TemporaryDirectory of this process.)
HOME = Path(tempfile.mkdtemp(prefix="home-"))
os.environ["HOME"] = str(HOME)
(HOME / "thesis.tex").write_text("three years of work")

# The tier of minutes says the same of the same code each time; the soak tier draws anew.
settings.register_profile("sample", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("sample" if config.option.markexpr == "not soak" else "soak")


@pytest.fixture(scope="session", autouse=True)
def nothing_arrives() -> Iterator[None]:
    """What the whole suite's runs wrote is nowhere. Left out: caches that installers keep in a home."""
    roots = (HOME, Path(__file__).parent.parent / "fixtures")
    before = _fingerprint(roots)
    yield
    assert _fingerprint(roots) == before


def pytest_unconfigure() -> None:
    """Also in the process that only hands out the tests."""
    shutil.rmtree(HOME, ignore_errors=True)


def _fingerprint(roots: tuple[Path, ...]) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for root in roots
        for path in root.rglob("*")
        if ".cache" not in path.parts
    }
