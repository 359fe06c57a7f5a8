"""kill -9 at a random moment, of the whole call or of a worker: the same call again ends where an undisturbed one does.

The soak tier does it 30 times each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repositories import faulty, git, plain, repository, sound, state

from gradfix.batch.delivery import save
from gradfix.batch.state import State, StateError, locked
from gradfix.batch.values import dumps

KILLS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 30))]
FLAGS = ["--accept", "untried", "--branch", "cured", "--diff", "--write", "--jobs", "2"]
PLACES = ["a", "b", "c"]


def given(folder: Path) -> Path:
    """Three repositories, the same ones each time."""
    for name in PLACES:
        files = {
            "train.py": faulty(name),
            "more/train.py": faulty("more").replace("exp", "sigmoid"),
            "ok.py": sound(),
        }
        plain(folder / name, files)
        git(folder / name, "init")
        git(folder / name, "add", "-A")
        dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00Z"}
        git(folder / name, "commit", "-m", "first", env=os.environ | dates)
    return folder


def started(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gradfix", "migrate", *PLACES, *FLAGS]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def came_to(folder: Path) -> dict[str, object]:
    """Everything that a call leaves: texts, branches, patches, results but for times."""
    known = State(folder / "gradfix-migrate")
    results = {r.name: json.loads(dumps(r)) for r in known.results()}
    effects = {name: known.effects(name) for name in results}
    known.close()
    for result in results.values():
        result.pop("seconds")
    texts = {str(p.relative_to(folder)): p.read_text() for n in PLACES for p in (folder / n).rglob("*.py")}
    patches = {p.name: p.read_text() for p in (folder / "gradfix-migrate/patches").iterdir()}
    branches = {n: git(folder / n, "for-each-ref", "--format=%(refname) %(objectname)") for n in PLACES}
    return {"results": results, "effects": effects, "texts": texts, "patches": patches, "branches": branches}


def below(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            about = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(about[1]) == pid:
            found += [int(name), *below(int(name))]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[dict[str, object], float]:
    folder = given(tmp_path_factory.mktemp("undisturbed"))
    begun = time.monotonic()
    process = started(folder)
    assert process.communicate()[1].startswith(b"[1/3] ")
    assert process.returncode == 0
    return came_to(folder), time.monotonic() - begun


def ended(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("seed", KILLS)
def test_the_call_is_killed(tmp_path, undisturbed, seed):
    wanted, seconds = undisturbed
    given(tmp_path)
    process = started(tmp_path)
    time.sleep(random.Random(seed).uniform(0.2, max(seconds, 0.5)))
    family = below(process.pid)
    process.kill()
    process.communicate()
    assert ended(family)  # nobody works on for a call that is gone
    again = started(tmp_path)
    out, err = again.communicate()
    assert again.returncode == 0, err.decode()
    assert came_to(tmp_path) == wanted
    workspace = tmp_path / "gradfix-migrate"
    assert not (workspace / "scratch").exists()
    assert (workspace / "lock").read_text() == ""
    assert not list(tmp_path.rglob("*.lock"))
    assert not list(tmp_path.rglob(".new-*"))
    assert b"3 repositories" in out


@pytest.mark.parametrize("seed", KILLS)
def test_a_worker_is_killed(tmp_path, undisturbed, seed):
    wanted, seconds = undisturbed
    given(tmp_path)
    process = started(tmp_path)
    end = time.monotonic() + random.Random(seed + 100).uniform(0.2, max(seconds, 0.5))
    workers: list[int] = []
    while process.poll() is None and (time.monotonic() < end or not workers):
        workers = below(process.pid) or workers
        time.sleep(0.02)
    for pid in workers[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, err = process.communicate()
    assert process.returncode == 0, err.decode()
    assert came_to(tmp_path) == wanted


def test_a_kill_between_two_effects_is_made_good(tmp_path):
    """What the kills at random moments hardly ever meet: the branch is there, and the workspace does not know yet."""
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    call = [sys.executable, "-m", "gradfix", "migrate", "repo", "--accept", "untried", "--branch", "cured"]
    assert subprocess.run(call, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    before = state(repo)
    known = State(tmp_path / "gradfix-migrate")
    known.forget(["repo"])
    known.close()
    assert subprocess.run(call, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert state(repo) == before


def test_half_a_file_is_never_there(tmp_path, monkeypatch):
    save(tmp_path / "report.json", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        save(tmp_path / "report.json", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    assert (tmp_path / "report.json").read_bytes() == b"old"


def test_a_lock_is_let_go_by_a_kill(tmp_path):
    holder = (
        "import sys, time, pathlib\nfrom gradfix.batch.state import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(StateError, match=f"in use by process {process.pid} on "), locked(tmp_path):
        pass
    process.kill()
    process.communicate()
    with locked(tmp_path):
        pass
