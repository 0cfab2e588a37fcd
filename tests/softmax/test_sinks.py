"""Sinks and soft caps of softmax: as gpt-oss and Gemma 2 have them, and the oracle, everywhere."""

from typing import Any

import judged
import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES, FRAMEWORKS, KERNELS, Framework

import fastact as fa

by_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
by_dtype = pytest.mark.parametrize("dtype", list(DTYPES))

# Of x, its axis, and the sinks' shape. Rows of less than a vector, of several blocks, of more than
# the buffer of a thread or a block of a GPU holds; along any axes.
SHAPES: list[tuple[tuple[int, ...], Any, tuple[int, ...]]] = [
    ((5,), -1, ()), ((67, 3), -1, ()), ((2, 4, 5, 24), -1, (4, 1)), ((2, 3, 7, 130), -1, (2, 3, 7)),
    ((3, 2100), 1, (3,)), ((2, 40_001), 1, (1,)), ((129, 70), 0, (70,)), ((1500, 33), 0, ()),
    ((3, 21, 5, 7), 1, (5, 1)), ((4, 5, 6), (0, 2), (5,)),
]  # fmt: skip


def arrays(
    shape: tuple[int, ...], of_sink: tuple[int, ...], dtype: str, spread: float = 3.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, sinks around the rows' maxima, and dy."""
    rng = np.random.default_rng(3)
    x = (spread * rng.standard_normal(shape)).astype(DTYPES[dtype])
    sink = np.asarray(2 * spread * rng.standard_normal(of_sink)).astype(DTYPES[dtype])
    return x, sink, rng.standard_normal(shape).astype(DTYPES[dtype])


def assert_right(
    framework: Framework, x: np.ndarray, dy: np.ndarray, **options: Any
) -> dict[str, np.ndarray]:
    """The call, what forward saves and the gradients are within their bounds of the oracle's."""
    found = judged.assert_right(fa.softmax, {"x": x, **options}, [dy], framework)
    given = {n: judged.each(v, framework.of) for n, v in options.items()}
    y = fa.softmax(framework.of(x), **given)
    assert_same_bits(framework.numpy(y), found["y"])
    return found


@by_framework
@by_dtype
@pytest.mark.parametrize(("shape", "axis", "of_sink"), SHAPES, ids=str)
def test_values_and_gradients(
    framework: Framework, dtype: str, shape: Any, axis: Any, of_sink: Any
) -> None:
    x, sink, dy = arrays(shape, of_sink, dtype)
    numbers = assert_right(framework, x, dy, sink=sink, axis=axis)
    assert numbers["dsink"].shape == of_sink
    assert_right(framework, x, dy, axis=axis, softcap=2.5)


@by_framework
@by_dtype
@pytest.mark.parametrize("softcap", [None, 0.5, 50.0])
@pytest.mark.parametrize("scale", [1.0, 0.0625, -3.0])
@pytest.mark.parametrize("kind", ["none", "bool", "numbers"])
def test_scale_masks_caps_and_sinks(
    framework: Framework, dtype: str, softcap: Any, scale: float, kind: str
) -> None:
    spreads = (3.0, 3.0) if softcap is None else (30.0, 0.5)  # of x, and of sinks
    for axis, of_sink in ((-1, (3, 1)), (1, (7, 40))):
        (x, _, dy), (_, sink, _) = (arrays((2, 3, 7, 40), of_sink, dtype, s) for s in spreads)
        mask = np.tril(np.ones((7, 40), bool), 3)
        mask[2] = False  # y is 0 then, and a sink's share 1
        numbers = np.where(mask, 0.5, -np.inf).astype(x.dtype)
        named: dict[str, Any] = {"axis": axis, "scale": scale, "softcap": softcap}
        named |= {"none": {}, "bool": {"mask": mask}, "numbers": {"mask": numbers}}[kind]
        assert_right(framework, x, dy, **named)
        assert_right(framework, x, dy, **named, sink=sink)


@by_framework
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 60), (2, 3000), (3, 70_001)], ids=str)
@pytest.mark.parametrize("apart", [30.0, 100.0, 700.0, 3000.0, -60.0, -3000.0])
def test_sinks_far_from_their_rows(
    framework: Framework, dtype: str, shape: Any, apart: float
) -> None:
    """y is as exact where it is subnormal beside a sink far above."""
    for shift in (0.0, 2000.0):
        x, _, dy = arrays(shape, (), dtype)
        x = (x.astype(np.float64) + shift).astype(dtype)
        sink = (x.max(-1).astype(np.float64) + apart * np.linspace(0.5, 1, len(x))).astype(dtype)
        assert_right(framework, x, dy, sink=sink)
        assert_right(framework, np.ascontiguousarray(x.T), dy.T, sink=sink, axis=0)


@pytest.mark.parametrize("framework", KERNELS, ids=lambda framework: framework.name)
def test_a_sink_above_a_row_of_many_blocks(framework: Framework) -> None:
    """Its share is far from 1 and from 0: the largest terms and the others both count beside it."""
    x, _, dy = arrays((2, 40_001), (), "float64")
    assert_right(framework, x, dy, sink=x.max(-1) + 0.5)


