"""The examples, each as a user runs it, to its closing line."""

import os
import sys
from pathlib import Path

import pytest
from processes import output_of, run_program

import fastact as fa

EXAMPLES = Path(__file__).parents[2] / "examples"
# Those that compare gradients with torch's, and what they need of fastact.
COMPARED = {"mlp": "bias_act", "lenet": "bias_act", "lstm": "lstm_gates"}
# Those that train in torch.
IN_TORCH = ["torch_train", "inference"]
# Those that compute what memory does not hold, and the library whose arrays they do it with.
LARGE = {"larger_than_memory": "dask.array", "climatology": "xarray"}
# One thread of each pool: on a busy machine pools that wait for each other take minutes, and the
# results do not depend on it.
ONE_THREAD = {"FASTACT_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="tests away from the source tree")


def run(example, *options, tmp_path):
    path = EXAMPLES / f"{example}.py"
    command = (sys.executable, path, "--quick", *options)
    return run_program(*command, cwd=tmp_path, env={**os.environ, **ONE_THREAD})


# Each trains a network, and compares gradients by a torch of its own process: 5 to 22 s. A plain
# run has the shortest.
@pytest.mark.parametrize(
    "example",
    ["digits", *(pytest.param(n, marks=pytest.mark.thorough) for n in [*COMPARED, *IN_TORCH])],
)
def test_example(example, tmp_path):
    """The full training, to the accuracy that is stated; timing alone is cut short."""
    pytest.importorskip("sklearn")
    if example in IN_TORCH:
        pytest.importorskip("torch")
    needs = COMPARED.get(example, "mish")
    if needs not in fa.ops:
        pytest.skip(f"this version has no {needs}")
    told = output_of(run(example, tmp_path=tmp_path))
    *_, last = told.splitlines()
    assert last.startswith("test accuracy")
    assert last.endswith("passed")
    if example in COMPARED:
        pytest.importorskip("torch")
        assert "gradients against torch's in float64" in told


def test_every_example_is_here():
    scripts = {path.stem for path in EXAMPLES.glob("[!_]*.py")}
    assert scripts == {"digits", *LARGE, *COMPARED, *IN_TORCH}


@pytest.mark.thorough  # a cluster of two processes: 15 s
@pytest.mark.filterwarnings("ignore")  # of dask's imports
@pytest.mark.parametrize("example", LARGE)
def test_larger_than_memory(example, tmp_path):
    pytest.importorskip("dask.array")
    pytest.importorskip(LARGE[example])
    told = output_of(run(example, tmp_path=tmp_path))
    assert told.splitlines()[-1].endswith("passed")
