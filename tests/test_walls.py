"""Attacks on the walls, each contained and each with the right message; machines that lack a wall."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import behind, project

from gradfix import cli, pipeline
from gradfix.run import Run, WallError, walls
from gradfix.run.walls import AUDIT, LANDLOCK, NAMESPACES

FAULTY = """
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


def gradfix(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a call."""
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have this machine refuse the walls of these names, as a kernel or a container would."""
    full = walls.order

    def order(sandbox: walls.Sandbox, forks: bool) -> tuple[walls.Wall, ...]:
        return tuple(wall for wall in full(sandbox, forks) if wall.name not in names)

    monkeypatch.setattr(walls, "order", order)


# ---- which wall


@pytest.mark.parametrize(
    ("lacking", "wall"),
    [((), "namespaces"), (("namespaces", "bubblewrap"), "landlock"),
     (("namespaces", "bubblewrap", "landlock"), "audit")],
)  # fmt: skip
def test_every_report_names_the_wall_there_was(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    lacking: tuple[str, ...], wall: str,
) -> None:  # fmt: skip
    (project / "train.py").write_text(FAULTY)
    without(monkeypatch, *lacking)
    code, out, _ = gradfix(capsys, "fix", str(project / "train.py"), "--output-format", "json")
    assert code == 1
    assert [r["wall"] for r in json.loads(out)["runs"]] == [wall]
    for how in ("full", "concise"):
        _, out, _ = gradfix(capsys, "run", str(project / "train.py"), "--output-format", how)
        assert f"Ran behind {walls.words(wall)}." in " ".join(out.split())


def test_strict_takes_a_real_wall_only(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(FAULTY)
    without(monkeypatch, "namespaces", "bubblewrap")
    words = ["fix", str(project / "train.py"), "--sandbox", "strict", "--output-format", "json"]
    _, out, _ = gradfix(capsys, *words)
    assert [r["wall"] for r in json.loads(out)["runs"]] == ["landlock"]
    without(monkeypatch, "landlock")
    code, out, err = gradfix(capsys, *words)
    assert code == 2
    assert [r["wall"] for r in json.loads(out)["runs"]] in ([], [None])  # read at most
    assert "no wall that holds against hostile code" in " ".join(err.split())


def test_a_refused_wall_is_said_with_its_reason(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that knows neither: asked for, refused, and strict says what each refused with."""
    monkeypatch.setenv("PYTHONPATH", str(project))
    (project / "sitecustomize.py").write_text(
        "import ctypes, os, sys\n"
        "class Libc:\n"
        "    def __init__(self, real): self.real = real\n"
        "    def __getattr__(self, name): return getattr(self.real, name)\n"
        "    def unshare(self, flags): ctypes.set_errno(1); return -1\n"
        "    def syscall(self, number, *rest):\n"
        "        if number == 444: ctypes.set_errno(38); return -1\n"
        "        return self.real.syscall(number, *rest)\n"
        "CDLL = ctypes.CDLL\n"
        "def make(name, *a, **k): return CDLL(name, *a, **k) if name else Libc(CDLL(name, *a, **k))\n"
        "ctypes.CDLL = make\n"
    )
    (project / "script.py").write_text("open('x', 'w')")
    run = Run(project / "script.py", project, project, record=False)
    with behind(NAMESPACES, LANDLOCK, AUDIT) as zygote:
        assert zygote.run(run).wall == "audit"
    no = pytest.raises(WallError, match=r"namespaces: unshare.*landlock: this kernel has no Landlock")
    with behind(NAMESPACES, LANDLOCK, AUDIT, sandbox="strict") as zygote, no:
        zygote.run(run)


def test_scripts_that_nobody_named_run_behind_a_real_wall(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(FAULTY)
    without(monkeypatch, "namespaces", "bubblewrap", "landlock")
    code, _, err = gradfix(capsys, "fix", str(project), "--prove")
    assert (code, "--sandbox strict" in err) == (2, True)
    assert gradfix(capsys, "fix", str(project), "--prove", "--sandbox", "auto")[0] == 1
    code, _, err = gradfix(capsys, "fix", str(project))
    assert (code, "nothing in a directory is run unasked" in " ".join(err.split())) == (2, True)


def test_a_directory_does_not_choose_the_interpreter_that_runs_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(FAULTY)
    (project / "gradfix.toml").write_text('python = "./evil"')
    (project / "evil").write_text(f"#!/bin/sh\ntouch {project}/started\n")
    (project / "evil").chmod(0o755)
    code, _, err = gradfix(capsys, "fix", str(project), "--prove")
    assert (code, "name the interpreter here (--python)" in " ".join(err.split())) == (2, True)
    assert not (project / "started").exists()
    assert gradfix(capsys, "fix", str(project), "--prove", "--isolated")[0] == 1


def test_off_is_as_python_would_run_it(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "for the script")
    (project / "train.py").write_text("import os; open('mark', 'w').write(os.environ['A_TOKEN'])" + FAULTY)
    monkeypatch.chdir(project)
    _, out, _ = gradfix(capsys, "run", "train.py", "--sandbox", "off")
    assert "Ran behind nothing (--sandbox off)." in out
    assert (project / "mark").read_text() == "for the script"
    assert "h += 1" in (project / "train.py").read_text()


# ---- what a person is told


def test_the_network_is_named_where_the_script_needed_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(
        "import urllib.request\nurllib.request.urlopen('http://data.example.com/x')\n" + FAULTY
    )
    code, _, err = gradfix(capsys, "run", str(project / "train.py"))
    assert code == 2
    said = " ".join(err.split())
    assert "the script asked for the network: data.example.com:80. A run has none" in said


def test_a_script_that_trains_otherwise_when_watched_is_not_believed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = "loss = (h * h).sum() * (3 if torch._C._len_torch_function_stack() else 1)"
    (project / "train.py").write_text(FAULTY.replace("loss = (h * h).sum()", watched))
    _, out, _ = gradfix(capsys, "fix", str(project / "train.py"), "--output-format", "json")
    (fault,) = json.loads(out)["diagnostics"]
    assert {cure["verdict"] for cure in fault["cures"]} == {"untried"}
    assert all(cure["reason"].startswith("tampered: the first loss") for cure in fault["cures"])
    assert fault["status"] == "left"


def test_a_candidates_run_that_tampers_is_untried(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script speaks out of turn once it finds its fault repaired."""
    speaks = "import os\nif 'h' + ' +=' not in open(__file__).read():\n    os.write(400, b'nonsense\\n')\n"
    (project / "train.py").write_text(FAULTY + "    pass\n")
    text = (project / "train.py").read_text().replace("optimizer =", f"{speaks}optimizer =", 1)
    (project / "train.py").write_text(text)
    _, out, _ = gradfix(capsys, "fix", str(project / "train.py"), "--output-format", "json")
    (fault,) = json.loads(out)["diagnostics"]
    found = {cure["codemod"]: (cure["verdict"], cure["reason"]) for cure in fault["cures"]}
    verdict, reason = found["out-of-place"]
    assert verdict == "untried"
    assert reason.startswith("tampered: the run's channel to gradfix carried something else")


def test_one_bad_script_of_a_directory_costs_itself_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "bad.py").write_text("import torch, os  # loss.backward()\nos.execv('/bin/true', ['true'])\n")
    (project / "train.py").write_text(FAULTY)
    code, out, err = gradfix(capsys, "fix", str(project), "--prove", "--output-format", "json")
    report = json.loads(out)
    assert code == 2
    ended = [(Path(r["path"]).name, r["ended"]) for r in report["runs"]]
    assert ended == [("bad.py", "tampered"), ("train.py", "steps")]
    assert {r["wall"] for r in report["runs"]} <= {wall.name for wall in walls.WALLS if wall.real}
    assert [c["verdict"] for c in report["changes"]] == ["proved"]
    assert "tampered: the run ended without a word" in " ".join(err.split())


FORGES = """
import gc, torch
channel = next(o for o in gc.get_objects() if type(o).__name__ == "Channel" and hasattr(o, "tag"))
def say(kind, text): channel.lines.append(kind + channel.tag + text + chr(10)); channel.flush()
"""
VECTOR = '{"m":"s","o":0,"g":[[%s,1.0,"f4",%s]],"c":[],"rng":[]}'
FORGED = {
    "trouble": ("x", '{"x":"trouble","text":"it broke"}'),
    "refused": ("x", '{"x":"refused","why":"nothing here"}'),
    "inside": ("x", '{"x":"inside"}'),
    "failure": ("x", '{"x":"failure","stack":[7],"type":"E","message":"m","traceback":"t"}'),
    "number": ("m", '{"m":"s","o":0}'),
    "words": ("m", VECTOR % ('"x"', '"AAAA"')),
    "base64": ("m", VECTOR % ("1.0", '"!!!!"')),
    "half": ("m", VECTOR % ("1.0", '"AAA="')),
    "huge": ("m", VECTOR % ("9" * 400, '"AAAA"')),
    "event": ("t", '{"e":"Mutate"}'),
}


def test_a_script_that_knows_its_tag_forges_for_itself_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (kind, text) in FORGED.items():
        (project / f"bad_{name}.py").write_text(f"{FORGES}say({kind!r}, {text!r})\n{FAULTY}")
    (project / "train.py").write_text(FAULTY)
    code, out, _ = gradfix(capsys, "fix", str(project), "--prove", "--output-format", "json")
    report = json.loads(out)
    assert code == 2
    ended = {Path(r["path"]).stem: (r["ended"], r["wall"]) for r in report["runs"]}
    tampered = dict.fromkeys((f"bad_{name}" for name in FORGED), ("tampered", "namespaces"))
    assert ended == {
        **tampered,
        "bad_event": ("read", "namespaces"),  # nothing is left of its tape: its text is read
        "train": ("steps", "namespaces"),
    }
    (change,) = report["changes"]
    assert change["verdict"] == "proved"
    assert "train.py" in json.dumps(change)


def test_what_nobody_foresaw_costs_one_script_of_a_directory(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of the right shape that makes no sense."""
    real = pipeline.fix

    def fix(entry: Path, *rest: Any) -> Any:
        if entry.name == "bad.py":
            raise IndexError("no such node")
        return real(entry, *rest)

    monkeypatch.setattr(pipeline, "fix", fix)
    for name in ("bad.py", "train.py"):
        (project / name).write_text(FAULTY)
    code, out, err = gradfix(capsys, "fix", str(project), "--prove")
    assert (code, "1 cured" in out, "IndexError: no such node" in err + out) == (2, True, True)
    assert "gradfix could not make sense of what was recorded" in " ".join((err + out).split())
