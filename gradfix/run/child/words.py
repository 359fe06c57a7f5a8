"""Words that the run and the reading of a text look for alike, and the cures.

The one thing of this folder that `gradfix.read` and codemods import: standard library only, and no torch.
"""

from __future__ import annotations

import re

# what a program without a step may be there for
OTHERWISE = re.compile(
    r"\b(?:perf_counter|process_time|monotonic|timeit|cuda\.Event|tracemalloc|getrusage|psutil|profiler?)\b"
    r"|\b(?:max_)?memory_(?:allocated|reserved|stats|summary)\b|\b(?:time|time_ns|now)\(\)"
    r"|\.grad\b(?!\s*\()|\bregister_(?!\w*(?:forward|state_dict|step))\w*hook\b"  # the gradients themselves
    r"|[=(,\[+]\s*(?:\w+\.)*clip_grad_norm_?\("  # for the norm that it gives
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
