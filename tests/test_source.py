"""Bytes in, text out, and back: what a person would notice about their files."""

import codecs
import os
import stat

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradfix import source
from gradfix.edit import Insert, View, exchange
from gradfix.source import Source, SourceError, split_lines, write

calm = settings(deadline=None, max_examples=60)
LINES = st.lists(
    st.text(alphabet="abé=1 #\tß日\u0301😀'\f\u2028", max_size=12).map(lambda x: x.rstrip("\f")), max_size=12
)
ENDINGS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def files(draw):
    text = "".join(line + draw(ENDINGS) for line in draw(LINES)) + draw(st.sampled_from(["", "x = 1"]))
    return draw(st.sampled_from([b"", codecs.BOM_UTF8])) + text.encode()


@calm
@given(files())
def test_unchanged_text_gives_the_same_bytes(raw):
    read = Source.decode("a.py", raw)
    assert raw == read.encode(read.text)
    assert "\r" not in read.text


@calm
@given(files(), st.integers(0, 20))
def test_an_inserted_line_changes_nothing_else(raw, where):
    read = Source.decode("a.py", raw)
    lines = read.text.split("\n")
    where = min(where, len(lines) - 1)
    edited = read.encode("\n".join([*lines[:where], "INSERTED = 1", *lines[where:]]))
    cut = b"INSERTED = 1"
    before, after = edited.split(cut, 1)
    ending = next(e for e in (b"\r\n", b"\r", b"\n") if after.startswith(e))
    again = before + after[len(ending) :]
    # a lone \r before an inserted \n ending would have become one ending: compare as Python reads them
    assert Source.decode("a.py", again).text == read.text
    assert ending.decode() in raw.decode() or ending == b"\n"


@calm
@given(files())
def test_an_edit_keeps_every_other_byte(raw):
    read = Source.decode("a.py", raw)
    try:
        view = View("a.py", read.text)
    except cst.ParserSyntaxError:
        return
    assert read.text == view.apply(())
    added = cst.parse_statement("added = 1")
    for statement in view.module.body:
        edited = read.encode(view.apply([Insert(statement, after=(added,))]))
        before, after = edited.split(b"added = 1")
        ending = next((e for e in (b"\r\n", b"\r", b"\n") if after.startswith(e)), b"")
        left = Source.decode("a.py", before + after[len(ending) :])
        assert left.text.rstrip("\n") == read.text.rstrip("\n")


@pytest.mark.parametrize("tail", ["\n\n   \n", "\n \f\n\n\t\n\n", "\n\n  # end\n\n  "])
def test_what_stands_at_the_end_stays(tail):
    view = View("a.py", f"x = 1\ny = 2{tail}")
    new = cst.parse_statement("y = 3").body[0]
    assert view.apply([exchange(view.module.body[1].body[0], new)]) == f"x = 1\ny = 3{tail}"


@pytest.mark.parametrize(
    ("raw", "encoding", "text"),
    [
        (b"x = 1\n", "utf-8", "x = 1\n"),
        (codecs.BOM_UTF8 + b"x = 1\r\n", "utf-8", "x = 1\n"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "iso-8859-1", "# -*- coding: latin-1 -*-\nx = 'é'\n"),
        (b"#!/bin/python\r# vim: set fileencoding=gbk :\r'\xc4\xe3'", "gbk", None),
        (b"", "utf-8", ""),
    ],
    ids=["plain", "bom_crlf", "latin1", "cookie_after_a_lone_cr", "empty"],
)
def test_encodings(raw, encoding, text):
    read = Source.decode("a.py", raw)
    assert encoding == read.encoding
    assert text is None or text == read.text
    assert raw == read.encode(read.text)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"x = 1\ny = '\xff'\n", "a.py:2: byte 0xff is not utf-8"),
        (b"# coding: klingon\n", "unknown encoding: klingon"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", "encoding problem"),
        (b"# coding: rot13\nk = 1\n", "unknown encoding: rot13"),
        (b"x\0y\n", "a.py:1: holds a null byte"),
    ],
    ids=["bad_byte", "unknown_cookie", "bom_against_cookie", "no_text_encoding", "null"],
)
def test_undecodable_bytes_are_a_sentence(raw, sentence):
    with pytest.raises(SourceError) as caught:
        Source.decode("a.py", raw)
    assert sentence in caught.value.sentence


def test_of_a_very_long_line_only_what_stands_around_the_mistake_is_shown():
    with pytest.raises(SourceError) as caught:
        source.check_syntax(f"x = [{'1, ' * 5000}2 3, {'4, ' * 5000}]\n", "a.py")
    line, marks = caught.value.detail.split("\n")
    assert len(line) < 130
    assert line[marks.index("^") :].startswith("2 3, 4")


