"""Reports: what a person sees, what a program reads."""

import json
import re
from dataclasses import replace
from pathlib import Path

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gradfix import wording
from gradfix.detect import Conflict, Label, describe
from gradfix.report import View, full
from gradfix.report.layout import ASCII, BOXES, fold, row, safe
from gradfix.report.origins import Origins
from gradfix.report.places import Paths, callers, place
from gradfix.report.snippet import Span, draw
from gradfix.result import Diagnosis
from gradfix.tape import Ref, Site

calm = settings(deadline=None, max_examples=60)
SCHEMA = json.loads((Path(full.__file__).parent / "schema.json").read_text(encoding="utf-8"))


def drawn(text: str, spans: list[Span], width: int = 80, glyphs=BOXES) -> list[str]:
    return [r.plain for r in draw(text.split("\n"), spans, width, 2, glyphs)]


def span(text: str, token: str, label: str, primary: bool = False, end: str = "") -> Span:
    s = made.site(Path("a.py"), text, token, end=end)
    return Span(s.line, s.column, s.end_line, s.end_column, label, "", primary)


def view(tmp_path: Path, **more: object) -> View:
    return View(Paths(tmp_path), **more)


# -- drawing


def test_spans_of_different_weight_gaps_and_texts():
    text = "d = D(g)\n\n\n\noptimD.step()\nx = 1\nlossG.backward()\n"
    spans = [
        span(text, "D(g)", "saved here, version 1"),
        span(text, "optimD.step()", "overwritten here, version 2", True),
        span(text, "lossG.backward()", "needed here"),
    ]
    assert drawn(text, spans) == [
        " 1 │ d = D(g)",
        "   │     ──── saved here, version 1",
        "   ┆",
        " 5 │ optimD.step()",
        "   │ ━━━━━━━━━━━━━ overwritten here, version 2",
        " 6 │ x = 1",
        " 7 │ lossG.backward()",
        "   │ ──────────────── needed here",
    ]


def test_several_spans_on_a_line():
    text = "optim.step(); d = d * 2; y.mul_(y)\n"
    spans = [
        span(text, "optim.step()", "overwritten", True),
        span(text, "d * 2", "read"),
        span(text, "y.mul_(y)", "written"),
        span(text, "y.mul_(y)", "and saved"),
    ]
    assert drawn(text, spans) == [
        " 1 │ optim.step(); d = d * 2; y.mul_(y)",
        "   │ ━━━━━━━━━━━━      ─────  ───────── written",
        "   │ │                 │                and saved",
        "   │ │                 ╰ read",
        "   │ ╰ overwritten",
    ]


def test_a_span_over_several_lines():
    text = "loss = criterion(\n    D(g),\n    ones,\n)\n"
    whole = span(text, "loss", "made here", end="\n)")
    assert drawn(text, [whole]) == [
        " 1 │ ╭ loss = criterion(",
        " 2 │ │     D(g),",
        " 3 │ │     ones,",
        " 4 │ │ )",
        "   │ ╰── made here",
    ]
    inside = span(text, "criterion(", "made here", end="\n)")
    assert drawn(text, [inside])[:2] == [" 1 │ ╭ loss = criterion(", "   │ │        ──────────"]


def test_a_long_span_shows_its_ends():
    text = "f(\n" + "".join(f"    a{i},\n" for i in range(20)) + ")\n"
    rows = drawn(text, [span(text, "f(", "called", end="\n)")])
    assert [r[:2] for r in rows] == [" 1", " 2", " 3", "  ", "21", "22", "  "]


def test_without_box_characters():
    text = "x = 1\ny = (2,\n     3)\n"
    rows = drawn(text, [span(text, "x", "one", True), span(text, "y", "two", end="3)")], glyphs=ASCII)
    assert rows == [
        " 1 |   x = 1",
        "   |   ^ one",
        " 2 | / y = (2,",
        " 3 | |      3)",
        "   | \\-- two",
    ]


def test_a_long_line_is_cut_around_its_span():
    text = "x = [" + "1, " * 100 + "here, " + "2, " * 100 + "]\n"
    for r in drawn(text, [span(text, "here", "look")], 60):
        assert cell_len(r) <= 60
    line, under = drawn(text, [span(text, "here", "look")], 60)
    assert line[under.index("─") : under.index("─") + 4] == "here"
    assert line.count("…") == 2


