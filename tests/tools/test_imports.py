"""Who imports whom in python/fastact, and includes what in src, read from the sources."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).parents[2] / "python" / "fastact"

#: What parts of the package may import of it, at any time.
LAYERS = {
    "fastact.interop": {"fastact.interop", "fastact._cpu"},
    "fastact.ops": {"fastact.ops", "fastact.interop", "fastact._cpu"},
}

pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not there")


class Import(NamedTuple):
    """A name that a module imports from another one."""

    module: str  # of the package
    name: str
    is_late: bool  # within a function


def _module_of(path: Path) -> str:
    parts = ("fastact", *path.relative_to(SOURCES).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {_module_of(path): path for path in SOURCES.rglob("*.py")}
#: Those, and what is compiled.
NAMES = {*MODULES, "fastact._cpu", "fastact._jax"}


def _statements(body: Iterable[ast.AST], late: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All that is run, and whether that is when a function is called: not what types alone need."""
    for node in body:
        yield node, late
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _statements(node.orelse, late)
            continue
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _statements(ast.iter_child_nodes(node), late or is_function)


def _imports(module: str) -> Iterator[Import]:
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, late in _statements(tree.body, False):
        if isinstance(node, ast.Import):
            yield from (Import(one.name, "", late) for one in node.names if one.name in NAMES)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if named in NAMES:
                yield Import(named, "", late)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for one in node.names:
                if f"{source}.{one.name}" in NAMES:
                    yield Import(f"{source}.{one.name}", "", late)
                elif source in NAMES:
                    yield Import(source, one.name, late)


@cache
def every_import() -> dict[str, list[Import]]:
    """Of each module; found when a test asks, which not every process does that collects them."""
    return {module: list(_imports(module)) for module in MODULES}


def _room(module: str) -> str:
    """The folder, or the module beside the folders, that a module belongs to."""
    return ".".join(module.split(".")[:2])


def test_modules_import_each_other_in_no_circle():
    """Late imports count; the package itself names what is below it."""
    graph = {
        module: {one.module for one in found} - {module, "fastact"}
        for module, found in every_import().items()
        if module != "fastact"
    }
    assert [*TopologicalSorter(graph).static_order()]  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", LAYERS)
def test_ops_know_no_bridge(room):
    found = {
        (module, one.module)
        for module, imports in every_import().items()
        if _room(module) == room
        for one in imports
        if _room(one.module) not in LAYERS[room]
    }
    assert not found


def test_benchmarks_and_checks_share_one_part_alone():
    rooms = ("fastact.bench", "fastact.check", "fastact.measure")
    between = {
        (room, one.module)
        for module, found in every_import().items()
        for one in found
        if (room := _room(module)) in rooms and _room(one.module) in rooms
        if room != _room(one.module)
    }
    assert between
    assert {_room(module) for _, module in between} == {"fastact.measure"}


NATIVE = Path(__file__).parents[2] / "src"

#: What every family uses. The other folders of src/cpu and src/common are families, or call them.
SHARED = {"cpu/core", "cpu/simd", "common/core", "common/math"}


def _included(path: Path) -> set[str]:
    """The folders from which a file includes a header of ours."""
    return set(re.findall(r'^#include "((?:cpu|common)/\w+)/', path.read_text(), re.M))


def _files(folder: str) -> list[Path]:
    return [path for path in (NATIVE / folder).rglob("*") if path.suffix in (".h", ".cpp")]


def test_the_pattern_finds_what_a_family_includes():
    found = set().union(*(_included(path) for path in _files("cpu/norms")))
    assert found >= {"cpu/core", "common/norms", "cpu/reductions"}


@pytest.mark.parametrize("folder", sorted(SHARED))
def test_what_every_family_uses_includes_none(folder):
    found = {
        str(path.relative_to(NATIVE)): names
        for path in _files(folder)
        if (names := _included(path) - SHARED)
    }
    assert not found
