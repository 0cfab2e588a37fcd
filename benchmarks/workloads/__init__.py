"""The cases that the benchmarks of the CPU and of a GPU measure, by family (see `work.Family`)."""

from fastact.ops.engine.op import ops

from .activations import ACTIVATIONS
from .bias import BIAS
from .gated import GATED
from .gates import GATES
from .norms import NORMS
from .other import DIVERGENCES, DROPOUT, OTHER, PARAMETRIC, ROTARY
from .reductions import REDUCTIONS
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
    "statistics": REDUCTIONS,  # of the arrays that sums have
}
