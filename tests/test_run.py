"""Runs behave as python would, behind a wall, in whatever interpreter: the owner's files stay as they are."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs import IGNORES_SIGNALS, MODEL, copying, processes_named, project, run, until

from gradfix.result import Settings
from gradfix.run import InterpreterError, Outcome, Run
from gradfix.run.zygote import CHILD, Zygote
from gradfix.tape import Step
from gradfix.tapefile import read_tape

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


def test_no_window_is_opened(run: Callable[..., Outcome], project: Path) -> None:
    """(What matplotlib does where there is no display, in short.)"""
    (project / "matplotlib").mkdir()
    (project / "matplotlib/__init__.py").write_text(
        "def use(backend, *, force=True):\n    from .pyplot import switch_backend\n    switch_backend(backend)\n"
    )
    (project / "matplotlib/pyplot.py").write_text(
        "def switch_backend(newbackend):\n"
        "    if newbackend == 'TkAgg':\n        raise ImportError('headless')\n    print(newbackend)\n"
    )
    outcome = run("""
        import matplotlib
        matplotlib.use("TkAgg")
        matplotlib.use(backend="TkAgg", force=True)
        import matplotlib.pyplot as plt
        plt.switch_backend("TkAgg")
        plt.switch_backend(newbackend="SVG")
    """)
    assert (outcome.stdout, outcome.ended) == ("agg\nagg\nagg\nSVG\n", "finished"), outcome.failure


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


def test_what_the_system_would_seed_comes_out_alike(run: Callable[..., Outcome]) -> None:
    text = """
    import random, secrets, torch, numpy
    print(random.SystemRandom(5).random(), secrets.randbits(32), random.Random().random())
    print(numpy.random.default_rng().random(), numpy.random.RandomState().rand())
    random.seed(); torch.seed(); numpy.random.seed()
    print(random.random(), torch.rand(1), numpy.random.rand())
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


@pytest.mark.parametrize(
    "way",
    [
        "import runpy; runpy.run_path('train.py')",
        "import os; code = compile(open('train.py').read(), 'train.py', 'exec'); os.chdir('/'); exec(code)",
    ],
    ids=["run_path", "elsewhere_later"],
)
def test_a_file_that_is_run_by_a_relative_name_is_the_users(
    run: Callable[..., Outcome], project: Path, way: str
) -> None:
    (project / "train.py").write_text(MODEL + "for _ in range(2): train()\n")
    tape = run(way, record=True).tape
    assert tape is not None
    assert {Path(step.at.file) for step in tape.events if isinstance(step, Step)} == {project / "train.py"}


def test_compile_is_pythons(run: Callable[..., Outcome]) -> None:
    """Of other text nothing is said to be a file's, and what a text inherits is its compiler's."""
    text = """
    from __future__ import annotations
    import ast
    print(compile("1", "script.py", "exec").co_filename, compile("1", "script.py", "eval").co_filename)
    print(isinstance(ast.parse("1"), ast.Module))
    def hint(text, **how):
        exec(compile(text, "no such", "exec", **how), names := {})
        return names["f"].__annotations__["x"]
    print(hint("def f(x: int): pass"), hint("def f(x: int): pass", dont_inherit=True))
    """
    assert run(text).stdout == "script.py script.py\nTrue\nint <class 'int'>\n"


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
    assert outcome.wall == "landlock"
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
        # a dying one may still take the run along
        os.waitid(os.P_PID, zygote._process.pid, os.WEXITED | os.WNOWAIT)
        outcome = zygote.run(Run(project / "script.py", project, project, record=False))
    assert outcome.stdout == "ran\n"


def test_a_zygote_that_is_killed_as_it_begins_is_replaced() -> None:
    with Zygote() as zygote:
        os.kill(zygote._process.pid, signal.SIGKILL)
        assert zygote.ready()["torch"]


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


def test_a_run_stands_where_the_person_stands_if_that_is_in_the_project(tmp_path, monkeypatch):
    inside, outside = tmp_path / "project" / "scripts", tmp_path / "elsewhere"
    inside.mkdir(parents=True)
    outside.mkdir()
    settings = Settings(arguments=("--epochs", "1"), steps=2, timeout=9.0, seed=4)
    for here, cwd in ((inside, inside), (outside, inside.parent)):
        monkeypatch.chdir(here)
        run = settings.template(inside / "train.py", inside.parent, {})
        assert (run.cwd, run.arguments, run.steps, run.timeout, run.seed) == (
            cwd,
            ("--epochs", "1"),
            2,
            9.0,
            4,
        )
