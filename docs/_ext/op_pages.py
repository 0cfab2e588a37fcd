"""A page for each op, from its spec, its documentation and docs/results, before Sphinx reads.

An op that is registered has its page and its line in the lists of families; nothing is added here.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import matplotlib
import numpy as np
from formulas import latex
from matplotlib.figure import Figure
from numpydoc.docscrape_sphinx import SphinxDocString
from sphinx.application import Sphinx

import fastact as fa
from fastact.bench.report import times
from fastact.bench.workloads import FAMILIES
from fastact.bench.workloads.work import Options

PEERS = {"numpy": "NumPy", "torch": "torch"}
_SPAN = np.linspace(-6.0, 6.0, 1201)
_WHITE_SPACE = re.compile(r"\s+")


def families() -> dict[str, list[Any]]:
    by_family: dict[str, list[Any]] = {}
    for op in fa.ops.values():
        by_family.setdefault(op.family, []).append(op)
    return by_family


def summary(op: Any) -> str:
    return _WHITE_SPACE.sub(" ", op.__doc__.strip().partition("\n\n")[0])


# --- parts of a page ------------------------------------------------------------------------------


def page(op: Any, folder: Path, measured: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    parts = [
        _title(op.name, "="),
        summary(op),
        *_formulas(op),
        *(_pictures(op, folder) if op.family == "activations" else ()),
        _documented(op, "call"),
        *(_documented(op, entry) for entry in op.entry_points if entry != "call"),
        _title("What is kept and what is moved", "-"),
        _traffic(op),
        *_speed(op, measured),
    ]
    return "\n\n".join(parts) + "\n"


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"


def _formulas(op: Any) -> Iterator[str]:
    told = _WHITE_SPACE.sub(" ", op.__doc__.strip().split("\n\n")[1])
    for formula in re.findall(r"``([^`]* = [^`]*)``", told):
        if (as_latex := latex(formula)) is not None:
            yield f".. math:: {as_latex}"


def _documented(op: Any, entry: str) -> str:
    """An entry point as numpydoc sets it, the op itself under its own name."""
    function = op if entry == "call" else getattr(op, entry)
    name = op.name if entry == "call" else f"{op.name}.{entry}"
    text = str(
        SphinxDocString(dedent(_first_indented(function.__doc__)), {"show_class_members": False})
    )
    head = f".. py:function:: fastact.{name}{op.entry_points[entry].signature}"
    return f"{head}\n\n{indent(_without_summary(text, entry), '   ')}"


def _first_indented(doc: str) -> str:
    """A docstring whose first line stands as far in as the others."""
    first, _, rest = doc.partition("\n")
    body = dedent(rest)
    # numpydoc takes such a first line for the signature, which the page has already.
    return body if re.match(r"\w+\(.*\) -> ", first) else f"{first}\n{body}"


def _without_summary(text: str, entry: str) -> str:
    """The page begins with the summary of the op."""
    return text.strip().partition("\n\n")[2] if entry == "call" else text


def _traffic(op: Any) -> str:
    saved = ", ".join(f"``{name}``" for name in op.saves) or "nothing"
    gradients = ", ".join(f"``{name}``" for name in op.gradients) or "none"
    rows = [("``forward`` saves", saved), ("``backward`` gives", gradients)]
    if moved := _moved(op):
        rows.append(("memory moved, in copies of x", moved))
    lines = "\n".join(f"   * - {left}\n     - {right}" for left, right in rows)
    return f".. list-table::\n   :widths: 35 65\n\n{lines}"


def _moved(op: Any) -> str:
    """How many bytes a call has to read and write, over those of a copy of x."""
    options = Options((1 << 20,), (), (), (), 1)
    found: dict[str, float] = {}
    for direction in ("forward", "backward"):
        for case in FAMILIES[op.family].on_cpu(op, direction, "float32", options):
            found.setdefault(direction, case.accesses / 2)  # two accesses are a copy
    return ", ".join(f"{direction} {ratio:.3g}" for direction, ratio in found.items())


def _speed(op: Any, measured: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[str]:
    """A table for each machine."""
    yield _title("Speed", "-")
    yield (
        "How many times longer others take for the same, in one run; and the time over that of a "
        "copy of the same bytes."
    )
    for machine, every in measured.items():
        if rows := [row for row in every if row["op"] == op.name]:
            yield f":doc:`/results/{machine}/bench`:"
            yield _of_machine(rows)


def _of_machine(rows: Sequence[dict[str, Any]]) -> str:
    peers = [peer for peer in PEERS if any(peer in row["ratios"] for row in rows)]
    head = ["", "", "dtype", "µs", "× copy", *(PEERS[peer] for peer in peers)]
    table = [head]
    for row in rows:
        others = [times(row["ratios"].get(peer)) for peer in peers]
        seconds = row["seconds"]
        over_copy = f"{seconds['fastact'] / seconds['copy']:.2f}" if "copy" in seconds else "–"
        took = f"{1e6 * seconds['fastact']:,.3g}"
        table.append([row["direction"], row["what"], row["dtype"], took, over_copy, *others])
    return _list_table(table)


def _list_table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"   {'*' if not i else ' '} - {cell}" for row in rows for i, cell in enumerate(row)]
    return ".. list-table::\n   :header-rows: 1\n   :class: figures\n\n" + "\n".join(lines)


# --- pictures -------------------------------------------------------------------------------------


def _pictures(op: Any, folder: Path) -> Iterator[str]:
    """The function with its derivative, and the error of float32 against that of float64."""
    _curves(op).savefig(folder / f"{op.name}.svg", bbox_inches="tight")
    _errors(op).savefig(folder / f"{op.name}_ulp.svg", bbox_inches="tight")
    told = {"": f"{op.name} and its derivative from -6 to 6", "_ulp": "its error in float32"}
    images = (
        f"   .. image:: {op.name}{end}.svg\n      :alt: {alt}\n      :width: 49%"
        for end, alt in told.items()
    )
    yield ".. container:: pictures\n\n" + "\n\n".join(images)


def _figure(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("x")
    axes.grid(alpha=0.25)
    return figure, axes


def _curves(op: Any) -> Figure:
    figure, axes = _figure(f"{op.name} and its derivative")
    y, saved = op.forward(_SPAN)
    axes.plot(_SPAN, y, label=op.name)
    axes.plot(_SPAN, op.backward(np.ones_like(_SPAN), *saved), label="derivative", ls="--")
    axes.legend(fontsize=9)
    return figure


def _errors(op: Any) -> Figure:
    """Float64, whose own error is 2**-29 of a float32 unit, stands for the truth."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-6, 6, 20_000)).astype(np.float32)
    figure, axes = _figure("error of float32, in units in the last place")
    narrow, wide = (
        (op(v), op.backward(v * 0 + 1, *op.forward(v)[1])) for v in (x, x.astype(float))
    )
    for name, ours, true in zip(("value", "derivative"), narrow, wide, strict=True):
        unit = np.spacing(np.maximum(np.abs(true), np.finfo(np.float32).tiny).astype(np.float32))
        error = np.abs(ours.astype(float) - true) / unit
        if name == "derivative" and op.bounds.derivative_abs:
            # Near a root the bound is absolute.
            error = np.where(np.abs(ours - true) <= op.bounds.derivative_abs, np.nan, error)
        axes.plot(x, error, ".", ms=1.5, label=name, rasterized=True)
    axes.axhline(op.bounds.forward_ulp, lw=1, ls=":", color="black", label="bound of the value")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, markerscale=6)
    return figure


# --- the build ------------------------------------------------------------------------------------


def write(app: Sphinx) -> None:
    matplotlib.rcParams["svg.fonttype"] = "none"
    folder = Path(app.srcdir) / "ops" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    measured = _measured(Path(app.srcdir) / "results")
    index = [_title("Ops", "="), "What they share: :doc:`/conventions`."]
    for family, members in families().items():
        table = [["op", ""], *([f":doc:`generated/{op.name}`", summary(op)] for op in members)]
        index += [_title(family, "-"), _list_table(table)]
        names = "\n".join(f"   generated/{op.name}" for op in members)
        index.append(f".. toctree::\n   :hidden:\n\n{names}")
        for op in members:
            _replace(folder / f"{op.name}.rst", page(op, folder, measured))
    _replace(folder.parent / "index.rst", "\n\n".join(index) + "\n")


def _measured(results: Path) -> dict[str, list[dict[str, Any]]]:
    """What `python -m fastact bench --results` wrote, by the folder of the machine."""
    files = sorted(results.glob("*/bench.json"))
    return {f.parent.name: json.loads(f.read_text(encoding="utf-8"))["rows"] for f in files}


def _replace(path: Path, text: str) -> None:
    """Only where it differs, so that Sphinx reads again only what has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
