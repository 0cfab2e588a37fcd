"""The bridge to JAX: every op in programs of XLA, by their specifications alone."""

import re
from functools import partial
from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import arguments_of, back
from conftest import each_family, first_of_families
from jax_calls import QUANTIZE, called, differentiated, fj, jax, jnp, sample, with_float64
from judged import refused
from processes import python_output, run_python

import fastact as fa
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

each_op = pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


float64 = pytest.fixture(autouse=True)(with_float64)


def by_hand(op: Any, named: dict[str, Any], gradients: list[Any]) -> dict[str, Any]:
    """The gradients by the entry points for NumPy, for gradients of the results."""
    _, saved = op.bound("forward", named)()
    found = arrays_of(back(op, named, saved, gradients)())
    of = dict(zip(op.differentiated, found, strict=False))
    known = dict(zip(op.results, gradients, strict=True)) | of
    return of | {name: known[other] for name, other in op.shares.items() if other in known}


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@each_op
def test_the_bits_of_the_call(op, dtype):
    named = sample(op, dtype)
    names = [n for n, v in named.items() if isinstance(v, np.ndarray)]
    arrays = [jnp.asarray(named[name]) for name in names]
    expected = arrays_of(op.bound("call", named)())
    for got, y in zip(called(op, named, names)(*arrays), expected, strict=True):
        assert isinstance(got, jax.Array)
        assert same_bits(got, y)


