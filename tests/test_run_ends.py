"""Scripts that end in every way a script can: each run says how, in time, and leaves nothing behind."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import IGNORES_SIGNALS, MODEL, copying, processes_named, project, run, until

from gradfix.detect import detect
from gradfix.run import Outcome
from gradfix.run.zygote import Zygote
from gradfix.tape import Backward, End, Optimizer, Tape


def test_exception_has_the_users_traceback(run: Callable[..., Outcome], project: Path) -> None:
    outcome = run("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.type, outcome.failure.message) == (
        "failed",
        "ZeroDivisionError",
        "division by zero",
    )
    frames = [line for line in outcome.failure.traceback.splitlines() if line.startswith("  File ")]
    script = project / "script.py"
    assert frames == [f'  File "{script}", line 4, in <module>', f'  File "{script}", line 2, in f']
    assert outcome.stderr == outcome.failure.traceback
    assert [(site.line, site.function) for site in outcome.failure.stack] == [(4, "<module>"), (2, "f")]


def test_syntax_error(run: Callable[..., Outcome]) -> None:
    outcome = run("x = (1,\n")
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.type) == ("failed", "SyntaxError")


NONSENSE = """
import os
for fd in range(3, 2000):
    try: os.write(fd, b"{nonsense\\n")
    except OSError: pass
"""
LATE_THREAD = """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
"""


@pytest.mark.parametrize(
    ("text", "ended", "status", "detail"),
    [
        ("", "finished", 0, ""),
        ("import sys; sys.exit()", "finished", 0, ""),
        ("import sys; sys.exit(3)", "exit", 3, "sys.exit(3)"),
        ("import sys; sys.exit('no data')", "exit", 1, "no data"),
        ("import os; os._exit(4)", "exit", 4, "os._exit(4)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed", -9, "SIGKILL"),
        ("import os; os.abort()", "killed", -6, "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "killed", -11, "SIGSEGV"),
        ("import os; os.execv('/bin/true', ['true'])", "tampered", 0, "replaced"),
        ("import os; os.closerange(3, 65536)", "tampered", 117, "closed"),
        (NONSENSE, "tampered", 0, "nonsense"),
        ("import sys; sys.excepthook = lambda *_: None; 1/0", "failed", 1, ""),
        ("import os, sys; sys.excepthook = lambda *_: os._exit(9); 1/0", "failed", 9, ""),
        ("import sys; sys.stdout.close(); sys.stderr = None; 1/0", "failed", 1, ""),
        ("import os; os.remove(__file__); os.chdir('/'); print(1)", "finished", 0, ""),
        ("raise KeyboardInterrupt", "failed", 1, ""),
        ("input()", "failed", 1, ""),
        ("import os, time\nif os.fork() == 0: time.sleep(60)", "finished", 0, ""),
        ("import atexit; atexit.register(print, 'bye'); atexit.register(lambda: 1/0)", "finished", 0, ""),
        (LATE_THREAD, "finished", 0, ""),
    ],
)  # fmt: skip
def test_ways_out(run: Callable[..., Outcome], text: str, ended: str, status: int, detail: str) -> None:
    started = time.monotonic()
    outcome = run(text)
    assert (outcome.ended, outcome.status) == (ended, status), outcome
    assert detail in outcome.detail
    assert time.monotonic() - started < 15
    if "bye" in text or "late" in text:
        assert outcome.stdout in ("bye\n", "late\n")


@pytest.mark.parametrize(
    "text",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "while True:\n  try:\n    while True: pass\n  except: pass",
        IGNORES_SIGNALS,
        "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(60)",
        "import atexit, time; atexit.register(time.sleep, 60)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        "import os, time\nif os.fork(): os.wait()\ntime.sleep(60)",
        MODEL + "other = torch.optim.SGD([w], lr=0.1)\nwhile True: train()",
    ],
)  # fmt: skip
def test_never_ending(run: Callable[..., Outcome], text: str) -> None:
    started = time.monotonic()
    outcome = run("print('before', flush=True)\n" + text, timeout=0.6)
    assert (outcome.ended, outcome.detail) == ("timeout", "the run was not over after 0.6 s.")
    assert outcome.stdout == "before\n"
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    "loop",
    [
        "while True: train(); print('.', end='')",
        "while True:\n  try: train(); print('.', end='')\n  except: pass",
        "for epoch in range(99):\n  optimizer = torch.optim.Adam([w]); train(); print('.', end='')",
    ],
)
def test_ends_by_steps(run: Callable[..., Outcome], loop: str) -> None:
    outcome = run(MODEL + loop, steps=4)
    assert (outcome.ended, outcome.stdout) == ("steps", "...")


def test_steps_of_every_optimizer(run: Callable[..., Outcome]) -> None:
    text = """
