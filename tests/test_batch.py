"""gradfix migrate: many repositories, each left as it was but for what was asked for."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from repositories import faulty, git, nobody_works_in, plain, repository, sound, state

from gradfix import choose
from gradfix.batch import workers
from gradfix.batch.engine import local
from gradfix.batch.git import GitError
from gradfix.batch.intake import specs
from gradfix.batch.migrate import Batch, Wish
from gradfix.batch.repository import migrate_one
from gradfix.batch.state import State, StateError, locked
from gradfix.batch.values import Options, RepoResult, Spec, dumps, loads
from gradfix.batch.written import pull_request
from gradfix.patches import make
from gradfix.patches.file import load
from gradfix.prove import Prover
from gradfix.verdict import Verdict

NOTHING = Wish()
UNTRIED = Options(accept=("proved", "preserved", "intended", "untried"))


def migrate(workspace: Path, places=(), options=UNTRIED, wish=NOTHING, **more) -> dict[str, RepoResult]:
    workspace.mkdir(exist_ok=True)
    known = State(workspace)
    known.add(specs(map(str, places)))
    Batch(workspace, options, wish, jobs=2, **more).run(known, lambda _: None)
    found = {r.name: r for r in known.results()}
    known.close()
    return found


def said(workspace: Path, name: str) -> dict[str, tuple[str, str]]:
    known = State(workspace)
    found = known.effects(name)
    known.close()
    return found


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradfix", "migrate", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def without_times(found: dict[str, RepoResult]) -> str:
    def drop(value):
        if isinstance(value, dict):
            return {k: drop(v) for k, v in value.items() if k != "seconds"}
        return [drop(v) for v in value] if isinstance(value, list) else value

    return json.dumps({name: drop(json.loads(dumps(r))) for name, r in sorted(found.items())}, sort_keys=True)


# ---- what is found, and what is done with it


def test_reading_finds_and_changes_nothing(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "ok.py": sound()})
    before = state(repo)
    found = migrate(tmp_path / "ws", [repo], Options())["repo"]
    assert [(f.kind, f.path, f.line, f.status) for f in found.faults] == [
        ("stale-saved-tensor", "train.py", 7, "left")
    ]
    assert [m.role for m in found.faults[0].marks] == ["saved", "overwritten", "needed"]
    assert found.faults[0].cures[0].verdict == "untried"
    assert not found.steps
    assert not found.entries
    assert state(repo) == before


def test_proving_runs_what_trains_and_nothing_else(tmp_path):
    repo = repository(
        tmp_path / "repo",
        {"train.py": faulty(), "tool.py": "import torch\nopen('ran', 'w')\n", "ok.py": sound()},
    )
    found = migrate(tmp_path / "ws", [repo], Options(prove=True))["repo"]
    assert [(e.path, e.ended) for e in found.entries] == [("ok.py", "steps"), ("train.py", "steps")]
    assert [(s.codemod, s.verdict) for s in found.steps] == [("out-of-place", "proved")]
    assert found.faults[0].status == "cured"
    assert all(e.wall in ("namespaces", "bubblewrap", "landlock") for e in found.entries)
    assert not (repo / "ran").exists()


def test_a_branch_is_all_that_changes(tmp_path):
    files = {"train.py": faulty(), "pkg/other.py": faulty("other"), "crlf.py": faulty().replace("\n", "\r\n")}
    repo = repository(tmp_path / "repo", files)
    before = state(repo, "cured")
    found = migrate(tmp_path / "ws", [repo], wish=Wish(branch="cured"))["repo"]
    assert state(repo, "cured") == before
    assert len(found.steps) == 3
    assert git(repo, "rev-list", "--count", "main..cured") == "3"
    assert git(repo, "show", "cured:train.py") == sound().strip()
    assert b"value = value + 1\r\n" in subprocess.check_output(["git", "show", "cured:crlf.py"], cwd=repo)
    told = git(repo, "log", "-1", "--format=%B", "cured")
    assert "Fault: stale-saved-tensor\nVerdict: untried\n" in told
    assert git(repo, "fsck", "--strict") == ""


def test_written_files_and_patches(tmp_path):
    one = repository(tmp_path / "one", {"train.py": faulty()})
    two = plain(tmp_path / "two", {"train.py": faulty("model")})
    migrate(tmp_path / "ws", [one, two], wish=Wish(diff=True, write=True))
    assert (two / "train.py").read_text() == sound("model")
    assert load(tmp_path / "ws/patches/two.json").fixes[0].cures[0].codemod == "out-of-place"
    git(one, "checkout", "train.py")
    subprocess.run(["git", "apply", str(tmp_path / "ws/patches/one.patch")], cwd=one, check=True)
    assert (one / "train.py").read_text() == sound()


def test_twice_is_once(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    wish = Wish(diff=True, branch="cured")
    first = migrate(tmp_path / "ws", [repo], wish=wish)
    before = state(repo)
    assert dumps(migrate(tmp_path / "ws", [repo], wish=wish)["repo"]) == dumps(first["repo"])
    again = migrate(tmp_path / "ws", [repo], wish=wish, retry=("all",))
    assert without_times(again) == without_times(first)
    assert migrate(tmp_path / "elsewhere", [repo], wish=wish)["repo"].steps == first["repo"].steps
    assert said(tmp_path / "elsewhere", "repo")["branch cured"][0] == "done"
    assert state(repo) == before


def test_only_and_retry(tmp_path):
    places = [plain(tmp_path / name, {"a.py": sound()}) for name in ("one", "two", "three")]
    (tmp_path / "gone").mkdir()
    assert set(migrate(tmp_path / "ws", [*places, tmp_path / "gone"], only=("t*",))) == {"two", "three"}
    shutil.rmtree(tmp_path / "gone")
    found = migrate(tmp_path / "ws")
    assert found["gone"].sentence == "there is no such folder or archive"
    plain(tmp_path / "gone", {"train.py": faulty()})
    assert migrate(tmp_path / "ws")["gone"].ended == "refused"
    assert migrate(tmp_path / "ws", retry=("refused",))["gone"].faults


# ---- groups


def test_copies_of_a_fault_have_one_fingerprint_and_one_decision(tmp_path):
    one = plain(tmp_path / "one", {"train.py": faulty()})
    two = plain(tmp_path / "two", {"deep/down.py": "# a copy\n\n" + faulty("critic", 9, 4)})
    other = plain(tmp_path / "other", {"train.py": faulty().replace("exp()", "sigmoid()")})
    found = migrate(tmp_path / "ws", [one, two, other])
    prints = {name: r.faults[0].fingerprint for name, r in found.items()}
    assert prints["one"] == prints["two"] != prints["other"]
    known = State(tmp_path / "ws")
    known.decide(prints["one"], "refuse")
    assert [s.name for s in known.specs() if not known.has(s.name, known.decided(UNTRIED))] == ["one", "two"]
    known.close()
    found = migrate(tmp_path / "ws", wish=Wish(write=True))
    assert (one / "train.py").read_text() == faulty()
    assert not found["one"].faults
    assert "value = " in (other / "train.py").read_text().split("sigmoid()")[1]
    known = State(tmp_path / "ws")
    assert all(known.has(s.name, known.decided(UNTRIED)) for s in known.specs())
    known.decide(prints["one"], "accept")
    known.close()
    assert migrate(tmp_path / "ws")["two"].faults[0].fingerprint == prints["two"]


def test_what_held_for_a_copy_is_begun_with_and_changes_no_result(tmp_path, monkeypatch):
    """The hint says where to begin; every repository is proved, and all of its candidates are."""
    first = plain(tmp_path / "first", {"train.py": faulty()})
    found = migrate(tmp_path / "ws", [first], Options(prove=True))["first"]
    (fault,) = found.faults
    known = State(tmp_path / "ws")
    assert known.hints() == {fault.fingerprint: "out-of-place"}
    known.close()
    copy = plain(tmp_path / "copy", {"main.py": "# mine\n" + faulty("critic", 9, 4)})
    proved: list[str] = []
    whole = Prover.prove
    monkeypatch.setattr(choose, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(
        Prover,
        "prove",
        lambda self, before, after, *m: (proved.append(str(after)), whole(self, before, after, *m))[1],
    )

    def migrated(**more: object) -> tuple[list[str], str]:
        proved.clear()
        spec = Spec("copy", str(copy))
        result = migrate_one(spec, Options(prove=True, **more), tmp_path / "scratch")
        return list(proved), without_times({"copy": result})

    plainly, wanted = migrated()
    assert len(plainly) > 1
    tried = [c.codemod for c in loads(RepoResult, json.dumps(json.loads(wanted)["copy"])).faults[0].cures]
    assert tried[0] == "out-of-place"
    for codemod in (tried[0], tried[-1]):
        hinted, same = migrated(hints={fault.fingerprint: codemod})
        assert (sorted(hinted), same) == (sorted(plainly), wanted)
        assert ("clone()" in hinted[0]) == (codemod == "clone-before-write")


def test_only_a_group(tmp_path):
    repo = plain(tmp_path / "repo", {"a.py": faulty(), "b.py": faulty().replace("exp()", "sigmoid()")})
    first = migrate(tmp_path / "ws", [repo], Options())["repo"].faults[0]
    found = migrate(tmp_path / "ws", options=Options(only=(first.fingerprint,)))
    assert [f.path for f in found["repo"].faults] == [first.path]


def test_what_is_refused_leaves_no_patch_and_no_commit(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    words = ["--accept", "untried", "--branch", "cured", "--diff"]
    assert call("repo", *words, cwd=tmp_path).returncode == 0
    made = [
        tmp_path / "gradfix-migrate" / name
        for name in ("patches/repo.patch", "patches/repo.json", "pull-requests/repo.md")
    ]
    assert all(file.exists() for file in made)
    (group,) = json.loads((tmp_path / "gradfix-migrate/report.json").read_text())["groups"]
    assert call(*words, "--refuse", group["fingerprint"], cwd=tmp_path).returncode == 0
    assert not any(file.exists() for file in made)
    assert git(repo, "rev-parse", "cured") == git(repo, "rev-parse", "main")
    assert call(*words, "--accept", group["fingerprint"], cwd=tmp_path).returncode == 0
    assert all(file.exists() for file in made)
    assert git(repo, "rev-list", "--count", "main..cured") == "1"
    call(*words, "--refuse", group["fingerprint"], cwd=tmp_path)
    done = call(*words, "--reconsider", group["fingerprint"], cwd=tmp_path)
    assert "repo: 1 fault, 1 cure (1 untried), 1 on a branch" in done.stderr
    assert git(repo, "rev-list", "--count", "main..cured") == "1"
    done = call(*words, "--reconsider", group["fingerprint"], cwd=tmp_path)
    assert done.returncode == 2
    assert f"nothing was decided on {group['fingerprint']}" in done.stderr


def test_the_pull_request_names_the_runs_of_its_cures(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "sound.py": sound()})
    migrate(tmp_path / "ws", [repo], Options(prove=True))
    known = State(tmp_path / "ws")
    told = pull_request(known.result("repo"))
    known.close()
    assert told.startswith(
        "Fix 1 autograd fault (stale-saved-tensor)\n\n**stale-saved-tensor** in `train.py`, line 7: "
    )
    assert "Measured by running `train.py` before and after" in told


def test_the_pull_request_tells_copies_of_a_fault_apart(tmp_path):
    script = (
        "import torch\n\nx = torch.ones(2, requires_grad=True)\ny = x * 2\ny.sum().backward()\n"
        "print(x.data)\nprint(y.data)\n"
    )
    migrate(tmp_path / "ws", [plain(tmp_path / "repo", {"train.py": script})], Options(prove=True))
    known = State(tmp_path / "ws")
    told = pull_request(known.result("repo"))
    known.close()
    lines = [line for line in told.splitlines() if line.startswith(("**data-attribute**", "Cure:"))]
    assert [("line 6" in line or "`x." in line, "line 7" in line or "`y." in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]


# ---- limits


def test_a_repository_that_takes_too_much_is_a_sentence(tmp_path):
    repo = plain(tmp_path / "repo", {"train.py": faulty()})
    found = migrate(tmp_path / "ws", [repo], Options(memory=1 << 20))["repo"]
    assert (found.ended, found.sentence) == ("failed", "it took more than 0.0 GB of memory")


@pytest.mark.parametrize("does", ["sleep", "allocate"])
def test_a_worker_that_obeys_nobody_is_ended_with_all_it_started(tmp_path, monkeypatch, does):
    """One that a fault of gradfix's own, or of torch's, has taken over: it ignores signals, has started processes in
    sessions of their own, one of which its parent has left, and one of them starts others without end."""
    monkeypatch.setattr(workers, "GRACE", 1.0)
    site = plain(tmp_path / "site", {"sitecustomize.py": OBEYS_NOBODY})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("DOES", does)
    places = [plain(tmp_path / name, {"train.py": faulty()}) for name in ("stuck", "sound")]
    limits = Options(seconds=9.0, memory=6 << 30) if does == "sleep" else Options(memory=1 << 29)
    found = migrate(tmp_path / "ws", places, limits)
    why = "it took longer than 10 s" if does == "sleep" else "it took more than 0.5 GB of memory"
    assert (found["stuck"].ended, found["stuck"].sentence) == ("failed", why)
    assert found["sound"].faults
    known = State(tmp_path / "ws")
    assert known.attempts() == {"stuck": 1, "sound": 1}
    known.close()
    assert nobody_works_in(tmp_path)
    assert not (tmp_path / "ws/scratch").exists()
    monkeypatch.delenv("DOES")
    assert migrate(tmp_path / "ws", retry=("failed",))["stuck"].faults


OBEYS_NOBODY = """\
import os, signal, sys, time
def ignore():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
def start(what):
    if os.fork() == 0:
        os.setsid()
        what()
        os._exit(0)
