"""DLPack capsules that lie: refused with the op's and the argument's names, and never believed."""

import re

import capsules
import numpy as np
import pytest
from asserting import passes
from conftest import collect
from judged import refused

import fastact as fa
from fastact import _cpu

WRONG = list(capsules.wrong())
OPS = {
    "mish": lambda x: fa.mish(x),
    "sum": lambda x: fa.sum(x, axis=-1),
    "layer_norm": lambda x: fa.layer_norm(x),
    "moments": lambda x: fa.moments(x),
    "bias_act": lambda x: fa.bias_act(x, x),
}
REFUSED = (TypeError, ValueError, RuntimeError)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_refused_with_words(op, name):
    for _ in range(4):  # as often as a call of a kind is recorded and run again
        producer = capsules.wrong()[name]
        with pytest.raises(REFUSED, match=r"^fastact\.\w+: .*\bx\b") as caught:
            op(producer)
        assert "array(" not in str(caught.value)


@pytest.mark.parametrize("name", WRONG)
def test_refused_as_out(name):
    """An `out` that is such a one: nothing is written."""
    x = capsules.Producer()
    producer = capsules.wrong()[name]
    with pytest.raises(REFUSED, match=r"^fastact\.mish: .*\bout\b|^fastact.mish: all arrays"):
        fa.mish(x, out=producer)
    assert not producer.memory.any()


@pytest.mark.parametrize("name", WRONG)
def test_refused_as_a_parameter(name):
    with pytest.raises(REFUSED, match=r"^fastact\.layer_norm: .*\bweight\b"):
        fa.layer_norm(capsules.Producer(), capsules.wrong()[name])


@pytest.mark.parametrize("name", WRONG)
def test_a_view_of_it(name):
    """Below the Python layer as well; a device or dtype that is told wrong is seen as told."""
    producer = capsules.wrong()[name]
    try:
        view = _cpu.View.from_capsule(producer.__dlpack__())
    except (BufferError, ValueError):
        passes("it is refused")
        return
    assert view.dtype == -1 or view.device != (1, 0) or producer.told != (1, 0)


@pytest.mark.parametrize("name", capsules.right())
def test_right_ones_are_read(name):
    producer = capsules.right()[name]
    view = _cpu.View.from_capsule(producer.__dlpack__())
    assert view.dtype >= 0
    size = view.size
    del view
    collect()
    assert producer.deleted == (0 if "no-deleter" in name else 1)
    dtype = next((n for n in ("float64", "float16") if n == name), "float32")
    producer = capsules.right()[name]
    total = fa.sum(producer, None)
    assert np.asarray(total).dtype == dtype
    assert float(total) == 0.0
    assert size in (0, 1, 6)


def test_misaligned_memory_is_read_right():
    producer = capsules.Producer((2, 3), byte_offset=1)
    x = np.arange(6, dtype=np.float32)
    producer.memory[1:25] = x.view(np.uint8)
    assert float(fa.sum(producer)) == 15.0
    np.testing.assert_array_equal(np.asarray(fa.relu(producer)).ravel(), x)


@pytest.mark.parametrize("stride", [2**62, -(2**62), 2**61, -(2**61)])
def test_strides_of_single_elements_are_any(stride):
    """Nothing steps along them; 2^61 items of float32, in bytes, are the least number there is."""
    for ndim in (1, 2, 3):
        y = np.asarray(fa.relu(capsules.Producer((1,) * ndim, strides=(stride,) * ndim)))
        np.testing.assert_array_equal(y, np.zeros((1,) * ndim))


def test_a_capsule_is_read_once():
    producer = capsules.Producer(twice=True)
    fa.mish(producer)
    with pytest.raises(TypeError, match=r"x must be .*'used_dltensor_versioned'"):
        fa.mish(producer)
    assert producer.deleted == 1


def test_what_is_no_capsule():
    class Odd(capsules.Producer):
        def __dlpack__(self, **_):
            return 5

    refused(r"fastact\.mish: x .*__dlpack__ must return a capsule", fa.mish, Odd())
    for value in (None, 5, "dltensor", np.zeros(3)):
        refused("must return a capsule", _cpu.View.from_capsule, value)


def test_the_device_that_a_capsule_tells():
    """Memory on a GPU behind a `__dlpack_device__` that says CPU would be read as the host's."""
    with pytest.raises(ValueError, match=re.escape("cpu, got memory on cuda:0")):
        fa.sum(capsules.Producer(device=(capsules.CUDA, 0)))


def test_a_device_capsule_for_the_native_functions():
    view = _cpu.View.from_capsule(capsules.Producer(device=(capsules.CUDA, 0)).__dlpack__())
    y = _cpu.View.from_numpy(np.zeros((2, 3), np.float32))
    arguments = {"x": view, "y": y, "which": 0, "parameters": ()}
    with pytest.raises(ValueError, match=r"activation_forward: .* must be on "):
        _cpu.native_call("activation_forward", arguments)
