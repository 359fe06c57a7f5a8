"""Files for editors: written with care, and what they say is run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_baseline import FAULT
from test_cli import gradfix

FOUND = "`y` is overwritten by `y += 1` before `y.sum().backward()` needs it"
VIM = shutil.which("vim")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "train it.py").write_text(FAULT)
    monkeypatch.chdir(folder)
    return folder


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", "HOME": str(home)}
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def can(vim: str | None) -> bool:
    """Whether it is one with :make and scripts: Debian's smallest is not."""
    said = (
        subprocess.run([vim, "--version"], capture_output=True, text=True, check=False).stdout if vim else ""
    )
    return "+quickfix" in said and "+eval" in said


@pytest.mark.parametrize("editor", ["pycharm", "vscode", "neovim", "vim"])
def test_nothing_of_anybodys_is_lost(project, capsys, editor):
    before = set(project.rglob("*"))
    assert gradfix("ide", editor, "--diff") == 0
    diff = capsys.readouterr().out
    assert set(project.rglob("*")) == before
    assert gradfix("ide", editor) == 0
    written = sorted(p for p in project.rglob("*") if p.is_file() and p not in before)
    assert diff.count("--- /dev/null") == len(written) > 0
    assert gradfix("ide", editor) == 0  # what is there is what is wanted
    for file in written:
        file.write_text("mine\n")
    texts = {file: file.read_text() for file in written}
    capsys.readouterr()
    assert gradfix("ide", editor) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert {file: file.read_text() for file in written} == texts
    gradfix("ide", editor, "--diff")
    assert "\n-mine\n" in capsys.readouterr().out
    assert gradfix("ide", editor, "--force") == 0
    assert "mine\n" not in {file.read_text() for file in written}


def test_a_folder_that_is_none(project, capsys):
    assert gradfix("ide", "vscode", "train it.py") == 2
    assert "train it.py" in capsys.readouterr().err


def test_the_problem_matcher_reads_what_the_task_prints(project):
    gradfix("ide", "vscode")
    (project / "likely.py").write_text(FAULT.replace("y += 1", "if torch.rand(1) > 2:\n    y += 1"))
    (task,) = json.loads((project / ".vscode/tasks.json").read_text())["tasks"]
    matcher = task["problemMatcher"]["pattern"]
    assert task["command"] == "${command:python.interpreterPath}"
    words = [*task["args"][:-1], "--evidence", "likely", task["args"][-1]]
    lines = run([sys.executable, *words], project).stdout.splitlines()
    assert len(lines) == 2
    found = [read(matcher, line) for line in lines]
    assert sorted(found, key=lambda each: each["file"]) == [
        {
            "file": "likely.py",
            "line": "6",
            "column": "5",
            "code": "stale-saved-tensor",
            "severity": "error",
            "message": FOUND,
        },
        {
            "file": "train it.py",
            "line": "5",
            "column": "1",
            "code": "stale-saved-tensor",
            "severity": "error",
            "message": FOUND,
        },
    ]


def read(matcher: dict, line: str) -> dict[str, str]:
    """What the pattern finds, by JavaScript's own rules where there is Node."""
    node = shutil.which("node")
    if node:
        code = "console.log(JSON.stringify(process.argv[1].match(new RegExp(process.argv[2]))))"
        said = subprocess.run(
            [node, "-e", code, line, matcher["regexp"]], capture_output=True, text=True, check=True
        )
        groups = json.loads(said.stdout)
    else:
        found = re.search(matcher["regexp"], line)
        groups = [line, *found.groups()]
    return {name: groups[number] for name, number in matcher.items() if name != "regexp"}


def test_pycharm_runs_what_its_files_say(project):
    gradfix("ide", "pycharm")
    macros = {
        "$PyInterpreterDirectory$": str(Path(sys.executable).parent),
        "$FilePath$": str(project / "train it.py"),
        "$ProjectFileDir$": str(project),
    }

    def told(command: str, words: str, folder: str, pattern: str) -> dict[str, str]:
        for macro, value in macros.items():
            command, words, folder = (x.replace(macro, value) for x in (command, words, folder))
        lines = run([command, *shlex.split(words)], Path(folder)).stdout.splitlines()
        rule = re.escape(pattern).replace(r"\$", "$")
        for macro in ("FILE_PATH", "LINE", "COLUMN", "MESSAGE"):
            kind = r"\d+" if macro in ("LINE", "COLUMN") else ".+"
            rule = rule.replace(f"${macro}$", f"(?P<{macro}>{kind})")
        return re.match(rule, lines[0]).groupdict()

    watcher = ElementTree.parse(project / ".idea/watcherTasks.xml").find(".//TaskOptions")
    given = {o.get("name"): o.get("value") for o in watcher.findall("option")}
    pattern = watcher.find(".//FilterInfo/option[@name='regExp']").get("value")
    assert told(given["program"], given["arguments"], given["workingDir"], pattern) == {
        "FILE_PATH": str(project / "train it.py"),
        "LINE": "5",
        "COLUMN": "1",
        "MESSAGE": f"stale-saved-tensor error: {FOUND}",
    }
    tools = ElementTree.parse(project / ".idea/gradfix/External Tools.xml").getroot()
    assert [tool.get("name") for tool in tools] == ["gradfix check", "gradfix fix"]
    check = {o.get("name"): o.get("value") for o in tools[0].iter("option")}
    place = told(check["COMMAND"], check["PARAMETERS"], check["WORKING_DIRECTORY"], check["REGEXP"])
    assert place == {"FILE_PATH": str(project / "train it.py"), "LINE": "5", "COLUMN": "1"}


