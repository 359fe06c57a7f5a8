"""The language server while somebody types: keystroke to diagnostics, what is told of older texts, memory.

    OMP_NUM_THREADS=1 python benchmarks/server.py [--keys N]

The files have a thousand lines: models, some of them trained, and a fault. A key goes into a comment in the middle of
it, into the code of a training (a number grows, so that every text is a program), or into a call there whose
parenthesis is missing, and is followed by the next one once its diagnostics have come (aim: 100 ms at the 95th
percentile, the debounce of 20 ms among them). Then 200 lines in quick succession, twice: no diagnostics may name
another line than their version's, and the memory of the processes (proportional set size) must not grow. `reading` is
what the reader alone takes for the text, with nothing kept of it. On a busy machine the clock says little: the load
is shown, and what a key costs all of the server's processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client import Client

from gradfix.check import check_text
from gradfix.result import Settings
from gradfix.source import Source

MODEL = '''
class Block{n}(torch.nn.Module):
    """A block of the network."""

    def __init__(self, width, depth={n}):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.depth = depth

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.depth > 3:
            h = self.norm(h)
        return x + self.second(h)


def batches{n}(count, size=8):
    """Made-up data."""
    for _ in range(count):
        inputs = torch.randn(size, 16)
        yield inputs, inputs.sum(dim=1, keepdim=True)

'''
TRAINING = '''
def train{n}(epochs=2):
    """One model of its own."""
    model = torch.nn.Sequential(Block{n}(16), Block{n}(16), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        total = 0.0
        for inputs, targets in batches{n}(10):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, total)

'''
FAULT = """
def spoilt():
    layer = torch.nn.Linear(4, 4)
    y = layer(torch.randn(2, 4)).exp()
    y += 1
    y.sum().backward()


"""


def text(trainings: int, lines: int = 1000) -> str:
    """A file of about so many lines, with so many trainings among its models; the fault is near its end."""
    out, number = "import torch\n", 0
    while out.count("\n") < lines - 15 - trainings:
        out += MODEL.format(n=number) + (TRAINING.format(n=number) if number < trainings else "")
        number += 1
    calls = "".join(f"    train{n}()\n" for n in range(trainings))
    return f'{out}{FAULT}if __name__ == "__main__":\n{calls}    spoilt()\n'


def memory(pid: int) -> float:
    """MiB of a process and of those below it, shared pages counted in part."""
    try:
        smaps = Path(f"/proc/{pid}/smaps_rollup").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return 0.0
    mine = next(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("Pss:"))
    return mine / 1024 + sum(memory(int(child)) for child in below)


def processor(pid: int) -> float:
    """Seconds that a process, those below it and those that ended there have had of the processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    mine = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return mine + sum(processor(int(child)) for child in below)


def type_key(client: Client, uri: str, line: int, key: str, column: int = 0) -> float:
    """Insert `key`; the time it was sent."""
    spot = {"line": line, "character": column}
    sent = time.monotonic()
    client.change(uri, {"range": {"start": spot, "end": spot}, "text": key})
    return sent


def main(keys: int) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    for trainings in (2, 16):
        source = text(trainings)
        print(f"\n{source.count(chr(10))} lines with {trainings} trainings")
        session(source, keys)


def session(source: str, keys: int) -> None:
    """One editor's work on one file, measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = []
        for _ in range(4):
            started = time.process_time()
            found = list(check_text(Source.decode(folder / "a.py", source.encode()), Settings(repair=False)))
            alone.append(time.process_time() - started)
        assert [d.conflict.kind for r in found for d in r.diagnoses] == ["stale-saved-tensor"]
        print(
            f"reading alone: first {alone[0] * 1e3:.0f} ms, then {min(alone[1:]) * 1e3:.0f} ms of the processor"
        )
        client = Client(folder)
        uri = client.open(folder / "train.py", source)
        fault = client.diagnostics(uri)[0]["range"]["start"]["line"]
        blank = source[: source.index("\nclass Block5")].count("\n")
        time.sleep(1)  # what only cures need is loaded now
        stepping = source[: source.index("total += loss.item()")].count("\n")
        behind = len("            total += loss.item()")
        places = {
            "comment": (blank, 0, "# x", 2, "x"),
            "code": (stepping, behind, " + 1", behind + 4, "1"),
            "broken": (stepping, behind, " + f(1", behind + 6, "1"),
        }
        for what, (line, column, first, following, key) in places.items():
            taken = []
            before = processor(client.process.pid)
            for number in range(keys):
                sent = type_key(client, uri, line, key if number else first, following if number else column)
                client.diagnostics(uri)
                taken.append(client.seen[-1]["at"] - sent)
            cost = (processor(client.process.pid) - before) / keys
            taken.sort()
            p95 = taken[int(len(taken) * 0.95) - 1]
            print(
                f"keystroke to diagnostics, {what}, {keys} keys: median {statistics.median(taken) * 1e3:.0f} ms, "
                f"p95 {p95 * 1e3:.0f} ms; a key costs {cost * 1e3:.0f} ms of the processor"
            )
        client.change(uri, {"text": source})
        client.diagnostics(uri)
        figures = []
        for round_ in range(2):
            client.seen.clear()
            first = client.versions[uri]
            for _ in range(200):
                type_key(client, uri, blank, "\n")
                time.sleep(0.01)
            fault += 200
            client.diagnostics(uri)
            told = [m["params"] for m in client.seen if "publishDiagnostics" in m.get("method", "")]
            stale = 0
            for each in told:
                due = fault - 200 + each["version"] - first
                stale += [d["range"]["start"]["line"] for d in each["diagnostics"]] != [due]
            time.sleep(0.5)
            figures.append(memory(client.process.pid))
            print(
                f"200 keys, round {round_ + 1}: {len(told)} times diagnostics, {stale} of them stale; "
                f"{figures[-1]:.1f} MiB"
            )
        client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100)
    main(parser.parse_args().keys)
