"""Files that comments, docstrings and pages name are there."""

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