late = torch.optim.SGD([w], lr=0.1)
for i in range(10): train()
print("pretrained")
for i in range(9): late.step(); print(i)
"""
    text = MODEL + text
    assert run(text, steps=2).stdout == "pretrained\n0\n"


FOLLOWER = """
target = torch.nn.Linear(2, 1)
with_it = torch.optim.Adam(target.parameters(), lr=0.1)
with torch.no_grad():
    target.weight.fill_(1.0)
for i in range(9):
    train()
    {write}
    print(i)
"""


@pytest.mark.parametrize(
    "write",
    [
        "target.load_state_dict({k: 0.9 * v + 0.1 for k, v in target.state_dict().items()})",
        "[p.data.copy_(0.9 * p.data + 0.1) for p in target.parameters()]",
    ],
)
def test_a_target_networks_optimizer_is_not_waited_for(run: Callable[..., Outcome], write: str) -> None:
    outcome = run(MODEL + FOLLOWER.format(write=write), steps=2)
    assert (outcome.ended, outcome.stdout) == ("steps", "0\n1\n")


def test_what_is_initialised_once_is_waited_for(run: Callable[..., Outcome]) -> None:
    text = FOLLOWER.format(write="if i == 4: target.weight.data.fill_(0.5)")
    assert run(MODEL + text, steps=2).ended == "finished"


UNSTEPPED = """
other = torch.nn.Linear(2, 1)
late = torch.optim.Adam(other.parameters(), lr=0.1)
def update(opt): opt.step()
def run(first, second):
    for i in range(40):
        train()
        second.zero_grad()
        other(torch.randn(3, 2)).sum().backward()
        if i > 95: update(first)
        {step}
    print(i)
run(optimizer, late)
"""


def test_an_optimizer_that_no_call_may_step_is_not_waited_for(run: Callable[..., Outcome]) -> None:
    outcome = run(MODEL + UNSTEPPED.format(step="print(end='.')"), steps=2)
    assert (outcome.ended, outcome.stdout) == ("steps", "....")


def test_gradients_of_an_optimizer_that_never_steps_are_told(run: Callable[..., Outcome]) -> None:
    outcome = run(MODEL + UNSTEPPED.format(step="pass"), steps=2, record=True)
    (conflict,) = detect(outcome.tape or Tape(()))
    assert (conflict.kind, conflict.pattern) == ("unreset-grad", "never-stepped")
    assert "never steps" in conflict.message
    outcome = run(MODEL + UNSTEPPED.format(step="if i > 90: second.step()"), steps=2, record=True)
    assert not detect(outcome.tape or Tape(()))


ONE = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for i in range(100):
    optimizer.zero_grad()
    w.mul(2).sum().backward()
    print(end='.')
    {step}
"""


@pytest.mark.parametrize(
    ("step", "passes"),
    [("pass", 3), ("norm = w.grad.norm()", 3), ("if i > 90: optimizer.step()", 94)],
)
def test_a_program_without_steps_ends_by_its_backwards(
    run: Callable[..., Outcome], step: str, passes: int
) -> None:
    outcome = run(ONE.format(step=step), steps=3)
    assert outcome.stdout == "." * passes


@pytest.mark.parametrize(
    "step",
    [
        "if i > 90: second.step()",
        "if i > 90: update(second)",
        "if i > 90: update(opt=late)",
        "if i > 90:\n          for o in (first, second): o.step()",
        "if i > 90:\n          every = [first, second]; every[1].step()",
        "if i > 90:\n          it = second; it.step()",
        "if i > 90: scaler.step(second)",
        "if i > 90: getattr(second, 'step')()",
        "go = second.step",
    ],
)
def test_an_optimizer_that_some_call_may_step_is_waited_for(run: Callable[..., Outcome], step: str) -> None:
    assert run(MODEL + UNSTEPPED.format(step=step), steps=2).ended == "finished"


def test_steps_of_something_else_are_no_reason_to_wait(run: Callable[..., Outcome]) -> None:
    besides = "if i > 90:\n          schedule = torch.optim.lr_scheduler.StepLR(first, 3); schedule.step()"
    assert run(MODEL + UNSTEPPED.format(step=besides), steps=2).ended == "steps"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("for task in range(9): adapt(5)", "0.....0.."),  # the second round steps as often as is asked for
        ("for task in range(9): adapt(2)", "0..0."),
        (
            "for seed in range(9): adapt(99)",
            "0" + "." * 31,
        ),  # one training after another is waited for so long only
        ("for task in range(1): adapt(9)", "0........."),
        ("adapt(99)", "0.."),
        ("def train_it():\n  for task in range(9): adapt(5)\ntrain_it()", "0.....0.."),
    ],
)
def test_a_loop_that_makes_its_optimizer_anew_goes_round_twice(
    run: Callable[..., Outcome], text: str, said: str
) -> None:
    adapt = """
import torch
w = torch.ones(3, requires_grad=True)
def adapt(times):
  print(0, end='')
  optimizer = torch.optim.SGD([w], lr=0.1)
  for step in range(times): w.sum().backward(); optimizer.step(); print('.', end='')
"""
    assert run(adapt + text, steps=3).stdout == said


