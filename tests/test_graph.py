"""Questions about the graph of a tape, on two small models and their optimizers."""

from __future__ import annotations

from tapes import Optim, Script, Tensor

from gradfix.graph import Graph
from gradfix.tape import Backward, Mutate, Record, Step


class Pair:
    """``score = D(tanh(G(z)))`` recorded, with an optimizer for each."""

    def __init__(self) -> None:
        self.script = s = Script()
        self.g, self.d = s.leaf("G.weight"), s.leaf("D.weight")
        self.opt_g, self.opt_d = s.optimizer("optG", [self.g], 1), s.optimizer("optD", [self.d], 2)
        self.fake = s.op("tanh", 4, s.linear(3, self.g, s.data()), saves_result=True)
        self.score = s.linear((9, 5), self.d, self.fake)
        self.loss = s.op("mean", 6, self.score)

    @property
    def graph(self) -> Graph:
        return Graph(self.script.tape())


def backwards(graph: Graph) -> tuple[Backward, ...]:
    return graph.backwards


def record(graph: Graph, tensor: Tensor) -> Record:
    assert tensor.node is not None
    return graph.records[tensor.node]


def test_reach_goes_down_to_the_leaves() -> None:
    p = Pair()
    graph = p.graph
    assert graph.reaches(p.fake.node or 0) == {p.g.storage}
    assert graph.reaches(p.loss.node or 0) == {p.g.storage, p.d.storage}
    assert graph.reached_optimizers(p.fake.node or 0) == {p.opt_g.number}
    assert graph.reaches(~p.d.storage) == {p.d.storage}
    assert graph.reaches(12345) == frozenset()


def test_reach_of_a_deep_graph_needs_no_recursion() -> None:
    s = Script()
    h = s.leaf("w")
    for _ in range(20_000):
        h = s.op("neg", 2, h)
    assert len(Graph(s.tape()).reaches(h.node or 0)) == 1


def test_parameter_of_two_optimizers_has_two_owners() -> None:
    s = Script()
    a, b = s.leaf("a"), s.leaf("b")
    first, second = s.optimizer("first", [a], 1), s.optimizer("second", [a, b], 2)
    owners = Graph(s.tape()).owners
    assert owners == {a.storage: {first.number, second.number}, b.storage: {second.number}}


def stepping(p: Pair, *statements: tuple[str, object]) -> Graph:
    for line, (what, of) in enumerate(statements, 10):
        if what == "backward":
            assert isinstance(of, Tensor)
            p.script.backward(of, line, retain=True)
        else:
            assert isinstance(of, Optim)
            getattr(p.script, what)(of, line)
    return p.graph


def test_backward_serves_who_steps_before_the_next_backward() -> None:
    p = Pair()
    graph = stepping(
        p, ("backward", p.loss), ("step", p.opt_d), ("backward", p.loss), ("step", p.opt_g), ("step", p.opt_d)
    )
    first, second = graph.backwards
    assert graph.serves(first) == {p.opt_d.number}
    assert graph.serves(second) == {p.opt_g.number, p.opt_d.number}


def test_backwards_before_any_step_serve_those_whose_gradient_lives_on() -> None:
    p = Pair()
    graph = stepping(
        p,
        ("backward", p.loss),
        ("zero", p.opt_d),
        ("backward", p.loss),
        ("step", p.opt_g),
        ("step", p.opt_d),
    )
    first, second = graph.backwards
    assert graph.serves(first) == {p.opt_g.number}
    assert graph.discards(first) == {p.opt_d.number}
    assert graph.discards(second) == frozenset()


def test_gradients_at_the_end_of_a_run_are_not_called_discarded() -> None:
    p = Pair()
    graph = stepping(p, ("backward", p.loss), ("zero", p.opt_d))
    assert graph.discards(graph.backwards[0]) == frozenset()


def test_crossing_is_where_one_models_value_enters_the_other() -> None:
    p = Pair()
    graph = stepping(p, ("backward", p.loss), ("step", p.opt_d))
    (crossing,) = graph.crossings(graph.backwards[0], frozenset({p.opt_g.number}))
    assert (crossing.producer, crossing.consumer) == (record(graph, p.fake), record(graph, p.score))
    assert [x.line for x in crossing.consumer.stack] == [9, 5]


def test_chained_optimizer_has_no_crossing() -> None:
    s = Script()
    a, b = s.leaf("a"), s.leaf("b")
    front, both = s.optimizer("front", [a], 1), s.optimizer("both", [a, b], 2)
    h = s.linear(3, a, s.data())
    s.backward(s.linear(4, b, h), 5)
    s.step(both, 6)
    graph = Graph(s.tape())
    assert graph.crossings(graph.backwards[0], frozenset({front.number})) == ()


def test_passes_and_what_an_earlier_one_made() -> None:
    s = Script()
    w = s.leaf("w")
    outside = s.op("exp", 1, w)
    for _ in range(3):
        loss = s.op("mul", 3, w, outside)
        s.backward(loss, 4, retain=True)
    graph = Graph(s.tape())
    first, second, third = graph.backwards
    assert graph.passes(second) == (first, second, third)
    assert (graph.previous(first), graph.previous(third)) == (None, second)
    assert graph.earlier_pass(record(graph, outside), second)
    assert not graph.earlier_pass(record(graph, outside), first)
    assert not graph.earlier_pass(record(graph, loss), third)
    assert graph.made_between(record(graph, loss).stack, first.time, third.time)
    assert not graph.made_between(record(graph, outside).stack, first.time, third.time)


def test_entries_are_the_edges_into_the_old_part_that_lead_on() -> None:
    s = Script()
    w = s.leaf("w")
    old, beside = s.op("exp", 1, w), s.op("neg", 2, w)
    mixed = s.op("mul", 3, old, beside)
    s.backward(mixed, 4)
    graph = Graph(s.tape())
    (entry,) = graph.entries(graph.backwards[0], {old.node, beside.node}.__contains__, {old.node or 0})
    assert (entry.consumer, entry.producer) == (record(graph, mixed), record(graph, old))
    (root,) = graph.entries(graph.backwards[0], lambda n: True, {old.node or 0})
    assert (root.consumer, root.producer) == (None, record(graph, mixed))


def test_writes_of_a_step_that_no_mutate_tells_of() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    s.backward(s.op("exp", 2, w), 3)
    s.step(opt, 4)
    told = Graph(s.tape()).writes[w.storage]
    assert [type(e) for e in told] == [Mutate]
    s.events = [e for e in s.events if not isinstance(e, Mutate)]
    assert [type(e) for e in Graph(s.tape()).writes[w.storage]] == [Step]