def test_nothing_in_a_source_line_can_steer_the_terminal():
    text = "x = '\x1b[31m\u202e\udc80\x07'\n"
    rows = "".join(drawn(text, [span(text, "x", "here")]))
    assert not re.search("[\x00-\x1f\u202e\udc80]", rows)
    assert safe("日本\tok") == "日本\tok"


# graphemes whose width terminals agree on
CLUSTERS = st.lists(
    st.sampled_from(["a", "_", " ", "\t", "é", "e\u0301", "日", "本", "ﾊ", "😀", "ß", "Ω", "한", "\x0c"]),
    max_size=40,
)


@calm
@given(CLUSTERS, CLUSTERS, CLUSTERS)
def test_underlines_align(before, marked, after):
    line = "".join(before) + "[" + "".join(marked) + "]" + "".join(after)
    start, end = len("".join(before)), len("".join(before)) + len("".join(marked)) + 2
    source_row, under = drawn(line, [Span(1, start, 1, end, "", "", True)], 2000)
    source_row, under = source_row[5:], under[5:]
    left = len(under) - len(under.lstrip(" "))
    shown_before = source_row[: source_row.index("[")]
    assert left == cell_len(shown_before)
    shown = source_row[source_row.index("[") : source_row.rindex("]") + 1]
    assert under.strip() == "━" * cell_len(shown)


@calm
@given(CLUSTERS)
def test_tabs_reach_the_next_stop(clusters):
    line = "".join(clusters).replace("\x0c", "")
    at = 0
    for char, offset in zip(line, row(line).offsets, strict=False):
        if char == "\t":
            assert offset == at
            at = (at // 4 + 1) * 4
        else:
            at += cell_len(char)
    assert row(line).width == at


LINES = st.lists(st.text("ab 日\t(), ", max_size=90), min_size=1, max_size=8)


@calm
@given(LINES, st.data(), st.integers(40, 120))
def test_no_row_is_wider_than_the_terminal_and_every_text_is_whole(lines, data, width):
    spans = []
    for i in range(data.draw(st.integers(1, 4))):
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(lines) - 1)] * 2)))
        first = data.draw(st.integers(0, len(lines[a])))
        last = data.draw(st.integers(first if a == b else 0, max(len(lines[b]), first if a == b else 0)))
        text = data.draw(st.sampled_from(["here", "D.weight saved here, version 1", "needed"])) + f" <{i}>"
        spans.append(Span(a + 1, first, b + 1, last, text, "", i == 0))
    rows = drawn("\n".join(lines), spans, width)
    assert max(cell_len(r) for r in rows) <= width
    for i in range(len(spans)):
        assert sum(r.count(f"<{i}>") for r in rows) == 1


@calm
@given(st.text("ab 日é-", max_size=200), st.integers(8, 60))
def test_folding_loses_no_word(text, width):
    lines = fold(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(cell_len, lines)) <= width


# -- the full report


def plain(result, v: View) -> str:
    return "\n".join(getattr(x, "plain", None) or getattr(x, "text", "") for x in full.render(result, v))


def test_full_report(tmp_path):
    path = tmp_path / "gan.py"
    text = plain(made.cured(path), view(tmp_path, width=100))
    assert text.startswith("error[stale-saved-tensor]: `D.weight` is overwritten by `optimD.step()`")
    for expected in [
        "┌─ gan.py:14:5",
        "──── `D.weight` (1×2) saved here, version 1\n",
        "10 │     d = loss(g)\n   │         ─────── called here\n",
        "━━━━━━━━━━━━━ overwritten here, version 2",
        "= PyTorch: one of the variables needed has been modified by an inplace operation: [x]",
        "= why: Autograd saved this tensor",
        "= cure: recompute-after-step (intended): take `lossG` from D",
        "G's gradient cosine 0.9998 to the exact",
        "= tried: detach-score (rejected)",
        "--- a/gan.py\n+++ b/gan.py\n",
        "-    lossG = d\n+    lossG = loss(g)\n",
    ]:
        assert expected in text


