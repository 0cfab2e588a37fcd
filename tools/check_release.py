"""The files of a release, looked at before anybody installs them.

    python tools/check_release.py                       # the changelog has this version
    python tools/check_release.py dist/* wheelhouse/*   # so have these files, with what they need
    python tools/check_release.py --tag v0.1.0 ...      # which is the version that is released

A source distribution has what the repository has, but for what pyproject.toml leaves out. A wheel
has the compiled modules and the Python package, and is small enough to install in seconds; the
wheel of packaging/cuda has its one module.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Bytes of a wheel for x86-64, which has three instruction sets. 3 MB are wanted, and what keeps it
# from them is in docs/design/packaging.md.
_LARGEST = 6_500_000
_MODULES = {"fastact": ("_cpu.*.so", "_jax.*.so"), "fastact_cuda": ("_cuda.*.so",)}
_BESIDE = {"fastact": ("*.py", "*.pyi", "py.typed"), "fastact_cuda": ()}


def version() -> str:
    """The version, from its one place."""
    text = (ROOT / "python/fastact/_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    assert found is not None
    return found[1]


def of_changelog(wanted: str, released: bool) -> Iterator[str]:
    """Faults of the changelog."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\] - (.+)$", text, flags=re.MULTILINE)
    if not sections or sections[0][0] != wanted:
        yield f"CHANGELOG.md has no section [{wanted}] at its top"
    elif released and not re.fullmatch(r"\d{4}-\d\d-\d\d", sections[0][1]):
        yield f"CHANGELOG.md has no date of [{wanted}]"


def of_sdist(path: Path) -> Iterator[str]:
    """Faults of a source distribution."""
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    excluded = settings["tool"]["scikit-build"]["sdist"]["exclude"]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = {name for name in listed if not any(f"/{part}/" in f"/{name}/" for part in excluded)}
    yield from (f"{path.name} lacks {name}" for name in sorted(wanted - packed))
    yield from (f"{path.name} has {name}" for name in sorted(packed - wanted - {"PKG-INFO"}))


def of_wheel(path: Path) -> Iterator[str]:
    """Faults of a wheel."""
    distribution = path.name.partition("-")[0]
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    package = [name for name in names if name.startswith("fastact/")]
    for module in _MODULES[distribution]:
        if not any(fnmatch(name, f"fastact/{module}") for name in package):
            yield f"{path.name} lacks {module}"
    expected = (*_MODULES[distribution], *_BESIDE[distribution])
    for name in names:
        inside = any(fnmatch(name.rpartition("/")[2], pattern) for pattern in expected)
        metadata = re.match(r"\w+-[^/]+\.dist-info/|fastact(_cuda)?\.libs/|fastact/\.dylibs/", name)
        if not metadata and not (name in package and inside):
            yield f"{path.name} has {name}"
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if distribution == "fastact" and "x86_64" in path.name and size > _LARGEST:
        yield f"{path.name} has {size:,} bytes, allowed are {_LARGEST:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="source distributions and wheels")
    parser.add_argument("--tag", help="of the release, v and the version")
    args = parser.parse_args()
    now = version()
    problems = [*of_changelog(now, released=args.tag is not None)]
    if args.tag not in (None, f"v{now}"):
        problems.append(f"the tag is {args.tag}, the version {now}")
    for path in args.files:
        if not re.match(rf"fastact(_cuda)?-{re.escape(now)}[-.]", path.name):
            problems.append(f"{path.name} is not of version {now}")
            continue
        problems += of_wheel(path) if path.suffix == ".whl" else of_sdist(path)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
