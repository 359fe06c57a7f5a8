"""Places that are clear to a person: everything renamed, comments in between, clipping beside the lines of a fix."""

import pytest
from placing import GAN, RECOMPUTED, STALE, applied, refused
from test_patches_flow import CARRIED, DETACHED, before
from test_patches_place import placed

LATER = {"effect": "later-parameters"}
RENAMED = {
    "optG": "g_optimizer", "optD": "d_optimizer", "lossG": "generator_loss", "lossD": "critic_loss",
    "score": "verdict", "fake": "image", "real": "photo", "G(": "gen(", "D(": "disc(", "G.": "gen.", "D.": "disc.",
    "G, D": "gen, disc", "step in": "it in",
}  # fmt: skip


def renamed(text: str) -> str:
    for was, now in RENAMED.items():
        text = text.replace(was, now)
    return text


def test_every_name_is_another_one():
    assert placed(renamed(GAN), GAN, RECOMPUTED).text == renamed(RECOMPUTED)


def test_a_name_that_the_place_itself_does_not_use():
    old = CARRIED.replace("    opt.zero_grad()\n", "")

    def changed(text: str) -> str:
        text = text.replace("opt.step()", "optimizer.step()\n    print(step)").replace("opt =", "optimizer =")
        return text.replace("opt.", "optimizer.")

    assert placed(changed(old), old, CARRIED).text == changed(CARRIED)


@pytest.mark.parametrize("between", ["", "\n", "\n    # the generator\n", "    # one\n    # two\n\n"])
def test_comments_between_the_lines_around_it(between):
    old = GAN.replace("    optD.step()\n", "    optD.step()\n\n") if not between else GAN
    new = old.replace("    lossG = -score", "    score = D(fake)\n    lossG = -score")
    now = old.replace("    lossG = -score", f"{between}    lossG = -score")
    assert placed("import sys\n" + now, old, new).text == "import sys\n" + now.replace(
        "    lossG = -score", "    score = D(fake)\n    lossG = -score"
    )


def test_code_between_the_lines_around_it_is_something_else():
    old, new = CARRIED, DETACHED
    now = CARRIED.replace("    out, h =", "    # begins\n    h = h * 1\n    out, h =")
    assert placed(old.replace("    out, h", "    # begins\n    out, h"), old, new).doubt == ""
    with pytest.raises(Exception, match="can't be found any more"):
        placed(now, old, new)


CLIP = "torch.nn.utils.clip_grad_norm_({}.parameters(), 0.1)"


@pytest.mark.parametrize(
    "lines",
    [
        [CLIP.format("D")],
        ["norm = " + CLIP.format("D")],
        [CLIP.format("G")],
    ],
)
def test_gradients_are_clipped_beside_it(tmp_path, lines):
    now, new = (before(text, "optD.step()", *lines) for text in (GAN, RECOMPUTED))
    found = applied(tmp_path, now, GAN, RECOMPUTED, STALE, **LATER)
    assert (found.status, found.why) == ("placed", "")
    assert [text for _, text in found.files.values()] == [new]


WEIGHTS = ["for p in D.parameters():", "    p.data.clamp_(-0.1, 0.1)"]
UNTOLD = "with torch.no_grad():", "    for p in D.parameters():", "        p.clamp_(-0.1, 0.1)"


@pytest.mark.parametrize("lines", [WEIGHTS, UNTOLD])
def test_weights_are_clipped_behind_their_step(tmp_path, lines):
    now, new = (before(text, "lossG =", *lines) for text in (GAN, RECOMPUTED))
    found = applied(tmp_path, now, GAN, RECOMPUTED, STALE, **LATER)
    assert (found.status, found.why) == ("placed", "")
    assert [text for _, text in found.files.values()] == [new]


SHAKE = "def shake(some):\n    for p in some:\n        p.data.add_(torch.randn_like(p))\n\n"


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["for p in D.parameters():", "    p.data.mul_(score.mean().item())"], ""),
        (["for p in D.parameters():", "    score = score * 2"], ""),
        (["for p in D.parameters():", "    kept.append(p)"], "kept = []\n"),
        (["for p in G.parameters():", "    p.data.clamp_(-0.1, 0.1)"], ""),  # fake was made with these
        (["for p in more.parameters():", "    p.data.clamp_(-1, 1)", "    D(fake)"], "more = torch.nn.Linear(1, 1)\n"),
        (["shake(D.parameters())"], SHAKE),
        (["ema.update(D.parameters())"], "from averages import ema\n"),
        (["score = torch.cat([p.flatten() for p in D.parameters()])"], ""),
        (["torch.nn.utils.clip_grad_norm_(D.parameters(), score.abs().max().item())"], ""),
        (["torch.nn.utils.clip_grad_norm_(D.parameters(), size(score))"], "from sizes import size\n"),
    ],
)  # fmt: skip
def test_more_than_that_is_for_a_run_to_tell(tmp_path, lines, first):
    now = before(GAN, "lossG =", *lines).replace("for step", f"{first}for step", 1)
    now = now.replace(
        "torch.nn.Linear(4, 2)", "torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))"
    )
    assert "(--reprove runs it)" in refused(tmp_path, now, GAN, RECOMPUTED, STALE, **LATER)


def test_a_fix_that_means_to_change_nothing_sees_no_other_parameters(tmp_path):
    now = before(GAN, "lossG =", *WEIGHTS)
    why = refused(tmp_path, now, GAN, RECOMPUTED, STALE)
    assert "line 15 (`for p in D.parameters():`) is among the lines that it changes" in why


def test_what_is_lost_is_lost_clipped_or_not(tmp_path):
    now = before(CARRIED, "opt.step()", CLIP.format("rnn"))
    found = applied(tmp_path, now, CARRIED, DETACHED, "freed-graph", effect="cut-round")
    assert (found.status, found.why) == ("placed", "")


WRITTEN = """\
import torch

net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(6, 2, 3):
    hidden = net(x).exp()
    hidden += 1
    loss = hidden.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
OUT = WRITTEN.replace("hidden += 1", "hidden = hidden + 1")
ELSEWHERE = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def forward(self, x):
        hidden = self.first(x).exp()
        hidden += 1
        loss = self.last(hidden).mean()
        return loss


net = Net()
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(6, 2, 3):
    opt.zero_grad()
    net(x).backward()
    opt.step()
"""


def test_the_only_place_of_its_lines_in_another_program(tmp_path):
    found = applied(tmp_path, ELSEWHERE, WRITTEN, OUT, STALE)
    assert (found.status, found.why) == ("placed", "")
    assert (tmp_path / "train.py").read_text() == ELSEWHERE.replace("hidden += 1", "hidden = hidden + 1")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (".exp()", ".neg()", "too much around it is not what it was"),
        ("opt.step()", "opt.step()\n    w = net.last.weight.exp()\n    w *= 2\n    w.sum().backward()", "too much"),
        ("hidden = self", "hidden = x = self", "is a tensor that something else holds as well here"),
        ("        loss = ", "        hidden += 1\n        loss = ", "`hidden += 1`"),
    ],
    ids=["no_fault", "another_error_is_left", "held_by_another", "two_places"],
)  # fmt: skip
def test_what_does_not_tell_that_it_is_the_place(tmp_path, was, now, said):
    text = ELSEWHERE.replace(was, now)
    assert said in refused(tmp_path, text, WRITTEN, OUT, STALE)
