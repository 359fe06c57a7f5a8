"""Where there is no fork, runs are the same: every test here is without it, in the host and in the child."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import IGNORES_SIGNALS, MODEL, behind, fingerprint, processes_named, project, until

from gradfix.pipeline import fix
from gradfix.result import Settings
from gradfix.run import InterpreterError, Outcome, Run, walls
from gradfix.run.walls import BUBBLEWRAP, LANDLOCK
from gradfix.run.zygote import Zygote

# What Windows lacks, but for register_at_fork, which torch on Linux can't do without. The child's interpreter
# reads it as its sitecustomize.
LACKING = {
    "os": ("fork", "forkpty", "unshare", "setns", "killpg", "setsid"),
    "socket": ("send_fds", "recv_fds", "SCM_RIGHTS"),
    "signal": ("SIGXCPU", "SIGCHLD", "pthread_sigmask", "set_wakeup_fd"),
}
SITECUSTOMIZE = f"""
import importlib, sys
sys.modules.update(fcntl=None, resource=None)
for module, names in {LACKING!r}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return folder


@contextmanager
def without_fork(site: Path) -> Iterator[None]:
    """In this process and in those it starts."""
    start = subprocess.Popen.__init__

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        assert not options.get("pass_fds")
        start(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        for name in ("fork", "unshare"):
            patch.delattr(os, name, raising=False)
        for name in ("send_fds", "recv_fds", "socketpair"):
            patch.delattr(socket, name)
        patch.setattr(subprocess.Popen, "__init__", __init__)
        yield


@pytest.fixture(scope="module")
def cold(site: Path) -> Iterator[Zygote]:
    with without_fork(site):
        zygote = behind(LANDLOCK)
    with zygote:
        yield zygote


@pytest.fixture
def no_fork(site: Path) -> Iterator[None]:
    with without_fork(site):
        yield


@pytest.fixture
def run(no_fork: None, cold: Zygote, project: Path) -> Iterator[Callable[..., Outcome]]:
    """Runs a text as the project's script; afterwards the project must be what it was."""
    script = project / "script.py"
    before: list[dict[str, str]] = []

    def start(text: str, **options: Any) -> Outcome:
        script.write_text(textwrap.dedent(text))
        before.append(fingerprint(project))
        outcome = cold.run(Run(script, project, project, **{"record": False, "timeout": 20.0, **options}))
        assert outcome.wall == "landlock"
        return outcome

    yield start
    assert before[-1] == fingerprint(project)


def test_main_as_python_makes_it(run: Callable[..., Outcome], project: Path) -> None:
    text = """
    import os, sys
    assert not hasattr(os, "fork")
    print(__name__, __file__, sys.argv, os.getcwd(), sys.path[0], sys.modules["__main__"].__file__)
    print(repr(sys.stdin.read()), file=sys.stderr)
    """
    outcome = run(text, arguments=("--lr", "1"))
    script = str(project / "script.py")
    assert outcome.stdout == f"__main__ {script} {[script, '--lr', '1']} {project} {project} {script}\n"
    assert outcome.stderr == "''\n"


@pytest.mark.parametrize(
    ("text", "ended", "status", "detail"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(0.1,)).start()", "finished", 0, ""),
        ("import sys; sys.exit(3)", "exit", 3, "sys.exit(3)"),
        ("import os; os._exit(4)", "exit", 4, "os._exit(4)"),
        ("1 / 0", "failed", 1, ""),
        ("import os; os.abort()", "killed", -6, "SIGABRT"),
        ("import os; os.closerange(3, 65536)", "tampered", 117, "closed"),
        (MODEL + "while True: train()", "steps", 0, ""),
        ("print('.' * 9_000_000, 'end')", "finished", 0, ""),
    ],
)  # fmt: skip
def test_ways_out(run: Callable[..., Outcome], text: str, ended: str, status: int, detail: str) -> None:
    outcome = run(text)
    assert (outcome.ended, outcome.status) == (ended, status), outcome
    assert detail in outcome.detail
    assert len(outcome.stdout) <= 64 * 1024
    if ended == "failed":
        assert outcome.failure is not None
        assert (outcome.failure.type, outcome.stderr) == ("ZeroDivisionError", outcome.failure.traceback)


