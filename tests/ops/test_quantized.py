"""`op.quantized` of every op that has it: the codes of two steps, however the call is made."""

import tracemalloc
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from calls import uncached
from conftest import assert_all_same_bits, assert_same_bits, first_of_families, on_kernels
from devices import DTYPES, to_torch
from judged import refused

import fastact as fa
from fastact.check.reference import TOPS, scales
from fastact.check.reference import codes as encoded
from fastact.interop import call
from fastact.measure import cases
from fastact.ops.engine import parts, quantized
from fastact.ops.engine.quantized import Quantizes

OPS = [op for op in fa.ops.values() if isinstance(op, Quantizes) and not op.traits.counts_elements]

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_format = pytest.mark.parametrize("codes", TOPS)
each_per = pytest.mark.parametrize("per", ["row", "tensor", 32])


def sampled(op: Any, dtype: str, shape: tuple[int, int] = (12, 64), **options: Any) -> Any:
    """Arguments of a call by name."""
    random = np.random.default_rng(0)
    x, dy = (random.normal(size=shape).astype(DTYPES[dtype]) for _ in range(2))
    named = {**cases.sample(op, x, dy), **options}
    if "training" in named:
        channels = np.linspace(0.5, 1.5, shape[1]).astype(x.dtype)
        named |= {"training": False, **dict.fromkeys(op.written, channels)}
    return named


