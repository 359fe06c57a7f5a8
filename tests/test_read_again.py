"""Reading a text again after an edit: the same as reading it for the first time, and little of it is read."""

import random
from pathlib import Path

import pytest

from gradfix.check import check_text
from gradfix.examine import seen
from gradfix.read import entries
from gradfix.read.kept import Kept
from gradfix.read.parts import Parts
from gradfix.result import Settings
from gradfix.source import Source

FIXTURES = Path(__file__).parent.parent / "fixtures"
SETTINGS = Settings(repair=False, notes=True, evidence="likely")
PROGRAM = '''"""Two trainings.

of two models
"""
import torch
from torch import nn

RATE = 0.1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


def first():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    y = net(torch.ones(2, 2)).exp()
    y += 1
    y.sum().backward()
    optimizer.step()


def second():
    net = nn.Linear(2, 2)
    y = net(torch.ones(2, 2)).sigmoid()
    y.mul_(2)
    y.sum().backward()


if __name__ == "__main__":
    first()
    second()
'''


def said(text: str, path: Path, kept: Kept | None, files: dict[str, str] | None = None):
    results = check_text(Source(path, text.encode(), text), SETTINGS, files, kept)
    return [(r.problem, r.withheld, r.minor, r.trained, r.sources, r.diagnoses) for r in results]


@pytest.fixture
def walked(monkeypatch):
    """The names of the entries that are interpreted."""
    names = []
    original = entries._Program._walked

    def walked(self, m, name, *rest):
        names.append(name)
        return original(self, m, name, *rest)

    monkeypatch.setattr(entries._Program, "_walked", walked)
    return names


def edited(text: str, random_: random.Random) -> str:
    """`text` after an edit like those that people make: a character, a line, a comment, a name, a block moved."""
    lines = text.split("\n")
    n = random_.randrange(len(lines))
    line = lines[n]
    what = random_.randrange(9)
    if what == 0:
        at = random_.randrange(len(line) + 1)
        lines[n] = line[:at] + random_.choice('x1.( )_+#"=') + line[at:]
    elif what == 1 and line:
        at = random_.randrange(len(line))
        lines[n] = line[:at] + line[at + 1 :]
    elif what == 2:
        lines.insert(n, "")
    elif what == 3:
        lines[n] += "  # noted"
    elif what == 4:
        lines.insert(n, line)
    elif what == 5:
        del lines[n]
    elif what == 6:
        lines[n] = line.replace("+=", "*=") if "+=" in line else line.replace("(", "( ", 1)
    elif what == 7:
        other = random_.randrange(len(lines))
        lines[n], lines[other] = lines[other], lines[n]
    else:
        margins = [k for k, each in enumerate(lines) if each.startswith(("def ", "class ", "if "))]
        if len(margins) > 1:
            a, b = sorted(random_.sample(margins, 2))
            lines = lines[:a] + lines[b:] + lines[a:b]
    return "\n".join(lines)


def files() -> list[Path]:
    found = sorted(FIXTURES.glob("*/*/before.py"))
    return random.Random(7).sample(found, 24)


@pytest.mark.parametrize("file", files(), ids=lambda file: "/".join(file.parts[-3:-1]))
def test_edits_of_fixtures(file):
    follow(file.read_text(), file, 14, str(file.parent.name))


@pytest.mark.parametrize("seed", range(6))
def test_edits_of_a_program(seed, tmp_path):
    follow(PROGRAM, tmp_path / "train.py", 40, str(seed))


def follow(text: str, path: Path, edits: int, seed: str) -> None:
    """Edit `text` again and again, taking some edits back."""
    random_ = random.Random(seed)
    kept = Kept(seen)
    before = [text]
    for _ in range(edits):
        assert said(text, path, kept) == said(text, path, None), text
        if random_.random() < 0.4:
            text = before.pop() if len(before) > 1 else before[0]
        else:
            before.append(text)
            text = edited(text, random_)


def test_only_what_an_edit_can_reach_is_interpreted(walked, tmp_path):
    kept = Kept(seen)
    path = tmp_path / "train.py"

    def read(text: str) -> list[str]:
        walked.clear()
        kinds = [d.conflict.kind for r in said(text, path, kept) for d in r[-1]]
        assert kinds == ["stale-saved-tensor"] * 2
        return list(walked)

    assert len(read(PROGRAM)) == 3  # what is left of the main part, and the calls
    assert read(PROGRAM) == []
    assert read(PROGRAM.replace("y += 1", "y += 1  # more")) == []
    assert read(PROGRAM.replace("\n\ndef second", "\n\n# the other\n\ndef second")) == []
    assert len(read(PROGRAM.replace("mul_(2)", "mul_(3)"))) == 1
    assert read(PROGRAM) == []  # undone


def test_a_statement_is_the_same_object_in_the_next_tree():
    parts = Parts()
    old = parts.tree(PROGRAM).body
    new = parts.tree(PROGRAM.replace("RATE = 0.1", "\n# slow\nRATE = 0.01")).body
    assert [a is b for a, b in zip(old, new, strict=True)].count(False) == 1
    assert new[-1].lineno == old[-1].lineno == PROGRAM.split("\n").index('if __name__ == "__main__":') + 3


def test_a_file_beside_it_that_changes_is_read_again(tmp_path):
    text = (
        "import torch\nfrom other import spoil\nx = torch.ones(2, requires_grad=True)\n"
        "y = x.exp()\nspoil(y)\ny.sum().backward()\n"
    )
    other = tmp_path / "other.py"
    path = tmp_path / "train.py"
    kept = Kept(seen)
    assert said(text, path, kept)[0][-1] == ()
    assert len(said(text, path, kept, {str(other): "def spoil(t):\n    t += 1\n"})[0][-1]) == 1  # never saved
    other.write_text("def spoil(t):\n    t += 1\n")
    assert len(said(text, path, kept)[0][-1]) == 1
    assert said(text, path, kept, {str(other): "def spoil(t):\n    t + 1\n"})[0][-1] == ()
    assert len(said(text, path, kept)[0][-1]) == 1


def test_what_is_kept_stays_small(tmp_path):
    kept = Kept(seen)
    for n in range(60):
        said(PROGRAM.replace("mul_(2)", f"mul_({n})"), tmp_path / "train.py", kept)
    assert len(kept._groups) < 30
