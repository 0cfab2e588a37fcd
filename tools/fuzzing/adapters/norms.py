"""Norms over rows, groups and channels, whole and in halves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import fastact as fa
from fastact.ops import bounds

from ..cases import FLOAT64, Array, Draw, Number, Request, Shape, computed_in, number
from ..judge import Expected, ulp
from ..oracle import evaluate, reference, wide
from .base import Adapter, added_to, full, is_made

_VALUES = ("plain", "plain", "wide", "far", "constant", "huge", "not finite")
_EPS = (1e-5, 1e-6, 1e-12, 0, 0.5, 1)
_BY_CHANNEL = ("batch_norm", "norm_apply")


#: What the oracle evaluates digit by digit for float64: in few elements alone.
_SLOW = ("gelu", "tanhshrink", "logcosh")


def allowed(
    op: Any, entry: str, exact: Exact, dtype: np.dtype[Any], to: Any, total: Any, **how: Any
) -> dict[str, tuple[Any, Any]]:
    """y, or dx, dweight and dbias, each with how far off it may be, its last rounding included.

    how: `wide_bias`, whether the bias is wider than the type that is computed in; `device`.
    """
    own = None if exact.name == "identity" else fa.ops[exact.name].bounds
    act = bounds.Activation(own, exact.value, exact.slope, how.pop("device"))
    if entry == "forward":
        return {"y": reference.judged_y(exact, op.bounds, act, dtype, **how)}
    found: dict[str, tuple[Any, Any]] = reference.judged_gradients(
        exact, op.bounds, act, dtype, to, total, **how
    )
    return found


class Exact(reference.NormExact):  # type: ignore[misc]
    """With activations of this package's oracle, which is quick for any dtype."""

    def value(self, z: Any) -> Any:
        return z if self.name == "identity" else evaluate("forward", self.name, z, self._of(z), {})

    def slope(self, z: Any) -> Any:
        if self.name == "identity":
            return 1.0 + 0 * z
        return evaluate("derivative", self.name, z, self._of(z), {})

    @staticmethod
    def _of(z: Any) -> np.dtype[Any]:
        return FLOAT64 if np.asarray(z).dtype == np.longdouble else np.dtype(np.float32)


@dataclass(frozen=True)
class Rows:
    """What is normalised together.

    split : the shape of x with the channels cut into groups. axes : of that, those of a row.
    along : the shape in which a parameter broadcasts against it; parameter : its own.
    statistics : the shape of mean and rstd.
    """

    shape: Shape
    split: Shape
    axes: Shape
    along: Shape
    parameter: Shape
    statistics: Shape
    centred: bool

    def of(self, x: Any, dtype: np.dtype[Any] = FLOAT64) -> Any:
        return wide(x, dtype).reshape(self.split)

    @property
    def kept(self) -> Shape:
        return tuple(1 if a in self.axes else n for a, n in enumerate(self.split))

    def summed(self, terms: Any) -> Any:
        over = tuple(a for a, n in enumerate(self.along) if n == 1)
        return np.broadcast_to(terms, self.split).sum(over).reshape(self.parameter)


