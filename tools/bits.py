#!/usr/bin/env python
"""Hashes of what every op gives, to compare one version of the library with another.

    python tools/bits.py                             # writes the table of this machine's results
    python tools/bits.py --against docs/results/bits.json

The calls are the fuzzer's first ones of a fixed seed: all dtypes, layouts, broadcasts, `out=`,
`accumulate=`, forward and backward, on every instruction set that the machine has. The exit status
is 1 where an op's hash differs. A fuzzer that draws other cases gives other hashes: record anew.

The numbers in the cases are drawn by NumPy, whose functions differ in the last place between
instruction sets: it is told to do without AVX-512, so that tables of two machines can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

# Before NumPy is imported.
os.environ["NPY_DISABLE_CPU_FEATURES"] = "AVX512F AVX512_SKX X86_V4 AVX512_ICL AVX512_SPR"
sys.path.insert(0, str(Path(__file__).resolve().parent))

SEED = 20_261_122


def table(cases: int) -> dict[str, dict[str, str]]:
    """Return the hash of the results of every op on every instruction set."""
    from fuzzing import campaign

    from fastact import _cpu

    campaign.quiet()
    settings = campaign.Settings(SEED)
    found: dict[str, dict[str, str]] = {}
    chosen = _cpu.isa()
    for isa in _cpu.supported_isas():
        _cpu.select_isa(isa)
        hashes: dict[str, hashlib.blake2b] = {}
        for number in range(cases):
            case = campaign.Case(settings, number)
            of_op = hashes.setdefault(case.op.name, hashlib.blake2b(digest_size=12))
            for digest in case.digests():
                of_op.update(digest)
        for op, of_op in hashes.items():
            found.setdefault(op, {})[isa] = of_op.hexdigest()
    _cpu.select_isa(chosen)
    return {op: found[op] for op in sorted(found)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=8000, help="on each instruction set")
    parser.add_argument("--against", type=Path, help="a table of before")
    given = parser.parse_args()
    if given.against is None:
        print(json.dumps({"cases": given.cases, "hashes": table(given.cases)}, indent=1))
        return 0
    before = json.loads(given.against.read_text())
    after = table(before["cases"])
    wrong = 0
    for op, hashes in before["hashes"].items():
        for isa in hashes.keys() & after.get(op, {}).keys():
            if hashes[isa] != after[op][isa]:
                print(f"{op} on {isa}: {hashes[isa]} before, {after[op][isa]} now")
                wrong += 1
    compared = sum(
        len(hashes.keys() & after.get(op, {}).keys()) for op, hashes in before["hashes"].items()
    )
    print(f"{compared} hashes of {len(before['hashes'])} ops compared: {wrong} differ")
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
