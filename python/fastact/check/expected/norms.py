"""Norms over rows, groups and channels, whole and in halves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case, Shape
from ...measure.norm_rows import Rows, back, rows_of, summed, traits
from ...ops import bounds
from ...ops.bounds import Activation, computed_in
from ...ops.dropout import dropout
from ...ops.engine.fused import IDENTITY
from .. import reference
from .common import Expected, activation_of, finite, ulp, wide, widened


@dataclass(frozen=True)
class _Exact:
    """A norm and its gradients for given statistics, by the textbook.

    All in one wide type; parameters and statistics broadcast against x. g = p weight, p = dy f'(z).

    act : the activation behind the norm. depends : whether the statistics are x's.
    factor : of the means that dx subtracts.
    """

    rows: Rows
    act: Activation
    x: Any
    dy: Any
    mean: Any
    rstd: Any
    weight: Any
    bias: Any
    depends: bool
    factor: Any

    @property
    def xhat(self) -> Any:
        return (self.x - self.mean) * self.rstd

    @property
    def z(self) -> Any:
        return self.xhat * self.weight + self.bias

    @property
    def p(self) -> Any:
        return self.dy * self.act.slope(self.z)

    @property
    def dx(self) -> Any:
        g, xhat = self.p * self.weight, self.xhat
        if not self.depends:
            return self.rstd * g
        mean_g = self.over(g) if self.rows.centred else 0.0
        return self.rstd * (g - mean_g - xhat * self.over(g * xhat))

    def over(self, a: Any) -> Any:
        """Return the mean over what shares statistics, times the factor."""
        return reference.average(a + 0 * self.x, self.rows.axes) * self.factor


def expected(case: Case) -> dict[str, Expected]:
    """y, the sum and what is saved, or the gradients; nothing of a casting but "exact"."""
    if case.option("casting") not in (None, "exact"):
        return {}
    return _Norm(case).found()


def gradients(case: Case, dy: Any, of_dy: Any) -> dict[str, Expected]:
    """Give the gradients for another dy than the case's, which is off by of_dy."""
    norm = _Norm(case)
    norm.arrays["dy"], norm.of_dy = dy, of_dy
    return norm.found()


class _Gate:
    """A gate's activation A and its slope, and how the errors of products with them grow.

    Of the shape `split`. Where a product on the way leaves the range, nothing is judged.
    """

    def __init__(self, case: Case, act: Activation, gate: Any) -> None:
        self.dtype, self.u = case.dtype, bounds.unit_roundoff(case.dtype)
        self.info = np.finfo(computed_in(case.dtype))
        self.value, self.of_value = act.value(gate), act.of_value(gate, 0.0, case.dtype)
        self.slope, one = act.slope(gate), np.ones_like(gate)
        self.of_slope = act.of_gradient(one, gate, 0.0, case.dtype)
        self.nan = np.isnan(gate)

    def product(self, a: Any, of_a: Any, b: Any, of_b: Any) -> tuple[Any, Any]:
        """In the type that is computed in."""
        exact = a * b
        error = np.abs(a) * of_b + np.abs(b) * of_a + of_a * of_b
        error = error + self.u * (np.abs(exact) + error) + self.info.smallest_subnormal
        return exact, np.where(np.abs(exact) <= self.info.max, error, np.inf)

    def gated(self, a: Any, of_a: Any = 0.0) -> tuple[Any, Any]:
        """Return the product a A."""
        return self.product(a, of_a, self.value, self.of_value)

    def to_gate(self, a: Any, b: Any, of_b: Any) -> tuple[Any, Any]:
        """Return the product (a b) act'(gate)."""
        return self.product(*self.product(a, 0.0, b, of_b), self.slope, self.of_slope)


