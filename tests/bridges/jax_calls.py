"""Calls of JAX's bridge for its tests, which are skipped where no JAX is new enough."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastact.measure import cases
from fastact.ops.engine.op import arrays_of, ops

jax = pytest.importorskip("jax")
pytest.importorskip("fastact.jax", exc_type=ImportError)  # of a JAX that is too old
import fastact.jax as fj  # noqa: E402

jnp = jax.numpy
QUANTIZE = [o for o in ops.values() if hasattr(o, "quantized") and not o.traits.counts_elements]


def with_float64() -> Iterator[None]:
    """JAX has it switched off, where nobody asks for it."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def sample(op: Any, dtype: Any = np.float64, seed: int = 0) -> dict[str, Any]:
    """The arguments of a call by name."""
    x, dy = np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(dtype)
    named: dict[str, Any] = cases.sample(op, x, dy)
    return named


def differentiated(op: Any, named: dict[str, Any]) -> list[str]:
    """The arguments that get a gradient."""
    return [n for n in named if n in op.differentiated or n in op.shares]


def called(op: Any, named: dict[str, Any], names: list[str]) -> Callable[..., Any]:
    """A call in JAX as a function of some of its arguments, that gives its arrays."""

    def call(*values: Any) -> Any:
        bound = op.bound("call", {**named, **dict(zip(names, values, strict=True))})
        more = {"donate": True} if "donate" in named else {}
        return arrays_of(getattr(fj, op.name)(*bound.args, **bound.keywords, **more))

    return call
