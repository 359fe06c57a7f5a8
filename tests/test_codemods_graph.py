"""Helpers of the graph cures on small sources, and cures on tapes made by hand; the runs are in the
fixtures."""

from textwrap import dedent

import libcst as cst
import pytest
from by_hand import PATH, site

from codemods.backward_inputs import BackwardInputs
from codemods.detach_boundary import DetachBoundary
from codemods.sum_losses import SumLosses
from gradfix.detect import Conflict, Label
from gradfix.edit import Project, View
from gradfix.rewrite.behind import may_read
from gradfix.rewrite.boundary import detach, meeting, operands, shape_of
from gradfix.rewrite.calls import drop_retain, loss_of, retain, with_arguments
from gradfix.rewrite.optimized import parameters_of
from gradfix.rewrite.statements import names, put_after, take_all_away, take_away, touches, units
from gradfix.tape import Backward, Free, Mutate, Optimizer, Record, Ref, Site, Step, Tape, Zero


def view(text: str) -> View:
    return View(PATH, dedent(text))


def calls(v: View, method: str) -> list[cst.Call]:
    found = [n for n in v.parents if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
    return sorted((c for c in found if c.func.attr.value == method), key=lambda c: v.span(c).start.line)


@pytest.mark.parametrize(
    ("source", "reads", "writes"),
    [
        ("y = f(x)", {"f", "x"}, {"y"}),
        ("self.fake, b = self.G(z), 1", {"self.G", "z"}, {"self.fake", "b"}),
        ("total += loss", {"total", "loss"}, {"total"}),
        ("memory.append(h.detach())", {"memory.append", "h.detach"}, {"memory"}),
        ("x[0] = y", {"x", "y"}, {"x"}),
        ("y = [a * k for a in xs]", {"xs", "k"}, {"y"}),
        ("y = f(x, key=z)", {"f", "x", "z"}, {"y"}),
        ("y = (lambda a: a + b)(c)", {"b", "c"}, {"y"}),
        ("for p in ps:\n    p.mul_(a)", {"ps", "p.mul_", "a"}, {"p"}),
        ("with ctx() as c:\n    y = c", {"ctx", "c"}, {"c", "y"}),
        ("def f(a):\n    return a + b", {"b"}, {"f"}),
        ("def f(a=b):\n    global c\n    c = a\n    d.append(c)", {"b", "c", "d.append"}, {"f"}),
        ("class A(B):\n    c = 1\n    def f(self):\n        return c", {"B", "c"}, {"A"}),
        ("y = [w for a in xs if (w := f(a))]", {"w", "xs", "f"}, {"y", "w"}),
        ("from torch import nn as n", set(), {"n"}),
        ("y: int", set(), set()),
    ],
)
def test_names(source, reads, writes):
    found = names(cst.parse_statement(source))
    assert (reads, writes) == (found.reads, found.writes)


@pytest.mark.parametrize(
    ("some", "others", "expected"),
    [
        ({"self.fake"}, {"self.fake.shape"}, True),
        ({"self"}, {"self.fake"}, True),
        ({"self.fake"}, {"self.fakes"}, False),
        ({"a"}, {"b"}, False),
    ],
)
def test_touches(some, others, expected):
    assert expected is touches(some, others)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss.backward(retain_graph=True)", "loss.backward()"),
        ("loss.backward(retain_graph=True, inputs=ps)", "loss.backward(inputs=ps)"),
        ("loss.backward(None, True)", "loss.backward()"),
        ("loss.backward(g, True)", "loss.backward(g)"),
        ("loss.backward(g, retain_graph=True, create_graph=True)", "loss.backward(g, create_graph=True)"),
        ("scaler.scale(loss).backward(retain_graph=True)", "scaler.scale(loss).backward()"),
        ("loss.backward(\n    retain_graph=True  # why\n)", "loss.backward()"),
        ("loss.backward(retain_graph=True)  # keep the graph for G", "loss.backward()"),
        ("loss.backward(retain_graph=True)  # the critic's", "loss.backward()  # the critic's"),
    ],
)
def test_drop_retain_graph(before, after):
    v = view(before)
    edits = drop_retain(v, calls(v, "backward")[0])
    assert edits
    assert after == v.apply(edits)


