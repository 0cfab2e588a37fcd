"""What the benchmarks of the CPU and of a GPU measure: one module a family (see `work.Family`)."""

from fastact.ops.engine.op import ops

from .activations import ACTIVATIONS
from .bias import BIAS
from .divergences import DIVERGENCES
from .dropout import DROPOUT
from .gated import GATED
from .gates import GATES
from .norms import NORMS
from .other import OTHER
from .parametric import PARAMETRIC
from .reductions import REDUCTIONS, STATISTICS
from .rotary import ROTARY
from .softmax import SOFTMAX
from .work import Family

FAMILIES: dict[str, Family] = dict.fromkeys((op.family for op in ops.values()), OTHER) | {
    "activations": ACTIVATIONS,
    "bias": BIAS,
    "divergences": DIVERGENCES,
    "dropout": DROPOUT,
    "parametric": PARAMETRIC,
    "gated": GATED,
    "gates": GATES,
    "norms": NORMS,
    "reductions": REDUCTIONS,
    "rotary": ROTARY,
    "softmax": SOFTMAX,
    "statistics": STATISTICS,
}
