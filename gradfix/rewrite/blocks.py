"""Building source: with-blocks around statements, operands in their parentheses, torch by the file's own
name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import libcst as cst

from gradfix.edit import Edit, Insert, Replace, View, Wrap

# Binding strength of Python's binary operators; what is missing (comparisons, lambda, ...) binds more weakly.
_STRENGTH: dict[type[cst.CSTNode], int] = {
    cst.BitOr: 1,
    cst.BitXor: 2,
    cst.BitAnd: 3,
    cst.LeftShift: 4,
    cst.RightShift: 4,
    cst.Add: 5,
    cst.Subtract: 5,
    cst.Multiply: 6,
    cst.MatrixMultiply: 6,
    cst.Divide: 6,
    cst.FloorDivide: 6,
    cst.Modulo: 6,
    cst.Power: 8,
}
_UNARY = 7
_ATOM = 9
_WEAK = (
    cst.Comparison,
    cst.BooleanOperation,
    cst.IfExp,
    cst.Lambda,
    cst.NamedExpr,
    cst.Await,
    cst.Yield,
    cst.Tuple,
    cst.GeneratorExp,
)


def right_operand(node: cst.BaseExpression, operator: cst.BaseBinaryOp) -> cst.BaseExpression:
    """`node` as what stands right of `operator`: in parentheses where it would otherwise be torn apart."""
    strength = _strength(node)
    needed = _STRENGTH[type(operator)]
    if isinstance(operator, cst.Power):
        fits = strength >= _UNARY
    else:
        fits = strength > needed
    return node if fits else in_parentheses(node)


def _strength(node: cst.BaseExpression) -> int:
    if node.lpar:
        return _ATOM
    if isinstance(node, cst.BinaryOperation):
        return _STRENGTH[type(node.operator)]
    if isinstance(node, cst.UnaryOperation):
        return 0 if isinstance(node.operator, cst.Not) else _UNARY
    return 0 if isinstance(node, _WEAK) else _ATOM


def in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """`node` in parentheses, unless it has some."""
    return node if node.lpar else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def as_receiver(node: cst.BaseExpression) -> cst.BaseExpression:
    """`node` as what stands before a dot."""
    needs = _strength(node) < _ATOM or isinstance(node, cst.Integer | cst.Float)
    return in_parentheses(node) if needs else node


def method(receiver: cst.BaseExpression, name: str, *args: cst.BaseExpression) -> cst.Call:
    """``receiver.name(*args)``."""
    return cst.Call(cst.Attribute(as_receiver(receiver), cst.Name(name)), [cst.Arg(a) for a in args])


def assignment(target: cst.BaseAssignTargetExpression, value: cst.BaseExpression) -> cst.Assign:
    """``target = value``."""
    return cst.Assign([cst.AssignTarget(cast(cst.BaseAssignTargetExpression, copy(target)))], value)


def copy(node: cst.BaseExpression) -> cst.BaseExpression:
    """A second `node` for another place in the tree, without the line breaks and comments around it."""
    clone = node.deep_clone()
    if clone.lpar and isinstance(clone, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
        clone = clone.with_changes(lpar=[], rpar=[])
    return clone


def line(statement: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
    """A line with this statement alone."""
    return cst.SimpleStatementLine([statement])


def split(statement: cst.BaseStatement) -> list[cst.BaseStatement]:
    """A line of small statements between semicolons as one line each; comments stay at their end of it."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) < 2:
        return [statement]
    lines = [line(s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)) for s in statement.body]
    lines[0] = lines[0].with_changes(leading_lines=statement.leading_lines)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=statement.trailing_whitespace)
    return list(lines)


@dataclass(frozen=True, slots=True)
class Named:
    """An expression for something of torch's by the names this file has for it, and the edits that import
    it."""

    expression: cst.BaseExpression
    edits: tuple[Edit, ...] = ()


def of_torch(view: View, name: str) -> Named:
    """``torch.<name>`` as this file would say it: through its import of torch or of the very name, else with
    a new
    ``import torch``."""
    for statement in _imports(view):
        for alias in _aliases(statement):
            full = alias.evaluated_name
            if isinstance(statement, cst.Import):
                if full == "torch" or (full.startswith("torch.") and alias.asname is None):
                    module = (alias.evaluated_alias or "torch") if full == "torch" else "torch"
                    return Named(cst.parse_expression(f"{module}.{name}"))
            elif _module(statement) == "torch" and full == name:
                return Named(cst.Name(alias.evaluated_alias or name))
    return Named(cst.parse_expression(f"torch.{name}"), (_import_torch(view),))