def wait():
    time.sleep(300)
def leave():
    start(wait)
def multiply():
    while True:
        if os.fork() == 0:
            time.sleep(1)
            os._exit(0)
        time.sleep(0.1)
        os.waitpid(-1, os.WNOHANG)
if "gradfix.batch.worker" in sys.orig_argv and "DOES" in os.environ:
    import gradfix.batch.repository as repository
    whole = repository.migrate_one
    def stuck(spec, *more):
        if spec.name != "stuck":
            return whole(spec, *more)
        ignore()
        for what in (wait, leave, multiply):
            start(what)
        held = []
        while True:
            if os.environ["DOES"] == "allocate":
                held.append(b"x" * (1 << 24))
            time.sleep(0.05)
    repository.migrate_one = stuck
"""


def test_a_script_that_obeys_nobody_costs_its_run(tmp_path):
    """It ignores signals, starts processes that do too, and takes memory without end: behind the wall."""
    script = faulty().replace("opt =", OBEYS_NOBODY.split('if "gradfix')[0] + SCRIPT)
    places = [
        plain(tmp_path / "mean", {"train.py": script}),
        plain(tmp_path / "sound", {"train.py": faulty()}),
    ]
    found = migrate(tmp_path / "ws", places, Options(prove=True, timeout=8.0))
    (entry,) = found["mean"].entries
    assert (entry.ended, entry.wall) == ("read", "namespaces")
    assert "the memory it may have" in entry.problem or "not over after 8 s" in entry.problem, entry
    assert found["sound"].steps
    assert nobody_works_in(tmp_path)
    assert not (tmp_path / "ws/scratch").exists()


SCRIPT = """
ignore()
for what in (wait, leave, multiply):
    start(what)
