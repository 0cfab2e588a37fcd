"""Second derivatives of norms and of softmax in few passes: closed forms of what graphs find.

P is a norm's backward without a weight, rstd (v - mean(v) - xhat mean(xhat v)), which is its own
transpose. Along u it changes by, with means over a row,

    P' g  =  -rstd (mean(xhat u) P g + mean(xhat g) P u + xhat mean(g P u)),

because xhat changes by P u, and rstd by -rstd^2 mean(xhat u); without a mean, as of RMS, it is the
same, and of a length it has sums instead of means. The gradient of <u, P g> by x is P' g, by g it
is P u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.engine import axes
from ..ops.engine.spec import spec_of
from ..ops.norms import rows_of

Named = Mapping[str, Any]
Found = tuple[list[Any], dict[str, Any]]


def second(
    op: Any, ddx: Named, incoming: Sequence[Any], of: Named, m: Any, wants_dy: bool
) -> Found | None:
    """Give what `second.second` gives, by a closed form; None: there is none."""
    of = {**op.entry_points["call"].defaults, **of}
    if incoming[0] is None or not ddx:
        return None
    is_softmax = op.name in ("softmax", "log_softmax")
    if is_softmax and of.get("sink") is None and not of.get("softcap"):
        over = axes.axes(op._where(), of["axis"], of["y"].ndim)
        closed = _of_softmax if op.name == "softmax" else _of_log_softmax
        found = closed(ddx["x"], incoming[0], of["y"], over, m, wants_dy)
        if of["scale"] != 1.0:
            found[0] *= of["scale"]
            found[1] *= of["scale"]
        return [found[0]], {"y": found[1]}
    if "rstd" not in op.saves or "x" not in ddx or of.get("activation") != "identity":
        return None
    takes_statistics = "rstd" in op.entry_points["call"].defaults
    if "gate" in op.saves or op.traits.counts_elements or takes_statistics:
        return None
    if op.written and not of["training"]:
        return None
    return _of_norm(op, ddx, incoming, of, m, wants_dy)


Axes = tuple[int, ...]


def _of_softmax(ddx: Any, dy: Any, y: Any, over: Axes, m: Any, wants_dy: bool) -> list[Any]:
    # Elements whose y is 0 take no part in backward: they may be infinite or NaN.
    is_out = y == 0
    dy, ddx = (m.where(is_out, 0.0, of_row) for of_row in (dy, ddx))
    of_y, of_dy = dy * y, ddx * y
    less_a, b = -m.sum(of_y, over), m.sum(of_dy, over)  # over no axes a sum is its argument
    of_y = m.less(ddx, b, of_y)
    if wants_dy:
        of_dy = m.times(of_y, y, of_dy)
    of_y *= dy
    return [of_dy, m.add_product(of_y, ddx, less_a)]  # ddx (dy - a) - dy b


def _of_log_softmax(ddx: Any, dy: Any, y: Any, over: Axes, m: Any, wants_dy: bool) -> list[Any]:
    of_dy = m.where(y == -math.inf, 0.0, ddx)  # what takes no part may be infinite or NaN
    of_y = m.exp(y)
    of_y *= of_dy
    of_dy = m.less(of_dy, m.sum(of_y, over), of_dy)
    return [of_dy, m.times(of_y, -m.sum(dy, over), of_y)]


#: The exponent of what a product of a reciprocal may lack to 1, by the item size.
_ROUNDING = {4: -22, 8: -51}


def _of_norm(
    op: Any, ddx: Named, incoming: Sequence[Any], of: Named, m: Any, wants_dy: bool
) -> Found:
    spec, x, weight = spec_of(op), of["x"], of.get("weight")
    u, v = ddx["x"] + ddx["residual"] if "residual" in ddx else ddx["x"], ddx.get("weight")
    dy, *others = incoming
    shape = tuple(x.shape)
    rows = rows_of(op, shape, of)
    told = {n: of[n] for n in spec.told & op.entry_points["backward"].defaults.keys()}

    def projected(d: Any) -> Any:
        saved = {**dict.fromkeys(op.saves), **{n: of[n] for n in ("x", "mean", "rstd") if n in of}}
        d = m.cast(_shaped(d, shape), x)
        args, named = spec.arguments([d, *(None for _ in others)], [*saved.values()])
        return _shaped(op.backward(*args, **named, **told)[0], rows.split)

    def along(parameter: Any) -> Any:
        return parameter.reshape(rows.along)

    rstd = _shaped(of["rstd"], rows.kept)
    split = _shaped(x, rows.split)
    if rows.centred:
        xhat = split - _shaped(of["mean"], rows.kept)
        xhat *= rstd
    else:
        xhat = split * rstd
    u, d = _shaped(u, rows.split), _shaped(dy, rows.split)
    pu, g, scale = projected(u), d, None
    if weight is not None:
        offset = of.get("weight_offset")
        offset = float(of.get("casting") == "gemma") if offset is None else offset
        scale = along(weight) + offset if offset else along(weight)
        g = d * scale
    of_x, found = projected(g), {}
    products = xhat * u
    k = rstd / -rows.length
    if getattr(op, "kind", "") == "L2Norm":  # sums, and of rows whose rstd is no constant
        k = -rstd * (rstd * of["eps"] < 1 - 2.0 ** _ROUNDING[rstd.dtype.itemsize])
    of_x *= k * m.sum(products, rows.axes)
    products = m.times(xhat, g, products)
    of_x = m.add_product(of_x, pu, k * m.sum(products, rows.axes))
    products = m.times(g, pu, products)
    of_x = m.add_product(of_x, xhat, k * m.sum(products, rows.axes))
    of_dy = pu
    if weight is not None:
        over = tuple(i for i, n in enumerate(rows.along) if n == 1)
        found["weight"] = m.sum(m.times(d, pu, products), over).reshape(weight.shape)
        if wants_dy:
            of_dy *= scale
    if v is not None:
        of_dy = of_dy + along(v) * xhat
        of_x = of_x + projected(d * along(v))
    if wants_dy and ddx.get("bias") is not None:
        of_dy = of_dy + along(ddx["bias"])
    found["x"] = _shaped(of_x, shape)
    if of.get("bias") is not None:
        found["bias"] = m.zeros(of["bias"].shape, of["bias"])
    return [_shaped(of_dy, shape), *(_shaped(u, shape) for _ in others)], found


def _shaped(array: Any, shape: tuple[int, ...]) -> Any:
    return array if tuple(array.shape) == shape else array.reshape(shape)
