"""The report for people: each fault drawn in the source, its cures with what was measured, and the diff."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradfix import notebook
from gradfix.detect import KINDS, Conflict
from gradfix.explain import why
from gradfix.messages import recognise
from gradfix.report import Line, Raw, View, faults, shown
from gradfix.report.diff import patch, unified
from gradfix.report.layout import command, fold, safe, wording
from gradfix.report.places import Place, callers, labelled, message, place
from gradfix.report.places import shown as written
from gradfix.report.snippet import GUTTER, Span, draw
from gradfix.run import walls
from gradfix.source import split_lines
from gradfix.verdict import HELD

if TYPE_CHECKING:
    from gradfix.result import Cure, Diagnosis, Result

SEVERITY = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
VERDICT = {
    "proved": "green",
    "preserved": "green",
    "intended": "green",
    "rejected": "red",
    "untried": "yellow",
}
SECONDARY = "bright_blue"
NAMED = ("saved", "overwritten", "needed", "freed", "made", "used")  # roles that read as what a call did
EVIDENCE = {
    "likely": "likely; it hangs on something that the text does not tell, or the program ends before it today",
    "traceback": "the traceback shows it",
}
PLACES = 5  # consequences that are listed by place
OTHERS = 4  # cures that were not applied and are shown without -v


def render(result: Result, view: View) -> Iterator[Text | Line | Raw]:
    """Everything there is to say of one result but the closing line."""
    told: set[str] = set()
    for diagnosis in shown(result):
        yield from _diagnosis(diagnosis, result, view, diagnosis.conflict.kind not in told)
        yield Text()
        told.add(diagnosis.conflict.kind)
    minor = result.minor if view.verbose and view.action != "check" else ()
    for line in (*result.lines, *minor):
        yield from _hanging("note: ", line, view, "bold")
    if view.verbose and not result.problem and view.action != "check":
        yield from _hanging("ran: ", _how_it_ran(result), view, "bold")
    if view.diff and result.files:
        yield from diff_lines(result.files, view)
        yield Text()


def behind(results: Iterable[Result]) -> str:
    """The line that names what stood between the runs and this machine."""
    names = dict.fromkeys(walls.words(r.wall) for r in results if r.wall)
    return f"Ran behind {'; '.join(names)}." if names else ""


def closing(results: Iterable[Result], view: View) -> str:
    """The last line: what was found, what came of it, what to do next."""
    results = list(results)
    found = [d for r in results for d in faults(r)]
    asked = [d for r in results for d in shown(r) if d.conflict.severity == "note"]
    hidden = sum(d.status == "note" for r in results for d in r.diagnoses)
    more = (
        f" {_count(hidden, 'note')} not shown: --notes shows and cures {'it' if hidden == 1 else 'them'}."
        if hidden
        else ""
    )
    if not found and not asked:
        if any(r.problem for r in results):
            return ""
        return f"No faults found{_extent(results)}.{more}"
    counts = [_count(len(found), "fault")] if found else []
    counts += [_count(len(asked) + sum(len(d.along) for d in asked), "note")] if asked else []
    sentence = f"Found {' and '.join(counts)}"
    if view.action == "run":
        names = command(view.paths.show(str(r.entry)) for r in results if r.diagnoses)
        return f"{sentence}.{more} To look for cures: gradfix fix {names}"
    cured = [d for d in found + asked if d.status == "cured"]
    left = len(found) + len(asked) - len(cured)
    along = sum(len(d.along) for d in cured)
    parts = []
    if cured:
        verdicts = Counter(d.cures[0].verdict.status for d in cured if d.cures for _ in (d, *d.along))
        how = ", ".join(s if len(verdicts) == 1 else f"{n} {s}" for s, n in verdicts.items())
        parts.append(
            f"{len(cured) + along} cured ({how})" + (" and written" if view.action == "write" else "")
        )
    if left:
        parts.append(f"{left} left")
    held = [_held_back(r, bool(view.verbose)) for r in results if r.held_back and not r.files]
    if held:
        return " ".join(held) + more if len(results) == 1 else " ".join([f"{sentence}.", *held]) + more
    todo = ""
    if cured and view.action == "diff":
        todo = f" Write {'it' if len(cured) == 1 else 'them'} with --write."
    barred = any(_held_out(d) for d in found + asked) and not any(r.problem or r.held_back for r in results)
    accept = f" --accept {','.join(HELD)} applies what is only shown now." if barred else ""
    apart = "".join(f" The other cures are held back: {r.held_back}." for r in results if r.held_back)
    return f"{sentence}; {', '.join(parts)}.{todo}{accept}{apart}{more}"


def curable(diagnosis: Diagnosis) -> bool:
    """Whether a cure of a fault that is left holds by itself."""
    return bool(diagnosis.cures) and diagnosis.cures[0].verdict.status in HELD


def _held_out(diagnosis: Diagnosis) -> bool:
    return diagnosis.status == "left" and curable(diagnosis)


def _held_back(result: Result, verbose: bool) -> str:
    asked = shown(result)
    able = [d for d in asked if curable(d)]
    rest = len(asked) - len(able)
    verdicts = " or ".join(dict.fromkeys(d.cures[0].verdict.status for d in able))
    have = "has" if len(able) == 1 else "have"
    article = "an" if verdicts.startswith("intended") else "a"
    none = f"; {rest} {'has' if rest == 1 else 'have'} none" if rest else ""
    more = "" if verbose else f" -v shows {'the diff' if len(able) == 1 else 'their diffs'}."
    noun = "fault" if all(d.conflict.severity != "note" for d in asked) else "finding"
    return (
        f"{len(able)} of {_count(len(asked), noun)} {have} {article} {verdicts} cure{none}, so nothing is applied: "
        f"{result.held_back}.{more}"
    )


def diff_lines(files: Mapping[str, tuple[str, str]], view: View) -> Iterator[Line | Raw]:
    """The unified diff of `files`: styled, or for a program to read."""
    if view.piped:
        yield from map(Raw, patch(files, view.paths))
        return
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in unified(files, view.paths):
        yield Line(line, "bold" if line.startswith(("+++", "---")) else styles.get(line[:1], ""))


def _diagnosis(
    diagnosis: Diagnosis, result: Result, view: View, explain: bool
) -> Iterator[Text | Line | Raw]:
    conflict = diagnosis.conflict
    style = SEVERITY[conflict.severity]
    head = f"{conflict.severity}[{conflict.kind}]: "
    said, *more = fold(
        wording(message(diagnosis, result), view.glyphs), view.width - 2, view.width - cell_len(head)
    )
    yield Text.assemble((head[:-2], style), (f": {said}", "bold"))
    yield from (Text(f"  {line}", style="bold") for line in more)
    yield from excerpt(diagnosis, result, view)
    margin = _margin(list(_spans(diagnosis, result, view)), result)
    yield from _sentences(diagnosis, result, view, f"{'':>{margin}} = ", explain)


def excerpt(diagnosis: Diagnosis, result: Result, view: View) -> Iterator[Text]:
    """The fault's places in the source, each labelled with what happened there."""
    spans = list(_spans(diagnosis, result, view))
    here = next(p for p, span in spans if span.primary)
    order = sorted({p.path: p for p, _ in reversed(spans)}.values(), key=lambda p: p.path != here.path)
    margin = _margin(spans, result)
    for number, first in enumerate(order):
        first = here if first.path == here.path else first
        inside = [span for p, span in spans if p.path == first.path]
        sign = view.glyphs.tee if number else view.glyphs.corner
        yield Text.assemble((f"{'':>{margin}} {sign} ", GUTTER), safe(written(first, result, view.paths)))
        text = result.sources.get(first.path)
        if text is None:
            spans_text = "; ".join(f"line {s.line}: {s.text}" for s in inside)
            yield from _hanging(f"{'':>{margin}} {view.glyphs.bar} ", spans_text, view, GUTTER)
        else:
            numbers = _numbering(first.path, result)
            text = notebook.written(text) if first.path.endswith(".ipynb") else text
            yield from draw(split_lines(text), inside, view.width, margin, view.glyphs, numbers)


