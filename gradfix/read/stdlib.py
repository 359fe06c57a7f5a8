"""The standard library, as far as training scripts lean on it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from gradfix.read import calls, commands, containers, drawn, files, flags, iteration, stacks, started
from gradfix.read.frames import Machine
from gradfix.read.values import (
    Array,
    Class,
    Deque,
    Function,
    Instance,
    Lazy,
    Lib,
    ModuleValue,
    Native,
    Storage,
    Tensor,
    Unknown,
    Value,
)
from gradfix.read.variants import Asked, Option

HARMLESS = {
    "argparse", "collections", "copy", "csv", "datetime", "functools", "glob", "io", "itertools", "json",
    "logging", "math",
    "matplotlib", "numpy", "operator", "os", "pathlib", "pickle", "PIL", "random", "re", "shutil", "string",
    "sys",
    "tensorboardX", "time", "torchvision", "tqdm", "typing", "wandb", "warnings", "yaml", "dataclasses",
    "pandas", "scipy",
    "sklearn", "cv2", "skimage", "subprocess", "threading", "contextlib", "abc", "enum", "uuid", "hashlib",
    "pprint", "gc",
}  # fmt: skip

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _chain(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found: list[Value] = []
    for each in args:
        items = iteration.listed(m, each)
        if items is None:
            return iteration.lost(m, [*found, *args], "chain")
        found += items
    return found


def _chained(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = iteration.listed(m, args[0])
    return m.unknown("chain") if items is None else _chain(m, items, {})


def _count(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = args[0] if args and isinstance(args[0], int) else 0
    return Lazy(lambda count: list(range(start, start + count)))


def _cycle(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = args[0] if args else None

    def items(count: int) -> list[Value]:
        found = iteration.listed(m, source, count)
        if not found:
            return [m.unknown("cycle") for _ in range(count)]
        return list(itertools.islice(itertools.cycle(found), count))

    return Lazy(items)


def _islice(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    stop = args[1] if len(args) == 2 else args[2] if len(args) > 2 else None
    items = iteration.listed(m, args[0], stop if isinstance(stop, int) and stop < 64 else 8)
    return m.unknown("islice") if items is None else items


def _product(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    columns = [iteration.listed(m, a, 8) for a in args]
    if any(c is None for c in columns) or kwargs:
        return m.unknown("product")
    return list(itertools.product(*columns))  # type: ignore[arg-type]


def _repeat(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count = args[1] if len(args) > 1 else None
    return Lazy(lambda n: [args[0]] * n, count if isinstance(count, int) else None)


def deepcopy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``copy.deepcopy``: tensors get memory of their own."""
    return _copied(m, args[0] if args else None, {})


def _copied(m: Machine, value: Value, done: dict[int, Value]) -> Value:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Array):
        return done.setdefault(id(value), Array(value.origin, "", m.trace.storage(), value.dtype))
    if isinstance(value, Tensor):
        storage: Storage = m.trace.storage()
        made: Value = Tensor(
            storage, value.requires, None, value.shape, value.dtype, parameter=value.parameter
        )
        done[id(value)] = made
        return made
    if isinstance(value, list | tuple):
        if isinstance(value, list):
            copy_: list[Value] = Deque((), value.most) if isinstance(value, Deque) else []
            done[id(value)] = copy_
            copy_ += [_copied(m, v, done) for v in value]
            return copy_
        return tuple(_copied(m, v, done) for v in value)
    if isinstance(value, dict):
        done[id(value)] = made = {}
        made.update((k, _copied(m, v, done)) for k, v in value.items())
        return made
    if isinstance(value, Instance) and not value.kind.startswith("torch.optim."):
        done[id(value)] = made = Instance(value.cls, {}, value.kind, {})
        made.attrs.update((k, _copied(m, v, done)) for k, v in value.attrs.items())
        made.extra.update((k, _copied(m, v, done)) for k, v in value.extra.items())
        return made
    return value


def _shallow(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0] if args else None
    if isinstance(value, list | dict):
        return value.copy()
    if isinstance(value, Instance):
        return containers.shallow(value)
    return value


