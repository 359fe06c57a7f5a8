"""Statements of the program, one function a kind. Each returns None, or how the block was left."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from gradfix.read import calls, flags, growing, iteration, leaving, libraries, modules, names, objects
from gradfix.read.backward import alone
from gradfix.read.expressions import assign, augmented, delete, evaluate
from gradfix.read.frames import Machine, Raised
from gradfix.read.truth import truth
from gradfix.read.values import Class, Generator, Instance, Later, Lib, Tensor, Unknown, Value

Left = str | None  # "break", "continue", "return" or None: went on to its end
_ENDS = (ast.Raise, ast.Return, ast.Break, ast.Continue)
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Dict, type(None))
_EXITS = {"exit", "quit", "_exit"}
# a block under one of them is there to be refused: of pytest's and unittest's
_REFUSED = {"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp"}
_CLEARING = (".zero_()", ".data.zero_()", ".detach_()", ".requires_grad_(False)", " = None")
_ASKING = {
    "is_available",
    "device_count",
    "is_bf16_supported",
    "get_device_capability",
}  # what the machine has


def block(m: Machine, body: list[ast.stmt]) -> Left:
    """Run the statements of `body`."""
    for statement in body:
        m.spend()
        run = RUN.get(type(statement))
        if run is not None:
            left = run(m, statement) if m.watch is None else m.watch.run(m, run, statement)
            if left is not None:
                return left
    return None


def _expression(m: Machine, node: ast.Expr) -> Left:
    if isinstance(node.value, ast.Constant):
        return None
    evaluate(m, node.value)
    alone(m, node.value)
    return None


def _assign(m: Machine, node: ast.Assign) -> Left:
    value = evaluate(m, node.value)
    for target in node.targets:
        assign(m, target, _counted(m, target, value), node)
    return None


def _counted(m: Machine, target: ast.expr, value: Value) -> Value:
    """`value`, larger than what `target` is bound to: ``n = n + 1``, ``self.size = min(self.size + 1, self.most)``."""
    if not m.partial or type(value) is not int:
        return value
    if isinstance(target, ast.Name):
        names = m.frame.unit.names if target.id in m.frame.declared else m.frame.names
        return growing.counted(m, names.get(target.id), value)
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        owner = evaluate(m, target.value)
        before = owner.attrs.get(target.attr) if isinstance(owner, Instance) else None
        return growing.counted(m, before, value)
    return value


def _annotated(m: Machine, node: ast.AnnAssign) -> Left:
    if node.value is not None:
        assign(m, node.target, evaluate(m, node.value), node)
    return None


def _augmented(m: Machine, node: ast.AugAssign) -> Left:
    augmented(m, node)
    return None


def _delete(m: Machine, node: ast.Delete) -> Left:
    for target in node.targets:
        delete(m, target)
    return None


def _return(m: Machine, node: ast.Return) -> Left:
    result = evaluate(m, node.value) if node.value is not None else None
    doubted = m.doubts > m.frame.doubts and m.grad and any(map(_graphed, m.frame.names.values()))
    if doubted and isinstance(result, Tensor) and result.requires is False:
        result = replace(result, requires=None)  # another branch may return what has a graph
    m.frame.result = result
    if not isinstance(node.value, _LITERAL):
        m.frame.passed_over = False
    return "return"


def _raise(m: Machine, node: ast.Raise) -> Left:
    value = evaluate(m, node.exc) if node.exc is not None else None
    m.frame.node = node
    raise Raised(value)


def _break(m: Machine, node: ast.Break) -> Left:
    return "break"


def _continue(m: Machine, node: ast.Continue) -> Left:
    return "continue"


def ends(m: Machine, body: list[ast.stmt]) -> bool:
    """Whether a block leaves what it stands in: its last statement returns, raises, breaks or ends the program."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, _ENDS):
        return True
    if isinstance(last, ast.With):
        return ends(m, last.body)
    if isinstance(last, ast.If):
        return ends(m, last.body) and ends(m, last.orelse)
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        called = last.value.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in _EXITS
    return False


