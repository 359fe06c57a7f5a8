"""One-line bodies, ``if ready: optimizer.step()``, as blocks like others.

libcst has two kinds of bodies: what is to be put beside a statement, or taken from there, would have to turn the one
into the other. Here every body is an IndentedBlock, and what was written on the line of its header is printed there as
long as it is one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst._nodes.internal import visit_body_sequence

_HEADER = re.compile(
    r"^[ \t\f]*(?:async|case|class|def|elif|else|except|finally|for|if|match|try|while|with)\b.*:[^\n]*[^\s\\]",
    re.MULTILINE,
)


@dataclass(frozen=True)
class OneLine(cst.IndentedBlock):
    """A block that stands behind the colon of its header while it is one line without anything above."""

    leading_whitespace: cst.SimpleWhitespace = field(default_factory=lambda: cst.SimpleWhitespace(" "))

    def _visit_and_replace_children(self, visitor: Any) -> OneLine:
        # (the header and the footer stand nowhere as long as it is one line)
        body = visit_body_sequence(self, "body", self.body, visitor)
        return OneLine(body, self.header, self.indent, self.footer, self.leading_whitespace)

    def _codegen_impl(self, state: Any) -> None:
        line = self.body[0] if len(self.body) == 1 else None
        if not isinstance(line, cst.SimpleStatementLine) or line.leading_lines or self.footer:
            super()._codegen_impl(state)
            return
        self.leading_whitespace._codegen(state)
        outer, state.indent_tokens = state.indent_tokens, []
        with state.record_syntactic_position(self, start_node=line, end_node=line):
            line._codegen(state)
        state.indent_tokens = outer


OneLine.__name__ = "IndentedBlock"  # what visitors and matchers go by


class _Blocks(cst.CSTTransformer):
    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> OneLine:
        line = cst.SimpleStatementLine(
            updated_node.body, trailing_whitespace=updated_node.trailing_whitespace
        )
        return OneLine([line], leading_whitespace=updated_node.leading_whitespace)


def parse(text: str) -> cst.Module:
    """The module that `text` is, with blocks alone for bodies. Raises cst.ParserSyntaxError."""
    module = cst.parse_module(text)
    return module.visit(_Blocks()) if _HEADER.search(text) else module
