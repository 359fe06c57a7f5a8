"""What torch.distributions do to the graph: the symbolic run says what PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradfix.detect import detect
from gradfix.read import read
from gradfix.tape import Record

HEAD = """\
import torch
from torch.distributions import (
    AffineTransform, Bernoulli, Beta, Categorical, Dirichlet, Exponential, Gamma, Independent, Laplace, LogNormal,
    MultivariateNormal, Normal, OneHotCategorical, RelaxedOneHotCategorical, TanhTransform, TransformedDistribution,
    Uniform, kl, kl_divergence,
)
torch.manual_seed(0)
w = torch.full((3, 2), 0.7, requires_grad=True)
v = torch.full((3, 2), 0.4, requires_grad=True)
fixed = torch.full((3, 2), 0.5)
cov = torch.eye(2).expand(3, 2, 2)
a, b, s = w.sigmoid(), v.sigmoid(), (v.sigmoid().unsqueeze(-1) * torch.eye(2))
"""
MADE = [
    "Normal(a, b)",
    "Normal(a, 1.0)",
    "Normal(0.0, b)",
    "Normal(loc=a, scale=fixed)",
    "Normal(fixed, fixed)",
    "LogNormal(a, b)",
    "Laplace(a, b)",
    "Uniform(a - 1, a + b)",
    "Gamma(a, b)",
    "Beta(a, b)",
    "Dirichlet(a)",
    "Exponential(a)",
    "Bernoulli(probs=a)",
    "Bernoulli(logits=a)",
    "Categorical(logits=a)",
    "Categorical(a)",
    "Categorical(probs=a)",
    "OneHotCategorical(logits=a)",
    "RelaxedOneHotCategorical(torch.tensor(0.5), logits=a)",
    "MultivariateNormal(a, cov)",
    "MultivariateNormal(a, scale_tril=s)",
    "MultivariateNormal(fixed, covariance_matrix=s)",
    "Independent(Normal(a, b), 1)",
    "Independent(Normal(a, fixed), 1)",
    "Independent(Bernoulli(logits=a), 1)",
    "Independent(Independent(Normal(fixed, b), 1), 1)",
    "TransformedDistribution(Normal(a, b), [TanhTransform(cache_size=1)])",
    "TransformedDistribution(Normal(fixed, fixed), AffineTransform(a, b))",
    "TransformedDistribution(Independent(Normal(a, b), 1), [TanhTransform(), AffineTransform(fixed, fixed)])",
]
USES = [
    "d.sample()",
    "d.rsample()",
    "d.rsample((4,))",
    "d.log_prob(d.sample())",
    "d.log_prob(d.rsample())",
    "d.entropy()",
    "d.mean",
    "d.variance",
]


def judged(expression: str, use: str, after: str) -> str | None:
    """What PyTorch does: the kind of fault; None where the use isn't possible."""
    names: dict[str, object] = {}
    exec(HEAD + f"d = {expression}", names)
    try:
        exec(f"x = {use}", names)
    except (NotImplementedError, ValueError, TypeError, NameError):
        return None
    try:
        exec(after, names)
    except RuntimeError as error:
        said = str(error)
        return (
            "cut-graph" if "does not require" in said else "freed-graph" if "second time" in said else "stale"
        )
    return ""


def told(folder: Path, expression: str, use: str, after: str) -> set[str]:
    text = HEAD + f"d = {expression}\nx = {use}\n{after}\n"
    path = folder / "train.py"
    path.write_text(text)
    return {
        conflict.kind.partition("-saved")[0]
        for reading in read(path, text, idle=False)
        for conflict in detect(reading.tape)
        if conflict.severity == "error"
    }


@pytest.mark.parametrize("expression", MADE)
def test_the_graph_of_draws_and_probabilities(tmp_path, expression):
    for use in USES:
        for after in ("x.sum().backward()", "x.sum().backward(retain_graph=True); x.mean().backward()"):
            truth = judged(expression, use, after)
            if truth is not None:
                assert told(tmp_path, expression, use, after) == ({truth} if truth else set()), (use, after)


TWICE = "a.sum().backward(retain_graph=True); b.sum().backward(retain_graph=True); x.sum().backward(); (x * 2).sum()"


@pytest.mark.parametrize("expression", MADE)
def test_what_is_freed_and_what_is_overwritten(tmp_path, expression):
    """Where only the distribution knows what it keeps, nothing that is not so is said."""
    for use in USES:
        for after in (
            f"{TWICE}.backward()",
            "a.mul_(1); x.sum().backward()",
            "b.mul_(1); x.sum().backward()",
        ):
            truth = judged(expression, use, after)
            if truth is not None:
                assert told(tmp_path, expression, use, after) <= {truth}, (use, after)
                if (
                    expression.startswith(("Normal", "Cat", "Bern", "Independent(Normal"))
                    and "mean" not in use
                ):
                    assert truth in told(tmp_path, expression, use, after) or not truth, (use, after)


