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

import argparse
import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, help="how many (default: as many as --seconds allow)")
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="run one case alone")
    parser.add_argument("--before", type=int, default=0, help="with --case: and so many before it")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="the summary as JSON, last")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    told = parser.parse_args()
    from fuzzing import campaign, hostile

    if told.worker:
        settings = campaign.Settings(**json.loads(told.worker[0]))
        campaign.serve(hostile.HostileWorker(settings), told.worker[1])
        return 0
    seed = random.SystemRandom().randrange(10**9) if told.seed is None else told.seed
    settings = campaign.Settings(seed, fresh=False, program="fuzz_hostile.py")
    if told.case is not None:
        print(hostile.HostileCase(settings, told.case))
        first, count, jobs = max(told.case - told.before, 0), told.before + 1, 1
    else:
        endless = 10**12 if told.seconds < float("inf") else 10_000
        first, count, jobs = told.first, told.cases or endless, told.jobs
    print(f"{settings.command} --first {first}", flush=True)
    report = hostile.HostileCampaign(
        settings, first, count, told.seconds, jobs, lambda text: print(text, flush=True)
    ).run()
    print("\n".join(report.lines()))
    if told.json:
        print(json.dumps({"seconds": report.seconds, **vars(report.total)}))
    return 1 if report.total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
