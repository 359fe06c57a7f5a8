"""How ``while True:`` is left, if it is."""

from __future__ import annotations

import ast

from gradfix.read.frames import Machine


def endless(m: Machine, node: ast.While) -> bool:
    """Whether nothing comes after ``while True:``. (Behind a cell of a notebook, something may.)"""
    key = id(node), "endless"
    if key not in m.called:
        waits = any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(node))
        known = isinstance(node.test, ast.Constant) and bool(node.test.value) and not waits
        m.called[key] = known and not _ways_out(node.body) and not m.frame.unit.path.endswith(".ipynb")
    later = any(
        f.function is not None and isinstance(f.function.node, ast.AsyncFunctionDef) for f in m.frames
    )
    return bool(m.called[key]) and not later


def way_out(m: Machine, node: ast.While) -> ast.stmt | None:
    """The return in a test by which alone ``while True:`` is left: then the program comes to it some day."""
    key = id(node), "out"
    if key not in m.called:
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        ways = _ways_out(node.body) if forever else []
        m.called[key] = ways[0] if len(ways) == 1 and isinstance(ways[0], ast.Return) else None
    found: ast.stmt | None = m.called[key]
    return found


def _ways_out(body: list[ast.stmt], inside: bool = False) -> list[ast.stmt]:
    """What leaves a loop of which this is the body, or is `inside` of it in a loop of its own."""
    found: list[ast.stmt] = []
    for each in body:
        if isinstance(each, ast.Return) or (isinstance(each, ast.Break) and not inside):
            found.append(each)
        deeper = inside or isinstance(each, ast.For | ast.AsyncFor | ast.While)
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                found += _ways_out(getattr(each, name, []), deeper and name == "body")
            for part in (*getattr(each, "handlers", ()), *getattr(each, "cases", ())):
                found += _ways_out(part.body, deeper)
    return found
