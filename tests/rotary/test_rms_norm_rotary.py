"""A norm of heads and the rotary embedding behind it: the bits of both ops, and of models."""

from importlib import import_module

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES
from test_rotary import SHAPES, angles, drawn, each_dtype, each_lie

import fastact as fa
from fastact.check.expected import errors
from fastact.ops import rotary as declared

OP = fa.rms_norm_rotary


@pytest.fixture(params=[None, 16], ids=["one part", "many parts"], autouse=True)
def parts(request, monkeypatch):
    """Of so few elements are parts, for which one would do."""
    if request.param:
        for name in ("_PART", "_PART_OF_GPU", "_FEWEST"):
            monkeypatch.setattr(declared, name, request.param)


@pytest.mark.parametrize(("shape", "of_angles"), [*SHAPES[:5], SHAPES[-1]], ids=str)
@each_lie
@each_dtype
def test_the_bits_are_those_of_both_ops(backend, dtype, shape, of_angles, interleaved):
    x, dy, weight = drawn(shape, dtype), drawn(shape, dtype, 1), drawn(shape[-1:], dtype, 2)
    (cos, sin), of = angles(of_angles, dtype), {"interleaved": interleaved}

    def fused(x, dy, cos, sin, weight):
        y, saved = OP.forward(x, cos, sin, weight, eps=0.5, weight_offset=1, **of)
        return (OP(x, cos, sin, weight, eps=0.5, weight_offset=1, **of), y, *saved[:2],
                *OP.backward(dy, *saved, weight_offset=1, **of))  # fmt: skip

    def both(x, dy, cos, sin, weight):
        n, saved = fa.rms_norm.forward(x, weight, eps=0.5, weight_offset=1)
        y = fa.rotary(n, cos, sin, **of)
        p = fa.rotary.backward(dy, cos, sin, None, **of)
        return (y, y, *saved[:2], *fa.rms_norm.backward(p, *saved, weight_offset=1))

    for i in (0, 1, 3, 4, 5):  # but for x, which is saved
        made, one = (
            backend.run(lambda *a, f=f, i=i: f(*a)[i], x, dy, cos, sin, weight)
            for f in (fused, both)
        )
        assert_same_bits(made, one)


@each_dtype
@each_lie
def test_by_the_bounds(dtype, interleaved):
    for shape, of_angles in SHAPES:
        x, (cos, sin) = drawn(shape, dtype), angles(of_angles, dtype)
        named = {"x": x, "cos": cos, "sin": sin, "weight": drawn(shape[-1:], dtype, 2)}
        incoming = {"dy": drawn(shape, dtype, 1)}
        assert max(errors(OP, shape, {**named, "interleaved": interleaved}, incoming).values()) <= 1


@each_dtype
def test_any_layout_axis_and_position(backend, dtype):
    x, weight = drawn((4, 6, 48), dtype), drawn(48, dtype, 2)
    cos, sin = angles((9, 20), dtype)
    positions = np.array([[8], [0], [3], [3]])
    y = backend.run(
        lambda x, cos, sin, weight, p: OP(x, cos, sin, weight, positions=p),
        x, cos, sin, weight, positions,
    )  # fmt: skip
    rows = [np.broadcast_to(a[positions], (4, 6, 20)) for a in (cos, sin)]
    assert_same_bits(backend.run(OP, x, *rows, weight), y)
    spread = np.zeros((4, 6, 96), dtype)[..., ::-2]
    spread[...] = x
    for other in (spread, np.asfortranarray(x)):
        assert_same_bits(backend.run(OP, other, *rows, weight), y)
    turned = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, *rows))
    made = backend.run(lambda *a: OP(*a, axis=1), *turned, weight)
    assert_same_bits(np.moveaxis(made, 1, -1), y)


@each_dtype
def test_in_place_and_added(dtype):
    """dx may be dy, or x, or be added to; one gradient alone has the same bits."""
    x, dy, (cos, sin) = drawn((3, 5, 20), dtype), drawn((3, 5, 20), dtype, 1), angles((5, 8), dtype)
    weight = drawn(20, dtype, 2)
    y, saved = OP.forward(x, cos, sin, weight)
    dx, dweight = OP.backward(dy, *saved)
    mine = x.copy()
    assert_same_bits(OP(mine, cos, sin, weight, out=mine), y)
    for arrays in ((x.copy(), dy.copy()), (x, dy)):
        for i in range(2):
            given = [a.copy() for a in arrays]
            OP.backward(given[1], given[0], *saved[1:], out=(given[i], None))
            assert_same_bits(given[i], dx)
    _, alone = OP.backward(dy, *saved, out=(None, np.empty_like(weight)))
    assert_same_bits(alone, dweight)
    sums = np.zeros_like(dx), np.zeros_like(dweight)
    OP.backward(dy, *saved, out=sums, accumulate=True)
    for made, one in zip(sums, (dx, dweight), strict=True):
        assert_same_bits(made + 0, one + 0)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_threads_do_not_change_the_bits(dtype):
    x, (cos, sin) = drawn((3, 211, 5, 66), dtype), angles((211, 1, 33), dtype)
    y, saved = OP.forward(x, cos, sin, drawn(66, dtype, 2))
    gradients = OP.backward(x, *saved)
    for threads in (1, 2, 3, 7):
        with fa.num_threads(threads):
            for _ in range(3):  # the calls that are cached, too
                assert_same_bits(OP(x, cos, sin, saved[4]), y)
            for made, one in zip(OP.backward(x, *saved), gradients, strict=True):
                assert_same_bits(made, one)


