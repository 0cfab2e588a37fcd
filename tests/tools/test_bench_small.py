"""`bench --small`: what a call of next to no elements costs, for every op."""

import json

import pytest
from benchmarks import cli

import fastact as fa
from fastact.measure.peers import FIRST, FIRST_OF_TORCH, OURS, OURS_OF_TORCH


@pytest.mark.thorough
def test_bench_of_small_calls(tmp_path, capsys):
    """Every op, at shapes of next to nothing, and a page with a line for each case."""
    numbers, page = tmp_path / "small.json", tmp_path / "small.md"
    words = ["--small", "--peers", "torch", "--seconds", "0.001", "--directions", "forward"]
    few = ["mish", "bias", "gates", "norms", "reductions"]
    told = [*few, *words, "--json", str(numbers), "--markdown", str(page)]
    assert cli.main(told) == 0
    rows = json.loads(numbers.read_text())["rows"]
    assert {row["op"] for row in rows} == {
        op.name for op in fa.ops.values() if op.name in few or op.family in few
    }
    assert max(row["size"] for row in rows) <= 256
    for row in rows:  # ours, and as it costs the first time, of arrays and of tensors
        assert {OURS, FIRST, OURS_OF_TORCH, FIRST_OF_TORCH} <= row["seconds"].keys()
    lines = page.read_text().splitlines()
    assert lines[0] == "# The cost of a small call"
    assert sum(" | forward | float32 | " in line for line in lines) == len(rows)
    for family in ("activations", *few[1:]):
        assert f"## {family}" in lines
    assert cli.main(["--from", str(numbers), "--markdown", str(page)]) == 0
    assert page.read_text().splitlines() == lines
    capsys.readouterr()


@pytest.mark.parametrize("word", ["--sizes=64", "--shapes=nchw"])
def test_small_calls_have_sizes_of_their_own(word, capsys):
    with pytest.raises(SystemExit):
        cli.main(["--small", word])
    assert f"{word.partition('=')[0]} does not go with --small" in capsys.readouterr().err
