#!/usr/bin/env bash
# Builds an instrumented fastact (GCC's or Clang's run-time libraries, the CPU alone, one instruction
# set) and runs the tests that drive its native code:
#
#   tools/sanitize.sh address,undefined [arguments of pytest in place of the chosen tests]
#   tools/sanitize.sh thread [...]
#
# The Python that stands first on PATH, or PYTHON, must have the tests' requirements: they are used
# from where they are, and fastact alone is built anew, in build/sanitize-*. ISA=v2 picks another
# instruction set, FUZZ the arguments of the fuzzer that runs after the chosen tests (address,undefined;
# FUZZ= for none).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
kind=${1:-}
shift || true
isa=${ISA-$([[ $(uname -m) == x86_64 ]] && echo v3 || echo ALL)}
work=$root/build/sanitize-${kind//,/-}

# The tests that run native code on many layouts, dtypes and sizes, each on few ops of a family, in
# a plain run: every op, layout, dtype and size of theirs. Which of them meet is left to the fuzzer,
# which draws all of that, thread counts and offsets anew in each of some thousand cases, in half of
# the time that the tests' whole products take.
# What they leave out: documents, the command line and benchmarks, which run no other native code;
# the instruction sets side by side, of which one is built; and bounds on memory and time, which
# instrumented code does not keep.
chosen=()
case $kind in
  address,undefined)
    chosen=(tests/activations/test_layouts.py tests/bias/test_bias_act_layouts.py
      tests/bias/test_bias_sums.py tests/gates/test_gates.py tests/norms/test_norms.py
      tests/norms/test_norms_channels.py tests/norms/test_norms_outputs.py tests/norms/test_batch_norm.py
      tests/reductions/test_moments.py tests/reductions/test_every_reduction.py
      tests/reductions/test_reductions.py tests/statistics/test_weights.py
      tests/interop/test_frameworks.py tests/invariants/test_refused*.py
      tests/invariants/test_every_call.py::test_in_place
      tests/ops/test_call_cache*.py tests/runtime/test_races.py
      -k "not bfloat16") # it runs the code of float16 but for two conversions, which the fuzzer runs
    ;;
  thread)
    chosen=(tests/runtime/test_races.py)
    ;;
  *)
    echo "usage: $0 address,undefined|thread [pytest arguments]" >&2
    exit 2
    ;;
esac
(($# == 0)) || chosen=("$@")

python=$(command -v "${PYTHON:-python}")
"$python" -c 'import pytest, hypothesis' # or say what is missing

# An environment of its own, in which the caller's packages come second: a line in a .pth file puts
# a directory on the path without what an editable install of fastact there would do.
rm -rf "$work/venv"
"$python" -m venv --without-pip "$work/venv"
"$python" - "$work/venv" <<'PY'
import site, sys, sysconfig
here = sysconfig.get_path("purelib", vars={"base": sys.argv[1]}, scheme="venv")
theirs = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
open(f"{here}/callers.pth", "w").write("\n".join(theirs) + "\n")
PY
# The environment's settings of instruction sets are meant for other builds, and would win.
CMAKE_ARGS="${CMAKE_ARGS:-} -DFASTACT_BUILD_ISAS=$isa" \
  "$python" -m pip --python "$work/venv/bin/python" install --quiet --no-deps --ignore-installed \
  "$root" -C build-dir="$work/build" -C install.strip=false -C cmake.define.FASTACT_SANITIZE="$kind" \
  -C cmake.define.FASTACT_CUDA=OFF

library() { # library NAME: the file that the compiler would link
  local file
  file=$("${CXX:-c++}" -print-file-name="lib$1.so")
  [[ $file == /* ]] || { echo "$0: the compiler has no lib$1.so" >&2; exit 1; }
  printf '%s' "$(readlink -f "$file")"
}

# Python is not instrumented, so the libraries are loaded ahead of it; libstdc++ with them, for its
# exceptions are thrown through them.
run=()
case $kind in
  address,undefined)
    preload="$(library asan) $(library ubsan) $(library stdc++)"
    # Leaks are another matter: Python and NumPy keep what they have until the process ends
    # (tests/runtime/test_faults.py counts ours). Memory that can't be had is NULL.
    settings=(
      ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0
      UBSAN_OPTIONS=print_stacktrace=1
      PYTHONMALLOC=malloc) # so that small Python objects have their guards, too
    ;;
  thread)
    preload="$(library tsan) $(library stdc++)"
    settings=(
      "TSAN_OPTIONS=suppressions=$root/tools/tsan.supp:ignore_noninstrumented_modules=1:exitcode=66:halt_on_error=1:die_after_fork=0:history_size=4")
    # ThreadSanitizer needs addresses that randomization of newer kernels takes.
    if setarch -R true 2>/dev/null; then run=(setarch -R); fi
    ;;
esac

instrumented() { # instrumented COMMAND...
  env -u PYTHONPATH "${settings[@]}" LD_PRELOAD="$preload" \
    "${run[@]}" "$work/venv/bin/python" "$@"
}

instrumented - <<'PY'
import fastact, pathlib, sys
assert pathlib.Path(fastact.__file__).is_relative_to(sys.prefix), fastact.__file__
PY
# A sanitizer's last words before it ends a process must not end in a buffer of pytest: a worker's
# errors go where ours go, and a worker that ends is a failure. Tests of threads have the machine for
# themselves.
workers=(-n auto --dist worksteal)
[[ $kind != thread ]] || workers=()
instrumented -m pytest -q -x "${workers[@]}" --capture=sys -p no:cacheprovider "${chosen[@]}"

read -ra fuzz <<< "${FUZZ---seconds 90}"
if [[ $kind == address,undefined && ${#fuzz[@]} != 0 && -e tools/fuzz.py && $# == 0 ]]; then
  instrumented tools/fuzz.py "${fuzz[@]}"
fi