def test_a_retain_graph_that_is_a_variable_stays():
    v = view("loss.backward(retain_graph=keep)")
    assert drop_retain(v, calls(v, "backward")[0]) == ()


@pytest.mark.parametrize(
    "source", ["loss.backward()", "loss.backward(g, True, False)", "loss.backward(create_graph=True)"]
)
def test_no_retain_graph_to_drop(source):
    v = view(source)
    assert drop_retain(v, calls(v, "backward")[0]) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss.backward()", "loss.backward(retain_graph=True)"),
        ("loss.backward(g)", "loss.backward(g, retain_graph=True)"),
        ("loss.backward(retain_graph=False)", "loss.backward(retain_graph=True)"),
        ("loss.backward(\n    g,\n)", "loss.backward(\n    g,\n    retain_graph=True,\n)"),
    ],
)
def test_retain(before, after):
    v = view(before)
    edit = retain(calls(v, "backward")[0])
    assert edit is not None
    assert after == v.apply([edit])


def test_inputs_go_last():
    v = view("loss.backward(retain_graph=True)")
    edit = with_arguments(calls(v, "backward")[0], {"inputs": cst.parse_expression("list(d.parameters())")})
    assert v.apply([edit]) == "loss.backward(retain_graph=True, inputs=list(d.parameters()))"


@pytest.mark.parametrize(("source", "loss"), [("l.backward()", "l"), ("s.scale(a + b).backward()", "a + b")])
def test_loss_of(source, loss):
    v = view(source)
    assert loss == v.code(loss_of(calls(v, "backward")[0]))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("SGD(d.parameters(), lr=1)", "list(d.parameters())"),
        ("SGD(params=d.parameters())", "list(d.parameters())"),
        ("SGD(list(d.parameters()))", "list(d.parameters())"),
        ("SGD(itertools.chain(a.parameters(), b.parameters()))", "[*a.parameters(), *b.parameters()]"),
        ("SGD([*a.parameters(), scale])", "[*a.parameters(), scale]"),
        ("SGD(list(a.parameters()) + [scale])", "list(a.parameters()) + [scale]"),
        ("SGD([{'params': d.parameters()}])", '[p for group in opt.param_groups for p in group["params"]]'),
        ("SGD(params)", '[p for group in opt.param_groups for p in group["params"]]'),
    ],
)
def test_parameters_of_an_optimizer(made, expected):
    source = f"opt = {made}\nloss.backward()\nopt.step()\n"
    ref = Ref(1, 1, "w", (2,), "float32")
    events = (
        Optimizer(1, (site(source, made),), 0, "SGD", "opt", (ref,)),
        Step(2, (site(source, "opt.step()"),), 0, (ref,)),
    )
    project = Project(Tape(events), {PATH: source})
    v = project.view(PATH)
    found = parameters_of(project, 0, v, calls(v, "backward")[0])
    assert expected == v.code(found)


def test_parameters_of_a_model_bound_anew():
    source = "opt = SGD(net.parameters())\nnet = other\nloss.backward()\nopt.step()\n"
    ref = Ref(1, 1, "w", (2,), "float32")
    events = (
        Optimizer(1, (site(source, "SGD(net.parameters())"),), 0, "SGD", "opt", (ref,)),
        Step(2, (site(source, "opt.step()"),), 0, (ref,)),
    )
    project = Project(Tape(events), {PATH: source})
    v = project.view(PATH)
    assert "param_groups" in v.code(parameters_of(project, 0, v, calls(v, "backward")[0]))


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ("use(s)", "tensor"),
        ("s = (a, b)\nuse(s)", "tuple"),
        ("s = [a for a in b]\nuse(s)", "list"),
        ("s = dict(a=b)\nuse(s)", "dict"),
        ("def init():\n    return a, b\ns = init()\nuse(s)", "tuple"),
        ("def init():\n    return a\ns = init()\nuse(s)", "tensor"),
    ],
)
def test_shape_of_a_name(source, shape):
    v = view(source)
    use = next(n for n in v.parents if isinstance(n, cst.Call) and v.code(n) == "use(s)")
    assert shape == shape_of(v, use.args[0].value)


