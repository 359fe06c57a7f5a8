"""Random edits of the fixtures' scripts: a patch made before is placed right after them, or refused; never garbled."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from drift import Document, drifted
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

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
ENDINGS = ("\n", "\r\n")


def judged(folder: Path, case: tuple[str, str, str], random: Random, times: int) -> str:
    """What came of one patch: ``placed``, or ``refused`` with what the edits did to the place."""
    name, old, new = case
    path = folder / "train.py"
    path.write_text(old)
    cures = [
        Cured(kind, "it is", "train.py", 1, "a-cure", "cure it", Meant("none"), "proved", "equal")
        for kind in re.findall(r"# conflict: ([\w-]+)", old)
    ]
    fix = make.fix("train.py", Verdict("proved", "equal"), cures, {"train.py": (old, new)}, folder)
    document = drifted(Document.of(old, new), random, times)
    ending = random.choice(ENDINGS)
    before = document.old.replace("\n", ending).encode()
    path.write_bytes(before)
    (done,) = apply(make.patch([fix]), Tree(folder, write=write))
    said = f"{name}: {document.done}: {done.why}"
    if done.status != "placed":
        assert path.read_bytes() == before, said
        assert done.status == "refused" or document.old == document.new, said
        place = "lost" if document.destroyed else "copied" if document.copied else "there"
        place = "there, its values others" if document.rebound and place == "there" else place
        return "no change" if done.status == "already" else f"refused, its place {place}"
    assert not document.rebound, said
    # a comment that came to a line which the fix takes apart may be on either part
    wanted, made = (_bare(x) if document.doubts else x for x in (document.new, Source.read(path).text))
    assert made == wanted, said
    assert path.read_bytes().count(b"\r\n") == (path.read_bytes().count(b"\n") if ending == "\r\n" else 0)
    return "placed"


def _bare(text: str) -> list[str]:
    return [re.sub(r"\s*#.*", "", line) for line in text.split("\n")]


@settings(deadline=None, max_examples=40, derandomize=True, phases=[Phase.generate])  # each says what it did
@given(st.sampled_from(CASES), st.randoms(), st.integers(0, 5))
def test_placed_or_refused(tmp_path_factory, case, random, times):
    judged(tmp_path_factory.mktemp("drift"), case, random, times)


@pytest.mark.soak
def test_five_hundred(tmp_path, capsys):
    counts = Counter()
    for seed in range(500):
        random = Random(f"drift {seed}")
        counts[judged(tmp_path, random.choice(CASES), random, random.randint(1, 5))] += 1
    with capsys.disabled():
        print(f"\n500 drifted scripts: {dict(counts.most_common())}; garbled: 0")
    assert counts["placed"] >= 150
