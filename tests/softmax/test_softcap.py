"""Soft caps of softmax: against Gemma 2's published formula and the oracle, on every device."""

from typing import Any

import numpy as np
import pytest
import test_sinks
import torch
from conftest import assert_same_bits
from devices import Framework
from test_sinks import SHAPES, assert_right, by_dtype, by_framework

import fastact as fa


def arrays(shape: tuple[int, ...], dtype: str, spread: float = 3.0) -> tuple[Any, Any]:
    """x and dy."""
    x, _, dy = test_sinks.arrays(shape, -1, (), dtype, spread)
    return x, dy


@by_framework
@by_dtype
@pytest.mark.parametrize(("shape", "axis"), [of[:2] for of in SHAPES], ids=str)
def test_values_and_gradients(framework: Framework, dtype: str, shape: Any, axis: Any) -> None:
    assert_right(framework, *arrays(shape, dtype), axis=axis, softcap=2.5)


@by_framework
@by_dtype
@pytest.mark.parametrize("softcap", [0.5, 50.0])
@pytest.mark.parametrize("scale", [1.0, 0.0625, -3.0])
@pytest.mark.parametrize("kind", ["none", "bool", "numbers"])
def test_scale_masks_and_sinks(
    framework: Framework, dtype: str, softcap: float, scale: float, kind: str
) -> None:
    rng = np.random.default_rng(6)
    for axis, of_sink in ((-1, (3, 1)), (1, (7, 40))):
        x, dy = arrays((2, 3, 7, 40), dtype, 30.0)
        mask = np.tril(np.ones((7, 40), bool), 3)
        mask[2] = False  # y is 0 then
        masks = {
            "none": {},
            "bool": {"mask": mask},
            "numbers": {"mask": np.where(mask, 0.5, -np.inf).astype(x.dtype)},
        }[kind]
        assert_right(framework, x, dy, axis=axis, scale=scale, softcap=softcap, **masks)
        sink = rng.standard_normal(of_sink).astype(x.dtype)
        assert_right(framework, x, dy, axis=axis, scale=scale, softcap=softcap, sink=sink, **masks)


@by_framework
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_not_finite(framework: Framework, axis: int) -> None:
    """An infinite x has a finite z, and what a mask leaves out counts for nothing, be it NaN."""
    x = np.float32([[np.inf, 1, np.nan, -np.inf], [3e38, -3e38, np.nan, 0]])
    mask = np.array([True, True, False, True])
    if axis == 0:
        x, mask = np.ascontiguousarray(x.T), mask[:, None]
    dy = np.ones_like(x)
    dy[mask & (x > 2)] = 3
    numbers = assert_right(framework, x, dy, axis=axis, softcap=4.0, mask=mask, scale=2.0)
    assert np.isfinite(numbers["y"]).all()
    assert np.isfinite(numbers["dx"]).all()
    out = np.broadcast_to(~mask, x.shape)
    np.testing.assert_array_equal(numbers["y"][out], 0)
    np.testing.assert_array_equal(numbers["dx"][out], 0)


@pytest.mark.parametrize("scale", [1e20, -1e20])
@pytest.mark.parametrize("softcap", [2.0, 1e39])
def test_z_beyond_the_range(scale: float, softcap: float) -> None:
    """Distances within a row count, where scale x overflows, and where its cap does."""
    x = np.float32([[1e17, 3e17, -1e20], [2e-20, 1e-20, -1e-20], [3e37, 3e37, 0]])
    y = fa.softmax(x, scale=scale, softcap=softcap)
    z = softcap * np.tanh(x.astype(np.longdouble) * scale / softcap)
    z = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(y, z / z.sum(1, keepdims=True), 1e-5)


def gemma2(scores: torch.Tensor, softcap: float, mask: torch.Tensor) -> torch.Tensor:
    """The weights of `eager_attention_forward` of transformers' models/gemma2."""
    scores = scores / softcap
    scores = torch.tanh(scores)
    scores = scores * softcap
    return torch.nn.functional.softmax(scores + mask, dim=-1, dtype=scores.dtype)


def test_as_gemma2() -> None:
    generator = torch.Generator().manual_seed(1)
    made: Any = {"dtype": torch.float64, "generator": generator}
    x, dy = 300 * torch.randn(2, 4, 9, 9, **made), torch.randn(2, 4, 9, 9, **made)
    mask = torch.full((9, 9), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    theirs_of, ours_of = x.clone().requires_grad_(), x.clone().requires_grad_()
    theirs = gemma2(0.25 * theirs_of, 50.0, mask)
    ours = fa.softmax(ours_of, scale=0.25, softcap=50.0, mask=mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    (expected_dx,) = torch.autograd.grad(theirs, theirs_of, dy)
    (dx,) = torch.autograd.grad(ours, ours_of, dy)
    torch.testing.assert_close(dx, expected_dx, rtol=1e-12, atol=1e-15)


def test_no_softcap_saves_no_x() -> None:
    x = np.ones((2, 3), np.float32)
    assert fa.softmax.forward(x)[1][3] is None
    assert fa.softmax.forward(x, softcap=2.0)[1][3] is x
    assert_same_bits(fa.softmax(x * 0.5, softcap=1e30), fa.softmax(x * 0.5))
