"""Conflicts made by hand from a piece of source, for tests of codemods without a recorded run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

from gradfix.codemod import Codemod, Proposal
from gradfix.detect import Conflict, Label
from gradfix.edit import Project
from gradfix.tape import AnyEvent, Backward, Mutate, Record, Ref, Site, Stack, Tape

PATH = "/project/train.py"


def printed_codemod() -> str:
    """The codemod that CONTRIBUTING.md prints, as a module."""
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    printed = re.search(r"^    from collections.*?(?=^\S)", text, re.M | re.S)
    assert printed
    return 'BEFORE = AFTER = ""\n' + dedent(printed[0])


def site(source: str, text: str, file: str = PATH, nth: int = 0) -> Site:
    """The span of the nth occurrence of `text`."""
    at = -1
    for _ in range(nth + 1):
        at = source.index(text, at + 1)
    line, start = source.count("\n", 0, at) + 1, source.rfind("\n", 0, at) + 1
    end = at + len(text)
    return Site(
        file, line, at - start, source.count("\n", 0, end) + 1, end - (source.rfind("\n", 0, end) + 1)
    )


def stale(
    source: str,
    write: str,
    *,
    saved: str = "",
    kind: str = "stale-saved-tensor",
    pattern: str = "write",
    how: str = "",
    op: str = "aten.mul_",
    output: bool = False,
    outer: Stack = (),
    leaf: bool = False,
) -> tuple[Conflict, Project]:
    """A tensor saved at `saved` (an input, or with `output` a result) and overwritten at `write`."""
    stack = (*outer, site(source, write))
    ref = Ref(1, 2, "", (3,), "float32")
    mutate = Mutate(5, stack, op, ref, counted=how == "", how=how)
    where = (*outer, site(source, saved)) if saved else stack
    record = Record(
        2, where, 0, "aten.exp", "ExpBackward0", (-2,) if leaf else (), (replace(ref, version=1),)
    )
    if output:
        record = replace(record, output=replace(ref, version=1))
    backward = Backward(9, stack, (0,), (0,))
    events: tuple[AnyEvent, ...] = (record, mutate, backward)
    labels = (Label("saved", record.stack, ""), Label("overwritten", stack, ""), Label("needed", stack, ""))
    conflict = Conflict(kind, "error", "", labels, 1, pattern, ref, record, mutate, backward)
    return conflict, Project(Tape(events), {PATH: source})


def answers(codemod: type[Codemod], case: tuple[Conflict, Project]) -> list[tuple[Proposal, str]]:
    """Every proposal with the text it makes of the file."""
    conflict, project = case
    found = sorted(codemod.cures(conflict, project), key=lambda p: p.rank)
    return [(p, project.apply(p.edits)[PATH]) for p in found]


def code(text: str) -> str:
    return dedent(text).lstrip("\n")


def changed(before: str, after: str) -> str:
    """The lines of `after` that `before` lacks, joined."""
    old = before.split("\n")
    return "\n".join(x.strip() for x in after.split("\n") if x not in old)
