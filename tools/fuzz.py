#!/usr/bin/env python
"""Random calls of every op, judged by the oracle and by repetition.

    python tools/fuzz.py --cases 100000 --seed 1        # this many, on all cores
    python tools/fuzz.py --seconds 90                   # a fresh seed, which is printed
    python tools/fuzz.py --seed 1 --case 4711           # one case once more
    python tools/fuzz.py --op add_rms_norm --seconds 10
    python tools/fuzz.py --device emulated --cases 500  # the CUDA kernels on the emulated device
    python tools/fuzz.py --kind hostile --seconds 60    # objects that lie
    python tools/fuzz.py --kind derivatives --cases 500 # second derivatives and forward mode

A case depends on the seed, its number, --kind, --family, --op and --device alone. One that fails in
a campaign but not by itself depends on what ran before it: --before N runs the N cases before it as
well. The exit status is 1 where a promise did not hold.

Hostile calls get objects that lie, break, or change things: capsules of DLPack with any field
wrong, `__array__`, `__float__` or `__index__` that raise or meddle, subclasses, foreign dtypes,
tensors without memory. Each is refused by a TypeError, a ValueError or a BufferError, or it is
computed. Derivatives are of smooth values in float64, and are judged by differences.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("calls", "hostile", "derivatives")
    parser.add_argument("--kind", choices=kinds, default=kinds[0], help="of the cases")
    parser.add_argument("--cases", type=int, help="how many (default: as many as --seconds allow)")
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="run one case alone")
    parser.add_argument("--before", type=int, default=0, help="with --case: and so many before it")
    parser.add_argument("--family", default="all", help="activations, bias, reductions, ...")
    parser.add_argument("--op", default="all", help="one op alone, by its name")
    parser.add_argument("--device", choices=("cpu", "emulated"), default="cpu", help="of the calls")
    alone = "do not run the calls once more without recorded ones"
    parser.add_argument("--no-fresh", action="store_true", help=alone)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="the summary as JSON, last")
    return parser


def main() -> int:
    """Do what the options ask for; return the exit status."""
    options = _parser().parse_args()
    from fuzzing import calls, campaign, processes

    workers = {"hostile": "hostile.HostileWorker", "derivatives": "derivatives.DerivativesWorker"}
    module, _, name = workers.get(options.kind, "campaign.Worker").partition(".")
    worker = getattr(import_module(f"fuzzing.{module}"), name)
    if not calls.ops(options.family, options.op):
        raise SystemExit(f"no op of family {options.family!r} and name {options.op!r}")
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    fresh = options.kind == "calls" and not options.no_fresh
    of_ops = options.family, options.device, fresh, options.kind, options.op
    settings = campaign.Settings(seed, *of_ops)
    if options.case is not None:
        print(worker.case(settings, options.case))
        first, count, jobs = max(options.case - options.before, 0), options.before + 1, 1
    else:
        endless = 10**12 if options.seconds < float("inf") else 10_000
        first, count, jobs = options.first, options.cases or endless, options.jobs
    print(f"{settings.command} --first {first}", flush=True)
    say = partial(print, flush=True)
    made = processes.Campaign(settings, worker, first, count, options.seconds, jobs, say)
    made.run()
    print(made.report())
    if options.json:
        print(json.dumps({"seconds": made.seconds, **asdict(made.total)}))
    return 1 if made.total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