@pytest.mark.parametrize("codes", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("op", QUANTIZE, ids=lambda op: op.name)
def test_the_bits_of_codes(op, codes):
    """Compiled and in batches, too, with scales that are found or given; without a gradient."""
    (x, *args), named = arguments_of(op, "quantized", np.float32)
    for per in ("row", 2, "tensor"):
        given = {**named, "dtype": codes, "per": per}
        expected = op.quantized(x, *args, **given)
        given |= {op.known_scale: expected[1]} if per == 2 else {}
        call = partial(lambda given, x: getattr(fj, op.name).quantized(x, *args, **given), given)
        batch = [part[1] for part in jax.vmap(call)(np.stack([2 * x, x]))]
        for made in (call(jnp.asarray(x)), jax.jit(call)(x), batch):
            assert [*map(same_bits, made, expected)] == [True] * len(expected)
    refused(f"{op.name}: quantized has no derivative", jax.grad(lambda x: call(x)[1].sum()), x)


@each_family
def test_the_bits_of_the_gradients(op):
    """And each is the same where it is the only one that is needed."""
    named = sample(op, np.float32)
    names = differentiated(op, named)
    results = arrays_of(op.bound("call", named)())
    ones = [np.ones_like(y) for y in results]
    expected = by_hand(op, named, [one.astype(np.float32) for one in ones])
    for chosen in ([*names], *([name] for name in names)):
        arrays = [jnp.asarray(named[name]) for name in chosen]
        _, pull = jax.vjp(jax.jit(called(op, named, chosen)), *arrays)
        for name, got in zip(chosen, pull(tuple(map(jnp.asarray, ones))), strict=True):
            assert same_bits(got, expected[name])


@each_family
def test_forward_and_backward(op):
    """The entry points, as the op has them."""
    named = sample(op, np.float32)
    result, saved = op.bound("forward", named)()
    of_jax = {n: jnp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    bound = op.bound("forward", of_jax)
    made, kept = getattr(fj, op.name).forward(*bound.args, **bound.keywords)
    for got, expected in zip([*arrays_of(made), *kept], [*arrays_of(result), *saved], strict=True):
        assert got == expected if not hasattr(expected, "shape") else same_bits(got, expected)


@each_family
def test_vmap(op):
    """All arguments are batched; test_jax_axes.py has gradients, and the first one alone."""
    named = sample(op)
    names = differentiated(op, named)
    arrays = [named[name] for name in names]
    call = jax.jit(called(op, named, names))
    batches = [np.stack([a, 2 * a, a + 1]) for a in arrays]  # weights stay positive
    parts = zip(*map(call, *batches), strict=True)
    for got, part in zip(jax.vmap(call)(*batches), parts, strict=True):
        assert same_bits(got, np.stack(part))


# Arrays that `sample` leaves out: those without a gradient, and what gates add up.
LEFT_OUT = [
    (op, name)
    for op in fa.ops.values()
    for name in cases.arrays_of_entry(op, "call")
    if name in op.entry_points["call"].defaults and sample(op).get(name) is None
]


def with_array(op: Any, name: str) -> dict[str, Any]:
    """The arguments of a call by name, with an array that may be left out."""
    named, shape = sample(op), (3, 4)
    known = {"by": np.array([1, 0, 1]), "positions": np.array([2, 0, 1])}
    shape = cases.shapes_of(op, "call", shape, named).get(name, shape)
    value = known.get(name, np.linspace(0.5, 1.5, np.prod(shape, dtype=int)).reshape(shape))
    more = {"by": {"axis": 0, "groups": 2}}.get(name, {})
    if name in op.written:
        more = {**dict.fromkeys(op.written, value), "training": False}
    return {**named, name: value > 0.8 if name in ("where", "mask") else value, **more}


@pytest.mark.parametrize(("op", "name"), first_of_families(LEFT_OUT))
def test_arrays_that_may_be_left_out(op, name):
    """Their bits by themselves and compiled, batches, gradients and tangents."""
    named = with_array(op, name)
    first, *_ = differentiated(op, named)
    names = [first, *{name, *op.written} & named.keys() - {first}]
    values = [jnp.asarray(named[n]) for n in names]
    call, x = called(op, named, names), values[0]
    expected = arrays_of(op.bound("call", named)())
    ones = [np.ones_like(y) for y in expected]

    def every(*values: Any) -> Any:
        x, *rest = values
        made, pull = jax.vjp(lambda x: call(x, *rest), x)
        dx = pull(tuple(map(jnp.asarray, ones)))[0]
        if name == "by":  # which has no forward mode
            return made, dx, jnp.vdot(dx, x)
        moved = jax.jvp(lambda x: call(x, *rest), (x,), (x,))[1]
        return made, dx, sum(map(jnp.sum, moved))

    made, dx, moved = jax.jit(every)(*values)
    assert same_bits(dx, by_hand(op, named, ones)[first])
    np.testing.assert_allclose(moved, np.vdot(dx, x), rtol=1e-10, atol=1e-10)
    stacks = jax.vmap(call, (0, *(None for _ in values[1:])))(jnp.stack([x, x]), *values[1:])
    for y, one, compiled, stack in zip(expected, call(*values), made, stacks, strict=True):
        assert all(same_bits(other, y) for other in (one, compiled, *stack))


def test_vmap_along_any_axis():
    x, w = jnp.linspace(-2.0, 2.0, 24).reshape(2, 3, 4), jnp.arange(3.0)
    got = jax.vmap(fj.layer_norm, (2, None), 1)(x, w)
    expected = fa.layer_norm(np.moveaxis(np.asarray(x), 2, 0), np.asarray(w)[[0, 1, 2]][:3])
    assert same_bits(jnp.moveaxis(got, 1, 0), expected)


def test_a_batch_is_one_call():
    """Where the op does to a stack what it does to each."""

    def calls(function: Any, *args: Any) -> tuple[int, bool]:
        text = str(jax.make_jaxpr(function)(*args))
        return text.count("fastact["), "scan" in text

    x, w = jnp.ones((5, 3, 4)), jnp.ones(4)
    assert calls(jax.vmap(fj.mish), x) == (1, False)
    assert calls(jax.vmap(fj.layer_norm, (0, None)), x, w) == (1, False)
    assert calls(jax.vmap(lambda x: fj.softmax(x, axis=0)), x) == (1, False)
    assert calls(jax.vmap(fj.sum), x) == (1, False)
    assert calls(jax.vmap(jax.vmap(lambda x: fj.layer_norm(x, w))), x) == (1, False)
    assert calls(jax.vmap(fj.layer_norm), x, jnp.ones((5, 4)))[1]  # a weight each


def test_a_layout_that_is_not_the_default():
    """XLA copies it: the handler asks for rows first."""
    layout = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layout, "Format"):
        pytest.skip("this JAX names layouts otherwise")
    x = jnp.linspace(-2.0, 2.0, 12).reshape(3, 4)
    y = jax.device_put(x, layout.Format(layout.Layout(major_to_minor=(1, 0)), x.sharding))
    assert y.format.layout.major_to_minor == (1, 0)
    for call in (fj.layer_norm, jax.jit(lambda x: fj.layer_norm(x, donate=True))):
        assert same_bits(call(y), fa.layer_norm(np.asarray(x)))


def test_saved_float64_that_is_switched_off():
    jax.config.update("jax_enable_x64", False)
    x, target = jnp.linspace(-2, 2, 12, dtype="float32").reshape(3, 4), jnp.asarray([0, 2, 1])
    _, saved = jax.jit(fj.cross_entropy.forward)(x, target)
    got = jax.jit(fj.cross_entropy.backward)(jnp.ones(()), *saved)
    _, of_numpy = fa.cross_entropy.forward(np.asarray(x), np.asarray(target))
    expected = fa.cross_entropy.backward(np.ones((), np.float32), *of_numpy)
    assert same_bits(got, expected)
    stack = jax.vmap(jax.grad(fj.cross_entropy), (0, None))(jnp.stack([x, 2 * x]), target)
    assert same_bits(stack[0], expected)


def test_programs_that_are_recomputed_or_lowered():
    x = jnp.linspace(-2.0, 2.0, 12).reshape(3, 4)
    once = fj.mish(fj.layer_norm(x))
    body = jax.checkpoint(lambda x: fj.mish(fj.layer_norm(x)))
    gradient = jax.grad(lambda x: body(x).sum())
    assert same_bits(gradient(x), jax.jit(gradient)(x))
    assert same_bits(jax.jit(body).lower(x).compile()(x), once)
    for empty in (jnp.ones((0, 4)), jnp.ones((3, 0))):
        assert fj.mish(empty).shape == empty.shape


@pytest.mark.parametrize("x64", [True, False])
def test_numbers(x64):
    """Data without axes, of the dtype that JAX gives them; a gradient of every element."""
    jax.config.update("jax_enable_x64", x64)
    wide = jnp.asarray(1.5).dtype
    scalars = [dtype(1.5) for dtype in DTYPES]
    for given in (*scalars, *map(np.asarray, scalars), 1.5, 2, True, np.int8(2), np.bool_(True)):
        floats = not isinstance(given, bool | int | np.integer | np.bool_)
        dtype = wide if isinstance(given, float) else jnp.asarray(given).dtype if floats else wide
        compiled = jax.jit(lambda given=given: fj.mish(given))
        for y in (fj.mish(given), fj.mish.forward(given)[0], compiled()):
            assert same_bits(y, fa.mish(np.asarray(given, dtype)))
    for whole in map(jnp.arange(-3, 3).astype, (np.int8, np.int32, int, bool)):
        assert same_bits(fj.mish(whole), fa.mish(np.asarray(whole, jnp.tanh(whole).dtype)))
    refused(r"fastact\.mish: x must have dtype .* complex64", fj.mish, np.complex64(1))
    x = jnp.linspace(-2, 2, 12, dtype="float16").reshape(3, 4)
    for dy in (2.0, 2, np.float32(2)):
        assert same_bits(fj.mish.backward(dy, x), fa.mish.backward(2.0, np.asarray(x)))


@each_family
def test_donation(op):
    """Into the first array's memory, where the op works in place; else the op says why not."""
    named = sample(op, np.float32)
    names = [n for n, v in named.items() if isinstance(v, np.ndarray)]
    function = jax.jit(called(op, {**named, "donate": True}, names), donate_argnums=0)
    # XLA's own memory: NumPy's, which JAX may take as it is, can't be donated.
    arrays = [jnp.copy(jnp.asarray(named[name])) for name in names]
    expected = arrays_of(op.bound("call", named)())
    outs = (named[names[0]].copy(), *(None for _ in expected[1:]))
    before = arrays[0].unsafe_buffer_pointer()
    try:
        op.bound("call", {**named, names[0]: outs[0], "out": outs if len(outs) > 1 else outs[0]})()
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error), match=rf"fastact\.{op.name}: out"):
            function(*arrays)
        return
    results = function(*arrays)
    assert arrays[0].is_deleted()
    assert results[0].unsafe_buffer_pointer() == before
    for got, y in zip(results, expected, strict=True):
        assert same_bits(got, y)


