"""Forward hooks that write into the output they are given: what they return takes its place."""

from __future__ import annotations

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert
from gradfix.rewrite.blocks import line
from gradfix.rewrite.boundary import returns
from gradfix.rewrite.liveness import parameters, scope_of
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.writes import Write


def handed_back(write: Write, conflict: Conflict) -> Edit | None:
    """The ``return`` of a forward hook that writes into the output it is given: what it returns takes that one's
    place."""
    scope = scope_of(write.view, write.node)
    if not isinstance(scope, cst.FunctionDef) or [write.name] != parameters(scope)[2:][-1:] or returns(scope):
        return None
    stack = conflict.write.stack if conflict.write is not None else ()
    call = write.view.call_at(stack[-2]) if len(stack) > 1 and stack[-2].file == write.view.path else None
    if call is not None and function_of(call) == scope.name.value:
        return None  # the program calls it itself
    if not isinstance(scope.body, cst.IndentedBlock):
        return None
    return Insert(scope.body.body[-1], after=(line(cst.Return(cst.Name(write.name))),))