held = []
while len(held) < int(os.environ.get("ENOUGH", "1000000")):  # for the reader, what follows can be reached
    held.append(b"x" * (1 << 24))
opt ="""


def test_a_worker_that_dies_is_tried_again(tmp_path, monkeypatch):
    repo = plain(tmp_path / "repo", {"train.py": faulty()})
    site = plain(tmp_path / "site", {"sitecustomize.py": DYING.format(mark=str(tmp_path / "died"))})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    assert migrate(tmp_path / "ws", [repo])["repo"].faults
    assert (tmp_path / "died").read_text() == "1"
    (tmp_path / "died").write_text("")
    monkeypatch.setenv("ALWAYS", "1")
    found = migrate(tmp_path / "ws", retry=("all",))["repo"]
    assert found.sentence == "its worker was killed (signal 9): it said nothing; it was tried 2 times"


DYING = """\
import os, signal, sys
mark = {mark!r}
if "gradfix.batch.worker" in sys.orig_argv:
    died = len(open(mark).read()) if os.path.exists(mark) else 0
    if died < 1 or "ALWAYS" in os.environ:
        open(mark, "a").write("1")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fault_of_our_own_costs_one_file_and_is_said(tmp_path, monkeypatch):
    repo = plain(tmp_path / "repo", {"a.py": faulty(), "b.py": faulty("unlucky")})
    site = plain(tmp_path / "site", {"sitecustomize.py": BROKEN})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    found = migrate(tmp_path / "ws", [repo])["repo"]
    assert [f.path for f in found.faults] == ["a.py"]
    assert [c.startswith("b.py: KeyError: 'parameters_' (site/sitecustomize.py:") for c in found.crashes] == [
        True
    ]


