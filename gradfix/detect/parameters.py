"""cut-graph, stray-optimizer, missing-grad: parameters that an optimizer steps, or was meant to, and that
never get a gradient.

PyTorch says nothing about any of these, and much sound code looks alike (frozen models, unused heads), so
each asks for evidence that the person did not mean it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator

from gradfix import wording
from gradfix.detect.copies import trained_in_its_stead
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.frozen import frozen_in_every_pass, frozen_since
from gradfix.detect.refused import CUT_WORDS, NO_GRAPH
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, End, Fed, GradUse, Mutate, Record, Ref, Stack, Step, Uncalled, Zero

# what makes a non-leaf of a parameter by accident
CONVERSIONS = {"to_copy", "mul", "div", "clone", "add", "to"}
# what a constrained "parameter" is made by (`nn.Parameter(torch.rand(3)).log()`)
CONSTRAINTS = {
    "log",
    "exp",
    "sigmoid",
    "logit",
    "tanh",
    "softplus",
    "abs",
    "sqrt",
    "neg",
    "softmax",
    "log_softmax",
}
REMADE = ("data", "detach", "tensor")  # ways to leave the graph with a value that may be made a leaf


def filled_ever(graph: Graph) -> set[int]:
    """The leaves that some backward fills the gradient of."""
    return {r.storage for b in graph.backwards for r in b.accumulates}


def cuts_of(graph: Graph, discrete: bool = False) -> list[Cut]:
    """Where the graph is left by what could have kept it; by what is `discrete` too. (Masks and indices are made in
    every program.)"""
    return [e for e in graph.tape.events if isinstance(e, Cut) and (discrete or e.how != "discrete")]


def dead_parameters(graph: Graph) -> Found:
    """All parameters of an optimizer stay without a gradient in every step, though graphs were built on
    them."""
    uncalled = any(isinstance(e, Uncalled) for e in graph.tape.events)  # (then that is why)
    for number, steps in () if uncalled else untrained(graph):
        if (frozen := frozen_in_every_pass(graph, number)) is not None:
            yield ("dead", number), steps[0], frozen
            continue
        mine = graph.owned_mask([number])
        first = steps[0]
        earlier = [b for b in graph.backwards if b.time < first.time]
        before = max((b.time for b in earlier), default=first.time)
        leading = [b for b in graph.backwards if any(graph.reach_mask(root) & mine for root in b.roots)]
        if any(b.time < first.time for b in leading):
            yield from frozen_since(graph, number, leading)
            continue
        # a loss that is a leaf itself was let require a gradient, whatever it is made of: indices, say
        alone = bool(earlier) and not graph.walk(earlier[-1])
        cut = next(
            (
                c
                for c in reversed(cuts_of(graph, discrete=alone))
                if c.time < before
                and c.stack
                and _reached(graph, c) & mine
                and _leads_to(graph, c, earlier)
                and (not alone or _again(graph, c, earlier[-1]))
            ),
            None,
        )
        if cut is None:  # frozen on purpose, or used nowhere: nothing else shows that a gradient was meant
            yield from trained_in_its_stead(graph, number, steps)
            continue
        backward = next((b for b in reversed(graph.backwards) if cut.time < b.time < first.time), None)
        if backward is not None and NO_GRAPH in backward.refused:
            continue  # said already: that loss has no graph at all
        labels: list[tuple[str, Stack, str]] = [
            ("cut", cut.stack, CUT_WORDS.get(cut.how, "the graph is left here"))
        ]
        if backward is not None:
            labels.append(("needed", backward.stack, "this loss reaches none of its parameters"))
        labels.append(("step", first.stack, "steps without a single gradient"))
        yield (
            ("dead", number),
            first,
            make(
                "cut-graph",
                "dead-parameter",
                f"no parameter of {optimizer_words(graph, number)} ever gets a gradient: "
                f"{wording.at('cut', cut.stack)} cuts the graph between them and the loss",
                labels,
                "cut",
                ref=cut.ref,
                backward=backward,
                event=cut,
            ),
        )


def untrained(graph: Graph) -> Iterator[tuple[int, list[Step]]]:
    """The optimizers none of whose parameters ever gets a gradient, with their steps. Not one whose parameters are kept
    up with another model's, say: a target, which no loss is meant to train. Nor where a loss may be given more terms
    behind what the run came to, as after a warm-up."""
    filled = filled_ever(graph)
    if any(isinstance(e, End) and e.later for e in graph.tape.events):
        return
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if not steps or any(s.refs for s in steps) or any(r.storage in filled for r in optimizer.refs):
            continue
        if not given_values(graph, number) and (len(steps) > 1 or _of_an_idle_loss(graph, steps[0])):
            yield number, steps


def _of_an_idle_loss(graph: Graph, step: Step) -> bool:
    """Whether a loss is differentiated for nobody else, between the one step of an optimizer and where all of its
    gradients were cleared: one pass tells, too, that it was to be trained by that."""
    own = {r.storage for r in graph.optimizers[step.optimizer].refs}
    cleared = (
        e.time
        for e in graph.tape.events
        if isinstance(e, Zero) and e.time < step.time and own <= {r.storage for r in e.refs}
    )
    since = max(cleared, default=step.time)
    between = [b for b in graph.backwards if since < b.time < step.time]
    return bool(between) and not graph.serves(between[-1])


def _again(graph: Graph, cut: Cut, backward: Backward) -> bool:
    """Whether the graph is left at this place in each pass of a backward whose loss is a leaf: nothing else shows that
    the loss is made of it."""
    passes = graph.passes(backward)
    return len(passes) < 2 or any(
        c.stack == cut.stack and passes[0].time < c.time < passes[1].time
        for c in cuts_of(graph, discrete=True)
    )


def _leads_to(graph: Graph, cut: Cut, backwards: list[Backward]) -> bool:
    """Whether the last of `backwards` may be of what was made of the cut value: another one in between is the loss that
    it was cut for, unless this one's graph holds it, too."""
    if not any(cut.time < b.time < backwards[-1].time for b in backwards):
        return True
    walk = graph.walk(backwards[-1])
    fed = (e for e in graph.tape.events if isinstance(e, Fed) and cut.time in e.cuts)
    nodes = (graph.records.get(n) for n in walk)
    return any(e.node in walk for e in fed) or any(
        ref.storage == cut.ref.storage for record in nodes if record is not None for ref in record.saves
    )


