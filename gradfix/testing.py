"""The checks every codemod goes through, public so that a third-party package tests its own alike.

A fixture is a folder ``<codemod>/<case>/`` with ``before.py``, a program that runs, whose lines at fault end in
``# conflict: <kind>``, and ``after.py``, what the codemod makes of it. Without ``after.py`` the program must stay as
it is. Other files beside them are the program's own modules (``after/`` holds those that change).

    import pytest
    from gradfix import testing

    @pytest.mark.parametrize("fixture", testing.fixtures("fixtures"), ids=str)
    def test_fixture(fixture, zygote):
        testing.check(fixture, zygote)

    @pytest.mark.parametrize("case", testing.examples("my_cures"), ids=str)
    def test_example(case, zygote):
        testing.check_example(case, zygote)

    def test_every_codemod_has_a_fixture():
        testing.check_complete("my_cures", "fixtures")

The fixture ``zygote`` comes with gradfix: one warm process, from which every run is forked. To see what a codemod is
given, and so what it can go by: ``python -m gradfix.testing before.py`` prints a script's conflicts, field by field.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from gradfix.codemod import Codemod, Example, codemods
from gradfix.detect import KINDS, Conflict
from gradfix.packages import GROUP
from gradfix.pipeline import fix
from gradfix.report.places import place
from gradfix.result import Diagnosis, Result, Settings
from gradfix.rewrite.calls import explains_retain
from gradfix.run.zygote import Zygote
from gradfix.source import split_lines
from gradfix.tape import Event, Ref, Site, Stack

MARK = re.compile(r"#\s*conflict:\s*([\w-]+(?:\s*,\s*[\w-]+)*)")


@dataclass(frozen=True)
class Fixture:
    """One folder of fixtures: a program and what its codemod makes of it."""

    codemod: str
    case: str
    before: Path
    after: Path | None

    def __str__(self) -> str:
        return f"{self.codemod}/{self.case}"

    @cached_property
    def marks(self) -> tuple[tuple[str, int, str], ...]:
        """(file name, line, kind) of every ``# conflict:`` comment of the program and its sibling modules."""
        found = []
        for path in sorted(self.before.parent.glob("*.py")):
            if path.name == "after.py":
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if mark := MARK.search(line):
                    found += [(path.name, number, kind.strip()) for kind in mark[1].split(",")]
        return tuple(found)

    @cached_property
    def modules(self) -> dict[str, str]:
        """The program's modules that the codemod changes, and what it makes of them."""
        changed = self.before.parent.glob("after/*.py")
        return {path.name: path.read_bytes().decode("utf-8") for path in changed}


def fixtures(folder: Path | str) -> tuple[Fixture, ...]:
    """Every fixture below `folder`, in order of name."""
    found = []
    for before in sorted(Path(folder).glob("*/*/before.py")):
        after = before.with_name("after.py")
        case, codemod = before.parent.name, before.parent.parent.name
        found.append(Fixture(codemod.replace("_", "-"), case, before, after if after.exists() else None))
    return tuple(found)


@dataclass(frozen=True)
class ExampleCase:
    """One example of a codemod's class."""

    codemod: type[Codemod]
    example: Example
    number: int

    def __str__(self) -> str:
        return f"{self.codemod.name()}-{self.number}"


def describe(conflict: Conflict) -> str:
    """Every field of a conflict that is set, with places for stacks: what its codemods can go by."""
    lines = [f"{conflict.kind} ({conflict.severity}), pattern {conflict.pattern!r}", f"  {conflict.message}"]
    for number, label in enumerate(conflict.labels):
        primary = " (primary: conflict.at)" if number == conflict.primary else ""
        lines.append(f"  labels[{number}]  {label.role}{primary}: {label.text}\n    {_places(label.stack)}")
    for name in ("ref", "record", "write", "backward", "earlier", "event"):
        value = getattr(conflict, name)
        if value is not None:
            lines.append(f"  {name}  {_short(value)}")
            if isinstance(value, Event):
                lines.append(f"    {_places(value.stack)}")
    lines += [f"  also  {other.message}" for other in conflict.also]
    return "\n".join(lines)