def _margin(spans: list[tuple[Place, Span]], result: Result) -> int:
    """The width of the line numbers."""
    return max(2, *(len(_numbering(p.path, result)(p.end_line)) for p, _ in spans))


def _numbering(path: str, result: Result) -> Callable[[int], str]:
    """How the lines of a file are numbered: ``cell:line`` in a notebook."""
    text = result.sources.get(path, "")

    def number(line: int) -> str:
        found = notebook.locate(text, line) if path.endswith(".ipynb") else None
        return f"{found[0]}:{found[1]}" if found else str(line)

    return number


def _spans(diagnosis: Diagnosis, result: Result, view: View) -> Iterator[tuple[Place, Span]]:
    """What is marked, and in which file: every label, and the user's own call that led to it."""
    conflict = diagnosis.conflict
    called: dict[Place, list[str]] = {}
    said: set[tuple[Place, str]] = set()  # a line that many objects of a class run
    for i, (label, caller) in enumerate(zip(conflict.labels, callers(conflict.labels), strict=True)):
        primary = i == conflict.primary
        style = SEVERITY[conflict.severity] if primary else SECONDARY
        at, words = place(label.at, diagnosis, result), labelled(label, diagnosis, result)
        if primary or (at, words) not in said:
            yield _span(at, words, style, primary)
        said.add((at, words))
        if caller is not None:
            called.setdefault(place(caller, diagnosis, result), []).append(label.role)
    for at, roles in called.items():
        which = [r for r in dict.fromkeys(roles) if r in NAMED] if len(called) > 1 else []
        yield _span(at, f"called here{': ' + ' and '.join(which) if which else ''}", SECONDARY, False)


