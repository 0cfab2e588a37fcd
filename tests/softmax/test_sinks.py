"""Sinks of softmax: against gpt-oss's published formula and the oracle, on every device."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES, FRAMEWORKS, Framework

import fastact as fa
from fastact.check.expected import expected
from fastact.measure.cases import Case

by_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
by_dtype = pytest.mark.parametrize("dtype", list(DTYPES))

# Of x, its axis, and the sinks' shape. Rows of less than a vector, of several blocks, of more than
# the buffer of a thread or a block of a GPU holds; along any axes.
SHAPES: list[tuple[tuple[int, ...], Any, tuple[int, ...]]] = [
    ((5,), -1, ()),
    ((67, 3), -1, ()),
    ((2, 4, 5, 24), -1, (4, 1)),
    ((2, 3, 7, 130), -1, (2, 3, 7)),
    ((3, 2100), 1, (3,)),
    ((2, 40_001), 1, (1,)),
    ((129, 70), 0, (70,)),
    ((1500, 33), 0, ()),
    ((3, 21, 5, 7), 1, (5, 1)),
    ((4, 5, 6), (0, 2), (5,)),
]


def arrays(
    shape: tuple[int, ...], axis: Any, of_sink: tuple[int, ...], dtype: str, spread: float = 3.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, sinks around the rows' maxima, and dy."""
    rng = np.random.default_rng(3)
    x = (spread * rng.standard_normal(shape)).astype(DTYPES[dtype])
    sink = np.asarray(2 * spread * rng.standard_normal(of_sink)).astype(DTYPES[dtype])
    return x, sink, rng.standard_normal(shape).astype(DTYPES[dtype])


def assert_right(
    framework: Framework, x: np.ndarray, sink: np.ndarray, dy: np.ndarray, **options: Any
) -> dict[str, np.ndarray]:
    """The call, what forward saves and the gradients are within their bounds of the oracle's."""
    op, of = fa.softmax, framework.of
    masks = {"mask": options.pop("mask")} if "mask" in options else {}
    mask = {n: of(array) for n, array in masks.items()}
    y, saved = op.forward(of(x), sink=of(sink), **mask, **options)
    dx, dsink = op.backward(of(dy), *saved, **options)
    found = {"y": y, "share": saved[2], "dx": dx, "dsink": dsink}
    numbers = {n: np.asarray(framework.numpy(array)) for n, array in found.items()}
    assert_same_bits(framework.numpy(op(of(x), sink=of(sink), **mask, **options)), numbers["y"])
    forward = Case(
        op, "forward", x.shape, x.dtype, {"x": x, "sink": sink, **masks, **options},
        not framework.exact,
    )  # fmt: skip
    saved = {"y": numbers["y"], "share": numbers["share"]}
    backward = forward.at("backward", dy=dy, **saved)
    for case in (forward, backward):
        for name, exact in expected(case).items():
            assert exact.error(numbers[name]) <= 1, name
    return numbers


@by_framework
@by_dtype
@pytest.mark.parametrize(("shape", "axis", "of_sink"), SHAPES, ids=str)
def test_values_and_gradients(
    framework: Framework, dtype: str, shape: Any, axis: Any, of_sink: Any
) -> None:
    numbers = assert_right(framework, *arrays(shape, axis, of_sink, dtype), axis=axis)
    assert numbers["dsink"].shape == of_sink


@by_framework
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 0.125, -3.0])
@pytest.mark.parametrize("kind", ["bool", "numbers"])
def test_scale_and_masks(framework: Framework, dtype: str, scale: float, kind: str) -> None:
    for axis, of_sink in ((-1, (3, 1)), (1, (7, 40))):
        x, sink, dy = arrays((2, 3, 7, 40), axis, of_sink, dtype)
        mask = np.tril(np.ones((7, 40), bool), 3)
        mask[2] = False  # y is 0 then, and the share 1
        if kind == "numbers":
            mask = np.where(mask, 0.5, -np.inf).astype(x.dtype)
        assert_right(framework, x, sink, dy, axis=axis, scale=scale, mask=mask)


@by_framework
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 60), (2, 3000), (3, 70_001)], ids=str)
@pytest.mark.parametrize("apart", [30.0, 100.0, 700.0, 3000.0, -60.0, -3000.0])
def test_sinks_far_from_their_rows(
    framework: Framework, dtype: str, shape: Any, apart: float
) -> None:
    """y is as exact where it is subnormal beside a sink far above."""
    for shift in (0.0, 2000.0):
        x, _, dy = arrays(shape, -1, (), dtype)
        x = (x.astype(np.float64) + shift).astype(dtype)
        sink = (x.max(-1).astype(np.float64) + apart * np.linspace(0.5, 1, len(x))).astype(dtype)
        assert_right(framework, x, sink, dy)
        assert_right(framework, np.ascontiguousarray(x.T), sink, dy.T, axis=0)


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


