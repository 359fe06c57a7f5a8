"""Runs of scripts that behave and of scripts that do not: each ends as it should, the owner's files stay."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradfix.run import InterpreterError, Outcome, Run
from gradfix.run.zygote import CHILD, Zygote
from gradfix.tape import read_tape

MODEL = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
def train():
    optimizer.zero_grad()
    (w ** 2).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "precious.txt").write_text("the owner's")
    return root


@pytest.fixture(scope="module")
def copying() -> Iterator[Zygote]:
    with Zygote(namespaces=False) as zygote:
        yield zygote


@pytest.fixture
def run(zygote: Zygote, project: Path) -> Iterator[Callable[..., Outcome]]:
    """Runs a text as the project's script; afterwards the project must be what it was."""
    script = project / "script.py"
    before: list[dict[str, str]] = []

    def start(text: str, where: Zygote = zygote, **options: Any) -> Outcome:
        script.write_text(textwrap.dedent(text))
        before.append(fingerprint(project))
        options = {"record": False, "timeout": 20.0, **options}
        return where.run(Run(script, project, project, **options))

    yield start
    assert before[-1] == fingerprint(project)


def fingerprint(root: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() + oct(path.stat().st_mode)
        if path.is_file()
        else "dir"
        for path in sorted(root.rglob("*"))
    }


# ---- like python script.py


def test_main_as_python_makes_it(run: Callable[..., Outcome], project: Path) -> None:
    text = """
    import os, sys
    print(__name__, __file__, sys.argv, os.getcwd(), sys.path[0], sys.modules["__main__"].__file__)
    print(repr(sys.stdin.read()), __builtins__ is __import__("builtins"), "gradfix" in str(sys.path[:1]))
    """
    outcome = run(text, arguments=("--lr", "1"))
    script = str(project / "script.py")
    first, second = outcome.stdout.splitlines()
    assert first == f"__main__ {script} {[script, '--lr', '1']} {project} {project} {script}"
    assert second == "'' True False"
    assert (outcome.ended, outcome.status, outcome.stderr) == ("finished", 0, "")


def test_siblings_are_imported_and_no_bytecode_stays(run: Callable[..., Outcome], project: Path) -> None:
    (project / "recorder.py").write_text("NAME = 'mine'")  # also the name of a module of ours
    assert run("import recorder; print(recorder.NAME)").stdout == "mine\n"
    assert not (project / "__pycache__").exists()


def test_same_seed_same_numbers(run: Callable[..., Outcome]) -> None:
    text = """
    import random, torch
    print(random.random(), torch.rand(2), hash("a"))
    import numpy
    print(numpy.random.rand())
    """
    assert run(text, seed=3).stdout == run(text, seed=3).stdout != run(text, seed=4).stdout


def test_fresh_memory_is_zero(run: Callable[..., Outcome]) -> None:
    text = """
    import torch
    for n in (3, 1000, 100_000):
        for _ in range(20):
            x = torch.rand(n); del x
        print(float(torch.empty(n).abs().sum()), float(torch.Tensor(n).abs().sum()))
    """
    assert run(text).stdout == "0.0 0.0\n" * 3


def test_data_loader_workers(run: Callable[..., Outcome]) -> None:
    text = """
    from torch.utils.data import DataLoader
    print(sum(int(b.sum()) for b in DataLoader(range(10), batch_size=2, num_workers=2)))
    """
    assert run(text).stdout == "45\n"


def test_spawned_process_sees_the_candidate(run: Callable[..., Outcome], project: Path) -> None:
    text = """
    import multiprocessing, helper
    def work(queue): queue.put(helper.VALUE)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,)); process.start()
        print(queue.get(), open(helper.__file__).read()); process.join()
    """
    (project / "helper.py").write_text("VALUE = 'old'")
    outcome = run(text, files={str(project / "helper.py"): "VALUE = 'new'"})
    assert outcome.stdout == "new VALUE = 'new'\n"


def test_candidate_of_the_script_itself(run: Callable[..., Outcome], project: Path) -> None:
    text = "import inspect\ndef f(): return 'é'\n"
    text += "print(f(), inspect.getsource(f).strip(), len(open(__file__).read()))"
    outcome = run("print('old')", files={str(project / "script.py"): text})
    assert outcome.stdout == f"é def f(): return 'é' {len(text)}\n"


