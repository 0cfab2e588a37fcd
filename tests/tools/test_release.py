"""tools/check_release.py: what is released has what it needs, and nothing else."""

import subprocess
import tarfile
import zipfile

import pytest
from source_tree import import_tool

import fastact as fa

check_release = import_tool("check_release")

MODULES = ["fastact/_cpu.abi.so", "fastact/_jax.abi.so", "fastact/__init__.py"]


def wheel(path, names, distribution="fastact"):
    file = path / f"{distribution}-{fa.__version__}-cp311-cp311-manylinux_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name in [*names, f"{distribution}-{fa.__version__}.dist-info/RECORD"]:
            archive.writestr(name, "")
    return file


def test_the_changelog_has_this_version():
    """A version that nobody wrote a section for is not released."""
    assert check_release.version() == fa.__version__
    assert [*check_release.of_changelog(fa.__version__, released=False)] == []
    (problem,) = check_release.of_changelog("9.9.9", released=False)
    assert "no section [9.9.9]" in problem


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (MODULES, None),
        ([*MODULES, "fastact.libs/libgomp.so.1"], None),
        (MODULES[1:], "lacks _cpu.*.so"),
        ([*MODULES, "fastact/_cuda_emulated.abi.so"], "has fastact/_cuda_emulated.abi.so"),
        ([*MODULES, "fastact/ops/kernels.pyx"], "has fastact/ops/kernels.pyx"),
        ([*MODULES, "tests/conftest.py"], "has tests/conftest.py"),
    ],
)
def test_wheels(tmp_path, names, problem):
    found = [*check_release.of_wheel(wheel(tmp_path, names))]
    assert (problem is None) == (found == [])
    assert problem is None or problem in found[0]


def test_the_cuda_wheel_has_its_module_alone(tmp_path):
    of = "fastact_cuda"
    assert [*check_release.of_wheel(wheel(tmp_path, ["fastact/_cuda.abi.so"], of))] == []
    assert [*check_release.of_wheel(wheel(tmp_path, MODULES, of))]


def test_sources_are_those_of_the_repository(tmp_path, monkeypatch):
    listed = ["src/a.cpp", ".ci/run", "README.md"]
    done = subprocess.CompletedProcess([], 0, "\n".join(listed))
    monkeypatch.setattr(check_release.subprocess, "run", lambda *a, **k: done)
    file = tmp_path / f"fastact-{fa.__version__}.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name in ("src/a.cpp", "build/a.o", "PKG-INFO"):
            archive.addfile(tarfile.TarInfo(f"fastact/{name}"))
    assert [*check_release.of_sdist(file)] == [
        f"{file.name} lacks README.md",
        f"{file.name} has build/a.o",
    ]
