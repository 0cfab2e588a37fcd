"""Axes of batches and of several devices: every op of JAX's bridge, without a copy or a gather."""

import functools
from typing import Any

import numpy as np
import pytest
from conftest import each_family
from jax_calls import called, fj, jax, jnp, sample, with_float64
from processes import python_output

import fastact as fa
from fastact.ops.engine.op import arrays_of

float64 = pytest.fixture(autouse=True)(with_float64)


@pytest.mark.parametrize(
    "op", [op for op in fa.ops.values() if "by" in op.roles], ids=lambda op: op.name
)
def test_groups(op):
    """Their bits in what JAX compiles and batches, and their gradients."""
    from jax.test_util import check_grads

    x, labels = np.random.default_rng(1).normal(size=(2, 6, 5)), np.array([0, 1, 2, 0, 1, -1])
    both = np.stack([labels, labels[::-1]])

    def of(call: Any, x: Any, by: Any) -> Any:
        return arrays_of(call(x, axis=0, by=by, groups=3))[0]

    traced = functools.partial(of, getattr(fj, op.name))
    expected = np.stack([of(op, *each) for each in zip(x, both, strict=True)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(traced))(x, both), expected)
    check_grads(lambda x: traced(x, labels), (x[0],), 1, modes=["rev"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="by must hold groups from 0 to 2"):
        jax.jit(traced)(x[0], labels + 2).block_until_ready()


@each_family
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_batch_along_any_axis(op, axis):
    """The first array alone, and its gradient, have the bits of one example after another."""
    named = sample(op, np.float32)
    first, x = next(iter(named.items()))
    examples = [x, 2 * x, x + 1, x]  # weights stay positive; as many as a row has, which broadcast
    stack = np.stack(examples, axis)

    def both(value: Any) -> Any:
        made, pull = jax.vjp(called(op, named, [first]), value)
        return made, pull(tuple(jnp.ones_like(y) for y in made))

    got = jax.tree.leaves(jax.jit(jax.vmap(both, axis))(stack))
    parts = zip(*(jax.tree.leaves(jax.jit(both)(one)) for one in examples), strict=True)
    for found, expected in zip(got, parts, strict=True):
        assert np.array_equal(found, np.stack(expected))


# Where the op has one call for a batch, and no axis in the middle that it can't name.
STACKED = [
    op for op in fa.ops.values() if op.stacks and "gates" not in op.entry_points["call"].arrays
]


@pytest.mark.parametrize("op", STACKED, ids=lambda op: op.name)
@pytest.mark.parametrize("axis", [1, 2])
def test_the_axis_of_a_batch_stays(op, axis):
    """Where all arrays have it there, the call takes them as they lie."""
    named = sample(op, np.float32)
    named.pop("sink", None)  # which has an axis less
    x = next(iter(named.values()))
    alike = [n for n, v in named.items() if isinstance(v, np.ndarray) and v.shape == x.shape]
    stacks = {name: np.stack([named[name]] * 5, axis) for name in alike}
    call = called(op, named, alike)

    def in_front(*values: Any) -> Any:
        return jax.make_jaxpr(jax.vmap(call))(*(np.moveaxis(v, axis, 0) for v in values))

    if "scan" in str(in_front(*stacks.values())):
        pytest.skip("one after another wherever the axis is")
    program = jax.make_jaxpr(jax.vmap(call, axis))(*stacks.values()).jaxpr
    while True:
        # Arrays without the axis may be brought to it before.
        given = program.invars
        first = next(e for e in program.eqns if any(value in e.invars for value in given))
        assert all(value in first.invars for value in given)
        if first.primitive.name == "fastact":
            break
        program = next(p for p in first.params.values() if hasattr(p, "jaxpr")).jaxpr


def test_arrays_that_a_stack_would_broadcast_otherwise():
    """A residual of the example's shape is everyone's, whatever the axis of the batch."""
    x, residual, bias = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    for axis in range(3):
        for shape in ((3, 3), (1, 3), (3, 1)):
            r, b = residual[0][: shape[0], : shape[1]], bias[0, 0]
            r = np.broadcast_to(r, (3, 3))

            def call(x: Any, r: Any = r, b: Any = b) -> Any:
                return fj.bias_act(x, b, "mish", residual=r)

            got = jax.vmap(call, axis, axis)(x)
            assert np.array_equal(got, np.stack([call(v) for v in np.moveaxis(x, axis, 0)], axis))


ALONG = [op for op in fa.ops.values() if {"weights", "by"} & {*op.roles}]
ORDERS = [(0, 1), (1, 0), (-1, 0), (2, 1), (1,)]


def along(op: Any, shape: tuple[int, ...], axis: tuple[int, ...], seed: int = 0) -> dict[str, Any]:
    """What lies along these axes of an array of this shape, in their order."""
    r, of = np.random.default_rng(seed), tuple(shape[a] for a in axis)
    named: dict[str, Any] = {"weights": r.uniform(0.5, 2, of)} if "weights" in op.roles else {}
    return {**named, "by": r.integers(-1, 2, of), "groups": 2} if "by" in op.roles else named


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("op", ALONG, ids=lambda op: op.name)
@pytest.mark.parametrize("axis", ORDERS, ids=str)
@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 3, 4)], ids=str)
def test_arrays_along_axes_in_any_order(op, axis, shape):
    """As many examples as an axis has elements: an array might broadcast otherwise."""
    r = np.random.default_rng(1)
    xs = r.normal(size=(2, *shape))
    each = [along(op, shape, axis, seed) for seed in (0, 1)]
    both = {n: np.stack([one[n] for one in each]) for n in each[0] if n != "groups"}

    def call(x: Any, named: Any) -> Any:
        groups = {"groups": 2} if "by" in named else {}
        return arrays_of(getattr(fj, op.name)(x, axis=axis, **groups, **named))

    expected = [arrays_of(op(x, axis=axis, **one)) for x, one in zip(xs, each, strict=True)]
    apart = {n: array[0] for n, array in both.items()}
    for place in (0, 1, 2):
        stack = np.moveaxis(xs, 0, place)
        got = jax.vmap(call, (place, 0))(stack, both)
        for found, parts in zip(got, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(found, np.stack(parts), rtol=1e-13, atol=1e-15)
        got = jax.vmap(lambda x: call(x, apart), place)(stack)
        for found, part in zip(got, expected[0], strict=True):
            np.testing.assert_allclose(found[0], part, rtol=1e-13, atol=1e-15)


PARTED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import fastact as fa, fastact.jax as fj

jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()), ("devices",))
x, w = np.arange(8.0).reshape(2, 2, 2), np.array([[1.0, 2.0], [3.0, 5.0]])
for axes in ((0, 1), (2, 0)):
    for axis in (0, 2):
        parted = jax.device_put(x, NamedSharding(mesh, P(*(None,) * axis, "devices")))
        for named in ({"weights": w}, {"by": (w > 2).astype(int), "groups": 2}):
            found = jax.jit(lambda x: fj.mean(x, axes, **named))(parted)
            np.testing.assert_array_equal(found, fa.mean(x, axes, **named))
