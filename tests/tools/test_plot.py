"""`bench --from` and `bench --plot`: what was measured, shown again and drawn."""

import json
from dataclasses import asdict
from itertools import product

import pytest
from benchmarks import cli
from benchmarks.workloads import FAMILIES as WORKLOADS
from benchmarks.workloads.work import Options
from test_boards import refused

import fastact as fa
from fastact.bench import turns
from fastact.bench.turns import Row
from fastact.measure.peers import COPY, FRESH, OURS

FAMILIES = list(dict.fromkeys(op.family for op in fa.ops.values()))


def cases() -> list[Row]:
    """Every case of the benchmark, with a speed that nobody measured."""
    options = Options((64, 1024, 50_000), (), (), (), (2,))
    rows = []
    for op, direction in product(fa.ops.values(), ("forward", "backward")):
        for case in WORKLOADS[op.family].on_cpu(op, direction, "float32", options):
            gain = 1.5 ** (len(rows) % 20 - 6)
            took = {OURS: 1.0, COPY: 0.5, FRESH: 1.0, "torch": gain}
            took |= {"numpy": 2 * gain} if direction == "forward" else {}
            rows.append(Row(*case.words.values(), 5, took, took, case.size, 2))
    return rows


def written(rows: list[Row], path) -> str:
    path.write_text(json.dumps({"machine": {"processor": "P"}, "rows": [*map(asdict, rows)]}))
    return str(path)


@pytest.mark.thorough  # drawing all takes 10 s
def test_a_picture_for_each_family(tmp_path, capsys, figures):
    """Each with all its numbers, and nothing cut off."""
    rows = cases()
    source = written(rows, tmp_path / "rows.json")
    assert cli.main(["--from", source, "--plot", str(tmp_path / "plot.png")]) == 0
    shown = capsys.readouterr().out
    for family, figure in zip(FAMILIES, figures, strict=True):
        assert f"drawn: {tmp_path / f'plot_{family}.png'}" in shown
        of = [row for row in rows if fa.ops[row.op].family == family]
        texts = [text.get_text() for axes in figure.axes[:-1] for text in axes.texts]
        assert len([t for t in texts if t.endswith("×")]) == sum(len(r.ratios) - 3 for r in of)
        for artist in (figure._suptitle, figure.axes[-1].xaxis.label, *figure.axes):
            assert figure.bbox.x0 <= artist.get_tightbbox().x0
            assert artist.get_tightbbox().x1 <= figure.bbox.x1


def test_a_few_ops_are_drawn_in_one_picture(tmp_path, figures):
    """With a panel for each direction."""
    words = ["mish", "sum", "--from", written(cases(), tmp_path / "rows.json")]
    assert cli.main([*words, "--plot", str(tmp_path / "plot.png")]) == 0
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == [
        f"{o}, {d}, float32" for o in ("mish", "sum") for d in ("forward", "backward")
    ]
    # A copy takes half of our time in what was made up.
    assert set(figure.axes[0].lines[0].get_ydata()) == {0.5}


def test_what_was_measured_is_shown_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(turns, "_BATCH_SECONDS", 1e-6)
    numbers, page, again = (tmp_path / name for name in ("rows.json", "page.md", "again.md"))
    measure = ["--sizes", "64", "--seconds", "1e-4", "--peers", "numpy", "--threads", "1"]
    words = ["relu", "mish", *measure, "--json", str(numbers), "--markdown", str(page)]
    assert cli.main(words) == 0
    first = [line for line in capsys.readouterr().out.splitlines() if "left out" not in line]
    assert cli.main(["--from", str(numbers), "--markdown", str(again)]) == 0
    second = capsys.readouterr().out.splitlines()
    assert sum("× copy" in line for line in second) > 4
    assert first[-len(second) :] == second
    assert again.read_text() == page.read_text()


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, [], "No such file"),
        ('{"rows": []}', [], "was not written by bench --json on a CPU"),
        ('{"machine": {"processor": "P"}, "rows": [{"op": "mish"}]}', [], "was not written by"),
        ("{}", ["--sizes", "64"], "--sizes does not go with --from"),
        ("{}", ["--device", "cuda"], "was not written by bench --device cuda --json"),
    ],
)
def test_what_cannot_be_shown_again(tmp_path, content, words, message):
    source = tmp_path / "rows.json"
    if content is not None:
        source.write_text(content)
    done = refused("--from", str(source), *words)
    assert done.returncode == 2
    assert message in done.stderr
