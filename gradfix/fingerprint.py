"""What two copies of a fault have in common: a name for it that survives other names, numbers, lines and files.

The same training loop is copied over hundreds of repositories. Copies get the same fingerprint where the statements
at the fault's places are the same but for the names that their authors chose and for literals, and the fault came
about in the same way (kind, pattern, what happens at each place, in which order).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from functools import lru_cache

from gradfix.detect import Conflict
from gradfix.read import effects
from gradfix.tape import Site

LENGTH = 12  # hexadecimal digits: a million groups collide with a chance of 1 in 500
# API words beside the operations, which say what happens too; all others are names of the author's own
WORDS = frozenset(
    {"backward", "data", "detach", "grad", "item", "no_grad", "numpy", "step", "torch", "zero_grad"}
)


def fingerprint(conflict: Conflict, texts: Mapping[str, str]) -> str:
    """The fault's fingerprint; `texts` are the files it was found in, as they were then."""
    from hashlib import sha256

    names: dict[str, str] = {}
    shape = [conflict.kind, conflict.pattern]
    for label in conflict.labels:
        where = _normalised(label.at, texts, names) if label.stack else "elsewhere"
        shape.append(f"{label.role}: {where}")
    return sha256("\n".join(shape).encode()).hexdigest()[:LENGTH]


def is_fingerprint(word: str) -> bool:
    """Whether `word` has the form of one."""
    return len(word) == LENGTH and set(word) <= set("0123456789abcdef")


def _normalised(site: Site, texts: Mapping[str, str], names: dict[str, str]) -> str:
    tree = _tree(texts.get(site.file, ""))
    statement = _statement(tree, site.line) if tree is not None else None
    if statement is None:
        return "unknown"
    return " ".join(_words(statement, names))


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statement(tree: ast.AST, line: int) -> ast.stmt | None:
    """The innermost statement that the line lies in."""
    found: ast.stmt | None = None
    inside: ast.AST | None = tree
    while inside is not None:
        inside = next(
            (s for s in _statements(inside) if s.lineno <= line <= (s.end_lineno or s.lineno)), None
        )
        found = inside or found
    return found


def _statements(node: ast.AST) -> list[ast.stmt]:
    """The statements directly in a block of `node`; those of its except clauses and match cases too."""
    out: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            out.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            out += child.body
    return out


def _words(node: ast.AST, names: dict[str, str]) -> list[str]:
    """The node in reading order: names by when they first came, literals by their type; without the statements that a
    compound one holds."""
    match node:
        case ast.Constant(value=bool() | None):
            return [str(node.value)]
        case ast.Constant():
            return [type(node.value).__name__]
        case ast.Name(id=name):
            return [_renamed(name, names)]
        case ast.Attribute(value=value, attr=attr):
            return [*_words(value, names), f".{_renamed(attr, names)}"]
        case ast.keyword(arg=arg, value=value):
            return [f"{arg}=", *_words(value, names)]
    out = [type(node).__name__, "("]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case | ast.expr_context):
            out += _words(child, names)
    return [*out, ")"]


def _renamed(name: str, names: dict[str, str]) -> str:
    if name in WORDS or name in effects.table():
        return name
    return names.setdefault(name, f"n{len(names)}")
