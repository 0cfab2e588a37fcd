"""Rotary embeddings: by their bounds, as published models have them, and what they refuse."""

from itertools import product

import numpy as np
import pytest
import torch
from arrangements import padded
from assembly import BUILT, REGISTERS, code_of, functions, kernels, loops, readable
from conftest import assert_all_same_bits, assert_same_bits, stores_past_the_caches
from devices import DTYPES, FRAMEWORKS
from judged import refused

import fastact as fa
from fastact.check.expected import Call

each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_lie = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


def drawn(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def angles(shape, dtype=np.float32):
    angle = np.random.default_rng(7).uniform(-9, 9, shape)
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def formula(x, cos, sin, interleaved=False):
    """As published, in the dtype of x, along the last axis."""
    y, n = x.copy(), cos.shape[-1]
    a = x[..., 0 : 2 * n : 2] if interleaved else x[..., :n]
    b = x[..., 1 : 2 * n : 2] if interleaved else x[..., n : 2 * n]
    first, second = a * cos - b * sin, b * cos + a * sin
    y[..., : 2 * n] = (
        np.stack((first, second), -1).reshape(*x.shape[:-1], 2 * n)
        if interleaved
        else np.concatenate((first, second), -1)
    )
    return y


#: Of x and cos: heads last and first; of a part; of one pair; broadcast in the middle; longer than
#: a chunk of the kernels, and no whole vector.
SHAPES = [
    ((2, 5, 3, 64), (5, 1, 32)), ((2, 3, 5, 128), (5, 64)), ((2, 3, 5, 80), (2, 1, 5, 16)),
    ((7, 2), (7, 1)), ((50, 14), (50, 7)), ((3, 4, 6), (3, 1, 3)), ((2, 2, 700), (2, 333)),
    ((40, 4), (2,)), ((6, 5), (0,)),
]  # fmt: skip
each_shape = pytest.mark.parametrize(("shape", "of_angles"), SHAPES, ids=str)


@each_shape
@each_lie
@each_dtype
def test_the_bits_are_the_formulas(backend, dtype, shape, of_angles, interleaved):
    """In the type in which it is computed, rounded once."""
    x, (cos, sin) = drawn(shape, dtype), angles(of_angles, dtype)
    wide = [a.astype(np.float32) if dtype.itemsize == 2 else a for a in (x, cos, sin)]
    exact = formula(*wide, interleaved).astype(dtype)
    y = backend.run(lambda *a: fa.rotary(*a, interleaved=interleaved), x, cos, sin)
    assert_same_bits(y, exact)
    dx = backend.run(
        lambda dy, cos, sin: fa.rotary.backward(dy, cos, sin, None, interleaved=interleaved),
        x, cos, sin,
    )  # fmt: skip
    assert_same_bits(dx, formula(*wide[:2], -wide[2], interleaved).astype(dtype))


@each_dtype
@each_lie
@pytest.mark.parametrize("wide", [False, True], ids=["of its dtype", "wider"])
def test_by_the_bounds(dtype, interleaved, wide):
    for shape, of_angles in SHAPES:
        computed = np.float64 if dtype == np.float64 else np.float32
        cos, sin = angles(of_angles, computed if wide else dtype)
        named = {"x": drawn(shape, dtype), "cos": cos, "sin": sin, "interleaved": interleaved}
        call = Call(fa.rotary, shape, named, {"dy": drawn(shape, dtype, 1)})
        assert max(call.errors().values()) <= 1


@each_dtype
def test_positions_name_rows_of_the_table(backend, dtype):
    x, (cos, sin) = drawn((2, 5, 3, 16), dtype), angles((9, 6))
    if dtype == np.float64:
        cos, sin = angles((9, 6), dtype)
    for positions in (
        np.array([[[8], [0], [3], [3], [1]], [[0], [1], [2], [3], [4]]]),
        np.array(4),
    ):
        rows = tuple(np.broadcast_to(a[positions], (2, 5, 3, 6)) for a in (cos, sin))
        plain = backend.run(fa.rotary, x, *rows)
        for index in (np.int32, np.int64):
            named = backend.run(
                lambda x, cos, sin, p: fa.rotary(x, cos, sin, positions=p),
                x, cos, sin, positions.astype(index),
            )  # fmt: skip
            assert_same_bits(named, plain)
    out, saved = fa.rotary.forward(x, cos, sin, positions=positions)
    assert saved[0] is cos
    assert saved[1] is sin
    assert saved[2] is positions
    back = fa.rotary.backward(out, *saved)
    assert_same_bits(back, fa.rotary.backward(out, *rows, None))


#: How much further apart rows of cosines and of sines are: of both, of one, by vectors and not.
TABLES = [(2, 2), (0, 2), (2, 0), (8, 16), (16, 0)]


@each_dtype
@each_lie
def test_tables_have_rows_of_their_own(backend, dtype, interleaved):
    """Columns of wider tables, of which sines need not have as many as cosines."""
    x, (cos, sin) = drawn((2, 5, 16), dtype), angles((9, 8), dtype)
    for positions, padding in product((np.array([8, 0, 3, 3, 1]), None), TABLES):

        def call(x, cos, sin, *positions):
            of = {"positions": positions[0]} if positions else {}
            return fa.rotary(x, cos, sin, interleaved=interleaved, **of)

        tables = (cos, sin) if positions is not None else (cos[:5], sin[:5])
        more = [] if positions is None else [positions]
        views = [padded(a, by) for a, by in zip(tables, padding, strict=True)]
        rows = tables if positions is None else (cos[positions], sin[positions])
        assert_same_bits(backend.run(call, x, *views, *more), call(x, *rows))
    for repeated in (0, 1):  # one row for all rows of x, in one of them alone
        tables = [cos[:5], sin[:5]]
        tables[repeated] = np.broadcast_to(tables[repeated][:1], (5, 8))
        expected = call(x, *(np.array(a) for a in tables))
        assert_same_bits(backend.run(call, x, *tables), expected)


@each_dtype
@each_lie
def test_what_is_not_turned_is_added_to_as_well(backend, dtype, interleaved):
    """Where dx is dy itself, it doubles."""
    dy, (cos, sin) = drawn((5, 16), dtype), angles((5, 4), dtype)
    for cos_, sin_ in ((cos, sin), (cos[:, :0], sin[:, :0])):
        held, of = backend.of(dy.copy()), [backend.of(a) for a in (cos_, sin_)]
        fa.rotary.backward(held, *of, None, interleaved=interleaved, out=held, accumulate=True)
        turned = backend.numpy(held)[:, 2 * cos_.shape[1] :]
        assert_same_bits(np.ascontiguousarray(turned), 2 * dy[:, 2 * cos_.shape[1] :])


@each_dtype
@each_lie
def test_a_tuple_of_queries_and_keys(dtype, interleaved):
    """They may differ in heads; each result may lie in its own array."""
    q, k = drawn((2, 5, 4, 32), dtype), drawn((2, 5, 1, 32), dtype, 1)
    cos, sin = angles((5, 1, 16), np.float64 if dtype == np.float64 else np.float32)
    each = [fa.rotary(a, cos, sin, interleaved=interleaved) for a in (q, k)]
    for _ in range(4):  # the calls that are cached, too
        for made, one in zip(
            fa.rotary((q, k), cos, sin, interleaved=interleaved), each, strict=True
        ):
            assert_same_bits(made, one)
        both, saved = fa.rotary.forward((q, k), cos, sin, interleaved=interleaved)
        back = fa.rotary.backward(both, *saved, interleaved=interleaved)
        for dx, one in zip(back, each, strict=True):
            assert_same_bits(dx, fa.rotary.backward(one, *saved, interleaved=interleaved))
    mine = q.copy(), k.copy()
    found = fa.rotary(mine, cos, sin, interleaved=interleaved, out=mine)
    assert found[0] is mine[0]
    assert found[1] is mine[1]
    assert_all_same_bits(mine, each)


@each_dtype
@each_lie
def test_past_the_caches(dtype, interleaved):
    """Stores past the caches give the same bits; rows of whole cache lines, and others."""
    with stores_past_the_caches():
        far = [_past(dtype, interleaved, n) for n in (64, 24)]
    for n, y in zip((64, 24), far, strict=True):
        assert_same_bits(y, _past(dtype, interleaved, n))


def _past(dtype, interleaved, n):
    x, (cos, sin) = drawn((9, 7, n), dtype), angles((9, 1, n // 2), dtype)
    memory = np.zeros(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + x.nbytes].view(dtype).reshape(x.shape)
    return fa.rotary(x, cos, sin, interleaved=interleaved, out=out)


# --- what is refused ------------------------------------------------------------------------------

X, (COS, SIN) = drawn((2, 4, 8)), angles((4, 4))


@pytest.mark.parametrize("kind", ["numpy", "torch", "torch, recorded", "torch, traced"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_tuple_of_another_length(count, kind):
    of = np.asarray if kind == "numpy" else torch.from_numpy
    x, cos, sin = map(of, (X, COS, SIN))
    if kind == "torch, recorded":
        x.requires_grad_()
    given = (x,) * count
    if kind == "torch, traced":
        given = tuple(torch.empty_like(x, device="meta") for x in given)
    # what records or traces calls has them by themselves
    entries = ("call",) if kind.startswith("torch,") else ("call", "forward", "backward")
    for entry in entries:
        name = "dy" if entry == "backward" else "x"
        for _ in range(4):
            with pytest.raises(TypeError, match=f"{name} must be an array or a tuple of two, got"):
                fa.rotary.entry_point(entry)(given, cos, sin)


@pytest.mark.parametrize("positions", [np.arange(4) > 0, np.arange(4.0), [True, False] * 2])
def test_positions_are_integers(positions):
    """Neither bools, which are labels of groups, nor what np.unique would make labels of."""
    with pytest.raises(TypeError, match=r"positions must have dtype int32 or int64, got \w+$"):
        fa.rotary(X, COS, SIN, positions=positions)


def test_a_position_that_is_not_there_is_nan_on_a_device():
    emulated = [f for f in FRAMEWORKS if f.name.startswith("emulated")]
    if not emulated:
        pytest.skip("the emulated device is not built")
    positions = np.array([0, 4, -1, 3])  # the table has 4
    y = emulated[0].run(
        lambda x, cos, sin, p: fa.rotary(x, cos, sin, positions=p), X, COS, SIN, positions
    )
    assert np.isnan(y).any(axis=(0, 2)).tolist() == [False, True, True, False]


# --- as published ---------------------------------------------------------------------------------


def tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("model", ["llama", "qwen3"])
@pytest.mark.parametrize("heads_first", [True, False])
def test_as_hugging_face_has_halves(model, heads_first):
    pytest.importorskip("transformers")
    from importlib import import_module

    theirs = import_module(f"transformers.models.{model}.modeling_{model}").apply_rotary_pos_emb
    shape = (lambda heads: (2, heads, 5, 16)) if heads_first else (lambda heads: (2, 5, heads, 16))
    q, k, angle = tensors(shape(4), shape(2), (2, 5, 8))
    angle = torch.cat((angle, angle), -1)  # as they repeat it
    cos, sin, axis = angle.cos(), angle.sin(), 1 if heads_first else 2
    exact = theirs(q, k, cos, sin, unsqueeze_dim=axis)
    half = [a.unsqueeze(axis)[..., :8] for a in (cos, sin)]
    for made, one in zip(fa.rotary((q, k), *half), exact, strict=True):
        assert torch.equal(made, one)


def test_as_gpt_j_has_neighbours():
    pytest.importorskip("transformers")
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    x, angle = tensors((2, 5, 4, 16), (2, 5, 8))
    exact = apply_rotary_pos_emb(x, angle.sin(), angle.cos())
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    assert torch.equal(fa.rotary(x, cos, sin, interleaved=True), exact)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@each_lie
def test_torch_differentiates_it(interleaved):
    """A tuple has derivatives in both modes, and compiles; test_forward_mode.py has one array."""
    q, k, angle = tensors((2, 2, 2, 8), (2, 2, 1, 8), (2, 1, 3))
    cos, sin = angle.cos(), angle.sin()
    q.requires_grad_(), k.requires_grad_()

    def call(q, k):
        return fa.rotary((q, k), cos, sin, interleaved=interleaved)

    assert torch.autograd.gradcheck(call, (q, k), check_forward_ad=True, fast_mode=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for made, one in zip(compiled(q, k), call(q, k), strict=True):
        assert torch.equal(made, one)
    refused("cos gets no gradient", fa.rotary, q, cos.clone().requires_grad_(), sin)


# --- machine code ---------------------------------------------------------------------------------


@readable
@pytest.mark.parametrize("isa", BUILT)
def test_pairs_are_turned_by_vectors(isa):
    """Each kernel has the four products over whole vectors, in a loop.

    Single numbers are multiplied as well, for what is left of a row.
    """
    entries = kernels(isa, r"^turn<.*PairRows")
    code = code_of(entries)
    products = {key: _products(code, entry, REGISTERS[isa]) for key, entry in entries.items()}
    assert {key: count for key, count in products.items() if count < 4} == {}


def _products(code, entry, register):
    """How many instructions in loops multiply whole vectors."""
    inside = {a for part in functions(code, entry) for loop in loops(part, set(part)) for a in loop}
    names = ("mulps", "mulpd")
    return sum(code[a].name.lstrip("v") in names and register in code[a].operands for a in inside)


def test_a_sine_that_is_missing_is_told_of_tensors_without_data_too():
    x, cos = torch.empty(1, 5, 4, device="meta"), torch.empty(2, device="meta")
    refused("sin must be an array, got None", fa.rotary, x, cos, None)
