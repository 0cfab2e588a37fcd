"""What pages say of the code is so, and files that they, comments and docstrings name are there."""

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from benchmarks import cuda_report
from benchmarks.results import read

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


PAGES = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]


def _parameters(op):
    return {name for point in op.entry_points.values() for name in point.signature.parameters}


@pytest.mark.skipif(not PAGES, reason="the pages are not here")
def test_parameters_that_pages_deny_are_not_there():
    """A page that says "there is no `x`" speaks of all ops, "`op` has no `x`" of one."""
    parameters = {name: _parameters(op) for name, op in fa.ops.items()}
    seen, wrong = [], []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for op, name in re.findall(r"(?:there is|`(\w+)`\s+has)\s+no\s+`(\w+)`", text):
            of = [op] if op else [*parameters]
            seen.append((op, name))
            if any(name in parameters.get(one, ()) for one in of):
                wrong.append(f"{page.name}: {op or 'an op'} has {name}")
    assert ("softplus", "threshold") in seen
    assert not wrong


# Benchmarks have a page each; profiles beside them have none.
GPU = sorted(
    file for file in (ROOT / "docs/results/gpu").glob("*.json") if file.with_suffix(".md").exists()
)


@pytest.mark.skipif(not GPU, reason="the results are not here")
@pytest.mark.parametrize("file", GPU, ids=lambda file: file.stem)
def test_the_pages_of_gpus_show_what_was_measured(file):
    """All rows, and no others; the pictures that a page names are there."""
    results = read(file, True)
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert page == cuda_report.markdown(results)
    for fact in ("gpu", "driver", "commit"):
        assert results.facts[fact] in page
    assert all((file.parent / name).exists() for name in re.findall(r"\((\w+\.\w+)\)", page))


COMPARISON = ROOT / "docs/comparison.md"


@pytest.mark.skipif(not COMPARISON.exists(), reason="the pages are not here")
def test_the_comparison_has_the_counts_of_the_boards():
    text = COMPARISON.read_text(encoding="utf-8")
    lines = re.findall(r"^\| \[.*\]\((\S+scoreboard.md)\) \| (.*) \|$", text, re.M)
    assert len(lines) == 3
    for board, counts in lines:
        assert f"| **all** | {counts} |" in (COMPARISON.parent / board).read_text(encoding="utf-8")


A_CALL = ROOT / "docs/design/a_call.md"


@pytest.mark.skipif(not A_CALL.exists(), reason="the pages are not here")
def test_the_files_that_a_call_passes_are_there():
    """The page that follows a call fits on a screen or two, and names files that exist."""
    text = A_CALL.read_text(encoding="utf-8")
    files = re.findall(r"`((?:src|python)/[\w/.]+)`", text)
    assert len(files) > 15  # its tables have as many rows
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert len(text.splitlines()) <= 60


READ = [
    *("py", "pyi", "pyx", "pxi", "h", "cpp", "cu", "cuh"),
    *("md", "toml", "sh", "yml", "txt", "cmake"),
]

# From the root of the repository; from anywhere in it, as by #include; by the file's name alone,
# which is asked of sources only: documents and programs are also made, in places of the moment.
TOP = r"(?:src|python|tests|tools|docs|examples|asv_bench|cmake|packaging|\.ci|\.github)/"
WHOLE = re.compile(rf"(?<![\w/.<>$}}\"-]){TOP}[\w./-]*?\.(?:{'|'.join(READ)}|json|png|svg|supp)\b")
PART = re.compile(r"(?<![\w/.<>$}*-])(?:[a-z_]\w*/)+\w+\.(?:py|pyx|pxi|h|cpp|cu|cuh|md)\b(?!\.?\w)")
NAME = re.compile(r"(?<![\w/.<*}-])[a-z]\w*\.(?:pyx|pxi|h|cpp|cu|cuh)\b(?!\.?\w)")

#: What the site and tests make, and what others have.
ELSEWHERE = re.compile(
    r"(?:project/)?generated/\w+\.md|docs/results/MACHINE/bench\.json"
    r"|(?:src/)?a\.cpp|same\.cpp|fastact/ops/kernels\.pyx|families\.pxi"
    r"|numpy/\w+\.h|xla/ffi/api/c_api\.h|malloc\.h|mkl_vml_defines\.h"
)


@lru_cache
def files() -> list[str]:
    """Those of the repository, and new ones; none outside a clone."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return []
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def missing(text: str, known: set[str]) -> set[str]:
    """Of the files that a text names, those that are not there."""
    named = {*WHOLE.findall(text), *PART.findall(text), *NAME.findall(text)}
    return {name for name in named if name not in known and not ELSEWHERE.fullmatch(name)}


@pytest.mark.skipif(not files(), reason="needs a clone of the repository")
def test_files_that_are_named_are_there():
    known = set()
    for name in files():
        parts = name.split("/")
        known |= {"/".join(parts[at:]) for at in range(len(parts))}
    wrong = {}
    for name in files():
        if name.rpartition(".")[2] in READ or name == ".ci/run":
            found = missing((ROOT / name).read_text(encoding="utf-8"), known)
            wrong |= {name: found} if found else {}
    assert not wrong