def _span(p: Place, text: str, style: str, primary: bool) -> tuple[Place, Span]:
    return p, Span(p.line, p.column, p.end_line, p.end_column, text, style, primary, p.whole)


def _sentences(
    diagnosis: Diagnosis, result: Result, view: View, lead: str, explain: bool
) -> Iterator[Text | Line | Raw]:
    conflict = diagnosis.conflict
    words = _pytorch(diagnosis)
    if words:
        sentence = words.split("\n")[0]
        yield from _hanging(
            f"{lead}PyTorch: ", sentence if view.verbose else _first_sentence(sentence), view, "bold"
        )
    if explain:
        yield from _hanging(f"{lead}why: ", why(conflict.kind), view, "bold")
    if diagnosis.evidence in EVIDENCE:
        yield from _hanging(f"{lead}evidence: ", EVIDENCE[diagnosis.evidence], view, "bold")
    if conflict.also:
        places = [place(c.at, replace(diagnosis, conflict=c), result) for c in conflict.also]
        labelled = [place(x.at, diagnosis, result) for x in conflict.labels]
        known = {(p.path, p.line) for p in labelled}
        elsewhere = [p for p in places if (p.path, p.line) not in known]
        names = list(dict.fromkeys(written(p, result, view.paths).rsplit(":", 1)[0] for p in elsewhere))
        more = f" and {len(names) - PLACES} more places" if len(names) > PLACES else ""
        if names:
            text = ", ".join(names[:PLACES]) + more
            yield from _hanging(f"{lead}follows from it: ", text, view, "bold")
    if diagnosis.along:
        others = [place(c.at, replace(diagnosis, conflict=c), result) for c in diagnosis.along]
        text = ", ".join(dict.fromkeys(written(p, result, view.paths).rsplit(":", 1)[0] for p in others))
        yield from _hanging(f"{lead}the same in: ", text, view, "bold")
    yield from _cures(diagnosis, view, lead)


def _pytorch(diagnosis: Diagnosis) -> str:
    """The error PyTorch raised, where it is about this fault; of a fault that PyTorch has no words for, about what
    follows from it."""
    conflict = diagnosis.conflict
    about = (conflict,) if KINDS[conflict.kind] == "error" else (conflict, *conflict.also)
    return next(filter(None, map(_raised, about)), "")


def _raised(conflict: Conflict) -> str:
    """What PyTorch said of just this conflict (of several, a backward raises at the first)."""
    words = getattr(conflict.write, "refused", "") or getattr(conflict.backward, "refused", "")
    finding = recognise(words) if words else None
    if finding is None or finding.kind != conflict.kind:
        return ""
    shape = dict(finding.facts).get("tensor", "")
    expected = re.search(r"expected version (\d+)", words)
    counter = conflict.ref.counter if conflict.ref is not None else None
    if expected is not None and counter is not None and int(expected[1]) != counter:
        return ""
    if conflict.ref is None or not conflict.ref.shape or not shape.endswith(")"):
        return words
    sizes = sorted(re.findall(r"\d+", shape[shape.rindex("(") :]))
    return words if sizes == sorted(map(str, conflict.ref.shape)) else ""


