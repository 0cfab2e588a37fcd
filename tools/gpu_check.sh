#!/usr/bin/env bash
# Everything that only a GPU can tell, by one command and without the network.
#
#   tools/gpu_check.sh [build|test|sanitize|bits|bench|all] ... [--quick] [--only WORDS]
#                      [--out DIR] [--work DIR] [--wheel FILE] ... [--arch A]
#   tools/gpu_check.sh quarter [--seconds N] [--jobs N] ...
#
#   build      installs into an environment of its own, with the CUDA extension for this machine's GPU
#   test       the tests that run on a GPU
#   sanitize   memcheck, racecheck and initcheck of every kernel (tests/devices/test_every_kernel.py)
#   bits       every float32 input on the GPU against the CPU
#   bench      the benchmark; writes NAME.json, NAME.md and NAME_float32.png (and one of each other
#              dtype), NAME being the GPU's
#   all        each of them, in this order; the default
#   checks     test, sanitize and bits at once, side by side: nothing of them is timed
#   quarter    for whoever has a GPU for a quarter of an hour: build, checks, then the benchmark alone,
#              the most telling rows first, beside torch and Liger; the pages list what was not
#              reached
#
#   --quick    fewer inputs and sizes: some minutes for all; the files are NAME_quick.*
#   --only W   these ops or families alone: "norms gates"; of tests the folders of these families; the
#              files are the same
#   --out DIR  where results and the log NAME.log go; default: docs/results/gpu
#   --wheel F  instead of building, install this wheel, of fastact or fastact-cuda, which was built
#              elsewhere for the python of here; given several times, further ones that are lacking
#   --arch A   build for this architecture (90) in the place of the GPU's own: no GPU is asked
#   --seconds N  of quarter, in all (900)
#   --jobs N   steps of checks at a time (as many as there are processors, 16 at most)
#   --work DIR what is built; parts that are run one by one share it; default: under $TMPDIR
#
# A part ends after PART_SECONDS (540). All but the build stop in time by themselves, write what there
# is, and go on with it when they are run again on this machine and this commit: test, sanitize and
# bits in steps (tools/gpu_steps.py), whose outcomes stand in NAME_checks.json and NAME_checks.md; the
# benchmark row by row, a type after the other, float32 first. The exit status is 1 if a part failed,
# 2 for a bad word, and 3 if only steps or rows are left:
#
#   for part in build test sanitize bits bench; do
#     until tools/gpu_check.sh $part; do (($? == 3)) || break; done
#   done
#
# Needed: a GPU, nvcc, a C++17 compiler, compute-sanitizer, and a python3 (or $PYTHON) that has
# scikit-build-core, cython, pybind11, cmake, ninja, numpy, torch with CUDA, pytest, hypothesis,
# mpmath, ml_dtypes, threadpoolctl. Missing packages are named, and their parts fail; without matplotlib
# there is no picture, and without liger-kernel (and triton) that peer is named as absent: no more.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
self=$root/tools/$(basename "${BASH_SOURCE[0]}")
python=${PYTHON:-python3}
out=$root/docs/results/gpu
work=${TMPDIR:-/tmp}/fastact-gpu-check
limit=${PART_SECONDS:-540}
left=3 # the exit status of a part that is to be run again
quick=0
only=
wheels=()
arch=native
budget=0 # seconds for all parts together; 0: each has its limit
telling=${GPU_CHECK_TELLING:-0}
jobs=$(nproc 2>/dev/null || echo 1)
((jobs <= 16)) || jobs=16 # each has a context on the GPU
parts=()

usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

