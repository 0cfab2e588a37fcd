"""Layers of the sources: what every family uses includes no family."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

#: What every family uses. The other folders of src/cpu and src/common are families, or call them.
SHARED = {"cpu/core", "cpu/simd", "common/core", "common/math"}

pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not there")


def _included(path: Path) -> set[str]:
    """The folders from which a file includes a header of ours."""
    return set(re.findall(r'^#include "((?:cpu|common)/\w+)/', path.read_text(), re.M))


def _files(folder: str) -> list[Path]:
    return [path for path in (SOURCES / folder).rglob("*") if path.suffix in (".h", ".cpp")]


def test_the_pattern_finds_what_a_family_includes():
    found = set().union(*(_included(path) for path in _files("cpu/norms")))
    assert found >= {"cpu/core", "common/norms", "cpu/reductions"}


@pytest.mark.parametrize("folder", sorted(SHARED))
def test_what_every_family_uses_includes_none(folder):
    found = {
        str(path.relative_to(SOURCES)): names
        for path in _files(folder)
        if (names := _included(path) - SHARED)
    }
    assert not found


def test_each_instruction_set_has_one_table_of_its_kernels():
    defined = [
        path
        for path in (SOURCES / "cpu").rglob("*.cpp")
        if "const KernelTable table = " in path.read_text()
    ]
    assert [path.name for path in defined] == ["all_kernels.cpp"]


def test_what_tuning_has_is_defined_there_alone():
    tuning = SOURCES / "cpu" / "core" / "tuning.h"
    names = re.findall(r"^constexpr \w+ (k\w+) = ", tuning.read_text(), re.M)
    assert {"kCacheLine", "kNear", "kAhead"} <= {*names}
    definition = re.compile(rf"\bconstexpr \w+ ({'|'.join(names)}) = ")
    found = {
        path.name: definition.findall(path.read_text())
        for path in (SOURCES / "cpu").rglob("*.*")
        if path != tuning and definition.search(path.read_text())
    }
    assert not found
