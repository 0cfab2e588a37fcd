"""The command line: ``python -m fastact [info | check | bench]``."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _cpu, terminal
from .bench.workloads.work import Options, dtype_named
from .measure import arguments, shapes
from .measure.peers import GPU_PEERS, NUMPY, ON_REQUEST, PEERS, TORCH
from .ops.engine.op import aliases, ops
from .runtime import config
from .runtime.threads import get_num_threads
from .terminal import say, styled

if TYPE_CHECKING:
    from .bench import cpu_rows
    from .bench.cuda_rows import GpuResults

_SMALL_SIZES = (64,)
_SIZES = (64, 1024, 50_000, 1_000_000, 16_000_000)
_ALL_SECONDS = 0.05  # for a row, where all of them are measured
_PANELS = 4  # rows of them in a picture; more ops are drawn as a map
_ROWS_ARE_LEFT = 3  # exit status
_DIRECTIONS = ("forward", "backward")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _chosen(
    parser: argparse.ArgumentParser, what: str, names: Sequence[str], known: Sequence[str]
) -> tuple[str, ...]:
    """The names, if all are known; else leave with the nearest known ones."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            parser.error(f"unknown {what} {name!r}; {hint}")
    return tuple(names)


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
    names = [named[name].name for word in words for name in families.get(word, [word])]
    return [ops[name] for name in dict.fromkeys(names)]


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
    if args.plot is not None:  # ask for what is missing before the minutes are spent
        terminal.require("matplotlib", "--plot")
    return 0 if _check.check(_ops(args, parser), options, args.markdown, args.plot) else 1


