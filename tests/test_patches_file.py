"""The patch file: what is written, and what is refused."""

import codecs
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import made
import pytest
from test_cli import fake, gradfix

from gradfix.patches import file, make
from gradfix.patches.file import PatchError
from gradfix.patches.fit import Text, places

__all__ = ["fake"]
ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "gradfix/patches/schema.json").read_text())


def written(tmp_path: Path) -> dict:
    path = tmp_path / "gan.py"
    path.write_text(made.GAN)
    return json.loads(file.dumps(make.of_results([made.cured(path)], tmp_path, pytest.fail)))


def test_what_a_fix_says_of_itself(tmp_path):
    value = written(tmp_path)
    jsonschema.validate(value, SCHEMA)
    (fix,) = value["fixes"]
    assert (fix["entry"], fix["verdict"], fix["cures"][0]["line"]) == ("gan.py", "intended", 14)
    assert fix["measured"] == {"cosine": 0.99981}
    assert "+    lossG = loss(g)" in fix["diff"]
    (hunk,) = fix["files"][0]["hunks"]
    assert (hunk["line"], hunk["old"], hunk["new"]) == (15, ["    lossG = d"], ["    lossG = loss(g)"])
    assert hunk["before"][-1] == "    optimD.step()"
    assert hunk["names"] == {"d": "block", "g": "block", "loss": "file", "lossG": "block"}


def test_faults_that_a_reader_sees():
    case = ROOT / "fixtures/recompute_after_step/shared_score"
    old, new = ((case / name).read_text() for name in ("before.py", "after.py"))
    here = str(case / "before.py")
    assert make.shown(case / "before.py", {here: old}, {here: new}).faults["stale-saved-tensor"] == (1, 0)


def test_there_and_back(tmp_path):
    text = json.dumps(written(tmp_path)).encode()
    assert json.loads(file.dumps(file.loads(text))) == written(tmp_path)


def test_context_grows_until_no_other_place_fits():
    block = "for x in data:\n    loss = f(x)\n    loss.backward()\n    opt.step()\n    print(loss)\n"
    old = f"first = 1\na = 1\nb = 2\n{block}\nsecond = 2\nc = 1\nd = 2\ne = 3\n{block}\nlast = 3\n"
    new = old.replace("    loss.backward()", "    loss.backward(retain_graph=True)", 1)
    (hunk,) = make.file_patch("x.py", old, new).hunks
    other = max(p.score for p in places(hunk, Text(old)) if p.start != hunk.line - 1)
    assert "a = 1" in hunk.before
    assert other == pytest.approx(hunk.alike, abs=1e-3)
    assert other < 0.7


def test_a_byte_order_mark_is_no_part_of_it(tmp_path):
    text = json.dumps(written(tmp_path)).encode()
    assert file.loads(codecs.BOM_UTF8 + text) == file.loads(text)


def test_numbers_that_json_lacks_are_words(tmp_path):
    path = tmp_path / "gan.py"
    path.write_text(made.GAN)
    result = made.cured(path)
    result.diagnoses[0].cures[0].verdict.measured["cosine"] = float("nan")
    text = file.dumps(make.of_results([result], tmp_path, pytest.fail))
    assert json.loads(text)["fixes"][0]["measured"] == {"cosine": "nan"}


@pytest.mark.parametrize(
    "path",
    ["/etc/x.py", "../x.py", "a/../../x.py", "./x.py", "a//x.py", "", ".git/x.py", "a\\x.py", "C:x.py", "x.sh",
     "a\nb.py", "a\0.py", ".", "a\x9bb.py", "a\x7fb.py"],
)  # fmt: skip
def test_a_path_that_leads_out_is_refused(tmp_path, path):
    value = written(tmp_path)
    value["fixes"][0]["files"][0]["path"] = path
    with pytest.raises(PatchError, match="it names"):
        file.loads(json.dumps(value).encode())


def _set(*keys, to):
    def change(value):
        for key in keys[:-1]:
            value = value[key]
        if to is None:
            del value[keys[-1]]
        else:
            value[keys[-1]] = to

    return change


HUNK = ("fixes", 0, "files", 0, "hunks", 0)


@pytest.mark.parametrize(
    "change",
    [
        _set("version", to=1),
        _set("version", to=True),
        _set("format", to="other"),
        _set("made", to=[]),
        _set("more", to=1),
        _set("fixes", to=None),
        _set("fixes", to={}),
        _set("fixes", 0, "verdict", to="fine"),
        _set("fixes", 0, "faults", to={"x": [1]}),
        _set("fixes", 0, "faults", to={"x": [1, "2"]}),
        _set(*HUNK, "old", to="lines"),
        _set(*HUNK, "old", to=["two\nlines"]),
        _set(*HUNK, "new", to=["a\0b"]),
        _set(*HUNK, "new", to=["    lossG = d"]),
        _set(*HUNK, "before", to=["x"] * 3_000),
        _set(*HUNK, "line", to=0),
        _set(*HUNK, "line", to=True),
        _set(*HUNK, "alike", to=2),
        _set(*HUNK, "names", to={"x": "wherever"}),
        _set(*HUNK, "cell", to="1"),
        _set("fixes", 0, "reading", to={"x": [1]}),
        _set("fixes", 0, "files", 0, "flow", "before", "order", to=["x"] * 6_000),
        _set("fixes", 0, "files", 0, "flow", "after", "readers", to=[["x"]]),
        _set("fixes", 0, "files", 0, "flow", "names", to="x"),
    ],
)
def test_what_is_no_patch_is_refused(tmp_path, change):
    value = written(tmp_path)
    change(value)
    with pytest.raises(PatchError):
        file.loads(json.dumps(value).encode())


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b"[" * 100_000, b"null", b'{"a": NaN}', b"1" * 10_000])
def test_nonsense_is_refused(raw):
    with pytest.raises(PatchError):
        file.loads(raw)


