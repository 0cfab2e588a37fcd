"""Frameworks other than NumPy: what comes back is theirs, and nothing is copied on the way in."""

import weakref
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import assert_all_same_bits, assert_same_bits, by_representatives, collect, sample
from devices import FRAMEWORKS, from_torch, to_torch
from every import Call, moved, results
from processes import python_output

import fastact as fa
from fastact import _cpu
from fastact.ops.engine.op import arrays_of

versioned = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.0 makes capsules of no version"
)


@pytest.mark.parametrize("each", fa.ops.values(), ids=lambda op: op.name)
def test_each_op_has_the_bits_of_arrays(each, dtype):
    call, (array, tensor) = Call(each, {}, (4, 6), dtype), FRAMEWORKS[:2]
    for run in (*call.both, each.bound("forward", call.named)):
        made = arrays_of(moved(run, tensor.of)())
        assert isinstance(made[0], torch.Tensor | tuple | fa.Moments)  # of forward a result's parts
        assert_all_same_bits(results(tensor, run), results(array, run))


@by_representatives
def test_torch_output_is_torchs_own(op):
    """It may be changed, viewed and outlive what made it; its memory goes with it."""
    x = torch.randn(1000)
    y = op(x)
    expected = y.clone()
    del x
    collect()
    y.add_(1).sub_(1)
    assert torch.allclose(y, expected, atol=1e-6)
    ref = weakref.ref(y)
    view = y[10:]
    del y
    assert view.sum().isfinite()
    del view
    assert ref() is None


def test_short_cut_and_long_way_agree(op, dtype, monkeypatch):
    x = sample(dtype)
    quick = op(to_torch(x))
    long = op._serve("call", to_torch(x))
    assert_same_bits(from_torch(quick), from_torch(long))


@versioned
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_array_api(op, name):
    xp = pytest.importorskip("array_api_strict")
    x = xp.asarray(sample(np.dtype(name)).reshape(8, 125).copy())
    y = op(x)
    assert type(y) is type(x)
    assert_same_bits(np.from_dlpack(y), op(np.from_dlpack(x)))
    out = xp.zeros_like(x)
    assert op(x, out=out) is out
    assert_same_bits(np.from_dlpack(out), np.from_dlpack(y))


@pytest.mark.skipif(
    find_spec("jax") is None, reason="jax is no part of the test extra, being as large as all of it"
)
def test_jax():
    """In a process of its own: jax starts threads, and other tests fork."""
    code = """
import jax, numpy as np, fastact as fa
x = jax.numpy.linspace(-5, 5, 1000).reshape(8, 125)
for op in (op for op in fa.ops.values() if op.family == "activations"):
    y = op(x.T)
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(np.asarray(y), op(np.asarray(x).T))
    assert op(x.astype(jax.numpy.bfloat16)).dtype == jax.numpy.bfloat16
for call, words in (
    (lambda: fa.mish(x, out=x), "one of jax, whose arrays are immutable"),
    (lambda: jax.jit(fa.mish)(x), "got one that JAX traces"),
):
    try:
        call()
    except TypeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
"""
    python_output(code)


class Producer:
    """The least of a DLPack array: an old capsule, no keyword arguments."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @staticmethod
    def __array_namespace__():
        class Namespace:
            @staticmethod
            def from_dlpack(memory):
                return Producer(np.from_dlpack(memory))

        return Namespace


def test_old_capsules(op):
    x = sample(np.float32)
    y = op(Producer(x))
    assert type(y) is Producer
    assert_same_bits(y.array, op(x))


@versioned
def test_read_only_capsules(op):
    """The flag of a versioned capsule: fine to read, refused as an output."""

    class Frozen(Producer):
        def __dlpack__(self, *, max_version=None):
            return self.array.__dlpack__(max_version=max_version)

    x = sample(np.float32)
    x.flags.writeable = False
    assert_same_bits(op(Frozen(x)).array, op(x))
    with pytest.raises(ValueError, match="out must be writable"):
        op(Frozen(x), out=Frozen(x))


def test_immutable_frameworks_refuse_out(op, monkeypatch):
    from fastact.interop import frameworks

    monkeypatch.setattr(frameworks, "IMMUTABLE", frozenset({Producer.__module__.partition(".")[0]}))
    x = sample(np.float32)
    with pytest.raises(TypeError, match="arrays are immutable"):
        op(Producer(x), out=Producer(x.copy()))


def test_memory_is_handed_over_once():
    like = _cpu.View.from_numpy(np.zeros((2, 3), np.float32))
    memory = _cpu.Memory(like)
    array = np.from_dlpack(memory)
    assert array.shape == (2, 3)
    with pytest.raises(BufferError, match="handed over already"):
        memory.__dlpack__()
    for capsule in (
        _cpu.Memory(like).__dlpack__(),
        _cpu.Memory(like).__dlpack__(max_version=(1, 0)),
    ):
        del capsule  # nobody consumed it: its destructor frees the memory


def test_an_input_stays_alive_and_is_let_go(op):
    x = torch.randn(100)
    y, saved = op.forward(x)
    ref = weakref.ref(saved[0])
    assert y.isfinite().all()
    del x, y
    assert ref() is saved[0]
    del saved
    assert ref() is None


def test_big_torch_outputs(op):
    """4 MB and more: memory that asked for huge pages."""
    x = torch.zeros(1_100_000)
    y = op(x)
    assert y.data_ptr() % 64 == 0
    assert torch.equal(y, torch.full_like(y, float(op(np.zeros(1, np.float32))[0])))
