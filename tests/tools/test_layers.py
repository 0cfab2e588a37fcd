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
