"""What a project wants of gradfix: ``[tool.gradfix]`` in pyproject.toml, or gradfix.toml, under the command line.

The nearest file upwards counts, as ruff has it: gradfix.toml before pyproject.toml, and one without a
``[tool.gradfix]`` is passed by. Paths in a file are relative to its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.patterns import matches
from gradfix.result import Exempt, Settings
from gradfix.suppress import REPORTED
from gradfix.verdict import HELD
from gradfix.wording import nearest

FILE = "gradfix.toml"


class ConfigError(Exception):
    """A configuration that can't be used; the message is a sentence that names the place."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Checked values from one place. `origin` names it to the person; relative paths start at `base`."""

    origin: str
    base: Path
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Config:
    """Layers, the strongest last: a file, ``--config 'key = value'``, the command line."""

    layers: tuple[Layer, ...] = ()
    file: Path | None = None

    @property
    def root(self) -> Path:
        """The folder of the file, else the working directory: where patterns start and the cache lies."""
        return self.file.parent if self.file is not None else Path.cwd()

    def under(self, origin: str, values: Mapping[str, Any]) -> Config:
        """With the command line's own `values` on top, those that were given."""
        given = {key: value for key, value in values.items() if value}
        return Config((*self.layers, Layer(origin, Path.cwd(), given)), self.file)

    def value(self, key: str) -> Any:
        """What holds of `key`: an unset one is None, an unset list is empty."""
        return self._found(key)[0]

    def settings(self, **more: Any) -> Settings:
        """The values as Settings; `more` are those that no file can give."""
        select, ignore = self.value("select"), self.value("ignore")
        chosen = self.layers[-1].values if self.layers else {}
        if (
            "select" in chosen and "ignore" not in chosen
        ):  # asked for here and now, whatever the file leaves out
            ignore = tuple(kind for kind in ignore if kind not in select)
        given = {key: self.value(key) for key in ("steps", "timeout") if self.value(key) is not None}
        exempt, base = self._with_base("per-file-ignores")
        python, at = self._with_base("python")
        return Settings(
            select=select,
            ignore=ignore,
            exempt=tuple(Exempt(base, pattern, kinds) for pattern, kinds in exempt.items()),
            accept=self.value("accept"),
            python=_interpreter(python, at) if self._found("python")[1] else python,
            **given,
            **more,
        )

    def excluded(self) -> tuple[tuple[Path, tuple[str, ...]], ...]:
        """Patterns of files to leave out, with the folder they start at."""
        patterns, base = self._with_base("exclude")
        return ((base, patterns),) if patterns else ()

    def show(self) -> Iterator[str]:
        """Every setting in TOML's words, with the place that says so."""
        for key, kind in KEYS.items():
            value, layer = self._found(key)
            origin = layer.origin if layer else "default"
            shown = kind.default if value is None or (not value and kind.default) else _toml(value)
            yield f"{key} = {shown}  # {origin}"

    def _found(self, key: str) -> tuple[Any, Layer | None]:
        for layer in reversed(self.layers):
            if key in layer.values:
                return layer.values[key], layer
        return KEYS[key].empty, None

    def _with_base(self, key: str) -> tuple[Any, Path]:
        value, layer = self._found(key)
        return value, layer.base if layer else Path.cwd()


@dataclass(frozen=True, slots=True)
class Projects:
    """The configuration of each of many files: `given` are the ``--config`` arguments, `values` the command line's own,
    `more` the settings that no file can give."""

    given: tuple[str, ...] = ()
    isolated: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    _folders: dict[Path, Config] = field(default_factory=dict)
    _files: dict[Path | None, Config] = field(default_factory=dict)
    _settings: dict[Path | None, Settings] = field(default_factory=dict)

    def of(self, folder: Path) -> Config:
        """What holds for the files in `folder`. Raises ConfigError."""
        if folder not in self._folders:
            file = None if self.isolated else nearest_file(folder)
            if file not in self._files:
                found = configured(folder, self.given, self.isolated)
                self._files[file] = found.under("the command line", self.values)
            self._folders[folder] = self._files[file]
        return self._folders[folder]

    def excludes(self, file: Path) -> bool:
        """Whether the exclusions speak of `file`, however it was named. Raises ConfigError."""
        return any(matches(base, patterns, file) for base, patterns in self.of(file.parent).excluded())

    def settings(self, file: Path) -> Settings:
        """What holds for `file`, as Settings. Raises ConfigError."""
        config = self.of(file.parent)
        if config.file not in self._settings:
            self._settings[config.file] = config.settings(**self.more)
        return self._settings[config.file]


def configured(folder: Path, given: Sequence[str] = (), isolated: bool = False) -> Config:
    """The configuration of a file in `folder`. `given` are the ``--config`` arguments: a file that counts instead of
    the nearest one, or ``key = value`` on top of it; `isolated` looks for no file. Raises ConfigError."""
    files = [g for g in given if Path(g).is_file() or ("=" not in g and g.endswith(".toml"))]
    inline = [g for g in given if g not in files]
    if len(files) > 1:
        raise ConfigError(
            f"--config takes one file, not {' and '.join(files)}; further ones can be 'key = value'"
        )
    if files and isolated:
        raise ConfigError("--isolated looks into no file, and --config names one; drop one of them")
    file = Path(files[0]).resolve() if files else None if isolated else nearest_file(folder.resolve())
    layers = [] if file is None else [_load(file, Path.cwd() if files else file.parent)]
    return Config((*layers, *map(_inline, inline)), file if not files else None)


