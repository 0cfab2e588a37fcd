"""Arrays without elements: every result that has some all the same is written, by every op.

They are the formulas' values for no elements, as NumPy has them: sums and gradients of
parameters 0 (with `accumulate`: what was there), means NaN, running statistics as they are.
"""

from collections.abc import Callable
from typing import Any

import normed
import numpy as np
import pytest
from devices import FRAMEWORKS, KERNELS, Framework
from normed import OF_ROWS

import fastact as fa
from fastact.interop import frameworks
from fastact.measure.norm_rows import rows_of, traits
from fastact.ops.engine.op import arrays_of

# What stands in memory that nobody has written, on the CPU; reading such memory of the emulated
# device is a fault of its own.
POISON = 77.0
# Of a gradient that is added to.
BEFORE = 3.0

MATRICES = [(0, 3), (3, 0), (0, 0)]
IMAGES = [(0, 4, 5), (2, 0, 5), (2, 4, 0), (0, 0, 0)]
# numpy, and a device if there is one: what torch's arrays pass through is the same.
HERE = [FRAMEWORKS[0], *KERNELS]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New arrays of NumPy's hold POISON until somebody writes them."""
    kind = type(frameworks.NUMPY)
    output, scratch = kind.output, kind.scratch

    def poisoned_output(self: Any, *args: Any) -> Any:
        view, made = output(self, *args)
        made.fill(POISON)
        return view, made

    def poisoned_scratch(self: Any, *args: Any) -> Any:
        view, memory = scratch(self, *args)
        memory.fill(0x7B)
        return view, memory

    monkeypatch.setattr(kind, "output", poisoned_output)
    monkeypatch.setattr(kind, "scratch", poisoned_scratch)


@pytest.fixture(params=HERE, ids=lambda f: f.name)
def here(request: pytest.FixtureRequest) -> Framework:
    framework: Framework = request.param
    return framework


def zeros(here: Framework, dtype: Any, *shape: int) -> Any:
    return here.of(np.zeros(shape, dtype))


def holds(here: Framework, array: Any, expected: Any) -> None:
    """One value all over, or an array's."""
    if array is None:
        return
    found = here.numpy(array).astype(float)
    np.testing.assert_array_equal(found, np.broadcast_to(np.asarray(expected, float), found.shape))


def gradients(here: Framework, backward: Callable[..., Any], models: list[Any]) -> None:
    """New ones are sums of nothing; those given are overwritten with them, or added to."""

    def all_hold(made: Any, value: float) -> None:
        for gradient in made if isinstance(made, tuple) else (made,):
            holds(here, gradient, value)

    all_hold(backward(), 0)
    for accumulate, value in ((False, 0.0), (True, BEFORE)):
        out = tuple(
            None
            if model is None
            else here.of(np.full(here.numpy(model).shape, BEFORE, here.numpy(model).dtype))
            for model in models
        )
        made = backward(out=out if len(out) > 1 else out[0], accumulate=accumulate)
        all_hold(made, value)
        for given in out:
            holds(here, given, value)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(here: Framework, dtype: Any, shape: tuple[int, ...], training: bool) -> None:
    channels = shape[1]
    x = zeros(here, dtype, *shape)
    running_mean = np.linspace(-2, 3, channels).astype(dtype)
    running_var = np.linspace(0.5, 4, channels).astype(dtype)
    weight = here.of(np.ones(channels, dtype))
    running = [here.of(running_mean), here.of(running_var)]
    y, saved = fa.batch_norm.forward(x, *running, weight, weight, training, eps=0.25)
    assert here.numpy(y).shape == shape
    wide = np.float64 if dtype == np.float64 else np.float32
    assert here.numpy(saved[1]).dtype == here.numpy(saved[2]).dtype == wide
    mean, rstd = running_mean, (1 / np.sqrt(running_var.astype(float) + 0.25)).astype(wide)
    holds(here, saved[1], np.nan if training else mean.reshape(1, channels))
    holds(here, saved[2], np.nan if training else rstd.reshape(1, channels))
    for array, before in zip(running, (running_mean, running_var), strict=True):
        holds(here, array, before.astype(float))
    gradients(
        here,
        lambda **named: fa.batch_norm.backward(x, *saved, training=training, **named),
        [x, weight, weight],
    )
    sums = fa.batch_norm.backward_reduce(x, *saved[:5])
    for total in sums:
        holds(here, total, 0)
    apart = fa.batch_norm.backward_apply(x, *saved[:4], *sums, 5.0)
    assert here.numpy(apart).shape == shape


def test_statistics_of_an_empty_batch_by_any_strides(here: Framework) -> None:
    """Running statistics reversed, and more channels than the native code takes at a time."""
    channels = 3001
    mean, var = np.linspace(-2, 3, 2 * channels), np.linspace(1, 9, 2 * channels)
    flipped = [mean[::-2], var[::-2]]
    x = zeros(here, np.float64, 0, channels, 2)
    _, saved = fa.batch_norm.forward(x, *map(here.of, flipped), eps=0)
    holds(here, saved[1], flipped[0].reshape(1, channels, 1))
    holds(here, saved[2], 1 / np.sqrt(flipped[1].reshape(1, channels, 1)))


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_norm_apply(here: Framework, dtype: Any, shape: tuple[int, ...]) -> None:
    x = zeros(here, dtype, *shape)
    one = here.of(np.ones(shape[1], dtype))
    y, saved = fa.norm_apply.forward(x, one, one, one, one, axis=1)
    assert here.numpy(y).shape == shape
    gradients(
        here,
        lambda **named: fa.norm_apply.backward(x, *saved, axis=1, **named),
        [x, one, one],
    )


