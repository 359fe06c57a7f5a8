"""How a command's words are declared: in typer's terms, but typer itself is there only once it is needed.

typer, click and what they bring take a third as long to load as a script of a thousand lines takes to be checked. So a
command says what it takes in values of its own; `gradfix.cli.quick` reads plain words by them, and `gradfix.cli.typed`
makes typer's of them for all else: help, mistakes, and the commands that run something anyway.
"""

from __future__ import annotations

from typing import Any


class Declared:
    """What is said of a word: the `names` of an option, and typer's keywords about it."""

    def __init__(self, *names: str, **about: Any) -> None:
        self.names, self.about = names, about


class Option(Declared):
    """``--name``."""


class Argument(Declared):
    """A word that is no option."""


class Ended(Exception):
    """The command is over, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
