"""``gradfix explain`` and ``gradfix rules``: what there is to read."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import FAULTS, NOTHING, failed

EXPLAIN = (
    "[bold]Examples[/bold]\n\n  gradfix explain freed-graph\n\n  python train.py 2>&1 | gradfix explain -"
)


def explain(
    name: Annotated[str, Argument(metavar="KIND|CODEMOD|-", help="What to explain; - reads an error.")],
) -> int:
    """The page of a fault or a cure; or, from standard input, which fault a PyTorch error shows."""
    from gradfix import explain as pages
    from gradfix.report.terminal import Terminal
    from gradfix.wording import nearest

    terminal = Terminal()
    if name == "-":
        from gradfix.messages import recognise
        from gradfix.report.finding import render

        finding = recognise(sys.stdin.buffer.read().decode("utf-8", "replace"))
        if finding is None:
            return failed(terminal, "there is no error in that; pipe in what Python printed (2>&1)")
        terminal.show(render(finding, terminal.out.width))
        return NOTHING if finding.autograd else FAULTS
    text = pages.page(name)
    if text is None:
        return failed(
            terminal,
            f"there is no kind or codemod {name!r}{nearest(name, pages.names())} (gradfix rules)",
        )
    if terminal.out.is_terminal:
        from rich.markdown import Markdown

        terminal.out.print(Markdown(text), width=min(terminal.out.width, 100))
    else:
        terminal.write(text.rstrip())
    return NOTHING


def rules(
    output_format: Annotated[
        Literal["full", "json"], Option("--output-format", help="How the catalogue is written.")
    ] = "full",
) -> int:
    """The catalogue: every kind of fault, and every cure."""
    from gradfix.report import catalogue
    from gradfix.report.terminal import Terminal

    terminal = Terminal()
    if output_format == "json":
        terminal.write(json.dumps(catalogue.document(), ensure_ascii=False, indent=2))
    else:
        terminal.show(catalogue.render(terminal.out.width))
    return NOTHING
