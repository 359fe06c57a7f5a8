"""What recording costs a training step, as ratios of one run: against plain PyTorch and against anomaly mode.

    OMP_NUM_THREADS=1 python benchmarks/recorder.py

Every measurement is a process of its own, forked from this one; a figure is the median over interleaved
rounds of the median step, in the thread's own time, so that a busy machine does not show. The first steps are
written in full (the lines are formatted after the pass, at the end of the run or twice a second: not in these
figures), later ones only where they are new or wrong, and beside such: both are measured. Peak memory is the maximum
resident set of the process, with the losses kept in a list and without.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from gradfix.run.child.recorder import Recorder

ROUNDS, FIRST, WARM, STEPS = 3, 3, 34, 25
BUDGETS = {"conv GAN": 1.5, "LSTM": 2.0, "MLP": 2.5}
MEMORY_BUDGET = 2.0
SCALE = {"conv GAN": 6, "LSTM": 5, "MLP": 10}  # where a step's memory outweighs the interpreter's
Step = Callable[[], torch.Tensor]


def conv_gan(scale: int = 1) -> Step:
    """A DCGAN for 16x16 images, batches of 16."""
    c = 16 * scale
    generator = nn.Sequential(
        nn.ConvTranspose2d(32, 2 * c, 4), nn.BatchNorm2d(2 * c), nn.ReLU(),
        nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.BatchNorm2d(c), nn.ReLU(),
        nn.ConvTranspose2d(c, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(1, c, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(c, 2 * c, 4, 2, 1), nn.BatchNorm2d(2 * c), nn.LeakyReLU(0.2), nn.Conv2d(2 * c, 1, 4),
    )  # fmt: skip
    optimizer_g = torch.optim.Adam(generator.parameters(), 2e-4)
    optimizer_d = torch.optim.Adam(critic.parameters(), 2e-4)
    real, criterion = torch.randn(16 * scale, 1, 16, 16), nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(16 * scale, 1, 1, 1), torch.zeros(16 * scale, 1, 1, 1)

    def step() -> torch.Tensor:
        fake = generator(torch.randn(16 * scale, 32, 1, 1))
        optimizer_d.zero_grad()
        loss_d = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = criterion(critic(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        return loss_g

    return step


def lstm(scale: int = 1) -> Step:
    """Two layers over 35 time steps, batches of 20."""
    model, head = nn.LSTM(32 * scale, 64 * scale, 2), nn.Linear(64 * scale, 10)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    x, y = torch.randn(35, 20, 32 * scale), torch.randint(10, (35 * 20,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(model(x)[0]).flatten(0, 1), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def mlp(scale: int = 1) -> Step:
    """20 layers of 64, batches of 64: hardly any arithmetic for the number of calls."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(64 * scale, 64 * scale), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(64 * scale, 64 * scale)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


MODELS = {"conv GAN": conv_gan, "LSTM": lstm, "MLP": mlp}


def measure(
    make: Callable[[int], Step], how: str, *, keep: bool = False, scale: int = 1, steps: int = STEPS
) -> tuple:
    """(milliseconds of an early step, of a later one, peak MiB) of a forked process that trains `make` `how`:
    plain, anomaly or recorded."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
        return tuple(json.loads(text))
    result = _train(make, how, keep, scale, steps)
    os.write(write, json.dumps(result).encode())
    os._exit(0)


def _train(
    make: Callable[[int], Step], how: str, keep: bool, scale: int, steps: int
) -> tuple[float, float, float]:
    torch.manual_seed(0)
    if how == "anomaly":
        warnings.simplefilter("ignore")
        torch.autograd.set_detect_anomaly(True)
    if how == "recorded":
        sink = Path(os.devnull).open("w")  # noqa: SIM115 (the process ends with it)
        Recorder(lambda line: print(json.dumps(line), file=sink), {"script": __file__}).install()
    step, losses, times = make(scale), [], []
    for _ in range(WARM + steps if steps >= STEPS else steps):
        start = time.thread_time()
        loss = step()
        if keep:
            losses.append(loss)
        times.append(time.thread_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return statistics.median(times[FIRST:WARM]) * 1e3, statistics.median(times[-STEPS:]) * 1e3, peak


def main() -> int:
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch._dynamo
    gc.collect()
    gc.freeze()  # as the zygote does
    over = False
    for name, make in MODELS.items():
        rounds = [
            {how: measure(make, how) for how in ("plain", "anomaly", "recorded")} for _ in range(ROUNDS)
        ]
        for row, when in enumerate(("full recording", "steady state")):
            recorded = statistics.median(r["recorded"][row] / r["plain"][row] for r in rounds)
            anomaly = statistics.median(r["anomaly"][row] / r["plain"][row] for r in rounds)
            plain = statistics.median(r["plain"][row] for r in rounds)
            over |= recorded > BUDGETS[name]
            print(
                f"{name:9} {when:14}   plain {plain:6.2f} ms   recorded {recorded:.2f} x "
                f"(budget {BUDGETS[name]})   anomaly mode {anomaly:.2f} x"
            )
    for name, make in MODELS.items():
        for keep in (False, True):
            plain, recorded = (
                measure(make, how, keep=keep, scale=SCALE[name], steps=8)[2] for how in ("plain", "recorded")
            )
            over |= recorded > MEMORY_BUDGET * plain
            kept = "losses.append(loss)" if keep else ""
            print(
                f"{name:9} peak memory   plain {plain:6.0f} MiB   recorded {recorded:6.0f} MiB, "
                f"{recorded / plain:.2f} x (budget {MEMORY_BUDGET})   {kept}"
            )
    return int(over)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    sys.exit(main())
