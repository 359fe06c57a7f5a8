"""Hand-made Results for the tests of reports and of the command line."""

from dataclasses import replace
from pathlib import Path

from gradfix.detect import Conflict, Label
from gradfix.result import Cure, Diagnosis, Result
from gradfix.tape import Backward, Site
from gradfix.verdict import Effect, Verdict

GAN = """\
import torch

D = torch.nn.Linear(2, 1)

def loss(x):
    return D(x).mean()

for step in range(3):
    g = noise.exp()
    d = loss(g)
    optimD.zero_grad()
    lossD = -d
    lossD.backward(retain_graph=True)
    optimD.step()
    lossG = d
    optimG.zero_grad()
    lossG.backward()
"""
CURED = GAN.replace("    lossG = d\n", "    lossG = loss(g)\n")
RAISED = "one of the variables needed has been modified by an inplace operation: [x]. Hint: look"


def site(path: Path, text: str, token: str, function: str = "<module>", end: str = "") -> Site:
    """The span of the first `token` (to the end of `end`) in `text`."""
    start = text.index(token)
    stop = text.index(end, start) + len(end) if end else start + len(token)
    line, end_line = text.count("\n", 0, start), text.count("\n", 0, stop)
    column = start - (text.rfind("\n", 0, start) + 1)
    end_column = stop - (text.rfind("\n", 0, stop) + 1)
    return Site(str(path), line + 1, column, end_line + 1, end_column, function)


def stale(path: Path, text: str = GAN) -> Conflict:
    """D's weight, saved inside a function, stepped before the generator's loss needs it."""
    inner, outer = site(path, text, "D(x)", "loss"), site(path, text, "loss(g)")
    return Conflict(
        kind="stale-saved-tensor",
        severity="error",
        message="`D.weight` is overwritten by `optimD.step()` before `lossG.backward()` needs it",
        labels=(
            Label("saved", (outer, inner), "`D.weight` (1×2) saved here, version 1"),
            Label("overwritten", (site(path, text, "optimD.step()"),), "overwritten here, version 2"),
            Label("needed", (site(path, text, "lossG.backward()"),), "needed here"),
        ),
        primary=1,
        backward=Backward(9, (site(path, text, "lossG.backward()"),), (1,), (1,), refused=RAISED),
    )


def cure(path: Path, status: str = "intended", name: str = "recompute-after-step", **verdict: object) -> Cure:
    return Cure(
        name,
        "take `lossG` from D as it is after `optimD.step()`",
        Effect("later-parameters", "lossG is taken from D after its step"),
        Verdict(
            status, "G's gradient cosine 0.9998 to the exact one, D's equal", verdict or {"cosine": 0.99981}
        ),
        {str(path): GAN},
        {str(path): CURED},
    )


def cured(path: Path) -> Result:
    """One fault, cured; one other cure rejected."""
    rejected = cure(path, "rejected", "detach-score")
    diagnosis = Diagnosis(stale(path), (cure(path), rejected), "cured")
    files = {str(path): (GAN, CURED)}
    verdict = diagnosis.cures[0].verdict
    return Result(path, (diagnosis,), files, {str(path): GAN}, verdict, ended="steps", rounds=1)


def left(path: Path) -> Result:
    """One fault without a cure, and a note that was not asked for."""
    note = Conflict(
        "wasted-backward",
        "note",
        "`retain_graph=True` keeps a graph that nothing needs",
        (Label("needed", (site(path, GAN, "lossD.backward(retain_graph=True)"),), "kept here"),),
    )
    diagnoses = (Diagnosis(stale(path)), Diagnosis(note, status="note"))
    return Result(path, diagnoses, {}, {str(path): GAN}, ended="steps", output="epoch 1\n")


def clean(path: Path) -> Result:
    return Result(path, sources={str(path): GAN}, ended="steps")


def replace_sources(result: Result, text: str) -> Result:
    """`result` of a file that holds `text`."""
    return replace(result, sources=dict.fromkeys(result.sources, text))


def with_message(result: Result, message: str) -> Result:
    """`result` with another sentence for its first fault."""
    first, *others = result.diagnoses
    return replace(
        result, diagnoses=(replace(first, conflict=replace(first.conflict, message=message)), *others)
    )
