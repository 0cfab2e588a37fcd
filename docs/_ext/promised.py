"""The table of promises, from what ops say of themselves; docs/promises.md has it.

It holds what differs among ops: their bounds, gradients and kernels, and where bits depend on more
than the values. What a column means, and which test holds it, the page says.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from op_pages import replace
from sphinx.application import Sphinx

import fastact as fa
from fastact.ops import bounds

_HEAD = "| ops | run | threads | instruction set | batch | CPU = GPU | accuracy | gradient | second"
#: The leading term of each kind of bounds; an op's notes have all of it.
_ACCURACY: Mapping[type, Callable[[Any], str]] = {
    bounds.Bounds: lambda b: f"{b.forward_ulp:g} ULP" if b.forward_ulp else "exact",
    bounds.SumBounds: lambda b: f"{b.ulp:g} ULP + {_power(b.absolute)} Σ abs(x)",
    bounds.MomentBounds: lambda b: f"{_power(b.m2)} of a variance",
    bounds.BiasBounds: lambda b: f"{b.sums:g} u of terms, and the activation's",
    bounds.GatedBounds: lambda b: f"{b.sums:g} u of terms, and the activation's",
    bounds.ParametricBounds: lambda b: f"{b.value:g} u of its terms",
    bounds.DropoutBounds: lambda b: f"{b.scale:g} u of its terms",
    bounds.NormBounds: lambda b: f"{b.scaled:g} u abs(xhat weight)",
    bounds.NormRotaryBounds: lambda b: f"the norm's, and {b.turned.products:g} u",
    bounds.RotaryBounds: lambda b: f"{b.products:g} u of its terms",
    bounds.DivergenceBounds: lambda b: f"{_power(b.share)} of its terms",
    bounds.GateBounds: lambda b: f"{b.state_ulp:g} u (1 + {b.sums:g} S)",
    bounds.SoftmaxBounds: lambda b: f"{b.ulps:g} ULP",
    bounds.CrossEntropyBounds: lambda b: f"{b.constant:g} u of its terms",
}
#: Kinds of ops that compute elements one by one, in whatever order they come.
_BY_ELEMENT = (
    *(bounds.Bounds, bounds.BiasBounds, bounds.GatedBounds, bounds.ParametricBounds),
    *(bounds.DropoutBounds, bounds.GateBounds, bounds.RotaryBounds),
)
_SUMMED = {"dbias", "dweight", "dalpha"}
#: Ops that add up, or normalise by, the whole batch: footnotes of the page.
_OF_A_BATCH = dict.fromkeys(("batch_norm", "cross_entropy", "bias_grad", "unbroadcast"), "[^batch]")


def _power(bound: float) -> str:
    """Round a bound up to a power of two."""
    return f"2<sup>{math.ceil(math.log2(bound))}</sup>"


def table() -> str:
    """Return the table as Markdown, a row for the ops of a family of which the same is true."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for op in fa.ops.values():
        rows.setdefault((op.family, *_cells(op)), []).append(op.name)
    text = f"{_HEAD} |\n{'| --- ' * _HEAD.count('|')}|\n"
    for (_, *cells), names in rows.items():
        links = " ".join(f"[{n}](ops/generated/{n}.rst)" for n in names)
        text += f"| {' | '.join([links, *cells])} |\n"
    return text


def _cells(op: Any) -> list[str]:
    place = "[^place]" if op.traits.counts_elements else "✓"
    stated = op.bounds
    if op.family == "statistics" and op.results[0] in ("sum", "mean"):
        stated = stated.sums
    second = "formulas" if op.traits.second is None else "one pass"
    return [
        *("✓", "✓", "✓", _OF_A_BATCH.get(op.name, place), _on_gpu(op)),
        _ACCURACY[type(stated)](stated),
        "✓" if op.gradients else "–",
        "a kernel" if "backward.backward" in op.entry_points else second,
    ]


def _on_gpu(op: Any) -> str:
    has_statistics = "rstd" in op.entry_points["call"].signature.parameters  # of another call
    if not isinstance(op.bounds, _BY_ELEMENT) and not has_statistics:
        return "–"
    return "✓[^sums]" if _SUMMED & {*op.gradients} else "✓"


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "ops"
    folder.mkdir(exist_ok=True)
    replace(folder / "promised.inc", table())


def more_of_a_board(app: Sphinx, page: str, source: list[str]) -> None:
    """List behind a board the other pages of its machine, which the sidebar has below it."""
    file = Path(app.srcdir, f"{page}.md")
    if page.startswith("results/") and page.count("/") > 1:
        others = file.parent.glob("*.md" if file.stem == "scoreboard" else f"{file.stem}_*.md")
        if names := "\n".join(sorted(other.stem for other in others if other != file)):
            source[0] += f"\n## More of it\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("source-read", more_of_a_board)
    return {"parallel_read_safe": True}
