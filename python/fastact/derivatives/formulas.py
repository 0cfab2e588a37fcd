"""Ops as a textbook has them, over any framework's arrays: what is differentiated again.

Results and gradients are computed by the op's kernels. How gradients change, and what has no kernel
else, is found by these formulas, which are made of a framework's own operations. Nothing here
computes 16 bits: it is given wider arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..ops.activations import softcap
from ..ops.dropout import dropout
from ..ops.engine import axes, weighting
from ..ops.engine.fused import IDENTITY, activation_op
from ..ops.norms import Rows, rows_of
from . import gates

#: The operations of operations.py, and vjp: the gradients of a function, by its arrays and its
#: results' gradients.
Operations = Any

Named = Mapping[str, Any]


def results(op: Any, named: Named, m: Operations) -> tuple[Any, ...]:
    """Compute a call's results; named: its arguments."""
    of = {**op.entry_points["call"].defaults, **named}
    found: tuple[Any, ...] = _FAMILIES[op.family](op, of, m)
    return found


def gradients(
    op: Any, incoming: Sequence[Any], named: Named, m: Operations, wanted: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the gradients by the argument's name; named: what `forward` saved, and options.

    wanted : of these arguments; none: of all that have one in `backward`.
    """
    if by_value(op, named):
        return _BY_SAVED[op.family](op, incoming, named, m)
    named = arguments(op, incoming, named, m)
    stands = {n: standing(op, n, named) for n in wanted or (*op.differentiated, *op.shares)}
    names = [*dict.fromkeys(name for name in stands.values() if name is not None)]

    def f(*values: Any) -> tuple[Any, ...]:
        return results(op, {**named, **dict(zip(names, values, strict=True))}, m)

    found = m.vjp(f, [named[n] for n in names], incoming)
    by_name = dict(zip(names, found, strict=True))
    return {n: by_name[at] for n, at in stands.items() if at is not None}


def standing(op: Any, name: str, named: Named) -> str | None:
    """The argument by which a gradient is found: itself, or one that shares it and is there."""
    sharing = (other for other, its in op.shares.items() if its == op.shares.get(name, name))
    every = (name, op.shares.get(name, name), *sharing)
    return next((n for n in every if named.get(n) is not None), None)


def by_value(op: Any, named: Named) -> bool:
    """Tell whether gradients are found by what `forward` made, not by its arguments."""
    return (
        op.family in _BY_SAVED
        and ("y" in named or "gates" in named)
        and not named.get("recompute", False)
    )


def arguments(op: Any, incoming: Sequence[Any], named: Named, m: Operations) -> Named:
    """Return the arguments of a call, by what it saved; what was not saved changes nothing."""
    first = op.entry_points["call"].arrays[0]
    if "shape" in op.saves:
        (dy,) = incoming
        x = m.zeros(named["shape"], dy)
        return {**named, first: x, "shape": tuple(dy.shape)}  # unbroadcast's is that
    if first in named:
        if "residual" not in op.differentiated:
            return named
        total = named[first]  # which was saved: of nothing dropped, and the residual
        return {**named, first: m.zeros(tuple(total.shape), total), "residual": total}
    lacking = (first, *(name for name, its in op.shares.items() if its in op.results))
    zeros = m.zeros(tuple(incoming[0].shape), incoming[0])
    return {**named, **{n: zeros for n in lacking if named.get(n) is None}}


# --- families -------------------------------------------------------------------------------------


def _activated(op: Any, of: Named, z: Any, m: Operations) -> Any:
    act = activation_op(op._where(), of["activation"])
    if act is None:
        return z
    return m.call(act, z, {n: of.get(n, value) for n, value in act.parameters.items()})


def _along(bias: Any, ndim: int, axis: int) -> Any:
    return bias.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def _bias(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    if "shape" in op.entry_points["call"].defaults:
        dy, shape = of["dy"], tuple(of["shape"])
        return (m.sum(dy, axes.unbroadcast(op._where(), shape, dy.shape)).reshape(shape),)
    if "bias" not in op.saves:
        dy = of["dy"]
        return (m.sum(dy, axes.others((of["axis"] % dy.ndim,), dy.ndim)).reshape(-1),)
    z = of["x"] + _along(of["bias"], of["x"].ndim, of["axis"])
    return (_activated(op, of, z if of["residual"] is None else z + of["residual"], m),)


def _dropped(of: Named, m: Operations) -> Any:
    x, told = of["x"], {n: of[n] for n in dropout.checks}
    scale = m.of_ones(dropout, x, told)
    return m.where(scale == 0, 0.0, x * scale)


def _dropout(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    y = _dropped(of, m)
    return (y if of["residual"] is None else y + of["residual"],)


def _parametric(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    x, w = of["x"], of[op.parameter]
    single = tuple(w.shape) in ((), (1,))
    w = w.reshape(()) if single else _along(w, x.ndim, of["channel_axis"])
    return (_snake(x, w, m) if op.name == "snake" else m.where(x > 0, x, x * w),)


def _snake(x: Any, alpha: Any, m: Operations) -> Any:
    """Compute x + sin(u)**2 / alpha with u = alpha x: for a small u by x sin(u) (sin(u) / u).

    The sine is of the exact product. Where that is far, x has no digits for it: y is x.
    """
    size = abs(m.constant(x) * m.constant(alpha))
    is_small, held = size < 1, m.where(size >= 2.0**52, 0.0, x)
    u, rest = held * alpha, _rest(m.constant(held), m.constant(alpha))
    near, series = m.where(is_small, u, 0.0), 1.0
    for k in range(20, 0, -2):  # up to u**20 / 21!, far below a rounding error
        series = 1.0 - near * near * series / (k * (k + 1))
    sine = m.sin(u) * m.constant(m.cos(rest)) + m.cos(u) * m.constant(m.sin(rest))
    quotient = sine * sine / m.where(is_small, 1.0, alpha)
    return x + m.where(is_small, x * (m.sin(near) * series), quotient)


def _rest(a: Any, b: Any) -> Any:
    """Find what the rounding of a product leaves off, of factors that are far from the largest."""
    splitter = 2.0**12 + 1 if a.dtype.itemsize == 4 else 2.0**27 + 1
    highs = [(c * splitter) - ((c * splitter) - c) for c in (a, b)]
    lows = [c - high for c, high in zip((a, b), highs, strict=True)]
    rest = highs[0] * highs[1] - a * b
    return rest + highs[0] * lows[1] + lows[0] * highs[1] + lows[0] * lows[1]


def _gated(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    def part(array: Any, axis: int, half: tuple[int, int], count: int) -> Any:
        first, step = half
        index = [slice(None)] * array.ndim
        index[axis] = slice(first, first + step * (count - 1) + 1, step)
        return array[tuple(index)]

    whole = of["x"] if op.packed else of["a"]
    axis = of["axis"] % max(whole.ndim, 1)
    if op.packed:
        length = whole.shape[axis]
        a, b = (part(whole, axis, half, length // 2) for half in op.halves(of, length))
    else:
        a, b = of["a"], of["b"]
    if of["bias"] is not None:
        length = of["bias"].shape[0]
        biases = (part(of["bias"], 0, half, length // 2) for half in op.halves(of, length))
        a, b = (x + _along(bias, a.ndim, axis) for x, bias in zip((a, b), biases, strict=True))
    limit = of["limit"]
    if limit is not None:
        a = m.where(a > limit, limit, a)
        b = m.where(b > limit, limit, m.where(b < -limit, -limit, b))
    act, own = op.activation_of(of)
    return ((a if act is None else m.call(act, a, own)) * (b + of["offset"]),)


def _by_moments(x: Any, rows: Rows, of: Named, m: Operations) -> Any:
    """Normalise by the statistics that `forward` made: squares are then in range.

    The mean is subtracted before x is scaled, in halves, whose differences are in range, too. What
    rounding leaves of a mean, in x and in a tangent, is subtracted afterwards. A call alone has no
    statistics, and is computed as it is.
    """
    if of.get("rstd") is None:
        centred = x - m.sum(x, rows.axes) / rows.length if rows.centred else x
        return centred / m.sqrt(m.sum(centred * centred, rows.axes) / rows.length + of["eps"])
    rstd = m.constant(of["rstd"]).reshape(rows.kept)
    if rows.centred:
        mean = m.constant(of["mean"]).reshape(rows.kept)
        x, rstd = x * 0.5 - mean * 0.5, rstd * 2.0
        for _ in range(2):
            x = x - m.sum(x / rows.length, rows.axes)
    x = x * rstd
    squares = m.sum(x * x, rows.axes) / rows.length
    return x / m.sqrt(squares + m.constant(1 - squares))


def _by_length(x: Any, rows: Rows, of: Named, m: Operations) -> Any:
    """Divide x by its length: first by its largest magnitude, so that squares are in range."""
    most = m.max(abs(m.constant(x)), rows.axes)
    scaled = x / m.where((most > 0) & (most < math.inf), most, 1.0)
    squares, eps = m.sum(scaled * scaled, rows.axes), of["eps"]
    if eps == 0:
        return scaled / m.sqrt(squares)
    is_eps = m.constant(m.sqrt(squares)) * most <= eps
    return m.where(is_eps, x / eps, scaled / m.sqrt(m.where(is_eps, 1.0, squares)))


def _norm(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    x, call = of["x"], op.entry_points["call"].defaults
    if op.traits.counts_elements:
        x = _dropped(of, m)
    rows = rows_of(op, tuple(x.shape), of)
    if of.get("residual") is not None:
        x = x + of["residual"]
    gate = _activated(op, of, of["gate"], m) if "gate" in op.saves else None
    if gate is not None and of["gate_first"]:
        x = x * gate
    split = x.reshape(rows.split)
    if "rstd" in call or ("training" in call and not of["training"]):
        if "rstd" in of:
            mean, rstd = of["mean"].reshape(rows.kept), of["rstd"].reshape(rows.kept)
        else:
            mean = of["running_mean"].reshape(rows.kept)
            rstd = 1 / m.sqrt(of["running_var"].reshape(rows.kept) + of["eps"])
        xhat = (split - mean) * rstd
    else:
        is_of_length = getattr(op, "kind", "") == "L2Norm"
        xhat = (_by_length if is_of_length else _by_moments)(split, rows, of, m)
    weight, bias, offset = of["weight"], of.get("bias"), of.get("weight_offset")
    if weight is not None:
        if offset is None:
            offset = 1.0 if of.get("casting") == "gemma" else 0.0
        xhat = xhat * (weight.reshape(rows.along) + offset)
    if bias is not None:
        xhat = xhat + bias.reshape(rows.along)
    y = xhat.reshape(x.shape)
    if gate is None:
        y = _activated(op, of, y, m)
    elif not of["gate_first"]:
        y = y * gate
    return (y, x) if "total" in op.results else (y,)


def _logits(of: Named, m: Operations) -> Any:
    z, mask = of["x"] * of["scale"], of["mask"]
    if of.get("softcap"):
        z = m.call(softcap, z, {"cap": of["softcap"]})
    if mask is None:
        return z
    if isinstance(mask, bool) or "bool" in str(getattr(mask, "dtype", "")):
        return m.where(mask, z, -math.inf)
    return z + mask


def _log_sum(z: Any, over: tuple[int, ...], m: Operations, sink: Any = None) -> Any:
    """Find the log-sum-exp, and the logarithms of a row's softmax, exact at any common offset.

    Both are -inf, with no derivative, of a row that a mask leaves nothing of.
    """
    most = m.constant(m.max(z, over))
    if sink is not None:
        most = m.constant(m.where(m.constant(sink) > most, m.constant(sink), most))
    held = m.where(abs(most) < math.inf, most, 0.0)
    less = z - held
    total = m.sum(m.exp(less), over)
    if sink is not None:
        total = total + m.exp(sink - held)
    is_empty = most == -math.inf
    log = m.log(m.where(is_empty, 1.0, total))
    lse = m.where(is_empty, -math.inf, m.where(most < math.inf, most + log, math.inf))
    return lse, less - m.where(most < math.inf, log, math.inf)


def _softmax(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    if "target" in of:
        return _cross_entropy(op, of, m)
    z = _logits(of, m)
    over = axes.axes(op._where(), of["axis"], z.ndim)
    sink = of.get("sink")
    if sink is not None:
        shape = [1] * (z.ndim - len(over) - sink.ndim) + [*sink.shape]
        for axis in over:
            shape.insert(axis, 1)
        sink = sink.reshape(tuple(shape))
    lse, logs = _log_sum(z, over, m, sink)
    y = m.exp(logs) if op.name == "softmax" else lse if op.name == "logsumexp" else logs
    return (y.reshape(axes.reduced(z.shape, over, of["keepdims"])) if "keepdims" in of else y,)


def _softmax_by_value(op: Any, incoming: Sequence[Any], of: Named, m: Operations) -> dict[str, Any]:
    (dy,), y, of = incoming, of["y"], {**op.entry_points["call"].defaults, **of}
    over = axes.axes(op._where(), of["axis"], y.ndim)
    if op.name == "log_softmax":
        dx = m.where(y == -math.inf, 0.0, dy - m.exp(y) * m.sum(dy, over))
    else:
        held = m.where(y == 0, 0.0, dy)  # what takes no part may be infinite or NaN
        dx = m.where(y == 0, 0.0, y * (held - m.sum(held * y, over)))
    found = {"x": of["scale"] * dx}
    if of.get("softcap"):
        x = m.where(y == 0, 0.0, of["x"])  # what takes no part may be NaN
        u = x * (of["scale"] / of["softcap"])
        tanh, power = m.tanh(u), m.exp(m.where(u > 0, -u, u))
        sech = power * 2.0 / (1.0 + power * power)
        is_small = abs(m.constant(u)) < 1  # where 1 - tanh**2 has all digits, its derivative, too
        found["x"] = found["x"] * m.where(is_small, 1.0 - tanh * tanh, sech * sech)
    if of.get("sink") is not None:
        # Its probability was saved as a number, and changes as 1 - sum(y) does.
        total, shape = m.sum(y, over), tuple(of["sink"].shape)
        share = m.constant(total + of["share"].reshape(tuple(total.shape))) - total
        rows = axes.reduced(y.shape, over, keepdims=False)
        each = (-(share * m.sum(dy * y, over))).reshape(rows)
        found["sink"] = m.sum(each, axes.unbroadcast(op._where(), shape, rows)).reshape(shape)
    return found


def _cross_entropy(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    z, target, weight = of["logits"], of["target"], of["weight"]
    axis = of["axis"] if of["axis"] is not None else min(1, z.ndim - 1)
    over, classes = axes.axes(op._where(), axis, z.ndim), z.shape[axis]
    at = over[0]
    none = m.zeros(tuple(z.shape), z)
    w = 1.0 if weight is None else _along(weight.reshape(-1), z.ndim, at) + none
    if "int" in str(target.dtype):
        index = target.reshape(axes.reduced(z.shape, over, True))
        ignored, most = of["ignore_index"], 1 << (8 * target.dtype.itemsize - 1)
        counts = (index != ignored) * 1.0 if -most <= ignored < most else 1.0
        t = m.where(_along(m.arange(classes, z), z.ndim, at) == index, 1.0, none)
        divisor = m.sum(t * w, over) * counts
    else:
        counts, t = 1.0, target
        divisor = 1 + m.sum(none, over)
    smoothing = of["label_smoothing"]
    t = ((1 - smoothing) * t + smoothing / classes) * w * counts
    lse, logs = _log_sum(z, over, m)
    losses = -m.sum(t * m.where((t == 0) & (logs == -math.inf), 0.0, logs), over)
    if of["z_loss"]:
        losses = losses + of["z_loss"] * (lse * lse) * counts
    if of["reduction"] == "none":
        return (losses.reshape(axes.reduced(z.shape, over, False)),)
    every = tuple(range(z.ndim))
    total = m.sum(losses, every)
    if of["reduction"] == "mean":
        total = total / m.constant(m.sum(divisor, every))
    return (total.reshape(()),)


def _along_x(op: Any, of: Named, name: str, m: Operations) -> Any:
    """Give weights or labels, which may be along the axes that a call names, x's axes."""
    array, x = of[name], of["x"]
    places = weighting.places_of(op._where(), of["axis"], tuple(array.shape), tuple(x.shape), name)
    return weighting.placed(array, places, m)


def _totals(op: Any, of: Named, over: tuple[int, ...], m: Operations) -> Any:
    """Give a function that sums an array of x's shape, over axes or by groups, and one that
    repeats such sums over x; and which elements are of a group.
    """
    x = of["x"]
    if of.get("by") is None:
        return (lambda each: m.sum(each, over)), (lambda sums: sums), True
    groups, rows = of["groups"], axes.reduced(x.shape, over, keepdims=True)
    count = math.prod(rows)
    numbers = m.arange(count, x).reshape(rows) * groups
    labels = m.cast(_along_x(op, of, "by", m), numbers)
    is_any = labels >= 0
    numbers = m.expanded(m.where(is_any, labels, 0) + numbers, tuple(x.shape))
    numbers = m.constant(numbers).reshape(-1)
    size = count * max(groups, 1)  # elements of no group are added, as 0, to the first one
    return (
        lambda each: m.put(each.reshape(-1), numbers, (size,)),
        lambda sums: sums[numbers].reshape(x.shape),
        is_any,
    )


def _statistic(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    x = of["x"]
    if of.get("by") is not None and of.get("groups") is None:
        of = {**of, "groups": weighting.groups_in(of["by"])}
    over = axes.axes(op._where(), of["axis"], x.ndim)
    shape = axes.reduced(x.shape, over, of["keepdims"])
    total, spread, valid = _totals(op, of, over, m)
    if valid is not True:
        shape = (*shape, of["groups"])
    w, none = of.get("weights"), m.zeros(tuple(x.shape), x)
    w = 1.0 + none if w is None else _along_x(op, of, "weights", m) + none
    if of.get("where") is not None:
        valid = of["where"] & valid
    skips = getattr(op, "skips", False) or of.get("skipna")
    if skips:
        valid = ~m.isnan(x) & valid
    if valid is not True:
        x, w = m.where(valid, x, none), m.where(valid, w, 0.0)

    def laid(sums: Any) -> Any:
        return (sums[:0] if of.get("groups") == 0 else sums).reshape(shape)

    if op.results[0] in ("y", "sum"):
        return (laid(total(x * x if op.name == "sum_squares" else x)),)
    count = total(w)
    # Weights over a constant, of whatever size they are, and then over their sum.
    share = w / spread(m.constant(m.where(count == 0, 1.0, count)))
    share = share / spread(m.where(count == 0, 1.0, total(share)))
    # The mean that rounding makes is subtracted, and then what it leaves, in tangents as well.
    held = m.constant(total(x * share))
    centred, shift = x - spread(held), 0.0
    for _ in range(2):
        step = total(centred * share)
        centred, shift = centred - spread(step), shift + step
    found = {"mean": held + shift}
    if op.results != ("mean",):
        left = count - (of.get("correction", 0) if of.get("ddof") is None else of["ddof"])
        is_known = left > 0
        left = m.where(is_known, left, math.nan if skips else 0.0)
        m2 = total(w * centred * centred)
        found |= {"m2": m2, "var": m2 / left}
    if op.results == ("std",):
        centred = m.where(m.constant(w) == 0, 0.0, centred)
        size = total(abs(m.constant(centred)) * m.constant(share))
        # The squares of any quotient by it that is not 0 are in range, as a tangent's quotient is.
        least = 2.0**-100 if x.dtype.itemsize == 4 else 2.0**-900
        size = m.where(size > least, size, least)
        scaled = centred / spread(size)
        squares = total(w * scaled * scaled)
        is_0 = is_known & (squares == 0)  # where the derivative is 0, too
        root = m.sqrt(m.where(is_0, 1.0, squares / left))
        found["std"] = m.where(is_0, 0.0, root * size)
    return tuple(laid(found[name]) for name in op.results)


def _divergence(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    x, t = (of[name] for name in op.saves)
    over = axes.axes(op._where(), of["axis"], x.ndim)
    terms = _kullback_leibler if op.name == "kl_div" else _jensen_shannon
    y = m.sum(terms(x, t, m), over)
    return (y.reshape(axes.reduced(x.shape, over, of["keepdims"])),)


def _kullback_leibler(x: Any, t: Any, m: Operations) -> Any:
    none = m.constant(m.exp(t)) == 0
    x, t = m.where(none, 0.0, x), m.where(none, 0.0, t)
    return m.where(none, 0.0, m.exp(t) * (t - x))


def _jensen_shannon(x: Any, t: Any, m: Operations) -> Any:
    """Add up the derivatives by both logarithms: p log(p / m) / 2 and its like of q, m between.

    Near p = q the derivatives of the terms of p, q and m would cancel.
    """

    def slope(log: Any, other: Any) -> Any:
        none = m.constant(m.exp(log)) == 0
        log = m.where(none, 0.0, log)
        d = other - log
        is_above = d > 0
        # log((1 + exp(d)) / 2)
        less = m.log1p(m.expm1(m.where(is_above, -d, d)) * 0.5) + m.where(is_above, d, 0.0)
        return m.where(none, 0.0, m.exp(log) * less * -0.5)

    return m.sloped(lambda x, t: (slope(x, t), slope(t, x)), x, t)


def _rotary(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    x, cos, sin, positions = of["x"], of["cos"], of["sin"], of["positions"]
    if "eps" in of:
        (x,) = _norm(op, {**of, "activation": IDENTITY}, m)
    ndim, axis = x.ndim, of["axis"] % x.ndim
    cos, sin = (m.expanded(a, tuple(a.shape)) for a in (cos, sin))  # JAX's, if they were NumPy's
    if positions is not None:
        front = (1,) * (ndim - 1 - positions.ndim)
        cos, sin = (table[positions] for table in (cos, sin))
        cos, sin = (rows.reshape((*front, *rows.shape)) for rows in (cos, sin))
        for at in range(ndim - 1, axis, -1):
            cos, sin = cos.swapaxes(at - 1, at), sin.swapaxes(at - 1, at)
    count = cos.shape[axis - ndim]
    if count == 0:
        return (x,)

    def taken(array: Any, index: Any) -> Any:
        return array[(..., index, *[slice(None)] * (ndim - 1 - axis))]

    place = m.arange(x.shape[axis], x)
    is_turned = place < 2 * count
    is_second = place % 2 == 1 if of["interleaved"] else place >= count
    pair = (place // 2 if of["interleaved"] else place - count * is_second) * is_turned
    step = 1 if of["interleaved"] else count
    other = place + (step - 2 * step * is_second) * is_turned
    signed = _along(2 * is_second - 1, ndim, axis) * taken(sin, pair)
    turned = x * taken(cos, pair) + taken(x, other) * signed
    return (m.where(_along(is_turned, ndim, axis), turned, x),)


def _activation(op: Any, of: Named, m: Operations) -> tuple[Any, ...]:
    return (m.call(op, of["x"], {name: of[name] for name in op.parameters}),)


_FAMILIES: Mapping[str, Callable[[Any, Named, Operations], tuple[Any, ...]]] = {
    "activations": _activation,
    "bias": _bias,
    "divergences": _divergence,
    "dropout": _dropout,
    "gated": _gated,
    "gates": gates.results,
    "norms": _norm,
    "parametric": _parametric,
    "softmax": _softmax,
    "reductions": _statistic,
    "rotary": _rotary,
    "statistics": _statistic,
}

_BY_SAVED: Mapping[str, Callable[..., dict[str, Any]]] = {
    "softmax": _softmax_by_value,
    "gates": gates.gradients,
}