@pytest.mark.parametrize("text", ["while True: pass", "import time; time.sleep(60)", IGNORES_SIGNALS])
def test_never_ending(run: Callable[..., Outcome], text: str) -> None:
    """Also what it has started."""
    mark = f"gradfix-cold-{os.getpid()}"
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", mark]
    outcome = run(f"import subprocess; subprocess.Popen({sleeper!r}); print('before', flush=True)\n{text}",
                  timeout=1.0)  # fmt: skip
    assert (outcome.ended, outcome.detail) == ("timeout", "the run was not over after 1 s.")
    assert outcome.stdout == "before\n"
    assert outcome.seconds < 15
    assert until(lambda: processes_named(mark) == [])


def test_a_timeout_keeps_what_was_recorded(run: Callable[..., Outcome]) -> None:
    outcome = run(MODEL + "train()\nwhile True: pass", record=True, timeout=1.0)
    assert outcome.ended == "timeout"
    assert outcome.tape is not None
    assert [type(event).__name__ for event in outcome.tape.events].count("Step") == 1


def test_a_run_that_says_too_much(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradfix.run.conversation.LONGEST", 1 << 12)
    outcome = run(MODEL + "while True: train()", record=True, steps=0)
    assert outcome.ended == "memory"


def test_the_tape_is_the_forked_runs(zygote: Zygote, cold: Zygote, site: Path, project: Path) -> None:
    (project / "script.py").write_text(MODEL + "while True: train()")
    asked = Run(project / "script.py", project, project, measure=True)
    forked = zygote.run(asked)
    with without_fork(site):
        fresh = cold.run(asked)
    assert fresh.ended == forked.ended == "steps"
    assert forked.tape is not None
    assert fresh.tape is not None
    assert _without_times(fresh.tape) == _without_times(forked.tape)
    assert _without_times(fresh.measurement) == _without_times(forked.measurement)


def _without_times(value: Any) -> str:
    return re.sub(r"(['\"]?\b(?:seconds|started|wall)\b['\"]?[=:] ?)[-\d.e]+", r"\1", repr(value))


def test_candidate_is_served_and_nothing_arrives(run: Callable[..., Outcome], project: Path) -> None:
    (project / "helper.py").write_text("VALUE = 'old'")
    text = """
    import helper, os, tempfile, torch
    print(helper.VALUE, open(helper.__file__).read(), os.listdir())
    torch.save(torch.ones(2), "model.pt"); print(float(torch.load("model.pt").sum()))
    open("precious.txt", "w").write("!"); tempfile.TemporaryFile().write(b"1"); open(os.devnull, "w").write("1")
    """
    outcome = run(text, files={str(project / "helper.py"): "VALUE = 'new'"})
    assert outcome.ended == "finished", outcome
    assert outcome.stdout.startswith("new VALUE = 'new' [")
    assert outcome.stdout.endswith("]\n2.0\n")


def test_writes_elsewhere_are_refused(run: Callable[..., Outcome], tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.txt"
    other.write_text("the owner's")
    outcome = run(f"open({str(other)!r}, 'w')")
    assert outcome.failure is not None
    assert outcome.failure.type == "PermissionError"
    assert other.read_text() == "the owner's"


KILLED = "import ctypes; ctypes.string_at(0)"


@pytest.mark.skipif(walls.bubblewrap() is None, reason="bubblewrap is not installed")
def test_behind_bubblewrap(
    site: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.txt").write_text("the owner's")
    (project / ".ssh").mkdir()
    (project / ".ssh" / "id_rsa").write_text("a private key")
    monkeypatch.setenv("HOME", str(project))
    script, elsewhere = project / "script.py", str(tmp_path / "elsewhere.txt")
    text = f"""
    import os, socket
    print(len(os.listdir(".ssh")) if os.path.exists(".ssh") else 0, os.listdir({str(project / ".ssh")!r}))
    for do in (lambda: open({elsewhere!r}, "w"), lambda: socket.create_connection(("192.0.2.7", 443), 1)):
        try: do()
        except OSError as problem: print(problem.errno)
    open("precious.txt", "w").write("!")
    print(open(__file__).read()[-9:])
    """
    script.write_text("while True: pass")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = fingerprint(tmp_path)
    with without_fork(site), behind(BUBBLEWRAP) as zygote:
        served = {str(script): textwrap.dedent(text) + "# served\n"}
        outcome = zygote.run(Run(script, project, project, files=served, record=False, timeout=20.0))
        endless = zygote.run(Run(script, project, project, record=False, timeout=4.0))
        killed = zygote.run(Run(script, project, project, files={str(script): KILLED}, record=False))
    assert outcome.stdout == "0 []\n30\n101\n# served\n\n", outcome
    assert (outcome.wall, outcome.ended, endless.ended) == ("bubblewrap", "finished", "timeout")
    assert (killed.ended, "SIGSEGV" in killed.detail) == ("killed", True)
    assert fingerprint(tmp_path) == before
    assert list(scratch.iterdir()) == []


def test_where_links_are_not_allowed(
    run: Callable[..., Outcome], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(1314, "a required privilege is not held by the client")

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr("gradfix.run.scratch.SMALL", 0)
    (project / ".git").mkdir()
    assert run("import os; print(open('precious.txt').read(), os.path.exists('.git'))").stdout == (
        "the owner's False\n"
    )


def test_links_that_lead_round_in_a_circle_are_in_nobodys_way(
    run: Callable[..., Outcome], project: Path
) -> None:
    (project / "one").symlink_to("other")
    (project / "other").symlink_to("one")
    assert run("print(open('precious.txt').read())").stdout == "the owner's\n"


def test_scratch_folders_are_removed(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    run("open('x', 'w')")
    assert list(folder.iterdir()) == []


def test_not_an_interpreter(no_fork: None, tmp_path: Path) -> None:
    for name, words in ((str(tmp_path / "missing"), "can't be started"), ("/bin/false", "is not a Python")):
        with pytest.raises(InterpreterError, match=words) as caught, Zygote(name) as zygote:
            zygote.ready()
        assert "--python" in str(caught.value)


def test_interpreter_without_torch(no_fork: None, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(InterpreterError, match="has no torch"), Zygote(fake) as zygote:
        zygote.ready()


def test_closing_ends_the_runs(no_fork: None, project: Path) -> None:
    mark = f"gradfix-closed-{os.getpid()}"
    (project / "script.py").write_text("import time; time.sleep(60)")
    asked = Run(project / "script.py", project, project, arguments=(mark,), record=False)
    with ThreadPoolExecutor(1) as pool, Zygote() as zygote:
        zygote.ready()
        outcome = pool.submit(zygote.run, asked)
        assert until(lambda: zygote._cold != set(), 5)
        time.sleep(0.5)
        zygote.close()
        with pytest.raises(InterpreterError, match="was ended while a script ran"):
            outcome.result(10)


BROKEN = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(3):
    h = torch.exp(w)
    loss = (h * h).sum()
    h += 1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_fix_comes_to_the_same_verdict(zygote: Zygote, cold: Zygote, site: Path, project: Path) -> None:
    script = project / "train.py"
    script.write_text(BROKEN)
    before = fingerprint(project)
    (forked,) = fix(script, Settings(), zygote=zygote)
    with without_fork(site):
        (fresh,) = fix(script, Settings(), zygote=cold)
    assert (fresh.wall, forked.ended) == ("landlock", fresh.ended)
    assert fresh.verdict is not None
    assert fresh.verdict.status == "proved"
    assert fresh.verdict == forked.verdict
    assert fresh.files == forked.files
    assert [[c.verdict for c in d.cures] for d in fresh.diagnoses] == [
        [c.verdict for c in d.cures] for d in forked.diagnoses
    ]
    assert fingerprint(project) == before
