"""Every generator starts alike in every run, also those that the script lets the system seed.

A proof compares runs, so what a script draws has to come out alike. The global generators are seeded; what takes
the system's randomness through Python (random.SystemRandom, secrets, numpy.random.default_rng() and gym's
generators without a seed) reads a seeded stream in its place. ``os.urandom`` itself stays as it is.

Standard library and torch only.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from .imports import AfterImport


def seed_everything(seed: int) -> None:
    """random and torch now; NumPy only if and when the script imports it, for its import costs 0.1 s."""
    _seed_what_has_no_seed(seed)
    random.seed(seed)
    if any(getattr(torch.version, kind, None) for kind in ("cuda", "hip", "xpu")) or sys.platform != "linux":
        torch.manual_seed(seed)
    else:  # the same without a look at devices that this torch does not have
        torch.default_generator.manual_seed(seed)

    def seed_numpy(module: Any) -> None:
        module.seed(seed % 2**32)

    if "numpy.random" in sys.modules:
        seed_numpy(sys.modules["numpy.random"])
    else:
        sys.meta_path.insert(0, AfterImport("numpy.random", seed_numpy))


def _seed_what_has_no_seed(seed: int) -> None:
    stream = random.Random(seed)
    # what SystemRandom reads, and through it secrets and numpy.random.SeedSequence()
    random._urandom = stream.randbytes  # type: ignore[attr-defined]

    plain, whole, fresh = random.Random.seed, random.seed, torch.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain(self, stream.getrandbits(64) if a is None else a, version)

    def seed_global(a: Any = None, version: int = 2) -> None:
        whole(stream.getrandbits(64) if a is None else a, version)

    def seed_torch() -> int:
        chosen = stream.getrandbits(63)
        torch.manual_seed(chosen)
        return chosen

    seed_torch.__doc__ = fresh.__doc__
    random.Random.seed = seeded  # type: ignore[method-assign]
    random.seed = seed_global
    torch.seed = torch.random.seed = seed_torch