def _bench(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if args.directions is not None:
        args.directions = _chosen(parser, "direction", args.directions, _DIRECTIONS)
    if args.dtypes is not None:
        args.dtypes = _chosen(parser, "dtype", args.dtypes, _DTYPES)
    if args.plot is not None:  # ask for what is missing before the minutes are spent
        terminal.require("matplotlib", "--plot")
    return (_bench_on_gpu if args.device == "cuda" else _bench_on_cpu)(args, parser)


def _refuse(
    args: argparse.Namespace, parser: argparse.ArgumentParser, beside: str, *options: str
) -> None:
    """Leave if an option is given for which another has no use."""
    for option in options:
        if getattr(args, option) is not None:
            parser.error(f"--{option.replace('_', '-')} does not go with {beside}")


_MEASURING = (
    "sizes",
    "shapes",
    "seconds",
    "small",
    "stop_after",
    "telling_first",
    "resume",
    "list",
    "results",
    "json",
)


def _shown(args: argparse.Namespace, parser: argparse.ArgumentParser) -> cpu_rows.CpuResults:
    """What a file has of the ops, types, directions, peers and threads that were named."""
    from .bench import cpu, cpu_rows

    _refuse(args, parser, "--from", *_MEASURING)
    names = {op.name for op in _ops(args, parser)}
    try:
        found = cpu_rows.read(args.source)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found.rows = {
        key: row
        for key, row in found.rows.items()
        if row.op in names
        and row.dtype in (args.dtypes or _DTYPES)
        and row.direction in (args.directions or _DIRECTIONS)
        and row.threads in (args.threads or (row.threads,))
    }
    if args.peers is not None:
        known = (*PEERS, *ON_REQUEST)
        others = {*known} - {*_chosen(parser, "peer", args.peers, known)}
        found.rows = {key: row.but(others) for key, row in found.rows.items()}
    cpu.show(found.sorted())
    return found


def _options(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    """What to measure on the CPU."""
    peers = (NUMPY, TORCH) if args.small else PEERS
    if args.small:
        _refuse(args, parser, "--small", "sizes", "shapes")
        args.sizes, args.shapes = _SMALL_SIZES, (shapes.TINY,)
    return Options(
        sizes=args.sizes or _SIZES,
        dtypes=tuple(map(dtype_named, args.dtypes or (_DTYPES if args.all else _DTYPES[:1]))),
        directions=args.directions or _DIRECTIONS,
        peers=_chosen(
            parser, "peer", peers if args.peers is None else args.peers, (*PEERS, *ON_REQUEST)
        ),
        threads=args.threads or (get_num_threads(),),
        shapes=_chosen(parser, "shape", args.shapes or (), shapes.names()),
        seconds=args.seconds or (_ALL_SECONDS if args.all else Options.seconds),
        small=bool(args.small),
        stop_after=args.stop_after or math.inf,
    )


def _measured(args: argparse.Namespace, parser: argparse.ArgumentParser) -> cpu_rows.CpuResults:
    """Measure, and return the results."""
    from .bench import cpu

    options = _options(args, parser)
    if args.resume and args.json is None:
        parser.error("--resume goes on with the file of --json")
    try:
        return cpu.bench(_ops(args, parser), options, args.json, goes_on=bool(args.resume))
    except ValueError as error:  # the file is another program's
        parser.error(str(error))


def _list(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .bench import cpu, estimate
    from .measure import peers

    options = _options(args, parser)
    there = [*peers.versions(options.peers)]
    print(f"beside {', '.join(there)}; {options.seconds:g} s for each row and more")
    tables = cpu.all_tables(_ops(args, parser), options)
    print(estimate.listing(tables, there, options.seconds))
    return 0


def _into_results(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """--results stands for this kind of machine's files in a folder, and going on with them."""
    from .bench import cpu_rows

    _refuse(args, parser, "--results", "json", "scoreboard")
    folder = args.results / cpu_rows.machine_name(config.config())
    folder.mkdir(parents=True, exist_ok=True)
    args.json, args.scoreboard, args.resume = folder / "bench.json", folder / "scoreboard.md", True


def _bench_on_cpu(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .bench import plot, plot_map, report, scoreboard

    _refuse(args, parser, "the CPU", "telling_first")
    if args.list:
        return _list(args, parser)
    if args.results is not None and args.source is None:
        _into_results(args, parser)
    results = (_measured if args.source is None else _shown)(args, parser)
    rows, processor = results.sorted(), str(results.facts["processor"])
    if args.markdown is not None and rows:
        args.markdown.write_text(report.markdown(rows, processor), encoding="utf-8")
    if args.scoreboard is not None and rows:
        page = scoreboard.scoreboard(results.facts, rows, results.left)
        args.scoreboard.write_text(page, encoding="utf-8")
    if args.plot is not None and rows:
        many = len({(row.op, row.dtype) for row in rows}) > _PANELS
        for picture in (plot_map if many else plot).plot(rows, processor, args.plot):
            print(f"drawn: {picture}")
    return _ROWS_ARE_LEFT if results.left and args.source is None else 0


def _measured_on_gpu(args: argparse.Namespace, parser: argparse.ArgumentParser) -> GpuResults:
    """The rows and the machine, of a file or measured now."""
    from .bench import cuda, cuda_report, cuda_rows

    chosen = _ops(args, parser)
    if args.source is not None:
        measuring = ("sizes", "dtypes", "directions", "peers", "seconds", "stop_after", "resume")
        _refuse(args, parser, "--from", *measuring, "telling_first", "json")
        try:
            results = cuda_rows.read(args.source, chosen)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        cuda_report.print_again(results)
        if args.markdown is not None:
            args.markdown.write_text(cuda_report.markdown(results), encoding="utf-8")
        return results
    if args.resume and args.json is None:
        parser.error("--resume goes on with the file of --json")
    dtypes = args.dtypes or _DTYPES
    options = cuda.Options(
        sizes=args.sizes,
        dtypes=dtypes,
        directions=args.directions or _DIRECTIONS,
        peers=_chosen(parser, "peer", GPU_PEERS if args.peers is None else args.peers, GPU_PEERS),
        seconds=args.seconds or cuda.Options.seconds,
        # Nobody who did not ask for it waits for it to compile every row.
        compiled=dtypes if args.peers is not None else ("float32", "bfloat16"),
        stop_after=args.stop_after or math.inf,
        goes_on=bool(args.resume),
        telling_first=bool(args.telling_first),
    )
    return cuda.bench(chosen, options, args.json, args.markdown)


def _bench_on_gpu(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .bench import cuda_plot

    only_cpu = ("threads", "shapes", "small", "list", "results", "scoreboard")
    _refuse(args, parser, "--device cuda", *only_cpu)
    results = _measured_on_gpu(args, parser)
    if args.plot is not None:
        for picture in cuda_plot.plot(results, args.plot):
            print(f"drawn: {picture}")
    return 1 if results.problems else _ROWS_ARE_LEFT if results.left else 0


def _overview() -> int:
    """Information, a short check and a short benchmark: less than a minute."""
    import numpy as np

    from .bench import cpu
    from .check import check as _check
    from .check import common

    config.show_config()
    say("", styled("Accuracy", "bold") + " (a short check; python -m fastact check does more)")
    options = common.Options(isas=_cpu.supported_isas(), stride=21, float64_points=200)
    fine = _check.overview(list(ops.values()), options)
    say("", styled("Speed", "bold") + " (a short benchmark; python -m fastact bench does more)")
    cpu.bench(
        [ops["mish"]],
        Options(
            sizes=(1024, 50_000, 1_000_000),
            dtypes=(np.dtype(np.float32),),
            directions=_DIRECTIONS,
            peers=("numpy", "torch"),
            threads=(get_num_threads(),),
            seconds=0.5,
        ),
    )
    return 0 if fine else 1


_EXAMPLES = {
    "": """\
examples:
  python -m fastact                    what is here, how accurate, how fast
  python -m fastact info               what is wrong first, with its cure
  python -m fastact check mish         its errors, on each instruction set
  python -m fastact bench layer_norm   its time, beside NumPy and torch""",
    "info": """\
examples:
  python -m fastact info
  python -m fastact info --json | jq .isa""",
    "check": """\
examples:
  python -m fastact check                     all ops
  python -m fastact check mish gelu --plot errors.png --peers numpy,torch
  python -m fastact check norms --isa v3      a family, on one instruction set
  python -m fastact check mish --exhaustive   all 2**32 inputs: minutes""",
    "bench": """\
examples:
  python -m fastact bench mish gelu --plot speed.png
  python -m fastact bench norms --dtypes bfloat16 --threads 1,2
  python -m fastact bench mish --sizes 64,1e6 --peers numpy --directions forward
  python -m fastact bench --all --json all.json --stop-after 600
  python -m fastact bench --from all.json --plot all.png   nothing is measured""",
}


def _parser() -> argparse.ArgumentParser:
    def described(command: str) -> dict[str, Any]:
        return {
            "epilog": _EXAMPLES[command],
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }

    parser = argparse.ArgumentParser(
        prog="python -m fastact",
        description="What was built, how accurate it is, and how fast.\n"
        "Without a command: all three, in less than a minute.",
        **described(""),
    )
    commands = parser.add_subparsers(dest="command", metavar="{info,check,bench}")
    info = commands.add_parser(
        "info", help="what is wrong; version, instruction sets, threads", **described("info")
    )
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(run=_info, parser=info)
    check = commands.add_parser(
        "check",
        help="accuracy against an oracle; exit status 1 when a bound is violated",
        **described("check"),
    )
    _add_check(check)
    check.set_defaults(run=_check, parser=check)
    bench = commands.add_parser(
        "bench",
        help="speed against a copy and against other libraries",
        usage="python -m fastact bench [op ...] [options]",
        **described("bench"),
    )
    _add_bench(bench)
    bench.set_defaults(run=_bench, parser=bench)
    return parser


def _add_ops(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ops", nargs="*", metavar="op", help="names of ops or of families; all without any"
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_ops(parser)
    parser.add_argument(
        "--exhaustive", action="store_true", help="all 2**32 float32 inputs; longer sums"
    )
    parser.add_argument(
        "--stride", type=arguments.count, default=1, metavar="K", help="only one K-th of the inputs"
    )
    parser.add_argument(
        "--isa",
        type=arguments.names,
        default=(),
        metavar="v2,v3",
        help="only these instruction sets",
    )
    parser.add_argument(
        "--peers",
        type=arguments.names,
        default=(),
        metavar="numpy,torch",
        help="measure their errors too",
    )
    parser.add_argument("--markdown", type=Path, metavar="F", help="write the tables to F")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="F.png",
        help="draw errors beside their bounds: of activations over x, of other ops case by case",
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_ops(parser)
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--all",
        action="store_true",
        help="every op, or all that is named; on the CPU in every type, and quickly: "
        "--list says how long it takes",
    )
    what.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    what.add_argument(
        "--sizes",
        type=arguments.counts,
        metavar="64,1e6",
        help="elements of the arrays, for ops without axes",
    )
    what.add_argument(
        "--shapes",
        type=arguments.names,
        metavar="S,S",
        help=f"for ops with axes, only these shapes: {', '.join(shapes.names())}",
    )
    what.add_argument(
        "--small",
        action="store_const",
        const=True,
        help="so few elements that only the call counts; --markdown writes a page of those",
    )
    what.add_argument("--dtypes", type=arguments.names, metavar="D,D", help=", ".join(_DTYPES))
    what.add_argument(
        "--directions", type=arguments.names, metavar="W,W", help=", ".join(_DIRECTIONS)
    )
    what.add_argument(
        "--peers",
        type=arguments.names,
        metavar="P,P",
        help=f"{', '.join(PEERS)}; torch.compile and numexpr on request; on a GPU: "
        "torch, torch.compile, liger, without it torch.compile for float32 and bfloat16; empty "
        "for none",
    )
    what.add_argument(
        "--threads",
        type=arguments.counts,
        metavar="1,2",
        help="for everybody; of several numbers --markdown writes what more of them gain",
    )
    time = parser.add_argument_group("how long")
    time.add_argument("--seconds", type=arguments.seconds, metavar="S", help="for each row, about")
    time.add_argument(
        "--stop-after",
        type=arguments.seconds,
        metavar="S",
        help="start no row after S seconds; the exit status is 3 if some are left",
    )
    time.add_argument(
        "--telling-first",
        action="store_const",
        const=True,
        help="on a GPU: the largest case of each op first, norms before all",
    )
    time.add_argument(
        "--resume",
        action="store_const",
        const=True,
        help="measure only what the file of --json lacks, peers included",
    )
    time.add_argument(
        "--list",
        action="store_const",
        const=True,
        help="measure nothing: say what would be, and how long it would take",
    )
    results = parser.add_argument_group("what becomes of it")
    results.add_argument(
        "--json", type=Path, metavar="F", help="write machine and rows to F, table by table"
    )
    results.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="go on with bench.json in the folder of this kind of machine in DIR, and write "
        "scoreboard.md beside it",
    )
    results.add_argument(
        "--scoreboard", type=Path, metavar="F", help="write to F where we are ahead and behind"
    )
    results.add_argument("--markdown", type=Path, metavar="F", help="write the tables to F")
    results.add_argument(
        "--plot",
        type=Path,
        metavar="F.png",
        help="draw everybody's speed beside a copy's; of more than "
        f"{_PANELS} ops the speed-ups, a picture for each family: F_norms.png and so on; on a GPU "
        "bytes a second",
    )
    results.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="F",
        help="measure nothing: show, write or draw what --json wrote to F; of a CPU, of the types, "
        "directions, peers and threads that are named",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    args = _parser().parse_args(arguments)
    if args.command is None:
        return _overview()
    status: int = args.run(args, args.parser)
    return status


def run() -> int:
    """`main`, as a shell expects it of a program that is interrupted or whose reader has gone."""
    try:
        return main()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads our output has seen enough; say nothing at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
