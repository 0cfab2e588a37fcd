"""The accuracy of the norms: outputs and gradients in units of their stated bounds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _cpu
from ._check_common import Check, Options, Report
from ._check_reductions import dtypes, mixed
from ._norm_op import NormOp
from ._terminal import Progress

_IDENTITY = "identity"
_ROWS = ((301, 77), (9, 2500))
_IMAGES = ((9, 12, 23, 5), (3, 6, 40, 41))
_GROUPS = 3

Float64s = NDArray[np.float64]


class Bounded(NamedTuple):
    """Exact values, and how far from each a result may be before it is rounded."""

    y: tuple[Any, Any]
    dx: tuple[Any, Any]
    dweight_terms: tuple[Any, Any]
    dbias_terms: tuple[Any, Any]


def bounded(
    name: str,
    dtype: np.dtype[Any],
    arrays: tuple[Float64s, Float64s, Any, Any],
    statistics: tuple[Any, Any],
    axes: tuple[int, ...],
    centred: bool,
) -> Bounded:
    """What an op should give for dy, x, weight and bias in float64, and for these statistics.

    dtype : of the data. The parameters broadcast against x; axes are those of the statistics. An
    activation's slope, and its derivative's, are taken for at most 1.1 and 1.
    """
    oracle = importlib.import_module("fastact._reference")
    (dy, x, w, b), (mean, rstd) = arrays, statistics
    wide = dtype == np.float64
    u = 3 * 2.0**-53 if wide else 2.0**-24  # the oracle is float64 itself: its error counts too
    xhat = (x - mean) * rstd
    # The mean of float64 is off by the spread's roundings too, that of float32 by far less than u.
    of_mean = 2 + abs(mean * rstd) if wide else 2.0**-24 * abs(mean * rstd)
    y = oracle.norm(name, x, mean, rstd, w, b)
    of_y = 1.1 * u * (6 * abs(xhat * w) + abs(xhat * w + b) + of_mean * abs(w))
    plain = name == _IDENTITY
    of_y = of_y if plain else of_y + 6 * u * abs(y)
    dx, dw, db = oracle.norm_gradients(name, dy, x, mean, rstd, w, b, axes=axes, centred=centred)
    # p = dy f'(z) has the derivative's error, and z's by way of its slope.
    of_p = u * (0 if plain else 1) * abs(dy) * (8 + 8 * abs(xhat * w))
    # Roundings of each product, and of sums of 8 terms in the type that is computed in.
    of_g = 16 * u * abs(db * w) + of_p * abs(w)
    average = oracle.average
    of_dx = abs(rstd) * (
        of_g
        + average(of_g + 0 * x, axes)
        + abs(xhat) * (average(of_g * abs(xhat), axes) + 8 * u * average(abs(db * w * xhat), axes))
    )
    return Bounded(
        (y, of_y),
        (dx, of_dx),
        (dw, 16 * u * abs(dw) + of_p * abs(xhat)),
        (db, 16 * u * abs(db) + of_p),
    )


def _units(op: Any, dtype: np.dtype[Any], options: Options) -> Iterator[dict[str, Any]]:
    """Arrays of an op's cases, and how they are cut into units."""
    rng = np.random.default_rng(0)
    images = "channel_axis" in op._own
    for shape in _IMAGES if images else _ROWS:
        count = shape[0] * (8 if options.exhaustive else 1)
        x, dy, residual = (mixed(rng, count, *shape[1:]).astype(dtype) for _ in range(3))
        length = shape[1] if images else shape[-1]
        grouped = op.name == "group_norm"
        split = (count, _GROUPS, -1, *shape[2:]) if grouped else (count, *shape[1:])
        along = (1, _GROUPS, -1, *[1] * (len(shape) - 2)) if grouped else (1, length, 1, 1)
        yield {
            "inputs": (x, residual)[: len(op._inputs)],
            "dy": dy,
            "positional": (_GROUPS,) if grouped else (),
            "weights": [(1 + 0.1 * rng.normal(size=length)).astype(dtype) for _ in op._weights],
            "split": split,
            "along": along if images else (1, length),
            "axes": tuple(range(2, len(split))) if images else (1,),
        }


def _worst(actual: NDArray[Any], exact: Float64s, allowed: Float64s, info: Any) -> float:
    """The largest error in units of what is allowed and of the last rounding."""
    rounding = float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal)
    error = np.abs(actual.astype(np.float64).reshape(exact.shape) - exact)
    return float(np.max(error / (allowed + rounding)))


def _errors(op: Any, name: str, info: Any, given: dict[str, Any]) -> list[float]:
    """Of y, and of each gradient, in units of the bounds."""
    y, saved = op.forward(
        *given["inputs"], *given["positional"], *given["weights"], activation=name
    )
    gradients = op.backward(given["dy"], *saved, activation=name)
    y = y[0] if isinstance(y, tuple) else y
    split, axes = given["split"], given["axes"]
    x, dy = (a.astype(np.float64).reshape(split) for a in (saved[0], given["dy"]))
    w, b = (*(v.astype(np.float64).reshape(given["along"]) for v in given["weights"]), 0.0)[:2]
    centred = op._is_centred
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    stats = [s.astype(np.float64).reshape(kept) for s in saved[1 : 1 + len(op._statistics)]]
    mean: Any = stats[0] if centred else 0.0
    rstd = stats[-1]
    oracle = importlib.import_module("fastact._reference")
    eps = 1e-5 if centred else 1e-6
    true = oracle.statistics(x, axes, eps, centred)
    exact = bounded(name, y.dtype, (dy, x, w, b), true, axes, centred)
    back = bounded(name, y.dtype, (dy, x, w, b), (mean, rstd), axes, centred)
    found = [_worst(y, *exact.y, info), _worst(gradients[0], *back.dx, info)]
    over = tuple(a for a, n in enumerate(given["along"]) if n == 1)
    for gradient, terms in zip(gradients[1:], back[2:], strict=False):
        exact_sum, allowed = ((t + 0 * x).sum(over).reshape(-1) for t in terms)
        found.append(_worst(gradient, exact_sum, allowed, info))
    return found


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    names = (_IDENTITY, "mish")
    with Progress(op.name, len(names) * len(kinds)) as progress:
        for name, (dtype, info) in product(names, kinds):
            cases = list(_units(op, dtype, options))
            alike: dict[tuple[float, ...], list[str]] = {}
            for isa in options.isas:
                _cpu.select_isa(isa)
                errors = [_errors(op, name, info, given) for given in cases]
                worst = tuple(max(column) for column in zip(*errors, strict=True))
                alike.setdefault(worst, []).append(isa)
            for worst, isas in alike.items():
                case = [op.name, name, dtype.name, " ".join(isas)]
                cells = [f"{error:.3g}" for error in worst]
                report.rows.append([*case, *cells, *[""] * (4 - len(cells))])
                if not max(worst) <= 1.0:
                    report.fail(f"{' '.join(case)}: {max(worst):.4g} times the bound")
            progress.advance(1)


_LEGEND = """\
y, dx, dweight, dbias: the worst error in units of the stated bound and of one rounding to the
dtype. The gradients are those for the statistics that forward saved."""

CHECK = Check(
    _check,
    ["op", "activation", "dtype", "by", "y", "dx", "dweight", "dbias"],
    4,
    _LEGEND,
    knows=lambda op: isinstance(op, NormOp),
)
