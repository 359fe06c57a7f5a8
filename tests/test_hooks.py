"""Where commits and pull requests are checked: the real pre-commit in a repository, the steps of the action."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_baseline import FAULT, MEANT

ROOT = Path(__file__).parent.parent
NAMES = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
CURED = FAULT.replace("y += 1", "y = y + 1")


@pytest.fixture
def environment(tmp_path):
    """With this interpreter's commands, and caches and names of its own."""
    return {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(tmp_path / "cache"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        **dict.fromkeys(NAMES, "a@b"),
    }


@pytest.fixture
def say(environment, tmp_path):
    """Runs a command in a folder; gives its exit code and what it printed."""

    def run(*words: str, cwd: Path) -> tuple[int, str]:
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def hooks(say, tmp_path) -> Path:
    """A repository that offers the hooks as they are here."""
    folder = tmp_path / "hooks"
    folder.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", folder)
    commit(say, folder)
    return folder


def commit(say, folder: Path) -> None:
    say("git", "init", "-q", cwd=folder)
    say("git", "add", "-A", cwd=folder)
    code, said = say("git", "commit", "-qm", "all", cwd=folder)
    assert code == 0, said


def test_the_manifest_is_one(say):
    code, said = say("pre-commit", "validate-manifest", ".pre-commit-hooks.yaml", cwd=ROOT)
    assert code == 0, said


def test_a_commit_with_a_fault_is_refused(say, hooks, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    revision = say("git", "rev-parse", "HEAD", cwd=hooks)[1].strip()
    wanted = [{"repo": str(hooks), "rev": revision, "hooks": [{"id": "gradfix-check"}]}]
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": wanted}))
    commit(say, project)
    assert say("pre-commit", "install", cwd=project)[0] == 0
    (project / "train.py").write_text(FAULT)
    (project / "notes.txt").write_text(FAULT)
    say("git", "add", "-A", cwd=project)
    code, said = say("git", "commit", "-m", "faulty", cwd=project)
    assert code == 1, said
    assert "error[stale-saved-tensor]" in said
    assert "train.py:5:1" in said
    (project / "train.py").write_text(CURED)
    say("git", "add", "-A", cwd=project)
    code, said = say("git", "commit", "-m", "sound", cwd=project)
    assert code == 0, said


def test_the_fixing_hook_changes_the_file_and_runs_nothing(say, hooks, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    ran = "open('ran', 'w').close()\n"
    (project / "train.py").write_text(FAULT + ran)
    (project / "other.py").write_text(ran)
    (project / "meant.py").write_text(MEANT)
    commit(say, project)
    code, said = say("pre-commit", "try-repo", str(hooks), "gradfix-fix", "--all-files", cwd=project)
    assert code == 1
    assert "files were modified by this hook" in said
    assert (project / "train.py").read_text() == CURED + ran
    assert (project / "meant.py").read_text() == MEANT
    assert not (project / "ran").exists()


def test_the_fixing_hook_leaves_what_is_excluded_and_takes_every_name(say, hooks, tmp_path):
    project = tmp_path / "project"
    (project / "vendor").mkdir(parents=True)
    (project / "gradfix.toml").write_text('exclude = ["vendor/"]')
    names = ("vendor/train.py", "-train.py", "--output-patch=other.py", "other.py")
    for name in names:
        (project / name).write_text(FAULT)
    commit(say, project)
    code, said = say("pre-commit", "try-repo", str(hooks), "gradfix-fix", "--all-files", cwd=project)
    assert code == 1
    assert [(project / name).read_text() for name in names] == [FAULT, CURED, CURED, CURED], said
    (project / "-train.py").write_text(FAULT)
    code, said = say("pre-commit", "try-repo", str(hooks), "gradfix-check", "--all-files", cwd=project)
    assert "-train.py:5:1" in said
    assert "1 fault" in said
    command = ("gradfix", "fix", "--no-run", "--force-exclude")
    assert say(*command, "vendor/train.py", cwd=project) == (0, "")
    assert say(*command, "vendor/train.py", "other.py", cwd=project)[0] == 0


def test_the_name_of_a_file_is_no_option(say, tmp_path):
    (tmp_path / "--output-patch=train.py").write_text(FAULT)
    for command in (("fix", "--no-run"), ("check",)):
        code, said = say("gradfix", *command, "--output-patch=train.py", cwd=tmp_path)
        assert code == 2
        assert "say ./--output-patch=train.py for the file" in said.replace("\n", " ")
        assert say("gradfix", *command, "./--output-patch=train.py", cwd=tmp_path)[0] == 1
        assert say("gradfix", *command, "--", "--output-patch=train.py", cwd=tmp_path)[0] == 1
    assert not (tmp_path / "train.py").exists()


def test_what_runs_nothing_takes_no_script_to_run(say, tmp_path):
    code, said = say("gradfix", "fix", "--no-run", "--prove", ".", cwd=tmp_path)
    assert code == 2
    assert "--no-run runs nothing" in said


def test_the_action_checks_without_torch(environment, tmp_path):
    """Its steps as they are written, in an environment that has nothing yet."""
    action, project, own = tmp_path / "action", tmp_path / "project", tmp_path / "venv"
    for name in ("gradfix", "codemods"):
        shutil.copytree(ROOT / name, action / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "action.yml"):
        shutil.copy(ROOT / name, action)
    project.mkdir()
    (project / "train.py").write_text(FAULT)
    for name in ("copy", "rich", "typer", "gradfix", "pip"):  # nothing of the checkout is run
        (project / f"{name}.py").write_text("open('ran', 'w').close()\n")
    subprocess.run([sys.executable, "-m", "venv", own], env=environment, check=True)
    about = yaml.safe_load((action / "action.yml").read_text())
    install, check = about["runs"]["steps"]
    wanted = {name: one["default"] for name, one in about["inputs"].items()}
    wanted |= {"arguments": "--quiet --no-cache", "paths": "train.py"}
    given = {
        variable: wanted[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for variable, value in check["env"].items()
    }
    clean = {k: v for k, v in environment.items() if not k.startswith("PYTHON")}
    clean |= {
        "PATH": f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTION_PATH": str(action),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        **given,
    }

    def step(script: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub starts it
        return subprocess.run(words, cwd=project, env=clean, capture_output=True, text=True, check=False)

    installed = step(install["run"])
    assert installed.returncode == 0, installed.stderr
    assert step("python -c 'import torch'").returncode == 1
    assert "+++ b/.vim/compiler/gradfix.vim" in step("gradfix ide vim --diff").stdout  # its data came along
    done = step(check["run"])
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("::error file=train.py,line=5,")
    assert not (project / "ran").exists()