@pytest.mark.parametrize(
    "text",
    ["x = []\nwhile True: x.append(torch.ones(1 << 20))", "torch.ones(1 << 32)", "b = bytearray(1 << 33)"],
)
def test_memory(run: Callable[..., Outcome], text: str) -> None:
    outcome = run("import torch\n" + text, memory=1 << 29)
    assert outcome.ended == "memory"
    assert "memory" in outcome.detail


def test_resident_memory_without_a_limit_of_address_space(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradfix.run.conversation._resident_limit", lambda _: 400 << 20)
    outcome = run("import time\nx = b'1' * (600 << 20)\ntime.sleep(9)")
    assert (outcome.ended, outcome.detail) == ("memory", "the run used up the memory it may have.")


def test_megabytes_of_output_keep_the_end(run: Callable[..., Outcome]) -> None:
    outcome = run(
        "import sys\nfor i in range(200_000): print(i, 'x' * 60)\nsys.stderr.write('y' * (1 << 22) + 'end')"
    )
    assert len(outcome.stdout) == 65536
    assert outcome.stdout.endswith("199999 " + "x" * 60 + "\n")
    assert (len(outcome.stderr), outcome.stderr[-4:]) == (65536, "yend")


def test_fork_bomb(run: Callable[..., Outcome]) -> None:
    outcome = run("import os, time\nfor _ in range(2000): os.fork() or time.sleep(60)\n", timeout=10)
    refused = outcome.failure is not None and outcome.failure.type == "BlockingIOError"
    assert outcome.ended in ("killed", "timeout") or refused, outcome.failure
    assert processes_named("script.py") == []


@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_survives_a_daemon(
    run: Callable[..., Outcome], zygote: Zygote, copying: Zygote, namespaces: bool
) -> None:
    mark = f"gradfix-daemon-{os.getpid()}"
    text = f"""
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            up = "import time; open('up', 'w'); time.sleep(99)"
            os.execv(sys.executable, [sys.executable, "-c", up, {mark!r}])
        os._exit(0)
    while not os.path.exists("up"): time.sleep(0.01)
    """
    assert run(text, zygote if namespaces else copying).ended == "finished"
    assert until(lambda: processes_named(mark) == [])


TWO_NETWORKS = """
import torch
one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (one, other)]
def loss_of(step, shown=0.0):
    loss = one(torch.ones(3, 2)).square().mean()
    {}
    return loss
for step in range(9):
    loss_of(step).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("line", "later"),
    [
        ("if step > 5: loss = loss + other(torch.ones(3, 2)).square().mean()", True),
        ("if step > 5: loss += other(torch.ones(3, 2)).square().mean()", True),
        ("if step >= 1: loss = loss + torch.ones(2).sum()", False),
        ("if step > 5: shown = shown + loss", False),
        ("if shown: loss = loss + 1", False),
    ],
)
def test_terms_that_join_the_loss_later(run: Callable[..., Outcome], line: str, later: bool) -> None:
    """Said of a run that ended before what a number decides, where an optimizer has stepped without a gradient."""
    outcome = run(TWO_NETWORKS.format(line), record=True)
    assert outcome.tape is not None
    end = outcome.tape.events[-1]
    assert isinstance(end, End)
    assert (end.how, end.later) == ("steps", later)


BY_HAND = """
import torch
w = torch.zeros(3, requires_grad=True)
passes = 0
while {test}:
    loss = (torch.randn(4, 3) @ w - 1).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
    passes += 1
"""


def test_a_program_without_optimizers_that_never_ends_has_shown_what_it_does(
    run: Callable[..., Outcome],
) -> None:
    outcome = run(BY_HAND.format(test="True"), record=True, steps=3)
    assert outcome.ended == "steps"
    assert len([e for e in outcome.tape.events if isinstance(e, Backward)]) >= 3


def test_one_that_speaks_of_them_is_waited_for(run: Callable[..., Outcome]) -> None:
    later = "optimizer = torch.optim.SGD([w], lr=0.1)\nw.sum().backward()\noptimizer.step()\n"
    outcome = run(BY_HAND.format(test="passes < 70") + later, record=True, steps=3)
    assert [e for e in outcome.tape.events if isinstance(e, Optimizer)]