@pytest.mark.skipif(not can(VIM), reason="no Vim with +quickfix and +eval (Debian: apt-get install vim)")
def test_vims_make(project):
    gradfix("ide", "vim")
    script = [
        "set nocompatible shellpipe=>%s\\ 2>&1",
        "set runtimepath+=.vim",
        "edit train\\ it.py",
        "compiler gradfix",
        "silent make!",
        "let found = map(getqflist(), '[bufname(v:val.bufnr), v:val.lnum, v:val.col, v:val.text]')",
        "call writefile([json_encode(found), json_encode([line('.'), col('.')])], 'found')",
        "qall!",
    ]
    (project / "session.vim").write_text("\n".join(script) + "\n")
    done = run([VIM, "-es", "-N", "-u", "NONE", "-i", "NONE", "-S", "session.vim"], project)
    found, _ = (project / "found").read_text().splitlines()
    assert json.loads(found) == [["train it.py", 5, 1, f"stale-saved-tensor error: {FOUND}"]], done


@pytest.mark.skipif(shutil.which("nvim") is None, reason="no Neovim (Debian: apt-get install neovim)")
def test_neovim_starts_the_server_for_python(project):
    gradfix("ide", "neovim")
    script = """
    dofile('.nvim.lua')
    vim.cmd('edit train\\\\ it.py')
    vim.wait(60000, function() return #vim.diagnostic.get(0) > 0 end, 20)
    local found = vim.diagnostic.get(0)[1]
    io.stdout:write(vim.json.encode({ found.lnum, found.message }))
    vim.cmd('qall!')
    """
    (project / "session.lua").write_text(script)
    done = run(["nvim", "--clean", "--headless", "-c", "luafile session.lua"], project)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == [4, FOUND]


def eglot() -> bool:
    """Whether there is an Emacs with eglot: its own from 29, Debian's package before."""
    if shutil.which("emacs") is None:
        return False
    words = ["emacs", "--batch", "--eval", "(package-initialize)", "--eval", "(require 'eglot)"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not eglot(), reason="no Emacs with eglot (Debian: apt-get install emacs-nox elpa-eglot)")
def test_emacs(project):
    """With what docs/editors.md says for it: the fault as flymake has it, its first cure applied to the buffer."""
    page = (Path(__file__).parent.parent / "docs/editors.md").read_text()
    (said,) = re.findall(r"^    (\(with-eval-after-load 'eglot\n(?:     .*\n)+)", page, re.M)
    session = """
    (package-initialize)
    (require 'eglot)
    (require 'json)
    (defun wait-until (test)
      (let ((end (+ (float-time) 60)))
        (while (and (not (funcall test)) (< (float-time) end)) (accept-process-output nil 0.1))))
    (setq eglot-sync-connect 60 eglot-connect-timeout 60 last-nonmenu-event ?x)  ; a key, not a mouse
    (find-file "train it.py")
    (call-interactively 'eglot)
    (flymake-mode 1)
    (flymake-start)
    (wait-until #'flymake-diagnostics)
    (let* ((found (flymake-diagnostics)) (at (flymake-diagnostic-beg (car found))))
      (princ (json-encode (list (length found) (line-number-at-pos at) (flymake-diagnostic-text (car found)))))
      (cl-letf (((symbol-function 'completing-read) (lambda (_ choices &rest _) (car (all-completions "" choices)))))
        (eglot-code-actions at at nil t)))
    (save-buffer)  ; sends the text: idle timers do not run in batch mode
    (wait-until (lambda () (not (flymake-diagnostics))))
    (princ (json-encode (list (length (flymake-diagnostics)))))
    """
    (project / "session.el").write_text(said + session)
    done = run(["emacs", "--batch", "-l", "session.el"], project)
    assert (
        done.stdout
        == json.dumps([1, 5, f"gradfix [stale-saved-tensor]: {FOUND}"], separators=(",", ":")) + "[0]"
    ), done.stderr
    assert (project / "train it.py").read_text() == FAULT.replace("y += 1", "y = y + 1")


def test_a_link_out_of_the_project_is_not_written_through(tmp_path):
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    (project / ".vim").symlink_to(outside)
    words = [sys.executable, "-P", "-m", "gradfix", "ide", "vim", str(project), "--force"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "out of the project" in " ".join(done.stderr.split())
    assert not list(outside.iterdir())