while (($#)); do
  case $1 in
    build | test | sanitize | bits | checks | bench) parts+=("$1") ;;
    quarter) parts+=(build checks bench) telling=1 ;;
    all) parts+=(build test sanitize bits bench) ;;
    --quick) quick=1 ;;
    --out | --work | --only | --wheel | --arch | --seconds | --jobs)
      (($# > 1)) || { echo "gpu_check: $1 needs a word" >&2; exit 2; }
      case $1 in
        --out) out=$2 ;;
        --work) work=$2 ;;
        --only) only=$2 ;;
        --arch) arch=$2 ;;
        --wheel)
          [[ -f $2 ]] || { echo "gpu_check: there is no wheel '$2'" >&2; exit 2; }
          wheels+=("$(realpath "$2")")
          ;;
        *)
          [[ $2 =~ ^[1-9][0-9]*$ ]] || { echo "gpu_check: $1 needs a number" >&2; exit 2; }
          case $1 in --seconds) budget=$2 ;; --jobs) jobs=$2 ;; esac
          ;;
      esac
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu_check: unknown word '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
done
((telling == 0 || budget)) || budget=900
((${#parts[@]})) || parts=(build test sanitize bits bench)

mkdir -p "$out" "$work" || exit 1
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
env=$work/env
cd "$root" || exit 1

# The caller's settings must not change what is tested, and pip must not look for the network.
for name in "${!FASTACT_@}"; do unset "$name"; done
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

missing() { # missing WHAT WHY: names it, and fails
  echo "missing: $1 ($2)"
  return 1
}

has_program() { # has_program NAME WHY
  command -v "$1" >/dev/null || missing "$1" "$2"
}

has_modules() { # has_modules WHY MODULE ...: names all that cannot be found
  local why=$1 module fine=0
  shift
  for module in "$@"; do
    "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$module'))" ||
      { missing "the Python package $module" "$why"; fine=1; }
  done
  return "$fine"
}

has_gpu() { # the installed fastact and torch both find one
  "$python" - <<'PYTHON'
import sys
import torch
from fastact.interop import devices

why = devices.cuda_why()
if not why and not torch.cuda.is_available():
    why = f"torch {torch.__version__} finds none"
if why:
    print(f"missing: a GPU ({why})")
sys.exit(bool(why))
PYTHON
}

installed() { # the build of an earlier part, and not another that python has
  local found
  [[ -x $env/bin/python ]] ||
    missing "an installed fastact" "run tools/gpu_check.sh build first" || return 1
  python=$env/bin/python
  found=$("$python" -c 'import fastact; print(*fastact.__path__)') || return 1
  [[ $found == "$env"/* ]] ||
    missing "a python without another fastact" "it finds the one in $found"
}

new_env() {
  rm -rf "$env"
  # python may be of a virtual environment itself, whose packages --system-site-packages would not
  # show: they are named by their paths.
  "$python" -m venv --without-pip "$env" || return 1
  "$python" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
    >"$(packages)/seen.pth"
}

packages() { # where the environment has its own
  "$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

unpack_wheels() { # by pip, which refuses another python's; a bare machine may have none
  if "$python" -c 'import pip' 2>/dev/null; then
    "$python" -m pip --python "$env/bin/python" install --no-deps --no-compile "${wheels[@]}"
    return
  fi
  local wheel
  for wheel in "${wheels[@]}"; do
    "$env/bin/python" -m zipfile -e "$wheel" "$(packages)" || return 1
  done
}

build() {
  local fine=0
  if ((${#wheels[@]})); then
    new_env && unpack_wheels || return 1
    installed && "$python" -m fastact info && has_gpu
    return
  fi
  has_program "${CUDACXX:-nvcc}" "compiles the CUDA extension" || fine=1
  has_program "${CXX:-c++}" "compiles the CPU library" || fine=1
  has_modules "builds fastact" pip scikit_build_core Cython pybind11 numpy || fine=1
  "$python" - <<'PYTHON' || fine=1
import pathlib, sys, sysconfig

header = pathlib.Path(sysconfig.get_paths()["include"], "Python.h")
if not header.exists():
    print("missing: Python.h (Python's headers, to build extensions)")
sys.exit(not header.exists())
PYTHON
  ((fine == 0)) && new_env || return 1
  "$python" -m pip --python "$env/bin/python" install --no-build-isolation --no-deps --no-compile \
    -C build-dir="$work/build" -C cmake.define.FASTACT_CUDA=ON \
    -C cmake.define.CMAKE_CUDA_ARCHITECTURES="$arch" . || return 1
  installed && "$python" -m fastact info && has_gpu
}

in_steps() { # in_steps PART [WORD ...]: in what is kept back, a step that is over time is ended
  local words=()
  ((quick == 0)) || words=(--quick)
  # shellcheck disable=SC2206
  [[ -z $only ]] || words+=(--only $only)
  "$python" tools/gpu_steps.py "$1" --json "${file}_checks.json" --markdown "${file}_checks.md" \
    --stop-after "$((limit > 90 ? limit - 30 : limit))" ${words[@]+"${words[@]}"} "${@:2}"
}

checks() {
  installed && has_gpu || return 1
  has_modules "runs the tests" pytest hypothesis mpmath ml_dtypes threadpoolctl torch || return 1
  has_program compute-sanitizer "checks memory accesses; it comes with the CUDA toolkit"
  in_steps checks --jobs "$jobs" # the sanitizers' steps fail without it
}

run_tests() {
  installed && has_gpu || return 1
  has_modules "runs the tests" pytest hypothesis mpmath ml_dtypes threadpoolctl torch || return 1
  in_steps test
}

sanitize() {
  installed && has_gpu || return 1
  has_program compute-sanitizer "checks memory accesses; it comes with the CUDA toolkit" || return 1
  in_steps sanitize
}

bits() {
  installed && has_gpu || return 1
  in_steps bits
}

bench() {
  installed && has_gpu || return 1
  local status=0 words=()
  if ((quick)); then
    words+=(--sizes 33554432 --dtypes "float32,bfloat16" --peers torch)
  elif ((telling)); then # torch.compile takes seconds a row
    words+=(--telling-first --seconds 0.05 --peers torch,liger)
  fi
  # In what it keeps back, the last row ends and the pictures are drawn. torch.compile may hang.
  # shellcheck disable=SC2086
  timeout "$((limit > 90 ? limit - 30 : limit))" \
    "$python" -m fastact bench $only --device cuda --json "$file.json" --markdown "$file.md" \
    --resume --stop-after "$((limit > 90 ? limit - 80 : limit))" ${words[@]+"${words[@]}"} ||
    status=$?
  ((status != 124)) || status=$left # the next run goes on behind what has been written
  if [[ -s $file.json ]] && has_modules "draws the picture" matplotlib; then
    "$python" -m fastact bench --device cuda --from "$file.json" --plot "$file.png" |
      grep '^drawn: '
    ((PIPESTATUS[1] == 0)) || status=1 # nothing was drawn
  fi
  return "$status"
}

gpu_name() { # NVIDIA H200 -> h200
  local found
  found=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
  found=$(tr '[:upper:]' '[:lower:]' <<<"${found:-unknown}" | tr -cs 'a-z0-9\n' '_')
  echo "${found#nvidia_}"
}

name=$(gpu_name)
log=$out/$name.log
file=$out/$name # and more words
((quick == 0)) || file+=_quick
home=$("$python" -c 'import sys; print(sys.prefix)')

without_paths() { # where this machine keeps things is nobody's business
  sed -u -e "s|$work|WORK|g" -e "s|$root|.|g" -e "s|$home|PYTHON|g" -e "s|${HOME:-/root}|HOME|g"
}

# Each part runs in a process of its own, so that one that hangs can be ended.
if [[ ${GPU_CHECK_PART:-} ]]; then
  case $GPU_CHECK_PART in
    build) build ;;
    test) run_tests ;;
    sanitize) sanitize ;;
    bits) bits ;;
    checks) checks ;;
    bench) bench ;;
  esac
  exit
fi

again=(--out "$out" --work "$work" --only "$only" --arch "$arch" --jobs "$jobs")
((quick == 0)) || again+=(--quick)
for wheel in ${wheels[@]+"${wheels[@]}"}; do again+=(--wheel "$wheel"); done
# The word itself would bring its parts along.
export GPU_CHECK_TELLING=$telling

seconds_for() { # seconds_for PART: of what is left, where there is a budget
  local rest=$((budget - SECONDS))
  ((budget)) || { echo "$limit"; return; }
  [[ $1 != checks ]] || rest=$((rest * 2 / 5)) # what is measured gets the others
  echo "$((rest > 0 ? rest : 0))"
}

verdicts=()
status=0
for part in "${parts[@]}"; do
  started=$SECONDS
  limit=$(seconds_for "$part")
  if ((limit == 0)); then
    ((status)) || status=$left
    verdicts+=("$part: not begun: no time was left")
    continue
  fi
  {
    printf '\n== %s\n' "$part"
    GPU_CHECK_PART=$part PART_SECONDS=$limit timeout --kill-after=10 "$limit" \
      bash "$self" "${again[@]}" "$part" 2>&1
  } | without_paths | tee -a "$log"
  result=${PIPESTATUS[0]}
  case $result in
    0) verdict=passed ;;
    "$left") verdict="not done: run it again for what is left" ;;
    124 | 137) verdict="FAILED: not done after $limit s" ;;
    *) verdict=FAILED ;;
  esac
  if ((result == left)); then
    ((status)) || status=$left
  elif ((result)); then
    status=1
  fi
  verdicts+=("$part: $verdict ($((SECONDS - started)) s)")
done
{
  printf '\n== %s\n' "$name, $(git describe --always --dirty 2>/dev/null || echo 'no git')"
  printf '%s\n' "${verdicts[@]}"
} | without_paths | tee -a "$log"
exit $status