def test_donation_spares_a_copy():
    x = jnp.ones((64, 64))
    for call, temporary in ((fj.mish, x.nbytes), (lambda x: fj.mish(x, donate=True), 0)):
        compiled = jax.jit(call, donate_argnums=0).lower(x).compile()
        assert compiled.memory_analysis().temp_size_in_bytes == temporary
    y = jax.jit(lambda x: (fj.mish(x, donate=True), x))(x)  # which is still needed
    assert same_bits(y[1], x)
    each = (jax.grad(lambda x, d=d: fj.mish(x, donate=d).sum())(x) for d in (True, False))
    assert same_bits(*each)


def test_errors_are_the_ops():
    """At the trace, before anything is computed."""
    x = jnp.ones((3, 4))
    row, average = x[0], partial(fj.average, returned=True)

    def by_running_mean() -> Any:
        return jax.grad(lambda mean: fj.batch_norm(x, mean, row).sum())(row)

    def in_training() -> Any:
        return fj.batch_norm(x, row, row, training=True)

    for error, words, call in (
        (TypeError, r"sum: x must have dtype .* int32", lambda: fj.sum(x.astype("int32"))),
        (TypeError, r"jax\.dropout: seed must .* float64", lambda: fj.dropout(x, 0.1, seed=x)),
        (TypeError, "returned must be False", lambda: jax.jvp(average, (row,), (row,))),
        (TypeError, r"fastact\.mish: x must have dtype .* complex", lambda: fj.mish(x + 1j)),
        (ValueError, r"weight must have shape \(4,\)", lambda: fj.layer_norm(x, row[:3])),
        (TypeError, "unexpected keyword argument 'epsilon'", lambda: fj.layer_norm(x, epsilon=1)),
        (TypeError, "eps must be a real number", lambda: fj.layer_norm(x, eps=row[0])),
        (ValueError, "activation must be", lambda: fj.bias_act(x, row, "mush")),
        (TypeError, r"jax\.mish: out must not be given", lambda: fj.mish(x, out=x)),
        (TypeError, r"jax\.mish: out must not be given", lambda: fj.mish(x, x)),
        (TypeError, r"jax\.mish: arrays .*, got \[1\.0\]", lambda: fj.mish([1.0])),
        (TypeError, r"jax\.mish: arrays .*, got None", lambda: fj.mish()),
        (TypeError, "has no third", lambda: jax.grad(jax.grad(jax.grad(fj.mish)))(1.0)),
        (ValueError, "running_mean must be writable", in_training),
        (TypeError, r"fastact\.jax\.batch_norm: running_mean gets no gradient", by_running_mean),
        (AttributeError, "has no attribute 'mush'", lambda: fj.mush),
    ):  # fmt: skip
        for run in (call, jax.jit(call)):
            refused(words, run, error=error)


