"""The tape file: what is written is read back, and what is no tape is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradfix.tape import (
    AnyEvent,
    Backward,
    Clip,
    Cut,
    End,
    Failure,
    Free,
    GradWrite,
    Mutate,
    Note,
    Optimizer,
    Record,
    Ref,
    Site,
    Step,
    Tape,
    Zero,
    relocated,
)
from gradfix.tapefile import TapeError, format_tape, parse_tape, read_tape, write_tape

HEADER = '{"format":"gradfix-tape","version":2}\n'
OUTER = Site("/home/é/train.py", 3, 4, 3, 9)
INNER = Site("/home/é/net.py", 7, 0, 8, 2, "Net.forward")

numbers = st.integers(0, 5)
stacks = st.sampled_from([(), (OUTER,), (OUTER, INNER)])
shapes = st.lists(numbers, max_size=3).map(tuple)
refs = st.builds(
    lambda s, v, shape, counter: Ref(s, v, f"tensor{s}", shape, "float32", counter),
    numbers,
    numbers,
    shapes,
    st.none() | numbers,
)
many = st.lists(refs, max_size=3).map(tuple)
nodes = st.lists(st.integers(-3, 9), max_size=4).map(tuple)
words = st.text(max_size=6)
shares = st.lists(st.tuples(numbers, st.floats(0, 2)), max_size=2).map(tuple)


def events(time: int) -> st.SearchStrategy[AnyEvent]:
    at = (st.just(time), stacks)
    return st.one_of(
        st.builds(Record, *at, numbers, words, words, nodes, many, st.none() | refs),
        st.builds(Mutate, *at, words, refs, st.booleans(), words, st.none() | numbers, words, words),
        st.builds(Backward, *at, nodes, nodes, *(st.booleans(),) * 3, many, words, st.floats(0, 2), shares),
        st.builds(Free, *at, nodes),
        st.builds(Optimizer, *at, numbers, words, words, many),
        st.builds(Step, *at, numbers, many, many),
        st.builds(Zero, *at, many, st.none() | numbers),
        st.builds(GradWrite, *at, many, st.booleans()),
        st.builds(Clip, *at, many),
        st.builds(Cut, *at, words, refs, st.none() | numbers),
        st.builds(Failure, *at, words, words, words),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(st.integers(0, 6).flatmap(lambda n: st.tuples(*(events(t) for t in range(n)))))
def test_reads_what_it_wrote(some: tuple[AnyEvent, ...]) -> None:
    tape = Tape(
        (*some, End(len(some), (), "finished", 1.5)), "/home/é/train.py", "2.13", "3.11", {"a.py": "00"}
    )
    assert parse_tape(format_tape(tape)) == tape


def test_file(tmp_path: Path) -> None:
    tape = Tape((Free(1, (OUTER,), (2, 1)), End(2, (), "steps")))
    write_tape(tape, tmp_path / "run.tape")
    assert read_tape(tmp_path / "run.tape") == tape


def test_events_are_sorted_by_time() -> None:
    lines = [
        HEADER,
        '{"stack":0,"v":[]}\n',
        '{"e":"Free","t":9,"s":0,"nodes":[]}\n',
        '{"e":"End","t":4,"s":0,"how":"exit"}\n',
    ]
    assert [End(4, (), "exit"), Free(9, (), ())] == list(parse_tape(lines).events)


def test_names_come_late() -> None:
    tape = parse_tape(
        [
            HEADER,
            '{"stack":0,"v":[]}\n',
            '{"e":"Optimizer","t":1,"s":0,"optimizer":0,"kind":"SGD","refs":[[4,0,[2],"float32"]]}\n',
            '{"name":4,"v":"old"}\n',
            '{"optimizer":0,"v":"opt"}\n',
            '{"name":4,"v":"net.weight"}\n',
            '{"source":"/a.py","v":"ff"}\n',
        ]
    )
    assert (Optimizer(1, (), 0, "SGD", "opt", (Ref(4, 0, "net.weight", (2,), "float32"),)),) == tape.events
    assert tape.sources == {"/a.py": "ff"}


def test_cut_off() -> None:
    lines = [HEADER, '{"stack":0,"v":[]}\n', '{"e":"Free","t":1,"s":0,"nodes":[3]}\n', '{"e":"Fre']
    tape = parse_tape(lines)
    assert (Free(1, (), (3,)),) == tape.events
    assert not tape.complete


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not a gradfix tape"),
        ("import torch\n", "not a gradfix tape"),
        ("[]\n", "not a gradfix tape"),
        ('{"format":"other"}\n', "not a gradfix tape"),
        ('{"format":"gradfix-tape","version":99}\n', "version 99; this gradfix reads version 2"),
        (HEADER + "nonsense\n", "damaged after 0 events"),
        (HEADER + '{"e":"Nothing","t":1,"s":0}\n', "damaged after 0 events"),
        (HEADER + '{"e":"Free","t":1,"s":7,"nodes":[]}\n', "damaged after 0 events"),
        (HEADER + '{"stack":0,"v":[]}\n{"e":"Free","t":1,"s":0,"colour":1}\n', "not of this version"),
    ],
)
def test_what_is_no_tape(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "x.tape").write_text(text)
    with pytest.raises(TapeError, match=sentence):
        read_tape(tmp_path / "x.tape")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.tape").write_bytes(b"\x80\x02\xff\n")
    with pytest.raises(TapeError, match="not a gradfix tape"):
        read_tape(tmp_path / "x.tape")


def test_defaults_are_left_out() -> None:
    lines = [json.loads(line) for line in format_tape(Tape((Backward(1, (), (0,), (0,)),)))]
    assert lines[-1] == {"e": "Backward", "t": 1, "s": 0, "roots": [0], "nodes": [0]}


def test_whose_words_a_failure_speaks() -> None:
    ours = Failure(
        1, (), "RuntimeError", "element 0 of tensors does not require grad and does not have a grad_fn"
    )
    assert ours.autograd
    assert not Failure(1, (), "ValueError", "Target size must be the same as input size").autograd


def test_a_tape_made_elsewhere_speaks_of_the_files_here():
    there = (Site("/there/train.py", 3), Site("/there/models/gan.py", 7), Site("/lib/other.py", 1))
    tape = Tape((Note(1, there, "said"),), "/there/train.py", sources={"/there/models/gan.py": "abc"})
    moved = relocated(tape, Path("/here/deep/train.py"))
    assert [site.file for site in moved.events[0].stack] == [
        "/here/deep/train.py",
        "/here/deep/models/gan.py",
        "/lib/other.py",
    ]
    assert moved.sources == {"/here/deep/models/gan.py": "abc"}
    assert relocated(moved, Path("/here/deep/train.py")) is moved