def test_second_derivatives_and_forward_mode() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    sink = torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_()

    def f(x: Any, sink: Any) -> Any:
        return fa.softmax(x, sink=sink, scale=0.7)

    assert torch.autograd.gradcheck(f, (x, sink))
    assert torch.autograd.gradgradcheck(f, (x, sink))
    tangents = torch.randn_like(x), torch.randn_like(sink)
    plain = [t.detach().numpy() for t in (x, sink, *tangents)]
    _, dy = fa.softmax.jvp(plain[0], sink=plain[1], scale=0.7, tangents=tuple(plain[2:]))
    h = 1e-6
    moved = [
        fa.softmax(plain[0] + s * plain[2], sink=plain[1] + s * plain[3], scale=0.7)
        for s in (h, -h)
    ]
    np.testing.assert_allclose(dy, (moved[0] - moved[1]) / (2 * h), atol=1e-8)


def test_compiles() -> None:
    x = torch.randn(2, 3, 4, 8, requires_grad=True)
    sink = torch.randn(3, 1, requires_grad=True)

    def f(x: Any, sink: Any) -> Any:
        return (fa.softmax(x, sink=sink) * 2).square().sum()

    eager = torch.autograd.grad(f(x, sink), (x, sink))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(compiled(x, sink), (x, sink)), eager, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b)


@by_framework
def test_one_gradient_and_accumulate(framework: Framework) -> None:
    x, sink, dy = arrays((2, 3, 4, 8), -1, (3, 1), "float32")
    _, saved = fa.softmax.forward(*map(framework.of, (x,)), sink=framework.of(sink))
    dx, dsink = map(framework.numpy, fa.softmax.backward(framework.of(dy), *saved))
    outs = framework.of(np.ones_like(x)), framework.of(np.ones_like(sink))
    fa.softmax.backward(framework.of(dy), *saved, out=outs, accumulate=True)
    np.testing.assert_allclose(framework.numpy(outs[0]), dx + 1, 1e-6)
    np.testing.assert_allclose(framework.numpy(outs[1]), dsink + 1, 1e-6)
    alone = framework.of(np.zeros_like(sink))
    assert fa.softmax.backward(framework.of(dy), *saved, out=(None, alone))[0] is None
    assert_same_bits(framework.numpy(alone), dsink)
    fa.softmax.backward(framework.of(dy), *saved, out=(None, alone), accumulate=True)
    assert_same_bits(framework.numpy(alone), 2 * dsink)
    only = fa.softmax.backward(framework.of(dy), *saved, out=framework.of(np.zeros_like(x)))
    assert_same_bits(framework.numpy(only[0] if isinstance(only, tuple) else only), dx)


def test_sinks_wider_than_the_data_and_given_outputs() -> None:
    x, sink, dy = arrays((2, 3, 4, 8), -1, (3, 1), "bfloat16")
    wide = sink.astype(np.float32)
    share = np.zeros((2, 3, 4), np.float32)
    y, saved = fa.softmax.forward(x, sink=wide, out=(np.empty_like(x), share))
    assert saved[2] is share
    assert fa.softmax.backward(dy, *saved)[1].dtype == np.float32
    assert_same_bits(y, fa.softmax(x, sink=sink))


def test_any_layout_and_threads_have_the_same_bits() -> None:
    x, sink, dy = arrays((6, 50, 33), 1, (33,), "float32")
    with fa.num_threads(1):
        y, saved = fa.softmax.forward(x, axis=1, sink=sink)
        gradients = fa.softmax.backward(dy, *saved, axis=1)
    turned = np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    again, kept = fa.softmax.forward(turned[:, :, ::-1], axis=1, sink=sink[::-1])
    assert_same_bits(again[:, :, ::-1], y)
    of_turned = fa.softmax.backward(dy[:, :, ::-1], *kept, axis=1)
    assert_same_bits(of_turned[0][:, :, ::-1], gradients[0])
    assert_same_bits(of_turned[1][::-1], gradients[1])


def test_what_is_refused() -> None:
    x, sink = np.ones((2, 3, 4), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"softmax: sink must broadcast to x's rows \(2, 3\)"):
        fa.softmax(x, sink=np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"softmax: sink must have dtype float32, .* or a wider"):
        fa.softmax(x, sink=sink.astype(np.float16))
    with pytest.raises(TypeError, match=r"softmax: sink must be an array, got 1\.0"):
        fa.softmax(x, sink=1.0)
    with pytest.raises(TypeError, match="unknown keyword 'sink'"):
        fa.log_softmax(x, sink=sink)
    with pytest.raises(ValueError, match=r"out\[1\] must be None, for there is no sink"):
        fa.softmax.forward(x, out=(np.empty_like(x), np.empty((2, 3), np.float32)))
    y, saved = fa.softmax.forward(x, sink=sink)
    with pytest.raises(TypeError, match="share must be given with sink"):
        fa.softmax.backward(x, y, sink)
    with pytest.raises(TypeError, match="sink must be given with share"):
        fa.softmax.backward(x, y, None, saved[2])
    with pytest.raises(ValueError, match=r"share must have shape \(2, 3\)"):
        fa.softmax.backward(x, y, sink, saved[2][:1])


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
