"""Digits of NIST's certified means and deviations: ours, NumPy's, bottleneck's, numbagg's, pandas'.

    pip install bottleneck numbagg pandas
    python tools/certified_statistics.py --markdown docs/results/certified.md

What stands between the page's marks is written anew. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from statistics_peers import BEGIN, END, peers

import fastact as fa
from fastact.measure.peers import OURS
from fastact.terminal import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/statistics"))
from nist import DATASETS, exactly

_MOST = 17.0  # digits that a float64 can have

Results = tuple[float, float]


def _ours(x: np.ndarray) -> Results:
    return fa.mean(x), fa.std(x, correction=1)


def _merged(x: np.ndarray) -> Results:
    moments = fa.Moments.merge_many([fa.moments(part) for part in np.array_split(x, 3)])
    return moments.mean, moments.std(1)


def _ways() -> dict[str, Callable[[np.ndarray], Results]]:
    """Mean and deviation (n - 1) by each library."""
    found: dict[str, Callable[[np.ndarray], Results]] = {
        OURS: _ours,
        f"{OURS}, 3 parts merged": _merged,
    }
    for name, module in peers(("numpy", "bottleneck", "numbagg", "pandas")).items():
        if name == "pandas":
            found[name] = lambda x, pd=module: (pd.Series(x).mean(), pd.Series(x).std())
        else:
            found[name] = lambda x, of=module: (of.nanmean(x), of.nanstd(x, ddof=1))
    return found


def digits(found: float, exact: Fraction) -> float:
    """Decimal digits that agree: -log10 of the relative error."""
    error = abs((Fraction(float(found)) - exact) / exact)
    return min(-math.log10(error), _MOST) if error else _MOST


def table(exact: Callable[[Any, np.ndarray], tuple[Fraction, Fraction]]) -> str:
    """Digits of mean and deviation, by data set and library."""
    ways, lines = _ways(), []
    for name, dataset in DATASETS.items():
        mean, std = exact(dataset, dataset.x)
        found = [way(dataset.x) for way in ways.values()]
        cells = [f"{digits(a, mean):.1f}, {digits(b, std):.1f}" for a, b in found]
        lines.append([name, str(dataset.x.size), *cells])
    return markdown_table(["data", "values", *ways], lines, 1)


def main() -> None:
    """Compute, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="write the tables into this page")
    args = parser.parse_args()

    def of_stored(dataset: Any, x: np.ndarray) -> tuple[Fraction, Fraction]:
        mean, variance = exactly(x)
        return mean, Fraction(math.sqrt(variance))

    parts = [
        "## Against the certified values",
        table(lambda dataset, x: (Fraction(dataset.mean), Fraction(dataset.std))),
        "## Against the exact values of the data as float64 has them",
        table(of_stored),
    ]
    body = "\n\n".join(parts)
    print(body)
    if args.markdown:
        above, _, rest = args.markdown.read_text(encoding="utf-8").partition(BEGIN)
        page = f"{above}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}"
        args.markdown.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
