"""What the pages of docs say of the code is so."""

import re
from pathlib import Path

import pytest

import fastact as fa

ROOT = Path(__file__).parents[2]
ACCURACY = ROOT / "docs/results/accuracy.md"
BOUND_ROW = re.compile(r"^\| (\w+)(?:\(.*?\))? \| (forward|derivative) \| ([\d.]+) \|", re.M)


@pytest.mark.skipif(not ACCURACY.exists(), reason="the results are not here")
def test_bounds_on_the_page_of_accuracy():
    """Those beside the worst errors of float32 and of float64 are the ops' own."""
    _, *parts = ACCURACY.read_text(encoding="utf-8").split("\n## ")
    tables = [rows for part in parts if (rows := BOUND_ROW.findall(part)) and "| bound |" in part]
    assert len(tables) == 2
    for rows in tables:
        names = {op.name for op in fa.ops.values() if op.family == "activations"}
        assert {name for name, *_ in rows} == names
        stated = {"forward": "forward_ulp", "derivative": "derivative_ulp"}
        wrong = [
            f"{name} {direction}: {bound}"
            for name, direction, bound in rows
            if float(bound) != getattr(fa.ops[name].bounds, stated[direction])
        ]
        assert not wrong
