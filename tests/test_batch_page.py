"""The reports of a batch: report.html in a real browser, and what nobody may smuggle into them."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Page
from repositories import faulty, plain, repository

from gradfix.batch.drawing import gradients, timeline
from gradfix.batch.html import page
from gradfix.batch.intake import specs
from gradfix.batch.migrate import Batch, Wish
from gradfix.batch.state import State
from gradfix.batch.values import Options
from gradfix.batch.written import write

EVIL = "</script><script>window.evil=1</script><img src=x onerror=window.evil=1>"
NEEDED = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """Three repositories: a proved cure, a copy whose names mean harm, and one that is refused."""
    folder = tmp_path_factory.mktemp("page")
    places = [
        repository(folder / "a", {"train.py": faulty()}),
        plain(
            folder / "b", {f"{EVIL[:9].replace('/', '')}.py": faulty().replace("opt =", f"# {EVIL}\nopt =")}
        ),
        folder / "none",
    ]
    plain(folder / "b", {"again.py": faulty("critic") + f"message = {EVIL!r}\n"})
    state = State(folder)
    state.add(specs(map(str, places)))
    Batch(folder, Options(prove=True), Wish(diff=True), jobs=2).run(state, lambda _: None)
    write(folder, state, state.specs())
    state.close()
    return folder


def test_the_page_stands_alone_and_is_whole(workspace):
    text = (workspace / "report.html").read_text()

    class Whole(HTMLParser):
        open_, links = [], []

        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "input", "br", "img", "line", "circle", "path"):
                self.open_.append(tag)
            self.links += [v for k, v in attributes if k in ("src", "href")]

        def handle_endtag(self, tag):
            if tag not in ("line", "circle", "path"):
                assert self.open_.pop() == tag

    parser = Whole()
    parser.feed(text)
    assert parser.open_ == []
    assert {link[0] for link in parser.links} == {"#"}


def test_the_documents_agree(workspace):
    document = json.loads((workspace / "report.json").read_text())
    assert document["totals"]["repositories"] == 3
    assert document["totals"]["ended"] == {"done": 2, "refused": 1}
    assert document["totals"]["verdicts"] == {"proved": 3}
    assert document["groups"][0]["repositories"] == ["a", "b"]
    assert document["groups"][0]["hint"] == "out-of-place"
    told = (workspace / "report.md").read_text()
    assert "| stale-saved-tensor | `value += 1` | 3 | 2 | out-of-place | 3 proved | 3 in a patch |" in told
    assert "**proved**" in (workspace / "pull-requests/a.md").read_text()
    assert not (workspace / "pull-requests/none.md").exists()


@NEEDED
def test_in_a_browser(workspace, tmp_path):
    with Page(workspace / "report.html", tmp_path) as seen:
        assert seen.js("document.title") == "gradfix migrate: 3 repositories"
        names = "[...document.querySelectorAll('#repositories tbody tr')].map(r => r.cells[0].textContent)"
        assert seen.js(names) == ["b", "a", "none"]
        seen.click("#repositories th:nth-child(1)")
        assert seen.js(names) == ["a", "b", "none"]
        seen.click("#repositories th:nth-child(3)")
        assert seen.js(names) == ["none", "a", "b"]
        seen.click("#repositories th:nth-child(3)")
        assert seen.js(names) == ["b", "a", "none"]
        assert seen.js("document.querySelector('#repositories th:nth-child(3)').ariaSort") == "descending"
        visible = "[...document.querySelectorAll('section.repo')].filter(s => s.offsetParent).map(s => s.id)"
        seen.click("#filter")
        seen.type("refused")
        assert seen.js(visible) == ["repo-none"]
        seen.js("document.getElementById('filter').value = ''")
        seen.type(" ")
        assert seen.js(visible) == ["repo-b", "repo-a", "repo-none"]
        roles = (
            "[...document.querySelectorAll('#repo-a svg.timeline text[font-weight]')].map(t => t.textContent)"
        )
        assert seen.js(roles) == ["saved", "overwritten", "needed"]
        drawn = seen.js("document.querySelector('#repo-a pre.source').innerText").splitlines()
        assert [line.split("│")[0].strip() for line in drawn[1:]] == ["6", "", "7", "", "8", "9", ""]
        assert "value += 1" in drawn[3]
        versions = "[...document.querySelectorAll('#repo-a svg.timeline text:not([font-weight])')]"
        assert [t for t in seen.js(f"{versions}.map(t => t.textContent)") if "version" in t] == [
            "version 0",
            "version 1",
        ]
        assert seen.js("document.querySelector('#repo-a pre.diff').checkVisibility()") is False
        seen.click("#repo-a .cure details summary")
        assert seen.js("document.querySelector('#repo-a pre.diff').checkVisibility()") is True
        diff = seen.js("document.querySelector('#repo-a pre.diff').innerText").splitlines()
        assert "+    value = value + 1" in diff
        assert seen.js("document.querySelector('#repo-a svg.gradients').getBoundingClientRect().width") > 50
        assert "ran behind" in seen.js("document.querySelector('#repo-a summary').innerText")
        assert seen.js("document.documentElement.scrollWidth <= window.innerWidth") is True
        assert seen.js("window.evil") is None
        assert seen.errors == []


def test_without_jinja2_there_is_no_page(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert page({}) is None


def test_pictures_of_odd_numbers():
    assert timeline([]) == ""
    assert gradients({}) == ""
    assert gradients({"optimizers": {"opt": {"cosine": None, "norm_ratio": "nan"}}}) == ""
    drawn = gradients({"optimizers": {"<b>": {"cosine": -1.0, "norm_ratio": 1e9}}})
    assert "&lt;b&gt;" in drawn
    mark = {"role": "saved", "text": "x", "path": "p.py", "line": 3, "code": "", "version": 0}
    assert "line 3" in timeline([mark])
    far = mark | {"path": "a/long/way/down/" * 9 + "p.py"}
    assert max(map(len, re.findall(r"<text[^>]*>([^<]*)", timeline([far, far])))) <= 54
    assert "p.py:3<" in timeline([far, far])
