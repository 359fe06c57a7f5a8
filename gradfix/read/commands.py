"""What the function behind a command line is given where nobody says anything: the defaults of its options (click)."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import flags
from gradfix.read.frames import Machine
from gradfix.read.values import Function, Native, Value


def _option(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``@click.option("--gen-iters", default=1)``: an argument of the function has that default."""
    names = [a for a in args if isinstance(a, str)]
    plain = [n for n in names if n.isidentifier()]
    longest = max(
        (n.partition("/")[0] for n in names), key=lambda n: (n.startswith("--"), len(n)), default=""
    )
    name = plain[0] if plain else longest.lstrip("-").replace("-", "_").lower()
    flag = kwargs.get("is_flag") is True or any("/" in n for n in names)
    default = kwargs.get("default", False if flag else None)
    if default is None:  # somebody has to say it
        default = m.unknown("command line")

    def given(machine: Machine, decorated: list[Value], _: dict[str, Value]) -> Value:
        function = decorated[0]
        if name and isinstance(function, Function):
            function.kw_defaults[name] = flags.given(machine, name, default) if flag else default
        return function

    return Native("click.option", given)


FUNCTIONS: dict[str, Callable[..., Value]] = {"click.option": _option, "click.argument": _option}
