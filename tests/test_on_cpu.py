"""Scripts that ask for a GPU where there is none: the processor stands in for it, and nothing else is different."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import project, run

from gradfix.detect import detect
from gradfix.run import Outcome
from gradfix.run.gpu import ON_CPU

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

GAN = """
    import torch
    from torch import nn
    torch.cuda.set_device(0)
    torch.cuda.manual_seed_all(0)
    Tensor = torch.cuda.FloatTensor
    G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
    D = nn.DataParallel(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))).to("cuda:0")
    opt_G, opt_D = (torch.optim.Adam(net.parameters()) for net in (G, D))
    bce, scaler = nn.BCEWithLogitsLoss().cuda(), torch.cuda.amp.GradScaler()
    for _ in range(3):
        real = torch.randn(8, 3).pin_memory().cuda(non_blocking=True)
        ones, zeros = torch.ones(8, 1, device="cuda"), real.new_zeros(8, 1, device=torch.device("cuda", 0))
        with torch.cuda.amp.autocast():
            fake = G(Tensor(8, 4).normal_())
            d_loss = bce(D(real), ones) + bce(D(fake), zeros)
            g_loss = bce(D(fake), ones)
        opt_D.zero_grad(); scaler.scale(d_loss).backward(retain_graph=True); scaler.step(opt_D)
        opt_G.zero_grad(); scaler.scale(g_loss).backward(); scaler.step(opt_G); scaler.update()
        torch.cuda.synchronize()
        print(g_loss.detach().cpu().numpy(), torch.cuda.max_memory_allocated())
"""


def test_a_gan_made_for_a_gpu(run: Callable[..., Outcome]) -> None:
    failure = run(GAN).failure
    assert failure is not None
    assert "modified by an inplace operation" in failure.message
    outcome = run(GAN, record=True)
    (conflict,) = [c for c in detect(outcome.tape) if c.severity == "error"]
    assert (conflict.kind, conflict.pattern) == ("stale-saved-tensor", "optimizer-step")
    assert ON_CPU in outcome.missed


def test_what_goes_there_is_a_copy(run: Callable[..., Outcome]) -> None:
    """As it is on a GPU: of a tensor that is there already, it is none."""
    outcome = run("""
        import torch
        from torch import nn
        x = torch.ones(3)
        for y in (x.cuda(), x.to("cuda"), x.to("cuda", torch.float64), x.to(device=torch.device("cuda:1")),
                  x.to("cuda", non_blocking=True), x.type("torch.cuda.FloatTensor")):
            assert y.cuda() is y and y.to("cuda") is y
            y.zero_()
        there = torch.zeros(3, device="cuda", requires_grad=True)
        assert there.is_leaf and there.cuda() is there
        there.detach().cpu().add_(1)
        there.detach().to("cpu").add_(1)
        here = torch.zeros(3, requires_grad=True)
        assert here.cpu() is here and here.to("cpu") is here
        parameter = nn.Parameter(torch.zeros(3).cuda())
        assert parameter.cuda() is parameter
        assert not torch.zeros(3, requires_grad=True).cuda().is_leaf
        net = nn.Linear(2, 1).cuda()
        assert all(p.is_leaf and p.cuda() is p for p in net.parameters())
        print(x.tolist(), there.tolist(), torch.cuda.is_available(), torch.cuda.device_count())
    """)
    assert outcome.failure is None, outcome.failure
    assert outcome.stdout == "[1.0, 1.0, 1.0] [0.0, 0.0, 0.0] False 0\n"


def test_a_checkpoint_is_loaded(run: Callable[..., Outcome]) -> None:
    outcome = run("""
        import io, torch
        net = torch.nn.Linear(2, 1).cuda()
        for asked in ({}, {"map_location": "cuda:0"}, {"map_location": torch.device("cuda")},
                      {"map_location": {"cuda:0": "cuda:1"}}, {"map_location": lambda storage, place: storage}):
            file = io.BytesIO()
            torch.save(net.state_dict(), file)
            file.seek(0)
            net.load_state_dict(torch.load(file, **asked))
        torch.set_default_device("cuda")
        with torch.cuda.device(0):
            print(torch.zeros(2).tolist(), torch.Generator("cuda").device)
        g = torch.Generator(device="cuda").manual_seed(0)
        print(isinstance(g, torch.Generator), isinstance(torch.default_generator, torch.Generator))
        print(torch.randn(1, generator=g, device="cuda").shape, torch.load.__module__)
    """)
    wanted = "[0.0, 0.0] cpu\nTrue True\ntorch.Size([1]) torch.serialization\n"
    assert outcome.stdout == wanted, outcome.failure


def test_threads_too(run: Callable[..., Outcome]) -> None:
    outcome = run("""
        import threading, torch
        thread = threading.Thread(target=lambda: print(torch.ones(1).cuda().item()))
        torch.ones(1).cuda()
        thread.start()
        thread.join()
    """)
    assert outcome.stdout == "1.0\n"


def test_who_looks_first_chooses(run: Callable[..., Outcome]) -> None:
    outcome = run("""
        import torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.ones(1).cuda()
        except (AssertionError, RuntimeError):
            print(torch.ones(1, device=device).device)
    """)
    assert (outcome.stdout, outcome.missed) == ("cpu\n", ())


def test_a_leaf_that_is_moved_is_none(run: Callable[..., Outcome], project: Path) -> None:
    outcome = run(
        """
        import torch
        w = torch.randn(3, requires_grad=True).cuda()
        opt = torch.optim.SGD([w], 0.1)
    """,
        record=True,
    )
    assert outcome.failure is not None
    assert "non-leaf" in outcome.failure.message
    assert [c.kind for c in detect(outcome.tape)] == ["missing-grad"]


def test_streams_numbers_and_assertions(run: Callable[..., Outcome]) -> None:
    """A prefetcher's side stream, devices by their number, and a script that will not go on without."""
    outcome = run("""
        import torch
        from torch import nn
        assert torch.cuda.is_available(), "a GPU is needed"
        stream, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        net = nn.DataParallel(nn.Linear(2, 1).to(0), [0])
        with torch.cuda.stream(stream):
            x = torch.ones(3, 2).cuda(non_blocking=True)
            x.record_stream(torch.cuda.current_stream())
            done.record(stream)
        torch.cuda.current_stream().wait_stream(stream)
        done.synchronize()
        y = torch.ones(3, 2).to(0)
        assert y.to(0) is y and torch.zeros(2, device=0).cuda().sum() == 0
        print(tuple(net(x + y).shape), done.query(), torch.cuda.is_available())
    """)
    assert outcome.failure is None, outcome.failure
    assert outcome.stdout == "(3, 1) True False\n"
    assert ON_CPU in outcome.missed


