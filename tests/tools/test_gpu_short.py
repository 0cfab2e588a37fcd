"""tools/gpu_short.py, which runs every kernel under compute-sanitizer: on the emulated device."""

import sys
from importlib import import_module
from pathlib import Path

import calls
import numpy as np
import pytest
from devices import EMULATED

import fastact as fa

TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not TOOLS.exists():
    pytest.skip("the tools are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
gpu_short = import_module("gpu_short")

DEVICE = "emulated-dlpack"
needs_emulation = pytest.mark.skipif(
    not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON, or FASTACT_ISA is set"
)


def test_every_op_can_be_called():
    assert set(calls.OPS) == set(fa.ops.values())


@needs_emulation
@pytest.mark.parametrize("name", ["relu", "sum", "gru_reset"])  # one of each road
def test_a_right_op_passes(monkeypatch, capsys, name):
    monkeypatch.setattr(gpu_short.devices, "DTYPES", {"float32": np.dtype(np.float32)})
    monkeypatch.setattr(sys, "argv", ["gpu_short.py", "--device", DEVICE, name])
    assert gpu_short.main() == 0
    assert ", 0 wrong" in capsys.readouterr().out


@needs_emulation
def test_a_scalar_of_numpy_is_an_array_of_the_device():
    """As the gradient of a loss, where the op's own sample has one."""
    known = {device.name: device for device in gpu_short.devices.DEVICES}
    check = gpu_short.Checker(known[DEVICE])
    logits = gpu_short.values((3, 4), np.dtype(np.float16))
    target = np.array([0, 2, 1])
    _, saved = fa.cross_entropy.forward(logits, target)
    backward = gpu_short.partial(fa.cross_entropy.backward, np.float16(0.5), *saved)
    check.parts("cross_entropy.backward", backward)
    assert (check.calls, check.wrong) == (1, [])


@needs_emulation
def test_some_dtypes_and_no_unknown_words(monkeypatch, capsys):
    words = ["gpu_short.py", "--device", DEVICE, "--dtypes"]
    monkeypatch.setattr(sys, "argv", [*words, "bfloat16", "relu"])
    assert gpu_short.main() == 0
    of_one = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "bfloat16,float32", "relu"])
    assert gpu_short.main() == 0
    assert capsys.readouterr().out != of_one
    for wrong in (["int8"], ["float32", "rely"]):
        monkeypatch.setattr(sys, "argv", [*words, *wrong])
        with pytest.raises(SystemExit):
            gpu_short.main()
        assert f"no {'op rely' if 'rely' in wrong else 'dtype int8'}" in capsys.readouterr().err


@needs_emulation
def test_a_wrong_op_is_told():
    known = {device.name: device for device in gpu_short.devices.DEVICES}
    check = gpu_short.Checker(known[DEVICE])
    x = np.ones((3, 4), np.float32)

    def doubled_here(a):
        return fa.relu(2 * a if isinstance(a, np.ndarray) else a)

    check.parts("relu", gpu_short.partial(fa.relu, x))
    assert (check.calls, check.wrong) == (1, [])
    check.parts("doubled", gpu_short.partial(doubled_here, 30 * x))
    assert check.wrong == ["doubled, result 0: 12 of 12 are wrong"]
