"""The command line: words to calls, results to exit codes, errors to sentences."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import made
import pytest
from test_report import SCHEMA

from gradfix import cli, pipeline
from gradfix.result import Problem, Result, Settings


class Pipeline:
    """Stands in for pipeline.fix: gives the made result, keeps what it was asked."""

    def __init__(self) -> None:
        self.make = made.cured
        self.asked: list[tuple[Path, Settings, str | None]] = []

    def __call__(self, entry, settings, text=None, say=lambda _: None, zygote=None):
        say("recording a run")
        self.asked.append((entry, settings, text))
        yield self.make(Path(entry).resolve())


@pytest.fixture
def fake(monkeypatch, tmp_path):
    stand_in = Pipeline()
    monkeypatch.setattr(pipeline, "fix", stand_in)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gan.py").write_text(made.GAN)
    return stand_in


def gradfix(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(list(words))
    return caught.value.code


def test_fix_shows_a_diff_and_writes_nothing(fake, capsys):
    assert gradfix("fix", "gan.py") == 1
    out, err = capsys.readouterr()
    assert "+    lossG = loss(g)" in out
    assert out.endswith("Found 1 fault; 1 cured (intended). Write it with --write.\n")
    assert err == ""
    assert "\x1b" not in out
    assert Path("gan.py").read_text() == made.GAN


@pytest.mark.parametrize("flag", ["--write", "--fix"])
def test_write(fake, capsys, flag):
    assert gradfix("fix", flag, "gan.py") == 0
    assert Path("gan.py").read_text() == made.CURED
    assert "1 cured (intended) and written." in capsys.readouterr().out


def test_write_refuses_a_file_that_changed(fake, capsys):
    Path("gan.py").write_text(made.GAN + "# edited meanwhile\n")
    assert gradfix("fix", "--write", "gan.py") == 2
    out, err = capsys.readouterr()
    assert "has changed since it was read" in err
    assert out.endswith("Found 1 fault; 1 left.\n")
    assert Path("gan.py").read_text().endswith("# edited meanwhile\n")


@pytest.mark.parametrize(
    ("make", "words", "code"),
    [
        (made.clean, ["fix"], 0),
        (made.cured, ["fix"], 1),
        (made.cured, ["fix", "--write"], 0),
        (made.left, ["fix", "--write"], 1),
        (made.left, ["run"], 1),
        (made.clean, ["run"], 0),
        (lambda p: replace(made.left(p), diagnoses=made.left(p).diagnoses[1:]), ["fix"], 0),
        (lambda p: Result(p, problem=Problem("it fails", "Traceback")), ["fix"], 2),
    ],
    ids=["clean", "found", "all_written", "some_left", "run", "run_clean", "notes_only", "problem"],
)
def test_exit_codes(fake, make, words, code):
    fake.make = make
    assert gradfix(*words, "gan.py") == code


def test_a_problem_is_a_sentence_on_stderr_with_its_detail(fake, capsys):
    fake.make = lambda p: Result(p, problem=Problem("gan.py fails", "Traceback\nValueError: x"))
    gradfix("fix", "gan.py")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gradfix: gan.py fails\n  Traceback\n  ValueError: x\n"


def test_settings(fake):
    gradfix(
        *(
            "fix",
            "gan.py",
            "--select",
            "freed-graph,leaf-write",
            "--select",
            "cut-graph",
            "--ignore",
            "legacy-api",
        ),
        *("--notes", "--accept", "proved,preserved", "--steps", "7", "--timeout", "9", "--seed", "3"),
        *("--python", "/py", "--", "--epochs", "1", "--", "x"),
    )
    settings = fake.asked[0][1]
    assert settings == Settings(
        select=("freed-graph", "leaf-write", "cut-graph"),
        ignore=("legacy-api",),
        notes=True,
        accept=("proved", "preserved"),
        arguments=("--epochs", "1", "--", "x"),
        python="/py",
        steps=7,
        timeout=9.0,
        seed=3,
    )


def test_run_repairs_nothing(fake):
    gradfix("run", "gan.py", "--", "a")
    settings = fake.asked[0][1]
    assert (settings.repair, settings.arguments) == (False, ("a",))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fix gone.py", "gone.py: there is no such file or directory"),
        ("fix", "name a script: gradfix fix train.py"),
        ("fix empty", "empty: there is no Python file in this directory"),
        ("fix gan.py --select freed-grpah", "there is no kind 'freed-grpah'; did you mean freed-graph?"),
        ("fix gan.py --codemod zzz", "there is no codemod 'zzz' (gradfix rules lists them)"),
        ("fix gan.py --accept prooved", "there is no verdict 'prooved'; did you mean proved?"),
        ("fix gan.py --accept rejected", "there is no verdict 'rejected'"),
        ("fix gan.py --bogus", "No such option: --bogus"),
        ("run gan.py --epochs 1", "arguments of the script go after --"),
        ("fix gan.py --steps 0", "Invalid value for '--steps'"),
        ("fix gan.py --timeout inf", "--timeout must be a finite number, not inf"),
        ("fix gan.py --seed 99999999999999999999", "--seed must be at least -2**63 and less than 2**64"),
        ("migrate . --memory-limit inf", "--memory-limit must be a finite number, not inf"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("explain freed-grph", "there is no kind or codemod 'freed-grph'; did you mean freed-graph?"),
        ("fix --tape gone.tape", "gone.tape"),
        ("fix --tape gan.py", "not a gradfix tape"),
        ("fix note.ipynb", "this is not a notebook"),
        ("fix - gan.py", "- stands alone"),
        ("record gone.py -o x.tape", "gone.py: there is no such file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(fake, capsys, words, sentence):
    Path("empty").mkdir()
    Path("note.ipynb").write_text("{}")
    if "ipynb" in words:
        fake.make = lambda p: Result(p, problem=Problem(f"{p.name}: this is not a notebook"))
    assert gradfix(*words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gradfix: ")
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["check", "fix", "fix --diff", "run"])
def test_an_empty_path_is_not_the_working_directory(fake, capsys, command):
    assert gradfix(*command.split(), "") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "an empty path names nothing: there is no such file" in " ".join(err.split())


def test_a_directory_runs_nothing_unasked(fake, capsys):
    Path("other.py").write_text("x = 1\n")
    assert gradfix("fix", ".") == 2
    err = capsys.readouterr().err
    assert "nothing in a directory is run unasked" in err
    assert "gradfix fix gan.py" in err
    assert "other.py" not in err
    assert fake.asked == []
    gradfix("fix", ".", "--entry", "gan.py")
    gradfix("fix", ".", "--prove")
    assert [str(a[0]) for a in fake.asked] == ["gan.py", "gan.py"]


def test_what_the_configuration_excludes_is_not_run(fake, capsys):
    Path("old").mkdir()
    Path("old/gan.py").write_text(made.GAN)
    gradfix("fix", ".", "--prove", "--config", "exclude = ['old/']")
    assert [str(a[0]) for a in fake.asked] == ["gan.py"]
    gradfix("fix", ".", "--prove")
    assert len(fake.asked) == 3


def test_json_is_all_there_is_on_stdout(fake, capsys):
    gradfix("fix", "gan.py", "--output-format", "json")
    value = json.loads(capsys.readouterr().out)
    jsonschema.validate(value, SCHEMA)
    assert value["diagnostics"][0]["path"] == "gan.py"
    assert gradfix("fix", "gone.py", "--output-format", "json") == 2
    value = json.loads(capsys.readouterr().out)
    jsonschema.validate(value, SCHEMA)
    assert "no such file" in value["problems"][0]["message"]


def test_concise(fake, capsys):
    gradfix("fix", "gan.py", "--output-format", "concise", "-q")
    assert re.fullmatch(
        r"gan\.py:14:5: stale-saved-tensor error: .* \[recompute-after-step intended\]\n",
        capsys.readouterr().out,
    )


def test_the_scripts_own_output_is_shown_with_v_only(fake, capsys):
    fake.make = made.left
    gradfix("fix", "gan.py")
    assert "epoch 1" not in "".join(capsys.readouterr())
    gradfix("fix", "gan.py", "-v")
    out, err = capsys.readouterr()
    assert "epoch 1" in err
    assert "epoch 1" not in out


class Bytes(io.BytesIO):
    """Standard streams with a buffer, as sys has them."""

    @property
    def buffer(self):
        return self


def test_standard_input_comes_back_cured(fake, monkeypatch, capfdbinary):
    raw = b"\xef\xbb\xbf" + made.GAN.replace("\n", "\r\n").encode()
    monkeypatch.setattr(sys, "stdin", Bytes(raw))
    assert gradfix("fix", "-", "--stdin-filename", "src/gan.py", "--write") == 0
    sys.stdout.flush()
    out, err = capfdbinary.readouterr()
    assert out == b"\xef\xbb\xbf" + made.CURED.replace("\n", "\r\n").encode()
    assert b"gan.py:14:5" in err
    assert fake.asked[0][2] == made.GAN
    assert not Path("src").exists()


def test_rules_lists_every_kind(capsys):
    from gradfix.suppress import REPORTED

    assert gradfix("rules") == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in REPORTED)
    assert gradfix("rules", "--output-format", "json") == 0
    value = json.loads(capsys.readouterr().out)
    assert [k["kind"] for k in value["kinds"]] == list(REPORTED)


def test_explain(capsys, monkeypatch):
    assert gradfix("explain", "freed-graph") == 0
    assert capsys.readouterr().out.startswith("# freed-graph (error)\n")
    error = b'  File "/x/train.py", line 7, in <module>\n    loss.backward()\n'
    error += b"RuntimeError: Trying to backward through the graph a second time\n"
    monkeypatch.setattr(sys, "stdin", Bytes(error))
    assert gradfix("explain", "-") == 0
    out = capsys.readouterr().out
    assert "freed-graph (error)" in out
    assert "/x/train.py:7: loss.backward()" in out
    assert "gradfix fix /x/train.py" in out
    monkeypatch.setattr(sys, "stdin", Bytes(b"ValueError: no\n"))
    assert gradfix("explain", "-") == 1
    assert "not an autograd error" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", Bytes(b""))
    assert gradfix("explain", "-") == 2


# -- in a process of its own

ENV = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")}


def script(tmp_path: Path, body: str = "yield made.cured(entry.resolve())") -> list[str]:
    """A gradfix whose pipeline is `body`."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(made.__file__).parent)!r})\n"
        "import time, made\nfrom gradfix import cli, pipeline\n"
        f"def fix(entry, settings, text=None, say=None, zygote=None):\n    say('recording a run'); {body}\n"
        "pipeline.fix = fix\ncli.main()\n"
    )
    (tmp_path / "tool.py").write_text(code)
    (tmp_path / "gan.py").write_text(made.GAN)
    return [sys.executable, "tool.py"]