def test_whole_numbers_on_a_gpu(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Sigmoid()).cuda()
        label = torch.full((4,), 1).cuda()
        torch.nn.BCELoss()(net(torch.randn(4, 3).cuda()).view(-1), label).backward()
    """,
        record=True,
    )
    assert [(c.kind, c.pattern) for c in detect(outcome.tape)] == [("legacy-api", "filled")]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("y = w.exp()\n    y.data.mul_(2)\n    y.sum().backward()", ("silent-overwrite", "data", 8)),
        ("loss = w.exp().mean()\n    print(loss.data.cpu().numpy()[0])", ("legacy-api", "removed", 8)),
        ("w.exp().sum().backward()\n    w.grad.mul_(0)\n    w.grad = None", None),
    ],
)
def test_what_the_program_does_itself(
    run: Callable[..., Outcome], body: str, told: tuple[str, str, int] | None
) -> None:
    """A mode that stands between the program and the recorder's is not who made the call."""
    outcome = run(
        f"""
import torch
from torch.autograd import Variable
x = Variable(torch.ones(3)).cuda()
w = torch.nn.Parameter(torch.ones(3))
for _ in range(3):
    {body}
""",
        record=True,
    )
    found = [(c.kind, c.pattern, c.at.line) for c in detect(outcome.tape) if c.severity != "note"]
    assert found == ([told] if told else [])
    assert any(type(e).__name__ == "GradWrite" for e in outcome.tape.events) == (told is None)


SCALED = """
    import torch
    from torch.nn.functional import mse_loss
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, other = torch.nn.Linear(3, 2).to(device), torch.nn.Linear(2, 3).to(device)
    opt, second = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, other))
    scaler = {made}
    for _ in range(6):
        x = torch.randn(4, 3, device=device)
        hidden = net(x)
        scaler.scale(mse_loss(hidden, x[:, :2])).backward()
        scaler.step(opt)
        scaler.scale(mse_loss(other(hidden.detach()), x)).backward()
        scaler.step(second)
        scaler.update()
    print(scaler.is_enabled())
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.cuda.amp.GradScaler()",
        "torch.amp.GradScaler()",
        "torch.amp.GradScaler('cuda', init_scale=2.0**10)",
    ],
)
def test_a_scaler_scales_here(run: Callable[..., Outcome], made: str) -> None:
    """Torch would switch it off, and what a step leaves of the gradients would weigh something then."""
    outcome = run(SCALED.format(made=made), record=True)
    assert [c for c in detect(outcome.tape) if c.severity != "note"] == []
    assert ON_CPU in outcome.missed


def test_a_scaler_that_the_script_switches_off(run: Callable[..., Outcome]) -> None:
    made = "torch.amp.GradScaler('cuda', enabled=torch.cuda.is_available())"
    outcome = run(SCALED.format(made=made), record=True)
    kinds = {(c.kind, c.pattern) for c in detect(outcome.tape) if c.severity != "note"}
    assert kinds == {("unreset-grad", "never-cleared")}
    assert ON_CPU not in outcome.missed
