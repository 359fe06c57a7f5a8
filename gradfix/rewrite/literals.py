"""What a loop goes through where the source writes it out: ``for name, loss in (("d", d_loss), ("g", g_loss))``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.edit import Edit, Replace, View
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import body_of, walk

Literal = cst.Tuple | cst.List | cst.Dict


def written_out(view: View, loop: cst.For, count: int) -> tuple[Literal, ...] | None:
    """The literals of `count` elements that a loop goes through side by side (those of a ``zip``), written in its head
    or bound once to a name in the same function; None where one is no such literal."""
    found = []
    for part in _side_by_side(loop.iter):
        literal = _literal(view, loop, part)
        if literal is None or len(literal.elements) != count or _open(literal):
            return None
        found.append(literal)
    return tuple(found) or None


def put_in_order(literal: Literal, order: Sequence[int]) -> list[Edit]:
    """The element `order[n]` stands where the n-th did, which keeps its comma and the whitespace around it; a comment
    at the end of its line goes along."""

    def exchange(here: cst.CSTNode, other: cst.CSTNode) -> Edit:
        new = {
            name: getattr(other, name).deep_clone()
            for name in ("key", "value", "whitespace", "comment")
            if getattr(other, name, None)
        }
        gone = {"comment": None} if "whitespace" in new and "comment" not in new else {}
        return Replace(here, lambda node: node.with_changes(**new, **gone))

    moved = [(n, m) for n, m in enumerate(order) if n != m]
    lines = _line_ends(literal)
    commented = len(lines) == len(literal.elements) and any(x.comment for x in lines)
    edits = [exchange(literal.elements[n], literal.elements[m]) for n, m in moved]
    return edits + ([exchange(lines[n], lines[m]) for n, m in moved] if commented else [])


def element_text(element: cst.BaseElement | cst.BaseDictElement) -> str:
    """An element without its comma and what stands behind it."""
    bare = element.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return cst.Module([]).code_for_node(bare).strip()


def _side_by_side(items: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(items, cst.Call) and function_of(items) == "zip":
        for arg in items.args:
            yield from _side_by_side(arg.value)
    elif isinstance(items, cst.Call) and function_of(items) == "items" and not items.args:
        yield items.func.value if isinstance(items.func, cst.Attribute) else items
    else:
        yield items


def _literal(view: View, loop: cst.For, node: cst.BaseExpression) -> Literal | None:
    if isinstance(node, (cst.Tuple, cst.List, cst.Dict)):
        return node
    if not isinstance(node, cst.Name):
        return None
    body = body_of(view, loop)
    bound = [u.node for u in walk(body) if node.value in u.writes]
    plain = bound[0] if len(bound) == 1 and isinstance(bound[0], cst.Assign) else None
    if plain is None or len(plain.targets) != 1 or not isinstance(plain.targets[0].target, cst.Name):
        return None
    value = plain.value
    reads = [n for n in descendants(body) if isinstance(n, cst.Name) and n.value == node.value]
    if isinstance(value, (cst.Tuple, cst.List)) and len(reads) > 2:
        return None  # (another may count on the places of its elements)
    return value if isinstance(value, (cst.Tuple, cst.List, cst.Dict)) else None


def _open(literal: Literal) -> bool:
    """Whether it takes in what is not written here, or says something that belongs to no element."""
    if any(isinstance(e, (cst.StarredElement, cst.StarredDictElement)) for e in literal.elements):
        return True
    inside = [n for e in literal.elements for n in _comments(e.with_changes(comma=cst.MaybeSentinel.DEFAULT))]
    lines = _line_ends(literal)
    beside = sum(line.comment is not None for line in lines)
    return len(_comments(literal)) > len(inside) + beside or (
        beside > 0 and len(lines) < len(literal.elements)
    )


def _comments(node: cst.CSTNode) -> list[cst.Comment]:
    return [n for n in descendants(node) if isinstance(n, cst.Comment)]


def _line_ends(literal: Literal) -> list[cst.TrailingWhitespace]:
    """The ends of the lines on which elements end, the last one's before the closing bracket."""
    commas = [e.comma.whitespace_after for e in literal.elements if isinstance(e.comma, cst.Comma)]
    closing = (
        literal.rbracket
        if isinstance(literal, cst.List)
        else literal.rbrace
        if isinstance(literal, cst.Dict)
        else next(iter(literal.rpar), None)
    )
    spaces = [*commas[: len(literal.elements) - 1], *([closing.whitespace_before] if closing else [])]
    return [x.first_line for x in spaces if isinstance(x, cst.ParenthesizedWhitespace)]
