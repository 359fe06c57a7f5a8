"""What was measured, as one sentence with names and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradfix.detect import Conflict
from gradfix.prove.compare import Difference, Likeness
from gradfix.prove.measured import Measured
from gradfix.tape import Optimizer, Ref, Tape
from gradfix.verdict import EffectKind


@dataclass(frozen=True, slots=True)
class Names:
    """What the person calls optimizers and parameters."""

    optimizers: Mapping[int, Optimizer]

    @classmethod
    def of(cls, tape: Tape) -> Names:
        return cls({e.optimizer: e for e in tape.events if isinstance(e, Optimizer)})

    def optimizer(self, number: int) -> str:
        event = self.optimizers.get(number)
        if event is None:
            return f"optimizer {number + 1}"
        alone = all(e is event or e.name != event.name for e in self.optimizers.values())
        if event.name and alone:
            return f"`{event.name}`"
        owners = {ref.name.partition(".")[0] for ref in event.refs}
        what = f"`{event.name}`" if event.name else event.kind
        if len(owners) == 1 and "" not in owners:
            return f"{owners.pop()}'s {what}"
        return f"optimizer {number + 1} ({what})"

    def parameters(self, optimizer: int, which: Sequence[int]) -> str:
        """``D's 12 parameters``, or the name of the only one."""
        refs: tuple[Ref, ...] = self.optimizers[optimizer].refs if optimizer in self.optimizers else ()
        names = [refs[j].name if j < len(refs) else "" for j in which]
        if len(which) == 1:
            return f"`{names[0]}`" if names[0] else f"parameter {which[0] + 1} of {self.optimizer(optimizer)}"
        owners = {name.partition(".")[0] for name in names}
        if len(owners) == 1 and "" not in owners and all("." in name for name in names):
            return f"{owners.pop()}'s {len(which)} parameters"
        return f"{len(which)} parameters of {self.optimizer(optimizer)}"


def differs(found: Difference, names: Names) -> str:
    """One clause on the first difference."""
    where = f" at step {found.step + 1}" if found.optimizer is not None else ""
    k = found.optimizer if found.optimizer is not None else 0
    who = names.optimizer(k)
    which = names.parameters(k, found.parameters) if found.parameters else ""
    verb = "get" if len(found.parameters) > 1 else "gets"
    if found.what == "lost":
        return f"{which or found.detail} {verb} no gradient{where} (had one before)"
    if found.what == "gained":
        return f"{which} {verb} a gradient{where} (had none before)"
    if found.what == "gradient":
        return f"the gradient of {which} is another one{where} of {who}, {found.detail}"
    if found.what == "kept":
        verb = "are" if len(found.parameters) > 1 else "is"
        return f"{which} {verb} written between steps of {who} otherwise than before"
    if found.what == "update":
        return f"{who} moves {which} by another amount{where}: {found.detail}"
    if found.what == "state":
        return f"the state of {who} is another one{where}: {found.detail}"
    if found.what in ("steps", "parameters") and found.optimizer is not None:
        return f"{who}: {found.detail}"
    if found.what == "leaves":
        return f"another gradient: {found.detail}"
    return found.detail


def infinite(run: Measured, names: Names) -> str:
    """Where a run's losses or gradients stop being finite, as one clause; "" where they don't."""
    for number, b in enumerate(run.backwards, 1):
        if not math.isfinite(b.value):
            what = "NaN" if math.isnan(b.value) else "infinite"
            return f"the loss of backward {number} is {what}"
    for s in run.steps:
        which = [j for j, g in enumerate(s.grads) if g is not None and not g.finite]
        if which:
            return (
                f"the gradient of {names.parameters(s.optimizer, which)} is not finite at step {s.number + 1}"
            )
    return "" if run.finite else "a gradient is not finite"


def exact(conflicts: Sequence[Conflict], through: bool = False) -> str:
    """Which gradient the exact one is. What a write that autograd did not see has made of a saved value can be left
    out, or taken (`through`) for an operation of the graph."""
    if not any(c.kind == "silent-overwrite" for c in conflicts):
        return "the exact one"
    return (
        f"the exact one ({'the write taken as part of the graph' if through else 'of the values as saved'})"
    )


def alike(found: Mapping[int, Likeness], names: Names, exact: str = "the exact one") -> str:
    """``optG gradient cosine 0.9998 to the exact one, norm ratio 1.02; optD equal``."""
    said = []
    for k, x in sorted(found.items(), key=lambda item: (item[1].equal, item[0])):
        who = names.optimizer(k)
        if x.equal:
            said.append(f"{who} equal")
        elif math.isnan(x.cosine) and x.lost:
            said.append(f"{who}: {names.parameters(k, x.lost)} get no gradient (had one before)")
            continue
        elif math.isnan(x.cosine):
            said.append(f"{who} has no gradient to compare")
        else:
            cosine, ratio = _cosine(x.cosine), f"{x.ratio:.3g}"
            said.append(f"{who} gradient cosine {cosine} to {exact}, norm ratio {ratio}")
            if x.off and float(cosine) == float(ratio) == 1:
                said[-1] += f", one parameter's off by {x.off:.2g} of its norm"
        if x.gained and math.isnan(x.cosine):
            said[-1] = f"{names.parameters(k, x.gained)} get a gradient now"
        elif x.gained:
            said[-1] += f", {names.parameters(k, x.gained)} with a gradient now"
        if x.lost:
            said[-1] += f", {names.parameters(k, x.lost)} without the gradient of before"
    return "; ".join(said)


def numbers(found: Mapping[int, Likeness], names: Names) -> dict[str, object]:
    """The same as JSON values."""
    return {
        names.optimizer(k).strip("`"): {
            "cosine": None if math.isnan(x.cosine) else round(x.cosine, 7),
            "norm_ratio": None if math.isnan(x.ratio) else round(x.ratio, 5),
            "lost": len(x.lost),
            "steps": x.steps,
        }
        for k, x in found.items()
    }


def imposed(effects: Sequence[EffectKind]) -> str:
    """What was held alike before and after, for the effects that were declared."""
    said = {
        "later-parameters": "while the parameters stand still",
        "new-draw": "while the parameters stand still, with the same random numbers",
        "cut-round": "with the earlier passes cut off before, too",
        "cut-own-loss": "with each loss kept to its own parameters before, too",
        "moved-write": "with the write left out of both",
        "straight-through": "with the gradient let to where it went before",
    }
    return next((said[e] for e in effects if e in said), "once the effect is taken into account")


def _cosine(x: float) -> str:
    """Enough digits to tell it from 1."""
    for digits in (4, 6):
        text = f"{x:.{digits}f}"
        if float(text) != 1.0 or x == 1.0:
            return text
    return f"{x:.4f}"
