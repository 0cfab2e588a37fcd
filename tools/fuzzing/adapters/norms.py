"""Norms over rows, groups and channels, whole and in halves."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastact as fa
from fastact.check.norm_rows import NormOracle, Rows, default, rows_of, traits
from fastact.ops import bounds

from ..cases import FLOAT64, Array, Draw, Number, Request, Shape, computed_in, number
from ..judge import Expected, ulp
from ..oracle import evaluate, reference, wide
from .base import Adapter, added_to, full, is_made

_VALUES = ("plain", "plain", "wide", "far", "constant", "huge", "not finite")
_EPS = (1e-5, 1e-6, 1e-12, 0, 0.5, 1)
_USUAL = ("call", "forward", "backward")  # entry points that every norm has


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


def draw_rows(op: Any, draw: Draw) -> tuple[Rows, dict[str, Any], tuple[Any, ...]]:
    """Some rows, the options that mean them, and those that stand behind x by position."""
    r, kind = draw.r, traits(op)
    shape = draw.shape(2 if kind.channels else 1, nonzero=draw.chance(0.9))
    ndim = len(shape)
    if not kind.channels:
        axis: Any = r.randrange(-ndim, ndim)
        if draw.chance(0.3):
            axis = tuple(r.sample(range(ndim), r.randrange(1, ndim + 1)))
        usual = axis == default(op, "axis")
        named = {"axis": axis} if not usual or draw.chance(0.3) else {}
        return rows_of(op, shape, {"axis": axis}), named, ()
    channel = 1 if draw.chance(0.6) else r.randrange(-ndim, ndim)
    usual = channel == default(op, kind.channels)
    options = {kind.channels: channel}
    named = options if not usual or draw.chance(0.2) else {}
    if not kind.groups:
        return rows_of(op, shape, options), named.copy(), ()
    count = shape[channel % ndim]
    groups = r.choice([g for g in range(1, count + 1) if count % g == 0] or [1])
    return rows_of(op, shape, {**options, "num_groups": groups}), named.copy(), (groups,)


class Norms(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        r, kind = draw.r, traits(op)
        entries = ["call", "call", "forward", "backward", "backward"]
        entry = r.choice([*entries, *(name for name in op.entry_points if name not in _USUAL)])
        rows, named, positional = draw_rows(op, draw)
        is_back = entry.startswith("backward")
        adds = kind.adds
        values = r.choice(_VALUES)
        made: dict[str, Array] = {}
        made["x"] = draw.leader("x", rows.shape, values)
        if (
            made["x"].values == "huge" and draw.dtype == FLOAT64
        ):  # squares overflow, which nobody promised
            made["x"] = _with(made["x"], values="wide")
        self._parameters(made, draw, rows)
        name = r.choice(("identity", "identity", "mish", r.choice(list(reference.FORWARD))))
        if name != "identity":
            named["activation"] = r.choice((name, fa.ops[name]))
        if "weight_offset" in op.entry_points["call"].defaults and draw.chance(0.3):
            named["weight_offset"] = number(r, 1, 0, -0.75)
        training = kind.moves and (entry not in _USUAL or draw.chance(0.6))
        notes: dict[str, Any] = {
            "rows": rows, "activation": name, "made": made, "training": training,
        }  # fmt: skip
        eps = number(r, *_EPS)
        if not is_back and default(op, "eps") is not None and draw.chance(0.4):
            named["eps"] = eps
        if is_back:
            return self._back(op, entry, draw, notes, named)
        if adds:
            made["residual"] = draw.array("residual", rows.shape, "plain", number=True)
        args: list[Any] = [made["x"], *([made["residual"]] if adds else []), *positional]
        if kind.given:
            args += [self._statistic(made, draw, rows, k) for k in ("mean", "rstd")]
        if kind.moves:
            args += self._running(made, draw, rows, training)
            notes["writes"] = ("running_mean", "running_var") if training else ()
            if training:
                notes["may be refused"] = rows.count < 2
            named["training"] = training
            if draw.chance(0.5):
                named["momentum"] = number(r, 0.1, 0, 1, 0.5)
        named |= {k: made[k] for k in ("weight", "bias") if k in made}
        outputs: list[Any] = [("y", rows.shape, draw.dtype)]
        if adds:
            outputs.append(("total", rows.shape, draw.dtype))
        operands = tuple(made[k] for k in ("x", "residual") if k in made)
        saves = entry == "forward"
        if saves and not kind.by_channel:
            wide = computed_in(draw.dtype)
            outputs += [(k, rows.statistics, wide) for k in kind.statistics]
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

    def _parameters(self, made: dict[str, Array], draw: Draw, rows: Rows) -> None:
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
        rows, made, kind = notes["rows"], notes["made"], traits(op)
        made["dy"] = draw.array("dy", rows.shape, draw.r.choice(("plain", "wide")), number=True)
        for name in kind.statistics:
            if kind.by_channel:
                self._statistic(made, draw, rows, name)
            else:
                shape, dtype = rows.statistics, computed_in(draw.dtype)
                made[name] = draw.array(name, shape, "plain", dtype)
        args: list[Any] = [made["dy"], made["x"], *(made[k] for k in kind.statistics)]
        weights = [k for k in ("weight", "bias") if k in made]
        if kind.adds and draw.chance(0.5):
            made["dtotal"] = draw.array("dtotal", rows.shape, "plain", number=True)
            named["dtotal"] = made["dtotal"]
        if entry == "backward_apply":
            for name in ("sum_dy", "sum_dy_xhat"):
                made[name] = draw.array(name, rows.statistics, "plain", FLOAT64)
            notes["count"] = max(rows.count, 1)
            args += [made.get("weight"), made["sum_dy"], made["sum_dy_xhat"], notes["count"]]
            if "bias" in made:
                named["bias"] = made["bias"]
        else:
            named |= {k: made[k] for k in weights}
            if kind.moves and entry == "backward":
                named["training"] = notes["training"]
        shape, dtype = rows.shape, draw.dtype
        if entry == "backward_reduce":
            outputs: list[Any] = [(k, rows.statistics, FLOAT64) for k in ("sum_dy", "sum_xhat")]
            outs = draw.outs(outputs, {}, forbidden=(made["x"], made["dy"]), skips=True)
        elif entry == "backward_apply":
            places = {0: (made["dy"], made["x"])}
            outs = draw.outs([("dx", shape, dtype)], places, accumulates=True)
        else:
            outputs = [("dx", shape, dtype)] + [
                (f"d{k}", made[k].shape, made[k].dtype) if k in made else None for k in kind.weights
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
        if "rstd" not in made or traits(fa.ops[request.op]).given:
            return values
        x = wide(full(made["x"], values), request.dtype).reshape(rows.split)
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
        if name == "weight_offset":
            return True
        return 0 <= value <= 1 if name == "momentum" else value >= 0

    # --- what is right ----------------------------------------------------------------------------

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        notes, dtype, kind = request.notes, request.dtype, traits(fa.ops[request.op])
        rows, made, name = notes["rows"], notes["made"], notes["activation"]
        arrays = {k: full(a, values) for k, a in made.items()}
        with np.errstate(all="ignore"):
            if "weight" in made and "weight_offset" in request.named:
                offset = request.named["weight_offset"].value
                arrays["weight"] = arrays["weight"].astype(np.longdouble) + offset
            if "residual" in made:
                compute = computed_in(dtype)
                total = arrays["x"].astype(compute) + arrays["residual"].astype(compute)
                arrays["x"] = total.astype(dtype)
            if request.entry in ("call", "forward"):
                return self._forward(request, rows, values, arrays)
            if dtype == FLOAT64 and name in reference.BY_DIGITS and arrays["x"].size > 200:
                return [None] * self._gradients(request, rows)
            arrays["dy"] = np.broadcast_to(arrays["dy"], rows.shape)
            depends = request.entry == "backward" and (notes["training"] or not kind.by_channel)
            oracle = self._oracle(request)
            statistics = (arrays.get("mean", 0.0), arrays["rstd"])
            exact = oracle.of(arrays, statistics, depends=depends)
            return self._backward(request, rows, values, oracle, exact)

    def _gradients(self, request: Request, rows: Rows) -> int:
        if request.entry == "backward":
            return len(fa.ops[request.op].gradients)
        return 2 if request.entry == "backward_reduce" else 1

    def _oracle(self, request: Request) -> NormOracle:
        notes = request.notes
        dtypes = {k: notes["made"][k].dtype for k in ("weight", "bias") if k in notes["made"]}
        on_gpu = request.framework == "emulated"
        op, name = fa.ops[request.op], notes["activation"]
        return NormOracle(op, notes["rows"], request.dtype, name, dtypes, on_gpu, Exact)

    def _forward(
        self, request: Request, rows: Rows, values: dict[str, Any], arrays: dict[str, Any]
    ) -> list[Expected | None]:
        notes, dtype, made = request.notes, request.dtype, request.notes["made"]
        op = fa.ops[request.op]
        kind, eps = traits(op), request.named.get("eps", Number(default(op, "eps"))).value
        given = kind.given or (kind.moves and not notes["training"])
        x = wide(arrays["x"], dtype).reshape(rows.split)
        if kind.given:
            mean, rstd = (wide(arrays[k], dtype).reshape(rows.kept) for k in kind.statistics)
        elif given:
            mean, var = (
                wide(arrays[k], dtype).reshape(rows.kept) for k in ("running_mean", "running_var")
            )
            rstd = 1 / np.sqrt(var + eps)
        elif x.size:
            mean, rstd = reference.statistics(x, rows.axes, eps, rows.centred)
        else:
            mean = rstd = np.full(rows.kept, np.nan)
        oracle = self._oracle(request)
        exact = oracle.of(
            {k: arrays[k] for k in ("x", "weight", "bias") if k in arrays},
            (mean, rstd), depends=not given,
        )  # fmt: skip
        usual = np.isfinite(x).all(rows.axes, keepdims=True) & np.isfinite(rstd)
        if not given and eps < 1e-30 and x.size:  # of (nearly) equal values nothing is left
            size = np.abs(x).max(rows.axes, keepdims=True)
            usual = usual & (1 / rstd > 1e-4 * size) if rows.centred else usual & (size > 0)
        y, error = oracle.y(exact)
        of = rows.back
        judged = np.broadcast_to(usual, rows.split) & np.isfinite(y)
        nan = np.isnan(x).any(rows.axes, keepdims=True) if not given else np.isnan(x)
        expected: list[Expected | None] = [Expected(of(y), of(error), False, of(judged), of(nan))]
        if kind.adds:
            expected.append(Expected(np.asarray(arrays["x"], np.float64), 0.0, False))
        if request.entry == "forward":
            expected += self._saved(request, rows, x, mean, rstd, usual, given)
        if notes.get("writes") and "running_mean" in made:
            expected += self._moved(request, rows, values, x, mean)
        return expected

    def _saved(
        self, request: Request, rows: Rows, x: Any, mean: Any, rstd: Any, usual: Any, given: bool
    ) -> list[Expected | None]:
        """x, the statistics and the parameters."""
        kind = traits(fa.ops[request.op])
        if kind.given:
            return [None] * len(fa.ops[request.op].saves)
        op, to, dtype = fa.ops[request.op], rows.statistics, request.dtype
        device = request.framework == "emulated"
        kept: list[Expected | None] = [None]
        usual = usual.reshape(to)
        if rows.centred:
            error: Any = ulp(mean, computed_in(dtype)) / 2
            if not given and x.size:
                with np.errstate(all="ignore"):
                    size, apart = (np.abs(x - m).mean(rows.axes, keepdims=True) for m in (0, mean))
                on_gpu = {"apart": apart} if device else {}
                error = op.bounds.allowed_mean(mean, size, dtype, **on_gpu)
            kept.append(Expected(mean.reshape(to), error.reshape(to), False, usual))
        error = op.bounds.allowed_rstd(rstd, mean if rows.centred else 0 * rstd, dtype, device)
        kept.append(Expected(rstd.reshape(to), error.reshape(to), False, usual))
        return kept + [None] * len(kind.weights)

    def _moved(
        self, request: Request, rows: Rows, values: dict[str, Any], x: Any, mean: Any
    ) -> list[Expected | None]:
        """The running statistics after a batch."""
        made = request.notes["made"]
        usual = Number(default(fa.ops[request.op], "momentum"))
        momentum, count = request.named.get("momentum", usual).value, rows.count
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
            if request.framework == "emulated" and request.dtype != FLOAT64:
                rough = fa.ops[request.op].bounds.rough * 2.0**-24
                apart = np.abs(d).mean(rows.axes).reshape(old.shape)
                error = error + momentum * rough * (apart if key == "running_mean" else 2 * new)
            exact = reference.moved(old, new, momentum)
            found.append(Expected(exact, error, True, np.isfinite(new)))
        return found

    def _backward(
        self, request: Request, rows: Rows, values: dict[str, Any], oracle: NormOracle, exact: Any
    ) -> list[Expected | None]:
        made, dtype, of = request.notes["made"], request.dtype, rows.back
        if request.entry == "backward_apply":
            return [self._applied(request, rows, values, exact)]
        names = traits(fa.ops[request.op]).weights
        reduces = request.entry == "backward_reduce"
        to = FLOAT64 if reduces else {made[k].dtype for k in names if k in made} or {dtype}
        to = to if reduces else next(iter(to))
        found = oracle.gradients(exact, to)
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
        of = rows.back
        total = of(dx) + added_to(request, values, 0)
        error = of(error)
        if request.accumulate:
            error = error + ulp(np.abs(of(dx)) + np.abs(total), computed_in(dtype))
        return Expected(total, error, True, np.isfinite(total) & np.isfinite(error))


def _with(array: Array, **named: Any) -> Array:
    from dataclasses import replace

    return replace(array, **named)