def nearest_file(folder: Path) -> Path | None:
    """The configuration file that counts for what lies in `folder`. Raises ConfigError."""
    if (folder / FILE).is_file():
        return folder / FILE
    project = folder / "pyproject.toml"
    if project.is_file() and _section(project) is not None:
        return project
    return nearest_file(folder.parent) if folder.parent != folder else None


def _load(file: Path, base: Path) -> Layer:
    values = _section(file)
    if values is None:
        raise ConfigError(f"{_name(file)} has no [tool.gradfix]")
    return Layer(_name(file), base, _checked(values, _name(file), "[tool.gradfix]" if _shared(file) else ""))


def _inline(given: str) -> Layer:
    import tomllib

    try:
        values = tomllib.loads(given)
    except tomllib.TOMLDecodeError as problem:
        hint = "it is neither a file nor 'key = value' in TOML"
        raise ConfigError(f"--config {given!r}: {hint} ({_lower(problem)})") from None
    origin = f"--config {given!r}"
    return Layer(origin, Path.cwd(), _checked(values, origin, ""))


def _section(file: Path) -> Mapping[str, Any] | None:
    """The table that is gradfix's; None in a pyproject.toml without one, which need not even be sound TOML."""
    try:
        raw = file.read_bytes()
        if _shared(file) and b"gradfix" not in raw:
            return None
        import tomllib  # seldom: a project that says nothing of gradfix need not wait for it

        table = tomllib.loads(raw.decode("utf-8"))
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise ConfigError(f"{_name(file)}: can't be read ({reason})") from None
    except ValueError as problem:  # of TOML or of its encoding
        raise ConfigError(f"{_name(file)}: this is not TOML ({_lower(problem)})") from None
    if not _shared(file):
        return table
    tool = table.get("tool", {})
    section = tool.get("gradfix") if isinstance(tool, dict) else None
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{_name(file)}: tool.gradfix is a table, [tool.gradfix], not {_toml(section)}")
    return section


def _shared(file: Path) -> bool:
    """Whether the file is other tools' too."""
    return file.name == "pyproject.toml"


def _checked(values: Mapping[str, Any], origin: str, section: str) -> Mapping[str, Any]:
    out = {}
    for key, value in values.items():
        if key not in KEYS:
            where = f"{origin}: {section} has" if section else f"{origin}: there is"
            raise ConfigError(f"{where} no key {key!r}{nearest(key, KEYS) or _keys()}")
        try:
            out[key] = KEYS[key].check(value)
        except ConfigError as problem:
            where = f"{section} {key}" if section else key
            raise ConfigError(f"{origin}: {where} {problem}") from None
    return out


@dataclass(frozen=True, slots=True)
class _Key:
    check: Callable[[Any], Any]  # gives the value as Settings have it; ConfigError completes "KEY "
    empty: Any = None
    default: str = ""  # what `show` says of one that nobody set


def _kinds(value: Any) -> tuple[str, ...]:
    return _names(value, "kind", list(REPORTED))


def _verdicts(value: Any) -> tuple[str, ...]:
    # `untried` is for the command line alone: no file makes every call apply what nobody proved
    return _names(value, "verdict", list(HELD))


def _names(value: Any, what: str, known: list[str]) -> tuple[str, ...]:
    for name in (names := _strings(value)):
        if name not in known:
            hint = nearest(name, known) or f"; they are {', '.join(known)}"
            raise ConfigError(f"names no {what}: {name!r}{hint}")
    return names


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ConfigError(f"must be a list of strings, not {_toml(value)}")
    return tuple(dict.fromkeys(value))


def _per_file(value: Any) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ConfigError(f"must be a table of patterns and lists of kinds, not {_toml(value)}")
    out = {}
    for pattern, kinds in value.items():
        try:
            out[pattern] = _kinds(kinds)
        except ConfigError as problem:
            raise ConfigError(f"for {pattern!r} {problem}") from None
    return out


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"must be a string, not {_toml(value)}")
    return value


def _steps(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"must be a whole number of at least 1, not {_toml(value)}")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.1 <= value < float("inf"):
        raise ConfigError(f"must be a number of seconds of at least 0.1, not {_toml(value)}")
    return float(value)


def _interpreter(given: str | None, base: Path) -> str | None:
    """A path relative to where it was written; a bare name is looked up as a command."""
    return str(base / given) if given and "/" in given else given


KEYS = {
    "select": _Key(_kinds, (), "[]"),
    "ignore": _Key(_kinds, (), "[]"),
    "per-file-ignores": _Key(_per_file, {}, "{}"),
    "exclude": _Key(_strings, (), "[]"),
    "python": _Key(_text, None, '""'),
    "steps": _Key(_steps, None, str(Settings().steps)),
    "timeout": _Key(_seconds, None, str(Settings().timeout)),
    "accept": _Key(_verdicts, (), "[]"),
}


def _keys() -> str:
    return f"; there are {', '.join(KEYS)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return str(value)


def _name(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)


def _lower(problem: Exception) -> str:
    text = str(problem)
    return text[:1].lower() + text[1:]
