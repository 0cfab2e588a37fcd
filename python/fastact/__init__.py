"""fastact: the memory-bound kernels of neural networks and of statistics.

Every op is a callable with three entry points::

    y        = fa.mish(x)                  # inference
    y, saved = fa.mish.forward(x)          # training
    dx       = fa.mish.backward(dy, *saved)

on NumPy arrays, and on the arrays of any framework with DLPack: what comes back belongs to the
framework of what came in. `fastact.ops` maps each op's name to the op.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from .runtime import openmp as openmp  # the first import of _cpu

# isort: split

from . import frames as frames  # which serves columns of tables from now on
from . import masked as masked  # which serves masked arrays from now on
from . import waiting as waiting  # which imports bridges when objects of theirs arrive
from ._version import __version__ as __version__
from .interop.validate import CudaUnavailableError as CudaUnavailableError
from .ops.engine.op import aliases as _aliases
from .ops.engine.op import ops as ops
from .ops.moments import Moments as Moments
from .ops.quantize import dequantize as dequantize
from .ops.quantize import quantize as quantize
from .runtime.config import show_config as show_config
from .runtime.threads import get_num_threads as get_num_threads
from .runtime.threads import num_threads as num_threads
from .runtime.threads import set_num_threads as set_num_threads

if TYPE_CHECKING:  # whoever checks types reads the functions that declare the ops
    from .ops.activations import *
    from .ops.bias import *
    from .ops.divergences import *
    from .ops.dropout import *
    from .ops.gated import *
    from .ops.gates import *
    from .ops.norms import *
    from .ops.norms_channels import *
    from .ops.parametric import *
    from .ops.reductions import *
    from .ops.rotary import *
    from .ops.softmax import *
    from .ops.statistics import *
else:
    for _family in (
        *("activations", "bias", "divergences", "dropout", "gated", "gates", "norms"),
        *("norms_channels", "parametric", "reductions", "rotary", "softmax", "statistics"),
    ):
        _import_module(f".ops.{_family}", __name__)
    globals().update({**ops, **_aliases})
    __all__ = sorted(
        {
            *("CudaUnavailableError", "Moments", "__version__", "dequantize", "ops", "quantize"),
            *("show_config", "get_num_threads", "num_threads", "set_num_threads", *ops, *_aliases),
        }
    )

    def __getattr__(name: str) -> object:
        """A name that is not there: the message says which one is near."""
        near = []
        if not name.startswith("_"):
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), __all__, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        # Without `obj`, by which a traceback would look for what is near once more.
        raise AttributeError(f"module 'fastact' has no attribute {name!r}{hint}", name=name)