def by_hand(write: Mutate | Step) -> bool:
    """Whether the program itself writes, and no optimizer."""
    return isinstance(write, Mutate) and write.optimizer is None


def given(write: Mutate | Step, first: int) -> bool:
    """Whether the program gives a parameter values of its own: of another training before the first step, or by what it
    does from step to step. Random ones are what training begins with, and bounds are no values."""
    op = plain_op(write) if isinstance(write, Mutate) else ""
    copied = isinstance(write, Mutate) and (write.how == "set_data" or op in ("copy", "set"))
    return by_hand(write) and (copied or (write.time > first and not op.startswith("clamp")))


def given_values(graph: Graph, number: int) -> set[int]:
    """Those of an optimizer's parameters that are given values otherwise, a target network's. What was loaded before
    the first step is that of a training that goes on, unless a loss trains a model of just these shapes: its copy."""
    first = next((s.time for s in graph.steps_of(number)), 0)
    own = {r.storage: r.shape for r in graph.optimizers[number].refs}
    trained = {r.shape for b in graph.backwards for r in b.accumulates if r.storage not in own}
    copied = trained.issuperset(own.values())
    writes = {s: [w for w in graph.writes.get(s, ()) if copied or w.time > first] for s in own}
    return {s for s, some in writes.items() if any(given(w, first) for w in some)}


def _reached(graph: Graph, cut: Cut) -> int:
    """The leaves behind a cut, as a bit mask; under no_grad the tensor may be a leaf itself."""
    return graph.reach_mask(cut.node) if cut.node is not None else graph.mask([cut.ref.storage])