def test_written_files_are_there_for_the_run_and_for_nobody_else(
    run: Callable[..., Outcome], project: Path
) -> None:
    text = """
    import os, pathlib, tempfile, torch
    folders = (".", pathlib.Path.home(), tempfile.gettempdir(), "/dev/shm")
    places = [pathlib.Path(folder) / "gradfix-was-here" for folder in folders]
    print([place.exists() for place in places])
    for place in places: torch.save(torch.ones(2), place)
    print([float(torch.load(place).sum()) for place in places])
    open("precious.txt", "a").write("!"); print(open("precious.txt").read())
    os.chmod("precious.txt", 0o600); os.mkdir("new"); os.rename("precious.txt", "new/gone.txt")
    """
    for _ in range(2):
        outcome = run(text)
        assert outcome.stdout == f"{[False] * 4}\n{[2.0] * 4}\nthe owner's!\n"
    for place in (project, Path.home(), Path("/tmp"), Path("/dev/shm")):
        assert not (place / "gradfix-was-here").exists()


def test_torch_compile_loads_the_real_dynamo(run: Callable[..., Outcome]) -> None:
    text = MODEL + "print(torch.compile(lambda x: x * 2, backend='eager')(w).sum().item())"
    for _ in range(2):  # the second time it is in the zygote
        assert run(text).stdout == "6.0\n"


def test_several_at_once(run: Callable[..., Outcome], zygote: Zygote, project: Path) -> None:
    run("import time, sys; time.sleep(0.5); print(sys.argv[1])")
    with ThreadPoolExecutor(3) as pool:
        runs = [
            Run(project / "script.py", project, project, arguments=(str(i),), record=False) for i in range(3)
        ]
        assert [outcome.stdout for outcome in pool.map(zygote.run, runs)] == ["0\n", "1\n", "2\n"]


# ---- how runs end


def test_exception_has_the_users_traceback(run: Callable[..., Outcome], project: Path) -> None:
    outcome = run("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.type, outcome.failure.message) == (
        "failed",
        "ZeroDivisionError",
        "division by zero",
    )
    frames = [line for line in outcome.failure.traceback.splitlines() if line.startswith("  File ")]
    script = project / "script.py"
    assert frames == [f'  File "{script}", line 4, in <module>', f'  File "{script}", line 2, in f']
    assert outcome.stderr == outcome.failure.traceback
    assert [(site.line, site.function) for site in outcome.failure.stack] == [(4, "<module>"), (2, "f")]


def test_syntax_error(run: Callable[..., Outcome]) -> None:
    outcome = run("x = (1,\n")
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.type) == ("failed", "SyntaxError")


NONSENSE = """
import os
for fd in range(3, 2000):
    try: os.write(fd, b"{nonsense\\n")
    except OSError: pass
"""
IGNORES_SIGNALS = """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
while True: pass
"""
LATE_THREAD = """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
"""


