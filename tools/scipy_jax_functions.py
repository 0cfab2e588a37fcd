"""SciPy's own tests of softmax, logsumexp and expit, and JAX's functions, against ours.

    python tools/scipy_jax_functions.py

scipy.special.tests are collected with our ops in the place of SciPy's functions, under their
signatures. JAX ships no tests: its functions, their gradients too, are compared with ours in
float64. What deviates, and why, stands in DEVIATIONS: any other failure ends the script with an
error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from others_tests import Outcomes, report, run

import fastact as fa

#: A part of a failure's message, or of a test's name, and why ours deviates.
DEVIATIONS: dict[str, str] = {
    "got complex": "complex data are refused, in words",
    "no return_sign": "the sign of a sum of exponentials that are subtracted",
    "no negative b": "b is the mask log(b): no exponential is subtracted",
    "no b of another shape": "a mask broadcasts to x's shape, x not to the mask's",
    "test_dtypes_ab": "b of another dtype, and negative",
    "got float128": "there are no kernels of long double",
    "jax: gelu tanh": "JAX's own derivative cancels far below 0: of 1 + tanh",
    "jax: log_softmax of a part": "backward has y alone: its sum has the dy of all elements",
}


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """Ours under SciPy's signature."""
    if return_sign:
        raise TypeError("no return_sign")
    a = np.asarray(a)
    mask = None
    if b is not None:
        b = np.asarray(b)
        if np.any(b < 0):
            raise TypeError("no negative b")
        if np.broadcast_shapes(a.shape, b.shape) != a.shape:
            raise TypeError("no b of another shape")
        with np.errstate(divide="ignore"):
            mask = np.asarray(np.log(b, dtype=np.result_type(a, b, np.float32)))
    return fa.logsumexp(a, axis, mask=mask, keepdims=keepdims)


#: Of a module of scipy.special.tests: SciPy's names, and ours under SciPy's signatures.
OF_SCIPY: dict[str, dict[str, Callable[..., Any]]] = {
    "test_logsumexp": {
        "softmax": lambda x, axis=None: fa.softmax(x, axis),
        "log_softmax": lambda x, axis=None: fa.log_softmax(x, axis),
        "logsumexp": logsumexp,
    },
    "test_logit": {
        "expit": lambda x: fa.sigmoid(x),
        "log_expit": lambda x: fa.logsigmoid(x),
    },
}


class Replaces(Outcomes):
    """Puts ours into each module of tests, once it is collected."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            for name, ours in OF_SCIPY[item.module.__name__.rpartition(".")[2]].items():
                setattr(item.module, name, ours)


def of_jax(jax: Any) -> Iterator[tuple[str, Any, Any, dict[str, Any], dict[str, Any]]]:
    """A name, ours, JAX's, and the options of each."""
    for name in ("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "softplus"):
        yield name, fa.ops[name], getattr(jax.nn, name), {}, {}
    for ours, theirs in (
        ("sigmoid", jax.nn.sigmoid),
        ("logsigmoid", jax.nn.log_sigmoid),
        ("softsign", jax.nn.soft_sign),
        ("tanh", jax.numpy.tanh),
        ("hardtanh", jax.nn.hard_tanh),
    ):
        yield ours, fa.ops[ours], theirs, {}, {}
    yield "gelu", fa.gelu, jax.nn.gelu, {}, {"approximate": False}
    yield "gelu tanh", fa.gelu, jax.nn.gelu, {"approximate": "tanh"}, {"approximate": True}
    for axis in (0, 1, (0, 1)):
        for ours in ("softmax", "log_softmax", "logsumexp"):
            yield f"{ours} {axis}", fa.ops[ours], getattr(jax.nn, ours), *[{"axis": axis}] * 2
    yield "glu", fa.glu, jax.nn.glu, {}, {}
    mask = np.arange(ROWS[0].size).reshape(ROWS[0].shape) % 3 > 0
    for ours in ("softmax", "log_softmax", "logsumexp"):
        given = ({"mask": mask}, {"where": mask, "axis": -1})
        yield f"{ours} of a part", fa.ops[ours], getattr(jax.nn, ours), *given


# Beside corners, not on them: there a derivative is a choice.
_GRID = np.array([-800, -90, -20, -6.5, -3.01, -1.5, -0.3, -1e-9, 1e-9, 0.4, 1.01, 2, 5.9, 40, 720])
ROWS = (
    np.concatenate([_GRID, _GRID[:1] + 1]).reshape(2, 8),
    np.random.default_rng(0).standard_normal((2, 8)),
)
#: JAX composes its functions of exponentials; ours are within 4 units of the last place.
NEAR = {"rtol": 1e-13, "atol": 1e-15}


def compare_with_jax() -> Outcomes:
    """Values and gradients of every pair; a failure's message is NumPy's first line."""
    import jax

    jax.config.update("jax_enable_x64", True)
    outcomes = Outcomes()
    for name, ours, theirs, our_options, their_options in of_jax(jax):
        for i, x in enumerate(ROWS):
            expected, pull = jax.vjp(lambda a: theirs(a, **their_options), x)  # noqa: B023
            dy = np.linspace(-1, 2, expected.size).reshape(expected.shape)
            y, saved = ours.forward(x, **our_options)
            left = {k: v for k, v in our_options.items() if k != "mask"}
            dx = ours.backward(dy, *saved, **left)
            dx = dx[0] if isinstance(dx, tuple) else dx
            case = f"jax: {name}[{i}]"
            try:
                np.testing.assert_allclose(y, expected, err_msg="value", **NEAR)
                np.testing.assert_allclose(dx, pull(dy)[0], err_msg="gradient", **NEAR)
            except AssertionError as error:
                outcomes.failed[case] = " ".join(str(error).split())
            else:
                outcomes.passed.append(case)
    return outcomes


def main() -> int:
    """Run both, and print the list."""
    outcomes = Replaces()
    run(outcomes, *(f"scipy.special.tests.{name}" for name in OF_SCIPY), "-k", "not TestLogit and "
        "not wrap_radians")  # fmt: skip
    compared = compare_with_jax()
    outcomes.failed |= compared.failed
    outcomes.passed += compared.passed
    return report(outcomes, DEVIATIONS)


if __name__ == "__main__":
    sys.exit(main())
