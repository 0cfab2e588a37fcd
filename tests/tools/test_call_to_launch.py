"""The tool that tells what calls on a device cost the host."""

import sys

from devices import needs_emulation
from processes import output_of, run_program
from source_tree import ROOT


@needs_emulation
def test_the_table():
    """Two ops: all that a call asks of a device is counted."""
    tool = [sys.executable, "-m", "benchmarks.call_to_launch", "--rounds", "1"]
    told = output_of(run_program(*tool, "mish", "layer_norm", cwd=ROOT))
    table = [line for line in told.splitlines() if line.startswith("|")]
    header, _, *lines = (line.strip("| ").split(" | ") for line in table)
    assert header[:2] == ["call", "out="]
    assert [line[0] for line in lines] == [
        "activations forward", "activations backward", "layer_norm forward", "layer_norm backward",
    ]  # fmt: skip
    for _, out, _, launches, *_ in lines:
        assert float(out) > 0
        assert int(launches) >= 1