@pytest.mark.parametrize(
    ("source", "shape", "expected"),
    [
        ("f(x)", "tensor", "f(x.detach())"),
        ("f(a + b)", "tensor", "f((a + b).detach())"),
        ("f(g(x)[0])", "tensor", "f(g(x)[0].detach())"),
        ("f(x if y else z)", "tensor", "f((x if y else z).detach())"),
        ("f(s)", "tuple", "f(tuple(s.detach() for s in s))"),
        ("f(xs)", "list", "f([s.detach() for s in xs])"),
        ("f(self.d)", "dict", "f({k: s.detach() for k, s in self.d.items()})"),
    ],
)
def test_detach(source, shape, expected):
    v = view(source)
    call = v.module.body[0].body[0].value
    assert expected == v.apply([detach(call.args[0].value, shape)])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("D(fake)", ["fake"]),
        ("D([fake, y])", ["fake", "y"]),
        ("D(torch.cat((x, fake), 1), 3)", ["torch.cat((x, fake), 1)"]),
        ("made * weight", ["made", "weight"]),
        ("-score", ["score"]),
    ],
)
def test_operands(source, expected):
    v = view(source)
    assert expected == [v.code(n) for n in operands(v.module.body[0].body[0].value)]


def test_meeting():
    def at(line: int, function: str = "<module>") -> Site:
        return Site(PATH, line, 0, line, 5, function)

    assert meeting((at(1),), (at(2),)) == 0
    assert meeting((at(1), at(8, "f")), (at(1), at(9, "f"))) == 1
    assert meeting((at(1), at(8, "f")), (at(1), at(9, "g"))) == 0
    assert meeting((at(1), at(8, "f")), (at(1), at(8, "f"))) == 1
    assert meeting((), (at(1),)) == -1


@pytest.mark.parametrize(
    ("source", "gone", "expected"),
    [
        ("a = 1\n\n# of b\nb = 2\nc = 3\n", 1, "a = 1\n\nc = 3\n"),
        ("a = 1; b = 2; c = 3\n", 1, "a = 1; c = 3\n"),
        ("a = 1; b = 2\n", 1, "a = 1\n"),
        ("a = 1\r\nb = 2\r\n", 0, "b = 2\r\n"),
    ],
)
def test_take_away(source, gone, expected):
    v = View(PATH, source)
    assert expected == v.apply(take_away(units(v.module)[gone], v))


def test_blank_lines_above_what_goes_together_stay_with_what_stays():
    v = View(PATH, "a = 1\n\nb = 2\n\nc = 3\nd = 4\n")
    assert v.apply(take_all_away(units(v.module)[1:3], v)) == "a = 1\n\nd = 4\n"
    v = View(PATH, "a = 1\nb = 2\n\nc = 3\nd = 4\n")
    assert v.apply(take_all_away(units(v.module)[1:3], v)) == "a = 1\n\nd = 4\n"


def test_take_away_keeps_comments_of_what_is_not_put_elsewhere():
    v = View(PATH, "# first\na.backward()  # of a\nb.backward()\n")
    assert v.apply(take_away(units(v.module)[0], v, comments=True)) == "# first\n# of a\nb.backward()\n"


