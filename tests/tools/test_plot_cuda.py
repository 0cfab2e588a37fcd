"""`bench --device cuda --from` and `--plot`: rates beside a copy's, of made-up results."""

from itertools import product

import pytest
from benchmarks import cli, plots
from benchmarks.results import GpuRow, Results, read
from benchmarks.workloads import FAMILIES

import fastact as fa
from fastact.bench.turns import Row
from fastact.measure.peers import COPY, FRESH, OURS

FACTS = {
    **{"gpu": "GPU of a test", "driver": "12.34", "capability": "0.0", "multiprocessors": 1},
    **{"memory": 0, "l2": 0, "torch": "", "torch_cuda": "", "fastact": "", "commit": ""},
    **{"cuda": {"built": False}, "python": "", "date": ""},
}


def made_up(*dtypes: str) -> Results:
    """Every case at a rate that nobody measured, below its copy's."""
    rows = []
    for op, direction, dtype in product(fa.ops.values(), ("forward", "backward"), dtypes):
        for case in FAMILIES[op.family].on_gpu(op, direction, dtype, None):
            copy = case.moved / (4e12 * case.moved / (case.moved + 2**24))
            ours = copy * (1.02 + len(rows) % 17 / 10)
            took = {OURS: ours, FRESH: ours, COPY: copy}
            ratios = {name: seconds / ours for name, seconds in took.items()}
            shown = {"bytes": case.moved, "buffers": 2, "graph": "", "span": case.span}
            shown["series"] = case.series
            rows.append(GpuRow(*case.words.values(), 7, took, ratios, **shown))
    latency = Row("mish", "forward", "float32", "", 7, {OURS: 1e-6, FRESH: 2e-6}, {}, 64)
    return Results(FACTS, rows, 0, [latency])


@pytest.mark.thorough  # drawing all takes 8 s
def test_a_panel_for_each_family(tmp_path, figures):
    """With every rate in it, and the roof above those."""
    results = made_up("float32")
    file = tmp_path / "roof.png"
    assert plots.plot_roofs(results, file) == [file]
    (figure,) = figures
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    expected = {}
    for row in results.rows:
        expected.setdefault(f"{fa.ops[row.op].family}, {row.direction}", []).append(row)
    assert set(panels) == set(expected)
    for title, rows in expected.items():
        *series, copies, roof = panels[title].get_lines()
        points = sorted(tuple(point) for line in series for point in line.get_xydata())
        assert points == sorted((row.span, row.rate / 1e9) for row in rows)
        assert max(rate for _, rate in points) < max(roof.get_ydata()) == max(copies.get_ydata())


def test_what_was_measured_is_shown_again(tmp_path, capsys, figures):
    """The same rows, a page of them, and a picture for each dtype; of some ops alone if told so."""
    results = made_up("float32", "bfloat16")
    source, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    results.write(source)
    assert read(source, True) == results
    words = ["mish", "batch_norm", "--device", "cuda", "--from", str(source)]
    words += ["--markdown", str(page), "--plot", str(tmp_path / "roof.png")]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "batch_norm, backward, bfloat16" in shown
    assert "layer_norm" not in shown
    assert "call to launch" in shown
    for dtype in ("float32", "bfloat16"):
        assert f"drawn: {tmp_path / f'roof_{dtype}.png'}" in shown
        assert (tmp_path / f"roof_{dtype}.png").exists()
        assert f"## mish, forward, {dtype}" in page.read_text()
    assert len(figures) == 2
