"""A codemod of somebody else's: the package in third_party/, seen as installed, tests itself with gradfix.testing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
Command = Callable[..., subprocess.CompletedProcess[str]]


def metadata(pyproject: Path, folder: Path) -> None:
    """What an installer writes of a package's name and entry points."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project.get('version', '0')}.dist-info"
    info.mkdir()
    name, version = project["name"], project.get("version", "0")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """The package's own checkout, installed: it and gradfix as their pyproject.toml declares them."""
    checkout = shutil.copytree(ROOT / "tests" / "third_party", tmp_path / "acme")
    site = tmp_path / "site"
    site.mkdir()
    shutil.copytree(checkout / "acme_cures", site / "acme_cures")
    metadata(checkout / "pyproject.toml", site)
    metadata(ROOT / "pyproject.toml", site)
    return checkout


@pytest.fixture
def python(acme: Path) -> Command:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(acme.parent / "site"), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=acme,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_it_tests_its_codemod_as_we_do(python: Command) -> None:
    done = python("pytest", "-p", "no:cacheprovider", "tests", "-v")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_its_tests_can_fail(acme: Path, python: Command) -> None:
    shutil.rmtree(acme / "fixtures" / "add_function" / "feature")
    done = python("pytest", "-p", "no:cacheprovider", "tests")
    assert "add-function has no fixture with an after.py" in done.stdout, done.stdout + done.stderr


def test_gradfix_uses_it(acme: Path, python: Command) -> None:
    script = "fixtures/add_function/feature/before.py"
    assert "add-function" in python("gradfix", "rules").stdout
    done = python("gradfix", "fix", script, "--codemod", "add-function", "--write")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (acme / script).read_text() == (acme / script).with_name("after.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "import libcst",
            "import libcxt",
            "acme_cures.add_function (entry point acme of gradfix.codemods) can't be",
        ),
        (
            'kinds = ("stale-saved-tensor",)',
            'kinds, effects = ("stale-saved-tensor",), ()',
            "its `effects` declare nothing",
        ),
    ],
    ids=["not_importable", "effect_not_declared"],
)
def test_its_faults_are_not_ours(acme: Path, python: Command, old: str, new: str, said: str) -> None:
    module = acme.parent / "site" / "acme_cures" / "add_function.py"
    module.write_text(module.read_text().replace(old, new))
    done = python("gradfix", "fix", "fixtures/add_function/feature/before.py")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "a fault of that codemod's, not of your script's" in done.stderr
