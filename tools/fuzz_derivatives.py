#!/usr/bin/env python
"""Second derivatives and forward mode of random calls of every op, judged by differences.

    python tools/fuzz_derivatives.py --cases 5000 --seed 1
    python tools/fuzz_derivatives.py --seconds 60            # a fresh seed, which is printed
    python tools/fuzz_derivatives.py --seed 1 --case 4711    # one case once more

Options and shapes are those that fuzz.py draws. Values are smooth and in float64, so that
differences are exact enough. The exit status is 1 where a promise did not hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests")]


def main() -> int:
    from fuzzing import derivatives, options

    given = options.parser_of(__doc__).parse_args()
    worker = derivatives.DerivativesWorker
    return options.run(given, worker, fresh=False, program="fuzz_derivatives.py")


if __name__ == "__main__":
    sys.exit(main())
