"""The tool that tells what calls on a device cost the host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from devices import EMULATED
from processes import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
def test_rows_and_table(tmp_path):
    """Two ops, and the second time beside the first one's numbers."""
    tool = [sys.executable, str(ROOT / "tools" / "call_to_launch.py"), "--rounds", "1"]
    numbers, page = tmp_path / "numbers.json", tmp_path / "page.md"
    subprocess.run(
        [*tool, "mish", "layer_norm", "--json", str(numbers)], check=True, timeout=TIMEOUT
    )
    rows = json.loads(numbers.read_text())
    assert list(rows) == [
        "mish forward", "mish backward", "layer_norm forward", "layer_norm backward",
    ]  # fmt: skip
    assert all(row["launches"] >= 1 and row["out="] > 0 for row in rows.values())
    beside = ["--beside", str(numbers), "--markdown", str(page)]
    subprocess.run([*tool, "layer_norm", *beside], check=True, timeout=TIMEOUT)
    lines = page.read_text().splitlines()
    assert lines[0].split(" | ")[1:3] == ["out=, before", "out="]
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| layer_norm forward", "| layer_norm backward",
    ]  # fmt: skip
