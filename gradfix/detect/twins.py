"""stray-optimizer: two optimizers hold the same model, and what one of them is to train is nobody's.

PyTorch says nothing: a generator whose optimizer was given the discriminator's parameters keeps its first values, and
its loss trains the discriminator.
"""

from __future__ import annotations

from itertools import pairwise

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.parameters import differentiated_by
from gradfix.detect.stray import kept_by_the_program, nobodys
from gradfix.graph import Graph
from gradfix.tape import Backward, Ref


def held_twice(graph: Graph) -> Found:
    """Of two optimizers with the very same parameters that step in turn, one steps behind losses that go through these
    to other parameters, which no optimizer has. (One behind another, as LBFGS behind Adam, hold a model twice on
    purpose; so do two losses of one model that leave nothing over.)"""
    same: dict[frozenset[int], list[int]] = {}
    for number, optimizer in graph.optimizers.items():
        same.setdefault(frozenset(r.storage for r in optimizer.refs), []).append(number)
    pairs = [(own, numbers) for own, numbers in same.items() if own and len(numbers) == 2]
    homeless = nobodys(graph) if pairs else {}
    lost = {
        storage: ref
        for storage, (ref, _) in homeless.items()
        if "." in ref.name
        and not kept_by_the_program(graph, storage)
        and not differentiated_by(graph, ~storage)
    }
    for own, numbers in pairs if len(lost) > 1 else ():
        left = {number: _left(graph, number, own, lost) for number in numbers if _in_turn(graph, numbers)}
        found = [number for number in numbers if left.get(number)]
        if len(found) != 1:
            continue  # which of the two it was is not to be told
        optimizer, (backward, refs) = graph.optimizers[found[0]], left[found[0]][0]
        other = next(n for n in numbers if n != found[0])
        named = wording.listed([f"`{r.name}`" for r in refs])
        yield (
            ("twin", found[0]),
            graph.steps_of(found[0])[0],
            make(
                "stray-optimizer",
                "another-models",
                f"{optimizer_words(graph, found[0])} steps what {optimizer_words(graph, other)} steps: {named} get "
                "gradients before its steps and are never updated",
                [
                    ("made", optimizer.stack, "made with the parameters of another model"),
                    ("needed", backward.stack, f"computes gradients for `{refs[0].name}`"),
                    ("step", graph.steps_of(found[0])[0].stack, "steps without them"),
                ],
                "made",
                ref=refs[0],
                backward=backward,
                event=optimizer,
            ),
        )


def _in_turn(graph: Graph, numbers: list[int]) -> bool:
    one, other = ([s.time for s in graph.steps_of(n)] for n in numbers)
    return all(
        len(some) > 1 and all(any(begin < t < end for t in others) for begin, end in pairwise(some))
        for some, others in ((one, other), (other, one))
    )


def _left(
    graph: Graph, number: int, own: frozenset[int], lost: dict[int, Ref]
) -> list[tuple[Backward, tuple[Ref, ...]]]:
    """The backwards that an optimizer's steps are for, each with what lies before its parameters and is nobody's;
    nothing where one of them fills none of it."""
    found: list[tuple[Backward, tuple[Ref, ...]]] = []
    for backward in graph.backwards:
        if graph.serves(backward) != {number}:
            continue
        before: set[int] = set()
        for node in graph.walk(backward):
            record = graph.records.get(node)
            if record is not None and any(p < 0 and ~p in own for p in record.parents):
                before |= graph.reaches(node)
        refs = tuple(
            lost[r.storage] for r in backward.accumulates if r.storage in before and r.storage in lost
        )
        if not refs:
            return []
        found.append((backward, refs))
    return found
