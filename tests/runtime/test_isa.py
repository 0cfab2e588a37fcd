"""Which instruction set a processor gets, and that no code of one reaches the others."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fastact import _cpu


def test_this_processor():
    """As the kernel lists its flags, where it does."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    flags = next((line.split()[2:] for line in text.splitlines() if line.startswith("flags")), None)
    if flags is None:
        pytest.skip("no list of an x86 processor's flags")
    v3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"} <= set(flags)
    v4 = v3 and {f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")} <= set(flags)
    for name, has in (("v3", v3), ("v4", v4)):
        assert (name in _cpu.supported_isas()) == (has and name in _cpu.build_info()["isas"])


CHECK = Path(__file__).parents[2] / "cmake" / "isa_symbols.cmake"
INSIDE = """
namespace fastact { inline namespace v4 {
template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
} }
float f(float x) { return fastact::twice(x); }
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (INSIDE, None),
        (INSIDE.replace("inline namespace v4", "inline namespace v3"), "2v35twice"),
        (INSIDE.replace("inline namespace v4 {", "{"), "7fastact5twice"),
    ],
    ids=["its own", "another's", "nobody's"],
)
def test_functions_outside_of_the_namespace_stop_the_build(tmp_path, source, found):
    tools = {name: shutil.which(name) for name in ("g++", "nm", "cmake")}
    missing = [name for name, path in tools.items() if path is None]
    if missing or not CHECK.exists():
        pytest.skip(f"needs the source tree and {', '.join(missing) or CHECK.name}")
    if found == "7fastact5twice":
        source = source.replace("{ {", "{").replace("} }", "}")
    (tmp_path / "a.cpp").write_text(source)
    made = tmp_path / "a.o"
    subprocess.run([tools["g++"], "-c", str(tmp_path / "a.cpp"), "-o", str(made)], check=True)
    run = subprocess.run(
        [tools["cmake"], "-DNM=nm", "-DISA=v4", f"-DOBJECTS={made}|{made}", "-P", str(CHECK)],
        capture_output=True,
        text=True,
    )
    assert (run.returncode == 0) == (found is None), run.stderr
    assert found is None or found in run.stderr
