"""dropout: its mask follows from the generator, wherever and beside whatever it is computed."""

from itertools import product

import numpy as np
import pytest
import torch
from conftest import assert_same_bits

import fastact as fa
from fastact.check.reference import kept, philox
from fastact.torch import nn as fnn

X = np.linspace(1, 2, 3 * 5 * 37).reshape(3, 5, 37).astype(np.float32)

# Random123's kat_vectors, "philox4x32 10": counter, key, words.
PUBLISHED = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_the_published_vectors_of_the_generator(counter, key, words):
    assert tuple(map(int, philox(counter, key))) == words


def test_the_published_words_by_the_kernels(backend):
    """An element is kept up to the p that is its word."""
    for i, word in enumerate(PUBLISHED[0][2]):
        for p, is_kept in ((word / 2**32, True), ((word + 1) / 2**32, False)):
            y = backend.run(lambda x, p=p: fa.dropout(x, p, seed=0), np.ones(4, np.float32))
            assert bool(y[i]) is is_kept


# Below and beyond what is drawn at a time, and chunks; the numbers begin in each place of a block,
# and pass 2^32 blocks.
@pytest.mark.parametrize("size", [1, 2, 3, 5, 127, 128, 1023, 1024, 1030, 5000])
def test_the_mask(backend, dtype, size):
    told = product((0, 1, 2, 3, 2**34 - 5, 2**63 - 1), ((0.5, 0), (0.125, 2**64 - 1), (0.9, -1)))
    for offset, (p, seed) in told:
        x = np.ones(size, dtype)
        y = backend.run(lambda x, p=p, s=seed, o=offset: fa.dropout(x, p, seed=s, offset=o), x)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y != 0, kept((size,), p, seed, offset))


def test_values(backend, dtype):
    x, residual = X.astype(dtype), (X - 1.4).astype(dtype)
    scaled = x.astype(np.float64) / 0.75
    expected = np.where(kept(x.shape, 0.25, 9, 0), scaled, 0)
    one = float(np.spacing(np.float64(1)) * 2**52 * (2.0 ** -{2: 7, 4: 23, 8: 52}[x.itemsize]))
    y = backend.run(lambda x: fa.dropout(x, 0.25, seed=9), x)
    np.testing.assert_allclose(y.astype(np.float64), expected, 2 * one)
    y = backend.run(lambda x, r: fa.dropout(x, 0.25, seed=9, residual=r), x, residual)
    expected = expected + residual.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), expected, 2 * one, 2 * one)
    number = backend.run(lambda x: fa.dropout(x, 0.25, seed=9, residual=0.5), x)
    np.testing.assert_allclose(number.astype(np.float64), np.where(y, number, 0), 2 * one)


# A share of so many elements is off by 6 standard deviations for one seed in 5e8.
@pytest.mark.parametrize("p", [0.5, 0.1, 0.01, 0.99])
def test_the_share_that_is_dropped(p):
    n = 2**20
    for seed in (0, 1, 2**40):
        dropped = fa.dropout(np.ones(n, np.float32), p, seed=seed) == 0
        six = 6 * np.sqrt(p * (1 - p) * n)
        assert abs(dropped.sum() - p * n) < six
        for lag in (1, 2, 3, 4, 64, 1024):  # neighbours, in a block and in vectors, are independent
            both = (dropped[lag:] & dropped[:-lag]).sum()
            deviation = np.sqrt(p * p * (1 - p * p) * n + 2 * p**3 * (1 - p) * n)
            assert abs(both - p * p * (n - lag)) < 6 * deviation
        other = fa.dropout(np.ones(n, np.float32), p, seed=seed + 1) == 0
        expected = p * p * n
        assert abs((dropped & other).sum() - expected) < 6 * np.sqrt(expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_parts(order, many_threads):
    x = np.asarray(np.random.default_rng(0).normal(size=(700, 511)), np.float32, order=order)
    residual = x[::-1]
    whole = fa.dropout(x, 0.3, seed=5, residual=residual)
    for first in range(0, 700, 133):
        part = slice(first, first + 133)
        y = fa.dropout(x[part], 0.3, seed=5, offset=511 * first, residual=residual[part])
        assert_same_bits(y, whole[part])


def test_what_is_dropped_is_zero(backend, dtype):
    x = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0], dtype)
    for p in (1, 1 - 2.0**-40):  # whose threshold is 2^32
        assert_same_bits(
            backend.run(lambda x, p=p: fa.dropout(x, p, seed=0), x), np.zeros(5, dtype)
        )
    assert_same_bits(backend.run(lambda x: fa.dropout(x, 0, seed=0), x), x)
    y = backend.run(lambda x: fa.dropout(x, 0.5, seed=0), x)
    mask = kept((5,), 0.5, 0, 0)
    assert mask.any()
    assert not mask.all()
    np.testing.assert_array_equal(y, np.where(mask, 2 * x, 0).astype(dtype))


