"""What goes into the pipeline (Settings) and what comes out of it (a Result): the values every front end reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradfix.dataclass import dataclass
from gradfix.detect import Conflict
from gradfix.tape import Failure
from gradfix.verdict import HELD, Effect, Status, Verdict

if TYPE_CHECKING:
    from gradfix.run import Run
    from gradfix.run.walls import Sandbox

Evidence = Literal["recorded", "certain", "likely", "traceback"]


@dataclass(frozen=True, slots=True)
class Exempt:
    """Files of which these kinds are not reported: `pattern` as in .gitignore, from the folder `base` on."""

    base: Path
    pattern: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the person asked for; every setting that changes work, not display."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exempt: tuple[Exempt, ...] = ()
    codemods: tuple[str, ...] = ()
    notes: bool = False
    accept: tuple[Status, ...] = ()  # verdicts good enough; empty: see accepted()
    arguments: tuple[str, ...] = ()
    python: str | None = None
    steps: int = 3
    timeout: float = 120.0
    resident: int | None = None  # bytes that one run's processes may hold; None: most of what is free
    seed: int = 0
    sandbox: Sandbox | None = None  # None: auto, and strict for code that nobody named
    tape: Path | None = None
    traceback: str = ""  # what PyTorch said elsewhere
    run: bool = True  # False: only the text is read, and cures stay untried
    repair: bool = True  # False: `gradfix run`, find and report only
    within: tuple[
        Path, ...
    ] = ()  # edit only these files, or files below these folders; empty: the whole project
    evidence: Literal["certain", "likely"] = "certain"  # of faults that were read, not recorded
    careful: bool = False  # a change that is meant needs a script that raised before
    only: tuple[str, ...] = ()  # fingerprints (gradfix.fingerprint) of the faults to speak of; empty: all
    spared: tuple[str, ...] = ()  # fingerprints of those to leave alone
    granted: tuple[str, ...] = ()  # fingerprints of those whose change is meant, careful or not
    hints: Mapping[str, str] = field(default_factory=dict, hash=False)  # by fingerprint, what to begin with
    until: float = (
        inf  # of time.monotonic(): when no more proof is begun, and those that were get to their end
    )

    def accepted(self, raised: bool) -> tuple[Status, ...]:
        """The verdicts good enough to apply, for a script that PyTorch `raised` on before or that ran."""
        if self.accept:
            return self.accept
        return HELD if raised or not self.careful else ("proved", "preserved")

    def edits(self, path: str) -> bool:
        """Whether the file at `path` may be changed."""
        return not self.within or any(Path(path).is_relative_to(f.resolve()) for f in self.within)

    def template(self, entry: Path, root: Path, files: Mapping[str, str]) -> Run:
        """The run of `entry`, of the project at `root`, with `files` over the disk: what every other run varies. It
        stands where the person stands, if that is inside the project."""
        from gradfix.run import Run

        here = Path.cwd()
        return Run(
            script=entry,
            root=root,
            cwd=here if root in (here, *here.parents) else root,
            arguments=self.arguments,
            files=files,
            steps=self.steps,
            timeout=self.timeout,
            seed=self.seed,
            resident=self.resident,
        )


@dataclass(frozen=True, slots=True)
class Cure:
    """One candidate as it was measured. `before`/`after` are whole texts by absolute path, changed files only."""

    codemod: str
    summary: str
    effect: Effect
    verdict: Verdict
    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault and its cures, best first. `status`: ``cured`` (cures[0] is part of the result's new text), ``left``
    (nothing acceptable), ``note`` (a note, not asked for). `sources` are the texts the conflict's labels speak of
    where an earlier cure had already changed them; reports lead the lines back to the file as it was. `evidence`:
    ``recorded`` in a run; read in the text, where it is ``certain`` whenever that code runs, or ``likely``, since it
    hangs on what the text does not tell (the outcome of a test, say); or shown by a ``traceback``. `along` are notes
    of their own that the same cure cleans up."""

    conflict: Conflict
    cures: tuple[Cure, ...] = ()
    status: Literal["cured", "left", "note"] = "left"
    sources: Mapping[str, str] = field(default_factory=dict)
    evidence: Evidence = "recorded"
    along: tuple[Conflict, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the tool could not do its work, or why the script fails for a reason that is not autograd's."""

    message: str
    detail: str = ""  # a caret excerpt or the script's own traceback


@dataclass(frozen=True, slots=True)
class Result:
    """All that one entry script came to. `files` are old and new text by absolute path, for files that change;
    `verdict` is that of the whole change, None where nothing was cured; `held_back` says why cures that hold one by
    one are not applied; `problem` where exit code 2 is due."""

    entry: Path
    diagnoses: tuple[Diagnosis, ...] = ()
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)  # text of every file a label speaks of
    verdict: Verdict | None = None
    held_back: str = ""
    problem: Problem | None = None
    failure: Failure | None = None  # what plain PyTorch raised on the script as it is, if it raised
    ended: str = ""
    wall: str = ""
    seconds: float = 0.0
    rounds: int = 0
    lines: tuple[str, ...] = ()  # sentences worth saying (what was not seen, what else is wrong)
    minor: tuple[str, ...] = ()  # the recorder's notes that nothing of this run can hide behind, for -v
    trained: bool = True  # whether a backward was reached
    output: str = ""  # what the script itself printed, for -v
    torch: str = ""  # the version that ran
    withheld: int = 0  # faults that are only likely, where certain ones were asked for
