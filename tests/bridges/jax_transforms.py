"""Two ops under each of JAX's transformations, against the formula of `jnp`.

A process of its own runs this, for it has two devices: it reads a list of pairs, a transformation
and what is computed under it, and writes "yes" or the error for each.
"""

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import checkify
from jax.experimental.jet import jet
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import fastact.jax as fj

F = Callable[..., Any]


def ours(x: Any, weight: Any) -> Any:
    return fj.rms_norm(fj.mish(x), weight)


def plain(x: Any, weight: Any) -> Any:
    y = x * jnp.tanh(jax.nn.softplus(x))
    return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * weight


COMPUTED: dict[str, Callable[[F], F]] = {
    "call": lambda f: f,
    "gradients": lambda f: jax.grad(lambda *given: (f(*given) ** 3).sum(), (0, 1)),
    "tangents": lambda f: lambda *given: jax.jvp(f, given, given)[1],
    "gradients of gradients": lambda f: (
        lambda *given: jax.vjp(COMPUTED["gradients"](f), *given)[1](given)
    ),
}


def scanned(f: F) -> F:
    """The result is what a loop carries, whose type may not change."""
    return lambda x, w: jax.lax.scan(lambda c, _: (f(c, w), None), x, None, 1)[0]


def without_jit(f: F) -> F:
    def call(*given: Any) -> Any:
        with jax.disable_jit():
            return f(*given)

    return call


def parted(f: F) -> F:
    return lambda x, w: jax.pmap(f, in_axes=(0, None))(x.reshape(2, -1, w.size), w).reshape(x.shape)


def exported(f: F, *, allowed: bool = True, shape: str = "4, 6") -> F:
    checks = [export.DisabledSafetyCheck.custom_call("fastact")] if allowed else []

    def call(x: Any, w: Any) -> Any:
        described = jax.ShapeDtypeStruct(export.symbolic_shape(shape), x.dtype), w
        program = export.export(jax.jit(f), disabled_checks=checks)(*described)
        return export.deserialize(program.serialize()).call(x, w)

    return call


def devices(kind: Any = AxisType.Auto) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 1), ("d", "e"), axis_types=(kind, kind))


def mapped(f: F, kind: Any = AxisType.Auto, **options: Any) -> F:
    given = {"in_specs": (P("d"), P()), "out_specs": P("d"), **options}
    return jax.jit(jax.shard_map(scanned(f), mesh=devices(kind), **given))


TRANSFORMED: dict[str, Callable[[F], F]] = {
    "jit": jax.jit,
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "scan": scanned,
    "cond": lambda f: lambda x, w: jax.lax.cond(w[0] < 9, f, lambda x, w: x * w, x, w),
    "checkpoint": jax.checkpoint,
    "disable_jit": without_jit,
    "pmap": parted,
    "shard_map": mapped,
    "shard_map, check_vma=False": partial(mapped, check_vma=False),
    "shard_map over some axes": partial(mapped, axis_names={"d"}),
    "explicit axes": lambda f: f,
    "shard_map over some explicit axes": partial(mapped, kind=AxisType.Explicit, axis_names={"d"}),
}
#: These take whole programs, derivatives and all.
WHOLE: dict[str, Callable[[F], F]] = {
    "checkify": lambda f: lambda *given: checkify.checkify(f)(*given)[1],
    "export": partial(exported, allowed=False),
    "export, custom call allowed": exported,
    "export, symbolic shapes": partial(exported, shape="n, 6"),
    "jet": lambda f: lambda x, w: jet(lambda x: f(x, w), (x,), ([x],))[0],
}


GIVEN = (
    jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), "float32"),
    jnp.linspace(0.5, 1.5, 6),
)


@cache
def right(computed: str) -> Any:
    return jax.device_get(jax.jit(COMPUTED[computed](plain))(*GIVEN))


def compare(transformed: str, computed: str) -> str:
    if "explicit" not in transformed:
        return compare_with(GIVEN, transformed, computed)
    mesh = devices(AxisType.Explicit)
    with jax.set_mesh(mesh):
        parts = jax.device_put(GIVEN, (NamedSharding(mesh, P("d")), NamedSharding(mesh, P())))
        return compare_with(parts, transformed, computed)


def compare_with(given: Any, transformed: str, computed: str) -> str:
    def of(f: F) -> F:
        if transformed in WHOLE:
            return WHOLE[transformed](COMPUTED[computed](f))
        return COMPUTED[computed](TRANSFORMED[transformed](f))

    try:
        got = of(ours)(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if transformed not in WHOLE:
        assert jax.eval_shape(of(ours), *given) == jax.eval_shape(of(plain), *given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(right(computed)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)  # float32's, over two ops
    return "yes"


json.dump([compare(*pair) for pair in json.load(sys.stdin)], sys.stdout)
