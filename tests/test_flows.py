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
        "def f(x):\n    x = x.detach().numpy()\n    a = x - x.mean()\n    loss = fit + 0.1 * np.mean(a ** 2)",
        "self.a = 0.0\nself.a = x.detach().numpy()\nprint(net.a)\nloss = fit + 0.1 * np.mean(net.a ** 2)",
        "def f(self, x):\n    self.a = x.detach().numpy()\nloss = fit + 0.1 * np.mean(net.a ** 2)",
    ],
    ids=[
        "name",
        "several-names",
        "shown",
        "summed",
        "own-function",
        "parameter",
        "attribute",
        "of-another-call",
    ],
)
def test_a_function_of_the_value(text):
    end = "0.1 * np.mean(net.a ** 2)" if "net.a **" in text else "0.1 * np.mean(a ** 2)"
    assert way(text, end) == FUNCTION


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
        "t.a = x.detach().numpy()\nt.a = other()\nloss = fit + np.mean(a)",
        "t.a = x.detach().numpy()\nstate.update_weights(net.a)\nloss = fit + np.mean(a)",
        "t.a = 0.9 * t.a + x.detach().numpy()\nloss = fit + np.mean(a)",
        "t.a = x.detach().numpy()\nt.a *= 2\nloss = fit + np.mean(a)",
        "def f(avg, x):\n    avg = 0.9 * avg + x.detach().numpy()\n    loss = fit + np.mean(avg)",
    ],
    ids=[
        *("bound-again", "weight", "average", "unknown", "index", "shift"),
        *("bound-elsewhere", "attribute-unknown", "attribute-average", "attribute-scaled", "handed-average"),
    ],
)
def test_no_way(text):
    text = text.replace("np.mean(a)", "np.mean(t.a)") if "t.a =" in text else text
    (end,) = {e for e in ("np.mean(a)", "np.mean(t.a)", "np.mean(avg)") if e in text}
    assert way(text, end) == 0


def test_another_file_reads_the_attribute():
    text = "t.a = x.detach().numpy()\nloss = fit + np.mean(t.a)"
    parsed = Text(text, text.splitlines(keepends=True), lambda name: name == "a")
    nodes = {ast.unparse(n): n for n in parsed.parents}
    assert parsed.way(nodes[START], nodes["np.mean(t.a)"]) == 0
