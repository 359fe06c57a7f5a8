"""Reports for other programs: what GitHub, GitLab, CI servers and SARIF viewers read."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree

import jsonschema
import made
import pytest
from test_cli import fake, gradfix

from gradfix import pipeline
from gradfix.notebook import join
from gradfix.result import Problem, Result
from gradfix.source import split_lines

__all__ = ["fake"]

SARIF = json.loads((Path(__file__).parent / "data/sarif-2.1.0.json").read_text(encoding="utf-8"))
DOCUMENTS = ["sarif", "gitlab", "junit"]

EXP = """\
import torch

w = torch.nn.Linear(4, 4)
y = w(torch.randn(8, 4)).exp()
é = "two: 50%"; y += 1
y.sum().backward()
"""


@pytest.fixture
def exp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a b,c.py"
    file.write_text(EXP, encoding="utf-8")
    return file


def valid(text: str) -> dict:
    value = json.loads(text)
    jsonschema.Draft4Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(value)
    return value["runs"][0]


def applied(fix: dict, base: str) -> dict[str, str]:
    """The files that a fix changes, as a viewer would write them."""
    out = {}
    for change in fix["artifactChanges"]:
        path = Path(unquote(urlparse(base + change["artifactLocation"]["uri"]).path))
        text = path.read_text(encoding="utf-8")
        starts = [0]
        for line in split_lines(text):
            starts.append(starts[-1] + len(line) + 1)
        for each in reversed(change["replacements"]):
            region = each["deletedRegion"]
            start = starts[region["startLine"] - 1] + region["startColumn"] - 1
            end = starts[region["endLine"] - 1] + region["endColumn"] - 1
            text = text[:start] + each["insertedContent"]["text"] + text[end:]
        out[path.name] = text
    return out


def test_sarif_of_a_check_validates_and_its_fixes_apply(exp, capsys):
    assert gradfix("check", "--output-format", "sarif", ".") == 1
    run = valid(capsys.readouterr().out)
    (result,) = run["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert EXP.split("\n")[4][region["startColumn"] - 1 : region["endColumn"] - 1] == "y += 1"
    assert [x["message"]["text"].split()[-1] for x in result["relatedLocations"]] == ["0", "1", "here"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "stale-saved-tensor"
    assert result["properties"]["verdict"] == "untried"
    base = run["originalUriBaseIds"]["SRCROOT"]["uri"]
    fixes = {f["properties"]["codemod"]: applied(f, base) for f in result["fixes"]}
    assert fixes["out-of-place"] == {"a b,c.py": EXP.replace("y += 1", "y = y + 1")}


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_a_sarif_fix_has_the_line_endings_of_its_file(exp, capsys, newline):
    exp.write_bytes(EXP.replace("\n", newline).encode())
    assert gradfix("check", "--output-format", "sarif", "--no-cache", ".") == 1
    (result,) = valid(capsys.readouterr().out)["results"]
    changes = [c for fix in result["fixes"] for c in fix["artifactChanges"]]
    texts = [r["insertedContent"]["text"] for c in changes for r in c["replacements"]]
    assert any(newline in text for text in texts)
    assert not any("\n" in text.replace(newline, "") for text in texts)


def test_sarif_of_a_fix_has_the_verdicts(fake, capsys):
    assert gradfix("fix", "gan.py", "--output-format", "sarif") == 1
    run = valid(capsys.readouterr().out)
    (result,) = run["results"]
    assert result["properties"]["verdict"] == "intended"
    assert [f["properties"]["verdict"] for f in result["fixes"]] == ["intended", "rejected"]
    assert applied(result["fixes"][0], run["originalUriBaseIds"]["SRCROOT"]["uri"]) == {"gan.py": made.CURED}


def test_a_cure_that_rests_on_another_is_no_fix_of_the_file(fake, capsys):
    fake.make = lambda path: made.replace_sources(made.cured(path), "# before the first cure\n" + made.GAN)
    gradfix("fix", "gan.py", "--output-format", "sarif")
    assert "fixes" not in valid(capsys.readouterr().out)["results"][0]


def test_a_cell_is_no_region_of_the_notebooks_file(tmp_path, monkeypatch, capsys):
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": EXP}]
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert "y += 1" in join(text)
    (tmp_path / "a.ipynb").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert gradfix("check", "--output-format", "sarif") == 1
    (result,) = valid(capsys.readouterr().out)["results"]
    assert result["locations"][0]["logicalLocations"][0]["name"] == "cell 0, line 5"
    assert "region" not in result["locations"][0]["physicalLocation"]
    assert "fixes" not in result
    assert gradfix("check", "--output-format", "github", "-q") == 1
    line = capsys.readouterr().out
    assert line.startswith("::error file=a.ipynb,title=gradfix (stale-saved-tensor)::")
    assert "a.ipynb:cell 0:5:17: overwritten here" in line


@pytest.mark.parametrize("format_", DOCUMENTS)
@pytest.mark.parametrize("command", ["fix", "run", "check"])
def test_what_could_not_be_read_leaves_a_document(fake, capsys, format_, command):
    assert gradfix(command, "gone.py", "--output-format", format_) == 2
    out, err = capsys.readouterr()
    assert "there is no such file" in err
    if format_ == "sarif":
        run = valid(out)
        assert not run["invocations"][0]["executionSuccessful"]
        said = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
        assert said.startswith("gone.py: there is no such file")
    elif format_ == "junit":
        said = ElementTree.fromstring(out).find(".//error").get("message")
        assert said.startswith("gone.py: there is no such file")
    else:
        assert json.loads(out) == []


def test_github(exp, capsys):
    assert gradfix("check", "--output-format", "github", "--quiet", ".") == 1
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = re.fullmatch(r"::error (?P<fields>[^:]*)::(?P<said>.*)\n", out)
    assert dict(x.split("=") for x in found["fields"].split(",")) == {
        "file": "a b%2Cc.py",
        "line": "5",
        "endLine": "5",
        "col": "17",
        "endColumn": "23",
        "title": "gradfix (stale-saved-tensor)",
    }
    first, *places = found["said"].split("%0A")
    assert first == "`y` is overwritten by `y += 1` before `y.sum().backward()` needs it"
    assert places[0] == "a b,c.py:4:5: y (8×4) saved here, version 0"


def test_github_escapes_what_would_end_a_command(fake, capsys):
    fake.make = lambda path: made.with_message(made.left(path), "100%\r\n::error::x")
    gradfix("run", "gan.py", "--output-format", "github", "-q")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split("::")[2].startswith("100%25")
    assert "%0A" in line


def test_gitlab(exp, capsys):
    exp.write_text(EXP + EXP.removeprefix("import torch\n"), encoding="utf-8")
    gradfix("check", "--output-format", "gitlab")
    first, second = json.loads(capsys.readouterr().out)
    assert first["location"] == {
        "path": "a b,c.py",
        "positions": {"begin": {"line": 5, "column": 17}, "end": {"line": 5, "column": 23}},
    }
    assert first["severity"] == "critical"
    assert first["fingerprint"] != second["fingerprint"]
    exp.write_text(
        "# moved\n" + exp.read_text(encoding="utf-8").replace("y += 1", "y  +=  1"), encoding="utf-8"
    )
    gradfix("check", "--output-format", "gitlab")
    again = json.loads(capsys.readouterr().out)
    assert [x["fingerprint"] for x in again] == [first["fingerprint"], second["fingerprint"]]


def test_junit(exp, capsys):
    (exp.parent / "fine.py").write_text("x = 1\n")
    gradfix("check", "--output-format", "junit")
    root = ElementTree.fromstring(capsys.readouterr().out)
    assert root.attrib == {"name": "gradfix", "tests": "2", "failures": "1", "errors": "0"}
    faulty, fine = root.iter("testcase")
    assert faulty.get("line") == "5"
    assert faulty.find("failure").get("type") == "stale-saved-tensor"
    assert "a b,c.py:4:5: y (8×4) saved here" in faulty.find("failure").text
    assert fine.get("file") == "fine.py"
    assert not list(fine)


def test_junit_holds_no_character_that_xml_has_not(fake, monkeypatch, capsys):
    broken = "it ended\x1b[0m\x00"
    problem = Result(Path("gan.py").resolve(), problem=Problem(broken, "\x08detail"))
    monkeypatch.setattr(pipeline, "fix", lambda *_: iter([problem]))
    assert gradfix("run", "gan.py", "--output-format", "junit") == 2
    assert ElementTree.fromstring(capsys.readouterr().out).find(".//error") is not None