def test_backward_draws_the_mask_again(backend, dtype):
    x, dy = X.astype(dtype), (X - 1.5).astype(dtype)
    told = {"seed": 3, "offset": 7}
    y, saved = fa.dropout.forward(backend.of(x), 0.5, **told)
    assert saved == ()
    dx = backend.numpy(fa.dropout.backward(backend.of(dy), *saved, 0.5, **told))
    assert_same_bits(dx, np.where(backend.numpy(y) != 0, 2 * dy, 0).astype(dtype))
    total = backend.of(x.copy())
    fa.dropout.backward(backend.of(dy), p=0.5, **told, out=total, accumulate=True)
    expected = (x.astype(np.float32 if x.itemsize < 8 else dtype) + dx).astype(dtype)
    assert_same_bits(backend.numpy(total), expected)


def test_a_call_that_is_cached_has_its_own_seed():
    x = np.ones(64, np.float32)
    for _ in range(5):
        for seed in range(4):
            for offset in (0, 1):
                y = fa.dropout(x, 0.5, seed=seed, offset=offset)
                np.testing.assert_array_equal(y != 0, kept((64,), 0.5, seed, offset))


def test_numbers_of_numpys():
    y = fa.dropout(X, np.float32(0.5), seed=np.uint64(2**64 - 1), offset=np.int8(3))
    assert_same_bits(y, fa.dropout(X, 0.5, seed=-1, offset=3))


# --- torch ----------------------------------------------------------------------------------------


def tensors(count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize("seed", [3, 2**64 - 1, -5])
def test_compiled(seed):
    x, residual = tensors(2)

    def f(x, r, s):
        return fa.dropout(x, 0.5, seed=s, residual=r).sin()

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    for s in (seed, seed - 1):
        y, expected = compiled(x, residual, s), fa.dropout(x, 0.5, seed=s, residual=residual).sin()
        assert torch.equal(y, expected)
        found = torch.autograd.grad(y.sum(), (x, residual))
        for a, b in zip(found, torch.autograd.grad(expected.sum(), (x, residual)), strict=True):
            torch.testing.assert_close(a, b)


def test_the_module():
    x = torch.ones(100, 100)
    module = fnn.Dropout(0.25)
    torch.manual_seed(3)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(module(x), first)
    assert set(first.unique().tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert torch.equal(module.eval()(x), x)
    assert repr(fnn.Dropout(0.25)) == f"fastact.torch.nn.{torch.nn.Dropout(0.25)!r}"


def test_the_module_is_torchs_where_torch_traces():
    x, found = torch.ones(10, 10), []
    for module in (fnn.Dropout(0.25), torch.nn.Dropout(0.25)):
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        for traced in (compiled, torch.export.export(module, (x,)).module()):
            torch.manual_seed(3)
            found.append(traced(x))
    assert all(torch.equal(y, found[0]) for y in found)
    assert 0 < (found[0] == 0).sum() < x.numel()


def test_convert_leaves_torchs_random_numbers_unless_asked():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5, inplace=True))
    report = fnn.convert(model)
    assert not report.converted
    assert "random numbers" in report.left["0"]
    assert [*fnn.convert(model, only=torch.nn.Dropout).converted] == ["0"]