def rows_of(op: Any, draw: Draw) -> tuple[Rows, dict[str, Any], tuple[Any, ...]]:
    """Some rows, the options that mean them, and those that stand behind x by position."""
    r, name = draw.r, op.name
    centred = "rms" not in name
    channels = name in ("group_norm", "instance_norm", *_BY_CHANNEL)
    shape = draw.shape(2 if channels else 1, nonzero=draw.chance(0.9))
    ndim = len(shape)
    if not channels:
        axis: Any = r.randrange(-ndim, ndim)
        if draw.chance(0.3):
            axis = tuple(r.sample(range(ndim), r.randrange(1, ndim + 1)))
        axes = tuple(sorted(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))))
        named = {"axis": axis} if axis != -1 or draw.chance(0.3) else {}
        along = tuple(n if a in axes else 1 for a, n in enumerate(shape))
        kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
        parameter = tuple(shape[a] for a in axes)
        return Rows(shape, shape, axes, along, parameter, kept, centred), named, ()
    channel = 1 if draw.chance(0.6) else r.randrange(-ndim, ndim)
    at, count = channel % ndim, shape[channel % ndim]
    option = "axis" if name == "norm_apply" else "channel_axis"
    named = {option: channel} if channel != 1 or option == "axis" or draw.chance(0.2) else {}
    if name != "group_norm":
        along = tuple(n if a == at else 1 for a, n in enumerate(shape))
        if name in _BY_CHANNEL:
            axes = tuple(a for a in range(ndim) if a != at)
            return Rows(shape, shape, axes, along, (count,), along, True), named, ()
        axes = tuple(a for a in range(ndim) if a not in (0, at))
        kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
        return Rows(shape, shape, axes, along, (count,), kept, True), named, ()
    divisors = [g for g in range(1, count + 1) if count % g == 0] or [1]
    groups = r.choice(divisors)
    split = (*shape[:at], groups, count // groups, *shape[at + 1 :])
    kept_axes = {at} if at == 0 else {0, at}
    axes = tuple(a for a in range(ndim + 1) if a not in kept_axes)
    along = tuple(n if a in (at, at + 1) else 1 for a, n in enumerate(split))
    statistics = (groups,) if at == 0 else (shape[0], groups)
    return Rows(shape, split, axes, along, (count,), statistics, True), named, (groups,)


class Norms(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        r, channels = draw.r, op.name in _BY_CHANNEL
        entries = ["call", "call", "forward", "backward", "backward"]
        if op.name == "batch_norm":
            entries += ["backward_reduce", "backward_apply"]
        entry = r.choice(entries)
        rows, named, positional = rows_of(op, draw)
        is_back = entry.startswith("backward")
        adds = op.name.startswith("add")
        values = r.choice(_VALUES)
        made: dict[str, Array] = {}
        made["x"] = draw.leader("x", rows.shape, values)
        if (
            made["x"].values == "huge" and draw.dtype == FLOAT64
        ):  # squares overflow, which nobody promised
            made["x"] = _with(made["x"], values="wide")
        self._parameters(made, draw, rows, op, channels)
        name = r.choice(("identity", "identity", "mish", r.choice(list(reference.FORWARD))))
        if name != "identity":
            named["activation"] = r.choice((name, fa.ops[name]))
        training = op.name == "batch_norm" and (
            entry in ("backward_reduce", "backward_apply") or draw.chance(0.6)
        )
        notes: dict[str, Any] = {
            "rows": rows, "activation": name, "made": made, "training": training,
        }  # fmt: skip
        eps = number(r, *_EPS)
        if not is_back and op.name != "norm_apply" and draw.chance(0.4):
            named["eps"] = eps
        if is_back:
            return self._back(op, entry, draw, notes, named)
        if adds:
            made["residual"] = draw.array("residual", rows.shape, "plain", number=True)
        args: list[Any] = [made["x"], *([made["residual"]] if adds else []), *positional]
        if op.name == "norm_apply":
            args += [self._statistic(made, draw, rows, k) for k in ("mean", "rstd")]
        if op.name == "batch_norm":
            args += self._running(made, draw, rows, training)
            notes["writes"] = ("running_mean", "running_var") if training else ()
            if training:
                count = math.prod(rows.split[a] for a in rows.axes)
                notes["may be refused"] = count < 2
            named["training"] = training
            if draw.chance(0.5):
                named["momentum"] = number(r, 0.1, 0, 1, 0.5)
        named |= {k: made[k] for k in ("weight", "bias") if k in made}
        outputs: list[Any] = [("y", rows.shape, draw.dtype)]
        if adds:
            outputs.append(("total", rows.shape, draw.dtype))
        operands = tuple(made[k] for k in ("x", "residual") if k in made)
        saves = entry == "forward"
        if saves and not channels:
            wide = computed_in(draw.dtype)
            names = ("mean", "rstd") if rows.centred else ("rstd",)
            outputs += [(k, rows.statistics, wide) for k in names]
        keeps = saves and not adds
        # The sum may be x or residual itself, and y too: but not both the same one.
        places = {} if keeps else {0: operands, 1: operands} if adds else {0: operands}
        outs = draw.outs(outputs, places, forbidden=operands if keeps else ())
        if adds and not outs.get("as_tuple", True):
            outs = {}
        return Request(
            op.name, entry, draw.framework, draw.dtype, tuple(args), named, notes=notes, **outs
        )

    # --- drawing ----------------------------------------------------------------------------------

    def _parameters(
        self, made: dict[str, Array], draw: Draw, rows: Rows, op: Any, channels: bool
    ) -> None:
        wider = draw.chance(0.15) and draw.framework != "plain"
        dtype = FLOAT64 if wider else draw.dtype
        for name in ("weight", "bias"):
            if draw.chance(0.7) and (name == "weight" or rows.centred):
                made[name] = draw.array(name, rows.parameter, "plain", dtype)

    def _statistic(self, made: dict[str, Array], draw: Draw, rows: Rows, name: str) -> Array:
        """mean or rstd of a channel, which may be 1-D too."""
        shape = rows.parameter if draw.chance(0.5) else rows.statistics
        kind = "positive" if name in ("rstd", "running_var") else "plain"
        dtype = computed_in(draw.dtype)
        made[name] = draw.array(name, shape, kind, dtype)
        return made[name]

    def _running(self, made: dict[str, Array], draw: Draw, rows: Rows, training: bool) -> list[Any]:
        if training and draw.chance(0.4):
            return [None, None]
        dtype = computed_in(draw.dtype) if draw.chance(0.7) else draw.dtype
        for name, kind in (("running_mean", "plain"), ("running_var", "positive")):
            array = draw.array(name, rows.parameter, kind, dtype)
            if training:  # they are written
                array = _with(array, repeats=(), form="array")
            made[name] = array
        return [made["running_mean"], made["running_var"]]

    def _back(
        self, op: Any, entry: str, draw: Draw, notes: dict[str, Any], named: dict[str, Any]
    ) -> Request:
        rows, made = notes["rows"], notes["made"]
        made["dy"] = draw.array("dy", rows.shape, draw.r.choice(("plain", "wide")), number=True)
        by_channel = op.name in _BY_CHANNEL
        names = ["mean", "rstd"] if rows.centred else ["rstd"]
        for name in names:
            if by_channel:
                self._statistic(made, draw, rows, name)
            else:
                shape, dtype = rows.statistics, computed_in(draw.dtype)
                made[name] = draw.array(name, shape, "plain", dtype)
        args: list[Any] = [made["dy"], made["x"], *(made[k] for k in names)]
        weights = [k for k in ("weight", "bias") if k in made]
        if op.name.startswith("add") and draw.chance(0.5):
            made["dtotal"] = draw.array("dtotal", rows.shape, "plain", number=True)
            named["dtotal"] = made["dtotal"]
        if entry == "backward_apply":
            for name in ("sum_dy", "sum_dy_xhat"):
                made[name] = draw.array(name, rows.statistics, "plain", FLOAT64)
            count = math.prod(rows.split[a] for a in rows.axes)
            notes["count"] = max(count, 1)
            args += [made.get("weight"), made["sum_dy"], made["sum_dy_xhat"], max(count, 1)]
            if "bias" in made:
                named["bias"] = made["bias"]
        else:
            named |= {k: made[k] for k in weights}
            if op.name == "batch_norm" and entry == "backward":
                named["training"] = notes["training"]
        shape, dtype = rows.shape, draw.dtype
        if entry == "backward_reduce":
            outputs: list[Any] = [(k, rows.statistics, FLOAT64) for k in ("sum_dy", "sum_xhat")]
            outs = draw.outs(outputs, {}, forbidden=(made["x"], made["dy"]), skips=True)
        elif entry == "backward_apply":
            places = {0: (made["dy"], made["x"])}
            outs = draw.outs([("dx", shape, dtype)], places, accumulates=True)
        else:
            of = ["weight", "bias"] if rows.centred else ["weight"]
            outputs = [("dx", shape, dtype)] + [
                (f"d{k}", made[k].shape, made[k].dtype) if k in made else None for k in of
            ]
            places = {0: (made["dy"], made["x"])}
            outs = draw.outs(outputs, places, accumulates=True, skips=True)
        return Request(
            op.name, entry, draw.framework, draw.dtype, tuple(args), named, notes=notes, **outs
        )

    # --- values -----------------------------------------------------------------------------------

    def fill(self, request: Request, rng: np.random.Generator) -> dict[str, Any]:
        """Statistics that backward is given are those of x."""
        values = super().fill(request, rng)
        made, rows = request.notes["made"], request.notes["rows"]
        if "rstd" not in made or request.op == "norm_apply":
            return values
        x = rows.of(full(made["x"], values), request.dtype)
        with np.errstate(all="ignore"):
            mean, rstd = reference.statistics(x, rows.axes, 1e-5, rows.centred)
        for name, exact in (("mean", mean), ("rstd", rstd)):
            if name in made:
                array = made[name]
                of = np.asarray(exact).reshape(array.shape).astype(array.dtype)
                # Along an axis of stride 0 there is one value for all.
                values[name] = of[tuple(slice(0, 1) if i in array.repeats else slice(None)
                                        for i in range(of.ndim))]  # fmt: skip
        return values

    def layout_free(self, request: Request) -> bool:
        """Several axes are taken in an order that depends on their strides."""
        rows = request.notes["rows"]
        return sum(rows.split[a] > 1 for a in rows.axes) <= 1 and (
            request.entry in ("call", "forward") or len(rows.shape) <= 2
        )

    def order_free(self, request: Request) -> bool:
        """Kernels go by rows or by columns, whichever lie together."""
        return False

    def holds(self, request: Request, name: str, value: float) -> bool:
        return 0 <= value <= 1 if name == "momentum" else value >= 0

    # --- what is right ----------------------------------------------------------------------------

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        notes, dtype = request.notes, request.dtype
        rows, made, name = notes["rows"], notes["made"], notes["activation"]
        with np.errstate(all="ignore"):
            data = full(made["x"], values)
            if "residual" in made:
                compute = computed_in(dtype)
                more = full(made["residual"], values).astype(compute)
                data = (data.astype(compute) + more).astype(dtype)
            x = rows.of(data, dtype)
            w, b = (
                wide(full(made[k], values), dtype).reshape(rows.along)
                if k in made
                else wide(v, dtype)
                for k, v in (("weight", 1.0), ("bias", 0.0))
            )
            if request.entry in ("call", "forward"):
                return self._forward(request, rows, values, x, w, b, data)
            if dtype == FLOAT64 and name in _SLOW and x.size > 200:
                return [None] * self._gradients(request, rows)
            dy = np.broadcast_to(wide(full(made["dy"], values), dtype), rows.shape)
            rstd = self._of_rows(rows, made["rstd"], values, dtype)
            mean = self._of_rows(rows, made["mean"], values, dtype) if "mean" in made else 0 * rstd
            depends = request.entry == "backward" and (
                notes["training"] if request.op in _BY_CHANNEL else True
            )
            axes = rows.axes if depends else None
            exact = Exact(name, x, rows.of(dy, dtype), mean, rstd, w, b, axes, rows.centred)
            return self._backward(request, rows, values, exact)

    def _gradients(self, request: Request, rows: Rows) -> int:
        if request.entry == "backward":
            return 3 if rows.centred else 2
        return 2 if request.entry == "backward_reduce" else 1

    def _of_rows(
        self, rows: Rows, array: Array, values: dict[str, Any], dtype: np.dtype[Any]
    ) -> Any:
        return wide(full(array, values), dtype).reshape(rows.kept)

    def _allowed(self, request: Request, entry: str, exact: Exact, to: Any, total: Any) -> Any:
        made, dtype = request.notes["made"], request.dtype
        return allowed(
            fa.ops[request.op], entry, exact, dtype, to, total,
            wide_bias="bias" in made and made["bias"].dtype.itemsize > computed_in(dtype).itemsize,
            device=request.framework == "emulated",
        )  # fmt: skip

    def _forward(
        self, request: Request, rows: Rows, values: dict[str, Any], x: Any, w: Any, b: Any,
        data: Any,
    ) -> list[Expected | None]:  # fmt: skip
        notes, dtype, made = request.notes, request.dtype, request.notes["made"]
        default = 1e-5 if rows.centred else 1e-6
        eps = request.named.get("eps", Number(default)).value
        given = request.op == "norm_apply" or (request.op == "batch_norm" and not notes["training"])
        if request.op == "norm_apply":
            mean, rstd = (self._of_rows(rows, made[k], values, dtype) for k in ("mean", "rstd"))
        elif given:
            mean = self._of_rows(rows, made["running_mean"], values, dtype)
            rstd = 1 / np.sqrt(self._of_rows(rows, made["running_var"], values, dtype) + eps)
        elif x.size:
            mean, rstd = reference.statistics(x, rows.axes, eps, rows.centred)
        else:
            mean = rstd = np.full(rows.kept, np.nan)
        axes = None if given else rows.axes
        exact = Exact(
            notes["activation"], x, np.zeros((), x.dtype), mean, rstd, w, b, axes, rows.centred
        )
        usual = np.isfinite(x).all(rows.axes, keepdims=True) & np.isfinite(rstd)
        if eps < 1e-30 and not given and x.size:  # of (nearly) equal values nothing is left
            size = np.abs(x).max(rows.axes, keepdims=True)
            usual = usual & (1 / rstd > 1e-4 * size) if rows.centred else usual & (size > 0)
        y, error = self._allowed(request, "forward", exact, None, None)["y"]
        of = lambda a: np.broadcast_to(a, rows.split).reshape(rows.shape)  # noqa: E731
        judged = np.broadcast_to(usual, rows.split) & np.isfinite(y)
        nan = np.isnan(x).any(rows.axes, keepdims=True) if not given else np.isnan(x)
        expected: list[Expected | None] = [Expected(of(y), of(error), False, of(judged), of(nan))]
        if request.op.startswith("add"):
            expected.append(Expected(np.asarray(data, np.float64), 0.0, False))
        if request.entry == "forward":
            expected += self._saved(request, rows, x, mean, rstd, usual, given)
        if notes.get("writes") and "running_mean" in made:
            expected += self._moved(request, rows, values, x, mean)
        return expected

    def _saved(
        self, request: Request, rows: Rows, x: Any, mean: Any, rstd: Any, usual: Any, given: bool
    ) -> list[Expected | None]:
        """x, mean, rstd, weight and bias."""
        if request.op == "norm_apply":
            return [None] * 5
        op, to, dtype = fa.ops[request.op], rows.statistics, request.dtype
        device = request.framework == "emulated"
        kept: list[Expected | None] = [None]
        usual = usual.reshape(to)
        if rows.centred:
            error: Any = ulp(mean, computed_in(dtype)) / 2
            if not given and x.size:
                spread = np.abs(x).mean(rows.axes, keepdims=True)
                error = op.bounds.allowed_mean(mean, spread, dtype, device)
            kept.append(Expected(mean.reshape(to), error.reshape(to), False, usual))
        error = op.bounds.allowed_rstd(rstd, mean if rows.centred else 0 * rstd, dtype, device)
        kept.append(Expected(rstd.reshape(to), error.reshape(to), False, usual))
        return kept + [None] * (2 if rows.centred else 1)

    def _moved(
        self, request: Request, rows: Rows, values: dict[str, Any], x: Any, mean: Any
    ) -> list[Expected | None]:
        """The running statistics after a batch."""
        made = request.notes["made"]
        momentum = request.named.get("momentum", Number(0.1)).value
        count = math.prod(rows.split[a] for a in rows.axes)
        if count < 2:
            return [None, None]
        d = x - mean
        var = (d * d).sum(rows.axes, keepdims=True) / (count - 1)
        found: list[Expected | None] = []
        for key, new in (("running_mean", mean), ("running_var", var)):
            old = full(made[key], values).astype(np.float64)
            new = np.asarray(new).reshape(old.shape)
            # 16-bit running statistics are moved in float32.
            u = 2.0**-53 if made[key].dtype == FLOAT64 else 2.0**-24
            size = np.abs(x).mean(rows.axes).reshape(old.shape) if key == "running_mean" else new
            error = 4 * u * (np.abs(old) + np.abs(new)) + momentum * 2.0**-32 * np.abs(size)
            exact = reference.moved(old, new, momentum)
            found.append(Expected(exact, error, True, np.isfinite(new)))
        return found

    def _backward(
        self, request: Request, rows: Rows, values: dict[str, Any], exact: Exact
    ) -> list[Expected | None]:
        made, dtype = request.notes["made"], request.dtype
        of = lambda a: np.broadcast_to(a, rows.split).reshape(rows.shape)  # noqa: E731
        if request.entry == "backward_apply":
            return [self._applied(request, rows, values, exact)]
        names = ("weight", "bias") if rows.centred else ("weight",)
        reduces = request.entry == "backward_reduce"
        to = FLOAT64 if reduces else {made[k].dtype for k in names if k in made} or {dtype}
        to = to if reduces else next(iter(to))
        found = self._allowed(request, "backward", exact, to, rows.summed)
        if reduces:
            return [
                self._gradient(found[f"d{name}"], rows.statistics) if is_made(request, i) else None
                for i, name in enumerate(("bias", "weight"))
            ]
        dx, error = map(of, found["dx"])
        more = [added_to(request, values, 0)]
        if "dtotal" in made:
            more.append(wide(full(made["dtotal"], values), dtype))
        if "dtotal" in made or request.accumulate:  # sums in the type that is computed in
            size = np.abs(dx) + sum(np.abs(term) for term in more)
            error = error + ulp(size, computed_in(dtype)) + ulp(dx + sum(more), dtype) / 2
        dx = dx + sum(more)
        judged = np.isfinite(dx) & np.isfinite(error)
        expected = [Expected(dx, error, False, judged) if is_made(request, 0) else None]
        for i, name in enumerate(names, 1):
            if name not in made or not is_made(request, i):
                expected.append(None)
                continue
            base = added_to(request, values, i)
            expected.append(self._gradient(found[f"d{name}"], rows.parameter, base, to))
        return expected

    def _gradient(
        self, found: tuple[Any, Any], shape: Shape, base: Any = 0.0, to: Any = FLOAT64
    ) -> Expected:
        """Of a parameter, added to `base`."""
        value, error = (np.asarray(part).reshape(shape) for part in found)
        total = value + base
        if np.any(base):
            error = error + ulp(np.abs(value) + np.abs(base), computed_in(to)) + ulp(total, to) / 2
        return Expected(total, error, False, np.isfinite(total) & np.isfinite(error))

    def _applied(self, request: Request, rows: Rows, values: dict[str, Any], e: Exact) -> Expected:
        """The second half of batch_norm's backward, of sums that may be anything.

        Their bound is that of dx for statistics that do not depend on x, of three terms.
        """
        op, dtype = fa.ops[request.op], request.dtype
        made, count = request.notes["made"], request.notes["count"]
        device = request.framework == "emulated"
        own = None if e.name == "identity" else fa.ops[e.name].bounds
        act = bounds.Activation(own, e.value, e.slope, device)
        of_z = op.bounds.again(z=e.z, xhat=e.xhat, weight=e.weight, dtype=dtype)
        if "bias" in made:
            of_z = of_z + bounds.unit_roundoff(dtype) * np.abs(e.bias)
        of_p = act.of_gradient(e.dy, e.z, of_z, dtype)
        p = e.dy * e.slope(e.z)
        first, second = (
            wide(full(made[k], values), dtype).reshape(rows.kept) / count
            for k in ("sum_dy", "sum_dy_xhat")
        )
        scale = np.abs(e.rstd * e.weight)
        dx = e.rstd * e.weight * (p - first - e.xhat * second)
        u = bounds.unit_roundoff(dtype)
        size = np.abs(p) + np.abs(first) + np.abs(e.xhat * second)
        far = 2.0**-24 * u * np.abs(e.mean * e.rstd * second)
        error = scale * (of_p + 16 * u * size + far)
        of = lambda a: np.broadcast_to(a, rows.split).reshape(rows.shape)  # noqa: E731
        total = of(dx) + added_to(request, values, 0)
        error = of(error)
        if request.accumulate:
            error = error + ulp(np.abs(of(dx)) + np.abs(total), computed_in(dtype))
        return Expected(total, error, True, np.isfinite(total) & np.isfinite(error))


def _with(array: Array, **named: Any) -> Array:
    from dataclasses import replace

    return replace(array, **named)