def on_a_terminal(command: list[str], cwd: Path, columns: int = 70, **env: str) -> str:
    """What `command` writes to a terminal."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=cwd, stdin=follower, stdout=follower, stderr=follower, env={**ENV, **size, **env}
    )
    os.close(follower)
    out = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    process.wait()
    os.close(leader)
    return out.decode()


def test_colour_and_progress_on_a_terminal_only(tmp_path):
    tool = script(tmp_path)
    shown = on_a_terminal([*tool, "fix", "gan.py"], tmp_path)
    assert "\x1b[1;31merror[stale-saved-tensor]" in shown
    assert "gan.py: " in shown.split("error[")[0]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "━━━━━━━━━━━━━ overwritten here" in plain
    assert "\x1b[1;31m" not in on_a_terminal([*tool, "fix", "gan.py"], tmp_path, NO_COLOR="1")
    piped = subprocess.run(
        [*tool, "fix", "gan.py"], cwd=tmp_path, capture_output=True, text=True, env=ENV, check=False
    )
    assert "\x1b" not in piped.stdout + piped.stderr
    forced = subprocess.run(
        [*tool, "fix", "gan.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**ENV, "FORCE_COLOR": "1"},
        check=False,
    )
    assert "\x1b[1;31merror" in forced.stdout


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path):
    tool = script(tmp_path, "print('up', file=sys.stderr, flush=True); time.sleep(60); yield")
    process = subprocess.Popen(
        [*tool, "fix", "gan.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=ENV
    )
    assert process.stderr.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "gradfix: interrupted\n"


def test_a_closed_pipe_is_silent(tmp_path):
    tool = script(tmp_path, "yield from [made.left(entry.resolve())] * 500")
    process = subprocess.Popen(
        [*tool, "fix", "gan.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=20) == 141


def test_a_closed_pipe_does_not_cost_the_patch(tmp_path):
    tool = script(tmp_path, "yield from [made.left(entry.resolve())] * 500")
    command = [*tool, "fix", "gan.py", "--output-patch", "fix.json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "There was no fix to write: fix.json is a patch without any.\n"
    assert process.wait(timeout=20) == 141
    assert json.loads((tmp_path / "fix.json").read_text())["fixes"] == []


def test_an_output_that_has_no_box_characters(tmp_path):
    done = subprocess.run(
        [*script(tmp_path), "fix", "gan.py"],
        cwd=tmp_path,
        capture_output=True,
        env={**ENV, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert b"^^^^^^^^^^^^^ overwritten here" in done.stdout
    assert b"(1x2)" in done.stdout


@pytest.mark.parametrize("words", ["--help", "fix --help", "--version"])
def test_help_is_light(words):
    code = (
        "import sys\nfrom gradfix.cli import main\n"
        f"try:\n    main({words.split()!r})\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert not {'torch', 'libcst', 'numpy'} & set(sys.modules), set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("fix", "gradfix fix [OPTIONS] [PATH]... [-- ARGS]"),
        ("rules", "gradfix rules [OPTIONS]"),
        ("", "gradfix [OPTIONS] COMMAND [ARGS]..."),
    ],
)
def test_usage(words, usage, capsys):
    assert gradfix(*words.split(), "-h") == 0
    out, _ = capsys.readouterr()
    (said,) = [line for line in out.splitlines() if "Usage:" in line]
    assert said.strip() == f"Usage: {usage}"
    (help_line,) = [line for line in out.splitlines() if "--help" in line]
    assert "bool" not in help_line


# ---- what a directory, or standard input, bounds

TRAIN = """\
import torch
x = torch.randn(4, 3)
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    h = model(x).exp()
    h += 1
    opt.zero_grad()
    h.sum().backward()
    opt.step()
