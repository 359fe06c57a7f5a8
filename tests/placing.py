"""Fixes made by hand and placed in scripts that have changed since."""

from pathlib import Path

from gradfix.patches import file, make
from gradfix.patches.apply import Applied, Proof, Tree, apply
from gradfix.patches.values import Cured, Fix, Meant
from gradfix.source import write
from gradfix.verdict import EffectKind, Verdict

GAN = """\
import torch

G, D = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)
optG = torch.optim.Adam(G.parameters(), lr=1e-2)
optD = torch.optim.Adam(D.parameters(), lr=1e-2)
real = torch.randn(8, 2)

for step in range(100):
    fake = G(torch.randn(8, 4))
    score = D(fake)
    lossD = (score - D(real)).mean()
    optD.zero_grad()
    lossD.backward(retain_graph=True)
    optD.step()
    lossG = -score.mean()
    optG.zero_grad()
    lossG.backward()
    optG.step()
"""
RECOMPUTED = (
    GAN.replace("score = D(fake)", "score = D(fake.detach())")
    .replace("retain_graph=True", "")
    .replace("-score.mean()", "-D(fake).mean()")
)
STALE = "stale-saved-tensor"
Texts = dict[str, tuple[str, str]]  # by path: before the fix, and after it


def cured(kind: str, path: str = "train.py", line: int = 1, effect: EffectKind = "none") -> Cured:
    return Cured(kind, "it is", path, line, "a-cure", "cure it", Meant(effect), "proved", "equal")


def fix(folder: Path, texts: Texts, *cures: Cured, entry: str = "train.py") -> Fix:
    """The change of `texts` as a fix, of a stale saved tensor unless told; files that are not there are made."""
    for path, (old, _) in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).exists():
            (folder / path).write_text(old)
    return make.fix(
        entry, Verdict("proved", "every gradient equal"), list(cures) or [cured(STALE)], texts, folder
    )


def applied(
    folder: Path,
    now: str,
    old: str,
    new: str,
    kind: str,
    *,
    effect: EffectKind = "none",
    proof: Proof | None = None,
    **others: str,
) -> Applied:
    """What comes of the change from `old` to `new` where the script is `now`; `others` are its modules."""
    path = folder / "train.py"
    for name, text in others.items():
        (folder / f"{name}.py").write_text(text)
    path.write_text(old)
    made = make.patch([fix(folder, {"train.py": (old, new)}, cured(kind, effect=effect))])
    path.write_text(now)
    (found,) = apply(file.loads(file.dumps(made).encode()), Tree(folder, proof, write=write))
    assert (found.status == "placed") == (path.read_text() != now)
    return found


def refused(folder: Path, now: str, old: str, new: str, kind: str, *, effect: EffectKind = "none") -> str:
    """Why the fix is not applied."""
    found = applied(folder, now, old, new, kind, effect=effect)
    assert found.status == "refused"
    return found.why
