"""Places of a text that a cure has changed, told as the person has the file."""

import pytest

from gradfix.report.origins import Origins

OLD = """\
for step in range(3):
    fake = G(z); score = D(fake); old = score
    lossG = -score.mean()
    optD.step()
    optG.zero_grad()
    lossG.backward()
"""


def place(new: str, what: str, count: int = 1):
    """Where the `count`-th `what` of `new` was: the text there and its line."""
    at = -1
    for _ in range(count):
        at = new.index(what, at + 1)
    line = new.count("\n", 0, at) + 1
    column = at - (new.rfind("\n", 0, at) + 1)
    came = Origins(OLD, new).of(line, column, line, column + len(what))
    assert came is not None
    assert came.line == came.end_line
    return OLD.split("\n")[came.line - 1][came.column : came.end_column], came.line, came.put


MOVED = OLD.replace("    lossG = -score.mean()\n", "").replace(
    "    optD.step()\n", "    optD.step()\n    lossG = -D(fake).mean()\n"
)


@pytest.mark.parametrize(
    ("new", "what", "count", "was"),
    [
        (MOVED, "-D(fake).mean()", 1, ("-score.mean()", 3, "")),
        (MOVED, "D(fake)", 2, ("score", 3, "")),
        (MOVED, "optG.zero_grad()", 1, ("optG.zero_grad()", 5, "")),
        (OLD.replace("D(fake)", "D(fake.detach())"), "D(fake.detach())", 1, ("D(fake)", 2, "")),
        (OLD.replace("D(fake)", "D(fake.detach())"), "fake.detach()", 1, ("fake", 2, "")),
        (OLD.replace("; old = score", "\n    old = score"), "score", 2, ("score", 2, "")),
        (
            OLD.replace("step()\n", "step()\n    score = D(fake)\n"),
            "D(fake)",
            2,
            ("optD.step()", 4, "score = D(fake)"),
        ),
    ],
    ids=["moved", "made_anew", "behind", "changed", "inside", "taken_apart", "put_there"],
)
def test_a_place_in_a_cured_text_is_told_where_it_was(new, what, count, was):
    assert place(new, what, count) == was


def test_only_the_line_is_known():
    came = Origins(OLD, "import os\n" + MOVED).of(5, 0, 5, 0)
    assert came is not None
    assert came.line == 3
