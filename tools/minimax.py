"""Minimax polynomials of src/common/math, by Remez in 200 digits.

    python tools/minimax.py NAME float|double [DEGREE]

prints the coefficients from the constant upwards as hexadecimal literals, and the worst relative
error with these rounded coefficients. Without arguments it lists the names. Needs mpmath and numpy.

Polynomials are rounded from the constant upwards, and what is left is fitted anew after each: the
later coefficients then make up for the rounding of the earlier ones. Around a point inside of the
range each coefficient is tried one and two units up and down, as long as that makes the worst error
smaller.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.dps = 200
Function = Callable[[Any], Any]
PRECISION = {"float": 24, "double": 53}


@dataclass(frozen=True)
class Target:
    """A function to fit: `f` on [low, high], or on [-high, high] where `both_signs`.

    weight : what an error of f means relative to the result.
    degrees : for each type.
    """

    text: str
    f: Function
    weight: Function
    high: dict[str, Any]
    degrees: dict[str, int]
    low: Any = 0
    both_signs: bool = False


def _half_scaled_erfc(t: Any) -> Any:
    return mpmath.erfc(t / mpmath.sqrt(2)) * mpmath.exp(t * t / 2) / 2


def _near(kind: str, high: str, degree: int) -> Target:
    return Target(
        f"p(t^2) of Phi(t) = 1/2 + t p(t^2), t to {high}, for {kind}",
        lambda z: mpmath.erf(mpmath.sqrt(z / 2)) / (2 * mpmath.sqrt(z)),
        lambda z: 2 * mpmath.sqrt(z) / mpmath.erfc(mpmath.sqrt(z / 2)),
        {kind: mpf(high) ** 2 * mpf("1.001")},
        {kind: degree},
    )


def _far(kind: str, middle: str, shift: str, low: str, high: str, degree: int) -> Target:
    def t_of(z: Any) -> Any:
        return (mpf(middle) + mpf(shift) * z) / (1 - z)

    def z_of(t: str) -> Any:
        return (mpf(t) - mpf(middle)) / (mpf(t) + mpf(shift))

    def far(z: Any) -> Any:
        return t_of(z) * _half_scaled_erfc(t_of(z))

    return Target(
        f"p(z) of t (1 - Phi(t)) = exp(-t^2/2) p(z), z = (t - {middle}) / (t + {shift}), "
        f"for {kind}",
        far,
        lambda z: 1 / far(z),
        {kind: z_of(high)},
        {kind: degree},
        low=z_of(low),
    )


def _slope(kind: str, shift: str, high: str, floor: int, degree: int) -> Target:
    """Its error counts absolutely; far out, where it has long been small, relatively."""

    def t_of(v: Any) -> Any:
        return mpf(shift) * v / (1 - v)

    def slope(v: Any) -> Any:
        t = t_of(v)
        return (_half_scaled_erfc(t) - t / mpmath.sqrt(2 * mpmath.pi)) / (t + mpf(shift))

    def weight(v: Any) -> Any:
        t = t_of(v)
        return max(mpmath.exp(-t * t / 2) * (t + mpf(shift)), mpf(2) ** -floor / abs(slope(v)))

    return Target(
        f"p(v) of gelu'(-t) = exp(-t^2/2) (t + {shift}) p(t / (t + {shift})), for {kind}",
        slope,
        weight,
        {kind: mpf(high) / (mpf(high) + mpf(shift))},
        {kind: degree},
    )


def rounded(value: Any, bits: int) -> Any:
    with mp.workprec(bits):
        return +value


TARGETS = {
    "exp": Target(
        "q(r) of exp(r) = 1 + r + r^2 q(r)",
        lambda r: (mpmath.exp(r) - 1 - r) / r**2,
        lambda r: r**2 / mpmath.exp(r),
        dict.fromkeys(PRECISION, mpmath.log(2) / 2 * mpf("1.0001")),
        {"float": 4, "double": 9},
        both_signs=True,
    ),
    "log1p": Target(
        "q(u) of log1p(u) = u + u^2 q(u), u to 1",
        lambda u: (mpmath.log1p(u) - u) / u**2,
        lambda u: u**2 / mpmath.log1p(u),
        dict.fromkeys(PRECISION, mpf(1)),
        {"float": 8, "double": 19},
    ),
    "log1p_low": Target(
        "q(u) of log1p(u) = u + u^2 q(u), u to exp(-2)",
        lambda u: (mpmath.log1p(u) - u) / u**2,
        lambda u: u**2 / (1 - mpmath.log(2) + mpmath.log1p(u)),
        dict.fromkeys(PRECISION, mpmath.exp(-2)),
        {"float": 3, "double": 8},
    ),
    "tanhshrink": Target(
        "q(x^2) of x - tanh(x) = x^3 q(x^2), x to 1; the kernel takes 1/3 as rounded from q(0)",
        lambda z: (mpmath.sqrt(z) - mpmath.tanh(mpmath.sqrt(z))) / mpmath.sqrt(z) ** 3,
        lambda z: mpmath.sqrt(z) ** 3 / (mpmath.sqrt(z) - mpmath.tanh(mpmath.sqrt(z))),
        dict.fromkeys(PRECISION, mpf(1)),
        {"float": 7, "double": 15},
    ),
    "logcosh": Target(
        "q(x^2) of log(cosh(x)) = x^2 q(x^2), x to 1",
        lambda z: mpmath.log(mpmath.cosh(mpmath.sqrt(z))) / z,
        lambda z: z / mpmath.log(mpmath.cosh(mpmath.sqrt(z))),
        dict.fromkeys(PRECISION, mpf(1)),
        {"float": 6, "double": 14},
    ),
    "half_exp": Target(
        "p(r) of exp(-r/2) = 1 + r p(r)",
        lambda r: mpmath.expm1(-r / 2) / r,
        lambda r: r / mpmath.exp(-r / 2),
        dict.fromkeys(PRECISION, mpmath.log(2) * mpf("1.0001")),
        {"float": 5, "double": 10},
        both_signs=True,
    ),
    "sine": Target(
        "q(r^2) of sin(r) = r + r^3 q(r^2), r to pi/2",
        lambda z: (mpmath.sin(mpmath.sqrt(z)) / mpmath.sqrt(z) - 1) / z,
        lambda z: mpmath.sqrt(z) ** 3 / mpmath.sin(mpmath.sqrt(z)),
        dict.fromkeys(PRECISION, (mpmath.pi / 2) ** 2 * mpf("1.0001")),
        {"float": 3, "double": 7},
    ),
    "cosine": Target(
        "q(r^2) of cos(r) = 1 + r^2 q(r^2), r to pi/2; its error counts absolutely",
        lambda z: (mpmath.cos(mpmath.sqrt(z)) - 1) / z,
        lambda z: z,
        dict.fromkeys(PRECISION, (mpmath.pi / 2) ** 2 * mpf("1.0001")),
        {"float": 4, "double": 7},
    ),
    "normal_near": _near("float", "0.5625", 3),
    "normal_near_double": _near("double", "0.8", 8),
    "normal_far": _far("float", "1.1875", "3", "0.5625", "13.3", 8),
    "normal_far_double": _far("double", "1.25", "3.5", "0.795", "37.7", 20),
    "normal_slope": _slope("float", "3.5", "13.3", 16, 6),
    "normal_slope_double": _slope("double", "5", "37.7", 30, 15),
}


def horner(coefficients: list[Any], x: Any) -> Any:
    value = mpf(0)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def remez(x: list[Any], f: list[Any], w: list[Any], degree: int) -> tuple[list[Any], Any]:
    """The polynomial of a degree, and its worst weighted error on a grid."""
    size = degree + 2
    at = [round(i * (len(x) - 1) / (size - 1)) for i in range(size)]
    best: Any = None
    for _ in range(20):
        rows, right = mpmath.matrix(size, size), mpmath.matrix(size, 1)
        for i, k in enumerate(at):
            for j in range(degree + 1):
                rows[i, j] = x[k] ** j
            rows[i, size - 1] = (-1) ** i / w[k]
            right[i] = f[k]
        *found, levelled = mpmath.lu_solve(rows, right)
        error = [(horner(found, t) - a) * b for t, a, b in zip(x, f, w, strict=True)]
        new, worst = exchange(error, size)
        if best is None or worst < best[1]:
            best = found, worst
        if new is None or worst <= abs(levelled) * mpf("1.0005"):
            break
        at = new
    return best


def exchange(error: list[Any], size: int) -> tuple[list[int] | None, Any]:
    """Find where the error is largest between its changes of sign, `size` of them in a row."""
    peaks: list[int] = []
    for k, e in enumerate(error):
        if peaks and (e > 0) == (error[peaks[-1]] > 0):
            if abs(e) > abs(error[peaks[-1]]):
                peaks[-1] = k
        else:
            peaks.append(k)
    worst = max(abs(error[k]) for k in peaks)
    while len(peaks) > size:  # the ends are the only ones that can go
        peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
    return (peaks if len(peaks) == size else None), worst


def settle(polynomial: list[Any], x: list[Any], f: list[Any], w: list[Any], bits: int) -> None:
    """Move rounded coefficients by units where the worst error gains by it."""
    error = np.array(
        [float((horner(polynomial, t) - a) * b) for t, a, b in zip(x, f, w, strict=True)]
    )
    weights = np.array([float(a * b) for a, b in zip(f, w, strict=True)])
    values = [horner(polynomial, t) for t in x]
    units = [mpf(2) ** (mpmath.frexp(c)[1] - bits) for c in polynomial]
    effect = weights * [
        [float(unit * t**j / v) for t, v in zip(x, values, strict=True)]
        for j, unit in enumerate(units)
    ]
    random = np.random.default_rng(0)
    best, best_steps = np.abs(error).max(), np.zeros(len(units), int)
    for _ in range(40):
        steps = best_steps + random.integers(-1, 2, len(units)) * (random.random(len(units)) < 0.3)
        here = np.abs(error + steps @ effect).max()
        gained = True
        while gained:
            gained = False
            for j in range(steps.size):
                for move in (-2, -1, 1, 2):
                    steps[j] += move
                    there = np.abs(error + steps @ effect).max()
                    if there < here * (1 - 1e-6):
                        here, gained = there, True
                    else:
                        steps[j] -= move
        if here < best:
            best, best_steps = here, steps.copy()
    for j, (step, unit) in enumerate(zip(best_steps.tolist(), units, strict=True)):
        polynomial[j] += step * unit


def fit(target: Target, kind: str, degree: int) -> tuple[list[Any], Any]:
    """Rounded coefficients and their worst error."""
    points, bits, high = 40 * (degree + 2), PRECISION[kind], target.high[kind]
    x = [(1 - mpmath.cos(mpmath.pi * (i + mpf(1) / 2) / points)) / 2 for i in range(points)]
    x = (
        [(2 * t - 1) * high for t in x]
        if target.both_signs
        else [target.low + t * (high - target.low) for t in x]
    )
    f, w = [target.f(t) for t in x], [target.weight(t) for t in x]
    found, ideal = remez(x, f, w, degree)
    print(f"worst relative error 2^{float(mpmath.log(ideal, 2)):.2f}, before rounding")
    plain = [rounded(c, bits) for c in found]
    if target.low >= 0:
        found, rest, weights = [], f, w
        for left in range(degree, -1, -1):
            c = rounded(remez(x, rest, weights, left)[0][0], bits)
            found.append(c)
            rest = [(r - c) / t for r, t in zip(rest, x, strict=True)]
            weights = [v * t for v, t in zip(weights, x, strict=True)]
    found = [rounded(c, bits) for c in found]
    if target.low < 0:
        settle(found, x, f, w, bits)

    def worst(polynomial: list[Any]) -> Any:
        parts = zip(x, f, w, strict=True)
        return max(abs((horner(polynomial, t) - a) * b) for t, a, b in parts)

    return min(((each, worst(each)) for each in (plain, found)), key=lambda fitted: fitted[1])


def main(arguments: list[str]) -> None:
    if len(arguments) < 2:
        print(__doc__)
        for name, target in TARGETS.items():
            print(f"{name:12} {target.text}; degrees {target.degrees}")
        return
    name, kind, *degree = arguments
    coefficients, error = fit(
        TARGETS[name], kind, int(degree[0]) if degree else TARGETS[name].degrees[kind]
    )
    suffix = "f" if kind == "float" else ""
    print(*(float(c).hex() + suffix for c in coefficients), sep="\n")
    print(f"worst relative error 2^{float(mpmath.log(error, 2)):.2f}, with these")


if __name__ == "__main__":
    main(sys.argv[1:])
