#!/usr/bin/env bash
# The CPU's kernels, built for aarch64 and run under qemu, have the bits of x86-64-v3.
#
#   tools/aarch64_check.sh [DIRECTORY]     builds there, or in one that it removes
#
# tests/aarch64/hashes.cpp runs fixed inputs through every activation, sums, moments and norms and
# prints a hash a case; the two processors have to print the same. Python and OpenMP are not needed.
# On Debian: apt install g++-aarch64-linux-gnu qemu-user
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [[ -z $qemu ]] || ! command -v aarch64-linux-gnu-g++ > /dev/null; then
  echo "aarch64 under qemu: skipped, g++-aarch64-linux-gnu or qemu-user is not installed"
  exit 0
fi
if [[ $(uname -m) != x86_64 ]] || ! grep -qw fma /proc/cpuinfo || ! grep -qw avx2 /proc/cpuinfo; then
  echo "aarch64 under qemu: skipped, this processor is no x86-64-v3 to compare with"
  exit 0
fi

built=${1:-$(mktemp -d)}
[[ -n ${1:-} ]] || trap 'rm -rf "$built"' EXIT
mkdir -p "$built"

# The flags of CMakeLists.txt. Kernels are for one instruction set, everything else is for the
# architecture's least; all files of a processor are compiled side by side.
flags="$(sed -n 's/^set(FASTACT_FLAGS \(.*\))$/\1/p' "$root/CMakeLists.txt")"
[[ -n $flags ]] || { echo "CMakeLists.txt has no FASTACT_FLAGS" >&2; exit 1; }
compile() { # compile SOURCE: by what build exports
  local isa=(-DFASTACT_ISA=dispatch "-DFASTACT_ISAS=FASTACT_ISA_ENTRY($isa_name)")
  case $1 in
    *kernels.cpp) read -ra isa <<< "-DFASTACT_ISA=$isa_name $isa_flags" ;;
  esac
  # shellcheck disable=SC2086
  $compiler -std=c++17 $flags -I"$root/src" "${isa[@]}" -c "$1" -o "$out/${1//\//_}.o"
}
build() { # build NAME COMPILER ISA FLAGS: NAME/hashes
  export root out=$built/$1 compiler=$2 isa_name=$3 isa_flags=$4 flags
  export -f compile
  mkdir -p "$out"
  find "$root/src/cpu" "$root/tests/aarch64/hashes.cpp" -name '*.cpp' -print0 |
    xargs -0 -n 1 -P "$(nproc)" bash -euo pipefail -c 'compile "$1"' compile
  "$compiler" "$out"/*.o -o "$out/hashes"
}
build x86-64-v3 "${CXX:-g++}" v3 "-march=x86-64-v3"
build aarch64 aarch64-linux-gnu-g++ baseline ""

"$built/x86-64-v3/hashes" > "$built/x86-64-v3.txt"
"$qemu" -L /usr/aarch64-linux-gnu "$built/aarch64/hashes" > "$built/aarch64.txt"
if ! cmp -s "$built/x86-64-v3.txt" "$built/aarch64.txt"; then
  echo "aarch64 under qemu: these cases have other bits than on x86-64-v3" >&2
  diff "$built/x86-64-v3.txt" "$built/aarch64.txt" | sed -n 's/^> \(.*\) [0-9a-f]*$/  \1/p' >&2
  exit 1
fi
echo "aarch64 under qemu: $(wc -l < "$built/aarch64.txt") cases with the bits of x86-64-v3"
