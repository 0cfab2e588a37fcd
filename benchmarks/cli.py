"""The command line of the boards: ``python -m benchmarks [op ...] [options]``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from fastact import terminal
from fastact.cli import _chosen, _ops
from fastact.measure import arguments, peers
from fastact.measure.peers import GPU_PEERS, NUMPY, ON_REQUEST, PEERS, TORCH, dtype_named
from fastact.runtime import config
from fastact.runtime.threads import get_num_threads

from . import board, cpu, cuda, plots, results, scoreboard, shapes
from .workloads.work import Options

_SMALL_SIZES = (64,)
_SIZES = (64, 1024, 50_000, 1_000_000, 16_000_000)
_GPU_SECONDS = 0.25
_ALL_SECONDS = 0.05  # for a row, where all of them are measured
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
    on_gpu = args.device == "cuda"
    _refuse(args, parser)
    if args.list:
        return _list(args, parser)
    if args.results is not None and args.source is None:
        _into_results(args, parser)
    machine: Any = cuda.Gpus if on_gpu else cpu.Cpu
    if args.source is not None:
        found = _read(args, parser)
        board.show_again(machine, found)
        if args.markdown is not None and found.rows:
            args.markdown.write_text(machine.page(found), encoding="utf-8")
    else:
        options, ops = _options(args, parser), _ops(args, parser)
        try:
            found = board.run(machine(options), ops, options, args.json, args.markdown)
        except ValueError as error:  # the file is another program's
            parser.error(str(error))
    if args.scoreboard is not None and found.rows:
        page = scoreboard.scoreboard(found.facts, found.rows, found.left)
        args.scoreboard.write_text(page, encoding="utf-8")
    if args.plot is not None and found.rows:
        for picture in plots.draw(found, args.plot):
            print(f"drawn: {picture}")
    left = found.left and (on_gpu or args.source is None)
    return 1 if on_gpu and found.problems else _ROWS_ARE_LEFT if left else 0


#: The options for which others have no use.
_REFUSED = {
    "--device cuda": "threads shapes small list results scoreboard",
    "the CPU": "telling-first",
    "--from": "sizes shapes seconds small stop-after telling-first resume list results json",
    "--small": "sizes shapes",
    "--results": "json scoreboard",
}


def _refuse(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Leave if an option is given for which another has no use."""
    on_gpu = args.device == "cuda"
    given = on_gpu, not on_gpu, args.source, args.small, args.results
    for beside, options in compress(_REFUSED.items(), given):
        for option in options.split():
            if getattr(args, option.replace("-", "_")) is not None:
                parser.error(f"--{option} does not go with {beside}")


def _read(args: argparse.Namespace, parser: argparse.ArgumentParser) -> results.Results:
    """Return what a file has of the ops, types, directions, peers and threads that are named."""
    on_gpu = args.device == "cuda"
    try:
        found = results.read(args.source, on_gpu, _ops(args, parser))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    known = _known(on_gpu)
    named = known if args.peers is None else _chosen(parser, "peer", args.peers, known)
    found.rows = [
        row.but({*known} - {*named})
        for row in found.rows
        if row.dtype in (args.dtypes or _DTYPES)
        and row.direction in (args.directions or _DIRECTIONS)
        and row.threads in (args.threads or (row.threads,))
    ]
    return found