AXES: list[dict[str, Any]] = [{}, {"axis": (0, 2)}, {"axis": 0}]
NORMS = [(op, axes) for op in OF_ROWS for axes in AXES]
NORMS += [(op, at) for op in normed.NORMS if op not in OF_ROWS for at in ({}, {"channel_axis": -1})]


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize(("op", "options"), NORMS, ids=lambda v: getattr(v, "name", str(v)))
def test_norms(
    here: Framework, dtype: Any, op: Any, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """Statistics of rows without elements are NaN, as means of none are."""
    kind = traits(op)
    positional = (2,) if kind.groups else ()
    if kind.groups:  # two groups, of any number of channels
        axis = options.get("channel_axis", 1) % 3
        shape = tuple(2 * n if i == axis else n for i, n in enumerate(shape))
    x = zeros(here, dtype, *shape)
    rows = rows_of(op, shape, {**options, "num_groups": 2})
    weight = here.of(np.ones(rows.parameter, dtype))
    weights = [weight for _ in kind.weights]
    inputs = [x, x] if kind.second else [x]
    options = {**options, **normed.told(op)}
    y, saved = op.forward(*inputs, *positional, *weights, **options)
    for result in y if isinstance(y, tuple) else (y,):
        assert here.numpy(result).shape == shape
    data = [x] * (1 + kind.gated)  # which are saved
    for statistic in saved[len(data) : len(saved) - len(weights)]:
        holds(here, statistic, np.nan)
    gradients(
        here,
        lambda **named: op.backward(x, *saved, **options, **named),
        [*[x] * (len(op.gradients) - len(weights)), *weights],
    )


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, None, (0, 1)], ids=str)
def test_reductions(here: Framework, dtype: Any, shape: tuple[int, ...], axis: Any) -> None:
    x = zeros(here, dtype, *shape)
    nothing = np.zeros(shape)

    def reduced(of: Callable[..., Any]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(of(nothing, axis=axis))

    for op in (fa.sum, fa.sum_squares):
        total = op(x, axis)
        assert here.numpy(total).shape == reduced(np.sum).shape
        holds(here, total, 0)
        out = here.of(np.full(reduced(np.sum).shape, POISON, dtype))
        op(x, axis, out=out)
        holds(here, out, 0)
        y, saved = op.forward(x, axis)
        assert here.numpy(op.backward(y, *saved, axis)).shape == shape
    for op, second in ((fa.moments, 0.0), (fa.mean_var, np.nan)):
        for statistic, value in zip(arrays_of(op(x, axis)), (np.nan, second), strict=True):
            assert here.numpy(statistic).shape == reduced(np.sum).shape
            holds(here, statistic, value)
        _, saved = op.forward(x, axis)
        assert here.numpy(op.backward((1.0, 1.0), *saved, axis)).shape == shape


@pytest.mark.parametrize("correction", [0, 1, -1, -2, 2.5])
def test_variance_of_nothing_and_a_correction(here: Framework, correction: float) -> None:
    """A sum of no squares over what is left of the count, as np.var has it."""
    _, var = fa.mean_var(zeros(here, np.float64, 0, 3), 0, correction=correction)
    holds(here, var, 0.0 if correction < 0 else np.nan)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_value_and_grad(here: Framework, dtype: Any, shape: tuple[int, ...]) -> None:
    x = zeros(here, dtype, *shape)
    value, grad = fa.sum_squares.value_and_grad(x)
    holds(here, value, 0)
    assert here.numpy(grad).shape == shape
    out = here.of(np.full((), POISON, dtype)), zeros(here, dtype, *shape)
    fa.sum_squares.value_and_grad(x, out=out)
    holds(here, out[0], 0)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_bias(here: Framework, dtype: Any, shape: tuple[int, ...], accumulate: bool) -> None:
    x, expected = zeros(here, dtype, *shape), BEFORE if accumulate else 0.0
    for axis in (0, 1):
        bias = here.of(np.ones(shape[axis], dtype))
        y, saved = fa.bias_act.forward(x, bias, "mish", axis=axis)
        assert here.numpy(y).shape == shape
        gradients(
            here,
            lambda saved=saved, axis=axis, **named: fa.bias_act.backward(
                x, *saved, "mish", axis=axis, **named
            ),
            [x, bias],
        )
        out = here.of(np.full(shape[axis], BEFORE, dtype))
        fa.bias_grad(x, axis=axis, out=out, accumulate=accumulate)
        holds(here, out, expected)
        holds(here, fa.bias_grad(x, axis=axis), 0)
    out = here.of(np.full((1, shape[1]), BEFORE, dtype))
    if shape[0] == 0:
        fa.unbroadcast(x, (1, shape[1]), out=out, accumulate=accumulate)
        holds(here, out, expected)
        holds(here, fa.unbroadcast(x, (1, shape[1])), 0)
