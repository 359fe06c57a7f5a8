"""Which codemods may answer a conflict, and which of their proposals is applied: the best measured one.

Apply, look again, in bounded rounds: a fault that hid behind another shows once the first is cured, and a proposal
that leaves the script worse is never applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice

from gradfix.codemod import Codemod, Proposal, codemods
from gradfix.detect import Conflict, Severity
from gradfix.edit import Project
from gradfix.merit import ORDER, Candidate, Promise, Tried
from gradfix.prove import Baseline, Prover, Status
from gradfix.together import candidate_of, paired, parses, uncovering, with_second
from gradfix.verdict import HELD

ROUNDS = 12  # more faults than that in one file are reported, and cured by the next call
PROPOSALS = 12  # per conflict: each costs a proof
PAIRS = 4  # of proposals for one conflict that cure it together
GRAVITY: tuple[Severity, ...] = ("error", "warning", "note")
MISGUESSED = (
    "AttributeError",
    "TypeError",
    "NameError",
    "UnboundLocalError",
)  # how a proposal fails that does not fit
SLOW = 20.0  # seconds of a run from which on alternatives are not worth their proof


@dataclass(frozen=True, slots=True)
class Round:
    """One conflict, what was tried for it (best first) and whether the first of them was applied."""

    conflict: Conflict
    tried: tuple[Tried, ...]
    applied: bool
    before: Mapping[str, str]  # every file's text before this round
    identity: tuple[str, str] = ("", "")  # of the conflict, whatever moves its lines


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the person asked to have cured, and by what."""

    asked: Callable[[Conflict, Mapping[str, str]], bool]  # with the texts it was found in
    codemods: Sequence[type[Codemod]] = field(default_factory=codemods)
    accept: tuple[Status, ...] = HELD
    granted: Callable[[Conflict, Mapping[str, str]], bool] = lambda _, __: False
    hinted: Callable[[Conflict, Mapping[str, str]], str] = lambda _, __: (
        ""
    )  # the codemod that held for a copy
    late: Callable[[], bool] = lambda: False  # whether no more proof is to be begun
    # files that a run of the texts came to, with their own, where it has met more of them
    met: Callable[[Baseline, Mapping[str, str]], Mapping[str, str]] = lambda _, files: files

    def accepts(self, conflict: Conflict, texts: Mapping[str, str]) -> tuple[Status, ...]:
        """The verdicts good enough to cure `conflict`, which was found in `texts`."""
        return (*self.accept, *HELD) if self.granted(conflict, texts) else self.accept


def candidates(
    conflict: Conflict, project: Project, mods: Iterable[type[Codemod]], stalled: Callable[[str], None]
) -> Iterator[Candidate]:
    """Every proposal for `conflict` as new texts, those that parse and are not alike: one text may be meant as another
    change of the training."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for proposal in _in_turn([mod.cures(conflict, project) for mod in mods]):
        texts = project.apply(proposal.edits)
        key = (proposal.effect.kind, tuple(sorted(texts.items())))
        if not texts or key in seen:
            continue
        seen.add(key)
        broken = next((path for path, text in texts.items() if not parses(text)), None)
        if broken is not None:
            stalled(f"{proposal.codemod} made {broken} unreadable; that proposal is dropped")
            continue
        yield candidate_of(proposal, texts, project)
        if len(seen) >= PROPOSALS:
            return


def _both(
    tried: Sequence[Tried], project: Project, baseline: Baseline, prover: Prover, wanted: Wanted
) -> list[Candidate]:
    """Where no cure helps alone: two at once."""
    pairs = [*islice(paired(tried, project), PAIRS)]
    if pairs or wanted.late():
        return pairs
    for first, laid_bare in islice(uncovering(tried), PAIRS):
        files = dict(project.files) | dict(first.candidate.texts)
        after = prover.baseline(files)
        new = [
            c
            for c in after.conflicts
            if [c.kind, c.at.file, c.at.line] == laid_bare and wanted.asked(c, files)
        ]
        for conflict in new[:1]:
            of_it = candidates(conflict, Project(after.tape, files), wanted.codemods, lambda _: None)
            pairs += islice(with_second(first, of_it, project), PAIRS)
    return pairs[: 2 * PAIRS]


def _in_turn(several: Sequence[Iterator[Proposal]]) -> Iterator[Proposal]:
    """One proposal of each codemod after the other: one with many ways leaves room for the others'."""
    waiting = list(several)
    while waiting:
        for some in tuple(waiting):
            proposal = next(some, None)
            if proposal is None:
                waiting.remove(some)
            else:
                yield proposal


