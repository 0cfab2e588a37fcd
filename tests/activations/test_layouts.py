"""Any strides, any rank, any base address; nothing but the given elements is written."""

import numpy as np
import pytest
from conftest import assert_agrees, assert_same_bits, by_representatives, sample

import fastact as fa


@by_representatives
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_empty_and_single(op, dtype, framework, shape):
    x = framework.of(np.ones(shape, dtype))
    y = op(x)
    assert tuple(y.shape) == shape
    assert_agrees(framework, framework.numpy(y), np.full(shape, op(np.ones(1, dtype))[0]))
    out = framework.of(np.zeros(shape, dtype))
    assert op(x, out=out) is out
    assert tuple(op.backward(x, x).shape) == shape


@by_representatives
def test_a_repeated_axis_keeps_its_place(op):
    """As in results of NumPy's ufuncs, and of torch, by which traced code knows the strides."""
    import torch

    base = np.zeros((5, 4, 3), np.float32)
    for axes in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        for at in range(4):
            x = np.expand_dims(base.transpose(axes), at)
            x = np.broadcast_to(x, tuple(2 if i == at else n for i, n in enumerate(x.shape)))
            tensor = torch.from_numpy(base).permute(axes).unsqueeze(at).expand(x.shape)
            assert op(tensor).stride() == torch.tanh(tensor).stride()
            assert op(tensor).stride() == op(tensor.to("meta")).stride()
            if axes == (0, 1, 2) or at in (0, 3):  # NumPy moves one amid transposed axes
                assert op(x).strides == np.tanh(x).strides
    assert fa.layer_norm(x).strides == op(x).strides


@by_representatives
def test_torch_output_keeps_channels_last(op):
    import torch

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert op(x).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(op(x), op(x.contiguous()))


@by_representatives
def test_in_place_whatever_the_stride_of_a_single_element(op):
    """An axis of length 1 may have any stride; two views that differ in it are the same array."""
    x = sample(np.float32, 100)
    expected = op(x[::2])
    view = np.lib.stride_tricks.as_strided(x, (50, 1), (8, 0))
    same = np.lib.stride_tricks.as_strided(x, (50, 1), (8, 4))
    assert_same_bits(op(view, out=same)[:, 0], expected)


@by_representatives
def test_interleaved_memory_is_no_overlap(op):
    held = sample(np.float32, 1000)
    even, odd = held[::2], held[1::2]
    assert_same_bits(op(even.copy()), op(even, out=odd))


@pytest.mark.thorough  # of memory it needs half of what `large` has
def test_more_than_2_to_the_31_elements():
    """64-bit indices: the input is one element, seen 2^31 + 9 times; only the output has memory."""
    n = 2**31 + 9
    try:
        out = np.zeros(n, np.float16)  # 4.3 GB, taken page by page as it is written
    except MemoryError:
        pytest.skip("needs 4.3 GB of memory")
    x = np.lib.stride_tricks.as_strided(np.ones(1, np.float16), (n,), (0,))
    fa.mish(x, out=out)
    expected = fa.mish(np.ones(1, np.float16))[0]
    assert out[0] == out[-1] == out[2**31] == expected
    assert (out[:: 1 << 12] == expected).all()
