#!/usr/bin/env python
"""Calls with objects that lie, break, or change things while they are looked at.

    python tools/fuzz_hostile.py --cases 20000 --seed 1
    python tools/fuzz_hostile.py --seconds 60            # a fresh seed, which is printed
    python tools/fuzz_hostile.py --seed 1 --case 4711    # one case once more

Capsules of DLPack with any field wrong, `__array__`, `__array_ufunc__`, `__float__`, `__index__`
that raise or meddle, subclasses, masked arrays, foreign dtypes, lists that cannot be arrays,
tensors in states without memory. Each is to be refused by a TypeError, a ValueError or a
BufferError, or to be computed. The exit status is 1 where a promise did not hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests")]


def main() -> int:
    from fuzzing import hostile, options

    given = options.parser_of(__doc__).parse_args()
    return options.run(given, hostile.HostileWorker, fresh=False, program="fuzz_hostile.py")


if __name__ == "__main__":
    sys.exit(main())
