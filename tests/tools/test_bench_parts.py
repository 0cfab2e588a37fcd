"""The CPU benchmark in parts: what a later run adds, where results are kept, what is behind."""

import json
from functools import partial

import pytest
from benchmarks import cli, cpu
from benchmarks.results import slug
from benchmarks.scoreboard import Cell, cells, scoreboard, worst

import fastact as fa
from fastact.bench import turns
from fastact.bench.turns import Row
from fastact.measure.peers import COPY, FRESH, OURS

FEW = ["relu", "mish", "--sizes", "64", "--seconds", "0.001", "--directions", "forward"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(turns, "_BATCH_SECONDS", 1e-6)


def rows_of(file):
    return json.loads(file.read_text())["rows"]


def test_a_later_run_adds_peers(tmp_path):
    numbers = tmp_path / "bench.json"
    words = [*FEW, "--threads", "1", "--json", str(numbers)]
    assert cli.main([*words, "--peers", "numpy"]) == 0
    before = rows_of(numbers)
    assert cli.main([*words, "--peers", "numpy,mkl,torch", "--resume"]) == 0
    after = rows_of(numbers)
    assert [row["op"] for row in after] == [row["op"] for row in before] == ["relu", "mish"]
    for old, new in zip(before, after, strict=True):
        assert {"numpy", "torch"} <= new["ratios"].keys()
        # Measurements stay; ratios are to measurements of the same run alone.
        assert old["ratios"].items() <= new["ratios"].items()
        assert new["seconds"][OURS] == old["seconds"][OURS]
    assert {"numpy", "torch"} <= json.loads(numbers.read_text())["machine"]["peers"].keys()
    assert cli.main([*words, "--peers", "numpy,mkl,torch", "--resume"]) == 0
    assert rows_of(numbers) == after


def test_it_stops_and_goes_on(tmp_path, capsys):
    numbers = tmp_path / "bench.json"
    words = [*FEW, "--peers", "", "--json", str(numbers)]
    assert cli.main([*words, "--stop-after", "1e-9"]) == 3
    assert "2 rows are left; the same with --resume goes on" in capsys.readouterr().out
    assert cli.main([*words, "--resume"]) == 0
    assert "0 rows are there, 2 to be measured" in capsys.readouterr().out
    assert len(rows_of(numbers)) == 2


def test_each_kind_of_machine_has_a_folder(tmp_path, monkeypatch):
    words = [*FEW, "--peers", "", "--results", str(tmp_path)]
    assert cli.main(words) == 0
    (here,) = tmp_path.iterdir()
    assert {file.name for file in here.iterdir()} == {"bench.json", "scoreboard.md"}
    kept = (here / "bench.json").read_bytes()
    facts = cpu.config.config()
    name, isa, threads = facts["processor"], facts["isa"]["chosen"], facts["threads"]["limit"]
    for other in ({"isa": {**facts["isa"], "chosen": "other"}}, {"processor": "Another"}):
        monkeypatch.setattr(cpu.config, "config", lambda other=other: facts | other)
        assert cli.main(words) == 0
        assert (here / "bench.json").read_bytes() == kept
    for folder in (slug("Another", isa, threads), slug(name, "other", threads)):
        assert (tmp_path / folder / "bench.json").exists()
    # Under one name, too, what another machine has measured is put aside.
    assert cli.main([*FEW, "--peers", "", "--json", str(here / "bench.json")]) == 0
    assert (here / "bench.json.before").read_bytes() == kept


def test_nothing_is_measured_to_list_it(capsys, monkeypatch):
    monkeypatch.setattr(cpu, "measure", None)
    assert cli.main(["--all", "--list"]) == 0
    shown = capsys.readouterr().out
    for family in {op.family for op in fa.ops.values()}:
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            assert [family, dtype] in [line.split()[:2] for line in shown.splitlines()]
    rows, minutes = shown.split()[-2:]
    assert int(rows) > 2000
    assert 0 < float(minutes) < 30  # with every peer there is; 10 with none


@pytest.fixture
def race(monkeypatch):
    """Whoever takes so many seconds of a clock of the test's own: calls and samples of each."""
    now, called = [0.0], {}

    def run(seconds):
        called.clear()
        called.update(dict.fromkeys(seconds, 0))

        def call(name):
            called[name] += 1
            now[0] += seconds[name]

        calls = {name: partial(call, name=name) for name in seconds}
        return called, turns.take_turns(calls, 0.01)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    return run


def test_close_peers_have_more_rounds(race):
    seconds = {OURS: 1e-3, COPY: 1e-3, "close": 1.2e-3, "ahead": 0.3e-3, "clear": 2e-3, "far": 4e-3}
    _, samples = race(seconds)
    rounds = {name: len(of) for name, of in samples.items()}
    assert rounds[OURS] == rounds["close"] == rounds["ahead"] == turns.CLOSE_ROUNDS
    assert rounds[COPY] == rounds["clear"] == turns.FEW_ROUNDS
    assert rounds["far"] == 1
    for name, of in samples.items():
        assert of == pytest.approx([seconds[name]] * len(of))
    # There is time for more of them, but not for who is clearly behind.
    fast = {name: value / 1e3 for name, value in seconds.items()}
    rounds = {name: len(of) for name, of in race(fast)[1].items()}
    assert rounds[OURS] == rounds["close"] >= turns.CLOSE_ROUNDS
    assert rounds["clear"] == rounds["far"] == turns.FEW_ROUNDS


def test_who_takes_too_long_is_called_once(race):
    called, samples = race({OURS: 1e-3, "slow": 20e-3, "long": 1.0})
    assert called["slow"] == 3  # the first of all calls is not counted, unless it is long
    assert len(samples["slow"]) == len(samples["long"]) == called["long"] == 1


def row(size=1024, threads=2, op="mish", dtype="float32", **ratios):
    ratios = {COPY: 0.5, FRESH: 1.0, OURS: 1.0, **ratios}
    seconds = {name: ratio / threads for name, ratio in ratios.items()}
    return Row(op, "forward", dtype, f"{size:,}", 5, seconds, ratios, size, threads)


FACTS = {
    "processor": "P",
    "isa": {"chosen": "v3"},
    "version": "0",
    "commit": "abc",
    "compiler": "C",
    "peers": {"numpy": "1", "torch": "2", "mkl": "3"},
}


def test_scoreboard():
    rows = [
        row(64, numpy=0.1),  # the call alone: no cell
        row(threads=1, numpy=0.1),  # nor on fewer threads
        row(1024, numpy=0.5, torch=2.0, mkl=0.2),
        row(2048, numpy=1.04, torch=0.96, mkl=1.0),
        row(4096, dtype="float16", numpy=3.0, torch=0.9),
    ]
    found = cells(rows)
    states = ["behind", "ahead", "behind", "level", "level", "level", "ahead", "behind"]
    assert [cell.state for cell in found] == states
    assert [(cell.peer, cell.ratio) for cell in worst(found)] == [
        ("numpy", 0.5),
        ("torch", 0.9),
        ("torch", 0.96),
    ]
    lines = scoreboard(FACTS, rows).splitlines()
    assert "|  | numpy | torch | mkl |" in lines
    assert "| **all** | 1 / 1 / **1** | 1 / 1 / **1** | 0 / 1 / **1** |" in lines
    assert "| float16 | 1 / 0 / 0 | 0 / 0 / **1** | – |" in lines
    assert "| activations, float32 | 0 / 1 / **1** | 1 / 1 / 0 | 0 / 1 / **1** |" in lines
    assert "| mish | forward | float32 | 1,024 | numpy | 0.50 | 2.00 |" in lines
    assert "3 cells" in lines[2]


def test_patterns_of_cells():
    """A cell fits where each condition has a word of it; a part of a shape has whole numbers."""
    cell = Cell(row(1024, dtype="float16"), "onnxruntime", 0.5)
    assert cell.fits([["relu", "mish"], ["16 bits"], ["ONNX Runtime"], ["1,024"], ["Xeon"]], "Xeon")
    assert not any(cell.fits([["mish"], [word]]) for word in ("1", "024", "torch", "Xeon"))
