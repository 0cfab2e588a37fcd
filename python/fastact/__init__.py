"""fastact: the memory-bound kernels of neural networks.

Every op is a callable with three doors::

    y        = fa.mish(x)                  # inference
    y, saved = fa.mish.forward(x)          # training
    dx       = fa.mish.backward(dy, *saved)

on NumPy arrays, and on the arrays of any framework with DLPack: what comes back belongs to the
framework of what came in. `fastact.ops` maps each op's name to the op.
"""

from typing import TYPE_CHECKING

from . import _openmp as _openmp  # the first import of _cpu
from . import activations as _activations
from ._checks import CudaUnavailableError as CudaUnavailableError
from ._config import show_config as show_config
from ._op import ops as ops
from ._threads import get_num_threads as get_num_threads
from ._threads import num_threads as num_threads
from ._threads import set_num_threads as set_num_threads
from ._version import __version__ as __version__
from .activations import *  # noqa: F403  one row there is all that an activation needs
from .bias import bias_act as bias_act
from .bias import bias_grad as bias_grad
from .bias import unbroadcast as unbroadcast
from .gates import gru_blend as gru_blend
from .gates import gru_gates as gru_gates
from .gates import gru_reset as gru_reset
from .gates import lstm_gates as lstm_gates
from .norms import add_layer_norm as add_layer_norm
from .norms import add_rms_norm as add_rms_norm
from .norms import batch_norm as batch_norm
from .norms import group_norm as group_norm
from .norms import instance_norm as instance_norm
from .norms import layer_norm as layer_norm
from .norms import norm_apply as norm_apply
from .norms import rms_norm as rms_norm
from .reductions import Moments as Moments
from .reductions import mean_var as mean_var
from .reductions import moments as moments
from .reductions import sum as sum
from .reductions import sum_squares as sum_squares

if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = sorted(
        {
            *("CudaUnavailableError", "Moments", "__version__", "ops", "show_config"),
            *("get_num_threads", "num_threads", "set_num_threads"),
            *_activations.__all__,
            *ops,
        }
    )