BROKEN = """\
import sys
if "gradfix.batch.worker" in sys.orig_argv:
    import gradfix.examine
    whole = gradfix.examine.read_text
    def broken(path, text, *more, **asked):
        if "unlucky" in text:
            raise KeyError("parameters_")
        return whole(path, text, *more, **asked)
    gradfix.examine.read_text = broken
"""


def test_who_holds_a_workspace_is_said(tmp_path):
    repo = plain(tmp_path / "repo", {"train.py": sound()})
    with locked(tmp_path / "ws"):
        done = call("repo", "--workspace", "ws", cwd=tmp_path)
        assert done.returncode == 2
        assert f"ws is in use by process {os.getpid()} on " in done.stderr
    with locked(tmp_path / "ws"), pytest.raises(StateError, match="in use"), locked(tmp_path / "ws"):
        pass
    assert repo.exists()


# ---- values


def test_values_survive_json(tmp_path):
    spec = Spec("x", "/tmp/\udcff")
    assert loads(Spec, dumps(spec)) == spec
    options = Options(prove=True, accept=("proved",), only=("0" * 12,))
    assert loads(Options, dumps(options)) == options
    lib = "def f(x):\n    x += 1\n    return x\n", "def f(x):\n    x = x + 1\n    return x\n"
    (tmp_path / "train.py").write_text("from lib import f\nf(1)\n")
    fix = make.fix("train.py", Verdict("proved", "equal", {"n": 1}), [], {"lib.py": lib}, tmp_path)
    assert fix.callers
    result = RepoResult("x", "done", fixes=(fix,), originals={"lib.py": lib[0]})
    assert loads(RepoResult, dumps(result)) == result
    with pytest.raises(ValueError, match="unknown more"):
        loads(Spec, '{"name": "a", "place": "b", "more": 1}')


