"""What the optimizers show: parameters no loss reaches, gradients never cleared or cleared too early,
gradients of one loss in another's step, gradients computed for nothing, optimizers that hold the wrong
tensors.

PyTorch says nothing about any of these, and much sound code looks alike, so each asks for evidence that the
person did not mean it; a miss is better than a false alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.refused import CUT_WORDS, NO_GRAPH
from gradfix.graph import Graph, Leaf, plain_op
from gradfix.tape import (
    Backward,
    Cut,
    End,
    Event,
    Mutate,
    Optimizer,
    Record,
    Ref,
    Site,
    Stack,
    Step,
    Zero,
)

CONVERSIONS = {
    "to_copy",
    "mul",
    "div",
    "clone",
    "add",
    "to",
}  # what makes a non-leaf of a parameter by accident


def habits(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """Every conflict of this family."""
    found = Findings()
    for find in (
        dead_parameters,
        rewrapped,
        stray_optimizers,
        unreset,
        left_over,
        flows_on,
        converted,
        discarded,
    ):
        for key, event, conflict in find(graph):
            found.add(key, event.time, conflict)
    for find in (idle_retain, data_attributes):
        for key, event, conflict in find(graph):
            found.add(key, event.time, conflict)
    return found.conflicts()


Found = Iterator[tuple[object, Event, Conflict | None]]


def _optimizer(graph: Graph, number: int) -> str:
    """The optimizer's name in backticks, or words that tell it by the place of its step."""
    optimizer, steps = graph.optimizers.get(number), graph.steps_of(number)
    if optimizer is not None and optimizer.name:
        return f"`{optimizer.name}`"
    return f"the optimizer of {wording.at('step', steps[0].stack)}" if steps else "an optimizer"


# -- parameters without a gradient -------------------------------------------------------------------


def _filled_ever(graph: Graph) -> set[int]:
    return {r.storage for b in graph.backwards for r in b.accumulates}


def _cuts(graph: Graph) -> list[Cut]:
    return [e for e in graph.tape.events if isinstance(e, Cut)]


def dead_parameters(graph: Graph) -> Found:
    """All parameters of an optimizer stay without a gradient in every step, though graphs were built on
    them."""
    filled = _filled_ever(graph)
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if len(steps) < 2 or any(s.refs for s in steps) or any(r.storage in filled for r in optimizer.refs):
            continue
        mine = graph.owned_mask([number])
        first = steps[0]
        before = max((b.time for b in graph.backwards if b.time < first.time), default=first.time)
        cut = next(
            (c for c in reversed(_cuts(graph)) if c.time < before and c.stack and _reached(graph, c) & mine),
            None,
        )
        if cut is None:
            continue  # frozen on purpose, or used nowhere: nothing shows that a gradient was meant
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
                f"no parameter of {_optimizer(graph, number)} ever gets a gradient: "
                f"{wording.at('cut', cut.stack)} cuts the graph between them and the loss",
                labels,
                "cut",
                ref=cut.ref,
                backward=backward,
                event=cut,
            ),
        )


def _reached(graph: Graph, cut: Cut) -> int:
    """The leaves behind a cut, as a bit mask; under no_grad the tensor may be a leaf itself."""
    return graph.reach_mask(cut.node) if cut.node is not None else graph.mask([cut.ref.storage])


