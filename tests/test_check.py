"""check: what is read, told, kept and left out. The reader is a stand-in: a comment ``#! kind`` is a fault."""

import io
import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest
from test_report import SCHEMA

from gradfix import cli, examine
from gradfix.cli.check import check as call
from gradfix.commands import check as commands
from gradfix.detect import KINDS, Conflict, Label
from gradfix.read import Problem, Reading
from gradfix.tape import Backward, Site, Tape


class Reader:
    """Faults where comments say so, in the file and in the siblings it imports; keeps which files it was asked for."""

    def __init__(self, log: Path) -> None:
        self.log = log

    @property
    def asked(self) -> list[str]:
        """Names of the files that were read since the last look, in any process."""
        names = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.write_text("")
        return sorted(names)

    def read(
        self, path: Path, text: str, *, root: Path | None = None, idle=True, files=None, kept=None, watch=None
    ) -> tuple[Reading, ...]:
        with self.log.open("a") as out:
            out.write(f"{path.name}\n")
        if "CRASH" in text:
            os._exit(11)
        if "BUG" in text:
            raise KeyError("bug")
        if "UNREADABLE" in text or "(x.backward" in text:
            return (Reading("__main__", Tape((), str(path)), problems=(Problem("It is odd.", 3),)),)
        files = [path, *(path.parent / f"{n}.py" for n in re.findall(r"^import (\w+)$", text, re.M))]
        sources = {str(f): "" for f in files if f == path or f.exists()}
        sites = frozenset({Site(str(path), 1)})
        reached = frozenset() if "UNREACHED" in text else sites
        return (Reading("__main__", Tape((), str(path), sources=sources), reached=reached, total=sites),)

    def detect(self, tape: Tape) -> list[Conflict]:
        found = []
        for file in tape.sources:
            text = Path(file).read_text() if Path(file).exists() else STDIN
            for number, line in enumerate(text.split("\n"), 1):
                if mark := re.search(r"#! ([\w-]+)( likely)?", line):
                    at = Site(file, number, 0, number, len(line.split("#")[0].rstrip()))
                    event = Backward(1 if mark[2] else 0, (at,), (), ())
                    labels = (Label("needed", (at,), "needed here"),)
                    found.append(Conflict(mark[1], KINDS[mark[1]], "it is wrong", labels, event=event))
        return found


STDIN = "loss.backward()  #! freed-graph\n"


@pytest.fixture
def reader(tmp_path_factory, monkeypatch):
    stand_in = Reader(tmp_path_factory.mktemp("log") / "asked")
    monkeypatch.setattr(examine, "read", stand_in.read)
    monkeypatch.setattr(examine, "detect", stand_in.detect)
    monkeypatch.setattr(
        Reading, "evidence", lambda self, c: "likely" if c.event is not None and c.event.time else "certain"
    )
    return stand_in


@pytest.fixture
def folder(reader, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        file = folder / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def check(folder, capsys):
    def call(*words: str) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["check", "--output-format", "concise", *words])
        out, err = capsys.readouterr()
        return caught.value.code, out.splitlines(), err

    return call


FAULT = "loss.backward()  #! freed-graph\n"


def test_faults_of_all_files_in_order(folder, check):
    write(folder, b=FAULT, a="x = 1  # backward\n" + FAULT, src__c=FAULT, d="x = 1\n")
    code, out, err = check("-q")
    assert (code, err) == (1, "")
    assert [line.split(" ")[0] for line in out] == ["a.py:2:1:", "b.py:1:1:", "src/c.py:1:1:"]
    assert out[0] == "a.py:2:1: freed-graph error: it is wrong"
    code, out, _ = check("b.py", "d.py")
    assert (code, out[1:]) == (
        1,
        ["Found 1 fault in 2 files. To try cures and prove them: gradfix fix b.py"],
    )
    assert check("d.py") == (0, ["No faults found."], "")


def test_only_files_that_may_matter_are_read(folder, check, reader):
    write(folder, a=FAULT, b="print('hello')\n")
    check()
    assert reader.asked == ["a.py"]