@by_framework
def test_rows_without_anything_and_not_finite(framework: Framework) -> None:
    x = np.float32([[-np.inf, -np.inf], [1, 2], [1, np.nan], [1, np.inf], [-np.inf, -np.inf]])
    sink = np.float32([0.5, -np.inf, 0, 0, -np.inf])
    y, saved = fa.softmax.forward(framework.of(x), sink=framework.of(sink))
    share = framework.numpy(saved[2])
    np.testing.assert_array_equal(framework.numpy(y)[0], [0, 0])
    np.testing.assert_array_equal(share[:2], [1, 0])
    assert np.isnan(framework.numpy(y)[2:]).all()
    assert np.isnan(share[2:]).all()
    assert_same_bits(framework.numpy(y)[1], framework.run(fa.softmax, x[1]))
    for bad in (np.nan, np.inf):
        y = fa.softmax(framework.of(x[1:2]), sink=framework.of(np.float32([bad])))
        assert np.isnan(framework.numpy(y)).all()


@pytest.mark.parametrize("scale", [1e30, -1e30])
def test_z_beyond_the_range(scale: float) -> None:
    """Distances within a row count, where scale x itself overflows."""
    x = np.float32([[3e20, 3e20, 1e20], [-3e20, 1, 2], [1e-30, 2e-30, -1e-30]])
    sink = np.float32([0.5, 0.25, 1])
    y, (_, _, share, _) = fa.softmax.forward(x, sink=sink, scale=scale)
    z = np.concatenate([x.astype(np.longdouble) * scale, sink[:, None]], 1)
    z = np.exp(z - z.max(1, keepdims=True))
    exact = z / z.sum(1, keepdims=True)
    np.testing.assert_allclose(y, exact[:, :-1], 1e-5)
    np.testing.assert_allclose(share, exact[:, -1], 1e-5)


def gpt_oss(weights: torch.Tensor, sinks: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The scores of `eager_attention_forward` of transformers' models/gpt_oss."""
    weights = weights + mask
    sinks = sinks.reshape(1, -1, 1, 1).expand(weights.shape[0], -1, weights.shape[-2], -1)
    combined = torch.cat([weights, sinks], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    probabilities = torch.nn.functional.softmax(combined, dim=-1, dtype=combined.dtype)
    return probabilities[..., :-1]


def test_as_gpt_oss() -> None:
    generator = torch.Generator().manual_seed(1)
    made = {"dtype": torch.float64, "generator": generator}
    x, dy = torch.randn(2, 4, 9, 9, **made), torch.randn(2, 4, 9, 9, **made)
    sinks, scale = torch.randn(4, **made), 0.25
    mask = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)
    given = [t.clone().requires_grad_() for t in (x, sinks)]
    theirs = gpt_oss(scale * given[0], given[1], mask)
    expected = torch.autograd.grad(theirs, given, dy)
    ours = [t.clone().requires_grad_() for t in (x, sinks)]
    y = fa.softmax(ours[0], scale=scale, mask=mask, sink=ours[1][:, None])
    found = torch.autograd.grad(y, ours, dy)
    torch.testing.assert_close(y, theirs, rtol=1e-14, atol=1e-16)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)


def test_sinks_wider_than_the_data_and_given_outputs() -> None:
    x, sink, dy = arrays((2, 3, 4, 8), (3, 1), "bfloat16")
    wide = sink.astype(np.float32)
    share = np.zeros((2, 3, 4), np.float32)
    y, saved = fa.softmax.forward(x, sink=wide, out=(np.empty_like(x), share))
    assert saved[2] is share
    assert fa.softmax.backward(dy, *saved)[1].dtype == np.float32
    assert_same_bits(y, fa.softmax(x, sink=sink))


def test_a_number_in_the_place_of_y() -> None:
    x, share = np.ones((3, 5), np.float32), np.full(3, 0.25, np.float32)
    told: Any = {"sink": np.float32(1), "share": share, "softcap": 4.0, "x": x}
    found = fa.softmax.backward(x, 0.15, **told)
    for got, right in zip(
        found, fa.softmax.backward(x, np.full_like(x, 0.15), **told), strict=True
    ):
        assert_same_bits(got, right)


def test_nothing_in_a_row() -> None:
    _, saved = fa.softmax.forward(np.ones((2, 0), np.float32), sink=np.ones(2, np.float32))
    dx, dsink = fa.softmax.backward(np.ones((2, 0), np.float32), *saved)
    assert dx.shape == (2, 0)
    np.testing.assert_array_equal(dsink, [0, 0])


@by_framework
def test_a_sink_without_a_share_has_no_gradient(framework: Framework) -> None:
    """Whatever comes back to its row: of rows alone and of rows side by side."""
    x, dy = np.float32([[1, 2, 3], [0, 0, 0]]), np.float32([[np.inf, 1, 1], [np.nan, 1, 1]])
    sink = np.full(2, -np.inf, np.float32)
    for axis, order in ((-1, lambda a: a), (0, lambda a: np.ascontiguousarray(a.T))):
        given, back = (framework.of(order(a)) for a in (x, dy))
        _, saved = fa.softmax.forward(given, sink=framework.of(sink), axis=axis)
        dsink = fa.softmax.backward(back, *saved, axis=axis)[1]
        assert (framework.numpy(dsink) == 0).all()


# --- soft caps ------------------------------------------------------------------------------------


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
def test_capped_z_beyond_the_range(scale: float, softcap: float) -> None:
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
