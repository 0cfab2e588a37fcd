"""The GPU benchmark in several runs that make one table: --stop-after, --resume, gpu_check.sh."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from test_bench_cuda import FACTS, StandIn, options, quick  # noqa: F401 - quick is a fixture
from test_cli import fastact

import fastact as fa
from fastact import cli
from fastact.bench import cuda
from fastact.bench.cuda_rows import read
from fastact.bench.peers import COMPILED
from fastact.bench.workloads import work
from fastact.bench.workloads.work import ITEM

CHECK = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.sh"
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
    """As many as it takes, and the rows are those of one run, in its order."""
    monkeypatch.setattr(StandIn, "free", lambda self: 2**30)  # room for all
    whole, parts, page = (tmp_path / name for name in ("whole.json", "parts.json", "parts.md"))
    cuda.bench(SOME, options(**FEW), whole, device=StandIn())
    told = options(**FEW, stop_after=7, goes_on=True)
    left = [len(names(whole))]
    while left[-1]:
        done = cuda.bench(SOME, told, parts, page, StandIn())
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
    cuda.bench(SOME, told, parts, device=StandIn())
    assert f"{left[0]} rows are there, 0 to be measured" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_families_may_come_one_by_one(tmp_path):
    file = tmp_path / "gpu.json"
    told = options(**FEW, goes_on=True)
    for op in SOME:
        cuda.bench([op], told, file, device=StandIn())
    assert {name[0] for name in names(file)} == {op.name for op in SOME}


@pytest.mark.usefixtures("quick")
def test_what_lacks_a_peer_or_failed_is_measured_again(tmp_path, monkeypatch):
    file = tmp_path / "gpu.json"
    told = {**FEW, "goes_on": True}
    cuda.bench(SOME, options(**told, peers=()), file, device=StandIn())
    before = names(file)

    def fails(case, *rest):
        raise RuntimeError("out of order")

    with monkeypatch.context() as broken:
        broken.setattr(cuda, "measure", fails)
        done = cuda.bench([fa.mish], options(**told), file, device=StandIn())
    mish = [name for name in before if name[0] == "mish"]
    assert len(done.problems) == len(mish)
    assert names(file) == before  # what there is, is kept
    done = cuda.bench([fa.mish], options(**told), file, device=StandIn())
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
    cuda.bench(SOME[:1], told, file, device=StandIn())
    before = file.read_text()
    if fact == "commit":
        monkeypatch.setattr(cuda, "commit", lambda: "another")
    else:
        monkeypatch.setattr(StandIn, "facts", lambda self: {**FACTS, fact: "another"})
    cuda.bench(SOME[1:2], told, file, device=StandIn())
    assert {name[0] for name in names(file)} == {"sum"}
    assert (tmp_path / "gpu.json.before").read_text() == before
    assert f"gpu.json: of another {fact}; it is now gpu.json.before" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "gpu.json"
    file.write_text('{"rows": []}')
    with pytest.raises(ValueError, match="was not written by bench --device cuda"):
        cuda.bench(SOME, options(goes_on=True), file, device=StandIn())
    assert file.read_text() == '{"rows": []}'


@pytest.mark.usefixtures("quick")
def test_torch_compile_takes_part_where_it_is_told(tmp_path, monkeypatch):
    """And is no reason to measure the others again."""
    file = tmp_path / "gpu.json"
    told = options(**FEW, peers=("torch", COMPILED), compiled=(), goes_on=True)
    cuda.bench([fa.mish], told, file, device=StandIn())
    for row in json.loads(file.read_text())["rows"]:
        assert COMPILED not in row["ratios"]
        assert row["left_out"][COMPILED].endswith("a row takes it seconds")
    before = read(file, SOME).rows
    assert cuda.bench([fa.mish], told, file, device=StandIn()).rows == before
    # Until it is to take part.
    monkeypatch.setattr(work, "compiled_by_torch", lambda torch, function: function)
    told = replace(told, compiled=("float32",))
    for row in cuda.bench([fa.mish], told, file, device=StandIn()).rows:
        assert (COMPILED in row.ratios) is (row.dtype == "float32")
        assert (row in before) is (row.dtype != "float32")


@pytest.mark.parametrize(
    ("words", "compiled"),
    [([], ("float32", "bfloat16")), (["--peers", "torch,torch.compile"], tuple(ITEM))],
)
def test_words_of_the_command_line(tmp_path, monkeypatch, words, compiled):
    asked = []

    def bench(ops, told, json_file, markdown_file):
        asked.append((ops, told, json_file))
        results = cuda.Results(FACTS)
        results.left = 5
        return results

    monkeypatch.setattr(cuda, "bench", bench)
    file = tmp_path / "gpu.json"
    more = ["--json", str(file), "--resume", "--stop-after", "460", *words]
    assert cli.main(["bench", "gates", "mish", "--device", "cuda", *more]) == 3
    ((ops, told, json_file),) = asked
    assert [op.name for op in ops] == [
        *(op.name for op in fa.ops.values() if op.family == "gates"),
        "mish",
    ]
    assert (told.stop_after, told.goes_on, json_file) == (460.0, True, file)
    assert set(told.compiled) == set(compiled)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "cuda", "--resume"], "--resume goes on with the file of --json"),
        (["--resume"], "--resume goes on with the file of --json"),
        (["--device", "cuda", "--list"], "--list does not go with --device cuda"),
        (["--device", "cuda", "--from", "x", "--resume"], "--resume does not go with --from"),
    ],
)
def test_words_that_do_not_go_together(words, says):
    done = fastact("bench", *words)
    assert done.returncode == 2
    assert says in done.stderr


# --- tools/gpu_check.sh, with a python that only notes what it is told ----------------------------

PYTHON = """\
#!/bin/bash
case "$*" in
  *'*fastact.__path__'*) echo "{env}/fastact" ;;
  *'--from'*) echo "drawn: picture" ;;
  *'-m fastact bench'*)
    echo "$*" >>"{work}/calls"
    while (($#)); do [[ $1 == --json ]] && echo '{{}}' >"$2"; shift; done
    exit "$(cat "{work}/status")" ;;
  *gpu_steps.py*) echo "$*" >>"{work}/calls"; exit "$(cat "{work}/status")" ;;
  *) exit 0 ;;
