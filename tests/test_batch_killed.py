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
from contextlib import suppress
from pathlib import Path

import pytest
from repositories import faulty, git, nobody_works_in, plain, repository, sound, state, working_in

from gradfix.batch.delivery import save
from gradfix.batch.state import State, StateError, locked
from gradfix.batch.values import dumps

KILLS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 30))]
# Scripts are run for the branch; for the tree they are not, so that more kills meet the writing.
BRANCH = ("--prove", "--branch", "cured", "--diff")
WRITE = ("--accept", "untried", "--write", "--diff")
PLACES = ("a", "b", "c")


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
    (folder / "tmp").mkdir()
    return folder


def started(folder: Path, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gradfix", "migrate", *PLACES, *flags, "--jobs", "2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
    )


def came_to(folder: Path) -> dict[str, object]:
    """Everything that a call leaves: texts, branches, patches, results but for times."""
    known = State(folder / "gradfix-migrate")
    results = {r.name: json.loads(dumps(r), object_hook=without_times) for r in known.results()}
    effects = {name: known.effects(name) for name in results}
    known.close()
    texts = {str(p.relative_to(folder)): p.read_text() for n in PLACES for p in (folder / n).rglob("*.py")}
    patches = {p.name: p.read_text() for p in (folder / "gradfix-migrate/patches").iterdir()}
    branches = {n: git(folder / n, "for-each-ref", "--format=%(refname) %(objectname)") for n in PLACES}
    return {"results": results, "effects": effects, "texts": texts, "patches": patches, "branches": branches}


def without_times(value: dict[str, object]) -> dict[str, object]:
    return {key: item for key, item in value.items() if key != "seconds"}


def workers(folder: Path) -> list[int]:
    """Those of them that work on a repository."""
    return [p for p in working_in(folder) if b"gradfix.batch.worker" in cmdline(p)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def nothing_is_left(folder: Path) -> None:
    """No process, lock, scratch folder, worktree or half-written file, wherever a temporary file may lie."""
    assert nobody_works_in(folder)
    workspace = folder / "gradfix-migrate"
    assert not (workspace / "scratch").exists()
    assert (workspace / "lock").read_text() == ""
    assert list((folder / "tmp").iterdir()) == []
    assert [p for names in ("*.lock", ".new-*", "tmp_obj_*") for p in folder.rglob(names)] == []
    assert {p.name for n in PLACES for p in (folder / n).rglob("*") if ".git" not in p.parts} == {
        "more",
        "ok.py",
        "train.py",
    }
    assert not any((folder / n / ".git/worktrees").exists() for n in PLACES)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[tuple[str, ...], tuple[dict[str, object], float]]:
    """What either call comes to, and in how many seconds."""
    out = {}
    for flags in (BRANCH, WRITE):
        folder = given(tmp_path_factory.mktemp("undisturbed"))
        begun = time.monotonic()
        process = started(folder, flags)
        assert process.communicate()[1].startswith(b"[1/3] ")
        assert process.returncode == 0
        out[flags] = came_to(folder), time.monotonic() - begun
        nothing_is_left(folder)
    return out


@pytest.mark.parametrize("seed", KILLS)
def test_the_call_is_killed(tmp_path, undisturbed, seed):
    flags = (BRANCH, WRITE)[seed % 2]
    wanted, seconds = undisturbed[flags]
    given(tmp_path)
    before = [state(tmp_path / name, "cured") for name in PLACES]
    process = started(tmp_path, flags)
    time.sleep(random.Random(seed).uniform(0.2, max(seconds, 0.5)))
    process.kill()
    process.communicate()
    assert nobody_works_in(tmp_path)  # for a call that is gone
    again = started(tmp_path, flags)
    out, err = again.communicate()
    assert again.returncode == 0, err.decode()
    assert b"3 repositories" in out
    assert came_to(tmp_path) == wanted
    nothing_is_left(tmp_path)
    assert flags is WRITE or [state(tmp_path / name, "cured") for name in PLACES] == before


@pytest.mark.parametrize("seed", KILLS)
def test_a_worker_is_killed(tmp_path, undisturbed, seed):
    flags = (BRANCH, WRITE)[seed % 2]
    wanted, seconds = undisturbed[flags]
    given(tmp_path)
    before = [state(tmp_path / name, "cured") for name in PLACES]
    drawn = random.Random(seed + 100)
    process = started(tmp_path, flags)
    end = time.monotonic() + drawn.uniform(0.2, max(seconds, 0.5))
    alive: list[int] = []
    while process.poll() is None and (time.monotonic() < end or not alive):
        alive = workers(tmp_path) or alive
        time.sleep(0.05)
    for pid in alive and [drawn.choice(alive)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 0, err.decode()
    assert came_to(tmp_path) == wanted
    nothing_is_left(tmp_path)
    assert flags is WRITE or [state(tmp_path / name, "cured") for name in PLACES] == before


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


KILL = """
import os, signal, sys
whole, seen, nth = os.replace, [], int(sys.argv.pop(1))
def replace(old, new):
    if str(new).endswith(".py"):
        seen.append(new)
        if len(seen) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
    whole(old, new)
os.replace = replace
from gradfix.cli import main
main()
"""


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("then", [(), ("--accept", "untried", "--write")])
def test_a_kill_between_two_files_leaves_nothing_beside_them(tmp_path, nth, then):
    repo = repository(tmp_path / "repo", {"a.py": faulty(), "b.py": faulty("model")})
    words = ["migrate", "repo", "--accept", "untried", "--write"]
    done = subprocess.run([sys.executable, "-c", KILL, str(nth), *words], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    texts = [(repo / name).read_text() for name in ("a.py", "b.py")]
    assert texts in ([faulty(), faulty("model")], [sound(), faulty("model")])
    assert list(repo.glob(".*.tmp"))
    again = [sys.executable, "-m", "gradfix", "migrate", *then]
    subprocess.run(again, cwd=tmp_path, capture_output=True, check=False)
    assert {p.name for p in repo.iterdir()} == {".git", "a.py", "b.py"}
    texts = [(repo / name).read_text() for name in ("a.py", "b.py")]
    assert not then or texts == [sound(), sound("model")]
    # and what the killed call had written can be taken back
    back = ["--accept", "untried", "--revert", "out-of-place"]
    subprocess.run([*again[:4], *back], cwd=tmp_path, capture_output=True, check=False)
    assert [(repo / name).read_text() for name in ("a.py", "b.py")] == [faulty(), faulty("model")]


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