def test_selection(folder, check):
    write(folder, a=FAULT + "x.data  #! cut-graph\n")
    assert len(check("-q")[1]) == 2
    assert [x.split()[1] for x in check("-q", "--select", "cut-graph")[1]] == ["cut-graph"]
    assert [x.split()[1] for x in check("-q", "--ignore", "cut-graph")[1]] == ["freed-graph"]
    (folder / "pyproject.toml").write_text('[tool.gradfix]\nper-file-ignores = {"a.*" = ["freed-graph"]}\n')
    assert [x.split()[1] for x in check("-q")[1]] == ["cut-graph"]


def test_every_file_has_the_configuration_nearest_to_it(folder, check):
    write(folder, a=FAULT, sub__b=FAULT, sub__c=FAULT, sub__deep__d=FAULT)
    (folder / "sub" / "gradfix.toml").write_text('ignore = ["freed-graph"]\nexclude = ["c.py"]\n')
    (folder / "sub" / "deep" / "gradfix.toml").write_text("")
    assert [x.split(":")[0] for x in check("-q")[1]] == ["a.py", "sub/deep/d.py"]
    assert len(check("-q", "--isolated")[1]) == 4
    assert check("-q", "--config", "ignore = ['freed-graph']")[:2] == (0, [])


def test_evidence(folder, check):
    write(folder, a="loss.backward()  #! freed-graph likely\n")
    assert check() == (0, ["No faults found. 1 fault only likely: --evidence likely shows it."], "")
    code, out, _ = check("--evidence", "likely")
    assert (code, out[0]) == (1, "a.py:1:1: freed-graph error (likely): it is wrong")


def test_notes(folder, check):
    write(folder, a="x.data, x.backward  #! data-attribute\n")
    assert check() == (0, ["No faults found. 1 note not shown: --notes shows it."], "")
    code, out, _ = check("--notes")
    assert code == 0
    assert out == [
        "a.py:1:1: data-attribute note: it is wrong",
        "Found 1 note.",
    ]


def test_exit_zero_and_statistics(folder, check):
    write(folder, a=FAULT * 2 + "x.backward  #! cut-graph\n")
    assert check("--exit-zero")[0] == 0
    code, out, _ = check("--statistics", "-q")
    assert (code, out) == (1, ["2  freed-graph (error)", "1  cut-graph (error)"])
    assert check("--statistics", "--output-format", "json")[0] == 2


def test_a_fault_in_a_shared_file_is_told_once(folder, check):
    write(
        folder, main="import models\nx.backward\n", other="import models\nx.backward\n", models="x\n" + FAULT
    )
    assert [line.split(" ")[0] for line in check("-q")[1]] == ["models.py:2:1:"]
    assert [line.split(" ")[0] for line in check("-q", "main.py")[1]] == ["models.py:2:1:"]


def test_suppressed_where_it_is_reported(folder, check):
    write(
        folder,
        main="import models\nx.backward\n",
        models=FAULT.rstrip() + "  # gradfix: ignore[freed-graph]\n",
    )
    assert check("-q", "main.py")[:2] == (0, [])
    assert check("-q")[:2] == (0, [])


def test_idle_comments_are_notes_and_wrong_ones_warnings(folder, check):
    write(folder, a="x = 1  # gradfix: ignore[freed-graph]\n", b="y  # gradfix: ignore[freed-grph]\n")
    code, out, _ = check("-q", "a.py")
    assert (code, out) == (0, ["a.py:1:8: unused-ignore note: nothing is ignored here"])
    assert check("-q", "a.py", "--ignore", "unused-ignore")[1] == []
    code, out, _ = check("-q", "b.py")
    assert (code, out[0]) == (
        1,
        "b.py:1:4: unused-ignore warning: there is no kind 'freed-grph'; did you mean freed-graph?",
    )


def test_a_comment_is_not_called_idle_where_the_reading_is_not_whole(folder, check):
    write(folder, a="x = 1  # gradfix: ignore[freed-graph] UNREACHED\n")
    assert check("-q")[:2] == (0, [])


