#!/usr/bin/env python
"""Random calls of every op, judged by the oracle and by repetition.

    python tools/fuzz.py --cases 100000 --seed 1        # this many, on all cores
    python tools/fuzz.py --seconds 90                   # a fresh seed, which is printed
    python tools/fuzz.py --seed 1 --case 4711           # one case once more
    python tools/fuzz.py --device emulated --cases 500  # the CUDA kernels on the emulated device

A case depends on the seed, its number, --family and --device alone. One that fails in a campaign
but not by itself depends on what ran before it: --before N runs the N cases before it as well.
The exit status is 1 where a promise did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, help="how many (default: as many as --seconds allow)")
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="run one case alone")
    parser.add_argument("--before", type=int, default=0, help="with --case: and so many before it")
    parser.add_argument("--family", default="all", help="activations, bias, reductions, ...")
    parser.add_argument("--device", choices=("cpu", "emulated"), default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--no-fresh", action="store_true", help="no second process without recorded calls"
    )
    parser.add_argument("--json", action="store_true", help="the summary as JSON, last")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--fresh-process", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    told = _arguments()
    from fuzzing import campaign

    if told.fresh_process:
        campaign.serve_fresh(campaign.Settings(**json.loads(told.fresh_process)))
        return 0
    if told.worker:
        settings = campaign.Settings(**json.loads(told.worker[0]))
        campaign.serve(campaign.Worker(settings), told.worker[1])
        return 0
    seed = random.SystemRandom().randrange(10**9) if told.seed is None else told.seed
    settings = campaign.Settings(seed, told.family, told.device, not told.no_fresh)
    if told.case is not None:
        print(campaign.Case(settings, told.case).request)
        first, count, jobs = max(told.case - told.before, 0), told.before + 1, 1
    else:
        endless = 10**12 if told.seconds < float("inf") else 10_000
        first, count, jobs = told.first, told.cases or endless, told.jobs
    print(f"{settings.command} --first {first}", flush=True)
    report = campaign.Campaign(
        settings, first, count, told.seconds, jobs, lambda text: print(text, flush=True)
    ).run()
    print("\n".join(report.lines()))
    if told.json:
        print(json.dumps({"seconds": report.seconds, **vars(report.total)}))
    return 1 if report.total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
