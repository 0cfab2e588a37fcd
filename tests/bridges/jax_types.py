"""The types of every op's results and gradients where arrays are parted over devices.

A process of its own runs this, for it has two devices. Its arguments are "traced" or "computed",
and the names of ops; values, too, are compared where they are computed.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import fastact as fa
import fastact.jax as fj
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

jax.config.update("jax_enable_x64", True)
MESH, EXPLICIT = (
    Mesh(np.array(jax.devices()), ("d",), axis_types=(kind,))
    for kind in (AxisType.Auto, AxisType.Explicit)
)
ROWS = 4


def axes_of(value: Any) -> Any:
    """The axes of devices over which a value varies."""
    kinds = jax.typeof(value)
    return kinds.manual_axis_type.varying if hasattr(kinds, "manual_axis_type") else kinds.vma


def example(op: Any) -> tuple[dict[str, Any], list[str]]:
    """The arguments of a call, and the names of those that have gradients, data in front."""
    named = cases.sample(op, *np.random.default_rng(0).normal(size=(2, ROWS, 6)))
    named |= dict.fromkeys(op.written)  # arrays of JAX are not written
    names = [n for n in named if n in op.differentiated or n in op.shares]
    return named, [n for n in names if isinstance(named[n], np.ndarray)]


def called(op: Any, named: dict[str, Any], names: list[str], entry: str, *values: Any) -> Any:
    bound = op.bound(entry, {**named, **dict(zip(names, values, strict=True))})
    function = getattr(fj, op.name)
    point = function if entry == "call" else getattr(function, entry)
    return point(*bound.args, **bound.keywords)


def loss(call: Callable[..., Any], *values: Any) -> Any:
    return sum((y * y).sum() for y in arrays_of(call("call", *values)))


def test_manual(op: Any, *, computes: bool) -> None:
    """Data varies and all else does not: what is made varies, and gradients are added up."""
    named, names = example(op)
    call = partial(called, op, named, names)
    first, *others = (named[name] for name in names)
    given = (np.concatenate((first, 1.5 * first)), *others)
    every = tuple(range(len(names)))

    def inside(*values: Any) -> Any:
        made = arrays_of(call("call", *values))
        result, saved = call("forward", *values)
        dys = dict(zip([f"d{name}" for name in op.results], arrays_of(result), strict=True))
        dys["dy"] = dys.get("dy", tuple(dys.values()) if len(dys) > 1 else next(iter(dys.values())))
        by_name = {**named, **dys, **dict(zip(op.saves, saved, strict=True))}
        back = arrays_of(called(op, by_name, [], "backward"))
        for value in (*made, *arrays_of(result), *(dx for dx in back if dx is not None)):
            assert axes_of(value) == {"d"}, (op.name, value)
        return derivatives(lambda *values: jax.lax.psum(loss(call, *values), "d"), *values)

    def derivatives(f: Callable[..., Any], *values: Any) -> Any:
        if not computes:
            return jax.value_and_grad(f, every)(*values)
        moved = partial(jax.jvp, f, tangents=(values[0], *map(jnp.zeros_like, values[1:])))
        return (*jax.value_and_grad(f, every)(*values),
                *jax.value_and_grad(lambda *values: moved(values)[1], every)(*values))  # fmt: skip

    specs = (P("d"), *(P() for _ in others))
    made = (P(), specs) * (1 + computes)
    program = jax.shard_map(inside, mesh=MESH, in_specs=specs, out_specs=made)
    if not computes:
        jax.make_jaxpr(program)(*given)
        return

    def of_parts(values: Any, *rest: Any) -> Any:
        return sum(loss(call, half, *rest) for half in jnp.split(values, 2))

    right = jax.jit(partial(derivatives, of_parts))(*given)
    for got, expected in zip(*map(jax.tree.leaves, (jax.jit(program)(*given), right)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)  # in another order


def test_explicit(op: Any, *, computes: bool) -> None:
    """Rows are parted: so are results that have them, and gradients as what they are of."""
    named, names = example(op)
    call = partial(called, op, named, names)
    values = [named[name] for name in names]
    specs = [P("d") if v.shape == values[0].shape else P() for v in values]
    given = [
        jax.device_put(v, NamedSharding(EXPLICIT, s)) for v, s in zip(values, specs, strict=True)
    ]
    for y in jax.eval_shape(lambda *given: arrays_of(call("call", *given)), *given):
        rows = "d" if y.shape[:1] == (len(values[0]),) else None
        assert tuple(y.sharding.spec)[:1] == (rows,)[: y.ndim], (op.name, y)
        assert not any(tuple(y.sharding.spec)[1:]), (op.name, y)
    gradients = jax.value_and_grad(partial(loss, call), (*range(len(names)),))
    for dx, x in zip(jax.eval_shape(gradients, *given)[1], given, strict=True):
        assert dx.sharding.spec == jax.typeof(x).sharding.spec, (op.name, dx)
    if computes:
        right = jax.jit(gradients)(*values)
        pairs = zip(*map(jax.tree.leaves, (jax.jit(gradients)(*given), right)), strict=True)
        for got, expected in pairs:
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_refusals() -> None:
    """What JAX refuses of `jnp`, and what explicit axes do not tell."""
    x, rows = jnp.ones((4, 6)), NamedSharding(EXPLICIT, P("d"))
    unreduced = jax.shard_map(
        lambda x: fj.mish(jax.lax.pcast(x, "d", to="unreduced")),
        mesh=MESH,
        in_specs=P("d"),
        out_specs=P("d"),
    )
    for error, words, call in (
        (
            ValueError,
            "out_specs which require replication",
            lambda: jax.shard_map(fj.mish, mesh=MESH, in_specs=P("d"), out_specs=P())(x),
        ),
        (
            TypeError,
            r"mish: arrays must be neither unreduced .* got float64\[2,6\]\{U:d\}",
            lambda: jax.eval_shape(unreduced, x),
        ),
        (
            TypeError,
            "rms_norm: explicit axes part x along axis 0 over 'd', weight along axis 0 over 'd', "
            "which would part a result by .'d', 'd'.; use jax.sharding.reshard",
            lambda: fj.rms_norm(jax.device_put(x, rows), jax.device_put(x[0], rows)),
        ),
        (
            TypeError,
            "unbroadcast: explicit axes part dy along axis 0 over 'd', which says nothing of",
            lambda: fj.unbroadcast(jax.device_put(x, rows), (4, 1)),
        ),
    ):
        with pytest.raises(error, match=words):
            call()


def test_channels() -> None:
    """They are parted with the parameters that they have, also where these have no other axis."""
    x, channels = np.ones((3, 4, 5, 2)), NamedSharding(EXPLICIT, P("d"))
    named = dict.fromkeys(("running_mean", "running_var", "weight", "bias"), jnp.ones(4))
    named = {name: jax.device_put(value, channels) for name, value in named.items()}
    y = fj.batch_norm(jax.device_put(x, NamedSharding(EXPLICIT, P(None, "d"))), **named)
    assert jax.typeof(y).sharding.spec == P(None, "d", None, None)


for name in sys.argv[2:]:
    test_manual(fa.ops[name], computes=sys.argv[1] == "computed")
    if "shape" not in fa.ops[name].entry_points["call"].defaults:  # which no axis of data follows
        with jax.set_mesh(EXPLICIT):
            test_explicit(fa.ops[name], computes=sys.argv[1] == "computed")
test_refusals()
test_channels()
