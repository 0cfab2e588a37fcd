"""fastact: the memory-bound kernels of neural networks.

Every op is a callable with three entry points::

    y        = fa.mish(x)                  # inference
    y, saved = fa.mish.forward(x)          # training
    dx       = fa.mish.backward(dy, *saved)

on NumPy arrays, and on the arrays of any framework with DLPack: what comes back belongs to the
framework of what came in. `fastact.ops` maps each op's name to the op.
"""

from typing import TYPE_CHECKING

from .runtime import openmp as openmp  # the first import of _cpu

# isort: split

from ._version import __version__ as __version__
from .interop.validate import CudaUnavailableError as CudaUnavailableError
from .ops import activations as _activations
from .ops.activations import *  # noqa: F403  one row there is all that an activation needs
from .ops.batch_norm import batch_norm as batch_norm
from .ops.batch_norm import norm_apply as norm_apply
from .ops.bias import bias_act as bias_act
from .ops.bias import bias_grad as bias_grad
from .ops.bias import unbroadcast as unbroadcast
from .ops.gates import gru_blend as gru_blend
from .ops.gates import gru_gates as gru_gates
from .ops.gates import gru_reset as gru_reset
from .ops.gates import lstm_gates as lstm_gates
from .ops.mean_var import mean_var as mean_var
from .ops.mean_var import moments as moments
from .ops.moments import Moments as Moments
from .ops.norms import add_layer_norm as add_layer_norm
from .ops.norms import add_rms_norm as add_rms_norm
from .ops.norms import group_norm as group_norm
from .ops.norms import instance_norm as instance_norm
from .ops.norms import layer_norm as layer_norm
from .ops.norms import rms_norm as rms_norm
from .ops.op import ops as ops
from .ops.reductions import sum as sum
from .ops.reductions import sum_squares as sum_squares
from .runtime.config import show_config as show_config
from .runtime.threads import get_num_threads as get_num_threads
from .runtime.threads import num_threads as num_threads
from .runtime.threads import set_num_threads as set_num_threads

if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = sorted(
        {
            *("CudaUnavailableError", "Moments", "__version__", "ops", "show_config"),
            *("get_num_threads", "num_threads", "set_num_threads"),
            *_activations.__all__,
            *ops,
        }
    )