def rewrapped(graph: Graph) -> Found:
    """A cut value is made a leaf, gets a gradient, and nothing pushes that back into the graph it was cut
    from."""
    used = {r.storage for s in graph.steps for r in s.refs}  # (or the program gave them a gradient by hand)
    filled = filled_ever(graph)
    walked = frozenset().union(*(graph.walk(b) for b in graph.backwards)) if graph.backwards else frozenset()
    for cut in cuts_of(graph):
        if cut.node is None or cut.how not in REMADE or not cut.stack:
            continue
        behind = {s for s in graph.reaches(cut.node) if s in graph.owners}
        if cut.node in walked and not behind & filled:
            continue
        # (what is stepped is a parameter, whose memory is the value's since `p.data = value.data`)
        leaves = _leaves_of(graph, cut) - used if behind - used else set()
        if not leaves:
            continue
        leaf = next(
            (
                b
                for b in graph.backwards
                if b.time > cut.time and any(r.storage in leaves for r in b.accumulates)
            ),
            None,
        )
        if leaf is None:
            continue
        dead = behind - used
        if behind & (used | filled):  # other losses reach it: it was for what is stepped right behind
            step = next((s for s in graph.steps if s.time > leaf.time), None)
            dead = {s for s in behind if step is not None and step.optimizer in graph.owners[s]}
            if step is None or {r.storage for r in graph.optimizers[step.optimizer].refs} & used:
                continue
        steps = [s for s in graph.steps if dead and graph.owners[min(dead)] & {s.optimizer}]
        if not steps:
            continue
        never = "are never stepped with a gradient" if dead & filled else "never get a gradient"
        yield (
            ("rewrapped", cut.stack[-1]),
            cut,
            make(
                "cut-graph",
                "rewrapped",
                f"{names_of(graph, dead)} {never}: {wording.at('cut', cut.stack)} makes a new leaf of "
                f"{wording.name(cut.ref, 'the value')}, and its gradient is not passed on",
                [
                    ("cut", cut.stack, CUT_WORDS[cut.how]),
                    ("needed", leaf.stack, "the gradient ends at the new leaf"),
                    ("step", steps[0].stack, "steps these parameters without a gradient"),
                ],
                "cut",
                ref=cut.ref,
                record=graph.records.get(cut.node),
                backward=leaf,
                event=cut,
            ),
        )


def _leaves_of(graph: Graph, cut: Cut) -> set[int | None]:
    """The leaf that is made of a cut value, and those of what is made of it and cut again: the fast weights of an inner
    loop, after each of its steps."""
    found = {cut.ref.storage, cut.leaf}
    for other in cuts_of(graph):
        again = other.time > cut.time and other.how in REMADE
        if again and other.node is not None and graph.reaches(other.node) & found:
            found |= {other.ref.storage, other.leaf}
    return found


def names_of(graph: Graph, storages: Iterable[int]) -> str:
    """What these parameters of optimizers are called."""
    refs = {r.storage: r for o in graph.optimizers.values() for r in o.refs}
    names = [f"`{refs[s].name}`" for s in sorted(storages) if s in refs and refs[s].name]
    return wording.listed(names) if names else "parameters"


def converted(graph: Graph) -> Found:
    """A "parameter" that an op made of a leaf once, before the loop: the leaf gets the gradient, and is
    nobody's."""
    if len(graph.steps) < 2 or not graph.backwards:
        return
    consumers: dict[int, list[Record]] = {}
    for record in graph.records.values():
        for parent in record.parents:
            if parent < 0:
                consumers.setdefault(~parent, []).append(record)
    first = graph.backwards[0].time
    read = {
        e.ref.storage for e in graph.tape.events if isinstance(e, GradUse)
    }  # it is the leaf that is trained
    for storage, records in consumers.items():
        record = records[0]
        if storage in graph.owners or len(records) > 1 or record.time > first or len(record.parents) > 1:
            continue
        if plain_op(record) not in CONVERSIONS | CONSTRAINTS or not record.stack or storage in read:
            continue
        walks = [b for b in graph.backwards if record.node in graph.walk(b) and not b.inputs]
        if len(walks) < 2 or graph.stack_number(walks[0].stack) != graph.stack_number(walks[1].stack):
            continue
        if differentiated_by(graph, record.node):
            continue
        name = wording.name(record.output, "this tensor")
        yield (
            ("converted", record.stack[-1]),
            walks[0],
            make(
                "missing-grad",
                "parameter",
                f"{name} is meant as a parameter but is the result of an op ({plain_op(record).strip('_')}): "
                "no optimizer "
                "steps it and it keeps no gradient",
                [
                    ("made", record.stack, f"{name} is made by an op here: not a leaf"),
                    ("needed", walks[0].stack, "its gradient goes to the tensor it was made of"),
                ],
                "made",
                severity="warning",
                ref=record.output,
                record=record,
                backward=walks[0],
            ),
        )


def differentiated_by(graph: Graph, node: int) -> bool:
    """Whether a backward that was given its inputs may have been given what `node` made: collocation points, say, by
    which the output of a network is differentiated."""
    return any(
        node in graph.records[walked].parents
        for b in graph.backwards
        if b.inputs
        for walked in graph.walk(b)
        if walked in graph.records
    )