@pytest.mark.parametrize(
    ("source", "after", "expected"),
    [
        ("a = 1  # one\nb = 2\n", 0, "a = 1  # one\nx = 0\nb = 2\n"),
        ("a = 1; b = 2\n", 0, "a = 1\nx = 0\nb = 2\n"),
        ("a = 1; b = 2\n", 1, "a = 1; b = 2\nx = 0\n"),
        ("if a:\n    pass\nb = 2\n", 0, "if a:\n    pass\nx = 0\nb = 2\n"),
    ],
)
def test_put_after(source, after, expected):
    v = View(PATH, source)
    assert expected == v.apply([put_after(units(v.module)[after], cst.parse_statement("x = 0"))])


# conflicts made by hand


GAN = """\
opt_g, opt_d = SGD(G.parameters()), SGD(D.parameters())
for x in data:
    fake = G(x)
    loss_d = {use}
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = D(fake)
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
"""


def gan(use: str, call: str) -> tuple[Conflict, Project]:
    """A discriminator's loss over attached fakes: storage 1 and node 0 are G's, the others D's."""
    source = GAN.format(use=use)
    g, d = Ref(1, 1, "G.weight", (2,), "float32"), Ref(2, 1, "D.weight", (2,), "float32")

    def at(text: str, nth: int = 0) -> tuple[Site, ...]:
        return (site(source, text, nth=nth),)

    made = at("G(x)")
    inner = (Site("/elsewhere/models.py", 3, 4, 3, 9, "forward"),)
    first = Backward(12, at("loss_d.backward()"), (1,), (1, 0), accumulates=(d, g))
    second = Backward(22, at("loss_g.backward()"), (2,), (2, 0), accumulates=(d, g))
    events = (
        Optimizer(1, at("SGD(G.parameters())"), 0, "SGD", "opt_g", (g,)),
        Optimizer(2, at("SGD(D.parameters())"), 1, "SGD", "opt_d", (d,)),
        Record(
            3,
            made + inner,
            0,
            "aten.addmm",
            "AddmmBackward0",
            (-2,),
            (g,),
            Ref(3, 0, "fake", (2,), "float32"),
        ),
        Record(4, at(call) + inner, 1, "aten.addmm", "AddmmBackward0", (0, -3), (d,)),
        Zero(11, at("opt_d.zero_grad()"), (d,), 1),
        first,
        Free(13, first.stack, (0, 1)),
        Mutate(14, at("opt_d.step()"), "aten.add_", Ref(2, 2, "D.weight", (2,), "float32"), optimizer=1),
        Step(15, at("opt_d.step()"), 1, (d,)),
        Record(
            16,
            at("D(fake)", 1 if call == "D(fake)" else 0) + inner,
            2,
            "aten.addmm",
            "AddmmBackward0",
            (0, -3),
            (d,),
        ),
        Zero(21, at("opt_g.zero_grad()"), (g,), 0),
        second,
        Step(25, at("opt_g.step()"), 0, (g,)),
    )
    label = Label("needed", second.stack, "")
    conflict = Conflict(
        "freed-graph",
        "error",
        "",
        (label,),
        0,
        "two-losses",
        record=events[2],
        backward=second,
        earlier=first,
    )
    return conflict, Project(Tape(events), {PATH: source})


@pytest.mark.parametrize(
    ("use", "call", "expected"),
    [
        ("D(fake)", "D(fake)", "D(fake.detach())"),
        ("D(x=fake, y=label).mean()", "D(x=fake, y=label)", "D(x=fake.detach(), y=label).mean()"),
        ("D(torch.cat([x, fake], 1))", "D(torch.cat([x, fake], 1))", "D(torch.cat([x, fake], 1).detach())"),
        ("D([fake, label])", "D([fake, label])", "D([fake.detach(), label])"),
        ("D(*fake)", "D(*fake)", "D(*[s.detach() for s in fake])"),
        (
            "D(\n        fake,  # attached\n    )",
            "D(\n        fake,  # attached\n    )",
            "D(\n        fake.detach(),  # attached\n    )",
        ),
    ],
)
def test_detached_at_the_discriminators_call(use, call, expected):
    conflict, project = gan(use, call)
    proposal = next(DetachBoundary.cures(conflict, project))
    assert GAN.format(use=expected) == project.apply(proposal.edits)[PATH]
    assert proposal.effect.kind == "none"  # G's gradients are cleared before its step