"""
MIXED = """\
import torch
w, u = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
a, b = torch.optim.SGD(w.parameters(), lr=0.1), torch.optim.SGD(u.parameters(), lr=0.1)
x = torch.randn(5, 2)
for _ in range(4):
    p = w(x).sigmoid()
    (p.exp() - u(p)).pow(2).mean().backward()
    a.step()
    a.zero_grad()
    u(x).pow(2).mean().backward()
    b.step()
    b.zero_grad()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    Path("lib").mkdir()
    return tmp_path


def test_a_directory_applies_what_is_meant_only_where_the_script_raised(project, capsys):
    Path("silent.py").write_text(MIXED)
    assert gradfix("fix", ".", "--entry", "silent.py", "--write", "--output-format", "concise") == 1
    assert "--accept proved,preserved,intended" in capsys.readouterr().out
    assert Path("silent.py").read_text() == MIXED
    words = ["--accept", "proved,preserved,intended", "--write", "--output-format", "concise"]
    assert gradfix("fix", ".", "--entry", "silent.py", *words) == 0
    assert Path("silent.py").read_text() != MIXED


def test_with_a_directory_only_its_files_are_edited(project, capsys):
    Path("train.py").write_text(TRAIN)
    Path("lib/net.py").write_text("import train\n")
    assert gradfix("fix", "lib", "--entry", "train.py", "--write") == 1
    assert "train.py: not among the files to be edited" in capsys.readouterr().out
    assert gradfix("fix", ".", "--entry", "train.py", "--write") == 0