def _options(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    """What to measure."""
    if args.resume and args.json is None:
        parser.error("--resume goes on with the file of --json")
    if args.small:
        args.sizes = _SMALL_SIZES
    on_gpu = args.device == "cuda"
    dtypes = args.dtypes or (_DTYPES if args.all or on_gpu else _DTYPES[:1])
    usual = GPU_PEERS if on_gpu else (NUMPY, TORCH) if args.small else PEERS
    seconds = _GPU_SECONDS if on_gpu else _ALL_SECONDS if args.all else Options.seconds
    for dtype in () if on_gpu else dtypes:
        dtype_named(dtype)  # or it says what is missing
    return Options(
        sizes=args.sizes or (None if on_gpu else _SIZES),
        dtypes=dtypes,
        directions=args.directions or _DIRECTIONS,
        peers=_chosen(parser, "peer", usual if args.peers is None else args.peers, _known(on_gpu)),
        threads=args.threads or (get_num_threads(),),
        shapes=_chosen(parser, "shape", args.shapes or (), shapes.names()),
        seconds=args.seconds or seconds,
        small=bool(args.small),
        stop_after=args.stop_after or math.inf,
        goes_on=bool(args.resume),
        # Nobody who did not ask for it waits for it to compile every row.
        compiled=dtypes if args.peers is not None else ("float32", "bfloat16"),
        telling_first=bool(args.telling_first),
    )


def _known(on_gpu: bool) -> tuple[str, ...]:
    """The peers that may be asked for."""
    return GPU_PEERS if on_gpu else (*PEERS, *ON_REQUEST)


def _list(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    options = _options(args, parser)
    there = [*peers.versions(options.peers)]
    print(f"beside {', '.join(there)}; {options.seconds:g} s for each row and more")
    print(cpu.listing(cpu.Cpu(options).tables(_ops(args, parser)), there, options.seconds))
    return 0


def _into_results(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """--results stands for this kind of machine's files in a folder, and going on with them."""
    facts = config.config()
    machine = facts["processor"], facts["isa"]["chosen"], facts["threads"]["limit"]
    folder = args.results / results.slug(*machine)
    folder.mkdir(parents=True, exist_ok=True)
    args.json, args.scoreboard, args.resume = folder / "bench.json", folder / "scoreboard.md", True


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
    counts, names, seconds = arguments.counts, arguments.names, arguments.seconds
    _add(what, "sizes", counts, "64,1e6", "elements of the arrays, for ops without axes")
    every = ", ".join(shapes.names())
    _add(what, "shapes", names, "S,S", f"for ops with axes, only these shapes: {every}")
    few = "so few elements that only the call counts; --markdown writes a page of those"
    _add(what, "small", None, "", few)
    _add(what, "dtypes", names, "D,D", ", ".join(_DTYPES))
    _add(what, "directions", names, "W,W", ", ".join(_DIRECTIONS))
    peers = (
        f"{', '.join(PEERS)}; torch.compile on request; on a GPU: torch, "
        "torch.compile, liger, without it torch.compile for float32 and bfloat16; empty for none"
    )
    _add(what, "peers", names, "P,P", peers)
    gain = "for everybody; of several numbers --markdown writes what more of them gain"
    _add(what, "threads", counts, "1,2", gain)
    time = parser.add_argument_group("how long")
    _add(time, "seconds", seconds, "S", "for each row, about")
    left = "start no row after S seconds; the exit status is 3 if some are left"
    _add(time, "stop-after", seconds, "S", left)
    telling = "on a GPU: the largest case of each op first, norms before all"
    _add(time, "telling-first", None, "", telling)
    _add(time, "resume", None, "", "measure only what the file of --json lacks, peers included")
    said = "measure nothing: say what would be, and how long it would take"
    _add(time, "list", None, "", said)
    pages = parser.add_argument_group("what becomes of it")
    _add(pages, "json", Path, "F", "write machine and rows to F, table by table")
    kept = (
        "go on with bench.json in the folder of this kind of machine in DIR, and write "
        "scoreboard.md beside it"
    )
    _add(pages, "results", Path, "DIR", kept)
    _add(pages, "scoreboard", Path, "F", "write to F where we are ahead and behind")
    _add(pages, "markdown", Path, "F", "write the tables to F")
    drawn = (
        "draw everybody's speed beside a copy's; of more than "
        f"{plots.PANELS} ops the speed-ups, a picture for each family: F_norms.png and so on; on a "
        "GPU bytes a second"
    )
    _add(pages, "plot", Path, "F.png", drawn)
    again = (
        "measure nothing: show, write or draw what --json wrote to F, of the types, directions, "
        "peers and threads that are named"
    )
    pages.add_argument("--from", type=Path, dest="source", metavar="F", help=again)


def _add(group: Any, name: str, kind: Any, metavar: str, told: str) -> None:
    """Add an option with a value, or without one where it has no kind; None where not given."""
    if kind is None:
        group.add_argument(f"--{name}", action="store_const", const=True, help=told)
    else:
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=told)


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
