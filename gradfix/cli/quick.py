"""Plain words of a command straight from its signature.

Plain words are read here, by what the command declares; whatever is not plain (help, mistakes) is typer's to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gradfix.cli.declared import Argument, Option


def plain(command: Callable[..., int], words: Sequence[str]) -> dict[str, Any] | None:
    """What `command` is to be called with for `words`; None where typer should look at them."""
    try:
        return _read(command, words)
    except _NotPlain:
        return None


class _NotPlain(Exception):
    pass


def _read(command: Callable[..., int], words: Sequence[str]) -> dict[str, Any]:
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    options: dict[Any, str] = {}
    rest = ""
    for name, hint in hints.items():
        about = hint.__metadata__[0] if get_origin(hint) is Annotated else None
        if isinstance(about, Option):
            options |= dict.fromkeys(about.names, name)
        elif isinstance(about, Argument) and not rest:
            rest = name
        else:
            raise _NotPlain
    out: dict[str, Any] = {}
    left, named = list(words), False  # behind -- nothing is an option
    while left:
        word = left.pop(0)
        if word == "--" and not named:
            named = True
            continue
        if word.startswith("-") and word != "-" and not named:
            flag, equals, value = word.partition("=")
            if flag not in options:
                raise _NotPlain
            name = options[flag]
            kind = hints[name]
            if kind.__metadata__[0].about.get("count"):
                out[name] = out.get(name, 0) + 1
            elif kind.__origin__ is bool:
                if equals:
                    raise _NotPlain
                out[name] = True
            else:
                if not equals and left and not left[0].startswith("-"):
                    value = left.pop(0)
                out[name] = _value(kind, value, out.get(name))
            continue
        if not rest:
            raise _NotPlain
        out[rest] = _value(hints[rest], word, out.get(rest))
    needed = {p.name for p in signature(command).parameters.values() if p.default is Parameter.empty}
    if not needed <= out.keys():
        raise _NotPlain
    return out


def _value(hint: Any, word: str, before: Any) -> Any:
    kind, about = hint.__origin__, hint.__metadata__[0]
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (k for k in get_args(kind) if k is not NoneType)
    if not word:
        raise _NotPlain
    if kind == list[str]:
        return [*(before or ()), word]
    if before is not None:
        raise _NotPlain
    if get_origin(kind) is Literal:
        if word not in get_args(kind):
            raise _NotPlain
        return word
    if kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            raise _NotPlain from None
        if number < about.about.get("min", number):
            raise _NotPlain
        return number
    if kind in (str, Path):
        return kind(word)
    raise _NotPlain