@pytest.mark.parametrize("width", [48, 60, 80, 120])
def test_the_report_fits_the_terminal(tmp_path, width):
    for result in (made.cured(tmp_path / "gan.py"), made.left(tmp_path / "gan.py")):
        lines = list(full.render(result, view(tmp_path, width=width, diff=False, verbose=1)))
        assert all(cell_len(x.plain) <= width for x in lines)


@pytest.mark.parametrize(
    ("shape", "kind", "shown"),
    [
        ((2, 1), "stale-saved-tensor", True),
        ((4, 3), "stale-saved-tensor", False),
        ((2, 1), "freed-graph", False),
    ],
    ids=["this_tensor", "another_tensor", "another_fault"],
)
def test_pytorchs_words_are_shown_where_they_are_about_this_fault(tmp_path, shape, kind, shown):
    result = made.left(tmp_path / "gan.py")
    conflict = result.diagnoses[0].conflict
    words = "modified by an inplace operation: [torch.FloatTensor [1, 2]] is at version 2; expected version 1"
    backward = replace(conflict.backward, refused=words)
    conflict = replace(conflict, kind=kind, backward=backward, ref=Ref(1, 1, "w", shape))
    diagnosis = replace(result.diagnoses[0], conflict=conflict)
    assert ("= PyTorch: " in plain(replace(result, diagnoses=(diagnosis,)), view(tmp_path))) == shown


@pytest.mark.parametrize(("kind", "shown"), [("attached-target", True), ("freed-graph", False)])
def test_pytorchs_words_of_a_consequence_are_shown_where_it_has_none_for_the_cause(tmp_path, kind, shown):
    result = made.left(tmp_path / "gan.py")
    torn = result.diagnoses[0].conflict
    words = "modified by an inplace operation: [torch.FloatTensor [1, 2]] is at version 2; expected version 1"
    torn = replace(torn, backward=replace(torn.backward, refused=words), ref=Ref(1, 1, "w", (2, 1)))
    cause = replace(torn, kind=kind, also=(torn,))
    diagnosis = replace(result.diagnoses[0], conflict=cause)
    assert ("= PyTorch: " in plain(replace(result, diagnoses=(diagnosis,)), view(tmp_path))) == shown


def test_why_is_said_once_a_kind(tmp_path):
    result = made.left(tmp_path / "gan.py")
    twice = replace(result, diagnoses=(result.diagnoses[0],) * 2)
    assert plain(twice, view(tmp_path)).count("= why: ") == 1


def test_a_span_in_another_file(tmp_path):
    conflict = made.stale(tmp_path / "gan.py")
    model = "class D:\n    def forward(self, x):\n        return self.net(x)\n"
    inner = made.site(tmp_path / "model.py", model, "self.net(x)", "D.forward")
    outer = conflict.labels[0].stack[0]
    labels = (replace(conflict.labels[0], stack=(outer, inner)), *conflict.labels[1:])
    result = made.left(tmp_path / "gan.py")
    diagnosis = replace(result.diagnoses[0], conflict=replace(conflict, labels=labels))
    sources = {**result.sources, str(tmp_path / "model.py"): model}
    text = plain(replace(result, diagnoses=(diagnosis,), sources=sources), view(tmp_path))
    assert "┌─ gan.py:14:5" in text
    assert "├─ model.py:3:16" in text
    assert "10 │     d = loss(g)\n   │         ─────── called here\n" in text


def test_only_the_line_is_known(tmp_path):
    conflict = made.stale(tmp_path / "gan.py")
    bare = Site(str(tmp_path / "gan.py"), 14)
    labels = tuple(replace(x, stack=(bare,)) if x.role == "overwritten" else x for x in conflict.labels)
    diagnosis = replace(
        made.left(tmp_path / "gan.py").diagnoses[0], conflict=replace(conflict, labels=labels)
    )
    text = plain(replace(made.left(tmp_path / "gan.py"), diagnoses=(diagnosis,)), view(tmp_path))
    assert "14 │     optimD.step()\n   │     ━━━━━━━━━━━━━ overwritten" in text