def test_moments_with_a_count_each():
    x = np.linspace(-2, 2, 12).reshape(3, 4)
    x[0, 1] = x[2] = np.nan
    expected = fa.moments(x, axis=0, skipna=True)

    def call(x: Any) -> Any:
        return fj.moments(x, axis=0, skipna=True)

    assert jax.jit(fj.moments)(x).count == 12
    for got in (call(jnp.asarray(x)), jax.jit(call)(x)):
        for name in ("count", "mean", "m2"):
            assert same_bits(getattr(got, name), getattr(expected, name))
    dx = jax.grad(lambda x: call(x).m2.sum())(jnp.asarray(x))
    assert same_bits(dx, fa.moments.backward((None, np.ones(4)), x, axis=0, skipna=True))


def test_seeds():
    """Arrays and keys are the data of one program, with the bits of the same number."""
    x, key = np.arange(1, 65, dtype=np.float32), jax.random.key(5)

    @jax.jit
    def call(x, seed):
        y, pull = jax.vjp(lambda x: fj.dropout_add_rms_norm(x, x, p=0.5, seed=seed), x)
        return *y, *pull(y)

    numbers = {"int64": (2**40, -(2**63)), "int32": (7, -7), "uint64": (2**64 - 1, 2**63)}
    seeds = [(jnp.asarray(n, dtype), n) for dtype, several in numbers.items() for n in several]
    for seed, number in (*seeds, (key, 5), (jax.random.key_data(key), 5)):
        static = jax.jit(partial(call.__wrapped__, seed=number))
        assert all(map(same_bits, call(x, seed), static(x)))
        assert same_bits(call(x, seed)[1], fa.dropout(x, 0.5, seed=number, residual=x))
    assert call._cache_size() == len(numbers) + 2
    keys = jax.random.split(key)
    assert same_bits(jax.vmap(call, (None, 0))(x, keys)[2][1], call(x, keys[1])[2])


