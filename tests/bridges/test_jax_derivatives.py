"""Forward mode, second derivatives and their mixtures, of every op, in float64."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import each_family, first_of_families
from jax_calls import called, differentiated, fj, jax, jnp, with_float64

import fastact as fa
from fastact.measure import cases

X = np.array([[-1.95, -0.95], [0.05, 1.05]])  # away from corners


float64 = pytest.fixture(autouse=True)(with_float64)


def function_of(op: Any, **options: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A call as a function of the arguments that have gradients, and these."""
    x, dy = np.random.default_rng(0).normal(size=(2, 2, 4))
    named = {**cases.sample(op, x, dy), **options}
    if op.writes(named):
        named |= dict.fromkeys(op.written)  # arrays of JAX are not written
    names = [n for n in differentiated(op, named) if hasattr(named[n], "shape")]
    return called(op, named, names), tuple(jnp.asarray(named[name]) for name in names)


def directions(arrays: Any) -> tuple[Any, ...]:
    random = np.random.default_rng(1)
    return tuple(jnp.asarray(random.normal(size=a.shape), a.dtype) for a in arrays)


def product(a: Any, b: Any) -> float:
    pairs = [(np.asarray(x, np.float64), np.asarray(y)) for x, y in zip(a, b, strict=True)]
    return float(sum(np.vdot(x, y) for x, y in pairs))


def adjoint(f: Callable[..., Any], arrays: Any, rtol: float = 1e-9) -> None:
    """Values are the kernels', and tangents the transpose of their gradients."""
    tangents = directions(arrays)
    y, moved = jax.jit(lambda *given: jax.jvp(f, arrays, given))(*tangents)
    results, pull = jax.vjp(f, *arrays)
    for one, other in zip(y, results, strict=True):
        assert np.array_equal(one, other)
    incoming = directions(results)
    size = product(map(abs, moved), map(abs, incoming))
    assert np.isclose(product(moved, incoming), product(tangents, pull(incoming)), 0, rtol * size)


@each_family
def test_tangents(op):
    """Of all arguments, and of the first alone."""
    f, arrays = function_of(op)
    adjoint(f, arrays)
    if len(arrays) > 1:
        adjoint(lambda x: f(x, *arrays[1:]), arrays[:1])


def test_tangents_of_stated_slopes():
    """The formula of js_div states its slopes, where those of the op's family are derived."""
    adjoint(*function_of(fa.js_div))


@each_family
def test_hessians(op):
    """By each mixture of both modes, as differences of gradients have them.

    The rules are the same for all ops; torch's tests have the formulas of each.
    """
    f, (x, *others) = function_of(op)

    def g(x: Any) -> Any:
        return sum((y**2).sum() for y in f(x, *others))

    fwd, rev = jax.jacfwd, jax.jacrev
    ways = jax.jit(lambda x: [fwd(rev(g))(x), rev(rev(g))(x), rev(fwd(g))(x), fwd(fwd(g))(x)])
    found, *same = ways(x)
    for way in same:
        assert np.allclose(way, found)
    grad, step = jax.jit(jax.grad(g)), np.linspace(-1, 1, x.size).reshape(x.shape) * 1e-5
    slope = (grad(x + step) - grad(x - step)) / 2
    assert np.allclose(np.tensordot(found, step, x.ndim), slope, atol=1e-10, rtol=1e-4)


@each_family
def test_reverse_mode_is_two_calls(op):
    """The kernels' forward and backward, and nothing that is composed."""
    f, arrays = function_of(op)

    def both(arrays: Any, incoming: Any) -> Any:
        y, pull = jax.vjp(f, *arrays)
        return y, pull(incoming)

    given = (arrays, directions(f(*arrays)))
    equations = jax.make_jaxpr(both)(*given).eqns
    assert [each.primitive.name for each in equations] == ["fastact", "fastact_linear"]
    for each in equations:
        weakref.ref(each.params.get("pair", each.params.get("call")))  # as JAX 0.7 keeps them
    compiled = jax.jit(both).lower(*given).compile().as_text()
    assert compiled.count('custom_call_target="fastact"') == 2


