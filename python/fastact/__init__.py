"""fastact: the memory-bound kernels of neural networks.

Every op is a callable with three doors::

    y        = fa.mish(x)                  # inference
    y, saved = fa.mish.forward(x)          # training
    dx       = fa.mish.backward(dy, *saved)

on NumPy arrays, and on the arrays of any framework with DLPack: what comes back belongs to the
framework of what came in. `fastact.ops` maps each op's name to the op.
"""

from ._checks import CudaUnavailableError
from ._config import show_config
from ._op import ops
from ._threads import get_num_threads, num_threads, set_num_threads
from ._version import __version__
from .activations import (
    celu,
    elu,
    gelu,
    hardmish,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    lisht,
    logcosh,
    logsigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softshrink,
    softsign,
    swish,
    tanh,
    tanhshrink,
)
from .bias import bias_act, bias_grad, unbroadcast
from .reductions import sum, sum_squares

__all__ = [
    "CudaUnavailableError",
    "__version__",
    "bias_act",
    "bias_grad",
    "celu",
    "elu",
    "gelu",
    "get_num_threads",
    "hardmish",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "lisht",
    "logcosh",
    "logsigmoid",
    "mish",
    "num_threads",
    "ops",
    "relu",
    "relu6",
    "selu",
    "set_num_threads",
    "show_config",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "sum",
    "sum_squares",
    "swish",
    "tanh",
    "tanhshrink",
    "unbroadcast",
]