def test_lines_of_a_later_round_are_led_back(tmp_path):
    path = tmp_path / "gan.py"
    later = made.GAN.replace("import torch\n", "import torch\nimport extra\nimport more\n")
    conflict = made.stale(path, later)
    result = made.left(path)
    diagnosis = replace(result.diagnoses[0], conflict=conflict, sources={str(path): later})
    assert conflict.at.line == 16
    assert place(conflict.at, diagnosis, result).line == 14
    said = replace(conflict, message="overwritten in line 16 before line 19 needs it, of 16 in line 99")
    diagnosis = replace(diagnosis, conflict=said)
    text = plain(replace(result, diagnoses=(diagnosis,)), view(tmp_path))
    assert "overwritten in line 14 before line 17 needs it, of 16 in line 99" in " ".join(text.split())
    assert "10 │     d = loss(g)\n   │         ─────── called here\n" in text


@calm
@given(st.lists(st.sampled_from("abcd"), max_size=12), st.integers(0, 12))
def test_origins_of_an_insertion(lines, where):
    where = min(where, len(lines))
    new = [*lines[:where], "NEW", *lines[where:]]
    came = Origins("\n".join(lines), "\n".join(new))
    for number, text in enumerate(new, 1):
        found = came.of(number, 0, number, len(text))
        assert (found is None) == (not lines)
        assert found is None or found.put == text or lines[found.line - 1] == text


def test_the_calls_that_led_into_functions():
    main, a, b, inner = (Site("a.py", n) for n in (50, 10, 14, 5))

    def of(*stacks):
        return callers([Label("saved", stack, "") for stack in stacks])

    assert of((main, a, inner), (main, b)) == [a, None]
    assert of((main, b), (main, a)) == [None, None]
    assert of((a, inner), (b, inner)) == [a, b]
    assert of((main, a, inner), (main, a, b)) == [None, None]
    assert of((main, a, inner)) == [None]


def test_two_calls_say_what_each_did(tmp_path):
    path = tmp_path / "gan.py"
    conflict = made.stale(path)
    inner = made.site(path, made.GAN, "D(x)", "loss")
    needed = replace(conflict.labels[2], stack=(*conflict.labels[2].stack, inner))
    conflict = replace(conflict, labels=(*conflict.labels[:2], needed))
    result = made.left(path)
    text = plain(replace(result, diagnoses=(Diagnosis(conflict),)), view(tmp_path))
    assert "called here: saved\n" in text
    assert "called here: needed\n" in text


# ---- sentences in the words of the source

TEXT = """\
x += 1
update_params(model.parameters(), grads, lr=0.1, momentum=0.9, nesterov=True)
(self.loss + other
 # why
 ).backward(  # now
    retain_graph=True,
)
print(")", f(")") , "a very long text that nobody wants to see in a sentence about tensors")
`
"""


@pytest.mark.parametrize(
    ("where", "quoted"),
    [
        ((1, 0, 1, 6), "x += 1"),
        ((1, 0, 0, 0), "x += 1"),
        ((2, 0, 2, 78), "update_params(…)"),
        ((3, 0, 7, 1), "(self.loss + other).backward(retain_graph=True)"),
        ((8, 0, 8, 92), "print(…)"),
        ((9, 0, 9, 1), ""),
        ((3, 0, 3, 18), ""),  # brackets that don't pair
        ((99, 0, 99, 1), ""),
    ],
)
def test_a_place_in_the_words_of_the_source(where, quoted):
    assert wording.quote(Site("a.py", *where), {"a.py": TEXT}) == quoted
    assert wording.quote(Site("b.py", *where), {"a.py": TEXT}) == ""


def test_a_sentence_names_lines_where_texts_are_alike():
    sites = [Site("a.py", n, 0, n, 15) for n in (1, 2)]
    labels = tuple(Label(role, (at,), "") for role, at in zip(("freed", "needed"), sites, strict=True))
    message = "the backward in line 2 needs the graph of `h`, which the backward in line 1 has freed"
    said = describe(
        Conflict("freed-graph", "error", message, labels), {"a.py": "loss.backward()\nloss.backward()\n"}
    )
    assert said == (
        "`loss.backward()` in line 2 needs the graph of `h`, which `loss.backward()` in line 1 has freed"
    )