def try_all(
    found: Sequence[Candidate],
    baseline: Baseline,
    conflict: Conflict,
    prover: Prover,
    files: Mapping[str, str],
    wanted: Wanted,
) -> tuple[Tried, ...]:
    """Prove every candidate, two at a time, and put the best first. What held for a copy of the fault is begun with,
    which tells only where time is over before all are proved: the others are dropped. Of a slow script they are proved
    in the order in which they would be chosen, and what can't come before one that is proved is not run."""
    hint = wanted.hinted(conflict, files)
    slow = baseline.outcome.seconds > SLOW
    best: list[Promise] = []
    carried_out: dict[tuple[str, str], int] = {}  # ideas, by the rank of what holds without a blemish

    def one(candidate: Candidate) -> Tried | None:
        idea, rank = _idea(candidate), candidate.proposal.rank
        if wanted.late() or (best and min(best) < candidate.promise):
            return None
        if idea is not None and carried_out.get(idea, rank) < rank:
            return None
        after = dict(files) | dict(candidate.texts)
        tried = Tried(candidate, prover.prove(baseline, after, candidate.proposal.effect, conflict))
        if tried.merit.flawless:
            if slow and tried.verdict.status == ORDER[0]:
                best.append(candidate.promise)
            if idea is not None:
                carried_out[idea] = min(rank, carried_out.get(idea, rank))
        return tried

    turn = list(range(len(found)))
    if slow:
        turn.sort(key=lambda n: found[n].promise)
    turn.sort(key=lambda n: found[n].proposal.codemod != hint)
    with ThreadPoolExecutor(2) as pool:
        proved = dict(zip(turn, pool.map(one, [found[n] for n in turn]), strict=True))
    tried = [t for n in range(len(found)) if (t := proved[n]) is not None]
    # two ways to do one thing, and two that read alike and measured alike, are one to the person; a guess at what a
    # name holds that was wrong is none
    alike: dict[tuple[str, ...], Tried] = {}
    for t in sorted(
        (t for t in tried if t.verdict.measured.get("failed") not in MISGUESSED), key=lambda t: t.merit
    ):
        proposal, verdict = t.candidate.proposal, t.verdict
        read = (proposal.codemod, proposal.summary, verdict.status, verdict.reason)
        alike.setdefault(_idea(t.candidate) or read, t)
    return tuple(alike.values())


def _idea(candidate: Candidate) -> tuple[str, str] | None:
    """What a candidate is one of several ways to do."""
    return (candidate.proposal.codemod, candidate.proposal.idea) if candidate.proposal.idea else None


def cured_first(conflict: Conflict) -> tuple[int, int]:
    """The order of cures: what takes parameters for constants that are no optimizer's would hide that they should be
    one's; and a loss that would be detached from a model which is stepped with its gradient by mistake seems to be
    meant for it."""
    mixed = conflict.pattern == "never-cleared" and conflict.label("other") is not None
    return 0 if conflict.kind == "stray-optimizer" else 1 if mixed else 2, gravity(conflict)


def rounds(
    project: Project, baseline: Baseline, prover: Prover, wanted: Wanted, say: Callable[[str], None]
) -> Iterator[tuple[Round, Project, Baseline]]:
    """Cure one conflict after the other. Each item is what was tried and the state after it. One whose cures nothing
    could be measured of is tried again once another, which may be why nothing trains, is cured."""
    given_up: set[tuple[str, str]] = set()
    put_off: dict[tuple[str, str], Round] = {}
    for _ in range(ROUNDS):
        open_ = (
            c
            for c in baseline.conflicts
            if wanted.asked(c, project.files) and identity(c, project) not in given_up
        )
        conflict = min(open_, key=cured_first, default=None)
        if conflict is None or wanted.late():
            break
        found = list(candidates(conflict, project, wanted.codemods, say))
        say(f"proving {len(found)} candidate{'s' * (len(found) != 1)}")
        tried = try_all(found, baseline, conflict, prover, project.files, wanted)
        if all(t.merit.useless for t in tried) and (both := _both(tried, project, baseline, prover, wanted)):
            more = try_all(both, baseline, conflict, prover, project.files, wanted)
            tried = tuple(sorted((*more, *tried), key=lambda t: t.merit))
        accepted = wanted.accepts(conflict, project.files)
        tried = tuple(sorted(tried, key=lambda t: t.verdict.status not in accepted))
        applied = bool(tried) and tried[0].verdict.status in accepted
        done = Round(conflict, tried, applied, project.files, identity(conflict, project))
        if applied:
            files = dict(project.files) | dict(tried[0].candidate.texts)
            baseline = prover.baseline(files)
            project = Project(baseline.tape, wanted.met(baseline, files))
            given_up.difference_update(put_off)
            put_off.clear()
        else:
            given_up.add(done.identity)
            if tried and all(t.verdict.measured.get("mute") for t in tried):
                put_off[done.identity] = done
                continue
        yield done, project, baseline
    for done in put_off.values():
        yield done, project, baseline


def otherwise(done: Sequence[Round], wanted: Wanted) -> tuple[int, Round] | None:
    """Where a chain of cures came to nothing (one of its faults has none): the first round that might have gone
    another way, with a cure that leaves nothing to cure, and its number."""
    for n, round_ in enumerate(done):
        accepted = wanted.accepts(round_.conflict, round_.before)
        for tried in round_.tried[1:] if round_.applied else ():
            if tried.verdict.status in accepted and not tried.merit.partial:
                others = tuple(t for t in round_.tried if t is not tried)
                return n, replace(round_, tried=(tried, *others))
    return None


def gravity(conflict: Conflict) -> int:
    """What ends the script goes before what only misleads it: a cure of the one often takes the other along."""
    return GRAVITY.index(conflict.severity)


def identity(conflict: Conflict, project: Project) -> tuple[str, str]:
    """What stays the same of a conflict while lines move: its kind and the text of the statement it points at, and of
    those that call the functions it stands in."""
    found = project.node(conflict.at)
    if not found:
        return conflict.kind, f"{conflict.at.file}:{conflict.at.line}"
    view, node = found
    text = view.code(view.small_statement(node) or node)
    for outer, call in project.frames(conflict.labels[conflict.primary].stack[:-1]):
        text += f"\n{outer.code(outer.small_statement(call) or call)}"
    made = conflict.label("made") if conflict.kind == "missing-grad" else None
    maker = project.node(made.at) if made is not None else None
    if maker is not None:  # one statement may read the gradients of several
        text += "\n" + maker[0].code(maker[0].small_statement(maker[1]) or maker[1])
    return conflict.kind, text
