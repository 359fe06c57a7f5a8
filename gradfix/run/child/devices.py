"""The devices that a computation needs; a run gets no others (disks, terminals, input)."""

from __future__ import annotations

import glob
import os

BASIC = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ACCELERATORS = (
    *("/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/nvhost*", "/dev/nvmap"),
    *("/dev/davinci*", "/dev/hisi_hdc", "/dev/habanalabs*", "/dev/neuron*"),
)


def accelerators() -> list[str]:
    """Paths of what computes here, other than the processor."""
    return sorted(path for pattern in ACCELERATORS for path in glob.glob(pattern))


def present() -> list[str]:
    """Paths of all that a run is given."""
    return [path for path in BASIC if os.path.exists(path)] + accelerators()
