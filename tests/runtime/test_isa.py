"""Which instruction set a processor gets, and that no code of one reaches the others."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fastact import _cpu

# The x86-64 psABI, table 3.1: CPUID's leaf 1 (ecx), leaf 7 (ebx) and leaf 0x80000001 (ecx).
LEAF1 = {
    2: {"SSE3": 0, "SSSE3": 9, "CMPXCHG16B": 13, "SSE4.1": 19, "SSE4.2": 20, "POPCNT": 23},
    3: {"FMA": 12, "MOVBE": 22, "OSXSAVE": 27, "AVX": 28, "F16C": 29},
}
LEAF7 = {
    3: {"BMI1": 3, "AVX2": 5, "BMI2": 8},
    4: {"AVX512F": 16, "AVX512DQ": 17, "AVX512CD": 28, "AVX512BW": 30, "AVX512VL": 31},
}
EXTENDED = {2: {"LAHF-SAHF": 0}, 3: {"LZCNT": 5}}
# XCR0: what the operating system saves of SSE and AVX, of AVX-512's masks and registers.
STATE = {3: {"XMM": 1, "YMM": 2}, 4: {"opmask": 5, "ZMM": 6, "ZMM16-31": 7}}
REGISTERS = (LEAF1, LEAF7, EXTENDED, STATE)


def features(levels, without=None):
    """The registers of a processor that has all that these levels list, but one."""
    return tuple(
        sum(
            1 << bit
            for level, bits in register.items()
            if level in levels
            for name, bit in bits.items()
            if name != without
        )
        for register in REGISTERS
    )


def test_levels():
    assert _cpu.level_of_features(0, 0, 0, 0) == 1
    for level in (2, 3, 4):
        assert _cpu.level_of_features(*features(range(2, level + 1))) == level
    assert _cpu.level_of_features(*(2**32 - 1,) * 3, 2**64 - 1) == 4


@pytest.mark.parametrize(
    ("level", "name"),
    [(n, name) for register in REGISTERS for n, bits in register.items() for name in bits],
)
def test_each_feature_is_asked_for(level, name):
    """F16C, LZCNT, MOVBE ... : a compiler may use any of them at its level."""
    assert _cpu.level_of_features(*features((2, 3, 4), without=name)) == level - 1


def test_levels_rise():
    """AVX-512 alone does not make up for what AVX2 lacks."""
    assert _cpu.level_of_features(*features((2, 4))) == 2
    assert _cpu.level_of_features(*features((3, 4))) == 1


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
