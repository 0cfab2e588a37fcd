"""The norms on devices: against the oracle, in every layout, and the same bits on all of them."""

import numpy as np
import pytest
from arrangements import padded, reversed_, stepped
from conftest import assert_all_same_bits, each_long, on_kernels
from devices import EMULATED, KERNELS, Framework, to_emulated
from normed import Arrays, Setting, assert_right, everything

from fastact.interop import devices

LAST = {"channel_axis": -1}
names = pytest.mark.parametrize("name", ["identity", "mish"])


@on_kernels
@names
@each_long
def test_rows_of_several_blocks(name, dtype, device):
    """From 16384 packs of 16 bytes on: the last chunk is one element, or nearly whole."""
    size = 16384 * 16 // dtype.itemsize
    # How rows are cut does not ask which op it is, so the short last chunks are of one op each.
    cases = [("layer_norm", 1), ("add_rms_norm", 5)]
    cases += [(op, 4096 * 16 // dtype.itemsize - 1) for op in ("layer_norm", "add_rms_norm")]
    for op, more in cases:
        arrays = Arrays(Setting(op, (2, size + more)), dtype)
        assert_right(arrays, name, device)


@pytest.mark.thorough  # more than a minute where the device is emulated
@on_kernels
@names
def test_many_long_rows(name, device):
    """1538 packs of 16 bytes backward, in 81 parts of 17 rows: 14 are added up, then 3."""
    arrays = Arrays(Setting("rms_norm", (1370, 6149)), np.dtype(np.float32))
    assert_right(arrays, name, device)


# --- bits -----------------------------------------------------------------------------------------


# Rows of more vectors than one block takes backward (1024, of float32 1536) are long; so are the
# rows of these runs.
LONG = [
    ("layer_norm", (3, 2050), None),
    ("add_rms_norm", (2, 2049), None),
    ("group_norm", (2, 4, 2050), 2),
]


VIEWS = [stepped, reversed_, padded]


@pytest.mark.parametrize(("op", "vectors", "groups"), LONG, ids=str)
@each_long
@on_kernels
def test_strides_of_long_rows_do_not_show(op, vectors, groups, dtype, device):
    shape = (*vectors[:-1], vectors[-1] * 16 // dtype.itemsize - 1)
    arrays = Arrays(Setting(op, shape, groups=groups or 0), dtype)
    expected, values = everything(arrays, device), (arrays.x, arrays.dy, arrays.residual)
    for k in range(3):
        views = (VIEWS[(k + i) % 3](a) for i, a in enumerate(values))
        arrays.x, arrays.dy, arrays.residual = views
        assert_all_same_bits(everything(arrays, device), expected)


@pytest.mark.skipif(not EMULATED, reason="is of the emulated device")
@pytest.mark.parametrize(
    "setting", [Setting("rms_norm", (2, 81936)), Setting("layer_norm", (1, 262144))], ids=str
)
@names
def test_devices_have_the_same_bits(setting, name, dtype):
    """Of more multiprocessors, more shared memory, and clusters of up to 8, 1 and 16 blocks."""
    arrays, found = Arrays(setting, dtype), []
    kind = devices.emulate().ExchangeArray
    for number in (0, 1, 2):
        device = Framework("emulated", to_emulated(kind, number), KERNELS[0].numpy, False)
        found.append(everything(arrays, device, activation=name))
    for other in found[1:]:
        assert_all_same_bits(other, found[0])


@on_kernels
def test_so_many_chunks_that_they_are_merged_apart(device):
    """64 channels of 133 chunks each are more than a block merges for itself."""
    arrays = Arrays(Setting("group_norm", (1, 17_000, 64), LAST, groups=1), np.float32)
    assert_right(arrays, "identity", device)


@on_kernels
@pytest.mark.thorough  # 5 s; test_devices_blocks.py has so many examples of group_norm
def test_so_many_examples_that_a_block_adds_up_their_gradients(device):
    """More than a warp does: 1024."""
    arrays = Arrays(Setting("instance_norm", (1100, 2, 4), LAST), np.float32)
    assert_right(arrays, "identity", device)


@on_kernels
def test_torchs_channels_last(device, dtype):
    """The channels are axis 1, but lie innermost."""
    for setting in (
        Setting("group_norm", (3, 8, 5, 6), groups=2),
        Setting("instance_norm", (3, 5, 5, 6)),
    ):
        arrays = Arrays(setting, dtype)
        arrays.x, arrays.dy = (
            np.ascontiguousarray(np.moveaxis(a, 1, -1)).transpose(0, 3, 1, 2)
            for a in (arrays.x, arrays.dy)
        )
        assert_right(arrays, "mish", device)
