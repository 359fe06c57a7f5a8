"""Scripts that do harm, by accident or on purpose: behind every real wall each is contained, and each is told of in
the right words. The project and the home directory are the same afterwards, byte for byte."""

# ruff: noqa: F401 (fixtures are imported)

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import IGNORES_SIGNALS, MODEL, behind, fingerprint, processes_named, until

from gradfix.run import Outcome, Run, walls
from gradfix.run.child.confine import PROCESSES
from gradfix.run.walls import AUDIT, BUBBLEWRAP, LANDLOCK, NAMESPACES
from gradfix.run.withheld import OFF
from gradfix.run.zygote import Zygote

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the walls of Linux")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home directory with something to lose, and an environment with secrets."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "id_ed25519").write_text("a private key")
    (folder / ".netrc").write_text("machine example.com password hunter2")
    (folder / "thesis.tex").write_text("three years of work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("FORGE_TOKEN", "hunter2")
        patch.setenv("SSH_AUTH_SOCK", str(folder / "agent"))
        yield folder


@pytest.fixture(scope="module", params=[NAMESPACES, LANDLOCK, BUBBLEWRAP], ids=lambda wall: wall.name)
def wall(request: pytest.FixtureRequest) -> walls.Wall:
    found: walls.Wall = request.param
    if found is BUBBLEWRAP and walls.bubblewrap() is None:
        pytest.skip("bubblewrap is not installed")
    return found


@pytest.fixture(scope="module")
def enclosed(home: Path, wall: walls.Wall) -> Iterator[Zygote]:
    with behind(wall) as zygote:
        yield zygote


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "best.pt").write_bytes(b"a week of training")
    (root / "data").mkdir()
    (root / "data" / "train.csv").write_text("1,2\n")
    return root


# Before anything is deleted: that it is the home made for it.
SAFETY = f"assert __import__('os').path.expanduser('~').startswith({tempfile.gettempdir()!r})\n"


@pytest.fixture
def attack(home: Path, project: Path, wall: walls.Wall, enclosed: Zygote) -> Iterator[Callable[..., Outcome]]:
    """Runs a text as the project's script; afterwards project and home must be what they were."""
    script = project / "script.py"
    before: dict[str, str] = {}

    def start(text: str, zygote: Zygote = enclosed, **options: Any) -> Outcome:
        script.write_text(SAFETY + textwrap.dedent(text))
        before.update(fingerprint(project) | fingerprint(home))
        outcome = zygote.run(Run(script, project, project, **{"record": False, "timeout": 20.0, **options}))
        assert outcome.wall == wall.name
        return outcome

    yield start
    assert before == fingerprint(project) | fingerprint(home)


TRY = """
import os
def attempt(do):
    try: do()
    except OSError as problem: print(type(problem).__name__, problem.errno)
"""

# ---- files


@pytest.mark.parametrize(
    "text",
    [
        "open(os.path.expanduser('~/thesis.tex'), 'w').write('!')",
        "os.remove(os.path.expanduser('~/thesis.tex'))",
        "os.chmod(os.path.expanduser('~/thesis.tex'), 0)",
        "os.truncate(os.path.expanduser('~/thesis.tex'), 0)",
        "open(os.path.expanduser('~/new'), 'w').write('!')",
        "import shutil; shutil.rmtree(os.path.expanduser('~'), ignore_errors=True)",
        "import shutil; shutil.rmtree(os.getcwd(), ignore_errors=True)",
        "os.system('rm -rf ~ . 2>/dev/null')",
        "import torch; torch.save({'epoch': 1}, 'best.pt')",
        "os.rename('best.pt', 'old.pt')",
        "os.symlink(os.path.expanduser('~/thesis.tex'), 'link'); open('link', 'w').write('!')",
        "os.symlink(os.path.expanduser('~'), 'link'); open('link/thesis.tex', 'a').write('!')",
        "os.link(os.path.expanduser('~/thesis.tex'), 'link'); open('link', 'a').write('!')",
        "os.symlink('/proc/self/root' + os.path.expanduser('~/thesis.tex'), 'l'); open('l', 'w').write('!')",
        "os.symlink('/proc/%d/root' % os.getppid() + os.path.expanduser('~'), 'l'); open('l/new', 'w')",
        "import mmap; f = open(os.path.expanduser('~/thesis.tex'), 'r+b'); mmap.mmap(f.fileno(), 0)[0:1] = b'!'",
        "import ctypes; ctypes.CDLL(None).unlink(os.path.expanduser('~/thesis.tex').encode())",
    ],
)  # fmt: skip
def test_nothing_that_is_written_arrives(attack: Callable[..., Outcome], text: str) -> None:
    outcome = attack(TRY + f"def do():\n    {text}\nattempt(do)\nprint('alive')")
    assert outcome.ended == "finished", outcome
    assert outcome.stdout.endswith("alive\n")