DOUBLED = "    d = TransformedDistribution(d, [d, d])\n"


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("x = kl_divergence(Normal(a, b), Normal(fixed, fixed)).mean()", set()),
        ("x = kl_divergence(Normal(fixed, fixed), Normal(fixed, fixed)).mean()", {"cut-graph"}),
        ("x = kl.kl_divergence(Normal(fixed, unknown), Normal(fixed, fixed)).mean()", set()),
        ("x = Independent(unknown, 1).rsample().mean()", set()),
        ("x = Normal(unknown, 1.0).log_prob(fixed).mean()", set()),
        ("x = Categorical(logits=unknown).entropy().mean()", set()),
        ("x = TransformedDistribution(Normal(fixed, fixed), unknown).rsample().mean()", set()),
        ("x = Normal(a, b).expand((4, 3, 2)).rsample().mean()", set()),
        ("y = Normal(*unknown).log_prob(fixed)\nx = fixed.mean()", {"cut-graph"}),
        ("y = Normal(**unknown).log_prob(fixed)\nx = fixed.mean()", {"cut-graph"}),
        ("y = Independent(Normal(a, b), 10**9).log_prob(fixed)\nx = fixed.mean()", {"cut-graph"}),
        (
            f"d = Normal(a, b)\nfor _ in range(12):\n{DOUBLED * 3}y = d.rsample()\nx = fixed.mean()",
            {"cut-graph"},
        ),
        (
            "class Own(Normal):\n    def __init__(self, x): super().__init__(x, 1.0)\nx = Own(a).rsample().mean()",
            set(),
        ),
        ("class Own(Normal): pass\nx = Own(a, b).sample().mean()", {"cut-graph"}),
        ("class Own(Normal):\n    def __init__(self, x): self.x = x\nx = Own(a).rsample().mean()", set()),
    ],
)
def test_parameters_that_are_not_known(tmp_path, line, kinds):
    text = HEAD + "from somewhere import unknown\n" + line + "\nx.backward()\n"
    path = tmp_path / "train.py"
    path.write_text(text)
    found = {c.kind for r in read(path, text, idle=False) for c in detect(r.tape) if c.severity == "error"}
    assert found == kinds


SIZED = [
    *((expression, "log_prob(rows)") for expression in (
        "OneHotCategorical(logits=a)", "RelaxedOneHotCategorical(torch.tensor(0.5), logits=a)", "Dirichlet(a)",
        "OneHotCategoricalStraightThrough(logits=a)", "Multinomial(1, logits=a)", "MultivariateNormal(a, cov)",
        "LowRankMultivariateNormal(a, s, b)", "Independent(Normal(a, b), 1)", "Normal(a, b)",
    )),
    *((expression, f"rsample({sizes})") for sizes in ("", "(4,)") for expression in (
        "Normal(a, b)", "MultivariateNormal(covariance_matrix=s, loc=a[0])", "LowRankMultivariateNormal(a[0], s, b)",
        "RelaxedOneHotCategorical(torch.tensor(0.5), logits=a)", "Independent(Normal(a, b), 1)",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "use"), SIZED)
def test_sizes_are_those_of_pytorch(tmp_path, expression, use):
    lines = "import torch.distributions\nfrom torch.distributions import *\nrows = torch.eye(2)[[0, 1, 0]]\n"
    program = f"{HEAD}{lines}x = {expression}.{use}\ny = x * w.sum()\n"
    names: dict = {}
    exec(program, names)
    path = tmp_path / "train.py"
    path.write_text(program + "y.sum().backward()\n")
    records = [e for e in read(path, path.read_text())[0].tape.events if isinstance(e, Record)]
    last = max(e.time for e in records if e.op == "aten.mul")
    (found,) = [e.output.shape for e in records if e.time == last]
    assert found in ((), tuple(names["y"].shape))  # not known, or right


def test_every_distribution_that_is_named_has_these_arguments():
    import inspect

    from gradfix.read.distributions import _CALLED, _DRAWN_ONLY, SIGNATURES

    for name, arguments in SIGNATURES.items():
        found = inspect.signature(getattr(torch.distributions, name)).parameters
        assert tuple(_CALLED.get(n, n) for n in found)[: len(arguments)] == arguments, name
    for name in torch.distributions.__all__:
        cls = getattr(torch.distributions, name)
        if isinstance(cls, type) and issubclass(cls, torch.distributions.Distribution) and name in SIGNATURES:
            assert cls.has_rsample is not (name in _DRAWN_ONLY) or not isinstance(cls.has_rsample, bool), name
