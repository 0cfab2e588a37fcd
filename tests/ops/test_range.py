"""Data far from 1: a result that its dtype can hold is right, whatever its squares are.

The oracle computes float64 in long double and float32 in float64, where no square of them leaves
the range.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices import Framework
from judged import assert_right
from normed import told

import fastact as fa
from fastact.measure.cases import sample
from fastact.measure.norm_rows import traits
from fastact.ops.engine.op import arrays_of

#: Powers of two that data and gradients have: their squares are, and are not, numbers of their
#: dtype, and then they are near its largest and its least.
OF_DATA = {"float64": (512, -512, 1000, -1000), "float32": (64, -64, 120, -120)}

NORMS = [op for op in fa.ops.values() if op.family == "norms" and not traits(op).given]
each_dtype = pytest.mark.parametrize("dtype", OF_DATA)
OPS = [op for op in fa.ops.values() if "shape" not in op.entry_points["call"].defaults]


def cases_of(op: Any, dtype: str) -> Iterator[tuple[dict[str, Any], list[Any], str]]:
    """Arguments of forward and incoming gradients, with what is far from 1 in them."""
    rng = np.random.default_rng(0)
    x, other = (rng.normal(size=(6, 8)).astype(dtype) for _ in range(2))
    named = sample(op, x, other)
    data = [n for n, a in named.items() if np.shape(a) and op.roles.get(n, "data") == "data"]
    result, _ = op.bound("forward", named)()
    dys = [np.asarray(rng.normal(size=np.shape(a)), dtype) for a in arrays_of(result)]
    dys = dys[: len(op.results)]
    for eps in ({}, {"eps": 0.0}) if "eps" in op.entry_points["call"].defaults else ({},):
        for exponent in OF_DATA[dtype]:
            scaled = {n: np.ldexp(named[n], exponent) for n in data}
            yield {**named, **scaled, **eps}, dys, f"data at 2^{exponent}, {eps}"
        for exponent in OF_DATA[dtype]:
            far = [np.asarray(np.ldexp(dy, exponent)) for dy in dys]
            yield {**named, **eps}, far, f"gradients at 2^{exponent}, {eps}"


@each_dtype
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: what is too large is infinite
def test_every_op(backend: Framework, op: Any, dtype: str) -> None:
    for named, dys, what in cases_of(op, dtype):
        assert assert_right(op, named, dys, backend, (6, 8)), what


# Rows and columns of several blocks; of one; of few terms; reduced axes that are apart; reversed
# and strided; one row whose chunks merge, on the CPU and on a device.
LAYOUTS: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "rows": ((4, 5000), 1, np.s_[:]),
    "columns": ((3000, 40), 0, np.s_[:]),
    "middle": ((7, 300, 9), 1, np.s_[:]),
    "short rows": ((60, 3), 1, np.s_[:]),
    "few rows": ((3, 60), 0, np.s_[:]),
    "apart": ((3, 40, 50), (0, 2), np.s_[:]),
    "narrow": ((500, 3), 0, np.s_[:]),
    "strided": ((9, 100), 1, np.s_[:, ::-2]),
    "all": ((70_000,), None, np.s_[:]),
}
STATISTICS = [op for op in fa.ops.values() if getattr(op, "of", None) in ("mean", "var", "std")]


@pytest.mark.filterwarnings("ignore:.*(slice|freedom):RuntimeWarning")  # a mask may hide all
@pytest.mark.parametrize("options", ["plain", "weights", "where"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", STATISTICS, ids=lambda op: op.name)
def test_statistics_of_any_layout(backend: Framework, op: Any, layout: str, options: str) -> None:
    """They scale as the data do, of some outputs as of all."""
    shape, axis, part = LAYOUTS[layout]
    rng = np.random.default_rng(0)
    x = (0.5 + rng.normal(size=shape))[part]
    given = {
        "plain": {},
        "weights": {"weights": rng.random(x.shape)},
        "where": {"where": rng.random(x.shape) < 0.8},
    }[options]
    if given.keys() - op.entry_points["call"].defaults.keys():
        given = {}
    if op.skips:
        x[rng.random(x.shape) < 0.1] = np.nan
    given = {name: backend.of(a) for name, a in given.items()}
    power = 2 if op.of == "var" else 1
    near = np.asarray(backend.numpy(op(backend.of(x), axis, **given)))
    for exponent in (500, -500) if op.of == "var" else OF_DATA["float64"]:
        far = np.ldexp(x, exponent)
        found = np.ldexp(backend.numpy(op(backend.of(far), axis, **given)), -power * exponent)
        # Twice the bound of m2, 2^-44; a mean has one of 2^-46 of the mean magnitude, which is 1.
        np.testing.assert_allclose(found, near, rtol=2**-43, atol=2**-45 * (op.of == "mean"))


@pytest.mark.parametrize("value", [0.0, 3.5, 1e-200, 1e200, np.nan, np.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_of_equal_values(backend: Framework, layout: str, value: float) -> None:
    """Equal values have a deviation of exactly 0, and NaN beside NaN, at any size."""
    shape, axis, part = LAYOUTS[layout]
    x = np.full(shape, value)[part]
    mean, var = map(backend.numpy, fa.mean_var(backend.of(x), axis))
    std = backend.numpy(fa.std(backend.of(x), axis))
    np.testing.assert_array_equal(mean, np.full_like(mean, value))
    expected = np.full_like(mean, 0.0 if np.isfinite(value) else np.nan)
    np.testing.assert_array_equal(var, expected)
    np.testing.assert_array_equal(std, expected)


# Of a row, or pixels of a channel: few; many; as many as several blocks share on a device.
@pytest.mark.parametrize("n", [3, 400, 40_000])
@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_norms_of_any_length(backend: Framework, op: Any, n: int) -> None:
    """Without an eps y is the same of data at any power of two, and rstd goes the other way."""
    kind = traits(op)
    options: dict[str, Any] = {"eps": 0.0, **told(op, p=0)}
    options |= {"num_groups": 2} if kind.groups else {}
    options |= {"training": True, "running_mean": None, "running_var": None} if kind.moves else {}
    first = 0.5 + np.random.default_rng(0).normal(size=(2, 4, n))
    layouts = [(first, options)]
    if kind.channels:
        last = np.ascontiguousarray(np.moveaxis(first, 1, 2))
        layouts.append((last, {**options, kind.channels: 2}))
    for x, given in layouts:
        near = normalised(backend, op, x, given)
        for exponent in OF_DATA["float64"]:
            y, rstd = normalised(backend, op, np.ldexp(x, exponent), given)
            # twice the bounds: of z 2^-46 (1 + |xhat|), of rstd 2^-46
            np.testing.assert_allclose(y, near[0], rtol=2**-44, atol=2**-44)
            np.testing.assert_allclose(np.ldexp(rstd, exponent), near[1], rtol=2**-45)


def normalised(backend: Framework, op: Any, x: np.ndarray, options: Any) -> tuple[Any, Any]:
    """Y and rstd."""
    beside = {"residual": np.zeros_like, "gate": np.ones_like}  # which change nothing
    second = traits(op).second
    more = {second: backend.of(beside[second](x)), "activation": "identity"} if second else {}
    y, saved = op.bound("forward", {"x": backend.of(x), **more, **options})()
    rstd = saved[op.saves.index("rstd")]
    return backend.numpy(y[0] if isinstance(y, tuple) else y), backend.numpy(rstd)


@pytest.mark.parametrize("exponent", [600, -600, 1000, -1000])
@pytest.mark.parametrize("counts", ["a number", "arrays"])
def test_moments_that_merge(isa: str, counts: str, exponent: int) -> None:
    """The deviation of what was merged, sent and pickled, where m2 itself is infinite or 0."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    far = np.ldexp(x, exponent)
    options = {"skipna": True} if counts == "arrays" else {}
    parts = [fa.moments(part, 0, **options) for part in np.split(far, [1, 7, 150])]
    merged = fa.Moments.merge_many(parts)
    whole = fa.moments(far, 0, **options)
    sent = fa.Moments.from_buffer(whole.to_buffer(), (3,))
    assert sent == whole == pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(whole.m2, np.inf if exponent > 0 else [0, 0, 0])
    for found in (merged, whole):
        # the parts and their merges have a bound of 2^-44 each, and a root has half
        std = np.ldexp(found.std(1), -exponent)
        np.testing.assert_allclose(std, x.std(0, ddof=1), rtol=2**-43)
        var = found.var()
        np.testing.assert_array_equal(var, np.inf if exponent > 0 else 0 * x.var(0))