def rewrapped(graph: Graph) -> Found:
    """A cut value is made a leaf, gets a gradient, and nothing pushes that back into the graph it was cut
    from."""
    filled = _filled_ever(graph)
    walked = frozenset().union(*(graph.walk(b) for b in graph.backwards)) if graph.backwards else frozenset()
    for cut in _cuts(graph):
        if (
            cut.node is None
            or cut.node in walked
            or cut.how not in ("data", "detach", "tensor")
            or not cut.stack
        ):
            continue
        behind = graph.reaches(cut.node)
        dead = [s for s in behind if s in graph.owners and s not in filled]
        leaf = next(
            (
                b
                for b in graph.backwards
                if b.time > cut.time and any(r.storage == cut.ref.storage for r in b.accumulates)
            ),
            None,
        )
        if leaf is None or not dead or len(dead) < len([s for s in behind if s in graph.owners]):
            continue
        steps = [s for s in graph.steps if graph.owners[dead[0]] & {s.optimizer}]
        if not steps:
            continue
        names = _names(graph, dead)
        yield (
            ("rewrapped", cut.stack[-1]),
            cut,
            make(
                "cut-graph",
                "rewrapped",
                f"{names} never get a gradient: {wording.at('cut', cut.stack)} makes a new leaf of "
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


def _names(graph: Graph, storages: Iterable[int]) -> str:
    refs = {r.storage: r for o in graph.optimizers.values() for r in o.refs}
    names = [f"`{refs[s].name}`" for s in sorted(storages) if s in refs and refs[s].name]
    return wording.listed(names) if names else "parameters"


def stray_optimizers(graph: Graph) -> Found:
    """An optimizer holds a parameter that was replaced: the old one is dead, the new one gets gradients and
    is nobody's."""
    filled = _filled_ever(graph)
    homeless: dict[int, Ref] = {}
    for backward in graph.backwards:
        if not backward.inputs:
            homeless |= {r.storage: r for r in backward.accumulates if r.storage not in graph.owners}
    if not homeless:
        return
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        dead = [r for r in optimizer.refs if r.storage not in filled and not _used(graph, r.storage)]
        if not steps or not dead:
            continue
        by_name = {r.name: r for r in homeless.values() if r.name}
        replaced = [(old, by_name[old.name]) for old in dead if old.name in by_name]
        whole = len(dead) == len(optimizer.refs) and Counter(r.shape for r in dead) == Counter(
            r.shape for r in homeless.values()
        )
        if not replaced and not whole:
            continue
        new = [r for _, r in replaced] or list(homeless.values())
        names = [f"`{r.name}`" for r in new if r.name]
        yield (
            ("stray", number),
            steps[0],
            make(
                "stray-optimizer",
                "replaced",
                f"{_optimizer(graph, number)} steps tensors that are no longer the model's: "
                f"{wording.listed(names) if names else 'its parameters'} get gradients and are never updated",
                [
                    ("made", optimizer.stack, "made with the parameters as they were here"),
                    ("step", steps[0].stack, "steps tensors that no loss uses"),
                ],
                "made",
                ref=new[0],
                event=optimizer,
            ),
        )


def _used(graph: Graph, storage: int) -> bool:
    return any(~storage in r.parents for r in graph.records.values())


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
    for storage, records in consumers.items():
        record = records[0]
        if storage in graph.owners or len(records) > 1 or record.time > first or len(record.parents) > 1:
            continue
        if plain_op(record) not in CONVERSIONS or not record.stack:
            continue
        walks = [b for b in graph.backwards if record.node in graph.walk(b) and not b.inputs]
        if len(walks) < 2 or graph.stack_number(walks[0].stack) != graph.stack_number(walks[1].stack):
            continue
        name = wording.name(record.output, "this tensor")
        yield (
            ("converted", record.stack[-1]),
            walks[0],
            make(
                "missing-grad",
                "parameter",
                f"{name} is meant as a parameter but is the result of an op ({plain_op(record).strip('_')}): no optimizer "
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


# -- gradients that stay or go at the wrong time -----------------------------------------------------


def unreset(graph: Graph) -> Found:
    """No clearing between any two steps; or clearing always between the backward and the step it was for."""
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if len(steps) < 2:
            continue
        between = [graph.before_step(s) for s in steps]
        if not any(isinstance(e, Zero) for events in between[1:] for e in events):
            yield from _never_cleared(graph, number, optimizer, steps)
        elif not any(s.refs for s in steps) or all(_cleared_last(events) for events in between if events):
            yield from _cleared_early(graph, number, optimizer, steps, between)


def _never_cleared(graph: Graph, number: int, optimizer: Optimizer, steps: list[Step]) -> Found:
    first, second = steps[0], steps[1]
    stepped = {r.storage for r in first.refs} & {r.storage for r in second.refs}
    again = [b for b in graph.before_step(second) if isinstance(b, Backward)]
    again = [b for b in again if any(r.storage in stepped for r in b.accumulates)]
    before = [b for b in graph.before_step(first) if isinstance(b, Backward)]
    if not again or not before:
        return
    name = _optimizer(graph, number)
    yield (
        ("never-cleared", number),
        again[-1],
        make(
            "unreset-grad",
            "never-cleared",
            f"nothing clears the gradients of {name} between its steps: every step uses the sum of all passes so far",
            [
                ("needed", again[-1].stack, "adds to the gradients of all earlier passes"),
                ("step", second.stack, "steps with their sum"),
            ],
            "needed",
            backward=again[-1],
            earlier=before[-1],
            event=second,
        ),
    )


def _cleared_last(events: tuple[Leaf, ...]) -> bool:
    return bool(events) and isinstance(events[-1], Zero)


def _cleared_early(
    graph: Graph, number: int, optimizer: Optimizer, steps: list[Step], between: list[tuple[Leaf, ...]]
) -> Found:
    for step, events in zip(steps, between, strict=True):
        backward = next((b for b in reversed(events) if isinstance(b, Backward)), None)
        zero = next((z for z in reversed(events) if isinstance(z, Zero)), None)
        if backward is None or zero is None or zero.time < backward.time:
            continue
        yield (
            ("cleared", number),
            step,
            make(
                "unreset-grad",
                "cleared-before-step",
                f"the gradients of {_optimizer(graph, number)} are cleared before its step can use them",
                [
                    ("needed", backward.stack, "computes the gradients"),
                    ("zero", zero.stack, "clears them"),
                    ("step", step.stack, "steps without them"),
                ],
                "step",
                backward=backward,
                event=zero,
            ),
        )
        return


def _ever_cleared(graph: Graph, optimizer: int) -> bool:
    """Whether anything clears the gradients of `optimizer` between its steps; where not, that is the fault."""
    return any(isinstance(e, Zero) for s in graph.steps_of(optimizer)[1:] for e in graph.before_step(s))


def left_over(graph: Graph) -> Found:
    """A backward made for the step of one model's optimizer leaves gradients in the model that the loss went
    through, and that one's optimizer steps with them."""
    for step in graph.steps:
        mine = graph.owned_mask([step.optimizer])
        since = _since_cleared(graph.before_step(step))
        for foreign, meant in zip(since, since[1:], strict=False):
            if graph.stack_number(foreign.stack) == graph.stack_number(meant.stack):
                continue
            used = [
                s
                for s in graph.steps
                if foreign.time < s.time < meant.time and s.optimizer in graph.filled(foreign)
            ]
            if not used or step.optimizer in {s.optimizer for s in used}:
                continue
            if not _ever_cleared(graph, step.optimizer):
                continue
            other = graph.owned_mask({used[0].optimizer}) & ~mine
            if (
                not other
                or not graph.boundary(foreign, mine, other)
                or not _covers(foreign, meant, graph, step)
            ):
                continue
            yield _mixed(graph, step, foreign, meant, "left-over", used[0])


def _since_cleared(events: tuple[Leaf, ...]) -> list[Backward]:
    found: list[Backward] = []
    for event in events:
        if isinstance(event, Zero):
            found.clear()
        elif isinstance(event, Backward):
            found.append(event)
    return found


def _covers(foreign: Backward, meant: Backward, graph: Graph, step: Step) -> bool:
    """Whether the foreign backward fills all that the meant one fills of this optimizer: a part of a model
    that two losses share on purpose is seldom the whole of what an optimizer owns."""
    mine = {s for s, owners in graph.owners.items() if step.optimizer in owners}
    return mine & {r.storage for r in meant.accumulates} <= mine & {r.storage for r in foreign.accumulates}


def flows_on(graph: Graph) -> Found:
    """Two backwards before two steps. The second model's gradients are cleared between them, so the first
    loss isn't meant to train it; but the second loss flows on into the first model, whose step then uses
    both."""
    for step in graph.steps:
        since = _since_cleared(graph.before_step(step))
        mine = graph.owned_mask([step.optimizer])
        for meant, foreign in zip(since, since[1:], strict=False):
            if graph.stack_number(foreign.stack) == graph.stack_number(meant.stack):
                continue
            for other in graph.discards(meant) & graph.filled(foreign) - {step.optimizer}:
                theirs = graph.owned_mask([other])
                if theirs & mine or other in graph.discards(foreign):
                    continue
                if graph.boundary(foreign, theirs, mine):
                    yield _mixed(graph, step, foreign, meant, "flows-on", None, theirs)


def _mixed(
    graph: Graph,
    step: Step,
    foreign: Backward,
    meant: Backward,
    pattern: str,
    used: Step | None,
    own: int = 0,
) -> tuple[object, Event, Conflict | None]:
    name = _optimizer(graph, step.optimizer)
    labels: list[tuple[str, Stack, str]] = []
    record = None
    if pattern == "flows-on":
        for crossing in graph.boundary(foreign, own, graph.owned_mask([step.optimizer])):
            record = record or crossing.producer
            labels.append(("made", crossing.producer.stack, "made by the model that the other loss trains"))
            labels.append(("used", crossing.consumer.stack, "enters the other model here, with its graph"))
    labels.append(
        ("freed" if False else "needed", foreign.stack, f"also fills the gradients that {name} steps with")
    )
    labels.append(("needed", meant.stack, "the gradient that step is for"))
    if used is not None:
        labels.append(("step", used.stack, "what this gradient was for"))
    labels.append(("step", step.stack, "steps with both gradients"))
    foreign_place = wording.at("needed", foreign.stack)
    return (
        ("mixed", step.optimizer, graph.stack_number(foreign.stack), graph.stack_number(step.stack)),
        foreign,
        make(
            "mixed-gradient",
            pattern,
            f"{name} also steps with the gradient of {foreign_place}, which is meant for another optimizer",
            labels,
            "needed",
            record=record,
            backward=meant,
            earlier=foreign,
            event=step,
        ),
    )


# -- work for nothing --------------------------------------------------------------------------------


def discarded(graph: Graph) -> Found:
    """A loss flows on into a model whose gradients are cleared before any step: detaching the value that
    crosses over would save the work. (The model that a loss must go through gets gradients in vain too; that
    can't be cut.)"""
    for backward in graph.backwards:
        serves = graph.serves(backward)
        for other in graph.discards(backward) - serves:
            theirs = graph.owned_mask([other]) & ~graph.owned_mask(serves)
            crossings = graph.boundary(backward, graph.owned_mask(serves), theirs)
            if not crossings:
                continue
            name = _optimizer(graph, other)
            value = crossings[0].producer
            labels: list[tuple[str, Stack, str]] = []
            for crossing in crossings:
                labels.append(("made", crossing.producer.stack, "made by the other model"))
                labels.append(("used", crossing.consumer.stack, "enters here with its graph"))
            labels.append(("needed", backward.stack, "computes gradients that are cleared before any step"))
            yield (
                ("discarded", graph.stack_number(backward.stack), other),
                backward,
                make(
                    "wasted-backward",
                    "discarded",
                    f"{wording.at('needed', backward.stack)} also computes gradients for {name}, and they "
                    "are thrown away",
                    labels,
                    "needed",
                    ref=value.output,
                    record=value,
                    backward=backward,
                ),
            )


def idle_retain(graph: Graph) -> Found:
    """retain_graph=True although no later backward, in any pass, walks a node of that graph that saved
    something."""
    last_walk: dict[int, int] = {}
    for backward in graph.backwards:
        for node in graph.walk(backward):
            last_walk[node] = backward.time
    finished = any(isinstance(e, End) and e.how == "finished" for e in graph.tape.events)
    statements: dict[tuple[Site, ...], list[Backward]] = {}
    for backward in graph.backwards:
        statements.setdefault(backward.stack[-1:], []).append(
            backward
        )  # a helper's one statement may serve many losses
    for where, passes in statements.items():
        backward = passes[0]
        judged = passes if finished else passes[:-1]  # a run that was cut short says nothing of its last pass
        if not where or not judged or any(not b.retain or b.create for b in passes):
            continue
        if any(_walked_later(graph, b, last_walk) for b in passes):
            continue
        yield (
            ("idle-retain", where),
            backward,
            make(
                "wasted-backward",
                "idle-retain",
                f"{wording.at('needed', backward.stack)} keeps its graph (retain_graph=True), and no later backward uses it",
                [("needed", backward.stack, "retain_graph=True is not needed")],
                "needed",
                backward=backward,
            ),
        )


def _walked_later(graph: Graph, backward: Backward, last_walk: dict[int, int]) -> bool:
    return any(
        last_walk[n] > backward.time and graph.records[n].saves
        for n in graph.walk(backward)
        if n in graph.records
    )


def data_attributes(graph: Graph) -> Found:
    """One note for each place in the source that uses ``.data``."""
    for event in graph.tape.events:
        if not isinstance(event, Cut | Mutate) or event.how not in ("data", "set_data") or not event.stack:
            continue
        verb = "written" if isinstance(event, Mutate) else "used"
        yield (
            ("data", event.stack[-1].file, event.stack[-1].line, event.how == "set_data"),
            event,
            make(
                "data-attribute",
                "",
                f"`.data` of {wording.name(event.ref)} is {verb}: autograd does not see it; `.detach()` or "
                "`torch.no_grad()` says the same and is watched",
                [("read", event.stack, ".data hides this from autograd")],
                "read",
                ref=event.ref,
                event=event,
                write=event if isinstance(event, Mutate) else None,
            ),
        )
