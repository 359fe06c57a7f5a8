"""report.md and pull-request texts as a renderer of Markdown shows them: what others have named stays text."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from repositories import faulty, repository
from test_batch import call, migrate
from test_batch_names import reports

from gradfix.batch.git import no_branch
from gradfix.batch.migrate import Wish
from gradfix.batch.words import escaped, text
from gradfix.batch.written import table

HTML = "<img src=x onerror=alert(1)>"
ODD = st.text(st.sampled_from("ab1 \n\t`|\\\\<>&*_[]()!#@~$-+=.:/x;\"'\x1b\u202e\ud800"), max_size=12)


def rendered(markdown: str):
    """All tokens, those within lines too."""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        yield token
        yield from token.children or ()


def shown(tokens) -> str:
    return "".join(t.content for t in tokens if t.type in ("text", "text_special", "code_inline")).replace(
        "\u200b", ""
    )


@given(ODD)
@example("a|b\\\\|c `d|e`")
@example("`` ` ``")
@example("1. x")
@example("- [ ] x")
@example("# x")
@example("___")
@example("&lt;&#60;")
@example("[a](b) ![c](d) <http://x> **b**")
def test_what_was_named_is_text_in_a_table_and_a_list(said):
    plain = " ".join(escaped(said).split())
    for markdown in ("\n".join(table(["x", "y"], [[said, "z"]])), f"- {text(said)}\n"):
        tokens = list(rendered(markdown))
        known = {"inline", "text", "text_special", "code_inline", "paragraph", "bullet_list", "list_item"}
        kinds = {re.sub("_(open|close)$", "", t.type) for t in tokens}
        assert kinds <= known | {"table", "thead", "tbody", "tr", "th", "td"}
        assert sum(t.type == "td_open" for t in tokens) == 2 * markdown.startswith("|")
        now = shown(tokens).removeprefix("xy").removesuffix("z" * markdown.startswith("|"))
        assert re.sub(r"[\s`]", "", now) == re.sub(r"[\s`]", "", plain)


@pytest.mark.parametrize("said", ["@torvalds", "fixes #12", "GH-12", "https://github.com/a/b/issues/1"])
def test_nobody_is_called(said):
    """GitHub looks for these in what is rendered, in code alone it does not."""
    drawn = "".join(t.content for t in rendered(text(said)) if t.type == "inline" for t in t.children)
    assert said not in drawn
    assert drawn.replace("\u200b", "") == said
    assert text(f"`{said}`") == f"`{said}`"


def test_the_reports_of_a_repository_with_such_names(tmp_path):
    name = f"a|b {HTML} `@x` *y*.py"
    big = f"[big]({HTML}) @all #1.py"
    files = {name: faulty() + f"# {HTML} |\n", f"{HTML}.py": "import torch\nloss.backward(\n"}
    repo = repository(tmp_path / "repo", {**files, big: "x = 1\n" * 400_000})
    branch = f"x|{HTML.replace(' ', '')}`y`"
    assert no_branch(branch) == ""
    git_ = Wish(branch=branch, diff=True)
    migrate(tmp_path / "ws", [repo], wish=git_)
    reports(tmp_path / "ws")
    for report in ("report.md", "pull-requests/repo.md"):
        markdown = (tmp_path / "ws" / report).read_text()
        tokens = list(rendered(markdown))
        assert not [
            t for t in tokens if t.type in ("html_inline", "html_block", "image", "link_open", "em_open")
        ]
        assert big in shown(tokens), report
        rows = [line for line in markdown.splitlines() if line.startswith("|")]
        assert bool(rows) == (report == "report.md")
    cells = [t.type for t in rendered((tmp_path / "ws/report.md").read_text())]
    for block in " ".join(cells).split("table_open")[1:]:
        heads, rows = block.count("th_open"), block.count("tr_open") - 1
        assert block.count("td_open") == heads * rows
    page = (tmp_path / "ws/report.html").read_text()
    assert HTML not in page


def test_a_workspace_does_not_steer_the_terminal(tmp_path):
    repository(tmp_path / "repo", {"train.py": faulty()})
    done = call("repo", "--workspace", "w\x1b[2J", cwd=tmp_path)
    assert "Reports: " in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