def _refuses(node: ast.If) -> bool:
    """Whether the program gives up on machines like this one, without a GPU: it is read as where it can run."""
    return isinstance(node.body[-1], ast.Raise) and any(
        isinstance(x, ast.Attribute) and x.attr in _ASKING for x in ast.walk(node.test)
    )


def _gives_up(node: ast.If) -> bool:
    """Whether one of its blocks is where the program does not go on."""
    return any(body and isinstance(body[-1], ast.Raise | ast.Break) for body in (node.body, node.orelse))


def _clears(node: ast.If) -> bool:
    """Whether it asks for a gradient only to clear it: nothing is lost where there is none."""
    test = node.test.left if isinstance(node.test, ast.Compare) else None
    if not isinstance(test, ast.Attribute) or test.attr != "grad" or node.orelse:
        return False
    name = ast.unparse(test)
    ways = {name + way for way in _CLEARING}
    asks = ast.unparse(node.test) == f"{name} is not None"
    return asks and all(ast.unparse(statement) in ways for statement in node.body)


def _if(m: Machine, node: ast.If) -> Left:
    m.clearing = _clears(node)
    try:
        value = evaluate(m, node.test)
    finally:
        m.clearing = False
    known = truth(m, value)
    if known and _refuses(node):
        known = False
    if known is not None:
        if m.open.flags:
            flags.met(m, node)
        return block(m, node.body if known else node.orelse)
    if node.body[-1] is m.way_out:
        return block(m, node.body)
    forced = flags.forced(m, node.test)
    if forced is not None:
        taken = forced
    elif ends(m, node.body) and not ends(m, node.orelse):
        taken = False
    elif ends(m, node.orelse) and not ends(m, node.body):
        taken = True
    else:
        taken = value.then if isinstance(value, growing.Grown) else m.decide(node.test)
    if forced is None and not isinstance(value, growing.Grown):
        flags.unanswered(m, node, taken)
    if m.turns(node.test) and not _gives_up(node):
        taken = not taken
    other = node.orelse if taken else node.body
    if other and isinstance(other[-1], ast.Return) and other[-1].value is not None:
        m.frame.passed_over = True
    grad = m.grad
    body = node.body if taken else node.orelse
    before = {name: m.frame.names.get(name) for name in _rebinds(body)}
    m.doubts += 1
    m.trace.guessed = True
    try:
        return block(m, body)
    finally:
        m.doubts -= 1
        m.grad = m.grad or grad  # that they were turned off is not known
        for name, value in before.items():
            _doubted(m, name, value)


