#!/usr/bin/env python
"""Random calls of every op, judged by the oracle and by repetition.

    python tools/fuzz.py --cases 100000 --seed 1        # this many, on all cores
    python tools/fuzz.py --seconds 90                   # a fresh seed, which is printed
    python tools/fuzz.py --seed 1 --case 4711           # one case once more
    python tools/fuzz.py --op add_rms_norm --seconds 10
    python tools/fuzz.py --device emulated --cases 500  # the CUDA kernels on the emulated device

A case depends on the seed, its number, --family, --op and --device alone. One that fails in a
campaign but not by itself depends on what ran before it: --before N runs the N cases before it as
well.
The exit status is 1 where a promise did not hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    from fuzzing import campaign, options

    parser = options.parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "emulated"), default="cpu")
    parser.add_argument(
        "--no-fresh", action="store_true", help="no second process without recorded calls"
    )
    given = parser.parse_args()
    fresh = not given.no_fresh
    return options.run(given, campaign.Worker, device=given.device, fresh=fresh)


if __name__ == "__main__":
    sys.exit(main())