def test_what_is_told_of_a_write_that_is_refused(attack: Callable[..., Outcome], wall: walls.Wall) -> None:
    outcome = attack("open('/usr/lib/model.pt', 'w')")
    assert outcome.ended == "failed"
    assert [m for m in outcome.missed if "a run may write to its own view of the project only" in m]


def test_bare_except_around_everything(attack: Callable[..., Outcome]) -> None:
    text = """
    import os, shutil
    while True:
        try:
            while True:
                try: shutil.rmtree(os.path.expanduser("~")); open("best.pt", "w"); os.kill(os.getppid(), 9)
                except: pass
                finally: continue
        except: pass
    """
    assert attack(text, timeout=1.0).ended == "timeout"


def test_no_disk_can_be_opened(attack: Callable[..., Outcome]) -> None:
    text = """
    import os, stat
    def opens(path):
        try: os.close(os.open(path, os.O_RDONLY)); return True
        except OSError: return False
    found = [e.path for e in os.scandir("/dev") if not e.is_symlink()]
    print([p for p in found if stat.S_ISBLK(os.stat(p).st_mode) and opens(p)],
          [p for p in found if p.endswith(("mem", "kmsg", "console", "tty0")) and opens(p)])
    """
    assert attack(text).stdout == "[] []\n"


def test_the_machines_settings_stay(attack: Callable[..., Outcome]) -> None:
    text = """
    attempt(lambda: open("/proc/sys/kernel/core_pattern", "r+"))
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    print(libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None), libc.umount2(os.getcwd().encode(), 2),
          libc.unshare(0x10000000), libc.setns(0, 0), libc.sethostname(b"x", 1))
    """
    refused, calls = attack(TRY + textwrap.dedent(text)).stdout.splitlines()
    assert refused.split()[0] in ("PermissionError", "OSError")
    assert calls == " ".join(["-1"] * 5)


# ---- secrets


def test_secrets_are_not_there(attack: Callable[..., Outcome], home: Path) -> None:
    text = """
    import os, subprocess
    home = os.path.expanduser("~")
    for path in (".ssh/id_ed25519", ".netrc"):
        try: print(repr(open(os.path.join(home, path)).read()))
        except OSError as problem: print("''")
    print(open(home + "/thesis.tex").read(), "SSH_AUTH_SOCK" in os.environ)
    print(subprocess.run(["cat /proc/*/environ"], shell=True, capture_output=True).stdout.count(b"hunter2"))
    print(os.environ["FORGE_TOKEN"])
    """
    outcome = attack(text)
    assert outcome.stdout == "''\n''\nthree years of work False\n0\n"
    assert outcome.missed == (
        "the environment's FORGE_TOKEN is withheld from runs; --sandbox off runs it as python would",
    )


def test_a_project_that_is_somebodys_home(home: Path, wall: walls.Wall, enclosed: Zygote) -> None:
    script = home / "script.py"
    script.write_text("import os; print(os.path.exists('.ssh/id_ed25519'), open('thesis.tex').read())")
    try:
        outcome = enclosed.run(Run(script, home, home, record=False))
    finally:
        script.unlink()
    assert outcome.stdout == "False three years of work\n"


# ---- network

CONNECT = """
import ctypes, os, socket, struct, subprocess, sys
port = int(sys.argv[1])
def direct():
    s = socket.socket(); s.settimeout(1); s.connect(("127.0.0.1", port)); s.sendall(b"secret")
def other():
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1).sendall(b'secret')"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True).returncode)
def raw():
    libc = ctypes.CDLL(None)
    fd = libc.socket(2, 1, 0)
    print(libc.connect(fd, struct.pack("=HH4s8x", 2, socket.htons(port), bytes([127, 0, 0, 1])), 16))
for way in (direct, other, raw):
    try: way()
    except OSError as problem: print(type(problem).__name__)
"""


