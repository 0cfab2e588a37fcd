"""NIST's certified means and deviations, by every way to them, and the page of their digits."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from nist import DATASETS, Dataset, exactly

import fastact as fa
from fastact.ops.bounds import rounding

# A certified value has 15 digits; the last one is rounded.
DIGITS = 0.5e-14


def in_chunks(x: np.ndarray) -> tuple[float, float]:
    """By merged moments of seven parts; fewer values have a part each."""
    parts = [fa.moments(part) for part in np.array_split(x, 7) if part.size]
    merged = fa.Moments.merge_many(parts)
    return merged.mean, merged.std(1)


def weighted(x: np.ndarray) -> tuple[float, float]:
    moments = fa.moments(x, weights=np.ones(x.size))
    return moments.mean, moments.std(1)


def in_a_column(x: np.ndarray) -> tuple[float, float]:
    mean, var = fa.mean_var(np.stack([x, -x], 1), 0, correction=1)
    return mean[0], math.sqrt(var[0])


WAYS: dict[str, Callable[[np.ndarray], tuple[float, float]]] = {
    "mean and std": lambda x: (fa.mean(x), fa.std(x, correction=1)),
    "nanmean and nanstd": lambda x: (fa.nanmean(x), fa.nanstd(x, correction=1)),
    "merged": in_chunks,
    "weighted": weighted,
    "a column": in_a_column,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_certified(dataset: Dataset, way: str) -> None:
    """Within what `moments` states of the stored data, whose rounding is what lacks besides."""
    x, bounds = dataset.x, fa.moments.bounds
    times = bounds.merged if way == "merged" else 1
    mean, std = map(float, WAYS[way](x))
    exact_mean, variance = exactly(x)
    exact_std = Fraction(math.sqrt(variance))

    of_mean = bounds.mean * float(np.abs(x).mean())
    error = times * (of_mean + float(rounding(float(exact_mean), np.float64, of_mean)))
    assert abs(mean - exact_mean) <= error
    certified = Fraction(dataset.mean)
    assert abs(mean - certified) <= error + abs(exact_mean - certified) + DIGITS * abs(certified)

    of_variance = float(bounds.of_second(float(exact_mean), float(exact_std), x.dtype))
    share = times * (of_variance + 2.0**-53) / 2 + 2.0**-53  # of a root, which is rounded
    assert abs(std - exact_std) <= share * exact_std
    certified = Fraction(dataset.std)
    assert abs(std - certified) <= (share + DIGITS) * exact_std + abs(exact_std - certified)