def test_a_syntax_error_has_file_line_and_caret():
    with pytest.raises(SourceError) as caught:
        Source.decode("a.py", "x = 1\n\tif 日本 == ):\n".encode()).check()
    assert caught.value.sentence.startswith("a.py:2:")
    with pytest.raises(SourceError) as caught:
        Source.decode("a.py", "名 = (1, ]\n".encode()).check()
    assert caught.value.detail.split("\n") == ["1 | 名 = (1, ]", "  |          ^"]


@pytest.mark.parametrize("raw", [b"", b"\n\n  \n", codecs.BOM_UTF8])
def test_an_empty_file_is_a_sentence(raw):
    with pytest.raises(SourceError, match="is empty"):
        Source.decode("a.py", raw).check()


def test_newer_grammar_than_ours_is_left_to_the_users_interpreter():
    Source.decode("a.py", b"type Pair = tuple[int, int]\n").check()


def test_lines_are_those_of_the_tokenizer():
    assert split_lines("a\fb\r\nc\u2028d\r\re") == ["a\fb", "c\u2028d", "", "e"]


def test_a_character_the_encoding_lacks_is_refused():
    read = Source.decode("a.py", b"# coding: latin-1\nx = 1\n")
    with pytest.raises(SourceError, match=r"a\.py:2: the new text holds '€'"):
        read.encode("# coding: latin-1\nx = '€'\n")


def test_pipes_are_sentences(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(SourceError, match="not a regular file"):
        Source.read(tmp_path / "pipe.py")
    with pytest.raises(SourceError, match="no such file"):
        Source.read(tmp_path / "gone.py")


def test_write_keeps_mode_symlink_endings_and_leaves_nothing_behind(tmp_path):
    real = tmp_path / "real.py"
    real.write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\r\n")
    real.chmod(0o751)
    link = tmp_path / "link.py"
    link.symlink_to(real)
    write({str(link): ("x = 1\ny = 2\n", "x = 1\nz = 0\ny = 2\n")})
    assert real.read_bytes() == b"\xef\xbb\xbfx = 1\r\nz = 0\r\ny = 2\r\n"
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o751
    assert {"real.py", "link.py"} == {p.name for p in tmp_path.iterdir()}


def test_a_file_that_changed_is_not_overwritten_nor_any_other(tmp_path):
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("a = 1\n")
    b.write_text("b = 2\n")
    with pytest.raises(SourceError, match="has changed"):
        write({str(a): ("a = 1\n", "a = 9\n"), str(b): ("b = 1\n", "b = 9\n")})
    assert (a.read_text(), b.read_text()) == ("a = 1\n", "b = 2\n")
    assert {"a.py", "b.py"} == {p.name for p in tmp_path.iterdir()}


@pytest.mark.parametrize("what", ["file", "directory"])
def test_read_only_is_a_sentence(tmp_path, what):
    a = tmp_path / "a.py"
    a.write_text("a = 1\n")
    target = a if what == "file" else tmp_path
    target.chmod(0o444 if what == "file" else 0o555)
    try:
        with pytest.raises(SourceError, match="read-only"):
            write({str(a): ("a = 1\n", "a = 2\n")})
    finally:
        target.chmod(0o755)
    assert a.read_text() == "a = 1\n"


def test_a_failure_half_way_puts_the_first_file_back(tmp_path, monkeypatch):
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("a = 1\n")
    b.write_text("b = 1\n")
    replace = os.replace

    def full(temporary, real):
        if real.name == "b.py":
            raise OSError(28, "No space left on device", str(real))
        replace(temporary, real)

    monkeypatch.setattr(source.os, "replace", full)
    with pytest.raises(SourceError, match="no space left"):
        write({str(a): ("a = 1\n", "a = 2\n"), str(b): ("b = 1\n", "b = 2\n")})
    assert (a.read_text(), b.read_text()) == ("a = 1\n", "b = 1\n")
    assert {"a.py", "b.py"} == {p.name for p in tmp_path.iterdir()}


def test_an_interrupt_half_way_puts_the_first_file_back(tmp_path, monkeypatch):
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("a = 1\n")
    b.write_text("b = 1\n")
    replace = os.replace

    def interrupted(temporary, real):
        if real.name == "b.py":
            raise KeyboardInterrupt
        replace(temporary, real)

    monkeypatch.setattr(source.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write({str(a): ("a = 1\n", "a = 2\n"), str(b): ("b = 1\n", "b = 2\n")})
    assert (a.read_text(), b.read_text()) == ("a = 1\n", "b = 1\n")


@pytest.mark.parametrize(
    ("raw", "newline"), [(b"a\r\nb\n", "\r\n"), (b"a\rb", "\r"), (b"a\n", "\n"), (b"", "\n")]
)
def test_the_line_ending_of_new_text_is_the_first_of_the_file(raw, newline):
    assert Source.decode("a.py", raw).newline == newline