def test_names_tell_places_apart(tmp_path):
    places = [tmp_path / "a" / "gan", tmp_path / "b" / "gan", tmp_path / "a" / "gan"]
    assert [s.name for s in specs(map(str, places))] == ["gan", "b-gan"]


# ---- the command line


def test_the_command_line(tmp_path):
    repository(tmp_path / "repo", {"train.py": faulty()})
    (tmp_path / "list").write_text("# what to do\nrepo\n")
    done = call("--branch", "cured", "repo", cwd=tmp_path)
    assert done.returncode == 2
    assert "--branch writes cures that hold" in done.stderr
    done = call("--from", "list", "--accept", "untried", "--branch", "cured", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, done.stderr)
    assert done.stderr.startswith("[1/1] repo: 1 fault, 1 cure (1 untried), 1 on a branch, ")
    report = json.loads((tmp_path / "gradfix-migrate/report.json").read_text())
    assert report["totals"]["cured"] == 1
    assert report["repositories"][0]["effects"]["branch cured"]["result"] == "done"
    assert "untried" in (tmp_path / "gradfix-migrate/report.md").read_text()
    assert "Nothing was run" in (tmp_path / "gradfix-migrate/pull-requests/repo.md").read_text()
    done = call("--status", cwd=tmp_path)
    assert done.stdout.startswith("done      repo  cured at ")
    done = call("--only", "nothing", cwd=tmp_path)
    assert (done.returncode, "no repository of this workspace" in done.stderr) == (2, True)
    done = call("--refuse", "0123456789ab", cwd=tmp_path)
    assert "no fault of this workspace has the fingerprint" in done.stderr
    assert call("--branch", "a..b", "--prove", cwd=tmp_path).returncode == 2
    assert "holds no migration" in call("--workspace", "none", cwd=tmp_path).stderr