def _places(stack: Stack) -> str:
    """The frames, outermost first, with columns as libcst and the tape count them."""
    return (
        " > ".join(f"{Path(s.file).name}:{s.line}:{s.column} in {s.function}" for s in stack)
        or "nowhere of yours"
    )


def _short(value: object) -> str:
    """``Mutate(op='aten.add_', ...)``: of an event or a ref what is not as by default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    if not isinstance(value, Event | Ref):
        return repr(value)
    told = [
        f for f in fields(value) if f.name not in ("time", "stack") and getattr(value, f.name) != f.default
    ]
    return f"{type(value).__name__}({', '.join(f'{f.name}={_short(getattr(value, f.name))}' for f in told)})"


def of_package(package: str) -> tuple[type[Codemod], ...]:
    """The installed codemods that `package` holds."""
    return tuple(c for c in codemods() if f"{c.__module__}.".startswith(f"{package}."))


def examples(package: str) -> tuple[ExampleCase, ...]:
    """Every example of every installed codemod of `package`."""
    return tuple(ExampleCase(c, e, n) for c in of_package(package) for n, e in enumerate(c.examples, 1))


def check_complete(package: str, folder: Path | str) -> None:
    """That every codemod of `package` has an example, and a fixture below `folder` that it changes. Raises
    AssertionError with a sentence."""
    ours = of_package(package)
    assert ours, f"no codemod of {package} is installed: its entry point in the group {GROUP} is missing"
    changed = {f.codemod for f in fixtures(folder) if f.after}
    for codemod in ours:
        assert codemod.examples, f"{codemod.name()} has no example"
        assert codemod.name() in changed, f"{codemod.name()} has no fixture with an after.py in {folder}"
    unknown = changed - {codemod.name() for codemod in ours}
    assert not unknown, f"{folder} has fixtures of {sorted(unknown)}, which {package} does not hold"


def check_example(case: ExampleCase, zygote: Zygote) -> None:
    """Take one example through the checks of a fixture: broken before, cured as printed, clean after; and with the
    effect it says. Raises AssertionError with a sentence."""
    with TemporaryDirectory() as folder:
        before, after = Path(folder, "before.py"), Path(folder, "after.py")
        before.write_text(case.example.before, encoding="utf-8")
        after.write_text(case.example.after, encoding="utf-8")
        fixture = Fixture(case.codemod.name(), f"example {case.number}", before, after)
        assert fixture.marks, f"{fixture}: no line is marked `# conflict: <kind>`"
        cured = check(fixture, zygote)
    effects = [d.cures[0].effect.kind for d in cured.diagnoses if d.status == "cured"]
    assert effects[:1] == [case.example.effect], f"{fixture} was cured with the effects {effects}"


def check(fixture: Fixture, zygote: Zygote) -> Result:
    """Take one fixture through every check, and give what came of it. Raises AssertionError with a sentence."""
    known = {c.name() for c in codemods()}
    assert fixture.codemod in known, f"there is no codemod {fixture.codemod}"
    before = fixture.before.read_bytes().decode("utf-8")
    notes = not _errors(fixture)
    alone = one(fixture.before, zygote, Settings(codemods=(fixture.codemod,), notes=notes))
    found_where_marked(fixture, alone)
    if fixture.after is None:
        assert not alone.files, f"{fixture} must stay as it is, and became\n{_new(alone)}"
        return alone
    after = fixture.after.read_bytes().decode("utf-8")
    assert _new(alone) == after, f"{fixture} became\n{_new(alone) or '(unchanged)'}{_why(alone)}"
    modules = {Path(path).name: new for path, (_, new) in alone.files.items()}
    modules.pop("before.py", None)
    assert modules == fixture.modules, f"{fixture}: of its modules {sorted(modules)} became\n{modules}"
    kept = Counter(c for c in comments(before) if not explains_retain(c))
    assert not kept - Counter(comments(after)), f"{fixture} lost comments"
    assert alone.verdict is not None
    assert alone.verdict.status in ("proved", "preserved", "intended"), alone.verdict
    if _errors(fixture):
        raised = alone.failure is not None
        assert raised or alone.verdict.status in ("proved", "intended"), f"{fixture} was not broken before"
    again = _once_more(fixture, zygote, Settings(notes=notes))
    assert not again.files, f"{fixture} is not a fixed point: a second run makes it\n{_new(again)}"
    left = [d for d in again.diagnoses if d.conflict.severity != "note"]
    assert not left, f"{fixture} still has {[d.conflict.message for d in left]}"
    return alone


def _once_more(fixture: Fixture, zygote: Zygote, settings: Settings) -> Result:
    """The Result of what the codemod makes of the fixture, with the modules that it changes."""
    assert fixture.after is not None
    if not fixture.modules:
        return one(fixture.after, zygote, settings)
    with TemporaryDirectory() as folder:
        for path in (*fixture.before.parent.glob("*.py"), *fixture.before.parent.glob("after/*.py")):
            Path(folder, path.name).write_bytes(path.read_bytes())
        return one(Path(folder, fixture.after.name), zygote, settings)


def one(path: Path, zygote: Zygote, settings: Settings) -> Result:
    """The Result of `path`."""
    (result,) = fix(path, settings, zygote=zygote)
    assert result.problem is None, result.problem
    return result


def found_where_marked(fixture: Fixture, result: Result) -> None:
    """Every mark is touched by a conflict of its kind or its cure; every conflict above a note touches a mark."""
    for name, line, kind in fixture.marks:
        hit = any(
            d.conflict.kind == kind and (name, line) in places(d, result) | cured(d, result)
            for d in result.diagnoses
        )
        assert hit, f"{fixture}: no {kind} at {name}:{line}; found {[_said(d) for d in result.diagnoses]}"
    marked = {(name, line) for name, line, _ in fixture.marks}
    for d in result.diagnoses:
        if d.conflict.severity != "note":
            assert marked & places(d, result), f"{fixture}: {_said(d)} is not marked"


def places(diagnosis: Diagnosis, result: Result) -> set[tuple[str, int]]:
    """(file name, line of the program as it was) of every line that a label's frames touch."""
    return {
        (Path(site.file).name, _first_line(site.file, line, diagnosis, result))
        for conflict in (diagnosis.conflict, *diagnosis.conflict.also)
        for label in conflict.labels
        for site in label.stack
        for line in range(site.line, max(site.line, min(site.end_line, site.line + 12)) + 1)
    }