def test_nothing_is_detached_where_one_optimizer_owns_both():
    conflict, project = gan("D(fake)", "D(fake)")
    events = tuple(
        Optimizer(e.time, e.stack, e.optimizer, e.kind, e.name, (Ref(1, 1), Ref(2, 1)))
        if isinstance(e, Optimizer)
        else e
        for e in project.tape.events
    )
    chained = Project(Tape(events), project.files)
    assert list(DetachBoundary.cures(conflict, chained)) == []


def test_gradients_are_taken_before_the_steps():
    conflict, project = gan("D(fake)", "D(fake)")
    proposal = next(BackwardInputs.cures(conflict, project))
    text = project.apply(proposal.edits)[PATH]
    assert "loss_d.backward(retain_graph=True, inputs=list(D.parameters()))\n    loss_g = D(fake)" in text
    assert "loss_g.backward(inputs=list(G.parameters()))\n    opt_d.step()\n    opt_g.step()\n" in text


def test_gradients_that_are_cleared_between_go_without_the_clearing():
    conflict, project = gan("D(fake)", "D(fake)")
    events = tuple(
        Zero(e.time, e.stack, (*e.refs, Ref(2, 1)), e.optimizer) if isinstance(e, Zero) else e
        for e in project.tape.events
    )
    cleared = Project(Tape(events), project.files)
    (only,) = BackwardInputs.cures(conflict, cleared)  # the plain reorder would lose them
    (new,) = cleared.apply(only.edits).values()
    (old,) = project.files.values()
    assert new.count("inputs=") == 2
    assert new.count("zero_grad") == old.count("zero_grad") - 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a.backward()\nb.backward()\n", "(a + b).backward()\n"),
        ("(-a).backward()\nb.mean().backward()\n", "((-a) + b.mean()).backward()\n"),
        ("s.scale(a).backward(); s.scale(b).backward()\n", "s.scale((a + b)).backward()\n"),
        ("loss.backward()\nloss.backward()\n", "loss.backward(retain_graph=True)\nloss.backward()\n"),
    ],
)
def test_sum_losses(before, after):
    v = view(before)
    first, second = (
        (Site(PATH, s.start.line, s.start.column, s.end.line, s.end.column),)
        for s in map(v.span, calls(v, "backward"))
    )
    one = Backward(2, first, (0,), (0,))
    two = Backward(4, second, (0,), (0,))
    label = Label("needed", second, "")
    conflict = Conflict("freed-graph", "error", "", (label,), 0, "two-losses", backward=two, earlier=one)
    project = Project(Tape((Record(1, first, 0, "aten.exp"), one, Free(3, first, (0,)), two)), {PATH: before})
    assert after == project.apply(next(SumLosses.cures(conflict, project)).edits)[PATH]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("curve.append(score(obs))", True),
        ("follow(target, critic)", False),
        ("save(agent)", True),
        ("agent.state_dict()", True),
        ("print(loss.item())", False),
        ("drift.append(policy.weight.norm())", True),
    ],
)
def test_what_may_read_parameters_between_two_updates(statement, expected):
    text = (
        "def score(x):\n    return actor(x)\n\n\npolicy = agent.actor\n" + "a" * 300_000 + f"\n{statement}\n"
    )
    v = view(text)
    project = Project(Tape(()), {PATH: v.text})
    found = may_read(project, v, v.module.body[-1], ["agent.actor.weight"], ["agent.critic.weight"])
    assert expected == found
