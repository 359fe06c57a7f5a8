"""Random edits of the fixtures' scripts: a patch made before is placed right after them, or refused; never garbled."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from drift import Document, drifted
from drift_training import numbers, trained
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_patches_training import FIXES

from gradfix.patches import make
from gradfix.patches.apply import Tree, apply
from gradfix.patches.values import Cured, Meant
from gradfix.source import Source, write
from gradfix.verdict import Verdict

FOLDER = Path(__file__).parent.parent / "fixtures"
CASES = [
    (str(p.parent.relative_to(FOLDER)), p.read_text(), p.with_name("after.py").read_text())
    for p in sorted(FOLDER.glob("*/*/before.py"))
    if p.with_name("after.py").exists() and not (p.parent / "after").exists()
]
TRAININGS = [(name, old, new) for name, (old, new, _) in FIXES.items()]
TRAININGS += [case for case in CASES if trained(Document.of(*case[1:]), Random(0)).trained]
KINDS = {name: [kind] for name, (_, _, kind) in FIXES.items()}
ENDINGS = ("\n", "\r\n")


def judged(
    folder: Path, case: tuple[str, str, str], random: Random, times: int, training: bool = False
) -> str:
    """What came of one patch: ``placed``, or ``refused`` with what the edits did to the place. With `training` the
    script trains otherwise at last."""
    name, old, new = case
    path = folder / "train.py"
    path.write_text(old)
    cures = [
        Cured(kind, "it is", "train.py", 1, "a-cure", "cure it", Meant("none"), "proved", "equal")
        for kind in re.findall(r"# conflict: ([\w-]+)", old) + KINDS.get(name, [])
    ]
    fix = make.fix("train.py", Verdict("proved", "equal"), cures, {"train.py": (old, new)}, folder)
    document = drifted(Document.of(old, new), random, times)
    if training:
        document = trained(document, random)
    ending = random.choice(ENDINGS)
    before = document.old.replace("\n", ending).encode()
    path.write_bytes(before)
    (done,) = apply(make.patch([fix]), Tree(folder, write=write))
    said = f"{name}: {document.done}: {done.why}"
    if done.status != "placed":
        assert path.read_bytes() == before, said
        assert done.status == "refused" or document.old == document.new, said
        place = "lost" if document.destroyed else "copied" if document.copied else "there"
        place = "of another training" if document.trained else place
        place = "there, its values others" if document.rebound and place == "there" else place
        return "no change" if done.status == "already" else f"refused, its place {place}"
    assert not document.rebound, said
    # a comment that came to a line which the fix takes apart may be on either part
    wanted, made = (_bare(x) if document.doubts else x for x in (document.new, Source.read(path).text))
    if document.trained and made != wanted:
        assert not document.never, said
        right = numbers(document.new)
        assert right is None or numbers(Source.read(path).text) == right, said
        return "placed otherwise, with the right numbers"
    assert made == wanted or _loose(made) == _loose(wanted), said
    assert path.read_bytes().count(b"\r\n") == (path.read_bytes().count(b"\n") if ending == "\r\n" else 0)
    return "placed"


def _loose(text: str | list[str]) -> tuple[list[str], list[str]]:
    """The code, and all lines: which side of a blank line or a comment something goes to is all one."""
    lines = text.split("\n") if isinstance(text, str) else text
    return [x for x in lines if x.split("#")[0].strip()], sorted(lines)


def _bare(text: str) -> list[str]:
    return [re.sub(r"\s*#.*", "", line) for line in text.split("\n")]


@settings(deadline=None, max_examples=40, phases=[Phase.generate])  # each says what it did
@given(st.sampled_from(CASES), st.randoms(), st.integers(0, 5))
def test_placed_or_refused(tmp_path_factory, case, random, times):
    judged(tmp_path_factory.mktemp("drift"), case, random, times)


@settings(deadline=None, max_examples=40, phases=[Phase.generate])
@given(st.sampled_from(TRAININGS), st.randoms(), st.integers(0, 2))
def test_another_training(tmp_path_factory, case, random, times):
    judged(tmp_path_factory.mktemp("drift"), case, random, times, True)


@pytest.mark.soak
def test_five_hundred(tmp_path, capsys):
    counts = Counter()
    for seed in range(500):
        random = Random(f"drift {seed}")
        counts[judged(tmp_path, random.choice(CASES), random, random.randint(1, 5))] += 1
    with capsys.disabled():
        print(f"\n500 drifted scripts: {dict(counts.most_common())}; garbled: 0")
    assert counts["placed"] >= 150


@pytest.mark.soak
def test_three_hundred_trainings(tmp_path, capsys):
    counts = Counter()
    for seed in range(300):
        random = Random(f"training {seed}")
        few = TRAININGS[: len(FIXES)] if random.random() < 0.5 else TRAININGS
        counts[judged(tmp_path, random.choice(few), random, random.randint(0, 3), True)] += 1
    with capsys.disabled():
        print(f"\n300 scripts that train otherwise: {dict(counts.most_common())}; garbled: 0")
