"""Comments that suppress: which statement they speak of, what else looks like one, and what is said of idle ones."""

import made
import pytest

from gradfix.detect import Conflict, Label
from gradfix.suppress import UNUSED, complaints, suppressed, unused
from gradfix.tape import Site


def fault(line: int, kind: str = "freed-graph") -> Conflict:
    return Conflict(kind, "error", "it is", (Label("needed", (Site("a.py", line),), "here"),))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a()  # gradfix: ignore\nb()\n", [1]),
        ("a()  # gradfix: ignore[freed-graph]\n", [1]),
        ("a()  # gradfix: ignore[ leaf-write , freed-graph ] as D is retained\n", [1]),
        ("a()  # noqa: E501  # gradfix: ignore[freed-graph]\n", [1]),
        ("a()  #gradfix:ignore\n", [1]),
        ("a()  # gradfix: ignore[leaf-write]\n", []),
        ("a(\n  b,\n  c,  # gradfix: ignore\n)\nd()\n", [1, 2, 3, 4]),
        ("a(\n  b,\n)  # gradfix: ignore\nd()\n", [1, 2, 3]),
        ("# gradfix: ignore\n\na(\n  b)\nc()\n", [3, 4]),
        ("for x in y:  # gradfix: ignore\n    a()\n", [1]),
        ("if x:\n    # gradfix: ignore\n    a()\n    b()\n", [3]),
        ("a()\n# gradfix: ignore-file\nb()\n", [1, 2, 3, 4]),
        ("a()\nif b:\n    # gradfix: ignore-file[freed-graph]\n    c()\n", [1, 2, 3, 4, 5]),
        ('a("# gradfix: ignore")\n', []),
        ('"""\n# gradfix: ignore-file\n"""\na()\n', []),
        ("a()  # see gradfix: ignore\n", []),
        ("a()  # gradfix: ignore-file\n", []),
        ("a()  # gradfix: ignore[freed-graph, freed-grph]\n", [1]),
        ("a()  # gradfix: ignroe[freed-graph]\n", []),
        ("a()  # gradfix: ignore\nb('''\n", [1]),
        ("a()  # gradfix: ignore", [1]),
    ],
)
def test_which_lines_are_meant(text, lines):
    assert [n for n in range(1, text.count("\n") + 2) if suppressed(fault(n), text)] == lines


def test_it_is_the_reported_place_that_counts():
    path = made.Path("/x/gan.py")
    conflict = made.stale(path)  # reported at optimD.step()
    step = made.GAN.replace("optimD.step()", "optimD.step()  # gradfix: ignore[stale-saved-tensor]")
    backward = made.GAN.replace("lossG.backward()", "lossG.backward()  # gradfix: ignore")
    assert suppressed(conflict, step)
    assert not suppressed(conflict, backward)


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("ignore[freed-grph]", "there is no kind 'freed-grph'; did you mean freed-graph?"),
        ("ignore[]", "the brackets name no kind"),
        ("ignore[freed-graph", "the bracket is not closed"),
        ("ignroe", "gradfix knows no comment 'ignroe'; did you mean ignore?"),
        ("ignore-file", "ignore-file stands alone on its line"),
    ],
)
def test_a_misspelt_comment_is_named(comment, sentence):
    (found,) = complaints("a.py", f"a()  # gradfix: {comment}\n")
    assert (found.kind, found.message) == (UNUSED, sentence)
    assert (found.at.line, found.at.column, found.at.end_column) == (1, 5, 5 + len(f"# gradfix: {comment}"))


@pytest.mark.parametrize(
    ("comment", "sentences"),
    [
        ("ignore", ["nothing is ignored here"]),
        ("ignore[freed-graph]", ["nothing is ignored here"]),
        ("ignore[leaf-write]", []),
        ("ignore[leaf-write, freed-graph]", ["no freed-graph is ignored here"]),
        ("ignore[freed-graph, unused-ignore]", []),
    ],
)
def test_unused(comment, sentences):
    met = [] if comment == "ignore" else [(1, "leaf-write")]
    text = f"a()  # gradfix: {comment}\n"
    assert [c.message for c in unused("a.py", text, met)] == sentences
    assert [c.message for c in unused("a.py", text, [(1, "leaf-write"), (1, "freed-graph")])] == []


def test_a_bare_ignore_does_not_hide_that_it_is_idle():
    text = "a()  # gradfix: ignore\n"
    (idle,) = unused("a.py", text, [])
    assert not suppressed(idle, text)
