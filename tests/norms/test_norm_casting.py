"""Root-mean-square norms as Llama's and Gemma's published code, which is written out here."""

from typing import Any

import numpy as np
import pytest
import torch
from arrays import ulp
from conftest import DTYPES, assert_all_same_bits, assert_same_bits
from devices import from_torch, to_torch

import fastact as fa
from fastact.check import reference
from fastact.interop.call import Call
from fastact.measure.norm_rows import traits
from fastact.ops.norms import CASTING

EPS = 1e-6
# Those that drop have the bits of others (test_dropout_norms.py).
OPS = [
    op
    for op in fa.ops.values()
    if CASTING in getattr(op, "parts", ()) and not op.traits.counts_elements
]
#: Those whose activation is behind the norm, not a gate's.
BEHIND = [op for op in OPS if not traits(op).gated]
NARROW = [DTYPES["float16"], DTYPES["bfloat16"]]
# 257 columns are no multiple of a vector; 1200 are more than a chunk of the kernels, and of 20001 a
# GPU takes a row by several blocks.
SHAPES = [(40, 16), (5, 257), (3, 1200), (2, 20001)]

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


class Case:
    """Arrays of an example, and what the published code makes of them.

    The code's own variance is a mean in float32. Here it is one in float64, which is what is
    computed; everything else is rounded where the code rounds.
    """

    def __init__(self, op: Any, shape: tuple[int, ...], dtype: Any, weight_dtype: Any = None):
        rng = np.random.default_rng(len(shape) + shape[0])
        self.op, self.dtype = op, dtype
        self.x = rng.normal(size=shape).astype(dtype)
        self.residual = self.gate = rng.normal(size=shape).astype(dtype)
        self.dy = rng.normal(size=shape).astype(dtype)
        self.weight = rng.normal(size=shape[-1]).astype(weight_dtype or dtype)

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        second = traits(self.op).second
        return (self.x, getattr(self, second)) if second else (self.x,)

    @property
    def total(self) -> np.ndarray:
        """The array that is normalised."""
        return self.x + self.residual if traits(self.op).adds else self.x

    @property
    def xhat(self) -> np.ndarray:
        """hidden_states.float() * rsqrt(variance + eps)"""
        wide = self.total.astype(np.float64)
        rstd = 1 / np.sqrt(np.mean(wide**2, -1, keepdims=True) + EPS)
        self.rstd = rstd.astype(np.float32)
        return self.total.astype(np.float32) * self.rstd

    def gated(self, z: np.ndarray) -> np.ndarray:
        """(hidden_states * F.silu(gate.to(torch.float32))).to(input_dtype)"""
        if traits(self.op).gated:
            z = z * reference.forward("silu", self.gate.astype(np.float64)).astype(np.float32)
        return z.astype(self.dtype)

    def weighted(self) -> np.ndarray:
        """weight * hidden_states.to(input_dtype)"""
        return (self.weight * self.xhat.astype(self.dtype)).astype(self.dtype)

    def llama(self) -> np.ndarray:
        return self.gated(self.weighted())

    def gemma(self) -> np.ndarray:
        """(output * (1.0 + weight.float())).type_as(x)"""
        return self.gated(self.xhat * (np.float32(1) + self.weight.astype(np.float32)))

    def llama_gradients(self) -> tuple[np.ndarray, ...]:
        """Of `llama`, whose products with the weight and with dy are of 16 bits.

        A gate is no other function of itself: another f(gate) is of float32, and where a product
        with it goes to the other number of 16 bits, what cancels behind it is off by more than
        its last place.
        """
        xhat, dy = self.xhat.astype(np.float64), self.dy
        if traits(self.op).gated:
            dy = self.dy * self.gate
        g = (dy * self.weight).astype(self.dtype).astype(np.float64)
        terms = (dy * self.xhat.astype(self.dtype)).astype(self.dtype)
        dx = self.rstd * (g - xhat * np.mean(g * xhat, -1, keepdims=True))
        of_gate = []
        if traits(self.op).gated:
            of_gate = [self.dy.astype(np.float64) * self.weighted()]
        found = (dx, *of_gate, terms.astype(np.float64).sum(0))
        return tuple(a.astype(self.dtype) for a in found)


def y_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def assert_equal_but_for_ties(got: np.ndarray, expected: np.ndarray, *, ties: float) -> None:
    """All equal but so large a part, of which none is off by more than its last place.

    Where float32 rounds otherwise than float64, a value beside the middle of two numbers of 16 bits
    goes to the other one.
    """
    assert got.dtype == expected.dtype
    away = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    # 2^-24 of the sums' terms, which are of the order of 1, counts where they cancel.
    assert np.all(away <= ulp(expected) + 2.0**-20)
    assert np.count_nonzero(away) <= ties * away.size


@each_op
@each_shape
@each_narrow
def test_gemma(op, shape, dtype, backend):
    case = Case(op, shape, dtype)
    arrays = map(backend.of, (*case.inputs, case.weight))
    y = backend.numpy(y_of(op(*arrays, eps=EPS, casting="gemma")))
    # One statistic in float32 of some thousand may be rounded the other way.
    assert_equal_but_for_ties(y, case.gemma(), ties=1e-3)