def test_one_bad_file_is_one_problem_and_the_others_are_checked(folder, check):
    write(folder, a=FAULT, b="def f(x.backward:\n", c="x.backward  # UNREADABLE\n", z=FAULT)
    (folder / "d.py").write_bytes(b"x.backward = '\xff'\n")
    (folder / "e.py").write_bytes(b"x.backward\0\n")
    (folder / "f.py").write_bytes(b"# coding: none-such\nx.backward\n")
    os.symlink("g.py", folder / "g.py")
    (folder / "h.ipynb").write_text('{".backward": 1}')
    code, out, err = check("-q", ".", "g.py", "gone.py")
    assert (code, [line.split(":")[0] for line in out]) == (2, ["a.py", "z.py"])
    said = [line for line in err.splitlines() if line.startswith("gradfix: ")]
    assert [re.sub(r"gradfix: (\S+?):.*", r"\1", line) for line in said] == [
        *("b.py", "c.py", "d.py", "e.py", "f.py", "h.ipynb", "g.py", "gone.py")
    ]
    assert "gradfix: c.py:3: it is odd" in said
    assert check("--exit-zero", "gone.py")[0] == 2


@pytest.mark.parametrize(
    "raw", [b"def f(:\n", b"x = 1\0\n", b"x = '\xff'\n", b"# coding: none-such\n", b"# A title\n\nIt is.\n"]
)
def test_what_is_no_python_is_told_where_it_was_asked_for_by_name(folder, check, raw):
    """In a folder, a file without a word of ours is passed over as it is."""
    write(folder, a=FAULT)
    (folder / "b.py").write_bytes(raw)
    code, out, err = check("-q", "b.py", "a.py", "b.py")
    assert (code, len(out), err.count("gradfix: b.py")) == (2, 1, 1)
    assert check("-q")[::2] == (1, "")


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"a text\n", b"\x89PNG\r\n\x00\xff"])
def test_a_notebook_that_is_none_is_told_once(folder, check, raw):
    write(folder, a=FAULT)
    (folder / "n.ipynb").write_bytes(raw)
    code, out, err = check("-q", ".", "n.ipynb")
    assert (code, [line.split(":")[0] for line in out]) == (2, ["a.py"])
    assert [line.split(":")[:2] for line in err.splitlines()] == [["gradfix", " n.ipynb"]]