class _Norm:
    """A call of a norm: its rows, its arrays by name, and the oracle."""

    def __init__(self, case: Case) -> None:
        self.case, self.op, self.kind, self.dtype = case, case.op, traits(case.op), case.dtype
        self.bounds, self.u = case.op.bounds, bounds.unit_roundoff(case.dtype)
        self.rows: Rows = rows_of(case.op, case.shape, case.given)
        activation = case.option("activation")
        self.act = activation_of(getattr(activation, "name", activation or IDENTITY), case.on_gpu)
        self.of_dy: Any = 0.0
        names = ("x", "dy", "weight", "bias", "mean", "rstd", "running_mean", "running_var")
        self.arrays = {k: case.array(k) for k in names if case.has(k)}
        self.dtypes = {k: self.arrays[k].dtype for k in self.kind.weights if k in self.arrays}
        if "weight" in self.arrays and case.has("weight_offset"):
            offset = case.given["weight_offset"]
            self.arrays["weight"] = self.arrays["weight"].astype(np.longdouble) + offset
        if case.has("residual") and case.entry in ("call", "forward"):
            self.arrays["x"] = self._total()
        self.gate, self.of_x = None, None
        if self.kind.gated:
            split = self.rows.split
            self.gate = _Gate(case, self.act, widened(case, "gate").reshape(split))
            self.act = activation_of(IDENTITY)
            if case.option("gate_first"):
                gated, error = self.gate.gated(wide(self.arrays["x"], self.dtype).reshape(split))
                self.of_x = error
                self.arrays["x"] = np.where(np.isinf(error), np.inf, gated)

    def _total(self) -> Any:
        """Return the sum that is normalised; what is dropped before has the bits of that op."""
        x, residual = self.arrays["x"], self.case.array("residual")
        if self.kind.drops:
            return dropout(x, residual=residual, **self._dropping())
        compute = computed_in(self.dtype)
        return (x.astype(compute) + residual.astype(compute)).astype(self.dtype)

    def _dropping(self) -> dict[str, Any]:
        return {name: self.case.option(name) for name in dropout.checks}

    def exact(self, statistics: tuple[Any, Any], depends: bool) -> _Exact:
        """Give the exact norm for some statistics. depends : whether they are x's."""
        rows = self.rows

        def full(value: Any, shape: Shape) -> Any:
            value = wide(value, self.dtype)
            return value.reshape(shape) if value.ndim else value  # a number is for all

        arrays = {"dy": 0.0, "weight": 1.0, "bias": 0.0, **self.arrays}
        x, dy = (full(arrays[name], rows.split) for name in ("x", "dy"))
        weight, bias = (full(arrays[name], rows.along) for name in ("weight", "bias"))
        mean, rstd = (full(a, rows.kept) for a in statistics)
        eps = self.case.option("eps") or 0.0
        factor = reference.row_formulas(self.op).subtracted(rows.length, rstd, eps)
        return _Exact(rows, self.act, x, dy, mean, rstd, weight, bias, depends, factor)

    def _wide_bias(self, e: _Exact) -> Any:
        """Give the bias if it is of a wider type than the data are computed in."""
        size = self.dtypes.get("bias", self.dtype).itemsize
        return e.bias if size > computed_in(self.dtype).itemsize else 0.0

    def _is_rough(self) -> bool:
        """Tell whether a GPU adds up moments in float32."""
        return bool(self.bounds.rough) and self.case.on_gpu and self.dtype != DOUBLE

    def _of_sum(self, constant: float, terms: Any) -> Any:
        """Return a constant of a sum of so many terms, in u."""
        return constant + (self.bounds.each * terms if self.dtype == DOUBLE else 0.0)

    def _again(self, e: _Exact, bias: Any = 0.0) -> Any:
        """How far off z may be as backward makes it again, of the statistics that it is given."""
        scaled = self.bounds.scaled * np.abs(e.xhat * e.weight)
        return self.u * (scaled + np.abs(e.z) + np.abs(bias))

    def _of_z(self, e: _Exact) -> Any:
        """How far off z may be, before the activation."""
        of, error = self.bounds, self._again(e, self._wide_bias(e))
        apart, w, size = np.abs(e.mean * e.rstd), np.abs(e.weight), 1 + np.abs(e.xhat)
        if self.dtype != DOUBLE:
            error = error + of.far * apart * w
        elif e.depends:
            error = error + w * (of.far_double * apart + of.moments) * size
        return error + of.rough * 2.0**-24 * w * size if self._is_rough() and e.depends else error

    def found(self) -> dict[str, Expected]:
        """Give all that is judged; the mean's bound is near the oracle's error in every dtype."""
        return {name: replace(one, is_near=True) for name, one in self._found().items()}

    def _found(self) -> dict[str, Expected]:
        entry = self.case.entry
        if entry in ("call", "forward"):
            return self._forward()
        trains = self.case.option("training") or not self.kind.by_channel
        statistics = (self.arrays.get("mean", 0.0), self.arrays["rstd"])
        exact = self.exact(statistics, depends=entry == "backward" and trains)
        if entry == "backward_apply":
            return {"dx": self._applied(exact)}
        return self._backward(exact)

    def _forward(self) -> dict[str, Expected]:
        case, rows, kind, arrays = self.case, self.rows, self.kind, self.arrays
        eps = case.option("eps")
        given = kind.given or (kind.moves and not case.option("training"))
        x = wide(arrays["x"], self.dtype).reshape(rows.split)
        names = kind.statistics if kind.given else ("running_mean", "running_var")
        if given:
            mean, rstd = (wide(arrays[k], self.dtype).reshape(rows.kept) for k in names)
            rstd = rstd if kind.given else 1 / np.sqrt(rstd + eps)
        elif x.size:
            formulas = reference.row_formulas(self.op)
            mean, rstd = reference.statistics(x, rows.axes, eps, rows.centred, formulas)
        else:
            mean = rstd = np.full(rows.kept, np.nan)
        exact = self.exact((mean, rstd), depends=not given)
        usual = np.isfinite(x).all(rows.axes, keepdims=True) & np.isfinite(rstd)
        if not given and eps < 1e-30 and x.size:  # of (nearly) equal values nothing is left
            size = np.abs(x).max(rows.axes, keepdims=True)
            usual = usual & (1 / rstd > 1e-4 * size) if rows.centred else usual & (size > 0)
        y, error = self._y(exact)
        judged = np.broadcast_to(usual, rows.split) & np.isfinite(y)
        nan = np.isnan(x) if given else np.isnan(x).any(rows.axes, keepdims=True)
        if self.gate is not None:
            nan = nan | self.gate.nan
        found = {
            "y": Expected(
                back(rows, y), back(rows, error), True, back(rows, judged), back(rows, nan)
            )
        }
        if kind.adds:
            found["total"] = Expected(np.asarray(arrays["x"], np.float64), 0.0, False)
        if case.entry == "forward" and not kind.given:
            found |= self._saved(x, mean, rstd, usual.reshape(rows.statistics), given)
        if kind.moves and not given and "running_mean" in arrays and rows.length > 1:
            found |= self._moved(x, mean)
        return found

    def _y(self, e: Any) -> tuple[Any, Any]:
        """Give y, and how far from it the op may be: also of a z, or from an x, that is gated."""
        gate, of_z = self.gate, self._of_z(e)
        if gate is None:
            return self.act.value(e.z), self.act.of_value(e.z, of_z, self.dtype)
        if self.of_x is None:
            return gate.gated(e.z, of_z)
        of_xhat = e.rstd * self.of_x  # which moves xhat weight, with the rstd of x
        moved = np.abs(e.weight) * (of_xhat + np.abs(e.xhat) * e.over(np.abs(e.xhat) * of_xhat))
        return e.z, of_z + moved

    def _saved(self, x: Any, mean: Any, rstd: Any, usual: Any, given: bool) -> dict[str, Expected]:
        of, rows = self.bounds, self.rows
        to, found, rough = rows.statistics, {}, self._is_rough()
        if rows.centred:
            error: Any = 0.0 * mean
            if not given and x.size:
                size, apart = (np.abs(x - m).mean(rows.axes, keepdims=True) for m in (0, mean))
                error = of.moments * size + (of.rough * 2.0**-24 * apart if rough else 0.0)
            found["mean"] = Expected(mean.reshape(to), error.reshape(to), True, usual)
        # Half the relative error of a variance.
        share = of.moments if self.dtype == DOUBLE else 2.0**-34
        share = of.rough * 2.0**-24 if rough else share
        far = np.abs(mean * rstd) if rows.centred else 0 * rstd
        error = (share + 2.0**-52 * far) * np.abs(rstd)
        if self.of_x is not None:
            error = error + rstd**2 * reference.average(np.abs(x * rstd) * self.of_x, rows.axes)
        return {**found, "rstd": Expected(rstd.reshape(to), error.reshape(to), True, usual)}

    def _moved(self, x: Any, mean: Any) -> dict[str, Expected]:
        """Return the running statistics after a batch."""
        axes, momentum = self.rows.axes, self.case.option("momentum")
        d = x - mean
        var = (d * d).sum(axes, keepdims=True) / (self.rows.length - 1)
        found = {}
        for key, new in (("running_mean", mean), ("running_var", var)):
            old = self.arrays[key].astype(np.float64)
            is_mean, new = key == "running_mean", np.asarray(new).reshape(old.shape)
            # 16-bit running statistics are moved in float32.
            u = bounds.unit_roundoff(self.arrays[key].dtype)
            size = np.abs(x).mean(axes).reshape(old.shape) if is_mean else new
            error = 4 * u * (np.abs(old) + np.abs(new)) + momentum * 2.0**-32 * np.abs(size)
            if self.case.on_gpu and self.dtype != DOUBLE:
                apart = np.abs(d).mean(axes).reshape(old.shape)
                rough = self.op.bounds.rough * 2.0**-24
                error = error + momentum * rough * (apart if is_mean else 2 * new)
            exact = reference.moved(old, new, momentum)
            found[key] = Expected(exact, error, True, np.isfinite(new))
        return found

    def _backward(self, exact: Any) -> dict[str, Expected]:
        rows, reduces = self.rows, self.case.entry == "backward_reduce"
        found = self._gradients(exact)
        names = {"bias": "sum_dy", "weight": "sum_dy_xhat"} if reduces else {}
        shape = rows.statistics if reduces else rows.parameter
        given = names or [k for k in self.kind.weights if k in self.arrays]
        parts = {names.get(k, f"d{k}"): [np.asarray(a).reshape(shape) for a in found[f"d{k}"]]
                 for k in given}  # fmt: skip
        for name in ("dx", "dgate") if not reduces else ():
            if name in found:
                parts[name] = [back(rows, part) for part in found[name]]
        if self.case.has("dtotal"):
            more = widened(self.case, "dtotal")
            dx, error = parts["dx"]
            size = np.abs(dx) + np.abs(more)
            parts["dx"] = [dx + more, error + ulp(size, computed_in(self.dtype))]
        if self.kind.drops:
            dx, error = parts["dresidual"] = parts["dx"]
            error = error + bounds.rounding(dx, self.dtype, error)
            if self.case.on_gpu:  # which has it in memory, rounded, before it adds it to another
                parts["dresidual"] = [dx, error]
            told = self._dropping()
            kept, scale = reference.kept(dx.shape, **told), 1 / max(1 - told["p"], 2.0**-53)
            dx, error = (np.where(kept, a * scale, 0.0) for a in (dx, error))
            parts["dx"] = [dx, error + dropout.bounds.of_result(dx, dx, self.dtype)]
        fits = self._fits(exact)
        rounded = {"dresidual"} if self.case.on_gpu else set()
        return {
            n: finite(of, error, fits, rounds=n not in rounded) for n, (of, error) in parts.items()
        }

    def _fits(self, e: Any) -> bool:
        """Whether no product on the way to a gradient overflows: sums would have two infinities."""
        most = float(np.finfo(computed_in(self.dtype)).max)
        parts = (
            e.z,
            self.act.slope(e.z),
            e.p,
            e.p * e.weight,
            e.p * e.xhat,
            e.p * e.weight * e.xhat,
        )
        return not any(np.any((np.abs(a) > most) & np.isfinite(a)) for a in parts)

    def _of_norm(self, e: _Exact, of_dy: Any = 0.0) -> dict[str, tuple[Any, Any]]:
        """Give dx (of the shape `split`), dweight and dbias, each with how far off the op may be.

        e : the exact norm of the statistics that backward is given. of_dy : how far off dy is,
        where there is no activation.
        """
        of, total, u = self.bounds, partial(summed, self.rows), self.u
        p, xhat, dx = e.p, e.xhat, e.dx
        of_z = self._again(e, self._wide_bias(e))
        of_p = self.act.of_gradient(e.dy, e.z, of_z, self.dtype) + of_dy
        g, of_g = np.abs(p * e.weight), of_p * np.abs(e.weight)
        if not e.depends:
            error = of.given * u * g + of_g
        else:
            count = e.x.size // max(1, np.size(e.rstd))
            averaged = self._of_sum(of.averaged, count) * u * g + of_g
            error = of.gradient * u * g + of_g + np.abs(xhat) * e.over(averaged * np.abs(xhat))
            if self.rows.centred:
                error = error + e.over(averaged)
        found = {"dx": (dx, np.abs(e.rstd) * error)}
        parts = {"dweight": (p * xhat, of_p * np.abs(xhat)), "dbias": (p, of_p)}
        for name, (terms, of_terms) in parts.items():
            exact, count = total(terms), total(1.0 + 0.0 * np.abs(terms))
            error = self._of_sum(of.summed, count) * u * total(np.abs(terms)) + total(of_terms)
            found[name] = exact, error
        return found

    def _gradients(self, e: Any) -> dict[str, tuple[Any, Any]]:
        """Give the gradients, dgate too; e : exact values, for dy and the gated x."""
        gate = self.gate
        if gate is None:
            return self._of_norm(e, self.of_dy)
        if self.of_x is None:
            dy, (p, of_p) = e.dy, gate.gated(e.dy)
            e = replace(e, dy=p)
            of_z = self._again(e)
            return {**self._of_norm(e, of_p), "dgate": gate.to_gate(dy, e.z, of_z)}
        of = self._of_norm(e)
        of_xhat = e.rstd * self.of_x
        du, error = of["dx"]
        error = error + bounds.rounding(du, computed_in(self.dtype), error)
        xhat, g = e.xhat, e.dy * e.weight
        moved = of_xhat * np.abs(e.over(g * xhat))
        moved = moved + (np.abs(xhat) + of_xhat) * e.over(np.abs(g) * of_xhat)
        error = error + np.abs(e.rstd) * moved
        x = wide(self.case.array("x"), self.dtype).reshape(self.rows.split)
        dweight, of_dweight = of["dweight"]
        of_dweight = of_dweight + summed(self.rows, np.abs(e.dy) * of_xhat)
        return {
            "dx": gate.gated(du, error),
            "dgate": gate.to_gate(x, du, error),
            "dweight": (dweight, of_dweight),
        }

    def _applied(self, e: Any) -> Expected:
        """Return the second half of batch_norm's backward, of sums that may be anything.

        The bound is dx's for statistics that do not depend on x, with three terms.
        """
        case, dtype, rows = self.case, self.dtype, self.rows
        of_z = self._again(e)
        u = bounds.unit_roundoff(dtype)
        if "bias" in self.arrays:
            of_z = of_z + u * np.abs(e.bias)
        of_p, p = self.act.of_gradient(e.dy, e.z, of_z, dtype), e.p
        first, second = (
            widened(case, k).reshape(rows.kept) / case.given["count"]
            for k in ("sum_dy", "sum_dy_xhat")
        )
        dx = e.rstd * e.weight * (p - first - e.xhat * second)
        size = np.abs(p) + np.abs(first) + np.abs(e.xhat * second)
        far = 2.0**-24 * u * np.abs(e.mean * e.rstd * second)
        error = np.abs(e.rstd * e.weight) * (of_p + 16 * u * size + far)
        return finite(back(rows, dx), back(rows, error))
