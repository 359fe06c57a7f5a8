"""What NumPy's functions make of a tensor's values, past torch: a constant, where a loss has it for a term. See
gradfix.run.child.computed.
"""

from __future__ import annotations

from gradfix.read import constants
from gradfix.read.arrays import COMPUTED
from gradfix.read.frames import Machine
from gradfix.read.values import Taken, Tensor, Value
from gradfix.run.child.words import ELEMENTWISE, REDUCING, SMOOTH, SPREADING
from gradfix.tape import Cut


def array(m: Machine, made: Tensor, tensor: Tensor) -> Tensor:
    """`made` is ``tensor.numpy()``: whatever is made of it is a constant."""
    constants.constant(m, made, tensor)
    if tensor.shape != () and not made.cut and tensor.left:
        cuts = [e for e in m.trace.events if isinstance(e, Cut) and e.time in tensor.left]
        made.cut = frozenset(c.node if c.node is not None else ~c.ref.storage for c in cuts)
    if tensor.shape != ():
        m.computed |= made.cut
        made.left = tensor.left
    return made


def astype(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``array.astype(float)``, a copy."""
    if tensor.alias != "numpy" and tensor.origin != COMPUTED:
        return m.unknown("astype()")
    made = Tensor(m.trace.storage(), False, None, tensor.shape, tensor.dtype, origin=COMPUTED, cut=tensor.cut)
    made.left = tensor.left
    return made


def call(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calling ``numpy.…`` with what was taken out of a tensor: what that makes; None where nothing is known of it."""
    terms = [a for a in args if isinstance(a, Tensor | Taken) and a.cut]
    name = path.rpartition(".")[2]
    smooth = path == f"numpy.{name}" and name in SMOOTH
    if not terms or not (smooth or path in ("numpy.linalg.norm", "math.sqrt", "math.exp", "math.log")):
        return None
    cut = frozenset[int]().union(*(t.cut for t in terms))
    m.computed |= cut
    first = terms[0]
    if isinstance(first, Taken):
        return Taken(name, "", cut, first.tensor)
    whole = len(args) == 1 and not kwargs and name in (*REDUCING, *SPREADING, "norm")
    shape = () if whole else first.shape if name in ELEMENTWISE else None
    m.constants = True
    made = Tensor(m.trace.storage(), False, None, shape, first.dtype, origin=COMPUTED, cut=cut)
    made.left = frozenset[int]().union(*(t.left for t in terms if isinstance(t, Tensor)))
    return made


def meant(m: Machine, values: list[Value]) -> None:
    """These go where nobody knows what becomes of them: the array is meant for what it is."""
    for value in values:
        if isinstance(value, Tensor) and value.alias == "numpy" and value.shape != ():
            constants.number(m, value.cut)
