"""``gradfix server``: for editors."""

from __future__ import annotations

from typing import Annotated

from gradfix.cli.declared import Option
from gradfix.cli.options import fail

SERVER = "docs/editors.md says how editors start it."


def server(
    stdio: Annotated[
        bool, Option("--stdio", metavar="", help="Speak on standard input and output (the only way).")
    ] = False,
) -> int:
    """The language server: faults while you type, cures as quick fixes, a proof when you ask for one.

    Needs pygls: pip install 'gradfix\\[lsp]'.
    """
    try:
        import pygls.lsp.server
    except ImportError:
        fail("the language server needs pygls: pip install 'gradfix[lsp]'")
    assert pygls.lsp.server
    from gradfix.server.features import serve

    return serve()