def _partial(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Instance(None, kind="functools.partial", extra={"call": (args[0], args[1:], kwargs)})


def _wraps(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Native("wraps", lambda machine, given, named: given[0])


def _reduce(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = iteration.listed(m, args[1]) if len(args) > 1 else None
    if not items:
        return m.unknown("reduce")
    total = args[2] if len(args) > 2 else items.pop(0)
    for each in items:
        total = calls.call(m, args[0], [total, each], {})
    return total


def _namespace(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Instance(None, {k: v for k, v in kwargs.items() if k != "**"}, "types.SimpleNamespace")


def _field(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    extra = {"factory": kwargs.get("default_factory"), "default": kwargs.get("default", Unknown("field"))}
    return Instance(None, kind="dataclasses.field", extra=extra)


def replaced(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``dataclasses.replace(x, field=…)``: made anew of the fields."""
    value = args[0] if args else None
    if not isinstance(value, Instance) or value.cls is None or "**" in kwargs:
        return m.unknown("replace")
    fields = [f for c in value.cls.order if isinstance(c, Class) for f, _ in c.attrs.get("__fields__", ())]
    return calls.call(m, value.cls, [], {f: value.attrs[f] for f in fields if f in value.attrs} | kwargs)


def _deque(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = args[0] if args else kwargs.get("iterable", ())
    most = args[1] if len(args) > 1 else kwargs.get("maxlen")
    items = iteration.listed(m, given)
    if items is None or not (most is None or isinstance(most, int | Unknown)):
        return m.unknown("deque")
    return Deque(items, most if isinstance(most, int) else None)


def _defaultdict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Defaults(m, args[0] if args else None)


class Defaults(dict[Any, Any]):
    """A defaultdict."""

    def __init__(self, m: Machine, factory: Value) -> None:
        super().__init__()
        self._m, self._factory = m, factory

    def __missing__(self, key: Any) -> Value:
        if self._factory is None:
            return self._m.unknown("missing key")
        self[key] = made = calls.call(self._m, self._factory, [], {})
        return made


def _namedtuple(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fields = args[1] if len(args) > 1 else None
    names = fields.replace(",", " ").split() if isinstance(fields, str) else fields
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        return m.unknown("namedtuple")
    cls = Class(str(args[0]), str(args[0]), (Lib("typing.NamedTuple"),), {}, m.frame.unit)
    cls.order = (cls, Lib("typing.NamedTuple"))
    cls.attrs["__fields__"] = [(n, False) for n in names]
    return cls


# ---- argparse


def _parser(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Instance(None, kind="argparse.ArgumentParser", extra={"known": {}})


def _argument(m: Machine, parser: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = [a for a in args if isinstance(a, str)]
    if not names:
        return None
    longest = next((n for n in names if n.startswith("--")), names[0])
    dest = kwargs.get("dest", longest.lstrip("-").replace("-", "_"))
    action = kwargs.get("action")
    default = kwargs.get("default", m.unknown("command line") if not longest.startswith("-") else None)
    flag = isinstance(action, str | Lib) and action in flags.ACTIONS
    if isinstance(action, str) and flag:
        default = kwargs.get("default", flags.ACTIONS[action])
    elif kwargs.get("required") is True:
        default = m.unknown("command line")
    if isinstance(dest, str):
        _options(parser)[dest] = flags.given(m, dest, default) if flag else _given(m, dest, default, kwargs)
        if kwargs.get("is_config_file") is True:
            parser.extra["file"] = default
    return None


def _given(m: Machine, name: str, default: Value, kwargs: dict[str, Value]) -> Value:
    """What an option has: what this reading is about, its default, or one of its choices where it has to be given."""
    if m.variant is not None and (m.variant.kind, m.variant.name) == ("option", name):
        chosen = m.variant.value
        return Option(chosen, name) if isinstance(chosen, str) else chosen
    kind, choices = kwargs.get("type"), kwargs.get("choices")
    if isinstance(default, str) and isinstance(kind, Lib) and kind.path in ("builtins.int", "builtins.float"):
        return calls.call(m, kind, [default], {})
    if isinstance(default, Unknown) and isinstance(choices, list | tuple) and choices:
        default = choices[0]
    if default is None and isinstance(choices, list | tuple):
        m.open.choose(name, choices)
    if isinstance(default, str):
        return Option(default, name)
    if isinstance(default, Unknown) and (kind is None or kind == Lib("builtins.str")):
        return Asked(default.origin, name)
    return default


def _options(parser: Instance) -> dict[str, Value]:
    """What a parser has been told, also one of a class of the program's with an ``__init__`` of its own."""
    options: dict[str, Value] = parser.extra.setdefault("known", {})
    return options


def _group(m: Machine, parser: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return parser


def _parsed(m: Machine, parser: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    options = dict(_options(parser))
    if "file" in parser.extra:
        said = files.told(m, parser.extra["file"])
        options.update((name, value) for name, value in said.items() if name in options)
    return Instance(None, options, "types.SimpleNamespace")


def _parsed_known(m: Machine, parser: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return (_parsed(m, parser, args, kwargs), [])


def _defaults(m: Machine, parser: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _options(parser).update(kwargs)
    return None


METHODS: dict[str, dict[str, Callable[..., Value]]] = {
    files.OPEN: files.METHODS,
    stacks.KIND: stacks.METHODS,
    **started.METHODS,
    "argparse.ArgumentParser": {
        "add_argument": _argument,
        "add": _argument,
        "add_argument_group": _group,
        "add_mutually_exclusive_group": _group,
        "parse_args": _parsed,
        "parse_known_args": _parsed_known,
        "set_defaults": _defaults,
    },
}


def _module(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``importlib.import_module("models." + name)``."""
    from gradfix.read.modules import load

    name, package = (
        args[0] if args else kwargs.get("name"),
        args[1] if len(args) > 1 else kwargs.get("package"),
    )
    if isinstance(name, str) and name.startswith(".") and isinstance(package, str):
        name = package + "." + name.lstrip(".")
    if not isinstance(name, str) or not _DOTTED.fullmatch(name):
        return m.unknown("import_module")
    unit = m.project.find(name, m.frame.unit) if m.project.has(name) else None
    return ModuleValue(load(m, unit)) if unit is not None else Lib(str(name))


def _compose(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torchvision's transforms, one after the other."""
    steps = args[0] if args else kwargs.get("transforms")

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = args[0] if args else m.unknown("Compose")
        for step in steps if isinstance(steps, list | tuple) else [m.unknown("Compose")]:
            value = calls.call(m, step, [value], {})
        return value

    return Native("Compose", run)


def _nothing(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


def _environment(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[1] if len(args) > 1 else None


def _tqdm(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0] if args else m.unknown("tqdm")


def _trange(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return calls.call(m, Lib("builtins.range"), args, {})


def _suppress(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Instance(None, kind="contextlib.nullcontext")


def _ordered(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return calls.call(m, Lib("builtins.dict"), args, kwargs)


def _referred(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``weakref.ref(x)``: what it refers to is there."""
    return Native("ref", lambda machine, given, named: args[0]) if args else m.unknown("ref")


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **commands.FUNCTIONS,
    **drawn.FUNCTIONS,
    **files.FUNCTIONS,
    "itertools.chain": _chain,
    "itertools.chain.from_iterable": _chained,
    "itertools.count": _count,
    "itertools.cycle": _cycle,
    "itertools.islice": _islice,
    "itertools.product": _product,
    "itertools.repeat": _repeat,
    "copy.deepcopy": deepcopy,
    "copy.copy": _shallow,
    "functools.partial": _partial,
    "functools.wraps": _wraps,
    "functools.reduce": _reduce,
    "types.SimpleNamespace": _namespace,
    "argparse.Namespace": _namespace,
    "dataclasses.field": _field,
    "dataclasses.replace": replaced,
    "copy.replace": replaced,
    "collections.deque": _deque,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _defaultdict,
    "collections.namedtuple": _namedtuple,
    "argparse.ArgumentParser": _parser,
    "configargparse.ArgumentParser": _parser,
    "configargparse.ArgParser": _parser,
    "configargparse.get_argument_parser": _parser,
    "weakref.ref": _referred,
    "weakref.proxy": lambda m, args, kwargs: args[0] if args else m.unknown("proxy"),
    "weakref.WeakKeyDictionary": _ordered,
    "weakref.WeakValueDictionary": _ordered,
    "weakref.WeakSet": lambda m, args, kwargs: calls.call(m, Lib("builtins.set"), args, kwargs),
    "importlib.import_module": _module,
    "typing.cast": lambda m, args, kwargs: args[1] if len(args) == 2 else m.unknown("cast"),
    "os.getenv": _environment,
    "random.seed": _nothing,
    "numpy.random.seed": _nothing,
    "os.makedirs": _nothing,
    "warnings.filterwarnings": _nothing,
    "torchvision.transforms.Compose": _compose,
    "tqdm.tqdm": _tqdm,
    "tqdm.auto.tqdm": _tqdm,
    "tqdm.notebook.tqdm": _tqdm,
    "tqdm.trange": _trange,
    "tqdm": _tqdm,
    stacks.KIND: stacks.made,
    **started.FUNCTIONS,
    "contextlib.suppress": _suppress,
    "contextlib.nullcontext": _suppress,
}

__all__ = ["FUNCTIONS", "HARMLESS", "METHODS", "Function", "deepcopy"]
