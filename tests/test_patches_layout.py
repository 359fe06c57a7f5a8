"""Statements laid out otherwise than in the source of a fix, and assertions that came in, are in nobody's way."""

import ast
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placing import GAN, RECOMPUTED
from test_patches_place import NEW, OLD, placed, refused

CARRIED = """
import torch

cell = torch.nn.GRUCell(4, 8)
opt = torch.optim.Adam(cell.parameters())
h = torch.zeros(16, 8)
for step in range(4):
    x = torch.randn(16, 4)
    y = torch.randn(16, 8)
    h = cell(x, h)
    loss = ((h - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
CUT = CARRIED.replace("    h = cell", "    h = h.detach()\n    h = cell")
MOVED = GAN.replace("    score = D(fake)\n", "")
MOVED = MOVED.replace("    lossD = (score", "    score = D(fake.detach())\n    lossD = (score").replace(
    "retain_graph=True", ""
)
MOVED = MOVED.replace("    lossG = ", "    score = D(fake)\n    lossG = ")


def wrapped(line: str) -> str:
    """As a formatter breaks a line that is too long."""
    indent = line[: len(line) - len(line.lstrip())]
    start, end = line.find("("), line.rfind(")")
    inside = line[start + 1 : end]
    if start < 0 or not inside or line.lstrip().startswith(("def", "class")):
        return line
    return f"{line[: start + 1]}\n{indent}    {inside}\n{indent}{line[end:]}"


def in_parentheses(line: str) -> str:
    return re.sub(r"^(\s*[\w.]+ [-+]?= )(.+)$", r"\1(\2)", line)


def asserted(line: str) -> str:
    found = re.match(r"( +)(\w+) = ", line)
    return f"{line}\n{found[1]}assert {found[2]} is not None" if found else line


def printed(line: str) -> str:
    found = re.match(r"( +)(\w+) = ", line)
    return f"{line}\n{found[1]}print('{found[2]}', {found[2]}.shape)" if found else line


def loose(line: str) -> str:
    return line.replace("zero_grad()", "zero_grad(set_to_none=False)")


@pytest.mark.parametrize(
    ("old", "new"), [(OLD, NEW), (GAN, RECOMPUTED), (CARRIED, CUT), (GAN, MOVED)], ids=["a", "b", "c", "d"]
)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_layout_is_the_same_program(old, new, data):
    ways = [str, str, wrapped, in_parentheses, lambda x: wrapped(in_parentheses(x))]
    now = "\n".join(data.draw(st.sampled_from(ways))(line) for line in old.split("\n"))
    assert ast.dump(ast.parse(now)) == ast.dump(ast.parse(old))
    done = placed(now, old, new)
    assert ast.dump(ast.parse(done.text)) == ast.dump(ast.parse(new))
    assert not done.doubt
    kept = set(now.split("\n")) & set(done.text.split("\n"))
    assert all(line in kept for line in now.split("\n") if line.startswith("net = "))


def test_wrapped_lines_around_a_place_are_no_doubt():
    """Where the fix's own lines are as they were, and too few of those around them."""
    around = ("import", "G, D", "optG", "real =", "for", "    fake", "    optD.zero")
    now = "\n".join(wrapped(line) if line.startswith(around) else line for line in GAN.split("\n"))
    done = placed(now, GAN, RECOMPUTED)
    assert ast.dump(ast.parse(done.text)) == ast.dump(ast.parse(RECOMPUTED))
    assert not done.doubt


def without_assertions(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(("assert", "print('")))


@pytest.mark.parametrize(("old", "new"), [(OLD, NEW), (CARRIED, CUT), (GAN, RECOMPUTED)], ids=["a", "b", "c"])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_assertions_that_came_in_stay_where_they_are(old, new, data):
    now = "\n".join(
        data.draw(st.sampled_from([str, asserted, printed, loose]))(line) for line in old.split("\n")
    )
    done = placed(now, old, new)
    assert without_assertions(done.text).replace("set_to_none=False", "") == new
    assert [done.text.count(word) for word in ("assert", "print")] == [
        now.count("assert"),
        now.count("print"),
    ]
    assert not done.doubt


def test_an_assertion_among_lines_that_move_goes_with_the_line_before_it():
    now = GAN.replace("    optD.zero_grad()\n", "    assert lossD.dim() == 0\n    optD.zero_grad()\n")
    assert placed(now, GAN, MOVED).text == MOVED.replace(
        "    optD.zero_grad()\n", "    assert lossD.dim() == 0\n    optD.zero_grad()\n"
    )


def test_an_assertion_among_lines_that_are_no_more_has_no_place():
    other = NEW.replace("hidden = hidden + 1", "more = hidden + 1").replace("hidden.mean()", "more.mean()")
    now = OLD.replace("        hidden += 1\n", "        hidden += 1\n        assert hidden.dim() == 2\n")
    assert "an assertion or a print came in" in refused(now, OLD, other)


def test_an_assertion_that_writes_is_a_statement():
    now = OLD.replace(
        "        hidden += 1\n", "        assert hidden.mul_(2).dim() == 2\n        hidden += 1\n"
    )
    assert "mul_" in placed(now).doubt


@pytest.mark.parametrize(
    "bad", ["assert next(data) is not None", "assert (y := y + 1) is not None", "print(next(data))"]
)
def test_what_takes_something_is_no_assertion(bad):
    now = CARRIED.replace("    h = cell", f"    {bad}\n    h = cell")
    assert "can't be found any more" in refused(now, CARRIED, CUT)


def test_a_wrapped_copy_is_a_copy():
    body = OLD.split("def train(batches):\n")[1].split("\n\n\ndef show")[0]
    other = "\n".join(wrapped(line) for line in body.split("\n"))
    assert "equally well" in refused(OLD.replace("def show", f"def again(batches):\n{other}\n\n\ndef show"))


def test_a_statement_with_a_comment_in_it_is_as_it_is():
    now = OLD.replace("net(batch).exp()", "net(\n            batch  # all of it\n        ).exp()")
    assert "batch  # all of it" in placed(now).text
    own = OLD.replace("hidden += 1", "hidden += (  # one\n            1\n        )")
    assert "can't be found any more" in refused(own)


def test_a_comment_behind_a_wrapped_line_is_kept():
    now = OLD.replace("hidden += 1", "hidden += (\n            1\n        )  # one more")
    assert placed(now).text == NEW.replace("hidden = hidden + 1", "hidden = hidden + 1  # one more")


def test_renamed_and_wrapped():
    def change(text):
        return re.sub(r"\bhidden\b", "features", text)

    now = (
        change(OLD)
        .replace("features += 1", "features += (1)")
        .replace("features.mean()", "(features.mean())")
    )
    assert ast.dump(ast.parse(placed(now).text)) == ast.dump(ast.parse(change(NEW)))


def test_another_value_in_parentheses_is_another_value():
    assert "can't be found" in refused(OLD.replace("hidden += 1", "hidden += (2)"))
    assert "can't be found" in refused(OLD.replace("hidden += 1", "hidden += (1,)"))
