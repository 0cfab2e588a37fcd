"""The command line that the programs of the fuzzer share."""

from __future__ import annotations

import argparse
import json
import os
import random
from dataclasses import asdict
from functools import partial
from typing import Any


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """With the options that every program has; doc: its documentation."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, help="how many (default: as many as --seconds allow)")
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="run one case alone")
    parser.add_argument("--before", type=int, default=0, help="with --case: and so many before it")
    parser.add_argument("--family", default="all", help="activations, bias, reductions, ...")
    parser.add_argument("--op", default="all", help="one op alone, by its name")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="the summary as JSON, last")
    return parser


def run(options: argparse.Namespace, worker: Any, **settings: Any) -> int:
    """Do what the options ask for; the exit status.

    worker : the class that runs cases. settings : beside the seed, the family and the op.
    """
    from . import calls, campaign, processes

    if not calls.ops(options.family, options.op):
        raise SystemExit(f"no op of family {options.family!r} and name {options.op!r}")
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    chosen = campaign.Settings(seed, options.family, op=options.op, **settings)
    if options.case is not None:
        print(worker.case(chosen, options.case))
        first, count, jobs = max(options.case - options.before, 0), options.before + 1, 1
    else:
        endless = 10**12 if options.seconds < float("inf") else 10_000
        first, count, jobs = options.first, options.cases or endless, options.jobs
    print(f"{chosen.command} --first {first}", flush=True)
    made = processes.Campaign(
        chosen, worker, first, count, options.seconds, jobs, partial(print, flush=True)
    )
    made.run()
    print(made.report())
    if options.json:
        print(json.dumps({"seconds": made.seconds, **asdict(made.total)}))
    return 1 if made.total.failures else 0