X, (COS, SIN) = drawn((2, 4, 8)), angles((4, 4))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda o: OP(X, *angles((4, 5)), out=o), ValueError, "cos must have from 0 to 4 pairs"),
        (lambda o: OP(X, *angles((3, 4)), out=o), ValueError, "cos must broadcast to x's pairs"),
        (lambda o: OP(X, COS, SIN.astype(float), out=o), TypeError, "sin must have dtype float32"),
        (lambda o: OP(X, COS, SIN, X[0], out=o), ValueError, "weight must have shape (8,)"),
        (lambda o: OP(X, COS, SIN, eps=-1, out=o), ValueError, "eps must not be negative"),
        (lambda o: OP(X, COS, SIN, casting="no", out=o), ValueError, "casting must be"),
        (lambda o: OP(X, COS, SIN, axis=(1, 2), out=o), TypeError, "axis must be an integer"),
        (lambda o: OP(X, COS, SIN, positions=np.array([0, 1, 2, 4]), out=o), ValueError,
         "positions must be from 0 to 3"),
        (lambda o: OP.backward(X, X, np.ones((2, 4), "f"), COS, SIN, out=(o, None)), ValueError,
         "rstd must have shape (2, 4, 1)"),
        (lambda o: OP.backward(X, X, np.ones((2, 4, 1), "f"), COS, SIN, None, np.array([[9]]),
                               out=(o, None)), ValueError, "positions must be from 0 to 3"),
    ],
)  # fmt: skip
def test_refused_and_nothing_written(call, error, said):
    out = np.full_like(X, 7)
    for _ in range(3):  # where calls are cached, too
        with pytest.raises(error) as found:
            call(out)
        assert str(found.value).startswith("fastact.rms_norm_rotary")
        assert said in str(found.value)
        assert (out == 7).all()


# --- as published ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "norm", "casting"),
    [("qwen3", "Qwen3RMSNorm", "llama"), ("gemma3", "Gemma3RMSNorm", "gemma")],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_as_models_norm_queries_and_keys(model, norm, casting, dtype):
    """float64 to its rounding; else no farther from the exact value than the model's own code."""
    pytest.importorskip("transformers")
    theirs = import_module(f"transformers.models.{model}.modeling_{model}")
    torch.manual_seed(0)
    layer = getattr(theirs, norm)(64, 1e-6)
    layer.weight.data.normal_(0.3, 0.2)
    wide = torch.randn((2, 7, 4, 64), dtype=torch.float64).to(dtype).double()
    angle = torch.rand((2, 7, 32), dtype=torch.float64) * 9
    cos, sin = (f(torch.cat((angle, angle), -1)).to(dtype).double() for f in (torch.cos, torch.sin))

    def of_model(layer, x, cos, sin):
        n = layer(x).transpose(1, 2)
        return theirs.apply_rotary_pos_emb(n, n, cos, sin)[0].transpose(1, 2)

    def ours(weight, x, cos, sin):
        half = [a[:, :, None, :32] for a in (cos, sin)]
        return OP(x, *half, weight, eps=1e-6, casting=casting)

    layer = layer.to(dtype)
    weight = layer.weight.detach()
    x = wide.double()
    scale = 1 / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    exact = fa.rotary(x * scale * (weight.double() + (casting == "gemma")),
                      *(a[:, :, None, :32] for a in (cos, sin)))  # fmt: skip
    narrow = [a.to(dtype) for a in (wide, cos, sin)]
    with torch.no_grad():
        made, model_made = ours(weight, *narrow), of_model(layer, *narrow)
    off, theirs_off = ((a.double() - exact).abs().max().item() for a in (made, model_made))
    assert made.dtype == model_made.dtype == dtype
    assert off <= (1e-14 if dtype == torch.float64 else 1.05 * theirs_off)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@each_lie
def test_torch_differentiates_it(interleaved):
    """Once and again, in both modes, and compiled."""
    torch.manual_seed(0)
    x, weight, angle = (
        torch.randn(n, dtype=torch.float64) for n in ((2, 3, 2, 8), (8,), (3, 1, 3))
    )
    cos, sin = angle.cos(), angle.sin()
    x.requires_grad_(), weight.requires_grad_()

    def call(x, weight):
        return OP(x, cos, sin, weight, interleaved=interleaved)

    assert torch.autograd.gradcheck(call, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (x, weight), fast_mode=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight), call(x, weight))
    with pytest.raises(TypeError, match="cos gets no gradient"):
        OP(x, cos.clone().requires_grad_(), sin)


def test_an_axis_without_pairs_in_many_parts():
    x = np.random.default_rng(0).normal(size=(80, 1, 500)).astype(np.float32)
    none = np.ones((80, 0, 500), np.float32)
    assert_same_bits(fa.rms_norm_rotary(x, none, none, axis=1), fa.rms_norm(x, axis=1))