@pytest.mark.parametrize(
    ("text", "ended", "status", "detail"),
    [
        ("", "finished", 0, ""),
        ("import sys; sys.exit()", "finished", 0, ""),
        ("import sys; sys.exit(3)", "exit", 3, "sys.exit(3)"),
        ("import sys; sys.exit('no data')", "exit", 1, "no data"),
        ("import os; os._exit(4)", "exit", 4, "os._exit(4)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed", -9, "SIGKILL"),
        ("import os; os.abort()", "killed", -6, "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "killed", -11, "SIGSEGV"),
        ("import os; os.execv('/bin/true', ['true'])", "tampered", 0, "replaced"),
        ("import os; os.closerange(3, 65536)", "tampered", 117, "closed"),
        (NONSENSE, "tampered", 0, "nonsense"),
        ("import sys; sys.excepthook = lambda *_: None; 1/0", "failed", 1, ""),
        ("import os, sys; sys.excepthook = lambda *_: os._exit(9); 1/0", "failed", 9, ""),
        ("import sys; sys.stdout.close(); sys.stderr = None; 1/0", "failed", 1, ""),
        ("import os; os.remove(__file__); os.chdir('/'); print(1)", "finished", 0, ""),
        ("raise KeyboardInterrupt", "failed", 1, ""),
        ("input()", "failed", 1, ""),
        ("import os, time\nif os.fork() == 0: time.sleep(60)", "finished", 0, ""),
        ("import atexit; atexit.register(print, 'bye'); atexit.register(lambda: 1/0)", "finished", 0, ""),
        (LATE_THREAD, "finished", 0, ""),
    ],
)  # fmt: skip
def test_ways_out(run: Callable[..., Outcome], text: str, ended: str, status: int, detail: str) -> None:
    started = time.monotonic()
    outcome = run(text)
    assert (outcome.ended, outcome.status) == (ended, status), outcome
    assert detail in outcome.detail
    assert time.monotonic() - started < 5
    if "bye" in text or "late" in text:
        assert outcome.stdout in ("bye\n", "late\n")


@pytest.mark.parametrize(
    "text",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "while True:\n  try:\n    while True: pass\n  except: pass",
        IGNORES_SIGNALS,
        "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(60)",
        "import atexit, time; atexit.register(time.sleep, 60)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        "import os, time\nif os.fork(): os.wait()\ntime.sleep(60)",
        MODEL + "other = torch.optim.SGD([w], lr=0.1)\nwhile True: train()",
    ],
)  # fmt: skip
def test_never_ending(run: Callable[..., Outcome], text: str) -> None:
    started = time.monotonic()
    outcome = run("print('before', flush=True)\n" + text, timeout=0.6)
    assert (outcome.ended, outcome.detail) == ("timeout", "the run was not over after 0.6 s.")
    assert outcome.stdout == "before\n"
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    "loop",
    [
        "while True: train(); print('.', end='')",
        "while True:\n  try: train(); print('.', end='')\n  except: pass",
        "for epoch in range(99):\n  optimizer = torch.optim.Adam([w]); train(); print('.', end='')",
    ],
)
def test_ends_by_steps(run: Callable[..., Outcome], loop: str) -> None:
    outcome = run(MODEL + loop, steps=4)
    assert (outcome.ended, outcome.stdout) == ("steps", "...")


def test_steps_of_every_optimizer(run: Callable[..., Outcome]) -> None:
    text = """
late = torch.optim.SGD([w], lr=0.1)
for i in range(10): train()
print("pretrained")
for i in range(9): late.step(); print(i)
"""
    text = MODEL + text
    assert run(text, steps=2).stdout == "pretrained\n0\n"


@pytest.mark.parametrize(
    "text",
    ["x = []\nwhile True: x.append(torch.ones(1 << 20))", "torch.ones(1 << 32)", "b = bytearray(1 << 33)"],
)
def test_memory(run: Callable[..., Outcome], text: str) -> None:
    outcome = run("import torch\n" + text, memory=1 << 29)
    assert outcome.ended == "memory"
    assert "memory" in outcome.detail


