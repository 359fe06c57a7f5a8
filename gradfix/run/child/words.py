"""Words that the run and the reading of a text look for alike, and the cures.

With `phases`, what `gradfix.read` and codemods import of this folder: standard library only, and no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# what a program without a step may be there for
_OTHERWISE = re.compile(
    r"\b(?:perf_counter|process_time|monotonic|timeit|cuda\.Event|tracemalloc|getrusage|psutil|profiler?)\b"
    r"|\b(?:max_)?memory_(?:allocated|reserved|stats|summary)\b"
    r"|\.grad\b(?!\s*\()|\bregister_(?!\w*(?:forward|state_dict|step))\w*hook\b"  # the gradients themselves
    r"|[=(,\[+]\s*(?:\w+\.)*clip_grad_norm_?\("  # for the norm that it gives
)
_CLOCK = re.compile(r"\b(?:time|time_ns|now)\(\)")
# a training says how its loss goes, be it with the time that it took
_SHOWN = re.compile(
    r"\b(?:print|info|debug|write|set_postfix\w*|set_description\w*|add_scalars?|log\w*)\s*\([^\n]*loss"
    r"|loss\w*\.append\(|\w\s*\+=\s*(?:float\()?\w*loss",
    re.IGNORECASE,
)


def asked_otherwise(texts: Iterable[str]) -> bool:
    """Whether a program of these texts takes times, looks how much memory was needed, or asks for gradients: of one
    without a step that may be all that is asked for."""
    several = list(texts)
    return any(map(_OTHERWISE.search, several)) or (
        any(map(_CLOCK.search, several)) and not any(map(_SHOWN.search, several))
    )


# NumPy's functions that have a derivative: of a whole array, of each of its values, of two arrays, of where they stand
REDUCING = frozenset((
    "mean", "sum", "average", "max", "min", "amax", "amin", "prod", "median", "nansum", "nanmean",
))  # fmt: skip
SPREADING = frozenset(("var", "std"))
ELEMENTWISE = frozenset((
    "abs", "absolute", "fabs", "square", "sqrt", "exp", "log", "log1p", "expm1", "log2", "log10", "tanh", "sin", "cos",
))  # fmt: skip
OF_TWO = frozenset((
    "maximum", "minimum", "clip", "power", "multiply", "add", "subtract", "divide", "dot", "inner", "matmul",
))  # fmt: skip
REARRANGING = frozenset((
    "squeeze", "ravel", "reshape", "array", "asarray", "copy", "diff", "outer", "transpose",
))  # fmt: skip
SMOOTH = REDUCING | SPREADING | ELEMENTWISE | OF_TWO | REARRANGING
# of those, torch's name where it is another
IN_TORCH = {"absolute": "abs", "fabs": "abs", "power": "pow", "divide": "true_divide", "average": "mean"}
