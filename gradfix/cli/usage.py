"""How typer prints usage, put right: the script's own arguments, and a help option that takes no value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command."""

    def get_help_option(self, ctx: Any) -> Any:
        """typer shows every flag with the type of its value unless told otherwise."""
        return _without_value(super().get_help_option(ctx))


class ScriptCommand(Command):
    """A command that runs a script: what follows ``--`` is the script's (main() has cut it off)."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands after the command's name."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


class Group(TyperGroup):
    """The root."""

    def get_help_option(self, ctx: Any) -> Any:
        """As a command's."""
        return _without_value(super().get_help_option(ctx))


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
