"""The command line: ``python -m fastact [info | check | bench]``."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import _cpu, terminal
from .measure.arguments import count, counts, names, seconds
from .measure.peers import JAX, NUMPY, TORCH, dtype_named
from .ops.engine.op import aliases, ops
from .runtime import config
from .runtime.threads import get_num_threads
from .terminal import say, styled

_SIZES = (1024, 50_000, 1_000_000)
_DIRECTIONS = ("forward", "backward")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _chosen(
    parser: argparse.ArgumentParser, what: str, chosen: Sequence[str], known: Sequence[str]
) -> tuple[str, ...]:
    """Return the names if all are known; otherwise exit with the nearest known ones."""
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            parser.error(f"unknown {what} {name!r}; {hint}")
    return tuple(chosen)


def _info(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if args.json:
        print(json.dumps(config.config(), indent=2))
    else:
        config.show_config()
    return 0


def _ops(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Any]:
    families: dict[str, list[str]] = {}
    for op in ops.values():
        families.setdefault(op.family, []).append(op.name)
    named = {**ops, **aliases}
    words = _chosen(parser, "op", args.ops, [*named, *families]) or tuple(ops)
    every = [named[name].name for word in words for name in families.get(word, [word])]
    return [ops[name] for name in dict.fromkeys(every)]


def _check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .check import check as _check
    from .check import common

    isas = _chosen(parser, "instruction set", args.isa, _cpu.supported_isas())
    options = common.Options(
        isas=isas or _cpu.supported_isas(),
        exhaustive=args.exhaustive,
        stride=args.stride,
        peers=_chosen(parser, "peer", args.peers, ("numpy", "torch")),
    )
    return 0 if _check.check(_ops(args, parser), options, args.markdown, args.plot) else 1


def _bench(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .bench import bench, plot

    options = bench.Settings(
        sizes=args.sizes,
        dtypes=tuple(map(dtype_named, _chosen(parser, "dtype", args.dtypes, _DTYPES))),
        directions=_chosen(parser, "direction", args.directions, _DIRECTIONS),
        peers=_chosen(parser, "peer", args.peers, bench.PEERS),
        threads=args.threads or (get_num_threads(),),
        seconds=args.seconds,
    )
    rows = bench.bench(_ops(args, parser), options, args.json)
    if args.plot is not None and rows:
        processor = str(config.config()["processor"])
        for picture in plot.plot(rows, processor, args.plot):
            print(f"drawn: {picture}")
    return 0


def _overview() -> int:
    """Print information, a short check and a short benchmark, in less than a minute."""
    from .check import check as _check
    from .check import common

    config.show_config()
    say("", styled("Accuracy", "bold") + " (a short check; python -m fastact check does more)")
    options = common.Options(isas=_cpu.supported_isas(), stride=21, float64_points=200)
    fine = _check.overview(list(ops.values()), options)
    say("", styled("Speed", "bold") + " (a short benchmark; python -m fastact bench does more)")
    main(["bench", "mish", "--peers", f"{NUMPY},{TORCH}", "--seconds", "0.5"])
    return 0 if fine else 1


_EXAMPLES = {
    "": """\
examples:
  python -m fastact                    show the build, a short check and a short benchmark
  python -m fastact info               show problems, each with its cure, and the build
  python -m fastact check mish         show its errors on each instruction set
  python -m fastact bench layer_norm   show its time beside NumPy and torch""",
    "info": """\
examples:
  python -m fastact info
  python -m fastact info --json | jq .isa""",
    "check": """\
examples:
  python -m fastact check                     check all ops
  python -m fastact check mish gelu --plot errors.png --peers numpy,torch
  python -m fastact check norms --isa v3      check a family on one instruction set
  python -m fastact check mish --exhaustive   check all 2**32 inputs, which takes minutes""",
    "bench": """\
examples:
  python -m fastact bench mish gelu --plot speed.png
  python -m fastact bench norms --dtypes bfloat16 --threads 1,2
  python -m fastact bench mish --sizes 64,1e6 --peers numpy --directions forward
  python -m fastact bench softmax --json softmax.json""",
}


def _parser() -> argparse.ArgumentParser:
    def described(command: str) -> dict[str, Any]:
        return {
            "epilog": _EXAMPLES[command],
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }

    parser = argparse.ArgumentParser(
        prog="python -m fastact",
        description="Show what was built, how accurate it is, and how fast.\n"
        "Without a command, show all three in less than a minute.",
        **described(""),
    )
    commands = parser.add_subparsers(dest="command", metavar="{info,check,bench}")

    def added(name: str, run: Any, text: str, **more: Any) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name, help=text, **described(name), **more
        )
        command.set_defaults(run=run, parser=command)
        return command

    info = added("info", _info, "show problems, version, instruction sets and threads")
    info.add_argument("--json", action="store_true", help="print JSON")
    text = "check accuracy against an oracle; exit with status 1 if a bound is violated"
    check = added("check", _check, text)
    _add_check(check)
    text, usage = "measure speed beside a copy and other libraries", "[op ...] [options]"
    bench = added("bench", _bench, text, usage=f"python -m fastact bench {usage}")
    _add_bench(bench)
    for each in (check, bench):
        text = "names of ops or families; by default all ops"
        each.add_argument("ops", nargs="*", metavar="op", help=text)
    return parser


def _add_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--exhaustive", action="store_true", help="check all 2**32 float32 inputs and longer sums")
    add("--stride", type=count, default=1, metavar="K", help="check only every K-th input")
    for option, example, text in (
        ("--isa", "v2,v3", "check only these instruction sets"),
        ("--peers", "numpy,torch", "also measure errors of these libraries"),
    ):
        add(option, type=names, default=(), metavar=example, help=text)
    add("--markdown", type=Path, metavar="F", help="write the tables to F")
    text = "draw errors beside their bounds, for activations over x, for other ops by case"
    add("--plot", type=Path, metavar="F.png", help=text)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add, text = parser.add_argument, "approximate numbers of elements"
    add("--sizes", type=counts, default=_SIZES, metavar="64,1e6", help=text)
    for option, default, known in (
        ("--dtypes", _DTYPES[:1], _DTYPES),
        ("--directions", _DIRECTIONS, _DIRECTIONS),
        ("--peers", (NUMPY, TORCH, JAX), (NUMPY, TORCH, JAX)),
    ):
        add(option, type=names, default=default, metavar="W,W", help=", ".join(known))
    add("--threads", type=counts, metavar="1,2", help="numbers of threads, one after the other")
    add("--seconds", type=seconds, default=0.3, metavar="S", help="approximate time for each row")
    add("--json", type=Path, metavar="F", help="write machine and rows to F")
    add("--plot", type=Path, metavar="F.png", help="draw all speeds beside a copy's")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    args = _parser().parse_args(arguments)
    if args.command is None:
        return _overview()
    if getattr(args, "plot", None) is not None:  # before the minutes are spent
        terminal.require("matplotlib", "--plot")
    status: int = args.run(args, args.parser)
    return status


def run() -> int:
    """Run `main`, and exit as a shell expects when interrupted or when the reader has gone."""
    try:
        return main()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough; say nothing at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
