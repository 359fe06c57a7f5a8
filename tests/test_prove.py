"""The prover against sound repairs and against wrong ones, each run for real."""

from __future__ import annotations

import binascii
import math
from array import array
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tapes import Script

from gradfix.detect import detect
from gradfix.prove import Baseline, Prover, Runner, Verdict, words
from gradfix.prove.compare import difference, likeness, off_by, told_apart
from gradfix.prove.cured import Lines, left
from gradfix.prove.effects import own_loss_by_time, rounds
from gradfix.prove.measured import Measured, Vector, read
from gradfix.prove.prover import Refusal
from gradfix.run import Outcome, Run
from gradfix.run.zygote import Zygote
from gradfix.tape import Optimizer, Ref, Site, Tape
from gradfix.verdict import Effect, EffectKind

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optG = torch.optim.Adam(G.parameters(), lr=0.05)
optD = torch.optim.Adam(D.parameters(), lr=0.05)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(6, 1), torch.zeros(6, 1)
"""

# D's output of before its step is used in G's loss after it
STALE = """\
for _ in range(4):
    real, noise = torch.randn(6, 4), torch.randn(6, 3)
    fake = G(noise)
    score = D(fake)
    lossD = bce(D(real), ones) + bce(score, zeros)
    optD.zero_grad()
    lossD.backward(retain_graph=True)
    optD.step()
    lossG = fake.pow(2).mean() + bce(score, ones)
    optG.zero_grad()
    lossG.backward()
    optG.step()
"""

# D's loss runs through G, whose graph is then gone
FREED = """\
for _ in range(4):
    real, noise = torch.randn(6, 4), torch.randn(6, 3)
    fake = G(noise)
    optD.zero_grad()
    optG.zero_grad()
    lossD = bce(D(real), ones) + bce(D(fake), zeros)
    lossD.backward()
    optD.step()
    lossG = bce(D(fake), ones)
    lossG.backward()
    optG.step()
"""

NET = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
"""