esac
"""


def check(work, *words, status=0, **environment):
    """Run the benchmark's part, the bench itself having this exit status."""
    env = work / "env"
    (env / "bin").mkdir(parents=True, exist_ok=True)
    python = env / "bin" / "python"
    python.write_text(PYTHON.format(env=env, work=work))
    python.chmod(0o755)
    (work / "status").write_text(str(status))
    (work / "calls").write_text("")
    done = subprocess.run(
        ["bash", str(CHECK), *words, "--out", str(work / "out"), "--work", str(work)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHON": sys.executable, "PATH": os.environ["PATH"], **environment},
    )
    return done, (work / "calls").read_text()


needs_the_script = pytest.mark.skipif(not CHECK.exists(), reason="away from the source tree")


@needs_the_script
@pytest.mark.parametrize(
    ("status", "returned", "verdict"),
    [
        (0, 0, "bench: passed"),
        (3, 3, "bench: not done: run it again for what is left"),
        (1, 1, "bench: FAILED"),
    ],
)
def test_gpu_check_tells_what_is_left(tmp_path, status, returned, verdict):
    done, called = check(tmp_path, "bench", status=status, PART_SECONDS="540")
    assert done.returncode == returned, done.stdout + done.stderr
    assert verdict in done.stdout
    assert "--resume --stop-after 460" in called
    assert "--peers" not in called
    assert "drawn: picture" in done.stdout or "matplotlib" in done.stdout


@needs_the_script
@pytest.mark.parametrize(
    ("status", "verdict"),
    [(0, "passed"), (3, "not done: run it again for what is left"), (1, "FAILED")],
)
@pytest.mark.parametrize("part", ["test", "bits"])
def test_gpu_check_goes_on_with_steps(tmp_path, part, status, verdict):
    done, called = check(tmp_path, part, "--quick", status=status, PART_SECONDS="540")
    assert done.returncode == status, done.stdout + done.stderr
    assert f"{part}: {verdict}" in done.stdout
    assert called.startswith(f"tools/gpu_steps.py {part} --json {tmp_path}/out/")
    assert "_quick_checks.json --markdown" in called
    assert called.rstrip().endswith("_quick_checks.md --stop-after 510 --quick")


@needs_the_script
def test_gpu_check_of_some_families(tmp_path):
    done, called = check(tmp_path, "bench", "--only", "norms gates")
    assert done.returncode == 0, done.stdout + done.stderr
    assert called.startswith("-m fastact bench norms gates --device cuda --json ")


@needs_the_script
def test_gpu_check_keeps_the_quick_one_apart(tmp_path):
    done, called = check(tmp_path, "bench", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "_quick.json" in called
    assert "--peers torch" in called


@needs_the_script
@pytest.mark.parametrize("words", [["bench", "--only"], ["banch"]])
def test_gpu_check_of_bad_words(words):
    done = subprocess.run(["bash", str(CHECK), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "gpu_check: " in done.stderr