def _rebinds(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a block binds again."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.If | ast.With):
            yield from _rebinds(statement.body)


def _doubted(m: Machine, name: str, before: Value) -> None:
    """What a block that may not run has bound to `name`: that it has no graph is not known where the value before may
    have one."""
    made = m.frame.names.get(name)
    if isinstance(made, Tensor) and made.requires is False and _graphed(before):
        m.frame.names[name] = replace(made, requires=None)


def _graphed(value: Value) -> bool:
    return value.requires is not False if isinstance(value, Tensor) else isinstance(value, Unknown)


def _for(m: Machine, node: ast.For | ast.AsyncFor) -> Left:
    m.frame.node = node.iter
    source = evaluate(m, node.iter)
    m.frame.node = node.iter
    m.frame.passing.update(names.bound(node.target))
    left: list[Left] = [None]
    turned, passes = m.turned, count()

    def one(item: Value) -> bool:
        m.spend()
        m.turned = m.closely and next(passes) % 2 == 1
        assign(m, node.target, item, node)
        left[0] = block(m, node.body)
        return left[0] in ("break", "return")

    try:
        known = iteration.each(m, source, one, node)
    finally:
        m.turned = turned
    if left[0] == "return":
        return "return"
    if left[0] != "break" and known:
        return block(m, node.orelse)
    return None


def _while(m: Machine, node: ast.While) -> Left:
    turned = m.turned
    try:
        with growing.around(m, True) as outermost:
            left = _passes(m, node)
            if left == "on" and outermost and m.awaited:
                with growing.ripe(m):
                    left = _passes(m, node, growing.PASSES)
            if left == "on" and (way_out := leaving.way_out(m, node)) is not None:
                outer, m.way_out = m.way_out, way_out
                try:
                    with growing.ripe(m):
                        left = _passes(m, node, 1)
                finally:
                    m.way_out = outer
    finally:
        m.turned = turned
    if left == "over":
        return block(m, node.orelse)
    if left == "on" and not m.guards and leaving.endless(m, node):
        raise iteration.Stopped
    return "return" if left == "return" else None


def _passes(m: Machine, node: ast.While, most: int | None = None) -> Left:
    """How the loop is left: it may be ``over``, or go ``on`` behind the passes that are read."""
    passes = 0
    while True:
        m.spend()
        awaited = m.awaited
        test, m.awaited = evaluate(m, node.test), awaited  # (that it ends some day is no news)
        known = not test.then if isinstance(test, growing.Grown) else truth(m, test)
        if known is False:
            return "over"
        if passes >= (most or max(iteration.most(m, node, 1 << 30 if known else None), 2 * m.turn)):
            return "on"
        m.turned = m.closely and passes % 2 == 1
        passes += 1
        m.doubts += known is None
        try:
            left = block(m, node.body)
        finally:
            m.doubts -= known is None
        if left in ("break", "return"):
            return left


def _with(m: Machine, node: ast.With | ast.AsyncWith) -> Left:
    return _entered(m, node, 0)


def _entered(m: Machine, node: ast.With | ast.AsyncWith, at: int) -> Left:
    """What a ``with`` comes to from its item number `at` on."""
    if at == len(node.items):
        return block(m, node.body)
    item = node.items[at]
    value = evaluate(m, item.context_expr)
    m.frame.node = item.context_expr
    if isinstance(value, Unknown) and _asks_to_be_refused(item.context_expr):
        return _not_done(m, node.body)
    if isinstance(value, Generator) and value.function.kind == "context" and not value.done:
        return _yielded_to(m, node, at, value)
    entered, leave = libraries.enter(m, value)
    guards = not (isinstance(value, Instance) and value.kind.startswith("torch."))
    m.guards += guards
    try:
        if item.optional_vars is not None:
            assign(m, item.optional_vars, entered, node)
        return _entered(m, node, at + 1)
    finally:
        m.guards -= guards
        m.frame.node = item.context_expr  # where Python says that it is left
        leave()


def _asks_to_be_refused(manager: ast.expr) -> bool:
    called = manager.func if isinstance(manager, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _REFUSED


def _not_done(m: Machine, body: list[ast.stmt]) -> Left:
    """A block that fails on purpose: what it binds is not known, and nothing else comes of it."""
    for each in (node for statement in body for node in ast.walk(statement)):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            calls.store(m, each.id, m.unknown("what was to fail"))
    return None


def _yielded_to(m: Machine, node: ast.With | ast.AsyncWith, at: int, manager: Generator) -> Left:
    """The same where a generator function is the context manager: the block runs at its yield, and it goes on after."""
    item, doubts = node.items[at], 0
    left: list[Left] = []

    def one(entered: Value) -> bool:
        nonlocal doubts
        before = m.doubts
        if item.optional_vars is not None:
            assign(m, item.optional_vars, entered, node)
        left.append(_entered(m, node, at + 1))
        doubts = m.doubts - before
        return False

    iteration.each(m, manager, one, item.context_expr)
    if not left:  # its yield was not come to
        return _entered(m, node, at + 1)
    m.doubts += doubts  # what the block does not know holds behind it, too
    return left[0]


def _try(m: Machine, node: ast.Try) -> Left:
    left: Left = None
    guarded, tried = bool(node.handlers), _tried_out(node)
    m.guards += guarded
    m.doubts += tried
    try:
        try:
            left = block(m, node.body)
        finally:
            m.guards -= guarded
            m.doubts -= tried
        if left is None:
            left = block(m, node.orelse)
    except Raised as raised:
        handler = next((h for h in node.handlers if _takes(h, raised.value)), None)
        if handler is None or raised.value is libraries.EXIT:
            block(m, node.finalbody)
            raise
        if handler.name:
            m.frame.names[handler.name] = raised.value
        m.doubts += 1
        try:
            left = block(m, handler.body)
        finally:
            m.doubts -= 1
    after = block(m, node.finalbody)
    return after if after is not None else left


def _takes(handler: ast.ExceptHandler, value: Value) -> bool:
    """Whether an ``except`` may take what was raised: one for ``KeyboardInterrupt`` takes no IndexError."""
    kind = value.kind.removeprefix("builtins.") if isinstance(value, Instance) else ""
    own = getattr(builtins, kind, None)
    wanted = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    types = [getattr(builtins, w.id, None) if isinstance(w, ast.Name) else None for w in wanted]
    known = [t for t in (own, *types) if isinstance(t, type) and issubclass(t, BaseException)]
    return len(known) <= len(types) or issubclass(known[0], tuple(known[1:]))


def _tried_out(node: ast.Try) -> bool:
    """Whether a ``try`` looks whether one call is refused, and goes on where it is."""
    named = {getattr(each.type, "id", "") for each in node.handlers}
    raised = any(isinstance(n, ast.Raise) for each in node.handlers for n in ast.walk(each))
    return (
        len(node.body) == 1 and isinstance(node.body[0], ast.Expr) and "RuntimeError" in named and not raised
    )


def _function(m: Machine, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Left:
    calls.store(m, node.name, calls.define(m, node))
    return None


def _class(m: Machine, node: ast.ClassDef) -> Left:
    value: Value = objects.define(m, node, block)
    for decorator in reversed(node.decorator_list):
        value = objects.decorated(m, evaluate(m, decorator), value)
    calls.store(m, node.name, value)
    return None


def _import(m: Machine, node: ast.Import) -> Left:
    unit = m.frame.unit
    for alias in node.names:
        first = alias.name.split(".")[0]
        name = alias.name if alias.asname else first
        value: Value = Lib(name)
        if m.project.has(name):
            value = Later(lambda name=name: modules.module(m, name, unit, 0))  # type: ignore[misc]
        calls.store(m, alias.asname or first, value)
    return None


def _import_from(m: Machine, node: ast.ImportFrom) -> Left:
    module, unit, level = node.module or "", m.frame.unit, node.level
    own = m.project.has(module, level)
    for alias in node.names:
        if alias.name == "*":
            found = m.project.find(module, unit, level) if own else None
            for each, value in list(modules.load(m, found).names.items()) if found is not None else ():
                if isinstance(each, str) and not each.startswith("_"):  # globals()[name] = … takes any
                    calls.store(m, each, value)
            continue
        value = Lib(f"{module}.{alias.name}")
        if own:
            value = Later(lambda name=alias.name: modules.member(m, module, name, unit, level))  # type: ignore[misc]
        calls.store(m, alias.asname or alias.name, value)
    return None


def _global(m: Machine, node: ast.Global) -> Left:
    m.frame.declared.update(dict.fromkeys(node.names, "global"))
    return None


def _nonlocal(m: Machine, node: ast.Nonlocal) -> Left:
    m.frame.declared.update(dict.fromkeys(node.names, "nonlocal"))
    return None


def _match(m: Machine, node: ast.Match) -> Left:
    subject = evaluate(m, node.subject)
    for case in node.cases:
        pattern = case.pattern
        if isinstance(pattern, ast.MatchValue):
            value = evaluate(m, pattern.value)
            if isinstance(subject, Unknown) or isinstance(value, Unknown | Class):
                continue
            if value == subject:
                return block(m, case.body)
        elif isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None:
            if pattern.name:
                calls.store(m, pattern.name, subject)
            return block(m, case.body)
    return None


def _assert(m: Machine, node: ast.Assert) -> Left:
    evaluate(m, node.test)
    return None


RUN: dict[type, Callable[..., Left]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Delete: _delete,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    ast.Match: _match,
    ast.Assert: _assert,
}