def test_a_listener_on_this_machine_hears_nothing(attack: Callable[..., Outcome]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as witness:
        witness.settimeout(0.3)
        outcome = attack(CONNECT, arguments=(str(witness.getsockname()[1]),))
        assert outcome.stdout.splitlines()[-1] == "-1"
        assert len(outcome.stdout.splitlines()) == 3
        with pytest.raises(TimeoutError):
            witness.accept()


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("import urllib.request; urllib.request.urlopen('http://data.example.com/x')", "data.example.com:80"),
        ("import socket; socket.create_connection(('192.0.2.7', 443), 1)", "192.0.2.7:443"),
        ("raise ConnectionError('[Errno 101] Network is unreachable')", "Network is unreachable"),
        ("import socket\ntry: socket.getaddrinfo('pypi.org', 443)\nexcept OSError: pass", "pypi.org:443"),
    ],
)  # fmt: skip
def test_who_asks_for_the_network_is_told(attack: Callable[..., Outcome], text: str, asked: str) -> None:
    (said,) = attack(text).missed
    assert said.startswith("the script asked for the network: ")
    assert asked in said


def test_other_programs_are_out_of_reach(attack: Callable[..., Outcome]) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    text = f"""
    import os, signal
    for pid in ({victim.pid}, {os.getpid()}, os.getppid(), 1):
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            try: os.kill(pid, number); print("sent", pid)
            except OSError: pass
    import ctypes
    print(ctypes.CDLL(None).ptrace(16, {victim.pid}, 0, 0))
    """
    try:
        outcome = attack(text)
        assert victim.poll() is None
        assert outcome.stdout.splitlines()[-1] == "-1"
    finally:
        victim.kill()
        victim.wait()


# ---- room and time


@pytest.mark.parametrize("caught", [True, False])
def test_processes_are_counted(attack: Callable[..., Outcome], caught: bool) -> None:
    """A bomb of four hundred goes off at the limit, and its script is told, or ended."""
    handler = "except OSError as problem: print(problem, flush=True); break"
    text = f"""
import os, time
for made in range(400):
    try: os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)
    {handler if caught else "finally: pass"}
time.sleep(2)  # whoever counts may be late on a busy machine
assert made < 300
"""
    outcome = attack(text, timeout=60.0)
    if outcome.ended == "killed":
        assert outcome.detail == "the run had started hundreds of processes and was ended."
    elif caught:
        assert outcome.ended == "finished"
        assert outcome.stdout.startswith("[Errno 11] Resource temporarily unavailable")
    else:
        assert outcome.missed == (f"a run may have {PROCESSES} processes and threads; {OFF}",)
    assert until(lambda: processes_named("script.py") == [])


def test_memory_of_all_processes_together(
    attack: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradfix.run.conversation._resident_limit", lambda _: 300 << 20)
    text = """
    import os, time
    for _ in range(3):
        if os.fork() == 0:
            held = b"1" * (150 << 20); time.sleep(20); os._exit(0)
    time.sleep(20)
    """
    outcome = attack(text)
    assert (outcome.ended, outcome.detail) == ("memory", "the run used up the memory it may have.")


def test_a_huge_allocation(attack: Callable[..., Outcome]) -> None:
    outcome = attack("import torch; torch.ones(1 << 32)", memory=1 << 29)
    assert outcome.ended == "memory"
    assert outcome.detail.startswith("the run used up the memory it may have.")


def test_a_huge_file(attack: Callable[..., Outcome]) -> None:
    outcome = attack("f = open('x', 'wb')\nfor _ in range(300): f.write(bytes(1 << 20))", file_size=1 << 22)
    assert outcome.ended == "failed"
    assert outcome.missed == ("a file may grow to 4 MiB in a run; --sandbox off runs it as python would",)


def test_a_full_view(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradfix.run.zygote.room", lambda: 1 << 22)
    (project / "script.py").write_text("for i in range(9): open(str(i), 'wb').write(bytes(1 << 20))")
    with behind(NAMESPACES) as zygote:
        outcome = zygote.run(Run(project / "script.py", project, project, record=False))
    assert outcome.ended == "failed"
    assert outcome.missed[0].startswith("the run's scratch space is full")


def test_no_room_for_a_copy(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "small").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "small"))
    monkeypatch.setattr("shutil.copy2", full)
    (project / "script.py").write_text("")
    refused = pytest.raises(walls.WallError, match=r"can't be copied.*no space left.*TMPDIR")
    with behind(LANDLOCK) as zygote, refused:
        zygote.run(Run(project / "script.py", project, project, record=False))
    assert list((tmp_path / "small").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        IGNORES_SIGNALS,
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import time\ntime.monotonic = time.time = lambda: 0.0\ntime.sleep = lambda s: None\nwhile True: pass",
        "import os\nos.setsid() if os.fork() == 0 else None\nwhile True: pass",
    ],
)
def test_time_runs_out(attack: Callable[..., Outcome], text: str) -> None:
    outcome = attack(text, timeout=1.0)
    assert (outcome.ended, outcome.detail) == ("timeout", "the run was not over after 1 s.")
    assert outcome.seconds < 10
    assert until(lambda: processes_named("script.py") == [])


