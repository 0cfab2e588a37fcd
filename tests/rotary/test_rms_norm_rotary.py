"""A norm of heads and the rotary embedding behind it: the bits of both ops, and of models."""

from importlib import import_module

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from test_rotary import SHAPES, angles, drawn, each_dtype, each_lie

import fastact as fa
from fastact.check.expected import Call
from fastact.ops import rotary as declared
from fastact.ops.engine import parts as engine_parts

OP = fa.rms_norm_rotary


@pytest.fixture(params=[None, 16], ids=["one part", "many parts"], autouse=True)
def parts(request, monkeypatch):
    """Of so few elements are parts, for which one would do."""
    if request.param:
        monkeypatch.setattr(declared, "_PART", request.param)
        for name in ("_PART_OF_GPU", "_FEWEST"):
            monkeypatch.setattr(engine_parts, name, request.param)


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
        call = Call(OP, shape, {**named, "interleaved": interleaved}, incoming)
        assert max(call.errors().values()) <= 1


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
    turned = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, *rows))
    made = backend.run(lambda *a: OP(*a, axis=1), *turned, weight)
    assert_same_bits(np.moveaxis(made, 1, -1), y)


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


def test_an_axis_without_pairs_in_many_parts():
    x = np.random.default_rng(0).normal(size=(80, 1, 500)).astype(np.float32)
    none = np.ones((80, 0, 500), np.float32)
    assert_same_bits(fa.rms_norm_rotary(x, none, none, axis=1), fa.rms_norm(x, axis=1))