def value(op: Any, named: Any) -> tuple[Any, Any]:
    """The op's value in the type in which it computes, and its sum."""
    if named["x" if "x" in named else "a"].dtype.itemsize > 2 or "casting" in named:
        y = op.bound("call", named)()
        return y if isinstance(y, tuple) else (y, None)
    wide = {n: v.astype(np.float32) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    if len(op.results) == 1:
        return op.bound("call", wide)(), None
    _, total = op.bound("call", named)()
    y, _ = op.bound("call", {**wide, "x": total.astype(np.float32), "residual": -0.0})()
    return y, total


def is_same(a: Any, b: Any) -> None:
    """The very same bytes."""
    np.testing.assert_array_equal(*(np.atleast_1d(np.asarray(x)).view(np.int8) for x in (a, b)))


@pytest.fixture(params=[None, 96, 640], ids=["whole", "small parts", "parts"])
def part(request, monkeypatch):
    """So many elements a part."""
    if request.param:
        monkeypatch.setattr(quantized, "_PART", request.param // fa.get_num_threads())
        monkeypatch.setattr(parts, "_PART_OF_GPU", request.param)


def same_codes(got: Any, right: Any) -> None:
    """Devices have codes as bytes without a sign, and torch has types of its own."""
    if isinstance(got, torch.Tensor):
        got = got.view(torch.int8).cpu()
    elif not isinstance(got, np.ndarray | np.generic):
        got = np.frombuffer(got.tobytes(), np.int8).reshape(got.shape)
    is_same(got, right)


@each_per
@each_format
@each_dtype
@pytest.mark.parametrize(
    ("op", "way"),
    [
        (op, way)
        for op in OPS
        for way in ({}, {"axis": 0}, {"casting": "llama"}, {"activation": "silu"})
        if {*way} <= {*op.entry_points["call"].defaults}
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else part.name,
)
def test_codes_are_those_of_two_steps(op, way, dtype, codes, per, part, framework):
    """By the framework's own value of the op, in the type in which it computes."""
    named = sampled(op, dtype if framework.exact else "float32", (64, 64), **way)
    if "axis" in way and "bias" not in op.entry_points["call"].arrays:
        named.pop("bias", None)  # of the other axis
    given = {n: framework.of(v) if np.ndim(v) else v for n, v in named.items()}
    bound = op.bound("call", given)
    if framework.exact:
        y, total = value(op, named)
    else:
        y, total = bound() if len(op.results) > 1 else (bound(), None)
        y, total = (a if a is None else framework.numpy(a) for a in (y, total))
    got, scale, *others = op.quantized(*bound.args, **bound.keywords, dtype=codes, per=per)
    if framework.name == "numpy":
        assert got.dtype == getattr(ml_dtypes, codes, np.int8)
    elif framework.name == "torch":
        assert got.dtype == getattr(torch, codes)
    scale = np.asarray(framework.numpy(scale))
    assert_same_bits(scale, scales(y.astype(scale.dtype), codes, per))
    same_codes(got, encoded(y, scale, codes))
    for sum_, right in zip(others, [total] if others else [], strict=True):
        assert_same_bits(framework.numpy(sum_), right)
    assert (total is None) == (not others)
    if framework.exact:
        given = {"dtype": codes, "per": per, op.known_scale: framework.of(scale)}
        known, *_ = op.quantized(*bound.args, **bound.keywords, **given)
        same_codes(known, encoded(y, scale, codes))


@each_op
def test_any_layout_and_out(op, part):
    """Strided arrays, results where they are told to be, and no others."""
    named = sampled(op, "float32", (8, 64))
    bound = op.bound("call", named)
    expected = op.quantized(*bound.args, **bound.keywords)
    strided = {
        n: np.repeat(v, 2, -1)[..., ::2][::-1].copy("F")[::-1] if np.ndim(v) == 2 else v
        for n, v in named.items()
    }
    bound = op.bound("call", strided)
    outs = tuple(np.zeros((*r.shape[:-1], 3 * r.shape[-1]), r.dtype)[..., ::3] for r in expected)
    got = op.quantized(*bound.args, **bound.keywords, out=outs)
    for result, out, right in zip(got, outs, expected, strict=True):
        assert result is out
        is_same(np.ascontiguousarray(out), right)


@pytest.mark.parametrize("given", [{}, {"per": "tensor"}, {"per": 16, "dtype": "float8_e4m3fn"}])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@each_op
def test_a_repeated_call_is_replayed(op, framework, given, part, monkeypatch):
    """Of all parts, by new numbers."""
    for time in range(4):
        named = sampled(op, "float16")
        named = {n: v * (1 + time) if isinstance(v, np.ndarray) else v for n, v in named.items()}
        if framework == "torch":
            named = {n: to_torch(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
        bound = op.bound("call", named)
        run = partial(op.quantized, *bound.args, **bound.keywords, **given)
        right = uncached(run)
        outs = tuple((torch if framework == "torch" else np).empty_like(a) for a in right)
        with monkeypatch.context() as context:
            if time == 3:
                context.setattr(call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
            got = (*run(), *run(out=outs), run(**{op.known_scale: outs[1]})[0])
        for a, b in zip(got, (*right, *right, right[0]), strict=True):
            assert a.dtype == b.dtype
            if a.dtype in (torch.float8_e4m3fn, torch.float16):
                a, b = a.view(torch.int8), b.view(torch.int8)
            is_same(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrong", [-1, 0, np.inf, np.nan])
def test_scales_in_arrays_are_read_by_every_call(dtype, wrong):
    x, scale = np.ones((2, 8), dtype), np.ones((4, 1), dtype)[::2]
    for _ in range(4):
        fa.relu.quantized(x, scale=scale)
    scale[1] = wrong
    refused("scale must be positive", fa.relu.quantized, x, scale=scale, error=ValueError)


def test_dtypes_of_any_library():
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    for first in TOPS:
        right, _ = fa.silu.quantized(x, dtype=first)
        kind = getattr(ml_dtypes, first, np.int8)
        for dtype in (getattr(torch, first), kind, np.dtype(kind)):
            is_same(fa.silu.quantized(x, dtype=dtype)[0], right)
            step = torch.compile(partial(fa.silu.quantized, dtype=dtype), backend="eager")
            same_codes(step(torch.from_numpy(x))[0], right)


@each_format
def test_every_number_of_16_bits(codes):
    """The published table of float8, and integers with their ties, infinities and NaN."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    got, _ = fa.quantize(x, dtype=codes, scale=1.0)
    right = encoded(x.astype(np.float32), np.float32(1), codes)
    if codes != "int8":  # the sign and the payload of a NaN aside
        got, right = (np.where(np.isnan(x), 0x7F, c.view(np.uint8)) for c in (got, right))
    is_same(got, right)


@each_format
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_next_to_a_tie(dtype, codes):
    """A double is rounded once."""
    steps = {"int8": 0.5, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
    ties = np.arange(-300, 300) * steps[codes]
    x = ties.astype(dtype)
    x = np.concatenate([x, np.nextafter(x, -np.inf), np.nextafter(x, np.inf)])
    got, _ = fa.quantize(x, dtype=codes, scale=1.0)
    is_same(got, encoded(x, x.dtype.type(1), codes))


@each_format
@pytest.mark.parametrize("scale", [1e-45, 2.0**-126, 2.0**-80, 3e-5, 0.7, 77.0, 2.0**80, 3e38])
def test_quotients_are_those_of_a_division(scale, codes, isa):
    """By scales of any bits: quotients next to ties, of neighbours, tiny and far too large."""
    random = np.random.default_rng(0)
    scale = np.float32(scale)
    ties = np.float32(random.integers(-260, 260, 4096)) / 2
    for bits in (0, *random.integers(1, 2**23, 5)):
        by = (scale.view(np.int32) ^ np.int32(bits)).view(np.float32)
        if not 0 < by < np.inf:
            continue
        with np.errstate(over="ignore", under="ignore"):
            small = (ties * 2.0**-9, ties * 2.0**-16, ties * 2.0**8)
            x = np.concatenate([ties, *small, 2.0 ** random.integers(-140, 120, 512)])
            x = (x.astype(np.float32) * by).astype(np.float32)
            x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
            x = np.concatenate([x, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-45])])
            got, _ = fa.quantize(x.astype(np.float32), dtype=codes, scale=by)
            is_same(got, encoded(x, by, codes))


@each_format
def test_rows_that_are_not_finite(codes):
    x = np.array([[np.nan, np.inf, -np.inf, 2.0], [0.0, -0.0, 0.0, 0.0], [1e-45, 0, 0, 0]])
    x = x.astype(np.float32)
    got, scale = fa.quantize(x, dtype=codes)
    top = TOPS[codes]
    tiny = np.finfo(np.float32).tiny
    assert_same_bits(scale, np.array([[2 / np.float32(top)], [tiny], [tiny]], np.float32))
    assert got[0].astype(float)[1:].tolist() == [top, -128 if codes == "int8" else -top, top]
    assert got[0, 0] == 0 if codes == "int8" else np.isnan(got[0, 0])
    assert not got[1:].astype(float).any()


@each_format
def test_every_instruction_set_has_the_same_codes(isa, codes):
    x = np.random.default_rng(1).normal(size=(7, 1234)).astype(np.float32)
    got, _ = fa.quantize(x, dtype=codes)
    is_same(got, encoded(x, scales(x, codes, "row"), codes))


@each_op
def test_what_is_empty(op):
    named = sampled(op, "float32", (4, 64)) | {"sink": None}
    named = {n: v[:0] if np.ndim(v) == 2 else v for n, v in named.items() if v is not None}
    bound = op.bound("call", named)
    codes, scale, *_ = op.quantized(*bound.args, **bound.keywords)
    assert codes.shape == (0, codes.shape[1])
    assert scale.shape == (0, 1)
    codes, scale, *_ = op.quantized(*bound.args, **bound.keywords, per="tensor")
    assert scale == np.finfo(np.float32).tiny


@pytest.mark.parametrize("per", ["row", "tensor"])
@on_kernels
def test_the_peak_of_an_earlier_part_stays(device, per, monkeypatch):
    """Parts of 96 elements, of which the first one of each row has the peak."""
    monkeypatch.setattr(parts, "_PART_OF_GPU", 96)
    x = np.linspace(8, 1, 640, dtype=np.float32).reshape(2, 320)
    _, scale = fa.relu.quantized(device.of(x), dtype="int8", per=per)
    assert_same_bits(np.asarray(device.numpy(scale)), scales(x, "int8", per))


@on_kernels
def test_rows_across_parts_of_a_gpu(device, monkeypatch):
    """A part of one column has other sums there: softmax over it is not cut."""
    x = np.random.default_rng(0).normal(size=(17, 16)).astype(np.float32)
    y = device.numpy(fa.softmax(device.of(x), axis=0))
    monkeypatch.setattr(parts, "_PART_OF_GPU", 17)
    _, scale = fa.softmax.quantized(device.of(x), axis=0, per=1)
    assert_same_bits(np.asarray(device.numpy(scale)), scales(y, "int8", 1))


def test_any_number_of_threads():
    x = np.random.default_rng(2).normal(size=(301, 1000)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        with fa.num_threads(threads):
            found.append([fa.rms_norm.quantized(x, per=per) for per in ("row", "tensor", 8)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert_all_same_bits(mine, theirs)


@pytest.mark.parametrize("per", ["row", "tensor", 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_memory_does_not_grow(dtype, per):
    """With out= a call allocates what parts of it need."""
    peaks = []
    for rows in (4096, 16384):
        x = np.ones((rows, 512), DTYPES[dtype])
        out = tuple(map(np.asarray, fa.rms_norm.quantized(x, per=per)))
        tracemalloc.start()
        fa.rms_norm.quantized(x, per=per, out=out)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 4096


def test_tensors_that_require_grad_are_taken_as_they_are():
    x = torch.ones(2, 8, requires_grad=True)
    codes, scale = fa.silu.quantized(x)
    assert not codes.requires_grad
    assert not scale.requires_grad


class EqualToAll(str):
    """A string whose class takes it for every other one."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def _wrong(x: Any, codes: Any) -> list[tuple[type[Exception], str, dict[str, Any]]]:
    per = "per must be 'row', 'tensor' or a positive"
    return [
        (ValueError, "dtype must be 'int8' or 'float8_.*, got 'int4'", {"dtype": "int4"}),
        (ValueError, r"dtype must be .*, got torch\.int16", {"dtype": torch.int16}),
        (TypeError, "keyword argument 'block'; allowed are dtype, per, .*scale, ", {"block": 2}),
        *((ValueError, f"{per} integer, got {bad!r}", {"per": bad}) for bad in ("col", 0, True)),
        (ValueError, per, {"per": EqualToAll("col")}),
        (ValueError, "per must divide the 8 elements along the last axis, got 3", {"per": 3}),
        *(
            (ValueError, "scale must be", {"scale": bad})
            for bad in (0, -1.0, np.nan, np.inf, 1e-60, 1e60, np.zeros((2, 1), np.float32))
        ),
        (ValueError, r"scale must have shape \(2, 1\) or \(\), got \(2,\)", {"scale": x[:, 0] + 1}),
        (TypeError, "scale must have dtype float32", {"scale": np.ones((2, 1))}),
        (TypeError, "scale must be a real number, got", {"scale": "a"}),
        (ValueError, "scale_dtype must be None for int8", {"scale_dtype": "float8_e8m0fnu"}),
        (ValueError, "scale_dtype must be 'float8_e8m0fnu', got ", {"scale_dtype": np.float32}),
        (ValueError, "out must be a tuple of 2", {"out": codes}),
        (TypeError, r"out\[0\] must have dtype int8, got float32", {"out": (x, None)}),
        (TypeError, r"out\[0\] must have dtype int8, got bool", {"out": (x > 0, None)}),
        (ValueError, r"out\[0\] must have shape \(2, 8\)", {"out": (codes[:1], None)}),
        (TypeError, r"out\[1\] must have dtype float32", {"out": (None, np.ones((2, 1)))}),
        (
            ValueError,
            r"out\[1\] must be None where .*scale is an array",
            {"out": (None, x[:, :1]), "scale": x[:, :1] + 1},
        ),
    ]


@pytest.mark.parametrize("case", range(len(_wrong(np.zeros((2, 8), np.float32), np.zeros(1)))))
@each_op
def test_what_is_wrong_is_told_and_nothing_is_written(op, case):
    named = sampled(op, "float32", (2, 8))
    bound = op.bound("call", named)
    x, codes = np.zeros((2, 8), np.float32), np.full((2, 8), 77, np.int8)
    error, words, given = _wrong(x, codes)[case]
    given = {op.known_scale if name == "scale" else name: v for name, v in given.items()}
    if "out" in given and isinstance(given["out"], tuple):
        given = {**given, "out": given["out"] + (None,) * (len(op.results) - 1)}
    elif "out" in given:
        words = "out must be a tuple of"
    given = {"out": (codes, None, *(None,) * (len(op.results) - 1)), **given}
    with pytest.raises(error, match=rf"^fastact\.{op.name}\.quantized: .*{words}"):
        op.quantized(*bound.args, **bound.keywords, **given)
    assert (codes == 77).all()


@each_op
def test_errors_of_the_arguments_name_it(op):
    bound = op.bound("call", sampled(op, "float32", (2, 8)))
    rest = bound.args[1:]
    for args in (("text", *rest), (np.ones((2, 8), complex), *rest), ()):
        refused(rf"^fastact\.{op.name}\.quantized: ", op.quantized, *args, **bound.keywords)


def test_results_lie_apart():
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match=r"out\[0\] must not share memory with x"):
        fa.relu.quantized(x, out=(x.view(np.int8)[:, :8], None))
    memory = np.full(32, 7, np.float32)
    codes, scale = memory.view(np.int8)[4:20].reshape(2, 8), memory[:2, None]
    with pytest.raises(ValueError, match=r"out\[1\] must not share memory with out\[0\]"):
        fa.relu.quantized(x, out=(codes, scale))
    assert (memory == 7).all()
    with pytest.raises(ValueError, match="training must be False"):
        fa.batch_norm.quantized(x, None, None, training=True)
    refused("x must have an axis", fa.relu.quantized, np.float32(1), per="tensor", error=ValueError)
    refused("out must be given by keyword", fa.relu.quantized, x, x)
    refused("^fastact.quantize: per must divide", fa.quantize, x, per=7, error=ValueError)
    with pytest.raises(TypeError, match="it draws a number for each element"):
        fa.dropout_add_rms_norm.quantized(x, x, p=0.5, seed=1)


@pytest.mark.parametrize("scale", [None, 0.25, "array"])
@each_per
@each_format
@pytest.mark.parametrize("op", first_of_families(OPS))
def test_compiled_in_one_graph(op, codes, per, scale):
    """Among what torch compiles; tensors that require grad are taken as they are."""
    named = sampled(op, "bfloat16")
    tensors = {n: to_torch(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    bound = op.bound("call", tensors)
    rest = {**bound.keywords, "dtype": codes, "per": per}

    def block(*args: Any) -> Any:
        found, used, *sums = op.quantized(args[0] * 2, *args[1:], **rest)
        return found, used, found.float().sum() * used.sum(), *sums

    if scale == "array":
        scale = 1 + op.quantized(*bound.args, **rest)[1]
    if scale is not None:
        rest[op.known_scale] = scale
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    got, right = compiled(*bound.args), block(*bound.args)
    assert [t.dtype for t in got] == [t.dtype for t in right]
    for a, b in zip(got, right, strict=True):
        assert torch.equal(a.float(), b.float())


def test_compiled_of_any_shape_and_into_tensors():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def block(x: Any, codes: Any) -> Any:
        return fa.silu.quantized(x, per=8, out=(codes, None))

    for rows in (3, 5, 7):
        x, codes = torch.randn(rows, 16, requires_grad=True), torch.empty(rows, 16).to(torch.int8)
        _, scale = block(x, codes)
        right, same = fa.silu.quantized(x.detach(), per=8)
        assert torch.equal(codes, right)
        assert torch.equal(scale, same)
        assert not scale.requires_grad


def test_what_is_wrong_in_what_torch_compiles():
    torch._dynamo.reset()
    x = torch.ones(2, 8)
    for run, words in (
        (partial(fa.silu.quantized, dtype="int4"), "dtype must be"),
        (partial(fa.silu.quantized, per="col"), "per must be"),
        (partial(fa.silu.quantized, block=2), "unexpected keyword argument 'block'"),
        (partial(fa.rms_norm, epsilon=2), "unexpected keyword argument 'epsilon'"),
    ):
        with pytest.raises(Exception, match=words):
            torch.compile(run, fullgraph=True, backend="eager")(x)


@each_per
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("of", ["float16", "bool", "sink"])
def test_masks_are_cut_as_the_data_is(of, dtype, per, part, framework):
    """Softmax has a `scale` of its own."""
    random = np.random.default_rng(4)
    x, sink = random.normal(size=(6, 5, 64)).astype(dtype), np.full((5,), 0.5, np.float32)
    bits = random.integers(0, 2, (5, 64))
    mask = {"sink": sink} if of == "sink" else {"mask": bits.astype(of)}
    own = {n: framework.of(v) for n, v in mask.items()} | {"scale": 0.25}
    y = framework.numpy(fa.softmax(framework.of(x.astype(np.float32)), **own))
    got, scale = fa.softmax.quantized(framework.of(x), **own, per=per)
    assert_same_bits(np.asarray(framework.numpy(scale)), scales(y, "int8", per))
    same_codes(got, encoded(y, np.asarray(framework.numpy(scale)), "int8"))


@each_per
@pytest.mark.parametrize("codes", [name for name in TOPS if name != "int8"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scales_that_are_powers_of_two(dtype, codes, per, part, framework):
    """As the OCP's formats have them, found again from their bytes."""
    x = np.random.default_rng(5).normal(size=(12, 64)).astype(dtype)
    x *= np.exp2(np.linspace(-148, 126, 12).astype(int))[:, None]
    x[:3, ::3] = [[np.nan], [np.inf], [0.0]]
    x[4], x[5, :32], x[6, 0] = 0, 0, 448
    right = scales(x, codes, per, powers=True)
    for _ in range(4):
        got, scale = fa.quantize(
            framework.of(x), dtype=codes, per=per, scale_dtype="float8_e8m0fnu"
        )
        if framework.exact:
            kept = scale.view(torch.uint8) if framework.name == "torch" else scale.view(np.uint8)
            assert_same_bits(np.asarray(kept), np.uint8(np.log2(right) + 127))
            y = framework.numpy(fa.dequantize(got, scale))
            wide = y.dtype.type(right)
            given = np.asarray(got.view(torch.int8) if framework.name == "torch" else got)
            np.testing.assert_array_equal(y, numbers(given, wide, "float32", codes))
        else:
            same_codes(scale, np.uint8(np.log2(right) + 127))
        is_number = ~np.isnan(x)
        bytes_ = got.view(torch.int8).numpy() if framework.name == "torch" else got
        if not isinstance(bytes_, np.ndarray):
            bytes_ = np.frombuffer(bytes_.tobytes(), np.int8).reshape(x.shape)
        found = encoded(x, right.astype(dtype), codes).view(np.int8)
        is_same(bytes_.view(np.int8)[is_number], found[is_number])


@pytest.mark.parametrize("per", ["row", "tensor"])
def test_powers_of_two_for_one_scale_and_for_no_elements(per, framework):
    """1000 saturates: the power of two is that of 512 / 256."""
    given = {"dtype": "float8_e4m3fn", "per": per, "scale_dtype": "float8_e8m0fnu"}
    for _ in range(3):
        found = fa.quantize(framework.of(np.full((3, 32), 1000, np.float32)), **given)
        if framework.exact:
            assert (framework.numpy(fa.dequantize(*found)) == 2 * 448).all()
    for shape in ((4, 0), (0, 4)):
        assert fa.quantize(framework.of(np.zeros(shape, np.float32)), **given)[0].shape == shape


# --- and back -------------------------------------------------------------------------------------


def numbers(codes: Any, scale: Any, dtype: str, format: str) -> Any:
    """Codes times their scales, rounded to a dtype."""
    found = codes.view(getattr(ml_dtypes, format, np.int8)).astype(scale.dtype)
    scale = np.atleast_1d(scale)
    with np.errstate(invalid="ignore", over="ignore"):
        scales = np.repeat(scale, codes.shape[-1] // scale.shape[-1], -1)
        return (found * scales).astype(DTYPES[dtype])


@each_per
@each_format
@each_dtype
def test_dequantize_is_the_inverse(dtype, codes, per, framework):
    """Of every code, in any layout, into arrays; repeated calls are replayed by new numbers."""
    every = np.arange(2**8, dtype=np.uint8).view(np.bool_)[::-1]
    for time in range(4):
        given = np.stack([np.roll(every, time), every, every[::-1]]).copy("F")[::2]
        shape = {"row": (2, 1), "tensor": (), 32: (2, 8)}[per]
        scale = np.random.default_rng(time).normal(size=shape)
        scale = np.asarray(scale, np.float64 if dtype == "float64" else np.float32)
        right = numbers(given, scale, dtype, codes)
        named = {"dtype": dtype, "codes_dtype": codes}
        own = framework.of(given), framework.of(scale)
        out = framework.of(np.zeros((4, 2**9), DTYPES[dtype])[::2, ::2])
        assert fa.dequantize(*own, **named, out=out) is out
        is_made = dtype != "bfloat16" or "dlpack" not in framework.name  # which has no name for it
        made = [out, *(fa.dequantize(*own, **named) for _ in range(is_made))]
        for got in map(framework.numpy, made):
            assert got.dtype == right.dtype
            np.testing.assert_array_equal(got.astype(float), right.astype(float))


@pytest.mark.parametrize("rows", [0, 1, 64])
@each_per
@each_format
def test_what_was_quantized_comes_back(rows, codes, per, isa):
    x = np.random.default_rng(3).normal(size=(rows, 1024)).astype(np.float32)
    made, scale = fa.quantize(x, dtype=codes, per=per)
    y = fa.dequantize(made, scale)
    assert_same_bits(y, numbers(made, np.asarray(scale), "float32", codes))
    assert np.abs(y - x).max(initial=0) <= {"int8": 0.02, "float8_e4m3fn": 0.27}.get(codes, 0.53)
    of_codes = torch.from_numpy(made.view(np.int8)).view(getattr(torch, codes))
    tensors = of_codes, torch.from_numpy(np.asarray(scale))
    torch._dynamo.reset()
    step = torch.compile(fa.dequantize, fullgraph=True, backend="aot_eager")
    for run in (fa.dequantize, step):
        assert_same_bits(run(*tensors, dtype=torch.float32).numpy(), y)


WRONG = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("error", "words", "given"),
    [
        (TypeError, "codes must have dtype int8 or .*e5m2, got float32", {"codes": WRONG}),
        (TypeError, "codes must have dtype int8 or .*, got uint8", {"codes": np.ones(8, np.uint8)}),
        (ValueError, "codes must have an axis", {"codes": np.ones((), np.int8)}),
        (TypeError, "scale must be an array, got 0.5", {"scale": 0.5}),
        (ValueError, r"scale must have shape \(\), .* 8, got \(2, 3\)", {"scale": WRONG}),
        (TypeError, "scale must have dtype float64 for float64 results", {"dtype": "float64"}),
        (TypeError, "all arrays must come from one framework", {"scale": torch.ones(2, 1)}),
        (TypeError, "dtype must be float16, ", {"dtype": "int8"}),
        (ValueError, "codes_dtype must be 'int8' or ", {"codes_dtype": "int4"}),
        (ValueError, r"out must have shape \(2, 8\)", {"out": np.ones((2, 4), np.float32)}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_dequantize(error, words, given):
    named = {"codes": np.ones((2, 8), np.int8), "scale": np.ones((2, 1), np.float32), **given}
    arrays = named.pop("codes"), named.pop("scale")
    refused(f"^fastact.dequantize: {words}", fa.dequantize, *arrays, **named, error=error)


def test_jax_has_none():
    jax = pytest.importorskip("jax")
    codes, scale = jax.numpy.ones(3, "int8"), jax.numpy.ones(1)
    refused("codes must be an array that can be written, got jax", fa.dequantize, codes, scale)
    refused("x must be an array that can be written, got jax", fa.relu.quantized, jax.numpy.ones(3))