def test_the_clock_can_be_neither_set_nor_bent(attack: Callable[..., Outcome]) -> None:
    text = """
    import time
    try: time.clock_settime(time.CLOCK_REALTIME, 0)
    except PermissionError: print("no")
    def broken(*_): raise RuntimeError("time is broken")
    time.monotonic = time.time = time.perf_counter = broken
    """
    outcome = attack(text + textwrap.indent(MODEL, "    ") + "    for _ in range(9): train()", record=True)
    assert (outcome.ended, outcome.stdout) == ("steps", "no\n")
    assert outcome.tape is not None


def test_output_without_end(attack: Callable[..., Outcome]) -> None:
    outcome = attack("import sys\nfor _ in range(300): sys.stdout.write('x' * (1 << 20))\nprint('end')")
    assert (outcome.ended, len(outcome.stdout), outcome.stdout[-4:]) == ("finished", 65536, "end\n")


# ---- what the run says of itself

FORGED = """
import os
def speak(line):
    for fd in range(3, 1000):
        try: os.write(fd, line + b"\\n")
        except OSError: pass
"""
CHILD_SPEAKS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import os; os.write(400, b'x')"], pass_fds=[400])
"""
SUCCESS = """speak(b'x{"x":"end","how":"finished","status":0,"detail":"","dynamo":false}'); os.kill(os.getpid(), 9)"""


@pytest.mark.parametrize(
    "text",
    [
        SUCCESS,
        SUCCESS.replace("b'x{", "b'x0123456789abcdef{"),  # a tag of the right length
        "speak(b't{}')",
        """speak(b'm{"m":"s","o":0}')""",
        "speak(b'x' + b'[' * 100_000)",
        "speak(bytes(range(256)) * 1000)",
        "os.closerange(3, 65536)",
        "import ctypes; ctypes.CDLL(None)._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "import sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
        CHILD_SPEAKS,
        "n = os.open('/dev/null', os.O_WRONLY); os.dup2(n, 400)",
    ],
)  # fmt: skip
def test_a_run_that_tampers_is_called_that(attack: Callable[..., Outcome], text: str) -> None:
    outcome = attack(FORGED + text)
    assert outcome.ended == "tampered", outcome
    assert outcome.detail.startswith("tampered: ")


def test_nothing_is_written_to_a_file_that_took_the_channels_place(attack: Callable[..., Outcome]) -> None:
    took = "import os, time\nos.dup2(os.open('mine', os.O_RDWR | os.O_CREAT), 400)\n"
    outcome = attack(
        took + MODEL + "train(); time.sleep(0.3); train()\nprint(os.path.getsize('mine'))", record=True
    )
    assert (outcome.ended, outcome.stdout) == ("tampered", "0\n")


def test_success_is_not_what_the_exit_status_says(attack: Callable[..., Outcome]) -> None:
    outcome = attack("import os\n" + MODEL + "train()\nos._exit(0)", record=True)
    assert (outcome.ended, outcome.detail) == ("exit", "the script ended itself with os._exit(0).")


def test_a_run_that_says_too_much_of_itself(
    attack: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradfix.run.conversation.LONGEST", 1 << 20)
    outcome = attack("import os\nwhile True: os.write(400, b'x' * 65536)")
    assert outcome.ended == "memory"
    assert "said more than 1 MiB about itself" in outcome.detail


# ---- nothing stays


def test_no_orphan_when_the_host_is_killed(home: Path, project: Path, wall: walls.Wall) -> None:
    mark = f"gradfix-orphan-{wall.name}-{os.getpid()}"
    (project / "script.py").write_text(
        f"""
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)", {mark!r}])
    time.sleep(99)
time.sleep(99)
"""
    )
    text = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from runs import behind
from gradfix.run import Run, walls
with behind(walls.{wall.name.upper()}) as zygote:
    p = Path({str(project)!r})
    zygote.run(Run(p / "script.py", p, p, record=False))
"""
    host = subprocess.Popen(
        [sys.executable, "-c", text], env={**os.environ, "GRADFIX_TEST": mark, "TMPDIR": str(project.parent)}
    )
    try:
        assert until(lambda: processes_named(mark) != [], 60)
    finally:
        host.kill()
        host.wait()
    assert until(lambda: processes_named(mark) == [], 10)
    assert until(lambda: processes_named(f"GRADFIX_TEST={mark}", "environ") == [], 10)