def test_a_file_that_cannot_be_rewritten_says_why(project, capsys):
    Path("train.py").write_text(f"(rate): float = 0.5\n{TRAIN}")  # Python takes that, and libcst doesn't
    assert gradfix("fix", "train.py") == 1
    assert "train.py: libcst can't parse it near line" in capsys.readouterr().out


def test_a_directory_is_not_run_unasked(project, capsys):
    Path("train.py").write_text(TRAIN)
    assert gradfix("fix", ".") == 2
    assert "gradfix fix train.py" in capsys.readouterr().err


def test_a_partial_repair_is_shown_and_not_applied(project, capsys):
    text = TRAIN.replace("    opt.zero_grad()\n", "    y = soften(model(x).tanh())\n    opt.zero_grad()\n")
    hidden = "def soften(t):\n    exec('t.sigmoid_()')\n    return t * t\n\n\n"
    text = hidden + text.replace("h.sum()", "(h.sum() + y.sum())")
    Path("train.py").write_text(text)
    assert gradfix("fix", "train.py", "--write", "-v") == 1
    out, _ = capsys.readouterr()
    said = " ".join(out.split())
    assert "cure, not applied: out-of-place (proved): out of place: `h = h + 1`" in said
    assert "│ +    h = h + 1" in out.splitlines()
    assert said.endswith(
        "1 of 2 faults has a proved cure; 1 has none, so nothing is applied: a script that still fails is no repair."
    )
    assert Path("train.py").read_text() == text


