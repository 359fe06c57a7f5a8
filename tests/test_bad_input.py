"""Bad input, end to end: each a process of its own, a clear sentence on stderr, nothing changed and nothing left."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradfix.run.zygote import CHILD

FAULT = """\
x = torch.randn(4, 3)
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    h = model(x).exp()
    h += 1
    loss = h.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    return tmp_path


@pytest.fixture
def gradfix(folder: Path) -> Iterator[Callable[..., Done]]:
    """Runs the command in `folder`; afterwards the folder is what it was, and no process of the run is left."""
    mark = f"GRADFIX_TEST={uuid.uuid4()}"
    seen: list[str] = []

    def call(*words: str, **options: object) -> Done:
        seen.append(state(folder))
        with start(words, folder, mark, **options) as process:
            out, err = process.communicate(timeout=90)
        return Done(process.returncode, out, err)

    yield call
    assert set(seen) == {state(folder)}
    deadline = time.monotonic() + 5
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(mark)


def start(words: tuple[str, ...], folder: Path, mark: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **dict([mark.split("=")])}
    return subprocess.Popen(
        [sys.executable, "-m", "gradfix", *words],
        cwd=folder,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def state(folder: Path) -> str:
    """One digest of every name, mode and byte below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode}\n".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def left(mark: str) -> list[str]:
    """The processes, by number, that were started with `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def refused(done: Done, sentence: str, read: bool = False) -> None:
    """`read`: what the text shows is reported, though nothing could be run."""
    assert done.code == 2, done
    assert sentence in " ".join(done.err.split()), done.err
    assert done.err.startswith("gradfix: ")
    assert "gradfix/" not in done.err.replace("/tmp", ""), "a traceback of our own"
    assert ("error[stale-saved-tensor]" in done.out) if read else done.out == ""


# ---- where the report goes


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize(
    "words",
    [
        *("check --no-cache x.py", "check -q --no-cache --output-format json x.py", "check --help"),
        *("rules", "explain freed-graph", "fix --diff --no-run x.py", "--version"),
    ],
)
def test_a_full_disk_is_one_sentence(folder, words):
    (folder / "x.py").write_text("import torch\n" + FAULT)
    command = [sys.executable, "-m", "gradfix", *words.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder, check=False
        )
    said = "gradfix: the output can't be written (no space left on device)"
    assert (done.returncode, done.stderr.splitlines()) == (2, [said])


# ---- files


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "s.py: there is no such file or directory"),
        (b"", "s.py is empty: there is nothing to run"),
        (b"\n  \n", "s.py is empty: there is nothing to run"),
        (b"import torch\n# \xff\n", "s.py:2: byte 0xff is not utf-8"),
        (b"import torch\nx = (1,\ny = 2)\n", "s.py:3:1: invalid syntax"),
        (b"x = x.cuda(async=True)\n", "s.py:1:12: invalid syntax (async is a keyword since Python 3.7"),
        (b"x = '\0'\n", "s.py:1: holds a null byte"),
    ],
    ids=["missing", "empty", "blank", "undecodable", "syntax", "async", "null"],
)
def test_files_that_are_no_script(gradfix, folder, content, sentence):
    if content is not None:
        (folder / "s.py").write_bytes(content)
    refused(gradfix("fix", "s.py"), sentence)


def test_a_syntax_error_shows_its_line_and_a_caret(gradfix, folder):
    (folder / "s.py").write_text("import torch\nx = (1,\ny = 2)\n")
    assert "\n  3 | y = 2)\n    | ^^^^^\n" in gradfix("fix", "s.py").err


def test_a_directory_without_python(gradfix, folder):
    (folder / "data").mkdir()
    (folder / "data" / "notes.txt").write_text("hello")
    refused(gradfix("fix", "data"), "data: there is no Python file in this directory")


@pytest.mark.parametrize("locked", ["s.py", "."])
def test_what_can_not_be_written_is_said_before_the_work(gradfix, folder, locked):
    (folder / "s.py").write_text("import torch\n" + FAULT)
    (folder / locked).chmod(0o555 if locked == "." else 0o444)
    began = time.monotonic()
    done = gradfix("fix", "s.py", "--write", "--python", "/bin/false")
    (folder / locked).chmod(0o555 if locked == "." else 0o444)
    refused(done, "s.py")
    assert "read-only; nothing was written" in done.err
    assert time.monotonic() - began < 30


@pytest.fixture(autouse=True)
def unlocked(folder: Path) -> Iterator[None]:
    yield
    folder.chmod(0o755)


# ---- interpreters


def test_an_interpreter_without_torch(gradfix, folder, tmp_path_factory):
    (folder / "s.py").write_text("import torch\n" + FAULT)
    bare = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    done = gradfix("fix", "s.py", "--python", str(bare / "bin/python"))
    refused(done, "has no torch. Install torch there", read=True)


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/bin/false", "is not a Python that can run"),
        ("/bin/ls", "can run the script (it ended at once, with status 2)"),
        ("/no/python", "can't be started (No such file"),
    ],
)
def test_what_is_no_interpreter(gradfix, folder, python, sentence):
    (folder / "s.py").write_text("import torch\n" + FAULT)
    refused(gradfix("fix", "s.py", "--python", python), sentence, read=True)


# ---- scripts


def test_a_warning_names_the_line_of_the_user(gradfix, folder):
    text = "import torch\ny = torch.ones(2, requires_grad=True) * 2\ny.sum().backward()\nprint(y.grad)\n"
    (folder / "s.py").write_text(text)
    done = gradfix("fix", "-v", "s.py")
    assert "s.py:4: UserWarning" in done.out + done.err


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ('d = {}\nd["lr"]\n', [], "s.py fails for a reason that is not autograd's"),
        ("import time\nwhile True: time.sleep(0.1)\n", ["--timeout", "3"], "was not over after 3 s"),
        ("import os\nos._exit(3)\n", [], "ended itself with os._exit(3), and no backward() was reached"),
        ("import os\nos.kill(os.getpid(), 9)\n", [], "fewer --steps or less work"),
        ("import ctypes\nctypes.string_at(0)\n", [], "the run was killed by SIGSEGV"),
        ('input("name? ")\n', [], "it reads standard input, which is empty here"),
        ("import sys\nsys.exit('no data')\n", [], "the script called sys.exit('no data')"),
        ("torch.ones(3, requires_grad=True).backward()\n", [], "implicitly created only for scalar outputs"),
        (
            "loss = torch.ones(3, requires_grad=True).sum()\nloss.requires_grad = True\n",
            [],
            "set the flag where the leaf is made",
        ),
        (
            "with torch.inference_mode():\n    x = torch.ones(3)\n"
            "(x * torch.ones(3, requires_grad=True)).sum().backward()\n",
            [],
            "Use torch.no_grad() in place of torch.inference_mode()",
        ),
        (
            "assert not torch.overrides._get_current_function_mode_stack(), 'watched'\n"
            "torch.ones(3, requires_grad=True).sum().backward()\n",
            [],
            "fails while it is recorded, and not without that",
        ),
    ],
    ids=[
        "foreign",
        "endless",
        "os._exit",
        "SIGKILL",
        "SIGSEGV",
        "stdin",
        "sys.exit",
        "no fault of ours",
        "flag of no leaf",
        "inference",
        "recorded",
    ],
)
def test_scripts_that_give_nothing_to_report(gradfix, folder, text, words, sentence):
    (folder / "s.py").write_text("import torch\n" + text)
    refused(gradfix("fix", "s.py", *words), sentence)


def test_a_failure_that_is_not_ours_comes_with_its_own_traceback(gradfix, folder):
    (folder / "s.py").write_text('def f(d):\n    return d["lr"]\n\nf({})\n')
    done = gradfix("fix", "s.py")
    assert 's.py", line 4, in <module>' in done.err
    assert done.err.endswith("  KeyError: 'lr'\n")


def test_a_script_that_fills_memory(gradfix, folder):
    (folder / "s.py").write_text("import torch\nheld = []\nwhile True: held.append(b'x' * (1 << 26))\n")

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = gradfix("fix", "s.py", preexec_fn=little_memory)
    refused(done, "used up the memory")
    refused(done, "fewer --steps or less work (the script's own arguments go after --) may fit")


def test_a_script_that_trains_in_other_processes_only(gradfix, folder):
    train = "def train():\n" + textwrap.indent(FAULT, "    ")
    start = "p = torch.multiprocessing.get_context('fork').Process(target=train)\np.start()\np.join()\n"
    (folder / "s.py").write_text("import torch, torch.multiprocessing\n" + train + start)
    refused(gradfix("fix", "s.py"), "trains in processes that it starts is not watched", read=True)


ODD = {
    "prints megabytes": "for _ in range(100_000): print('x' * 50)\n",
    "changes directory": "import os\nos.chdir('/')\n",
    "has its own excepthook": "import sys\nsys.excepthook = lambda *a: print('hooked')\n",
    "deletes its own file": "import os\nos.remove(__file__)\n",
    "forks": "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n",
    "closes its output": "import sys\nsys.stdout.close(); sys.stderr.close()\n",
}
WRAPPED = {
    "catches everything": "try:\n" + textwrap.indent(FAULT, "    ") + "except:\n    pass\n",
    "ends in finally": "import os\ntry:\n" + textwrap.indent(FAULT, "    ") + "finally:\n    os._exit(0)\n",
}


@pytest.mark.parametrize(
    "text", [*(odd + FAULT for odd in ODD.values()), *WRAPPED.values()], ids=[*ODD, *WRAPPED]
)
def test_a_fault_is_found_and_cured_in_spite_of_what_the_script_does(gradfix, folder, text):
    (folder / "s.py").write_text("import torch\n" + text)
    done = gradfix("fix", "s.py", "--output-format", "concise")
    assert (done.code, done.err) == (1, "")
    assert "stale-saved-tensor error: `h` is overwritten by" in done.out
    assert "[out-of-place proved]" in done.out


# ---- a run that is stopped


LATE = """\
import time
a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
first = torch.optim.SGD(a.parameters(), lr=0.1)
second = torch.optim.Adam(b.parameters())
while True:
    first.zero_grad()
    a(torch.randn(3, 2)).sum().backward()
    first.step()
    time.sleep(0.02)
"""


def test_an_optimizer_that_never_stepped_is_named(gradfix, folder):
    (folder / "s.py").write_text("import torch\n" + LATE)
    done = gradfix("fix", "s.py", "--timeout", "3")
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "`second` (made in line 5) had not stepped yet when the run was stopped after 3 s" in said
    assert "--timeout 600" in said


def test_ctrl_c_leaves_nothing(folder):
    (folder / "s.py").write_text("import torch, time\nopen('began', 'w')\nwhile True: time.sleep(0.1)\n")
    before = state(folder)
    mark = f"GRADFIX_TEST={uuid.uuid4()}"
    with start(("fix", "s.py"), folder, mark) as process:
        deadline = time.monotonic() + 20
        while len(left(mark)) < 4 and time.monotonic() < deadline:  # gradfix, the interpreter, and runs in it
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "gradfix: interrupted\n")
    time.sleep(0.3)
    assert not left(mark)
    assert state(folder) == before


def test_a_name_for_standard_input_without_it(gradfix, folder):
    (folder / "s.py").write_text("import torch\n" + FAULT)
    for command in ("fix", "check"):
        done = gradfix(command, "s.py", "--stdin-filename", "x.py")
        refused(done, "--stdin-filename names what comes with -")


DIES = "net(torch.randn(3, 2)).sum().backward()\n{}['x']\n"


@pytest.mark.parametrize(
    ("text", "code", "said", "written"),
    [
        ("import torch\nprint(x\n", 2, "was never closed", False),
        ("import broken\n", 2, "Nothing was recorded", False),
        ("import sys; sys.exit(3)\n", 2, "the script called sys.exit(3)", False),
        (DIES, 1, "s.py ended in line 4 with KeyError: 'x'", True),
        (DIES.replace("{}['x']", "print()"), 0, "(The run: finished.)", True),
    ],
    ids=["syntax", "syntax_of_a_module", "exits_at_once", "dies_halfway", "comes_to_its_end"],
)
def test_a_tape_is_written_where_there_is_something_on_it(
    gradfix, folder, tmp_path_factory, text, code, said, written
):
    tape = tmp_path_factory.mktemp("tapes") / "run.tape"
    (folder / "broken.py").write_text("def f(:\n    pass\n")
    head = "import torch\nnet = torch.nn.Linear(2, 2)\n" if "net" in text else ""
    (folder / "s.py").write_text(head + text)
    done = gradfix("record", "s.py", "-o", str(tape))
    assert (done.code, tape.exists()) == (code, written)
    assert said in done.err


def test_the_recorder_alone_says_that_python_cant_read_the_script(folder):
    (folder / "s.py").write_text("import torch\nprint(x\n")
    words = [sys.executable, str(CHILD), "record", "s.py", "-o", "run.tape"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, (folder / "run.tape").exists()) == (2, False)
    assert 's.py", line 2' in done.stderr
    (folder / "s.py").write_text("import torch\nnet = torch.nn.Linear(2, 2)\n" + DIES)
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, (folder / "run.tape").exists()) == (1, True)
