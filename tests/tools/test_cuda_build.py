"""cmake/: the CUDA compilers that are taken, and the architectures that are built."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import run_program

CMAKE = Path(__file__).resolve().parents[2] / "cmake"
if not CMAKE.exists() or shutil.which("cmake") is None:
    pytest.skip("needs the source tree and cmake", allow_module_level=True)

NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {0}, V{0}.93\n"


def check(compiler: Path, wanted: str) -> tuple[int, str]:
    """The exit status of the check of a compiler, and what it says, in one line."""
    script = compiler.parent / "check.cmake"
    script.write_text(
        f"include({CMAKE / 'cuda_compiler.cmake'})\nmessage(STATUS CUDA=${{FASTACT_CUDA}})\n"
    )
    given = (f"-DFASTACT_CUDA={wanted}", f"-DCMAKE_CUDA_COMPILER={compiler}")
    done = run_program("cmake", *given, "-P", script)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def compiler(folder: Path, says: str, status: int = 0) -> Path:
    """A program that answers --version."""
    made = folder / "nvcc"
    made.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize("release", ["12.8", "12.10", "13.0"])
def test_compilers_that_are_taken(tmp_path, release):
    status, said = check(compiler(tmp_path, NVCC.format(release)), "ON")
    assert (status, said) == (0, "-- CUDA=ON")


@pytest.mark.parametrize(
    ("says", "exits", "why"),
    [
        (NVCC.format("12.4"), 0, "is of CUDA 12.4"),
        (NVCC.format("11.8"), 0, "is of CUDA 11.8"),
        ("clang version 19.1.7", 0, "is not NVIDIA's nvcc"),
        ("", 1, "is not NVIDIA's nvcc"),
    ],
)
def test_compilers_that_are_refused(tmp_path, says, exits, why):
    """Where CUDA is asked for the build ends; where it is not, it goes on without."""
    refused = compiler(tmp_path, says, exits)
    status, said = check(refused, "ON")
    assert status != 0
    assert f"needs nvcc of CUDA 12.8 or later, and {refused} {why}. Put another one" in said
    status, said = check(refused, "AUTO")
    assert status == 0
    assert why in said
    assert "-- CUDA=OFF" in said


def default_architectures() -> list[str]:
    found = re.search(r"CMAKE_CUDA_ARCHITECTURES (\d[^)]*)\)", (CMAKE / "cuda.cmake").read_text())
    assert found is not None
    return found[1].split()


def test_one_architecture_has_ptx_and_every_generation_has_code():
    """PTX is for devices between and after the generations that have code, so it is not of the
    last one."""
    built = default_architectures()
    assert [a for a in built if not a.endswith("-real")] == ["90"]
    generations = {int(a.removesuffix("-real")) // 10 for a in built}
    assert generations == {7, 8, 9, 10, 12}


def test_the_compiler_knows_them():
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True)
    wanted = {f"sm_{a.removesuffix('-real')}" for a in default_architectures()}
    assert wanted <= set(known.stdout.split())
