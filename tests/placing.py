"""Fixes made by hand and placed in scripts that have changed since."""

from pathlib import Path

from gradfix.patches import file, make
from gradfix.patches.apply import Applied, Proof, Tree, apply
from gradfix.patches.values import Cured, Fix, Meant
from gradfix.source import write
from gradfix.verdict import EffectKind, Verdict

Texts = dict[str, tuple[str, str]]  # by path: before the fix, and after it


def cured(kind: str, path: str = "train.py", line: int = 1, effect: EffectKind = "none") -> Cured:
    return Cured(kind, "it is", path, line, "a-cure", "cure it", Meant(effect), "proved", "equal")


def fix(folder: Path, texts: Texts, *cures: Cured, entry: str = "train.py") -> Fix:
    """The change of `texts` as a fix; the files are made where they are not there."""
    for path, (old, _) in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).exists():
            (folder / path).write_text(old)
    return make.fix(entry, Verdict("proved", "every gradient equal"), list(cures), texts, folder)


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


def refused(folder: Path, *given: str, **more: str) -> str:
    """Why the fix is not applied."""
    found = applied(folder, *given, **more)  # type: ignore[arg-type]
    assert found.status == "refused"
    return found.why
