"""Scripts that train otherwise than they did when a patch was made of them: what a colleague does in a few lines.

Each edit says what is right then, as the new lines of its document: the fix in another place, or in other words. It is
`never` right where no fix of that kind is. What was placed elsewhere is judged by its numbers.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from random import Random

from drift import Document, Node, _indent, _lines, _nodes

EDITS: dict[str, Callable[[Document, Random], Document | None]] = {}
HEAD = "from itertools import count"


def edit(
    function: Callable[[Document, Random], Document | None],
) -> Callable[[Document, Random], Document | None]:
    EDITS[function.__name__] = function
    return function


def trained(document: Document, random: Random) -> Document:
    """`document` after one of the edits, if one of them is possible."""
    for name in random.sample(sorted(EDITS), len(EDITS)):
        changed = EDITS[name](document, random)
        if changed is not None and _compiles(changed.old) and _compiles(changed.new):
            return replace(changed, trained=True, done=(*document.done, name))
    return document


def numbers(script: str) -> list[float] | None:
    """What the parameters of every optimizer are, step by step, where `script` runs; None where it fails."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    found: list[float] = []

    def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
        groups = [p for group in optimizer.param_groups for p in group["params"]]
        found.extend(p.detach().double().abs().sum().item() for p in groups)

    torch.manual_seed(0)
    hook = register_optimizer_step_post_hook(stepped)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
        except Exception:  # whatever it does wrong
            return None
        finally:
            hook.remove()
    return found


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "train.py", "exec")
        except SyntaxError:
            return False
    return True


def _found(document: Document, pattern: str) -> list[int]:
    """The lines of code, not changed by the fix, that are this."""
    return [n for n in _lines(document) if re.fullmatch(pattern, document.nodes[n].old[0])]


def _brought(document: Document, pattern: str) -> list[int]:
    """The places where the fix puts this one line in."""
    every = enumerate(document.nodes)
    return [n for n, x in every if not x.old and len(x.new) == 1 and re.fullmatch(pattern, x.new[0])]


def _alone(*found: list[int]) -> list[int]:
    """The only one of each; none at all where one of them has none or several."""
    return [some[0] for some in found] if all(len(some) == 1 for some in found) else []


def _both(*lines: str) -> list[Node]:
    return [Node((x,), (x,)) for x in lines]


def _first(document: Document) -> int:
    """Where statements may go in that everything else comes after."""
    return next((n + 1 for n in _found(document, "import torch")), 0)


def _begun(document: Document, nodes: list[Node], *lines: str) -> Document:
    """`document` with other nodes, and with lines at its beginning."""
    at = _first(document)
    return _nodes(document, [*nodes[:at], *_both(*lines), *nodes[at:]])


@edit
def gathered(document: Document, random: Random) -> Document | None:
    """A step is made of the gradients of several passes."""
    steps = _found(document, r"\s+\w+\.step\(\)")
    if len(steps) != 1:
        return None
    at, every = steps[0], random.choice([2, 3])
    line = document.nodes[at].old[0]
    indent, name = _indent(line), line.strip().removesuffix(".step()")
    clear = rf"\s+{name}\.zero_grad\(\)"
    own, brought = _found(document, clear), _brought(document, clear)
    if not own and not brought:
        return None
    test = f"{indent}if next(turns) % {every}"
    if random.random() < 0.5:
        into, head = f"{indent}    ", [f"{test} == 0:"]
    else:
        into, head = indent, [f"{test}:", f"{indent}    continue"]
    cleared = f"{into}{name}.zero_grad()"
    last = _both(cleared) if own else [Node((), (cleared,))]
    nodes = [*document.nodes]
    nodes[at : at + 1] = [*_both(*head, f"{into}{name}.step()"), *last]
    gone = {id(document.nodes[n]) for n in (*own, *brought)}
    return _begun(document, [n for n in nodes if id(n) not in gone], HEAD, "turns = count(1)")


@edit
def another_loss(document: Document, random: Random) -> Document | None:
    """An auxiliary loss has a backward of its own, before the place where the fix clears gradients."""
    steps, brought = _found(document, r"\s+\w+\.step\(\)"), _brought(document, r"\s+\w+\.zero_grad\(\)")
    if len(steps) != 1 or len(brought) != 1 or ".zero_grad(" in document.old:
        return None
    at = brought[0]
    clear = document.nodes[at].new[0]
    indent, name = _indent(clear), clear.strip().removesuffix(".zero_grad()")
    if document.nodes[steps[0]].old[0].strip() != f"{name}.step()" or at > steps[0]:
        return None
    above = at
    while above and all(
        _indent(x).startswith(indent) or not x.strip() for x in document.nodes[above - 1].old
    ):
        above -= 1
    places = [n for n in range(above, at + 1) if n == at or (document.nodes[n].old
              and _indent(document.nodes[n].old[0]) == indent and document.nodes[n].old[0].strip())]  # fmt: skip
    to = random.choice(places)
    size = f"sum(p.pow(2).sum() for g in {name}.param_groups for p in g['params'])"
    said = random.choice([[f"aux = {size}", "aux.backward()"], [f"(0.1 * {size}).backward()"]])
    nodes = [*document.nodes[:at], *document.nodes[at + 1 :]]
    nodes[to:to] = [Node((), (clear,)), *_both(*(f"{indent}{x}" for x in said))]
    return _nodes(document, nodes)


