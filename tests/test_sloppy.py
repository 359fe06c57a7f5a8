"""What ordinary scripts do beside training: behind every wall they do it as they do without, or are told that the wall
is why, and what to do."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import behind, fingerprint, project

from gradfix.run import Outcome, Run, walls
from gradfix.run.walls import AUDIT, BUBBLEWRAP, LANDLOCK, NAMESPACES
from gradfix.run.withheld import OFF
from gradfix.run.zygote import Zygote

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the walls of Linux")

WRITES = f"a run may write to its own view of the project only, and reads no secrets; {OFF}"


@pytest.fixture(scope="module", params=[NAMESPACES, LANDLOCK, BUBBLEWRAP, AUDIT], ids=lambda wall: wall.name)
def wall(request: pytest.FixtureRequest) -> walls.Wall:
    found: walls.Wall = request.param
    if found is BUBBLEWRAP and walls.bubblewrap() is None:
        pytest.skip("bubblewrap is not installed")
    return found


@pytest.fixture(scope="module")
def enclosed(wall: walls.Wall) -> Iterator[Zygote]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORGE_TOKEN", "hunter2")
        with behind(wall) as zygote:
            yield zygote


@pytest.fixture
def run(enclosed: Zygote, wall: walls.Wall, project: Path) -> Iterator[Callable[..., Outcome]]:
    script = project / "script.py"
    before: dict[str, str] = {}

    def start(text: str, timeout: float = 90.0) -> Outcome:
        script.write_text(textwrap.dedent(text))
        before.update(fingerprint(project))
        outcome = enclosed.run(Run(script, project, project, record=False, timeout=timeout))
        assert outcome.wall == wall.name
        return outcome

    yield start
    assert not before or before == fingerprint(project)


LOADER = """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = DataLoader(torch.arange(8.0), batch_size=4, num_workers=2, persistent_workers=True)
    for epoch in range(2): print(sorted(batch.sum().item() for batch in loader))
"""
POOL = """
import multiprocessing
if __name__ == "__main__":
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(2) as pool: print(pool.map(abs, [-1, -2]))
    print(dict(multiprocessing.Manager().dict(a=1)))
"""
PLACES = """
import os, pathlib, shutil, sqlite3, tempfile, torch
here = pathlib.Path(__file__).resolve().parent
torch.save(1, "last.pt"); torch.save(2, here / "best.pt"); torch.save(3, os.path.abspath("abs.pt"))
print(torch.load(here / "last.pt"), torch.load("best.pt"), torch.load(here / "abs.pt"), here.name)
os.makedirs("runs/a"); os.chdir("runs/a"); open("events", "wb").write(b"x"); os.chdir("../..")
print(os.listdir("runs/a"), os.path.samefile(os.getcwd(), here), os.access(".", os.W_OK))
with tempfile.TemporaryDirectory() as folder: torch.save(4, folder + "/x"); print(torch.load(folder + "/x"))
with sqlite3.connect("runs.db") as db: db.execute("create table t (x)"); print(os.path.exists("runs.db"))
"""
PROGRAMS = """
import getpass, os, shutil, subprocess, sys
try: subprocess.run(["no-such-smi"])
except FileNotFoundError: print("none")
def git(*words): return subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
print(git("rev-parse", "--abbrev-ref", "HEAD"), git("status", "--porcelain", "precious.txt"))
print(os.path.basename(shutil.which("sh")), getpass.getuser() != "")
try: os.getlogin()
except OSError: pass
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (LOADER, "[6.0, 22.0]\n[6.0, 22.0]\n"),
        (POOL, "[1, 2]\n[1, 2]\n{'a': 1}\n"),
        (PLACES, "1 2 3 project\n['events'] True True\n4\nTrue\n"),
        (PROGRAMS, "none\nmain \nsh True\n"),
    ],
    ids=["loader", "pool", "places", "programs"],
)
def test_as_without_walls(run: Callable[..., Outcome], project: Path, text: str, printed: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "init.defaultBranch=main"]
    for words in (["init", "."], ["add", "precious.txt"], ["commit", "-m", "first"]):
        subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True)
    project.chmod(0o700)  # as a home is: only a run with the owner's rights gets in
    outcome = run(text)
    assert (outcome.ended, outcome.stdout) == ("finished", printed), outcome