def test_resident_memory_without_a_limit_of_address_space(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradfix.run.conversation._resident_limit", lambda _: 400 << 20)
    outcome = run("import time\nx = b'1' * (600 << 20)\ntime.sleep(9)")
    assert (outcome.ended, outcome.detail) == ("memory", "the run used up the memory it may have.")


def test_megabytes_of_output_keep_the_end(run: Callable[..., Outcome]) -> None:
    outcome = run(
        "import sys\nfor i in range(200_000): print(i, 'x' * 60)\nsys.stderr.write('y' * (1 << 22) + 'end')"
    )
    assert len(outcome.stdout) == 65536
    assert outcome.stdout.endswith("199999 " + "x" * 60 + "\n")
    assert (len(outcome.stderr), outcome.stderr[-4:]) == (65536, "yend")


def test_fork_bomb(run: Callable[..., Outcome]) -> None:
    outcome = run("import os, time\nfor _ in range(2000): os.fork() or time.sleep(60)\n", timeout=10)
    assert outcome.ended in ("killed", "timeout")
    assert processes_named("script.py") == []


@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_survives_a_daemon(
    run: Callable[..., Outcome], zygote: Zygote, copying: Zygote, namespaces: bool
) -> None:
    mark = f"gradfix-daemon-{os.getpid()}"
    text = f"""
    import os, subprocess, sys
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(99)", {mark!r}])
        os._exit(0)
    """
    assert run(text, zygote if namespaces else copying).ended == "finished"
    assert until(lambda: processes_named(mark) == [])


def processes_named(word: str, where: str = "cmdline") -> list[str]:
    """Processes with a whole argument, or environment entry, of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / where).read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in line.split("\0"):
                found.append(entry.name)
    return found


def until(condition: Callable[[], bool], seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---- walls


def test_copy_where_there_are_no_namespaces(
    run: Callable[..., Outcome], copying: Zygote, project: Path
) -> None:
    (project / "helper.py").write_text("VALUE = 'old'")
    text = """
    import helper, os, torch
    print(helper.VALUE, __file__, os.getcwd())
    torch.save(torch.ones(2), "model.pt"); print(float(torch.load("model.pt").sum()))
    open("precious.txt", "w").write("!")
    1 / 0
    """
    outcome = run(text, copying, files={str(project / "helper.py"): "VALUE = 'new'"})
    assert outcome.wall == "copy"
    assert outcome.stdout == f"new {project / 'script.py'} {project}\n2.0\n"
    assert outcome.failure is not None
    assert f'"{project / "script.py"}", line 6' in outcome.failure.traceback


@pytest.mark.parametrize(
    "write",
    [
        "open({0!r}, 'w')",
        "__import__('os').remove({0!r})",
        "__import__('torch').save(1, {0!r})",
        "__import__('os').truncate({0!r}, 0)",
    ],
)
@pytest.mark.parametrize("landlock", [True, False])
def test_copy_refuses_writes_elsewhere(
    run: Callable[..., Outcome], copying: Zygote, tmp_path: Path, write: str, landlock: bool
) -> None:
    other = tmp_path / "elsewhere.txt"
    other.write_text("the owner's")
    pytest.importorskip("torch")
    text = write.format(str(other))
    if not landlock:  # the audit hook must hold by itself
        text = f"import sys; guard = sys.modules['_gradfix_child.guard']; guard._audit(['/nowhere'])\n{text}"
    outcome = run(text, copying)
    assert outcome.ended == "failed"
    assert other.read_text() == "the owner's"


@pytest.mark.parametrize(
    "text", ["while True: pass", IGNORES_SIGNALS, "import os, time\nos.fork(); time.sleep(60)"]
)
def test_never_ending_copy(run: Callable[..., Outcome], copying: Zygote, text: str) -> None:
    assert run(text, copying, timeout=0.5).ended == "timeout"


def test_copy_of_a_project_too_large_to_copy(
    run: Callable[..., Outcome], copying: Zygote, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradfix.run.scratch.MOST", 0)
    (project / "package").mkdir()
    (project / "package" / "data.py").write_text("VALUE = 1")
    (project / "helper.py").write_text("VALUE = 'old'")
    text = """
    import helper, package.data
    print(helper.VALUE, package.data.VALUE, open("precious.txt").read())
    open("precious.txt", "w")
    """
    outcome = run(text, copying, files={str(project / "helper.py"): "VALUE = 'new'"})
    assert outcome.stdout == "new 1 the owner's\n"
    assert outcome.failure is not None
    assert outcome.failure.type == "PermissionError"


def test_a_candidate_is_never_written_through_a_link(
    run: Callable[..., Outcome], copying: Zygote, project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "helper.py").write_text("VALUE = 'old'")
    (project / "library").symlink_to(elsewhere)
    outcome = run(
        "from library import helper; print(helper.VALUE)",
        copying,
        files={str(project / "library" / "helper.py"): "VALUE = 'new'"},
    )
    assert outcome.stdout == "new\n"
    assert (elsewhere / "helper.py").read_text() == "VALUE = 'old'"


def test_scratch_folders_are_removed(
    run: Callable[..., Outcome], copying: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert run("import time; open('x', 'w'); time.sleep(60)", copying, timeout=0.3).ended == "timeout"
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to become another user")
def test_as_an_ordinary_user(tmp_path: Path) -> None:
    """The same run with no rights but those of a user namespace, in a folder of somebody else's."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    environment = {
        **os.environ,
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    pythons = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    # Through sh, because setpriv still has root's rights when it starts the first program.
    usable = [
        p
        for p in pythons
        if subprocess.run(
            [*nobody, "sh", "-c", '"$0" -c "import torch"', p],
            check=False,
            env=environment,
            stderr=subprocess.DEVNULL,
        ).returncode
        == 0
    ]
    if not usable:
        pytest.skip("another user may not read any interpreter")
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and folder.stat().st_uid == os.geteuid() and folder not in (Path("/tmp"),):
            folder.chmod(folder.stat().st_mode | 0o055)
    project = tmp_path / "project"
    project.mkdir(mode=0o777)
    project.chmod(0o777)
    (project / "script.py").write_text(
        "import os; open('x', 'w'); print(os.getuid(), os.path.exists('x'), open(__file__).read()[:3])"
    )
    text = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from gradfix.run import Run
from gradfix.run.zygote import Zygote
with Zygote() as zygote:
    p = Path({str(project)!r})
    outcome = zygote.run(Run(p / "script.py", p, p, record=False))
    print(outcome.ended, outcome.stdout, outcome.wall, outcome.stderr)
"""
    command = [*nobody, "sh", "-c", 'exec "$0" -c "$1"', usable[0], text]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=environment)
    assert done.stdout.startswith("finished 65534 True imp\n"), done
    assert [path.name for path in project.iterdir()] == ["script.py"]


# ---- interpreters and hosts


def test_not_an_interpreter(tmp_path: Path) -> None:
    for name, words in ((str(tmp_path / "missing"), "can't be started"), ("/bin/false", "is not a Python")):
        with pytest.raises(InterpreterError, match=words) as caught, Zygote(name) as zygote:
            zygote.ready()
        assert "--python" in str(caught.value)
        assert name in str(caught.value)


def test_interpreter_without_torch(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(InterpreterError, match="has no torch") as caught, Zygote(fake) as zygote:
        zygote.ready()
    assert "--python" in str(caught.value)


def test_too_old_an_interpreter(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'gradfix-too-old: Python 3.6' >&2; exit 3\n")
    fake.chmod(0o755)
    with pytest.raises(InterpreterError, match=r"Python 3\.6; .* 3\.9 or newer"), Zygote(fake) as zygote:
        zygote.ready()


def test_a_killed_zygote_is_replaced(project: Path) -> None:
    (project / "script.py").write_text("print('ran')")
    with Zygote() as zygote:
        zygote.ready()
        os.kill(zygote._process.pid, signal.SIGKILL)
        outcome = zygote.run(Run(project / "script.py", project, project, record=False))
    assert outcome.stdout == "ran\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_host_that_ends_takes_its_runs_along(project: Path, number: int) -> None:
    mark = f"gradfix-orphan-{number}-{os.getpid()}"
    sleeper = [sys.executable, "-c", "import time; time.sleep(99)", mark]
    (project / "script.py").write_text(f"import subprocess; subprocess.run({sleeper!r})")
    text = f"""
from pathlib import Path
from gradfix.run import Run
from gradfix.run.zygote import Zygote
with Zygote() as zygote:
    p = Path({str(project)!r})
    zygote.run(Run(p / "script.py", p, p, record=False))
"""
    environment = {**os.environ, "GRADFIX_TEST": mark}
    host = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL, env=environment)
    try:
        assert until(lambda: processes_named(mark) != [], 30)
        os.kill(host.pid, number)
        host.wait(10)
        assert until(lambda: processes_named(f"GRADFIX_TEST={mark}", "environ") == [])
    finally:
        host.kill()
        host.wait()


# ---- cold


def test_record_cold_with_nothing_but_the_folder(project: Path) -> None:
    (project / "train.py").write_text(MODEL + "import sys; print(sys.argv[1:])\nwhile True: train()")
    command = [
        sys.executable,
        str(CHILD),
        "record",
        "train.py",
        "-o",
        "run.tape",
        "--steps",
        "2",
        "--",
        "--lr",
        "1",
    ]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "['--lr', '1']\n")
    assert "the run ended: steps" in done.stderr
    tape = read_tape(project / "run.tape")
    assert tape.complete
    assert [type(event).__name__ for event in tape.events].count("Step") == 2
