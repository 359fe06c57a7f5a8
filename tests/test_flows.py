"""The way of a value through a text, from the call that took it off its graph to a sum."""

import ast

import pytest

from gradfix.run.child.flows import FUNCTION, SCALED, Text

START = "x.detach()"


def way(text: str, end: str) -> int:
    """How the value of the one START comes to the expression `end`."""
    parsed = Text(text, text.splitlines(keepends=True))
    nodes = {ast.unparse(n): n for n in parsed.parents}
    return parsed.way(nodes[START], nodes[end])


@pytest.mark.parametrize(
    "text",
    [
        "a = x.detach().cpu().numpy()\nloss = fit + 0.1 * np.mean(a ** 2)",
        "a, b = x.detach().numpy(), y.numpy()\nloss = fit + 0.1 * np.mean(a ** 2)",
        "a = x.detach().numpy()\nprint(a.shape, a)\nloss = fit + 0.1 * np.mean(a ** 2)",
        "a = 0\nfor x in xs:\n    a += x.detach().numpy()\nloss = fit + 0.1 * np.mean(a ** 2)",
        "def same(v):\n    return v.copy()\na = same(x.detach().numpy())\nloss = fit + 0.1 * np.mean(a ** 2)",
    ],
    ids=["name", "several-names", "shown", "summed", "own-function"],
)
def test_a_function_of_the_value(text):
    assert way(text, "0.1 * np.mean(a ** 2)") == FUNCTION


def test_the_value_itself():
    assert way("n = float(x.detach().numpy())\nloss = fit + 3 * n", "3 * n") == SCALED


@pytest.mark.parametrize(
    "text",
    [
        "a = x.detach().numpy()\nlog(a)\na = other()\nloss = fit + np.mean(a)",
        "a = x.detach().numpy()\nw = torch.from_numpy(a)\nloss = fit + np.mean(a)",
        "a = 0.9 * a + 0.1 * x.detach().numpy()\nloss = fit + np.mean(a)",
        "a = x.detach().numpy()\nstate.update_weights(a)\nloss = fit + np.mean(a)",
        "a = x.detach().numpy().argmax()\nloss = fit + np.mean(a)",
        "a = x.detach().numpy()\nloss = (y - np.mean(a)).exp() + np.mean(a)",
    ],
    ids=["bound-again", "weight", "average", "unknown", "index", "shift"],
)
def test_no_way(text):
    assert way(text, "np.mean(a)") == 0
