"""The import arrows of the design: who may import whom, and what must stay out of the light commands."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STDLIB = sys.stdlib_module_names

# module -> the gradfix modules it may import
ALLOWED = {
    "tape": set(),
    "tapefile": {"tape"},
    "index": {"tape"},
    "graph": {"tape", "index"},
    "suite": set(),
    "notebook": set(),
    "wording": {"tape", "notebook"},
    "detect": {"tape", "index", "graph", "wording"},
    "alike": {"tape", "graph"},
    "verdict": set(),
    "run": {"tape", "tapefile"},
    "read": {"tape"},
    "edit": {"tape", "graph", "suite"},
    "rewrite": {"tape", "graph", "wording", "verdict", "detect", "edit"},
    "prove": {"tape", "graph", "alike", "wording", "verdict", "detect", "run"},
}
BESIDE = {"read/settings.py": {"yaml"}}  # what a pure module may use beside the standard library
FOUNDATION = {"dataclass"}  # of every module
# what the run, the reading and the cures look for alike
WORDS = {"gradfix.run.child.words", "gradfix.run.child.phases"}
# the ways in: nothing that they use knows of them
OUTER = {"batch", "cli", "commands", "ide", "ipython", "server"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "gradfix":
            found |= {f"gradfix.{a.name}" for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


def files(module: str) -> list[Path]:
    folder = ROOT / "gradfix" / module
    if folder.is_dir():
        return [p for p in folder.rglob("*.py") if "child" not in p.parts]
    return [folder.with_suffix(".py")]


@pytest.mark.parametrize("module", ALLOWED)
def test_arrows(module):
    allowed = ALLOWED[module] | FOUNDATION | {module}
    for path in files(module):
        ours = {i.split(".")[1] for i in imports(path) - WORDS if i.startswith("gradfix.")}
        assert ours <= allowed, f"{path} imports {ours - allowed}"


def test_nothing_knows_of_the_ways_in():
    for path in (ROOT / "gradfix").rglob("*.py"):
        home = path.relative_to(ROOT / "gradfix").parts[0].removesuffix(".py")
        if home in OUTER or home in ("__init__", "__main__"):
            continue
        used = {i.split(".")[1] for i in imports(path) if i.startswith("gradfix.")}
        assert not used & OUTER, f"{path} imports {used & OUTER}"


@pytest.mark.parametrize("path", sorted((ROOT / "gradfix/run/child").glob("*.py")), ids=lambda p: p.name)
def test_the_child_imports_only_the_standard_library_and_torch(path):
    foreign = {i.split(".")[0] for i in imports(path)} - STDLIB - {"torch", "__future__"}
    assert not foreign


def test_the_words_need_no_torch():
    for module in WORDS:
        used = imports(ROOT / f"{module.replace('.', '/')}.py")
        assert used <= {"__future__", "ast", "collections.abc", "re", "typing"}


@pytest.mark.parametrize("module", ["detect", "graph", "index", "read", "tape", "tapefile", "verdict"])
def test_pure_modules_use_the_standard_library_only(module):
    for path in files(module):
        foreign = {i.split(".")[0] for i in imports(path)} - STDLIB - {"gradfix"}
        assert foreign <= BESIDE.get(f"{module}/{path.name}", set())


@pytest.mark.parametrize("path", sorted((ROOT / "codemods").glob("*.py")), ids=lambda p: p.name)
def test_codemods_import_no_engine(path):
    ours = {i for i in imports(path) if i.startswith("gradfix.")}
    engine = {"gradfix.run", "gradfix.prove", "gradfix.pipeline", "gradfix.repair", "gradfix.cli"}
    assert not ours & engine
    assert "torch" not in {i.split(".")[0] for i in imports(path)}


@pytest.mark.parametrize(
    "command",
    [["--help"], ["--version"], ["rules"], ["explain", "freed-graph"], ["explain", "detach-boundary"]],
    ids=" ".join,
)
def test_light_commands_import_neither_torch_nor_libcst(command):
    code = (
        "import sys\n"
        f"sys.argv = ['gradfix', *{command!r}]\n"
        "from gradfix.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as e:\n    assert not e.code, e.code\n"
        "assert not {'torch', 'libcst'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["gradfix.server.features", "gradfix.server.forks"])
def test_the_language_server_loads_neither_torch_nor_libcst(module):
    code = f"import sys, {module}\nassert not {{'torch', 'libcst'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