@edit
def window(document: Document, random: Random) -> Document | None:
    """The losses of several passes have one backward, behind which the state is detached."""
    brought = _brought(document, r"\s+(\w+) = (\1\.detach\(\)|.*\.detach\(\) for \w+ in \1\b.*)")
    backwards = _found(document, r"\s+\w+\.backward\(\)")
    if not (alone := _alone(brought, backwards)):
        return None
    put, at = alone
    line = document.nodes[at].old[0]
    indent, loss = _indent(line), line.strip().removesuffix(".backward()")
    first, last = at, at + 1
    while first and re.fullmatch(rf"{indent}\w+\.zero_grad\(\)", "\n".join(document.nodes[first - 1].old)):
        first -= 1
    while last < len(document.nodes) and re.fullmatch(
        rf"{indent}\w+\.(step|zero_grad)\(\)", "\n".join(document.nodes[last].old)
    ):
        last += 1
    if last == at + 1 or _indent(document.nodes[put].new[0]) != indent or put >= first:
        return None
    detach = document.nodes[put].new[0].strip()
    block = [x.strip() for node in document.nodes[first:last] for x in node.old]
    head = [f"{indent}losses.append({loss})"]
    if random.random() < 0.5:
        head += [f"{indent}if len(losses) == 2:"]
        into = f"{indent}    "
    else:
        head += [f"{indent}if len(losses) < 2:", f"{indent}    continue"]
        into = indent
    made = random.choice(["sum(losses)", "torch.stack(losses).sum()"])
    body = [f"{into}{x}" for x in (f"{loss} = {made}", "losses.clear()", *block)]
    nodes = [*document.nodes]
    nodes[first:last] = [*_both(*head, *body), Node((), (f"{into}{detach}",))]
    del nodes[put]
    return _begun(document, nodes, "losses = []") if put >= _first(document) else None


@edit
def learned(document: Document, random: Random) -> Document | None:
    """The first state is a parameter: a detach would take its gradient for good."""
    brought = _brought(document, r"\s+(\w+) = \1\.detach\(\)")
    optimizers = _found(document, r"\w+ = torch\.optim\..*")
    if not (alone := _alone(brought, optimizers)):
        return None
    put, made = alone
    name = document.nodes[put].new[0].split()[0]
    starts = _found(document, rf"{name} = torch\.zeros\(.*\)")
    if len(starts) != 1:
        return None
    nodes = [*document.nodes]
    value = nodes[starts[0]].old[0].partition(" = ")[2]
    nodes[starts[0] : starts[0] + 1] = _both(f"{name} = torch.nn.Parameter({value})")
    optimizer = nodes[made].old[0].split()[0]
    to = max(starts[0], made) + 1
    nodes[to:to] = _both(f"{optimizer}.add_param_group({{'params': [{name}]}})")
    return replace(_nodes(document, nodes), never=True)


@edit
def one_state(document: Document, random: Random) -> Document | None:
    """A GRU has one tensor where an LSTM has two."""
    brought = _brought(document, r"\s+(\w+) = tuple\(s\.detach\(\) for s in \1\)")
    if len(brought) != 1 or "LSTM(" not in document.old:
        return None

    def other(lines: tuple[str, ...]) -> tuple[str, ...]:
        said = (x.replace("LSTM", "GRU") for x in lines)
        return tuple(re.sub(r"\((torch\.zeros\([^()]*\)), \1\)", r"\1", x) for x in said)

    line = document.nodes[brought[0]].new[0]
    name = line.split()[0]
    nodes = [Node(other(n.old), other(n.new)) for n in document.nodes]
    nodes[brought[0]] = Node((), (f"{_indent(line)}{name} = {name}.detach()",))
    changed = _nodes(document, nodes)
    return changed if re.search(rf"{name} = torch\.zeros", changed.old) else None


@edit
def one_optimizer(document: Document, random: Random) -> Document | None:
    """The optimizer that steps first holds both networks."""
    made = _found(document, r"\w+ = torch\.optim\.\w+\(\w+\.parameters\(\).*")
    steps = _found(document, r"\s+\w+\.step\(\)")
    cut = [n for n in document.nodes if n.old and n.changes and ".detach()" in "".join(n.new)]
    changes = [n for n in document.nodes if n.changes]
    if len(made) != 2 or len(steps) != 2 or len(cut) != 1 or changes != cut:
        return None
    first = document.nodes[steps[0]].old[0].strip().removesuffix(".step()")
    lines = {n: document.nodes[n].old[0] for n in made}
    nets = {n: re.search(r"\((\w+)\.parameters", line)[1] for n, line in lines.items()}
    at = next((n for n, line in lines.items() if line.startswith(f"{first} =")), None)
    if at is None:
        return None
    other = next(net for n, net in nets.items() if n != at)
    both = f"([*{other}.parameters(), *{nets[at]}.parameters()]"
    nodes = [*document.nodes]
    nodes[at] = _both(lines[at].replace(f"({nets[at]}.parameters()", both))[0]
    return replace(_nodes(document, nodes), never=True)


@edit
def clipped_between(document: Document, random: Random) -> Document | None:
    """Two backwards that the fix makes one have something between them."""
    gone = [n for n, x in enumerate(document.nodes) if x.changes and ".backward(" in "".join(x.old)]
    optimizers = _found(document, r"\w+ = torch\.optim\..*")
    if len(gone) != 2 or len(optimizers) != 1 or gone[1] - gone[0] < 2:
        return None
    name = document.nodes[optimizers[0]].old[0].split()[0]
    indent = _indent(document.nodes[gone[1]].old[0])
    values = f"[p for g in {name}.param_groups for p in g['params']]"
    said = random.choice(
        [
            f"torch.nn.utils.clip_grad_norm_({values}, 0.01)",
            f"{name}.step()",
            f"print({values}[0].grad.norm())",
        ]
    )
    nodes = [*document.nodes]
    nodes[gone[0] + 1 : gone[0] + 1] = _both(indent + said)
    return replace(_nodes(document, nodes), never=True)