def test_float64_that_is_switched_off():
    jax.config.update("jax_enable_x64", False)
    x = jnp.ones((3, 4))
    assert fj.mean_var(x)[0].dtype == np.float32
    assert fj.mish(np.ones(3)).dtype == np.float32  # as JAX has it
    refused(r"fastact\.jax\.moments: .*jax_enable_x64", fj.moments, x)


@each_family
def test_the_plain_op_names_the_bridge(op):
    """Where JAX traces; arrays with values are computed like any framework's."""
    named = sample(op, np.float32)
    first = next(iter(named))

    def call(x: Any) -> Any:
        rest = {n: jnp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
        return op.bound("call", {**rest, first: x})()

    with pytest.raises(TypeError, match=rf"fastact\.{op.name}: .*fastact\.jax\.{op.name}"):
        jax.jit(call)(named[first])
    assert isinstance(arrays_of(call(jnp.asarray(named[first])))[0], jax.Array)


def test_a_failure_in_a_program_is_its_error():
    """Which no check at the trace could find: here, a class that the logits have not."""
    with pytest.raises(Exception, match=r"fastact\.cross_entropy: .*class"):
        fj.cross_entropy(jnp.ones((2, 3)), jnp.asarray([0, 7])).block_until_ready()


def test_programs_are_kept_for_other_processes(tmp_path):
    """A text says all of a call, so that JAX's cache on disk serves another process."""
    code = dedent(f"""
        import jax, numpy as np
        jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        import fastact as fa, fastact.jax as fj
        x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
        y = jax.jit(lambda x: fj.layer_norm(x, eps=0.5, activation="leaky_relu"))(x)
        assert np.array_equal(y, fa.layer_norm(x, eps=0.5, activation="leaky_relu"))
    """)
    python_output(code)
    assert list(tmp_path.iterdir())
    python_output(code)


@pytest.mark.parametrize(
    ("library", "found", "module", "words"),
    [
        ("jax", "None", "jax", "JAX can't be imported .*pip install 'fastact\\[jax\\]'"),
        ("jax", "type('jax', (), {'__version__': '0.4.30'})", "jax", "JAX must be .*, got 0.4.30"),
        ("xarray", "None", "xarray", ".*pip install 'fastact\\[xarray\\]'"),
        ("kernels", "None", "torch.transformers", ".*pip install 'fastact.transformers.'"),
    ],
)
def test_a_library_that_is_missing_or_old_is_named(library, found, module, words):
    done = run_python(f"import sys; sys.modules[{library!r}] = {found}; import fastact.{module}")
    assert done.returncode == 1
    assert re.search(f"ImportError: fastact\\.{module}: {words}", done.stderr)


def test_a_jaxlib_that_refuses_the_handler_is_named():
    done = run_python(
        dedent("""
            import jax
            def refuse(*args, **named):
                raise ValueError("API version 9.9")
            jax.ffi.register_ffi_target = refuse
            import fastact.jax
        """)
    )
    assert done.returncode == 1
    words = r"ImportError: fastact\.jax: jaxlib of JAX .* refuses the handler: API version 9\.9"
    assert re.search(words, done.stderr)


# --- results of another dtype ---------------------------------------------------------------------

TOLD = [op for op in fa.ops.values() if "dtype" in op.entry_points["call"].defaults]


@pytest.mark.parametrize("op", first_of_families(TOLD))
def test_dtype(op):
    x = np.random.default_rng(0).normal(3, 1, (3, 4)).astype(np.float16)
    for told in (jnp.float32, "float64", np.float16):

        def call(x: Any, told: Any = told) -> Any:
            return arrays_of(getattr(fj, op.name)(x, 1, dtype=told))

        expected, saved = op.forward(x, 1, dtype=told)
        for f in (call, jax.jit(call)):
            found, back = jax.vjp(f, jnp.asarray(x))
            for y, of in zip(found, arrays_of(expected), strict=True):
                assert y.dtype == of.dtype == np.dtype(told)
                np.testing.assert_array_equal(y, of)
            (dx,) = back(tuple(map(jnp.ones_like, found)))
            dys = tuple(map(np.ones_like, arrays_of(expected)))
            named = {"axis": 1, "dtype": told}
            of_x = arrays_of(op.backward(dys if len(dys) > 1 else dys[0], *saved, **named))[0]
            assert dx.dtype == np.float16
            np.testing.assert_array_equal(dx, of_x)
            moved = jax.jvp(f, (jnp.asarray(x),), (jnp.ones_like(x),))[1]
            assert all(dy.dtype == np.dtype(told) for dy in moved)
        stacked = jax.vmap(call)(jnp.stack([x, x]))
        for y, of in zip(stacked, arrays_of(expected), strict=True):
            np.testing.assert_array_equal(y[1], of)
    jax.config.update("jax_enable_x64", False)
    refused("float64, which JAX has switched off", call, jnp.asarray(x), "float64")


@pytest.mark.parametrize(
    "op", first_of_families(op for op in TOLD if "initial" in op.entry_points["call"].defaults)
)
def test_initial(op):
    x = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])
    function = jax.jit(lambda x: getattr(fj, op.name)(x, 1, initial=0.5))
    np.testing.assert_array_equal(function(x), [3.5, 7.5])
    np.testing.assert_array_equal(jax.grad(lambda x: function(x).sum())(x), np.ones((2, 2)))
    np.testing.assert_array_equal(jax.jvp(function, (x,), (x,))[1], [3.0, 7.0])


UNAWAITED = """
import jax, jax.numpy as jnp, fastact.jax as fj

x = jnp.ones((1200, 1200))  # products of some 10 ms each: the call begins when Python has ended
late = jax.jit(lambda x: fj.mish(x @ x @ x @ x))
late(x).block_until_ready()
late(x)
"""


def test_a_process_ends_while_a_call_is_still_to_come():
    done = run_python(UNAWAITED)
    assert (done.returncode, done.stderr) == (0, "")
