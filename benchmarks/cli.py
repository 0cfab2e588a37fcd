"""The command line of the boards: ``python -m benchmarks [op ...] [options]``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from fastact import terminal
from fastact.bench import plot
from fastact.cli import _chosen, _ops
from fastact.measure import arguments, peers
from fastact.measure.peers import GPU_PEERS, NUMPY, ON_REQUEST, PEERS, TORCH, dtype_named
from fastact.runtime import config
from fastact.runtime.threads import get_num_threads

from . import (
    cpu,
    cpu_rows,
    cuda,
    cuda_plot,
    cuda_report,
    cuda_rows,
    estimate,
    plot_map,
    report,
    scoreboard,
    shapes,
)
from .workloads.work import Options

_SMALL_SIZES = (64,)
_SIZES = (64, 1024, 50_000, 1_000_000, 16_000_000)
_ALL_SECONDS = 0.05  # for a row, where all of them are measured
_PANELS = 4  # rows of them in a picture; more ops are drawn as a map
_ROWS_ARE_LEFT = 3  # exit status
_DIRECTIONS = ("forward", "backward")
_DTYPES = ("float32", "bfloat16", "float16", "float64")

_EXAMPLES = """\
examples:
  python -m benchmarks norms --dtypes bfloat16 --threads 1,2
  python -m benchmarks --all --json all.json --stop-after 600
  python -m benchmarks --from all.json --plot all.png   nothing is measured
  python -m benchmarks --device cuda --telling-first --stop-after 500"""


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
    options = _options(args, parser)
    if args.resume and args.json is None:
        parser.error("--resume goes on with the file of --json")
    try:
        return cpu.bench(_ops(args, parser), options, args.json, goes_on=bool(args.resume))
    except ValueError as error:  # the file is another program's
        parser.error(str(error))


def _list(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    options = _options(args, parser)
    there = [*peers.versions(options.peers)]
    print(f"beside {', '.join(there)}; {options.seconds:g} s for each row and more")
    tables = cpu.all_tables(_ops(args, parser), options)
    print(estimate.listing(tables, there, options.seconds))
    return 0


def _into_results(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """--results stands for this kind of machine's files in a folder, and going on with them."""
    _refuse(args, parser, "--results", "json", "scoreboard")
    folder = args.results / cpu_rows.machine_name(config.config())
    folder.mkdir(parents=True, exist_ok=True)
    args.json, args.scoreboard, args.resume = folder / "bench.json", folder / "scoreboard.md", True


def _bench_on_cpu(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
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


def _measured_on_gpu(
    args: argparse.Namespace, parser: argparse.ArgumentParser
) -> cuda_rows.GpuResults:
    """The rows and the machine, of a file or measured now."""
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
    only_cpu = ("threads", "shapes", "small", "list", "results", "scoreboard")
    _refuse(args, parser, "--device cuda", *only_cpu)
    results = _measured_on_gpu(args, parser)
    if args.plot is not None:
        for picture in cuda_plot.plot(results, args.plot):
            print(f"drawn: {picture}")
    return 1 if results.problems else _ROWS_ARE_LEFT if results.left else 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ops", nargs="*", metavar="op", help="names of ops or of families; all without any"
    )
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


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="python -m benchmarks [op ...] [options]",
        description="Speed against a copy and against other libraries.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    return _bench(parser.parse_args(words), parser)
