"""What a rewrite is worth: the script before and after, effect imposed, compared. See DESIGN section 5."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["proved", "preserved", "intended", "rejected", "untried"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was measured of one candidate. `reason` is one sentence for the person ("G's gradient cosine 0.9998 to the
    exact one, D's equal"); `measured` the numbers behind it (JSON values)."""

    status: Status
    reason: str
    measured: Mapping[str, object] = field(default_factory=dict)
