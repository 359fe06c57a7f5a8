"""Parameters that are frozen where a gradient is meant for them: found, with the call that froze them, by both
emitters; what is frozen for a while, or for good, on purpose is left alone."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Outcome
from gradfix.tape import Frozen

HEAD = """
import torch
G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
optG, optD = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
def freeze(net, flag=False):
    for p in net.parameters():
        p.requires_grad = flag
def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for z in torch.randn(4, 5, 2):
"""
FAULTS = {  # pass of the loop -> the statement that freezes
    "step(optD, (D(G(z).detach()) - 1).pow(2).mean()); freeze(D); step(optG, -D(G(z)).mean())": "freeze(D)",
    "step(optD, D(G(z).detach()).mean()); D.requires_grad_(False); step(optG, -D(G(z)).mean())": "D.requires",
    "step(optD, D(G(z).detach()).mean()); G.requires_grad_(False); step(optG, -D(G(z)).mean()); freeze(G, True)": "G.",
    "d = D(G(z).detach()).mean(); freeze(D); step(optD, d); step(optG, -D(G(z)).mean()); freeze(D, True)": "freeze(D)",
    "freeze(D); d = D(G(z)).mean(); freeze(D, True); step(optD, d); step(optG, -G(z).mean())": "freeze(D)",
}
SOUND = (
    "freeze(D, True); step(optD, D(G(z).detach()).mean()); freeze(D); step(optG, -D(G(z)).mean())",
    "step(optD, D(G(z).detach()).mean()); freeze(D); step(optG, -D(G(z)).mean()); D.requires_grad_(True)",
    "g = -D(G(z)).mean(); freeze(D); step(optG, g); freeze(D, True); step(optD, D(G(z).detach()).mean())",
    "freeze(G); step(optD, D(G(z)).mean()); optG.step()",
    "G.requires_grad_(False); step(optD, D(G(z)).mean())",
    "freeze(D); step(optG, -D(G(z)).mean()); optD.step()",
    "x = z.clone().requires_grad_(); step(optD, D(G(x)).mean()); x.requires_grad_(False); step(optG, G(x).mean())",
)


def conflicts(text: str, outcome: Outcome) -> tuple[list[str], list[str]]:
    main = next(iter(read(Path("train.py"), text)))
    return tuple(  # type: ignore[return-value]
        [f"{c.pattern}:{c.at.line}:{c.label('cut').at.line}" for c in detect(tape) if c.severity == "error"]
        for tape in (outcome.tape, main.tape)
    )


@pytest.mark.parametrize("text", FAULTS)
def test_what_was_frozen_too_early_is_found(run: Callable[..., Outcome], text: str) -> None:
    source = HEAD + "".join(f"    {line}\n" for line in text.split("; "))
    outcome = run(source, record=True)
    ran, read_ = conflicts(source, outcome)
    assert len(ran) == 1
    assert ran[0].startswith("frozen:")
    assert read_ == ran
    event = next(e for e in outcome.tape.events if isinstance(e, Frozen))
    frames = [source.splitlines()[site.line - 1].strip() for site in event.stack]
    assert frames[0].startswith(FAULTS[text])


@pytest.mark.parametrize("text", SOUND)
def test_what_is_frozen_on_purpose_is_left_alone(run: Callable[..., Outcome], text: str) -> None:
    source = HEAD + "".join(f"    {line}\n" for line in text.split("; "))
    assert run(source).failure is None
    ran, read_ = conflicts(source, run(source, record=True))
    assert not ran
    assert not read_


def test_a_loss_that_is_cut_off_is_not_blamed_on_a_network_that_is_frozen(
    run: Callable[..., Outcome],
) -> None:
    text = "freeze(D, True); step(optD, D(G(z).detach()).mean()); freeze(D); step(optG, -D(G(z).detach()).mean())"
    source = HEAD + "".join(f"    {line}\n" for line in text.split("; "))
    found = [c.pattern for c in detect(run(source, record=True).tape) if c.severity == "error"]
    assert found == ["no-graph"]