def test_a_file_is_not_named_twice(tmp_path):
    value = written(tmp_path)
    value["fixes"][0]["files"] *= 2
    with pytest.raises(PatchError, match="twice"):
        file.loads(json.dumps(value).encode())


def test_one_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "p.json"
    path.touch()
    os.truncate(path, file.LARGEST + 1)
    with pytest.raises(PatchError, match="larger"):
        file.load(path)


def test_fix_writes_one(fake, capsys):
    assert gradfix("fix", "gan.py", "--output-patch", "p.json", "--write") == 0
    jsonschema.validate(json.loads(Path("p.json").read_text()), SCHEMA)
    assert "1 fix in p.json" in capsys.readouterr().err


def test_what_no_patch_can_name_leaves_the_others(fake, capsys):
    Path("two\nlines.py").write_text(made.GAN)
    assert gradfix("fix", "two\nlines.py", "gan.py", "--output-patch", "p.json") == 2
    assert [fix.entry for fix in file.load(Path("p.json")).fixes] == ["gan.py"]
    err = capsys.readouterr().err
    assert "1 fix in p.json" in err
    assert "p.json lacks a fix: it names 'two\\nlines.py', which is no path" in err


@pytest.mark.parametrize("at", ["odd\tname.py", "../elsewhere.py"])
def test_a_fault_in_a_file_that_no_patch_can_name(tmp_path, at):
    (tmp_path / "here").mkdir()
    path = tmp_path / "here/gan.py"
    path.write_text(made.GAN)
    result = made.cured(path)
    (diagnosis,) = result.diagnoses
    labels = made.stale(Path(os.path.normpath(path.parent / at))).labels
    elsewhere = replace(diagnosis, conflict=replace(diagnosis.conflict, labels=labels))
    left: list[str] = []
    patch = make.of_results([replace(result, diagnoses=(elsewhere,))], path.parent, left.append)
    assert not patch.fixes
    assert "it names" in left[0]


def test_fix_without_a_cure_writes_an_empty_one(fake, capsys):
    fake.make = made.left
    assert gradfix("fix", "gan.py", "--output-patch", "p.json") == 1
    assert json.loads(Path("p.json").read_text())["fixes"] == []
    assert "There was no fix to write: p.json is a patch without any.\n" in capsys.readouterr().err


def test_fix_says_where_it_could_not_write(fake, capsys):
    fake.make = None  # nothing runs
    assert gradfix("fix", "gan.py", "--output-patch", "nowhere/p.json") == 2
    assert "nowhere/p.json: can't be written (no such file or directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gan.py", "names the script itself"),
        ("link.py", "names the script itself"),
        ("hard.py", "it is there already, and is no patch of gradfix's"),
        ("notes.txt", "it is there already, and is no patch of gradfix's"),
        ("other.json", "it is there already, and is no patch of gradfix's"),
        ("empty.py", "it is there already, and is no patch of gradfix's"),
        ("folder", "it is not a regular file"),
        ("x" * 300, "can't be written (file name too long)"),
    ],
)
@pytest.mark.parametrize("format_", ["full", "json"])
def test_fix_overwrites_nothing_else(fake, capsys, name, said, format_):
    Path("link.py").symlink_to("gan.py")
    Path("hard.py").hardlink_to("gan.py")
    Path("notes.txt").write_text("mine")
    Path("other.json").write_text('{"format": "other"}')
    Path("empty.py").touch()
    Path("folder").mkdir()
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    fake.make = None  # nothing runs
    assert gradfix("fix", "gan.py", "--write", "--output-patch", name, "--output-format", format_) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert format_ == "full" or said in json.loads(out)["problems"][0]["message"]
    assert {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()} == before


def test_fix_does_not_write_over_what_comes_in(fake, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(made.GAN.encode())))
    assert gradfix("fix", "-", "--stdin-filename", "new.py", "--output-patch", "new.py") == 2
    assert "names the script itself" in capsys.readouterr().err
    assert not Path("new.py").exists()


@pytest.mark.parametrize("version", [1, 99])
def test_fix_writes_over_an_older_patch(fake, version):
    Path("p.json").write_text(json.dumps({"format": "gradfix-patch", "version": version}))
    assert gradfix("fix", "gan.py", "--output-patch", "p.json") == 1
    assert len(json.loads(Path("p.json").read_text())["fixes"]) == 1
