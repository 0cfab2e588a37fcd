"""The GPU benchmark in several runs that make one table: --stop-after, --resume."""

import json
from itertools import count

import pytest
from benchmarks import board, cli, cuda, results
from benchmarks.workloads.work import ITEM
from test_bench_cuda import FACTS, StandIn, bench, options, quick  # noqa: F401 - quick is a fixture

import fastact as fa

SOME = [fa.mish, fa.sum, fa.rms_norm]
FEW = {"dtypes": ("bfloat16", "float32"), "directions": ("forward",)}


def names(file):
    rows = json.loads(file.read_text())["rows"]
    found = [(row["op"], row["direction"], row["dtype"], row["what"]) for row in rows]
    assert len(set(found)) == len(found)
    return found


@pytest.fixture
def clock(monkeypatch):
    """A second passes whenever somebody looks."""
    ticks = count()
    monkeypatch.setattr(cuda.time, "monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("quick", "clock")
def test_runs_that_stop_make_one_table(tmp_path, monkeypatch, capsys):
    """As many as it takes; the rows are as of one run, in its order."""
    monkeypatch.setattr(StandIn, "free", lambda self: 2**30)  # room for all
    whole, parts, page = (tmp_path / name for name in ("whole.json", "parts.json", "parts.md"))
    bench(SOME, options(**FEW), whole)
    told = options(**FEW, stop_after=7, goes_on=True)
    left = [len(names(whole))]
    while left[-1]:
        done = bench(SOME, told, parts, page)
        assert done.left < left[-1]
        assert done.left == left[0] - len(names(parts)) == json.loads(parts.read_text())["left"]
        assert (f"Not measured yet: {done.left} rows." in page.read_text()) is (done.left > 0)
        left.append(done.left)
    assert len(left) > 3
    assert names(parts) == names(whole)
    # One type after the other as it is measured, an op's tables side by side as it is shown.
    assert [name[0] for name in names(parts)] == sorted(
        (name[0] for name in names(parts)), key=list(fa.ops).index
    )
    latencies = json.loads(parts.read_text())["latency"]
    assert len(latencies) == len(SOME) * len(FEW["dtypes"])
    capsys.readouterr()
    bench(SOME, told, parts)
    assert f"{left[0]} rows are there, 0 to be measured" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_what_lacks_a_peer_or_failed_is_measured_again(tmp_path, monkeypatch):
    file = tmp_path / "gpu.json"
    told = {**FEW, "goes_on": True}
    bench(SOME, options(**told, peers=()), file)
    before = names(file)

    def fails(case, *rest):
        raise RuntimeError("out of order")

    with monkeypatch.context() as broken:
        broken.setattr(cuda, "measure", fails)
        done = bench([fa.mish], options(**told), file)
    mish = [name for name in before if name[0] == "mish"]
    assert len(done.problems) == len(mish)
    assert names(file) == before  # what there is, is kept
    done = bench([fa.mish], options(**told), file)
    assert (done.problems, done.left) == ([], 0)
    assert names(file) == before
    for row in json.loads(file.read_text())["rows"]:
        assert ("torch" in row["ratios"]) is (row["op"] == "mish")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fact", ["gpu", "driver", "commit", "fastact"])
def test_another_machine_or_build_begins_anew(tmp_path, monkeypatch, capsys, fact):
    """And what was there is put aside."""
    file = tmp_path / "gpu.json"
    told = options(**FEW, goes_on=True)
    bench(SOME[:1], told, file)
    before = file.read_text()
    if fact == "commit":
        monkeypatch.setattr(results, "commit", lambda: "another")
    else:
        monkeypatch.setattr(StandIn, "facts", lambda self: {**FACTS, fact: "another"})
    bench(SOME[1:2], told, file)
    assert {name[0] for name in names(file)} == {"sum"}
    assert (tmp_path / "gpu.json.before").read_text() == before
    assert f"gpu.json: of another {fact}; it is now gpu.json.before" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "gpu.json"
    file.write_text('{"rows": []}')
    with pytest.raises(ValueError, match="was not written by bench --device cuda"):
        bench(SOME, options(goes_on=True), file)
    assert file.read_text() == '{"rows": []}'


@pytest.mark.parametrize(
    ("words", "compiled"),
    [([], ("float32", "bfloat16")), (["--peers", "torch,torch.compile"], tuple(ITEM))],
)
def test_words_of_the_command_line(tmp_path, monkeypatch, words, compiled):
    asked = []

    def run(_, ops, told, json_file, markdown_file):
        asked.append((ops, told, json_file))
        found = results.Results(FACTS)
        found.left = 5
        return found

    monkeypatch.setattr(cuda, "Gpus", lambda told: None)
    monkeypatch.setattr(board, "run", run)
    file = tmp_path / "gpu.json"
    more = ["--json", str(file), "--resume", "--stop-after", "460", *words]
    assert cli.main(["gates", "mish", "--device", "cuda", *more]) == 3
    ((ops, told, json_file),) = asked
    assert [op.name for op in ops] == [
        *(op.name for op in fa.ops.values() if op.family == "gates"),
        "mish",
    ]
    assert (told.stop_after, told.goes_on, json_file) == (460.0, True, file)
    assert set(told.compiled) == set(compiled)