def _cures(diagnosis: Diagnosis, view: View, lead: str) -> Iterator[Text | Line | Raw]:
    # variants that differ in their text only, and measured alike, are shown once: the first
    alike = {(c.codemod, c.summary, c.verdict.status, c.verdict.reason): c for c in reversed(diagnosis.cures)}
    cures = list(alike.values())[::-1]
    if not cures:
        if view.action in ("diff", "write") and diagnosis.status == "left":
            hint = f"no cure was found; gradfix explain {diagnosis.conflict.kind}"
            yield from _hanging(f"{lead}left: ", hint, view, "bold")
        return
    held_back = _held_out(diagnosis)
    if diagnosis.status == "cured" or held_back:
        words = "cure: " if diagnosis.status == "cured" else "cure, not applied: "
        first = cures.pop(0)
        yield from _cure(f"{lead}{words}", first, view)
        if held_back and view.verbose:
            changes = {path: (first.before[path], text) for path, text in first.after.items()}
            yield from (Line(f"{view.glyphs.bar} {line}") for line in unified(changes, view.paths))
    few = cures if view.verbose else cures[: 1 if view.action == "check" else OTHERS]
    for cure in few:
        words = "or" if cure.verdict.status in HELD else "tried"
        yield from _cure(f"{lead}{'help' if cure.verdict.status == 'untried' else words}: ", cure, view)
    if len(few) < len(cures):
        yield from _hanging(lead, f"and {len(cures) - len(few)} more, shown with -v", view, "bold")


def _cure(lead: str, cure: Cure, view: View) -> Iterator[Text]:
    verdict = cure.verdict
    head = Text.assemble(
        (lead, "bold"), (cure.codemod, "bold"), " (", (verdict.status, VERDICT[verdict.status]), ")"
    )
    indent = " " * (_words_at(lead) + 2)
    if cure.summary:
        head.append(": ")
    room = view.width - cell_len(head.plain)
    lines = fold(wording(cure.summary, view.glyphs), view.width - len(indent), room if room >= 24 else 0)
    head.append(lines[0])
    head.rstrip()
    yield head
    for line in lines[1:]:
        yield Text(indent + line)
    said = [f"After this, {_sentence(cure.effect.words)}"] if cure.effect.words else []
    if verdict.reason and view.action != "check":
        said.append(f"{'reason' if verdict.status == 'untried' else 'measured'}: {verdict.reason}")
    if view.verbose:
        said += [f"{name}: {value}" for name, value in _numbers(verdict.measured)]
    for text in said:
        first, *rest = fold(
            wording(text, view.glyphs), view.width - len(indent) - 2, view.width - len(indent)
        )
        yield Text(indent + first)
        yield from (Text(f"{indent}  {line}") for line in rest)


def _numbers(measured: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """(name, values) of what was measured: the plain values of a level in one line, levels below it after."""
    plain = {k: v for k, v in measured.items() if not isinstance(v, Mapping)}
    if plain:
        yield path or "numbers", ", ".join(f"{k} {_number(v)}" for k, v in plain.items())
    for key, value in measured.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}, {key}" if path else key)


def _hanging(lead: str, text: str, view: View, style: str) -> Iterator[Text]:
    """`lead` and `text` folded beside it, further lines two cells in from the first word of the lead."""
    indent = " " * (_words_at(lead) + 2)
    lines = fold(wording(text, view.glyphs), view.width - len(indent), view.width - cell_len(lead))
    yield Text.assemble((lead, style), lines[0])
    for line in lines[1:]:
        yield Text(indent + line)


def _words_at(lead: str) -> int:
    return next((i for i, c in enumerate(lead) if c.isalnum()), len(lead) - 2)


def _how_it_ran(result: Result) -> str:
    how = {
        "finished": "the script ran to its end",
        "steps": "stopped after enough steps of every optimizer",
        "exit": "the script ended itself",
        "failed": "the script ended with an exception",
        "timeout": "stopped at the time limit",
        "tape": "read from a tape",
    }.get(result.ended, result.ended)
    rounds = f"{_count(result.rounds, 'round')}, " if result.rounds else ""
    return f"{how}; {rounds}{result.seconds:.1f} s"


def _extent(results: list[Result]) -> str:
    ends = {r.ended for r in results}
    if results and not any(r.trained for r in results):
        return "; the script ran to its end without a backward()" if ends == {"finished"} else ""
    if ends == {"timeout"}:
        return " before the time limit"
    return " in the first steps of every optimizer" if ends == {"steps"} else ""


def _first_sentence(text: str) -> str:
    head, stop, _ = text.partition(". ")
    return head + (" …" if stop else "")


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else text + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
