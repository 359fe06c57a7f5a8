"""Which of two candidates is the better cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from gradfix.codemod import Proposal
from gradfix.prove import Status, Verdict
from gradfix.verdict import HELD

ORDER: tuple[Status, ...] = ("proved", "preserved", "intended", "untried", "rejected")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal and the texts it makes, by absolute path, changed files only."""

    proposal: Proposal
    texts: Mapping[str, str]
    size: int  # characters that differ

    @property
    def promise(self) -> Promise:
        """What decides between it and another that is proved as well."""
        proposal = self.proposal
        return Promise(proposal.last_resort, proposal.rank, self.size, proposal.codemod)


@dataclass(frozen=True, slots=True, order=True)
class Promise:
    """What is known of a candidate before it has run; the least is the best."""

    last_resort: bool
    rank: int
    size: int
    codemod: str


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its verdict."""

    candidate: Candidate
    verdict: Verdict

    @property
    def merit(self) -> Merit:
        """What was measured about it, as what decides between it and another."""
        measured = self.verdict.measured
        zero, warnings = measured.get("zero", 0), measured.get("warnings", 0)
        return Merit(
            useless=self.verdict.status not in HELD,
            last_resort=self.candidate.proposal.last_resort,
            partial=bool(measured.get("remaining")),
            fresh=bool(measured.get("fresh")),
            zero=zero if isinstance(zero, int) else 0,
            warnings=warnings if isinstance(warnings, int) else 0,
            verdict=ORDER.index(self.verdict.status),
            promise=self.candidate.promise,
        )


@dataclass(frozen=True, slots=True, order=True)
class Merit:
    """What a proof came to, the gravest first; the least is the best."""

    useless: bool  # it cures nothing
    last_resort: bool  # behind all else that cures
    partial: bool  # one of a chain of faults, where another candidate cures them all
    fresh: bool  # it cuts off fresh gradients, where another cuts off old ones alone
    # parameters a loss reaches and gives nothing: where both sides of a ratio are made anew, zero may be the exact
    # gradient of what was written, and what trains more of the model is still the better cure
    zero: int
    warnings: int
    verdict: int
    promise: Promise

    @property
    def flawless(self) -> bool:
        """Whether it cures all there is to cure and spoils nothing."""
        return not (
            self.useless or self.last_resort or self.partial or self.fresh or self.zero or self.warnings
        )


def changed(old: str, new: str) -> int:
    """How many characters of the lines that differ there are, on both sides."""
    a, b = old.splitlines(), new.splitlines()
    return sum(
        sum(map(len, a[i:j])) + sum(map(len, b[k:m]))
        for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if tag != "equal"
    )