def test_moments_that_skip_nans():
    x = jnp.asarray(np.where(X > 0.5, np.nan, X))
    _, moved = jax.jvp(lambda x: fj.moments(x, axis=0, skipna=True), (x,), (jnp.ones_like(x),))
    assert np.allclose(moved.mean, 1)
    assert np.allclose(moved.m2, 0)


def test_tangents_of_what_has_none():
    x, target = jnp.asarray(X), jnp.asarray([0, 1])
    none = np.zeros(2, jax.dtypes.float0)
    _, moved = jax.jvp(fj.cross_entropy, (x, target), (x, none))
    assert np.isclose(moved, jnp.vdot(jax.grad(fj.cross_entropy)(x, target), x))
    with pytest.raises(TypeError, match=r"fastact\.jax\.batch_norm: running_mean gets no gradient"):
        jax.jvp(lambda mean: fj.batch_norm(x, mean, x[1] ** 2), (x[0],), (x[0],))


def test_a_target_of_probabilities():
    given, w = (jnp.asarray(X), jax.nn.softmax(X**2)), jnp.linspace(0.5, 2, X.shape[1])
    losses = (
        lambda x, t: fj.cross_entropy(x, t, weight=w, label_smoothing=0.1) ** 2,
        lambda x, t: (jax.nn.log_softmax(x) * (0.9 * t + 0.1 / len(w)) * -w).sum(1).mean() ** 2,
    )
    for derivative, argnums in ((jax.grad, 1), (jax.jacfwd, 1), (jax.hessian, (0, 1))):
        found = (jax.tree.leaves(derivative(f, argnums)(*given)) for f in losses)
        assert all(np.allclose(*pair) for pair in zip(*found, strict=True))


def test_the_entry_points():
    """`forward` is differentiated as the call is; `backward` says what is to be used."""
    x = jnp.asarray(X)
    for f in (fj.softmax, fj.mish):
        (y, _), pull = jax.vjp(lambda x, f=f: f.forward(x), x)
        expected = jax.vjp(f, x)[1](y)[0]
        assert np.allclose(pull((y, jax.tree.map(jnp.zeros_like, f.forward(x)[1])))[0], expected)
        name = f"fastact.jax.{f.__name__}"
        with pytest.raises(TypeError, match=rf"{name}: backward has no derivative; use {name}"):
            jax.grad(lambda dy, f=f: f.backward(dy, x).sum())(x)


def test_a_third_derivative():
    """An error of an activation that is not linear in pieces, alone and in an op; else there is."""
    with pytest.raises(TypeError, match=r"fastact\.jax\.mish: has no third derivative"):
        jax.grad(jax.grad(jax.grad(fj.mish)))(1.0)
    assert jax.grad(jax.grad(jax.grad(fj.relu)))(1.0) == 0
    with pytest.raises(TypeError, match=r"fastact\.jax\.mish: has no third derivative"):
        jax.grad(jax.grad(jax.grad(lambda x: fj.bias_act(x[None], x[None], "mish")[0])))(1.0)


#: One op of each family. Divergences are of logarithms of probabilities, which no scale leaves
#: ones.
SCALED = first_of_families(
    op for op in fa.ops.values() if op.family not in ("activations", "divergences")
)


@pytest.mark.parametrize(("scale", "offset"), [(1e22, 0.0), (1e-25, 0.0), (1.0, 1e4)])
@pytest.mark.parametrize("op", SCALED)
def test_tangents_in_extremes(op, scale, offset):
    """Of float32: as the kernels' gradients are, where squares leave the range or a mean is far.

    Gradients of norms are of a mean that was rounded as it was saved, and tangents are not: rstd,
    up to 10 here, multiplies what they differ by.
    """
    f, (x, *others) = function_of(op)
    arrays = tuple(a.astype("float32") for a in (x * scale + offset, *others))
    adjoint(f, arrays, rtol=(64 + 16 * offset * ("mean" in op.saves)) * 2.0**-24)
