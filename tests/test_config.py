"""Configuration: which file counts, what wins over what, and what a mistake in it says."""

from pathlib import Path

import pytest

from gradfix import cli
from gradfix.config import ConfigError, configured
from gradfix.result import Exempt


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str, section: bool = True) -> Path:
    path.write_text(("[tool.gradfix]\n" if section and path.name == "pyproject.toml" else "") + text)
    return path


def test_the_nearest_file_upwards_counts(project):
    write(project / "pyproject.toml", "steps = 7\n")
    assert configured(project / "src" / "deep").settings().steps == 7
    write(project / "src" / "pyproject.toml", "[tool.ruff]\nline-length = 100\n", section=False)
    assert configured(project / "src" / "deep").settings().steps == 7
    write(project / "src" / "gradfix.toml", "timeout = 5\n")
    found = configured(project / "src" / "deep").settings()
    assert (found.steps, found.timeout) == (3, 5.0)
    write(project / "src" / "gradfix.toml", "steps = 9\n")
    write(project / "src" / "pyproject.toml", "steps = 8\n")
    assert configured(project / "src" / "deep").settings().steps == 9


def test_a_broken_pyproject_that_is_other_tools_is_passed_by(project):
    write(project / "pyproject.toml", "[tool.other\n", section=False)
    assert configured(project).settings().steps == 3


def test_every_key(project):
    write(
        project / "pyproject.toml",
        'select = ["freed-graph", "leaf-write"]\nignore = ["leaf-write"]\nexclude = ["old/"]\n'
        'python = "venv/bin/python"\nsteps = 5\ntimeout = 1.5\naccept = ["proved"]\n'
        '[tool.gradfix.per-file-ignores]\n"tests/*" = ["cut-graph"]\n',
    )
    found = configured(project / "src")
    settings = found.settings(seed=1)
    assert settings.select == ("freed-graph", "leaf-write")
    assert settings.ignore == ("leaf-write",)
    assert settings.exempt == (Exempt(project, "tests/*", ("cut-graph",)),)
    assert settings.python == str(project / "venv/bin/python")
    assert (settings.steps, settings.timeout, settings.seed) == (5, 1.5, 1)
    assert settings.accept == ("proved",)
    assert found.excluded() == ((project, ("old/",)),)


def test_the_command_line_wins(project):
    write(project / "pyproject.toml", 'steps = 5\ntimeout = 9\nselect = ["leaf-write"]\npython = "p"\n')
    settings = configured(project, ["timeout = 4"]).under("the command line", {"steps": 2}).settings()
    assert (settings.steps, settings.timeout, settings.select) == (2, 4.0, ("leaf-write",))
    assert settings.python == "p"  # a bare name is a command, wherever it was written


def test_what_is_selected_now_is_not_ignored_by_the_file(project):
    write(project / "pyproject.toml", 'ignore = ["leaf-write", "cut-graph"]\n')
    chosen = configured(project).under("the command line", {"select": ("leaf-write",)}).settings()
    assert (chosen.select, chosen.ignore) == (("leaf-write",), ("cut-graph",))
    again = configured(project).under("the command line", {"ignore": ("freed-graph",)}).settings()
    assert again.ignore == ("freed-graph",)


def test_config_and_isolated(project):
    write(project / "pyproject.toml", "steps = 5\n")
    write(project / "ci.toml", "steps = 6\n")
    assert configured(project, ["ci.toml"]).settings().steps == 6
    assert configured(project, ["ci.toml", "steps = 4"]).settings().steps == 4
    assert configured(project, isolated=True).settings().steps == 3
    assert configured(project, ["steps = 4"], isolated=True).settings().steps == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepps = 3", "pyproject.toml: [tool.gradfix] has no key 'stepps'; did you mean steps?"),
        ("per_file_ignores = {}", "did you mean per-file-ignores?"),
        ("zzz = 3", "there are select, ignore, per-file-ignores"),
        ('steps = "3"', '[tool.gradfix] steps must be a whole number of at least 1, not "3"'),
        ("steps = true", "steps must be a whole number of at least 1, not true"),
        ("steps = 0", "steps must be a whole number of at least 1, not 0"),
        ("timeout = nan", "timeout must be a number of seconds of at least 0.1, not nan"),
        ('select = "leaf-write"', 'select must be a list of strings, not "leaf-write"'),
        ('ignore = ["leaf-wirte"]', "ignore names no kind: 'leaf-wirte'; did you mean leaf-write?"),
        ('accept = ["untried"]', "accept names no verdict: 'untried'"),
        ("python = 3", "python must be a string, not 3"),
        ("per-file-ignores = []", "per-file-ignores must be a table of patterns and lists of kinds, not []"),
        ('per-file-ignores = {"a.py" = ["x"]}', "per-file-ignores for 'a.py' names no kind: 'x'"),
        ("steps =", "pyproject.toml: this is not TOML (invalid value"),
    ],
)
def test_mistakes_are_named_with_their_place(project, text, sentence):
    write(project / "pyproject.toml", text + "\n")
    with pytest.raises(ConfigError) as caught:
        configured(project / "src").settings()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["gone.toml"], "gone.toml: can't be read (no such file or directory)"),
        (["stepps = 1"], "--config 'stepps = 1': there is no key 'stepps'; did you mean steps?"),
        (["nonsense"], "--config 'nonsense': it is neither a file nor 'key = value' in TOML"),
        (["a.toml", "b.toml"], "--config takes one file"),
    ],
)
def test_mistakes_of_the_option(project, given, sentence):
    with pytest.raises(ConfigError) as caught:
        configured(project, given)
    assert sentence in str(caught.value)


def test_a_mistake_is_exit_code_2_and_one_sentence(project, capsys):
    write(project / "pyproject.toml", "stepps = 3\n")
    (project / "train.py").write_text("x = 1\n")
    with pytest.raises(SystemExit) as caught:
        cli.main(["fix", "train.py"])
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert err == "gradfix: pyproject.toml: [tool.gradfix] has no key 'stepps'; did you mean steps?\n"


def test_show_settings_says_who_says_so(project, capsys):
    write(project / "src" / "gradfix.toml", 'steps = 5\nignore = ["leaf-write"]\n')
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "src/train.py", "--show-settings", "--timeout", "9", "--config", 'python = "py"'])
    assert not caught.value.code
    assert capsys.readouterr().out.splitlines() == [
        "select = []  # default",
        'ignore = ["leaf-write"]  # src/gradfix.toml',
        "per-file-ignores = {}  # default",
        "exclude = []  # default",
        'python = "py"  # --config \'python = "py"\'',
        "steps = 5  # src/gradfix.toml",
        "timeout = 9.0  # the command line",
        "accept = []  # default",
    ]