INPLACE = """\
for _ in range(4):
    x, y = torch.randn(5, 4), torch.randn(5, 3)
    h = torch.sigmoid(net(x))
    h *= 2
    loss = (h - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

SILENT = INPLACE.replace("h *= 2", "h.data.mul_(2)")

CARRIED = """\
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(3, 5), nn.Linear(5, 1)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
h = torch.zeros(2, 5)
for _ in range(4):
    x, y = torch.randn(2, 3), torch.randn(2, 1)
    h = cell(x, h)
    loss = (head(h) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@dataclass(frozen=True)
class Bench:
    """Proves candidates of a script of the test's own."""

    zygote: Zygote
    folder: Path

    def prover(self, before: str) -> tuple[Prover, Baseline]:
        script = self.folder / "train.py"
        script.write_text(before)
        prover = Prover(Runner(self.zygote, Run(script=script, root=self.folder, cwd=self.folder)))
        return prover, prover.baseline({})

    def verdict(self, before: str, after: str, effect: EffectKind, kind: str = "") -> Verdict:
        prover, baseline = self.prover(before)
        errors = [c for c in baseline.conflicts if c.severity == "error"]
        conflict = next((c for c in errors or baseline.conflicts if kind in ("", c.kind)), None)
        assert conflict is not None, f"no {kind or 'conflict'} was found: {baseline.conflicts}"
        return prover.prove(baseline, {str(self.folder / "train.py"): after}, Effect(effect), conflict)


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def bench(zygote, tmp_path):
    return Bench(zygote, tmp_path)


def swap(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


RECOMPUTED = swap(
    STALE,
    ("lossG = fake.pow(2).mean() + bce(score, ones)", "lossG = fake.pow(2).mean() + bce(D(fake), ones)"),
)

SOUND: dict[str, tuple[str, str, EffectKind, str, str]] = {
    # case: before, after, effect, kind of conflict, status
    "recompute": (HEAD + STALE, HEAD + RECOMPUTED, "later-parameters", "stale-saved-tensor", "intended"),
    "recompute_and_detach": (
        HEAD + STALE,
        HEAD
        + swap(
            RECOMPUTED,
            ("score = D(fake)", "score = D(fake.detach())"),
            ("lossD.backward(retain_graph=True)", "lossD.backward()"),
        ),
        "later-parameters",
        "stale-saved-tensor",
        "intended",
    ),
    "both_backwards_with_inputs": (
        HEAD + STALE,
        HEAD
        + swap(
            STALE,
            (
                "lossD.backward(retain_graph=True)",
                "lossD.backward(retain_graph=True, inputs=list(D.parameters()))",
            ),
            ("    optD.step()\n", ""),
            ("lossG.backward()", "lossG.backward(inputs=list(G.parameters()))"),
            ("    optG.step()\n", "    optD.step()\n    optG.step()\n"),
        ),
        "none",
        "stale-saved-tensor",
        "proved",
    ),
    "detach_for_d": (
        HEAD + FREED,
        HEAD + swap(FREED, ("bce(D(fake), zeros)", "bce(D(fake.detach()), zeros)")),
        "cut-own-loss",
        "freed-graph",
        "intended",
    ),
    "inputs_for_d": (
        HEAD + FREED,
        HEAD
        + swap(FREED, ("lossD.backward()", "lossD.backward(retain_graph=True, inputs=list(D.parameters()))")),
        "cut-own-loss",
        "freed-graph",
        "intended",
    ),
    "out_of_place": (NET + INPLACE, NET + swap(INPLACE, ("h *= 2", "h = h * 2")), "none", "", "proved"),
    "silent_out_of_place": (
        NET + SILENT,
        NET + swap(SILENT, ("h.data.mul_(2)", "h = h * 2")),
        "none",
        "",
        "proved",
    ),
    "hidden_state_detached": (
        CARRIED,
        swap(CARRIED, ("h = cell(x, h)", "h = cell(x, h.detach())")),
        "cut-round",
        "freed-graph",
        "intended",
    ),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound(case, bench):
    before, after, effect, kind, status = SOUND[case]
    verdict = bench.verdict(before, after, effect, kind)
    assert status == verdict.status, verdict.reason


FROZEN_ONCE = (
    HEAD
    + "import copy\nfrozen = copy.deepcopy(D)\n"
    + swap(RECOMPUTED, ("bce(D(fake), ones)", "bce(frozen(fake), ones)"))
)

WRONG: dict[str, tuple[str, str, tuple[EffectKind, ...]]] = {
    # case: before, after, effects it might claim
    "score_detached": (
        HEAD + STALE,
        HEAD + swap(STALE, ("bce(score, ones)", "bce(score.detach(), ones)")),
        ("none", "later-parameters", "cut-own-loss"),
    ),
    "plain_reorder": (
        HEAD + STALE,
        HEAD
        + swap(STALE, ("    optD.step()\n", ""), ("    optG.step()\n", "    optG.step()\n    optD.step()\n")),
        ("none", "later-parameters", "cut-own-loss"),
    ),
    "detached_in_own_loss": (
        HEAD + FREED,
        HEAD + swap(FREED, ("bce(D(fake), ones)", "bce(D(fake.detach()), ones)")),
        ("none", "cut-own-loss"),
    ),
    "frozen_copy": (HEAD + STALE, FROZEN_ONCE, ("none", "later-parameters")),
    "no_learning_rate": (
        HEAD + STALE,
        swap(
            HEAD,
            (
                "optD = torch.optim.Adam(D.parameters(), lr=0.05)",
                "optD = torch.optim.Adam(D.parameters(), lr=0.0)",
            ),
        )
        + STALE,
        ("none", "later-parameters"),
    ),
    "weights_put_back": (
        HEAD + STALE,
        HEAD
        + swap(
            RECOMPUTED,
            (
                "    optD.step()\n",
                "    kept = [p.detach().clone() for p in D.parameters()]\n    optD.step()\n",
            ),
            (
                "    optG.step()\n",
                "    optG.step()\n    with torch.no_grad():\n"
                "        for p, k in zip(D.parameters(), kept):\n            p.copy_(k)\n",
            ),
        ),
        ("later-parameters",),
    ),
    "step_dropped": (
        HEAD + STALE,
        HEAD + swap(STALE, ("    optD.step()\n", "")),
        ("none", "later-parameters"),
    ),
    "fused": (
        HEAD + STALE,
        swap(
            HEAD,
            (
                "optD = torch.optim.Adam(D.parameters(), lr=0.05)",
                "optD = torch.optim.Adam(D.parameters(), lr=0.05, fused=True)",
            ),
        )
        + STALE,
        ("none", "later-parameters"),
    ),
    "data_silences": (
        HEAD + STALE,
        HEAD + swap(STALE, ("bce(score, ones)", "bce(score.data, ones)")),
        ("none", "later-parameters"),
    ),
    "retain_graph": (
        HEAD + FREED,
        HEAD + swap(FREED, ("lossD.backward()", "lossD.backward(retain_graph=True)")),
        ("none", "cut-own-loss"),
    ),
    "clone_of_the_wrong_tensor": (
        HEAD + STALE,
        HEAD + swap(STALE, ("bce(score, ones)", "bce(score.clone(), ones)")),
        ("none", "later-parameters"),
    ),
    "try_except": (
        HEAD + STALE,
        HEAD
        + swap(
            STALE,
            (
                "    lossG.backward()\n",
                "    try:\n        lossG.backward()\n    except RuntimeError:\n        pass\n",
            ),
        ),
        ("none", "later-parameters"),
    ),
    "early_exit": (
        NET + INPLACE,
        NET + "import os\n" + swap(INPLACE, ("    loss.backward()\n", "    os._exit(0)\n")),
        ("none",),
    ),
    "early_sys_exit": (
        NET + INPLACE,
        NET
        + "import sys\n"
        + swap(INPLACE, ("    opt.step()\n", "    opt.step()\n    sys.exit(0)\n"), ("h *= 2", "h = h * 2")),
        ("none",),
    ),
    "no_grad_forward": (
        NET + INPLACE,
        NET + swap(INPLACE, ("    h *= 2\n", "    with torch.no_grad():\n        h *= 2\n")),
        ("none",),
    ),
    "detached_write": (
        NET + INPLACE,
        NET + swap(INPLACE, ("h *= 2", "h = torch.cat([h[:1], h[1:].detach()]) * 2")),
        ("none", "cut-round"),
    ),
    "another_value": (NET + INPLACE, NET + swap(INPLACE, ("h *= 2", "h = h * 3")), ("none",)),
    "silent_by_numpy": (NET + INPLACE, NET + swap(INPLACE, ("h *= 2", "h.data.mul_(2)")), ("none",)),
    "all_state_cut": (
        CARRIED,
        swap(CARRIED, ("loss = (head(h) - y)", "loss = (head(h.detach()) - y)")),
        ("cut-round", "none"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case, bench):
    before, after, effects = WRONG[case]
    for effect in effects:
        verdict = bench.verdict(before, after, effect)
        assert verdict.status == "rejected", f"{effect}: {verdict.reason}"


def test_lost_gradient_is_named(bench):
    cut = ("D(fake), zeros", "D(fake.detach()), zeros"), ("D(fake), ones", "D(fake.detach()), ones")
    detached = swap(FREED, *cut)
    verdict = bench.verdict(HEAD + FREED, HEAD + detached, "cut-own-loss")
    assert "G's 4 parameters get no gradient" in verdict.reason


def test_reason_has_numbers(bench):
    before, after, effect, kind, _ = SOUND["recompute"]
    verdict = bench.verdict(before, after, effect, kind)
    assert "`optG` gradient cosine 0.9" in verdict.reason
    assert "norm ratio 1." in verdict.reason
    assert verdict.measured["passes"] == 6


def test_reason_says_which_gradient_is_the_exact_one(bench):
    through = bench.verdict(NET + SILENT, NET + SILENT.replace("h.data.mul_(2)", "h = h * 2"), "none")
    assert through.reason == (
        "every gradient equal to the exact one (the write taken as part of the graph) over 3 steps"
    )
    saved = bench.verdict(NET + SILENT, NET + SILENT.replace("net(x))", "net(x)).clone()"), "none")
    assert saved.reason == "every gradient equal to the exact one (of the values as saved) over 3 steps"


def test_reason_tells_what_was_compared_under_the_effect(bench):
    """Under the effect's terms the gradients differ, and as they run another optimizer's are equal."""
    after = STALE.replace("lossG = fake", "lossG = 0.5 * fake").replace(
        "bce(score, ones)", "bce(D(fake), ones)"
    )
    verdict = bench.verdict(HEAD + STALE, HEAD + after, "later-parameters")
    assert verdict.status == "rejected"
    assert verdict.reason.startswith("while the parameters stand still, the gradient of G's 4 parameters")
    assert "; compared as it runs: `optG` gradient cosine" in verdict.reason


def test_a_small_gradient_that_differs_is_not_equal():
    def run(bias: float) -> Measured:
        grads = [[3.0, 3.0, "f8", _doubles(3.0)], [1e-5, 1e-5, "f8", _doubles(bias)]]
        return read([{"m": "s", "o": 0, "g": grads, "c": [], "rng": []}])

    assert likeness(run(1e-5), run(1e-5))[0].equal
    assert not likeness(run(-1e-5), run(1e-5))[0].equal


def _doubles(*values: float) -> str:
    return binascii.b2a_base64(array("d", values).tobytes()).decode()


def test_what_is_not_finite_is_compared_all_the_same():
    def vector(*elements):
        return Vector(math.hypot(*elements), sum(elements), "f8", _doubles(*elements))

    endless, huge, one = vector(math.inf, -math.inf), vector(1e200, 1e200), vector(1.0, 1.0)
    assert math.isnan(endless.dot(one))
    assert endless.distance(one) == huge.distance(one) == math.inf
    assert math.isnan(off_by([(endless, one), (one, endless)]))
    assert off_by([(huge, one)]) == math.inf


def test_unseeded_script_is_untried(bench):
    unseeded = swap(
        NET, ("torch.manual_seed(0)", "import os\ntorch.manual_seed(int.from_bytes(os.urandom(4), 'big'))")
    )
    verdict = bench.verdict(unseeded + INPLACE, unseeded + swap(INPLACE, ("h *= 2", "h = h * 2")), "none")
    assert verdict.status == "untried"
    assert "not deterministic" in verdict.reason


def test_a_loss_that_is_not_finite_proves_nothing(bench):
    before = NET + swap(INPLACE, (".mean()", ".mean() / 0"))
    verdict = bench.verdict(before, swap(before, ("h *= 2", "h = h * 2")), "none")
    assert verdict.status == "untried"
    assert "the loss of backward 1 is infinite in the script as it is" in verdict.reason


def test_one_of_two_faults_cured(bench):
    second = "\nz = torch.ones(3, requires_grad=True)\ne = z.exp()\ne += 1\ne.sum().backward()\n"
    before = NET + second + INPLACE
    verdict = bench.verdict(before, swap(before, ("e += 1", "e = e + 1")), "none")
    assert verdict.status == "proved", verdict.reason
    assert verdict.measured["remaining"] == 1


def test_two_cures_together(bench):
    before = CARRIED.replace("loss = (head(h)", "s = torch.sigmoid(h)\n    s += 1\n    loss = (head(s)")
    after = swap(before, ("h = cell(x, h)", "h = cell(x, h.detach())"), ("s += 1", "s = s + 1"))
    prover, baseline = bench.prover(before)
    files = {str(bench.folder / "train.py"): after}
    verdict = prover.prove_whole(baseline, files, (Effect("cut-round"), Effect("none")))
    assert verdict.status == "intended", verdict.reason


def test_a_clip_is_a_change_of_the_parameters_as_the_step_is(bench):
    folder = Path(__file__).parents[1] / "fixtures" / "recompute_after_step" / "clipped_behind_the_step"
    before, after = ((folder / name).read_text(encoding="utf-8") for name in ("before.py", "after.py"))
    verdict = bench.verdict(before, after, "later-parameters")
    assert verdict.status == "intended", verdict.reason
    clip = "            p.clamp_(-0.5, 0.5)\n"
    again = "    loss_g = -D(fake).mean()\n"
    for wrong in (
        swap(after, (clip, "            pass\n")),
        swap(after, (clip, clip.replace("0.5)", "0.1)"))),
        swap(after, (again, ""), (clip, clip + f"{again}    opt_d.step()\n")),
        swap(after, (again, "    loss_g = -D(fake.detach()).mean() + D(G(torch.zeros(8, 4))).mean()\n")),
    ):
        verdict = bench.verdict(before, wrong, "later-parameters")
        assert verdict.status == "rejected", verdict.reason


def test_old_calls_run_through_a_shim(bench):
    before = NET + swap(
        INPLACE, ("h *= 2", "h = h * 2"), ("loss.backward()", "loss.backward(retain_variables=True)")
    )
    verdict = bench.verdict(
        before, swap(before, ("retain_variables", "retain_graph")), "restored", "legacy-api"
    )
    assert verdict.status == "intended", verdict.reason


def test_leaf_that_lost_its_place(bench):
    before = """\
import torch

torch.manual_seed(0)
w = torch.randn(3, requires_grad=True).double()
opt = torch.optim.SGD([w], lr=0.1)
for _ in range(4):
    loss = (w * torch.randn(3).double()).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    leaf = swap(before, ("requires_grad=True).double()", "dtype=torch.float32).double().requires_grad_()"))
    verdict = bench.verdict(before, leaf, "adds-gradient", "missing-grad")
    assert verdict.status == "intended", verdict.reason
    made = "w = torch.randn(3, requires_grad=True).double()"
    v_leads = made.replace("w =", "v =").replace(".double()", "") + "\nw = v.double()"
    copied = swap(before, (made, v_leads), ("SGD([w]", "SGD([v]"))
    verdict = bench.verdict(before, copied, "adds-gradient", "missing-grad")
    assert verdict.status == "rejected", verdict.reason


def test_missing_zero_grad(bench):
    before = NET + swap(INPLACE, ("h *= 2", "h = h * 2"), ("    opt.zero_grad()\n", ""))
    after = before.replace("    loss.backward()", "    opt.zero_grad()\n    loss.backward()")
    verdict = bench.verdict(before, after, "adds-gradient", "unreset-grad")
    assert verdict.status == "intended", verdict.reason


def test_a_step_before_the_clipping(bench):
    clipped = NET + INPLACE.replace("opt.step()", "nn.utils.clip_grad_norm_(net.parameters(), 1e-3)")
    clipped = clipped.replace("    h *= 2\n", "")
    behind = clipped + "    opt.step()\n"
    before = clipped.replace("backward()\n", "backward()\n    opt.step()\n")
    assert bench.verdict(clipped, behind, "adds-gradient", "unreset-grad").status == "intended"
    verdict = bench.verdict(clipped, before, "adds-gradient", "unreset-grad")
    assert verdict.status == "rejected"


def test_clipping_moved_after_the_step(bench):
    clip = "    for p in D.parameters():\n        p.data.clamp_(-0.2, 0.2)\n"
    loop = swap(
        FREED,
        ("D(fake), zeros", "D(fake.detach()), zeros"),
        ("    lossD.backward()\n", clip + "    lossD.backward()\n"),
    )
    after = swap(loop, (clip, ""), ("    optD.step()\n", "    optD.step()\n" + clip))
    verdict = bench.verdict(HEAD + loop, HEAD + after, "moved-write", "silent-overwrite")
    assert verdict.status == "intended", verdict.reason
    gone = bench.verdict(HEAD + loop, HEAD + swap(loop, (clip, "")), "moved-write", "silent-overwrite")
    assert gone.status == "rejected", gone.reason


def test_dropout_of_a_second_pass_replayed(bench):
    head = HEAD.replace(
        "D = nn.Sequential(nn.Linear(4, 8),", "D = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3),"
    )
    verdict = bench.verdict(head + STALE, head + RECOMPUTED, "later-parameters", "stale-saved-tensor")
    assert verdict.status == "intended", verdict.reason
    assert "random draws" in verdict.reason


def test_batch_norm_of_a_second_pass(bench):
    head = HEAD.replace(
        "D = nn.Sequential(nn.Linear(4, 8),", "D = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8),"
    )
    verdict = bench.verdict(head + STALE, head + RECOMPUTED, "later-parameters", "stale-saved-tensor")
    assert verdict.status == "intended", verdict.reason
    assert "running statistics" in verdict.reason


def test_value_made_once_must_not_go_stale(bench):
    before = (
        HEAD
        + """\
gain = torch.zeros(1, requires_grad=True)
optS = torch.optim.SGD([gain], lr=0.5)
scale = gain.exp()
for _ in range(4):
    noise = torch.randn(6, 3)
    lossS = (gain * G(noise).detach().mean()).sum()
    optS.zero_grad()
    lossS.backward()
    optS.step()
    lossG = (scale * G(noise)).pow(2).mean()
    optG.zero_grad()
    lossG.backward()
    optG.step()
"""
    )
    stale = swap(before, ("scale = gain.exp()", "scale = gain.exp().detach()"))
    for effect in ("none", "cut-round", "cut-own-loss"):
        verdict = bench.verdict(before, stale, effect, "freed-graph")
        assert verdict.status == "rejected", f"{effect}: {verdict.reason}"
    again = swap(
        before, ("scale = gain.exp()\n", ""), ("    lossG = (", "    scale = gain.exp()\n    lossG = (")
    )
    verdict = bench.verdict(before, again, "later-parameters", "freed-graph")
    assert verdict.status == "intended", verdict.reason


def test_clean_up_is_preserved(bench):
    before = NET + INPLACE.replace("h *= 2", "h = h * 2\n    mean = h.data.mean()")
    verdict = bench.verdict(
        before, swap(before, ("h.data.mean()", "h.detach().mean()")), "none", "data-attribute"
    )
    assert verdict.status == "preserved", verdict.reason


def test_a_write_made_less_often_is_rejected(bench):
    clip = "    for p in D.parameters():\n        p.data.clamp_(-0.2, 0.2)\n"
    loop = swap(
        FREED,
        ("for _ in range(4)", "for k in range(4)"),
        ("D(fake), zeros", "D(fake.detach()), zeros"),
        ("    lossD.backward()\n", clip + "    lossD.backward()\n"),
    )
    rare = clip.replace("        p", "        if k == 1: p")
    for place in ("    optD.step()\n", "    optG.step()\n"):
        after = swap(loop, (clip, ""), (place, place + rare))
        verdict = bench.verdict(HEAD + loop, HEAD + after, "moved-write", "silent-overwrite")
        assert verdict.status == "rejected", verdict.reason


def test_another_optimizer_state_is_rejected(bench):
    adam = swap(NET, ("SGD(net.parameters(), lr=0.1, momentum=0.9)", "Adam(net.parameters(), lr=0.001)"))
    after = swap(adam, ("lr=0.001", "lr=0.001, betas=(0.9, 0.998)")) + swap(INPLACE, ("h *= 2", "h = h * 2"))
    verdict = bench.verdict(adam + INPLACE, after, "none")
    assert verdict.status == "rejected", verdict.reason
    assert "the state of `opt`" in verdict.reason


def test_large_gradients_are_compared_by_their_sketch(bench):
    wide = swap(
        NET, ("nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)", "nn.Linear(4, 270), nn.Linear(270, 270)")
    )
    loop = INPLACE.replace("torch.randn(5, 3)", "torch.randn(5, 270)")
    verdict = bench.verdict(wide + loop, wide + swap(loop, ("h *= 2", "h = h + h")), "none")
    assert verdict.status == "proved", verdict.reason
    # the rows change places: norm and sum stay as they are
    turned = swap(loop, ("h *= 2", "h = (h * 2).flip(1)"), ("(h - y)", "(h - y.flip(1))"))
    verdict = bench.verdict(wide + loop, wide + turned, "none")
    assert verdict.status == "proved", verdict.reason
    wrong = swap(loop, ("h *= 2", "h = h * 2\n    h.register_hook(lambda g: g.flip(1))"))
    verdict = bench.verdict(wide + loop, wide + wrong, "none")
    assert verdict.status == "rejected", verdict.reason
    assert "gradient" in verdict.reason


@pytest.mark.parametrize("draw", ["np.random.rand()", "random.gauss(0, 1)"])
def test_draws_of_numpy_and_python_in_a_second_pass(draw, bench):
    head = "import random\nimport numpy as np\n" + HEAD
    noisy = swap(STALE, ("fake = G(noise)", f"fake = G(noise) + {draw}"))
    after = swap(noisy, ("lossG = fake.pow(2).mean() + bce(score, ones)", "lossG = bce(D(fake), ones)"))
    before = swap(noisy, ("lossG = fake.pow(2).mean() + bce(score, ones)", "lossG = bce(score, ones)"))
    again = swap(after, ("bce(D(fake), ones)", f"bce(D(fake + 0 * {draw}), ones)"))
    verdict = bench.verdict(head + before, head + again, "later-parameters", "stale-saved-tensor")
    assert verdict.status == "intended", verdict.reason
    assert f"{'NumPy' if 'np' in draw else 'Python'}'s random draws differs" in verdict.reason


def test_what_cures_nothing_is_rejected(bench):
    before = NET + SILENT
    verdict = bench.verdict(before, before + "\n# as it was\n", "none")
    assert verdict.status == "rejected"


@pytest.mark.parametrize("case", ["recompute", "both_backwards_with_inputs"])
def test_steps_that_move_nothing_say_nothing_of_what_they_change(case, bench):
    before, after, effect, kind, _ = SOUND[case]
    warm_up = "optD = torch.optim.Adam(D.parameters(), lr=0.0)"
    moving = "optD = torch.optim.Adam(D.parameters(), lr=0.05)"
    still, cured = swap(before, (moving, warm_up)), swap(after, (moving, warm_up))
    verdict = bench.verdict(still, cured, effect, kind)
    assert verdict.status == "untried"
    assert "changed a parameter" in verdict.reason


def test_an_op_out_of_place_is_judged_at_the_same_parameters(bench):
    still = swap(NET, ("lr=0.1", "lr=0.0"))
    before, after = still + INPLACE, still + swap(INPLACE, ("h *= 2", "h = h * 2"))
    assert bench.verdict(before, after, "none").status == "proved"


def _measured(*events: tuple[str, int]) -> Measured:
    lines = []
    for what, k in events:
        if what == "b":
            lines.append({"m": "b", "v": [[1.0, 1.0, 1.0]], "a": 1, "r": []})
        elif what == "z":
            lines.append({"m": "z", "o": k})
        else:
            lines.append({"m": "s", "o": k, "g": [[1.0, 1.0, "f4", "AACAPw=="]], "c": [], "rng": [0, 0]})
    return read(lines)


def test_own_loss_follows_the_steps():
    run = _measured(("b", 0), ("s", 1), ("b", 1), ("s", 0))
    assert own_loss_by_time(run) == [[1], [0]]


def test_own_loss_of_two_backwards_before_two_steps_follows_the_clearing():
    run = _measured(("z", 0), ("b", 0), ("z", 1), ("b", 1), ("s", 1), ("s", 0))
    assert own_loss_by_time(run) == [[0], [1]]


@pytest.mark.parametrize(
    ("optimizers", "lengths"),
    [
        ([1, 1, 0] * 2, (3,)),
        ([0, 1], (2,)),
        ([0, 1, 0], (2,)),
        ([0, 0, 1], ()),
        ([1] * 5 + [0, 1, 0], (1, 1, 1, 1, 1, 2)),  # pretraining of one of them
        ([0, 1] * 3 + [2] * 3, (2, 2, 2, 1)),  # another model behind
        ([0, 1, 0, 1, 0, 2, 2], (2, 2, 1, 1)),
    ],
)
def test_rounds(optimizers, lengths):
    assert rounds(_measured(*[("s", k) for k in optimizers])) == lengths


def test_zero_gradients_prove_nothing():
    zero = read([{"m": "s", "o": 0, "g": [[0.0, 0.0, "f4", "AAAAAA=="]], "c": [], "rng": [0, 0]}])
    found = difference(zero, zero)
    assert found is not None
    assert found.what == "nothing"


def test_likeness_of_a_run_with_itself():
    run = _measured(("b", 0), ("s", 0))
    assert likeness(run, run)[0].equal


def test_a_sketched_cosine_is_at_most_one():
    import struct
    from binascii import b2a_base64

    sketch = b2a_base64(struct.pack("2f", 1.1, 0.2)).decode()
    run = read([{"m": "s", "o": 0, "g": [[1.0, 1.0, "cs", sketch]], "c": [], "rng": []}])
    other = b2a_base64(struct.pack("2f", 1.1, 0.21)).decode()
    near = read([{"m": "s", "o": 0, "g": [[1.0, 1.0, "cs", other]], "c": [], "rng": []}])
    assert 0.99 < likeness(near, run)[0].cosine <= 1


def test_runs_that_the_clock_stopped_are_compared_as_far_as_both_came(bench):
    step = {"m": "s", "o": 0, "g": [[1.0, 1.0, "f4", "AACAPw=="]], "c": [], "rng": []}
    done = {"m": "u", "o": 0, "u": [[0.1]], "b": [], "st": {"step": [1.0]}}
    cut = Outcome("timeout", Tape(()), (step, done) * 3, None, "", "", 1.0, "")

    class Twice(Runner):
        def imposed(self, baseline, impose):
            return replace(baseline.outcome, measurement=(step, done, step))

    prover = Prover(Twice(bench.zygote, Run(Path("x.py"), Path("."), Path("."))))
    prover._is_deterministic(Baseline({}, cut, cut, ()))
    with pytest.raises(Refusal, match="not deterministic"):
        prover._is_deterministic(Baseline({}, replace(cut, ended="steps"), cut, ()))


class _Slow(Runner):
    """The clock stops every candidate behind so many steps."""

    steps = 2
    recorded = 2

    def start(self, files, record=False, impose=None):
        outcome = super().start(files, record, impose).result()
        ended: Future[Outcome] = Future()
        if files:
            ends = [n for n, line in enumerate(outcome.measurement) if line["m"] == "u"]
            measured = outcome.measurement[: ends[(self.recorded if record else self.steps) - 1] + 1]
            outcome = replace(outcome, ended="timeout", measurement=measured)
        ended.set_result(outcome)
        return ended


def test_a_candidate_that_the_clock_stopped_is_judged_as_far_as_it_came(bench):
    prover, baseline = bench.prover(NET + INPLACE)
    runner = _Slow(prover.runner.zygote, prover.runner.template)
    slow = Prover(runner)
    after = {str(bench.folder / "train.py"): NET + INPLACE.replace("h *= 2", "h = h * 2")}
    wrong = {str(bench.folder / "train.py"): NET + INPLACE.replace("h *= 2", "h = h.detach() * 2 + h")}
    conflict = baseline.conflicts[0]
    verdict = slow.prove(baseline, after, Effect("none"), conflict)
    assert "ends otherwise than before: timeout" in verdict.reason  # it had all the time that others need
    baseline = replace(baseline, outcome=replace(baseline.outcome, seconds=runner.template.timeout / 2))
    verdict = slow.prove(baseline, after, Effect("none"), conflict)
    assert (
        verdict.status,
        verdict.reason,
    ) == ("proved", "every gradient equal to the exact one over 2 steps")
    assert slow.prove(baseline, wrong, Effect("none"), conflict).status == "rejected"
    runner.steps = 3  # the plain run comes farther than the recorded one
    verdict = slow.prove(baseline, after, Effect("none"), conflict)
    assert (verdict.status, verdict.reason[-12:]) == ("proved", "over 3 steps")
    runner.steps = 1
    verdict = slow.prove(baseline, after, Effect("none"), conflict)
    assert "stopped by the time limit at 1 of the 3 steps" in verdict.reason


def test_of_two_faults_of_one_step_the_other_is_not_the_cured_one():
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    s.backward(s.linear(2, w, s.data()), 3)
    h = [s.op("mm", line, w, s.data(), saves=[w]) for line in (4, 5)]
    s.step(opt, 6)
    s.backward(h[0], 7)
    s.backward(h[1], 8)
    first, second = (c for c in detect(s.end()) if c.kind == "stale-saved-tensor")
    assert first.at == second.at
    found = left([second], [first, second], [first], Lines({}, {}))
    assert (found.still, found.others, found.gone) == ((), (second,), (first,))


def test_the_parts_of_a_line_are_told_apart_by_what_the_rewrite_left_beside_them():
    was, now = "x\na.exp_(); b.exp_(); c.exp_()\n", "x\na = a.exp(); b.exp_(); c.exp_()\n"
    lines = Lines({"f": was}, {"f": now})
    sites = [Site("f", 2, was.index(t) - 2, 2, was.index(t) + 5) for t in ("a.exp", "b.exp", "c.exp")]
    moved = Site("f", 2, now.index("b.exp") - 2, 2, now.index("b.exp") + 5)
    assert [lines.same_place(moved, site) for site in sites] == [False, True, False]
    written = Site("f", 2, 0, 2, 11)
    assert all(lines.same_place(written, site) for site in sites)  # (what was rewritten may be any of them)
    assert all(lines.same_place(Site("f", 2), site) for site in sites)  # (only its line is known)


@pytest.mark.parametrize("size", [2, 65_537, 300_001])
def test_a_tensor_in_three_numbers(size: int) -> None:
    import torch

    from gradfix.run.child.measure import number

    values = torch.linspace(-1.0, 2.0, size).sin()
    wide, weights = values.double(), torch.linspace(1.0, 2.0, size, dtype=torch.float64)
    expected = [wide.norm().item(), wide.sum().item(), wide.dot(weights).item()]
    assert number(values) == pytest.approx(expected, rel=1e-5)


def test_a_small_difference_is_said_with_the_digits_that_show_it():
    def run(small: float):
        grads = [
            [x, x, "f4", binascii.b2a_base64(array("f", [x]), newline=False).decode()] for x in (1.0, small)
        ]
        step = {"m": "s", "o": 0, "g": grads, "c": [], "rng": []}
        return read([step, {"m": "u", "o": 0, "u": [[0.1], [0.1]], "b": [], "st": {}}])

    assert told_apart(0.123456, 0.123471) == ("0.12346", "0.12347")
    found = difference(run(1.4e-3), run(1e-3))
    assert found is not None
    assert words.differs(found, words.Names({})).endswith("at step 1 of optimizer 1, off by 0.4 of its norm")
    near = words.alike(likeness(run(1.4e-3), run(1e-3)), words.Names({}))
    assert near.endswith("norm ratio 1, one parameter's off by 0.4 of its norm")


def test_optimizers_of_one_name_are_told_apart_by_what_they_step():
    def made(number: int, name: str, *parameters: str) -> Optimizer:
        refs = tuple(Ref(n, 0, p, (1,), "float32") for n, p in enumerate(parameters))
        return Optimizer(number, (), number, "Adam", name, refs)

    one, other, third = made(0, "opt", "G.weight", "G.bias"), made(1, "opt", "D.weight"), made(2, "last", "w")
    names = words.Names({0: one, 1: other, 2: third})
    assert [names.optimizer(n) for n in range(3)] == ["G's `opt`", "D's `opt`", "`last`"]


@pytest.mark.parametrize(
    ("now", "was", "what"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0], None),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 7.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "loss"),
        ([1.0, 9.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "loss"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "loss"),
    ],
)
def test_losses_that_the_bound_cuts_off_are_no_difference(
    now: list[float], was: list[float], what: str | None
):
    """A step that is made later in its round ends the run behind a loss that it did not come to before."""

    def run(losses: list[float]):
        one = [1.0, 1.0, "f4", binascii.b2a_base64(array("f", [1.0]), newline=False).decode()]
        backwards = [{"m": "b", "v": [[0, x]], "a": True} for x in losses]
        steps = [{"m": "s", "o": o, "g": [one], "c": [], "rng": []} for o in (0, 1) * 3]
        return read([*backwards, *steps, {"m": "l", "how": "steps"}])

    found = difference(run(now), run(was))
    assert (found and found.what) == what


def test_value_made_once_of_several_parameters_must_not_go_stale(bench):
    before = (
        HEAD
        + """\
penalty = sum(p.pow(2).sum() for p in G.parameters())
for _ in range(3):
    lossG = G(torch.randn(6, 3)).pow(2).mean() + penalty
    optG.zero_grad()
    lossG.backward()
    optG.step()
"""
    )
    stale = swap(before, ("G.parameters())\nfor", "G.parameters()).detach()\nfor"))
    verdict = bench.verdict(before, stale, "cut-round", "freed-graph")
    assert verdict.status == "rejected", verdict.reason
    assert "goes stale" in verdict.reason
