"""Where a file binds its names: in which statement of the module, for the whole module, as attributes."""

from __future__ import annotations

import ast
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from gradfix.patches.values import Bound


@dataclass(frozen=True, slots=True)
class Bindings:
    """`starts` are the lines where the module's statements begin, `blocks` what each binds inside itself, `module`
    what the module itself binds, `attributes` what is assigned to on any object, `words` every name there is."""

    starts: tuple[int, ...]
    blocks: tuple[frozenset[str], ...]
    module: frozenset[str]
    attributes: frozenset[str]
    words: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Bindings:
        """Raises SyntaxError (or what else ast.parse raises) where `text` is no Python of this version."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        starts, blocks = [], []
        for node in tree.body:
            first = min((d.lineno for d in getattr(node, "decorator_list", ())), default=node.lineno)
            starts.append(first)
            blocks.append(frozenset(_bound(node, True)))
        nodes = list(ast.walk(tree))
        attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
        words = {n.id for n in nodes if isinstance(n, ast.Name)}
        module = {name for node in tree.body for name in _bound(node, False)}
        every = words.union(*blocks, module)
        return cls(tuple(starts), tuple(blocks), frozenset(module), frozenset(attributes), frozenset(every))

    def where(self, name: str, line: int) -> Bound:
        """Where `name` (an attribute's with a dot before) comes from for who uses it in `line`."""
        if name.startswith("."):
            return "attribute" if name[1:] in self.attributes else "free"
        at = self.block(line)
        if self.blocks and name in self.blocks[at]:
            return "block"
        return "file" if name in self.module else "free"

    def block(self, line: int) -> int:
        """Which of the module's statements `line` belongs to."""
        return max(bisect_right(self.starts, line) - 1, 0)


def _bound(node: ast.AST, inside: bool) -> Iterator[str]:
    """The names that `node` binds; those of functions and classes in it too where `inside`."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name or ""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda) and not inside:
        return
    for child in ast.iter_child_nodes(node):
        yield from _bound(child, inside)