def test_what_lies_beside_the_project_is_read(run: Callable[..., Outcome], project: Path) -> None:
    (project.parent / "data").mkdir(exist_ok=True)
    (project.parent / "data" / "train.csv").write_text("1,2")
    assert run("print(open('../data/train.csv').read())").stdout == "1,2\n"


GROUP = """
import os, socket, torch, torch.distributed as dist
with socket.socket() as any_: any_.bind(("127.0.0.1", 0)); port = any_.getsockname()[1]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
total = torch.ones(1); dist.all_reduce(total); print(total.item())
"""


@pytest.mark.parametrize(
    "text", [GROUP, GROUP.replace('f"tcp://127.0.0.1:{port}"', '"file://" + os.path.abspath("r")')]
)
def test_a_process_group_of_one(
    run: Callable[..., Outcome], enclosed: Zygote, wall: walls.Wall, text: str
) -> None:
    outcome = run(text)
    if wall.loopback:
        assert (outcome.ended, outcome.stdout) == ("finished", "1.0\n"), outcome
        warm = enclosed._process.pid
        assert run("print('the next one')").stdout == "the next one\n"  # forked from more of torch
        assert enclosed._process.pid == warm
    else:
        (said,) = outcome.missed
        assert f"A run has none, 127.0.0.1 neither behind {wall.name}: " in said
        assert said.endswith(OFF)


@pytest.mark.parametrize(
    "text",
    [
        "import torch; torch.save(1, {0!r} + '/model.pt')",
        "import sqlite3; sqlite3.connect({0!r} + '/x.db').execute('create table t (x)')",
        "import os; os.makedirs({0!r} + '/runs')",
        "import subprocess; subprocess.run(['touch', {0!r} + '/x'], check=True)\nopen({0!r} + '/x', 'a')",
    ],
)
def test_a_write_elsewhere_arrives_in_the_view_or_is_explained(
    run: Callable[..., Outcome], wall: walls.Wall, tmp_path: Path, text: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if wall is AUDIT and ("sqlite" in text or "touch" in text):
        pytest.skip("an audit hook does not see it")
    outcome = run(text.format(str(elsewhere)))
    assert list(elsewhere.iterdir()) == []
    if wall.copies:
        assert (outcome.ended, outcome.missed) == ("failed", (WRITES,)), outcome
    else:
        assert (outcome.ended, outcome.missed) == ("finished", ()), outcome


def test_a_group_that_waits_for_another_machine(run: Callable[..., Outcome]) -> None:
    """torch's own sockets: no exception, no call that Python sees, words on stderr alone."""
    text = """
    import torch.distributed as dist
    from datetime import timedelta
    where = "tcp://head.example.com:2345"
    try: dist.init_process_group("gloo", init_method=where, rank=1, world_size=2, timeout=timedelta(seconds=1))
    except dist.DistError: raise SystemExit("no group")
    """
    outcome = run(text)
    assert outcome.ended == "exit", outcome
    (said,) = outcome.missed
    assert said.startswith("the script asked for the network: ")
    assert "head.example.com" in said


def test_a_script_that_gives_up_without_its_secret(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_TOKEN", "hunter2")
    outcome = run("import os, sys\nif 'FORGE_TOKEN' not in os.environ: sys.exit('set FORGE_TOKEN first')")
    assert (outcome.ended, outcome.missed) == (
        "exit",
        (f"the environment's FORGE_TOKEN is withheld from runs; {OFF}",),
    )
