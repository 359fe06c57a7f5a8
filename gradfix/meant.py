"""What a program says that it does on purpose, where no run can tell it from a mistake.

The residual-gradient algorithm (Baird 1995) trains the target of a Bellman error as well as the prediction: word for
word what a forgotten ``.detach()`` comes to. Who does so on purpose says its name.
"""

from __future__ import annotations

import ast
import re

from gradfix.detect import Conflict

_RESIDUAL = re.compile(r"residual[\s_#-]*grad(?:ient)?s?(?![a-z])|\bBaird\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(?:not?|never|nor|without|unlike|avoids?|instead of|rather than|vs\.?)\W[^.\n]{0,24}$", re.I
)


def meant(conflict: Conflict, text: str) -> bool:
    """Whether `text`, the file where `conflict` is reported, names the algorithm that does what is reported: in the
    function or class that it stands in, or at the file's head."""
    if conflict.kind != "attached-target" or conflict.pattern != "bootstrap":
        return False
    if not _names(text):
        return False
    return any(map(_names, _around(text, conflict.at.line)))


def _names(text: str) -> bool:
    return any(not _DENIED.search(text[: found.start()]) for found in _RESIDUAL.finditer(text))


def _around(text: str, line: int) -> tuple[str, str]:
    """The head of the file, its comments and its docstring, and what stands around a line: the outermost function or
    class, with the comments above it, or what stands in none."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return "", ""
    lines = text.splitlines()
    first = 1 if body and ast.get_docstring(ast.Module(body, [])) is not None else 0
    head = "\n".join(lines[: body[first].lineno - 1 if len(body) > first else len(lines)])
    outside = dict(enumerate(lines, 1))
    end = 0  # of the statement before
    for statement in body:
        last = statement.end_lineno or statement.lineno
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own = range(end + 1, last + 1)
            if statement.lineno <= line <= last:
                return head, "\n".join(lines[n - 1] for n in own)
            for n in own:
                outside.pop(n, None)
        end = last
    return head, "\n".join(outside.values())