def test_what_could_not_be_taken_is_no_success(tmp_path):
    plain(tmp_path / "folder", {"ok.py": sound()})
    assert call("folder", "gone", cwd=tmp_path).returncode == 2
    done = call("--workspace", "two", "", cwd=tmp_path)
    assert (done.returncode, "an empty REPO names nothing" in done.stderr) == (2, True)
    assert not (tmp_path / "two").exists()
    done = call("folder", "--branch", "", cwd=tmp_path)
    assert (done.returncode, "--branch needs a name" in done.stderr) == (2, True)
    (tmp_path / "index").write_bytes(b"DIRC\0\0\n")
    done = call("--from", "index", cwd=tmp_path)
    assert (done.returncode, "index: no list of repositories" in done.stderr) == (2, True)
    done = call("folder", "--retry", "nosuch", cwd=tmp_path)
    assert (done.returncode, "--retry nosuch: no repository" in done.stderr) == (2, True)


def test_a_full_disk_under_the_state_is_one_sentence(tmp_path, monkeypatch):
    plain(tmp_path / "folder", {"ok.py": sound()})
    full = plain(
        tmp_path / "site",
        {
            "sitecustomize.py": "import sqlite3\nfrom gradfix.batch import state\n"
            "def add(self, specs): raise sqlite3.OperationalError('database or disk is full')\n"
            "state.State.add = add\n"
        },
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(full), os.environ.get("PYTHONPATH", "")]))
    done = call("folder", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "can't be used (database or disk is full)" in done.stderr


def test_status_before_the_end(tmp_path):
    (tmp_path / "ws").mkdir()
    known = State(tmp_path / "ws")
    known.add([Spec("one", "/one")])
    known.close()
    done = call("--workspace", "ws", "--status", cwd=tmp_path)
    assert "1 repository: 1 waiting; 0 faults and 0 notes found in 0 files;" in done.stdout
    assert "Reports" not in done.stdout


def test_a_refused_branch_is_settled_by_another(tmp_path):
    repository(tmp_path / "repo", {"train.py": faulty()})
    words = ["--accept", "untried", "--branch"]
    done = call("repo", *words, "main", cwd=tmp_path)
    assert (done.returncode, "main is checked out" in done.stderr) == (2, True)
    assert call("--accept", "untried", cwd=tmp_path).returncode == 1  # its fault is left
    done = call(*words, "cured", cwd=tmp_path)
    assert (done.returncode, "main" in done.stderr) == (0, False)
    assert call("--status", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("given", [b"", b'{"spec": '])
def test_a_worker_whose_parent_has_gone_takes_its_folder_along(tmp_path, given):
    """Killed before it has said what to do: nobody else knows of the folder any more."""
    folder = plain(tmp_path / "gradfix-migrate-x", {"archive/train.py": faulty()})
    worker = [sys.executable, "-P", "-m", "gradfix.batch.worker", str(folder)]
    subprocess.run(worker, cwd=folder, input=given, capture_output=True, check=False, timeout=60)
    assert not folder.exists()


def test_the_engine_leaves_nothing_behind(tmp_path):
    with local(1, tmp_path) as here:
        future = here.submit(Spec("x", str(tmp_path / "none")), Options())
        assert loads(RepoResult, future.result()).ended == "refused"
    assert list(tmp_path.iterdir()) == []


def test_git_errors_are_sentences(tmp_path):
    from gradfix.batch.git import Repository

    with pytest.raises(GitError, match=r"^git: not a git repository"):
        Repository(tmp_path, None).head()
    git(tmp_path, "init")
    with pytest.raises(GitError, match=r"^nothing is committed in it"):
        Repository(tmp_path / ".git", tmp_path).head()


@pytest.mark.parametrize("more", [("--status",), (), ("--retry", "all")])
def test_a_state_that_is_damaged_is_said_to_be(tmp_path, more):
    """(Not its header, which is looked at first.)"""
    for n in range(3):
        plain(tmp_path / f"repo{n}", {"train.py": faulty()})
    call = [sys.executable, "-m", "gradfix", "migrate"]
    subprocess.run([*call, "repo0", "repo1", "repo2"], cwd=tmp_path, capture_output=True, check=False)
    file = tmp_path / "gradfix-migrate/state.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    done = subprocess.run([*call, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "can't be used" in done.stderr


def test_an_empty_state_is_no_migration(tmp_path):
    (tmp_path / "gradfix-migrate").mkdir()
    (tmp_path / "gradfix-migrate/state.db").touch()
    done = call(cwd=tmp_path)
    assert (done.returncode, "holds no migration" in done.stderr) == (2, True)
