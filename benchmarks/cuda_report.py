"""What the GPU benchmark shows: plain tables as it goes, and a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fastact.bench.bench import title_of
from fastact.bench.turns import Row, duration
from fastact.measure.peers import COPY, FRESH, GPU_PEERS, LIGER, OURS, READ
from fastact.terminal import markdown_table, paragraph, say, styled, table

from .board import left_out_lines, say_left
from .liger import OPS
from .results import GpuRow, Results, tables_of

LEGEND = """\
Times are medians over rounds, of the GPU, by events around many calls with the queue kept full; the
arrays take turns, so that together they exceed the second-level cache three times over. GB/s: bytes
that the op has to move (each input read once, the output written once; batch_norm in training reads
its inputs twice, as the gradients of mean_var and moments do x) over its time. % of copy: that rate
as a share of the one at which torch's copy_ moves as many bytes in the same run. % of read, for
sums: the time of torch.sum over as many bytes of float32, over ours: a peer, no ceiling. without
out=: ours with the result allocated. × torch, × torch.compile, × liger: their time over ours.
graph: whether a captured CUDA graph of the call, replayed on other values, gives the bits of the
call."""

_LIGER_LEGEND = f"""\
liger: Liger's Triton kernels, of {", ".join(OPS)}; it has no other of
these ops. The kernel of Triton's tutorial, which Liger's norms go back to, is in no package, and is
left out."""

LATENCY_LEGEND = """\
What one call costs the host, in Python, for so few elements that nothing else counts, with fewer
calls between two synchronisations than fill the queue: from the call to the launch, about."""


def _columns(rows: Sequence[GpuRow]) -> tuple[list[str], list[list[str]]]:
    """Header and lines for the rows of one op, direction and dtype."""
    peers = [peer for peer in GPU_PEERS if any(peer in row.ratios for row in rows)]
    reads = any(READ in row.ratios for row in rows)
    header = ["elements", OURS, "GB/s", "% of copy", *(["% of read"] if reads else [])]
    header += ["without out=", *(f"× {peer}" for peer in peers), "graph"]
    lines = []
    for row in rows:
        line = [row.what, duration(row.seconds[OURS]), f"{row.rate / 1e9:,.0f}"]
        line += [f"{100 * row.ratios[name]:.1f}" for name in (COPY, READ)[: 1 + reads]]
        line.append(duration(row.seconds[FRESH]))
        line += [f"{row.ratios[peer]:.2f}" if peer in row.ratios else "–" for peer in peers]
        lines.append([*line, row.graph or "same bits"])
    return header, lines


def print_rows(rows: Sequence[GpuRow]) -> None:
    """One table: the rows of one op, direction and dtype."""
    say("", styled(title_of(rows[0]), "bold"), table(*_columns(rows)))


def _latency_columns(latencies: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for one in latencies for name in one.seconds))
    header = ["op", "dtype", "elements", *("without out=" if n == FRESH else n for n in names)]
    lines = []
    for one in latencies:
        line = [f"{one.op} {one.direction}", one.dtype, str(one.size)]
        line += [duration(one.seconds[n]) if n in one.seconds else "–" for n in names]
        lines.append(line)
    return header, lines


def _facts(facts: Mapping[str, Any]) -> str:
    """The machine in one paragraph."""
    cuda = facts["cuda"]
    parts = [
        f"{facts['gpu']} (compute capability {facts['capability']}, "
        f"{facts['multiprocessors']} multiprocessors, {facts['memory'] / 2**30:.0f} GiB, "
        f"{facts['l2'] / 2**20:.0f} MiB of L2)",
        f"driver {facts['driver'] or 'unknown'}",
        f"fastact {facts['fastact']}" + (f" ({facts['commit']})" if facts["commit"] else ""),
        f"compiled by {cuda['compiler']} for {cuda['architectures']}" if cuda["built"] else "",
        f"torch {facts['torch']} with CUDA {facts['torch_cuda']}",
        facts["python"],
        facts["date"],
    ]
    return "; ".join(filter(None, parts)) + "."


_NEAR = 85  # % of a copy: what reaches it is bound by memory
_AHEAD = 0.95  # of our time: less is noise


def glance(rows: Sequence[GpuRow]) -> str:
    """How many rows are near their copy, and in how many a peer is ahead."""
    shares = [100 * row.ratios[COPY] for row in rows]
    near = sum(share >= _NEAR for share in shares)
    parts = [
        f"{near} of {len(rows)} rows reach {_NEAR} % of their copy; the median is "
        f"{median(shares):.0f} %."
    ]
    for peer in GPU_PEERS:
        of = [row for row in rows if peer in row.ratios]
        if of:
            ahead = sum(row.ratios[peer] < _AHEAD for row in of)
            parts.append(f"{peer} is ahead by more than 5 % in {ahead} of {len(of)}.")
    return " ".join(parts)


def _legend(rows: Sequence[GpuRow]) -> str:
    """What the columns mean."""
    liger = any(LIGER in row.ratios for row in rows)
    return f"{LEGEND}\n{_LIGER_LEGEND}" if liger else LEGEND


def print_end(results: Results) -> None:
    """What calls cost the host, what the columns mean, and what went wrong."""
    if results.latency:
        say("", styled("call to launch", "bold"), table(*_latency_columns(results.latency), left=2))
        say("", paragraph(LATENCY_LEGEND))
    if results.rows:
        say("", paragraph(_legend(results.rows)))
    say_left(results)
    for problem in results.problems:
        say(styled(f"WRONG: {problem}", "red"))


def markdown(results: Results) -> str:
    """The page: machine, tables, legends, and what went wrong."""
    facts = results.facts
    parts = [
        f"# Speed on {facts['gpu']}" + (f", {facts['commit']}" if facts["commit"] else ""),
        f"Measured by `python -m benchmarks --device cuda`.\n\n{_facts(facts)}",
        *([note] if (note := facts.get("note")) else []),
        *([glance(results.rows)] if results.rows else []),
        *left_out_lines([results.absent]),
    ]
    if results.left:
        parts.append(f"Not measured yet: {results.left} rows.")
    if results.problems:
        parts.append("**Wrong:**\n\n" + "\n".join(f"- {problem}" for problem in results.problems))
    for part in tables_of(results.rows):
        parts += [f"## {title_of(part[0])}", markdown_table(*_columns(part))]
    parts += [_legend(results.rows), *left_out_lines(row.left_out for row in results.rows)]
    if results.latency:
        parts += ["## Call to launch", markdown_table(*_latency_columns(results.latency), left=2)]
        parts.append(LATENCY_LEGEND)
    return "\n\n".join(parts) + "\n"