def cured(diagnosis: Diagnosis, result: Result) -> set[tuple[str, int]]:
    """(file name, line of the program as it was) of every line that the applied cure changes: one cure may do for
    several faulty lines."""
    if diagnosis.status != "cured":
        return set()
    cure = diagnosis.cures[0]
    return {
        (Path(path).name, _first_line(path, line, diagnosis, result))
        for path, new in cure.after.items()
        for tag, i, j, _, _ in SequenceMatcher(
            None, split_lines(cure.before[path]), split_lines(new), autojunk=False
        ).get_opcodes()
        if tag != "equal"
        for line in range(i + 1, j + 1)
    }


def _first_line(path: str, line: int, diagnosis: Diagnosis, result: Result) -> int:
    """The line of the program as it was that came to be `line` in the round of `diagnosis`."""
    return place(Site(path, line), diagnosis, result).line


def comments(text: str) -> Iterator[str]:
    """The comments of a program."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def _errors(fixture: Fixture) -> bool:
    return any(KINDS[kind] != "note" for _, _, kind in fixture.marks)


def _new(result: Result) -> str:
    return next(
        (new for path, (_, new) in result.files.items() if path.endswith(("before.py", "after.py"))), ""
    )


def _said(d: Diagnosis) -> str:
    return f"{d.conflict.kind} at line {d.conflict.at.line}: {d.conflict.message}"


def _why(result: Result) -> str:
    said = [
        f"\n  {cure.codemod} ({cure.effect.kind}): {cure.verdict.status}: {cure.verdict.reason}"
        for d in result.diagnoses
        for cure in d.cures
    ]
    return "".join(said)


def main() -> None:
    """Print the conflicts of the scripts named on the command line."""
    with Zygote(None) as zygote:
        for script in map(Path, sys.argv[1:]):
            result = one(script, zygote, Settings(repair=False, notes=True))
            print("\n\n".join(describe(d.conflict) for d in result.diagnoses) or f"{script}: no conflict")


if __name__ == "__main__":
    main()