def test_notebooks_without_a_fault_are_not_told(folder, check):
    (folder / "new.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    (folder / "old.ipynb").write_text('{"worksheets": [{"cells": []}], "metadata": {}, "nbformat": 3}')
    assert check("-q") == (0, [], "")


def test_a_notebook_of_format_3_is_told_where_it_was_asked_for_by_name(folder, check):
    (folder / "old.ipynb").write_text('{"worksheets": [{"cells": []}], "metadata": {}, "nbformat": 3}')
    sentence = "gradfix: old.ipynb: this is not a notebook of format 4 (it has no cells)\n"
    assert check("-q", "old.ipynb") == check("-q", ".", "old.ipynb") == (2, [], sentence)


def test_a_folder_that_cannot_be_read(folder, check, monkeypatch):
    write(folder, a=FAULT, sub__b=FAULT)
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    code, out, err = check("-q")
    assert (code, len(out), err) == (2, 1, "gradfix: sub: can't be read (permission denied)\n")


def test_a_file_that_kills_its_process_is_one_problem(folder, check):
    write(folder, **{f"f{n}": "CRASH x.backward\n" if n == 4 else FAULT for n in range(9)})
    code, out, err = check("-q", "-j", "2")
    assert (code, len(out)) == (2, 8)
    assert err == "gradfix: f4.py: reading it ended the process that did; it was left out\n"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_fault_of_our_own_costs_one_file_and_is_said(folder, check, jobs):
    write(folder, **{f"f{n}": "BUG x.backward\n" if n == 4 else FAULT for n in range(9)})
    code, out, err = check("-q", "-j", jobs)
    assert (code, len(out)) == (2, 8)
    said, *trace = err.splitlines()
    assert said.startswith(
        "gradfix: f4.py: a fault of gradfix's own, so it was left out; please report it: KeyError: 'bug' ("
    )
    assert any('raise KeyError("bug")' in line for line in trace)


def test_an_empty_folder_has_no_faults(folder, check):
    assert check() == (0, ["No faults found."], "")


def test_asked_jobs_count_where_a_system_has_no_affinity(monkeypatch, tmp_path):
    seen = []
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(commands, "report", lambda asked, *_: seen.append(asked.jobs) or 0)
    call([str(tmp_path)], jobs=3)
    call([str(tmp_path)])
    assert seen == [3, os.cpu_count()]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_cache(folder, check, reader, jobs):
    files = {f"f{n}": FAULT for n in range(7)}
    write(folder, **files, main="import lib\nx.backward\n", lib="x = 2\n")
    first = check("-j", jobs)
    assert len(reader.asked) == 8, "each once"
    assert check("-j", jobs) == first
    assert reader.asked == []
    write(folder, f3=FAULT + "\n")
    check()
    assert reader.asked == ["f3.py"]
    write(folder, lib=FAULT)
    _, out, _ = check("-q")
    assert reader.asked == ["lib.py", "main.py"]
    assert sum(line.startswith("lib.py") for line in out) == 1
    check("--ignore", "cut-graph")
    assert len(reader.asked) == 9
    check("--no-cache")
    assert len(reader.asked) == 9
    assert (folder / ".gradfix_cache" / ".gitignore").read_text().endswith("*\n")


def test_what_comes_from_the_cache_is_what_was_found(folder, check):
    write(
        folder,
        a=FAULT + "x.data  #! data-attribute\n",
        b="x  # gradfix: ignore\n",
        c=".backward #! cut-graph likely\n",
    )
    for words in (
        ["--output-format", "json"],
        ["--output-format", "full"],
        ["--notes", "--evidence", "likely"],
    ):
        assert check(*words) == check(*words)


def test_a_cache_that_somebody_else_wrote_is_no_cache(folder, check, reader):
    write(folder, a=FAULT)
    first = check()
    (file,) = (folder / ".gradfix_cache").glob("*/*.json")
    for text in ("{", "[]", '{"PATH": 3}', '{"PATH": {"digest": "x"}}', '{"PATH": {"diagnoses": 4}}'):
        value = text.replace("PATH", str(folder / "a.py"))
        whole = (
            json.loads(file.read_text())[str(folder / "a.py")]["digest"]
            if "{" in file.read_text()[1:]
            else ""
        )
        file.write_text(value.replace('"x"', f'"{whole}", "diagnoses": [1]'))
        assert check() == first
    assert check("--cache-dir", "elsewhere") == first
    assert (folder / "elsewhere").is_dir()
    (folder / "file").write_text("")
    assert check("--cache-dir", "file/below") == first


def test_json(folder, check):
    write(folder, a=FAULT, b="(x.backward\n")
    code, out, _ = check("--output-format", "json")
    value = json.loads("\n".join(out))
    jsonschema.validate(value, SCHEMA)
    (found,) = value["diagnostics"]
    assert (found["path"], found["evidence"], found["status"]) == ("a.py", "certain", "left")
    assert [p["path"] for p in value["problems"]] == ["b.py"]
    assert code == 2


def test_full(folder, check):
    write(folder, a=FAULT)
    _, out, _ = check("--output-format", "full")
    assert out[0] == "error[freed-graph]: it is wrong"
    assert "1 │ loss.backward()  #! freed-graph" in out[2]
    assert out[-1] == "Found 1 fault. To try cures and prove them: gradfix fix a.py"
    write(folder, a="x.data, x.backward  #! data-attribute\n")
    _, out, _ = check("--output-format", "full", "--notes")
    assert any("help: data-to-detach (untried)" in line for line in out)


class Bytes(io.BytesIO):
    @property
    def buffer(self):
        return self


def test_standard_input(folder, check, monkeypatch):
    (folder / "src").mkdir()
    (folder / "src" / "gradfix.toml").write_text('ignore = ["freed-graph"]')
    monkeypatch.setattr(sys, "stdin", Bytes(STDIN.encode()))
    assert check("-", "-q")[1] == ["<stdin>:1:1: freed-graph error: it is wrong"]
    monkeypatch.setattr(sys, "stdin", Bytes(STDIN.encode()))
    assert check("-", "-q", "--stdin-filename", "src/x.py")[:2] == (0, [])
    monkeypatch.setattr(sys, "stdin", Bytes(b"x.backward = '\xff'"))
    assert check("-", "-q")[0] == 2
    assert check("-", "a.py")[0] == 2


def test_named_files_are_excluded_on_demand(folder, check):
    write(folder, a=FAULT, old__b=FAULT)
    assert len(check("-q", "--exclude", "old/")[1]) == 1
    assert len(check("-q", "--exclude", "old/", "a.py", "old/b.py")[1]) == 2
    assert len(check("-q", "--exclude", "old/", "--force-exclude", "a.py", "old/b.py")[1]) == 1