def withheld(graph: Graph) -> Found:
    """A custom Function returns None for the gradient of parameters that the loss reaches by it alone."""
    users: dict[int, list[Record]] = {}
    for record in graph.records.values():
        for parent in record.parents:
            if parent < 0:
                users.setdefault(~parent, []).append(record)
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        stepped = {r.storage for s in steps for r in s.refs}
        if len(steps) < 2 or not stepped:
            continue
        found: dict[str, list[Ref]] = {}
        for ref in optimizer.refs:
            ops = {r.op for r in users.get(ref.storage, ())}
            own = len(ops) == 1 and not any("." in op for op in ops)
            if own and ref.storage not in stepped and _met_empty(graph, ref.storage):
                found.setdefault(ops.pop(), []).append(ref)
        for op, refs in found.items():
            # (what the Function made first may have been evaluated only)
            uses = (
                (r, b) for b in graph.backwards for r in users[refs[0].storage] if r.node in graph.walk(b)
            )
            record, backward = next(uses)  # _met_empty: some backward went through it
            yield (
                ("withheld", number, op),
                backward,
                make(
                    "cut-graph",
                    "withheld",
                    f"`{op}.backward` returns None for {names_of(graph, [r.storage for r in refs])}, which the loss "
                    f"reaches through {op} alone: never trained",
                    [
                        ("made", record.stack, f"enters `{op}` here"),
                        ("needed", backward.stack, "gets no gradient back for it"),
                        ("step", steps[0].stack, "steps without"),
                    ],
                    "made",
                    severity="warning",
                    ref=refs[0],
                    record=record,
                    backward=backward,
                ),
            )


def _met_empty(graph: Graph, storage: int) -> bool:
    """Whether every backward that reached the leaf left it without a gradient for the step right behind, and nobody
    but an optimizer writes to it (a moving average that trains it otherwise)."""
    history = graph.history.get(storage, [])
    reached = [n for n, e in enumerate(history) if isinstance(e, Backward)]
    whole = reached[:-1] if reached and reached[-1] + 1 == len(history) else reached
    first = next((s.time for s in graph.steps), 0)
    written = any(by_hand(w) for w in graph.writes.get(storage, ()) if w.time > first)
    return len(whole) > 1 and not written and all(isinstance(history[n + 1], Step) for n in whole)


def bypassed(graph: Graph) -> Found:
    """Parameters that a forward() takes by ``.data`` or ``.detach()`` and nothing else takes: in every step of their
    optimizer the others have a gradient, and these have none."""
    cuts: dict[int, list[Cut]] = {}
    for cut in cuts_of(graph):
        in_forward = cut.at is not None and cut.at.function.rpartition(".")[2] == "forward"
        if in_forward and cut.node is None and cut.how in ("data", "detach"):
            cuts.setdefault(cut.ref.storage, []).append(cut)
    if not cuts:
        return
    filled = filled_ever(graph)
    used = {~parent for record in graph.records.values() for parent in record.parents if parent < 0}
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if len(steps) < 2 or not all(s.refs for s in steps):
            continue
        without = set.intersection(*({r.storage for r in s.without} for s in steps))
        found: dict[str, list[tuple[Ref, Cut]]] = {}
        for ref in optimizer.refs:
            idle = ref.storage in without and ref.storage not in filled | used
            every = cuts.get(ref.storage, []) if idle else []
            rounds = {bisect([s.time for s in steps], c.time) for c in every}
            # what the script writes itself, a moving average say, is trained otherwise
            later = (w for w in graph.writes.get(ref.storage, ()) if w.time > steps[0].time)
            if len(rounds) > 1 and not any(map(by_hand, later)):
                at = every[0].stack[-1]
                found.setdefault(f"{at.file}:{at.function}", []).append((ref, every[0]))
        for place, some in found.items():
            first = some[0][1]
            never = "never gets" if len(some) == 1 else "never get"
            yield (
                ("bypassed", number, place),
                steps[0],
                make(
                    "cut-graph",
                    "bypassed",
                    f"{names_of(graph, [r.storage for r, _ in some])} {never} a gradient: "
                    f"{wording.at('cut', first.stack)} takes the values alone, and nothing else uses them",
                    [
                        *(("cut", c.stack, CUT_WORDS[c.how]) for _, c in some),
                        ("step", steps[0].stack, "steps with the others, without these"),
                    ],
                    "cut",
                    severity="warning",
                    ref=first.ref,
                    event=first,
                ),
            )