"""


def test_devices_part_such_arrays_as_they_lie():
    python_output(PARTED)


SPREAD = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import fastact as fa, fastact.jax as fj
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()), ("devices",))


def is_parted(op, named, rows):
    # Whether each half of the rows has its half of all results.
    halves = []
    try:
        for half in (slice(0, 4), slice(4, 8)):
            part = {n: v[half] if isinstance(v, np.ndarray) and v.ndim > 1 and len(v) == rows else v
                    for n, v in named.items()}
            halves.append(arrays_of(op.bound("call", part)()))
    except (TypeError, ValueError):
        return False
    whole = arrays_of(op.bound("call", named)())
    return all(
        y.ndim and np.array_equal(np.concatenate(parts), y) for *parts, y in zip(*halves, whole)
    )


for name in NAMES.split():
    op = fa.ops[name]
    x, dy = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    named = cases.sample(op, x, dy)
    named.pop("sink", None)  # one a row, which is gathered
    first = next(iter(named))

    def call(value):
        bound = op.bound("call", {**named, first: value})
        return arrays_of(getattr(fj, op.name)(*bound.args, **bound.keywords))

    def gradient(value):
        results, pull = jax.vjp(call, value)
        return pull(tuple(2 * jnp.ones_like(y) for y in results))

    function = jax.jit(FUNCTION)
    expected = jax.tree.leaves(function(named[first]))
    for axis in range(named[first].ndim):
        spread = NamedSharding(mesh, P(*(None,) * axis, "devices"))
        value = jax.device_put(named[first], spread)
        program = function.lower(value).compile()
        for got, y in zip(jax.tree.leaves(program(value)), expected, strict=True):
            assert np.array_equal(got, y, equal_nan=True), (name, axis)
        if axis == 0 and is_parted(op, named, 8):
            assert "all-gather" not in program.as_text(), name
            print(name)
"""


KEPT = {"mish", "bias_act", "layer_norm", "softmax", "lstm_gates", "group_norm"}
GATHERED = {"batch_norm", "cross_entropy", "bias_grad"}


@pytest.mark.parametrize("function", ["call", "gradient"])
@pytest.mark.parametrize(
    "names", [KEPT | GATHERED, pytest.param({*fa.ops}, marks=pytest.mark.thorough)], ids=len
)
def test_rows_of_several_devices_stay_where_they_are(function, names):
    """Of each op whose results have the rows; any other axis is gathered, with the same bits."""
    code = SPREAD.replace("NAMES", repr(" ".join(sorted(names))))
    free = {*python_output(code.replace("FUNCTION", function)).split()}
    assert free >= KEPT
    assert not GATHERED & free
