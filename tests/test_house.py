"""Formatting, lint, types and habits of the house itself, with the pinned tools of constraints.txt."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from by_hand import printed_codemod

ROOT = Path(__file__).parent.parent


def said(*command: str) -> str:
    """What a tool has against the house: nothing, where it ends well."""
    words = [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("command", [["format", "--check"], ["check"]], ids=" ".join)
def test_clean(command):
    assert said("ruff", *command, ".") == ""


def test_types(tmp_path):
    """The codemod that CONTRIBUTING.md prints has those that the house asks for, too."""
    (tmp_path / "exp_out_of_place.py").write_text(printed_codemod())
    assert said("mypy", "gradfix", "codemods", str(tmp_path)) == ""


SOURCES = sorted([*ROOT.glob("gradfix/**/*.py"), *ROOT.glob("codemods/*.py")])
# what codemods are written with: its methods are explained as well
LIBRARY = [
    "codemod",
    "edit",
    "detect",
    "graph",
    "tape",
    "verdict",
    "testing",
    "registry",
    "rewrite",
    "pytest_plugin",
]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_no_file_outgrows_the_head(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 510


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_every_function_has_types(path):
    """mypy checks them; an ignore would let one through unseen."""
    assert "no-untyped-def" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_what_is_public_says_what_it_is(path):
    tree = ast.parse(path.read_bytes())
    names = {"": tree.body}
    if path.relative_to(ROOT).with_suffix("").parts[1] in LIBRARY:
        names |= {f"{c.name}.": c.body for c in tree.body if isinstance(c, ast.ClassDef)}
    unsaid = [
        prefix + node.name
        for prefix, body in names.items()
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not f".{prefix}{node.name}".count("._")
        and not ast.get_docstring(node)
    ]
    assert not unsaid, f"{shown(path)} leaves {', '.join(unsaid)} without a docstring"


def test_every_requirement_has_one_version_in_the_checks():
    """Else a release of somebody's turns the checks red."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line and not line.startswith("#")}
    assert pinned == {re.match(r"[\w-]+", one)[0] for one in wanted}


def test_nothing_stands_unused():
    """Every private or plain name at the top of a module stands in some other line, too; classes of codemods are found
    by their module, and what IPython calls by its name."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in ("gradfix", "codemods", "tests", "benchmarks", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    words: dict[str, int] = {}
    for text in texts.values():
        for word in re.findall(r"\w+", text):
            words[word] = words.get(word, 0) + 1
    unused = []
    for path, text in texts.items():
        if path.is_relative_to(ROOT / "tests") or path.parent == ROOT / "codemods":
            continue
        for node in ast.parse(text).body:
            names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            unused += [f"{shown(path)}: {n}" for n in names if words[n] == 1 and not n.endswith("_extension")]
    assert not unused