def _imports(view: View) -> list[cst.Import | cst.ImportFrom]:
    found: list[cst.Import | cst.ImportFrom] = []
    for statement in view.module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            found += [s for s in statement.body if isinstance(s, cst.Import | cst.ImportFrom)]
    # `import torch` first, `from torch import no_grad` second: the former serves any name
    return sorted(found, key=lambda s: isinstance(s, cst.ImportFrom))


def _aliases(statement: cst.Import | cst.ImportFrom) -> Sequence[cst.ImportAlias]:
    return () if isinstance(statement.names, cst.ImportStar) else statement.names


def _module(statement: cst.ImportFrom) -> str:
    name = statement.module
    return cst.Module([]).code_for_node(name) if name is not None and not statement.relative else ""


def _import_torch(view: View) -> Edit:
    new = cst.SimpleStatementLine([cst.Import([cst.ImportAlias(cst.Name("torch"))])])
    body = view.module.body
    lines = [s for s in body if isinstance(s, cst.SimpleStatementLine)]
    imports = [s for s in lines if isinstance(s.body[0], cst.Import | cst.ImportFrom)]
    plain = [s for s in imports if _imported_from(s.body[0]) != "__future__"]
    if plain:
        return Insert(plain[0], before=(new,))
    if imports:
        return Insert(imports[-1], after=(new,))
    docstring = bool(view.module.get_docstring())
    return Insert(body[0], after=(new,)) if docstring else Insert(body[0], before=(new,))


def _imported_from(statement: cst.BaseSmallStatement) -> str:
    return _module(statement) if isinstance(statement, cst.ImportFrom) else ""


def neighbours(indices: Iterable[int]) -> Iterator[list[int]]:
    """Runs of indices that follow one another: of the statements of a body that one ``with`` takes in."""
    for _, run in groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0]):
        yield [index for _, index in run]


def under(view: View, context: cst.BaseExpression, statements: Sequence[cst.CSTNode]) -> tuple[Edit, ...]:
    """Edits that put neighbouring `statements` (of one body) under ``with context():``, or under a call as it is.

    Small statements of a line with semicolons may be given alone: the line is split.
    """
    item = cst.WithItem(context if isinstance(context, cst.Call) else cst.Call(context))
    first = statements[0]
    if isinstance(first, cst.BaseSmallStatement):
        holder = view.parents[first]
        wanted = {i for i, s in enumerate(_smalls(holder)) if any(s is w for w in statements)}
        if len(_smalls(holder)) > len(wanted):
            return (
                Replace(
                    holder, lambda n: cst.FlattenSentinel(_partly(cast(cst.BaseStatement, n), wanted, item))
                ),
            )
        statements = (holder,)
    lines = tuple(statements)
    return (Wrap(lines, lambda body: _with(item, body)),)


def _smalls(holder: cst.CSTNode) -> Sequence[cst.BaseSmallStatement]:
    return holder.body if isinstance(holder, cst.SimpleStatementLine) else ()


def _with(item: cst.WithItem, body: Sequence[cst.BaseStatement]) -> cst.With:
    lines = [x for s in body for x in split(s)]
    leading = getattr(lines[0], "leading_lines", ())
    lines[0] = lines[0].with_changes(leading_lines=())
    return cst.With([item], cst.IndentedBlock(lines), leading_lines=leading)


def _partly(
    statement: cst.BaseStatement | Iterable[cst.BaseStatement], wanted: set[int], item: cst.WithItem
) -> list[cst.BaseStatement]:
    """A line as lines, those of the `wanted` small statements under ``with``; or one of which others are already."""
    lines = split(statement) if isinstance(statement, cst.BaseStatement) else list(statement)
    at, chosen = 0, list[int]()
    for n, line in enumerate(lines):
        if at in wanted:
            chosen.append(n)
        at += len(line.body.body) if isinstance(line, cst.With) else 1
    first, last = chosen[0], chosen[-1]
    return [*lines[:first], _with(item, lines[first : last + 1]), *lines[last + 1 :]]
