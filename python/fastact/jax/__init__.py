"""The ops in programs of JAX, where `jax.jit`, `jax.grad` and `jax.vmap` support them.

    import fastact.jax as fj

    loss = lambda x, w: fj.layer_norm(fj.mish(x), w).sum()
    jax.jit(jax.grad(loss))(x, w)

Every op is here under its name, for arrays of JAX on the CPU, and on a GPU if the CUDA extension is
built. docs/jax.md says where they differ.
"""

from ..waiting import installed as _installed

with _installed("JAX", "jax"):
    import jax
if not hasattr(jax, "ffi"):
    raise ImportError(
        f"fastact.jax: JAX must be 0.5 or later, for its foreign function interface, got "
        f"{jax.__version__}; use pip install -U jax"
    )

from importlib.util import find_spec as _find_spec

import ml_dtypes as _ml_dtypes  # which JAX itself needs
import numpy as _np

from .. import _cpu, _jax
from ..ops.engine.op import aliases as _aliases
from ..ops.engine.op import ops as _ops
from .bridge import TARGET as _TARGET
from .bridge import Function as _Function
from .bridge import Quantizing as _Quantizing
from .calls import function_of as _function_of
from .composed import FUNCTIONS as _functions
from .device import device_function_of as _device_function_of

#: Numbers of xla::PrimitiveType, by dtypes that NumPy itself lacks; an older ml_dtypes lacks some.
_numbers = {"bfloat16": 16, "float8_e5m2": 19, "float8_e4m3fn": 20, "float8_e8m0fnu": 33}
_more = {
    number: _np.dtype(getattr(_ml_dtypes, name))
    for name, number in _numbers.items()
    if hasattr(_ml_dtypes, name)
}
_cpu.learn_bfloat16(_more[16])
_jax.prepare(_function_of, _device_function_of, _more)
try:
    jax.ffi.register_ffi_target(_TARGET, _jax.handler(), platform="cpu")
    if _find_spec("fastact._cuda"):
        jax.ffi.register_ffi_target(_TARGET, _jax.device_handler(), platform="CUDA")
except Exception as error:
    raise ImportError(
        f"fastact.jax: jaxlib of JAX {jax.__version__} refuses the handler: {error}"
    ) from error

for _name, _op in _ops.items():
    _functions[_name] = (_Quantizing if hasattr(_op, "quantized") else _Function)(_op)
_functions |= {name: _functions[op.name] for name, op in _aliases.items()}

__all__ = sorted(_functions)


def __getattr__(name: str) -> _Function:
    function: _Function | None = _functions.get(name)
    if function is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function


def __dir__() -> list[str]:
    return __all__