def test_standard_input_gives_the_new_text_and_edits_nothing_else(project):
    command = [sys.executable, "-m", "gradfix", "fix", "-", "--stdin-filename", "lib/train.py"]
    done = subprocess.run([*command, "--write"], input=TRAIN, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, TRAIN.replace("h += 1", "h = h + 1"))
    assert "lib/train.py:7:5" in done.stderr
    done = subprocess.run(command, input=TRAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "+++ b/lib/train.py" in done.stdout
    assert list(project.rglob("*.py")) == []


BROKEN = """import torch

net = torch.nn.Linear(3, 3)
for i in range(2):
\th = torch.sigmoid(net(torch.randn(4, 3)))  # a\ttab, é
\th *= 2
\th.sum().backward()
"""
LONG = "# " + "long " * 60 + "\n"


def test_a_script_that_is_named_twice_runs_once(fake, capsys):
    assert gradfix("fix", "gan.py", "./gan.py") == 1
    assert len(fake.asked) == 1
    assert capsys.readouterr().out.endswith("Found 1 fault; 1 cured (intended). Write it with --write.\n")


@pytest.mark.parametrize("tool", ["patch -p1", "git apply -"])
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("tabs.py", (LONG + BROKEN).encode()),
        ("lib/with blank/deeper.py", BROKEN.encode()),
        ("crlf.py", BROKEN.replace("\n", "\r\n").encode()),
        ("no_final_newline.py", BROKEN.rstrip().encode()),
        ("form_feed.py", BROKEN.replace("*= 2", "*= 2  # \f").replace("net =", "\f\nnet =").encode()),
        ("latin.py", b"# coding: latin-1\n" + BROKEN.encode("latin-1")),
        ("marked.py", b"\xef\xbb\xbf" + BROKEN.encode()),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_piped_report_is_a_patch_of_the_bytes(tmp_path, monkeypatch, capfdbinary, zygote, name, raw, tool):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "here").mkdir()
    # not where the repository begins: names are from the working directory
    monkeypatch.chdir(tmp_path / "here")
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(raw)
    (result,) = pipeline.fix(Path(name), Settings(), zygote=zygote)
    ((_, new),) = result.files.values()
    assert raw.count(b"\f") == new.count("\f")  # what the edits of the JSON report are made of
    monkeypatch.setattr(pipeline, "fix", lambda *_, **__: iter([result]))
    assert gradfix("fix", name) == 1
    report, _ = capfdbinary.readouterr()
    assert gradfix("fix", "--write", name) == 0
    written = Path(name).read_bytes()
    assert written != raw
    Path(name).write_bytes(raw)
    subprocess.run(tool.split(), input=report, check=True, capture_output=True)
    assert Path(name).read_bytes() == written


def test_a_piped_patch_of_a_file_elsewhere_is_from_the_root(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "fix", Pipeline())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "gan.py").write_text(made.GAN)
    gradfix("fix", "../gan.py")
    assert f"--- a{os.path.realpath(tmp_path)}/gan.py\n" in capsys.readouterr().out


LOST_CHILD = """
import os, signal, time
from gradfix import cli

def missed(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        raise RuntimeError("a child is gone") from None

cli._plainly = missed
cli.main(["rules"])
"""
TOO_EARLY = """
import sys
from gradfix.__main__ import main

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "gradfix.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
main()
"""


@pytest.mark.parametrize(("code", "said"), [(LOST_CHILD, "gradfix: interrupted\n"), (TOO_EARLY, "")])
def test_an_interrupt_is_no_fault_whenever_it_comes(code, said):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, said)
