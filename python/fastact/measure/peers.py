"""The other libraries that take part in the benchmarks, and how each is asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.threads import get_num_threads
from ..terminal import require

Axis = tuple[int, ...] | None

Call = Callable[[], Any]

# Who takes part beside them.
OURS = "fastact"
FRESH = "fresh"  # ours without out=: the result is allocated, as peers without out= have to
FIRST = "first"  # ours where nothing of an earlier call is replayed
OURS_OF_TORCH, FIRST_OF_TORCH = "fastact, tensors", "first, tensors"
COPY = "copy"
READ = "read"  # torch.sum over as many bytes of float32, for ops that write next to nothing

NUMPY, TORCH, COMPILED, LIGER = "numpy", "torch", "torch.compile", "liger"
ONNX, JAX, MKL = "onnxruntime", "jax", "mkl"
PEERS = (NUMPY, TORCH, ONNX, JAX, MKL)
ON_REQUEST = (COMPILED,)  # it takes seconds to compile a row, which are not counted
GPU_PEERS = (TORCH, COMPILED, LIGER)
PARTIAL = (MKL,)  # whoever does a part of the work alone: a mark to reach, and no peer

#: Packages that must be installed for a peer, where that is not the package of its name alone.
_PACKAGES = {COMPILED: (TORCH,), ONNX: (ONNX, "onnx")}


class LeftOut(Exception):
    """A peer cannot do this case; the message says why."""


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Return the peers among `peers` that are installed, with the versions of their packages."""
    found = {}
    for peer in peers:
        with suppress(PackageNotFoundError):
            each = [version(package) for package in _PACKAGES.get(peer, (peer,))]
            found[peer] = each[0]
    return found


def open_torch(threads: int) -> Any:
    """torch, with its number of threads."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    return torch


def compiled_by_torch(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function by torch.compile, for these very shapes."""
    # Else a way back may use up what it was given, and could be run only once.
    config: Any = importlib.import_module("torch._functorch.config")
    config.donated_buffer = False
    torch._dynamo.reset()  # or it gives up on a function after some shapes, and runs it eagerly
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return compiled


def as_tensor(torch: Any, array: NDArray[Any]) -> Any:
    """See the memory as a tensor."""
    if array.dtype.name == "bfloat16":  # known to torch under another name only
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a floating dtype by its name, bfloat16 included where ml_dtypes is installed."""
    scalar: Any = name
    if name == "bfloat16":
        scalar = require("ml_dtypes", "bfloat16", "ml_dtypes").bfloat16
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def flat(arrays: Iterable[Any]) -> list[Any]:
    """Arrays, of which some come in tuples."""
    return [one for a in arrays for one in (a if isinstance(a, tuple) else (a,))]


def function_named(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return an activation of torch.nn.functional or jax.nn."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise LeftOut(f"it has no {name}")
    return function


def open_jax(threads: int) -> Any:
    """jax, with float64, which it would take for float32 in silence."""
    if threads != get_num_threads():
        raise LeftOut("it runs on threads of its own number")
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


# --- reductions: numpy, torch and jax call the functions alike; m is one of them ------------------


def _var_mean(x: Any, axis: Axis, m: Any) -> Any:
    if hasattr(m, "var_mean"):  # torch has a function of its own for both
        return m.var_mean(x, axis, correction=0)[::-1]
    return m.mean(x, axis=axis), m.var(x, axis=axis)


def _moments(x: Any, axis: Axis, m: Any) -> Any:
    mean, var = _var_mean(x, axis, m)
    return mean, var * (prod(x.shape) / max(prod(mean.shape), 1))


def _average(x: Any, axis: Axis, m: Any, weights: Any = None) -> Any:
    if weights is None:
        return m.mean(x, axis=axis)
    if hasattr(m, "average"):
        return m.average(x, axis, weights)
    return m.sum(x * weights, axis=axis) / m.sum(weights, axis=axis)


#: A reduction of x over `axis`, by the name of the op; weights come last.
SUMS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axis, m: m.sum(x, axis=axis),
    "sum_squares": lambda x, axis, m: m.sum(m.square(x), axis=axis),
    "mean_var": _var_mean,
    "moments": _moments,
    "mean": lambda x, axis, m: m.mean(x, axis=axis),
    "average": _average,
    "var": lambda x, axis, m: m.var(x, axis, correction=0),
    "std": lambda x, axis, m: m.std(x, axis, correction=0),
    "nansum": lambda x, axis, m: m.nansum(x, axis=axis),
    "nanmean": lambda x, axis, m: m.nanmean(x, axis=axis),
    "nanvar": lambda x, axis, m: m.nanvar(x, axis=axis),
    "nanstd": lambda x, axis, m: m.nanstd(x, axis=axis),
}
