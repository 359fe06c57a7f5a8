"""Two cures at once, where neither helps alone: of one fault that comes about in two ways, and of a fault that hid
another."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import libcst as cst

from gradfix.codemod import Proposal
from gradfix.edit import Project, targets
from gradfix.merit import Candidate, Tried, changed


def candidate_of(proposal: Proposal, texts: Mapping[str, str], project: Project) -> Candidate:
    """A proposal with the texts it makes of the project's."""
    size = sum(changed(project.files[path], text) for path, text in texts.items())
    return Candidate(proposal, texts, size)


def paired(tried: Sequence[Tried], project: Project) -> Iterator[Candidate]:
    """Two cures of a fault that comes about through several values (a state and a sum of losses), where each leaves
    only what the other cures: both at once."""
    stuck = [(t.candidate.proposal, still) for t in tried if (still := _still(t))]
    for (one, left), (other, more) in combinations(stuck, 2):
        if left & more or one.effect.kind != other.effect.kind:
            continue
        done = {id(node) for edits in one.edits.values() for edit in edits for node in targets(edit)}
        edits = dict(one.edits)
        for path, some in other.edits.items():
            new = (e for e in some if done.isdisjoint(map(id, targets(e))))
            edits[path] = (*edits.get(path, ()), *new)
        said, rank = f"{one.summary}, and {other.summary}", one.rank + other.rank
        texts = project.apply(edits)
        if all(map(parses, texts.values())):
            both = replace(one, summary=said, edits=edits, rank=rank, idea="")
            yield candidate_of(both, texts, project)


def _still(tried: Tried) -> frozenset[tuple[str, int]]:
    """Where the values are made through which the fault comes about still."""
    found = tried.verdict.measured.get("still")
    return frozenset((file, line) for file, line in found) if isinstance(found, list) else frozenset()


def uncovering(tried: Sequence[Tried]) -> Iterator[tuple[Tried, list[object]]]:
    """The cures after which another fault shows, with [its kind, its file and line in the texts they make]."""
    for each in tried:
        found = each.verdict.measured.get("uncovered")
        if isinstance(found, list):
            yield each, found


def with_second(first: Tried, others: Iterable[Candidate], project: Project) -> Iterator[Candidate]:
    """The cure with each of `others`, which are made of its own texts and mean to change nothing in the training."""
    one = first.candidate
    for other in others:
        if other.proposal.effect.kind != "none":
            continue
        texts = {**one.texts, **other.texts}
        said = f"{one.proposal.summary}, and {other.proposal.summary}"
        both = replace(one.proposal, summary=said, rank=one.proposal.rank + other.proposal.rank, idea="")
        yield candidate_of(both, texts, project)


def parses(text: str) -> bool:
    """Whether libcst and Python can read a text."""
    try:
        cst.parse_module(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the text has said before: `x is "conv"`
            compile(text, "candidate", "exec", dont_inherit=True)
    except (cst.ParserSyntaxError, SyntaxError, ValueError):
        return False
    return True
