"""What an import brings, how long it takes, and which instruction set a processor gets."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import python_output, run_python

import fastact as fa
from fastact import _cpu

# What we add to numpy's import, as a share of it: seconds are longer where another process has the
# machine's other half, and both imports suffer alike. The best of several runs had 0.41 on a
# machine that others kept busy; an import of another package would double it.
OWN_SHARE = 0.8


def test_import_brings_numpy_alone():
    # Cython enters a module of its own, without a file, for its extension types.
    code = """
import sys, numpy
before = set(sys.modules)
import fastact
new = {name.partition(".")[0] for name in set(sys.modules) - before
       if getattr(sys.modules[name], "__file__", None)}
assert new - set(sys.stdlib_module_names) <= {"fastact", "numpy"}, new
"""
    python_output(code)


@pytest.mark.skipif(
    Path(fa.__file__).parent != Path(_cpu.__file__).parent,
    reason="an editable install first looks for sources that changed",
)
def test_import_is_quick():
    code = """
import time
start = time.process_time()
import numpy
between = time.process_time()
import fastact
print((time.process_time() - between) / (between - start))
"""
    # The first compiles, and on a machine that does other work many are slow: one has to be quick.
    runs = (run_python(code, PYTHONDONTWRITEBYTECODE="") for _ in range(20))
    assert any(float(done.stdout) < OWN_SHARE for done in runs)


def test_isa_is_chosen_and_forced():
    for isa in _cpu.supported_isas():
        done = run_python("import fastact; print(fastact._cpu.isa())", FASTACT_ISA=isa)
        assert done.stdout.strip() == isa
    done = run_python("import fastact; print(fastact._cpu.isa())", FASTACT_ISA="")
    assert done.stdout.strip() == _cpu.supported_isas()[-1]


def test_unknown_isa_fails_loudly():
    done = run_python("import fastact", FASTACT_ISA="v9")
    assert done.returncode != 0
    assert "FASTACT_ISA must be one of" in done.stderr
    assert "got 'v9'" in done.stderr


def test_isa_that_the_processor_lacks_fails_loudly(monkeypatch):
    from fastact.runtime import config

    monkeypatch.setattr(_cpu, "supported_isas", lambda: ("v2",))
    monkeypatch.setattr(_cpu, "build_info", lambda: {"isas": ["v2", "v4"]})
    with pytest.raises(ImportError, match="FASTACT_ISA=v4 is not supported by this processor"):
        config.choose_isa({"FASTACT_ISA": "v4"})


def test_config_is_told(capsys):
    fa.show_config()
    told = capsys.readouterr().out
    for word in ("version", fa.__version__, "compiler", "isa", "openmp", "threads", "cuda"):
        assert word in told


def test_ours_is_the_extension_that_was_built():
    assert np.__name__ in sys.modules
    assert _cpu.__name__ == "fastact._cpu"


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
