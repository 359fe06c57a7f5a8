"""An inner update in place, to a leaf under a second name: the recorder gives the name a new tensor."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable

import pytest
from runs import project, run

from gradfix.run import Outcome
from gradfix.tape import Mutate

HEAD = """
import torch
w = torch.linspace(-1, 1, 3).requires_grad_()
def grad(of):
    (g,) = torch.autograd.grad(of.tanh().pow(2).sum(), of, create_graph=CREATE)
    return g
def adapt(given):
    given -= grad(given)
    return given
"""
TAIL = "\nfast.sin().sum().backward()\nprint(w.grad.tolist())\n"


@pytest.mark.parametrize(
    ("text", "write"),
    [
        ("fast = w\nfast -= grad(fast)", "fast -= grad(fast)"),
        ("fast = adapt(w)", "given -= grad(given)"),
        ("of = {'w': w}\nof['w'] -= grad(of['w'])\nfast = of['w']", "of['w'] -= grad(of['w'])"),
    ],
    ids=["alias", "parameter", "item"],
)
def test_a_second_name_gets_a_new_tensor(run: Callable[..., Outcome], text: str, write: str) -> None:
    head = HEAD.replace("CREATE", "True")
    left, right = write.split(" -= ")
    exact = run((head + text + TAIL).replace(write, f"{left} = {left} - {right}"))
    outcome = run(head + text + TAIL, record=True)
    assert outcome.stdout == exact.stdout != ""
    assert [e.how for e in outcome.tape.events if isinstance(e, Mutate) and e.refused] == ["alias"]


@pytest.mark.parametrize(
    ("text", "create"),
    [
        ("w -= grad(w)\nfast = w", "True"),
        ("fast = w\nfast -= grad(fast)", "False"),
        ("fast = w\nfor each in [fast]:\n    each -= grad(each)", "True"),
        ("fast = w\nfast.sub_(grad(fast))", "True"),
    ],
    ids=["only_name", "first_order", "passing_name", "method"],
)
def test_any_other_write_to_a_leaf_is_let_through(
    run: Callable[..., Outcome], text: str, create: str
) -> None:
    outcome = run(HEAD.replace("CREATE", create) + text + TAIL, record=True)
    assert [e.how for e in outcome.tape.events if isinstance(e, Mutate) and e.refused] == [""]


OF_LISTS = """
import torch
ws = [torch.linspace(-1, 1, 3).requires_grad_(), torch.ones(3, requires_grad=True)]
optimizer = torch.optim.SGD(ws, 0.1)
class Held: pass
def grads(of):
    return torch.autograd.grad((of[0].tanh() * of[1].exp()).sum(), of, create_graph=True)
def adapt(fast):
    for w, g in zip(fast, grads(fast)):
        WRITE
    return fast
"""
ENDS = "\n(fast[0].sin() * fast[1]).sum().backward()\nprint([w.grad.tolist() for w in ws])\n"


@pytest.mark.parametrize(
    ("write", "value"),
    [("w -= 0.1 * g", "w - 0.1 * g"), ("w.sub_(g, alpha=0.1)", "w.sub(g, alpha=0.1)")],
    ids=["operator", "method"],
)
def test_the_list_that_a_loop_goes_over_gets_new_tensors(
    run: Callable[..., Outcome], write: str, value: str
) -> None:
    body = "fast = adapt(list(ws))"
    exact = run(
        OF_LISTS.replace("for w, g in zip(fast, grads(fast)):\n        WRITE", "fast = [VALUE]").replace(
            "VALUE", f"{value} for w, g in zip(fast, grads(fast))"
        )
        + body
        + ENDS
    )
    outcome = run(OF_LISTS.replace("WRITE", write) + body + ENDS, record=True)
    assert outcome.stdout == exact.stdout != ""
    assert [e.how for e in outcome.tape.events if isinstance(e, Mutate) and e.refused] == ["alias"]


@pytest.mark.parametrize(
    "body",
    [
        "fast = adapt(ws)",
        "held = Held(); held.ws = list(ws); fast = adapt(held.ws)",
        "held = {'ws': list(ws)}; fast = adapt(held['ws'])",
        "fast = list(ws); other = fast; fast = adapt(fast)",
    ],
    ids=["the_same_list", "attribute", "item", "two_names"],
)
def test_a_list_that_others_have_keeps_its_tensors(run: Callable[..., Outcome], body: str) -> None:
    outcome = run(OF_LISTS.replace("WRITE", "w -= 0.1 * g") + body + ENDS, record=True)
    assert [e.how for e in outcome.tape.events if isinstance(e, Mutate) and e.refused] == [""] * 2
