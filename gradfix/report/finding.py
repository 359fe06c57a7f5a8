"""What an error text showed, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gradfix.detect import KINDS
from gradfix.explain import why
from gradfix.messages import Finding, Frame
from gradfix.report.layout import command, fold, safe
from gradfix.wording import shortened

SHOWN = 300  # characters of an error that is not ours


def render(finding: Finding, width: int) -> Iterator[Text]:
    """The fault, what the message says of it, where, and what to run."""
    width = min(width, 100)
    if finding.kind is not None:
        severity = KINDS[finding.kind]
        yield Text.assemble((f"{finding.kind}", "bold red"), f" ({severity})")
        yield from map(Text, fold(why(finding.kind), width))
        yield Text()
    elif finding.autograd:
        yield Text("This is autograd's error, and not one of the faults gradfix looks for.", style="bold")
        yield from map(Text, fold(shortened(safe(finding.error), SHOWN), width))
    else:
        yield Text("This is not an autograd error.", style="bold")
        yield from map(Text, fold(shortened(safe(finding.error), SHOWN), width))
    facts = [*finding.facts]
    if finding.raised:
        facts.append(("raised at", _frame(finding.raised)))
    if finding.forward:
        facts.append(("forward at", _frame(finding.forward)))
    margin = max((len(k) for k, _ in facts), default=0)
    for key, value in facts:
        lines = fold(safe(value), width - margin - 4)
        yield Text.assemble((f"  {key:<{margin}}  ", "bright_blue"), lines[0])
        yield from (Text(" " * (margin + 4) + line) for line in lines[1:])
    if finding.advice:
        yield from map(Text, fold(finding.advice, width))
    if finding.kind is not None:
        script = finding.script or "SCRIPT"
        yield Text()
        yield Text.assemble(("Run   ", "bold"), f"gradfix fix {command([script])}")
        yield Text.assemble(("Read  ", "bold"), f"gradfix explain {finding.kind}")


def _frame(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}" + (f": {frame.code}" if frame.code else "")