@pytest.mark.parametrize(
    ("op", "activation"),
    [*((op, "identity") for op in OPS), *((op, "relu") for op in BEHIND)],
    ids=lambda part: getattr(part, "name", part),
)
@each_shape
@each_narrow
def test_llama(op, activation, shape, dtype, backend):
    """The activation's argument is rounded, and so is the gradient that comes back through it."""
    case = Case(op, shape, dtype)
    arrays, how = [*map(backend.of, (*case.inputs, case.weight))], {"casting": "llama", "eps": EPS}
    y = op(*arrays, **how, **({"activation": "relu"} if activation == "relu" else {}))
    z, how["activation"] = case.llama(), activation  # a gate's own is another one
    passes = (z > 0) | (activation == "identity")
    assert_equal_but_for_ties(backend.numpy(y_of(y)), np.where(passes, z, z * 0), ties=1e-3)
    _, saved = op.forward(*arrays, **how)
    gradients = op.backward(backend.of(case.dy), *saved, **how)
    case.dy = np.where(passes, case.dy, case.dy * 0)
    for got, expected in zip(gradients, case.llama_gradients(), strict=True):
        # Five roundings of float32, each 2^-13 or less of the distance between two numbers.
        assert_equal_but_for_ties(backend.numpy(got), expected, ties=4e-3)


@each_narrow
def test_published_code(dtype):
    """LlamaRMSNorm by torch: its variance is of float32, which moves some roundings."""
    op = fa.ops["rms_norm"]
    case = Case(op, (64, 512), dtype)
    x, weight, dy = (to_torch(a) for a in (case.x, case.weight, case.dy))
    x.requires_grad_(), weight.requires_grad_()
    hidden = x.float()
    hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + EPS)
    y = weight * hidden.to(x.dtype)
    y.backward(dy)
    got, saved = op.forward(case.x, case.weight, eps=EPS, casting="llama")
    dx, _ = op.backward(case.dy, *saved, eps=EPS, casting="llama")
    assert_equal_but_for_ties(got, from_torch(y.detach()), ties=1e-3)
    assert_equal_but_for_ties(dx, from_torch(x.grad), ties=2e-2)


@each_op
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_data_are_rounded_once(op, dtype, backend):
    case = Case(op, (5, 257), dtype)
    results = []
    for casting in ("exact", "llama"):
        arrays = map(backend.of, (*case.inputs, case.weight))
        y, saved = op.forward(*arrays, casting=casting)
        gradients = op.backward(backend.of(case.dy), *saved, casting=casting)
        results.append([backend.numpy(a) for a in (y_of(y), *gradients)])
    assert_all_same_bits(*results)


@each_op
@each_shape
@pytest.mark.parametrize("activation", ["identity", "silu"])
def test_weight_offset(op, shape, dtype, activation, backend):
    """As a weight that holds the sum, in the type in which it is computed."""
    case = Case(op, shape, dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    how = {"activation": activation, "eps": EPS}
    results = []
    for weight, offset in ((case.weight, 0.75), (case.weight.astype(wide) + wide(0.75), 0.0)):
        arrays = map(backend.of, (*case.inputs, weight))
        y, saved = op.forward(*arrays, weight_offset=offset, **how)
        gradients = op.backward(backend.of(case.dy), *saved, weight_offset=offset, **how)
        results.append([backend.numpy(a) for a in (y_of(y), *gradients)])
    for got, expected in zip(*results, strict=True):
        assert_same_bits(got, expected.astype(dtype))


@each_op
def test_the_default_offset_is_the_castings(op):
    case = Case(op, (5, 257), DTYPES["bfloat16"])
    call = (*case.inputs, case.weight)
    expected = y_of(op(*call, casting="gemma"))
    assert_same_bits(y_of(op(*call, casting="gemma", weight_offset=1)), expected)
    assert_same_bits(y_of(op(*call, weight_offset=1)), expected)
    assert_same_bits(
        y_of(op(*call, casting="gemma", weight_offset=0)), y_of(op(*call, weight_offset=0.0))
    )


@each_op
def test_no_weight(op, backend):
    """Then there is nothing to which an offset is added."""
    case = Case(op, (5, 257), DTYPES["bfloat16"])
    y = backend.numpy(y_of(op(*map(backend.of, case.inputs), casting="gemma", eps=EPS)))
    assert_equal_but_for_ties(y, case.gated(case.xhat), ties=1e-3)


def layer_norm_both_ways(x: Any, one: Any) -> None:
    _, saved = fa.layer_norm.forward(x, one, one)
    fa.layer_norm.backward(x, *saved)


@pytest.mark.parametrize("entry", ["norm_forward", "norm_backward"])
def test_native_functions_cast_without_a_mean_alone(entry, backend, monkeypatch):
    """Its gradients would not be layer_norm's."""
    run = Call.run

    def casting(self, function, /, **named):
        run(self, function, **{**named, "casts": function == entry})

    monkeypatch.setattr(Call, "run", casting)
    x, one = (backend.of(np.ones(shape, np.float32)) for shape in ((2, 3), (3,)))
    with pytest.raises(ValueError, match="casts must be False with a bias or a mean"):
        layer_norm_both_ways(x, one)
