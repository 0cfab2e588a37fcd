"""NIST's univariate data sets, whose means and standard deviations are certified.

Statistical Reference Datasets of the National Institute of Standards and Technology,
https://www.itl.nist.gov/div898/strd/univ/homepage.html: four that were observed, four made so that
sums of squares cancel, and digits of pi.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """mean, std : as they are certified, to 15 digits; of n - 1 the deviation."""

    mean: str
    std: str
    values: Sequence[float]

    @property
    def x(self) -> np.ndarray:
        return np.array(self.values, np.float64)


def exactly(x: np.ndarray) -> tuple[Fraction, Fraction]:
    """The mean and the variance (n - 1) of numbers as they are stored."""
    parts = [Fraction(float(value)) for value in x]
    mean = sum(parts, Fraction()) / len(parts)
    return mean, sum(((part - mean) ** 2 for part in parts), Fraction()) / (len(parts) - 1)


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def digits_of_pi(count: int) -> list[int]:
    """By Machin's formula, in whole numbers: pi = 16 arctan(1/5) - 4 arctan(1/239).

    count: a multiple of 1000; Python makes text of so many digits at once.
    """

    def arctan_of_inverse(n: int) -> int:
        power, k, total = one // n, 1, 0
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    one = 10 ** (count + 10)  # ten digits more than are asked for
    pi = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    blocks = (pi // 10 ** (count + 10 - at - 999) % 10**1000 for at in range(0, count, 1000))
    return [int(digit) for block in blocks for digit in f"{block:01000}"]


def digits_as_certified() -> list[int]:
    """NIST's have a 3 where the 957th digit of pi is an 8; the certified mean is of the 3."""
    digits = digits_of_pi(5000)
    assert digits[956] == 8
    return [*digits[:956], 3, *digits[957:]]


def spread(middle: float, low: float, high: float) -> list[float]:
    """One value, then 500 pairs."""
    return [middle, *[low, high] * 500]


_LEW = """
-213 -564 -35 -15 141 115 -420 -360 203 -338 -431 194 -220 -513 154 -125 -559 92 -21 -579 -52 99
-543 -175 162 -457 -346 204 -300 -474 164 -107 -572 -8 83 -541 -224 180 -420 -374 201 -236 -531
83 27 -564 -112 131 -507 -254 199 -311 -495 143 -46 -579 -90 136 -472 -338 202 -287 -477 169
-124 -568 17 48 -568 -135 162 -430 -422 172 -74 -577 -13 92 -534 -243 194 -355 -465 156 -81 -578
-64 139 -449 -384 193 -198 -538 110 -44 -577 -6 66 -552 -164 161 -460 -344 205 -281 -504 134 -28
-576 -118 156 -437 -381 200 -220 -540 83 11 -568 -160 172 -414 -408 188 -125 -572 -32 139 -492
-321 205 -262 -504 142 -83 -574 0 48 -571 -106 137 -501 -266 190 -391 -406 194 -186 -553 83 -13
-577 -49 103 -515 -280 201 300 -506 131 -45 -578 -80 138 -462 -361 201 -211 -554 32 74 -533 -235
187 -372 -442 182 -147 -566 25 68 -535 -244 194 -351 -463 174 -125 -570 15 72 -550 -190 172 -424
-385 198 -218 -536 96
"""
_LOTTERY = """
162 671 933 414 788 730 817 33 536 875 670 236 473 167 877 980 316 950 456 92 517 557 956 954
104 178 794 278 147 773 437 435 502 610 582 780 689 562 964 791 28 97 848 281 858 538 660 972
671 613 867 448 738 966 139 636 847 659 754 243 122 455 195 968 793 59 730 361 574 522 97 762
431 158 429 414 22 629 788 999 187 215 810 782 47 34 108 986 25 644 829 630 315 567 919 331 207
412 242 607 668 944 749 168 864 442 533 805 372 63 458 777 416 340 436 140 919 350 510 572 905
900 85 389 473 758 444 169 625 692 140 897 672 288 312 860 724 226 884 508 976 741 476 417 831
15 318 432 241 114 799 955 833 358 935 146 630 830 440 642 356 373 271 715 367 393 190 669 8 861
108 795 269 590 326 866 64 523 862 840 219 382 998 4 628 305 747 247 34 747 729 645 856 974 24
568 24 694 608 480 410 729 947 293 53 930 223 203 677 227 62 455 387 318 562 242 428 968
"""
_MAVRO = """
2.0018 2.0017 2.0018 2.0019 2.0018 2.0017 2.0015 2.0014 2.0015 2.0015 2.0017 2.0018 2.0018
2.0019 2.0019 2.0021 2.002 2.0016 2.0014 2.0013 2.0013 2.0015 2.0015 2.0016 2.0015 2.0014 2.0013
2.0014 2.0015 2.0014 2.0015 2.0016 2.0015 2.0016 2.0019 2.002 2.002 2.0021 2.0022 2.0023 2.0024
2.0025 2.0027 2.0026 2.0026 2.0026 2.0027 2.0026 2.0025 2.0024
"""
_MICHELSO = """
299.85 299.74 299.90 300.07 299.93 299.85 299.95 299.98 299.98 299.88 300.00 299.98 299.93
299.65 299.76 299.81 300.00 300.00 299.96 299.96 299.96 299.94 299.96 299.94 299.88 299.80
299.85 299.88 299.90 299.84 299.83 299.79 299.81 299.88 299.88 299.83 299.80 299.79 299.76
299.80 299.88 299.88 299.88 299.86 299.72 299.72 299.62 299.86 299.97 299.95 299.88 299.91
299.85 299.87 299.84 299.84 299.85 299.84 299.84 299.84 299.89 299.81 299.81 299.82 299.80
299.77 299.76 299.74 299.75 299.76 299.91 299.92 299.89 299.86 299.88 299.72 299.84 299.85
299.85 299.78 299.89 299.84 299.78 299.81 299.76 299.81 299.79 299.81 299.82 299.85 299.87
299.87 299.81 299.74 299.81 299.94 299.95 299.80 299.81 299.87
"""

DATASETS = {
    "PiDigits": Dataset("4.5348", "2.86733906028871", digits_as_certified()),
    "Lottery": Dataset("518.958715596330", "291.699727470969", numbers(_LOTTERY)),
    "Lew": Dataset("-177.435", "277.332168044316", numbers(_LEW)),
    "Mavro": Dataset("2.001856", "0.000429123454003053", numbers(_MAVRO)),
    "Michelso": Dataset("299.8524", "0.0790105478190518", numbers(_MICHELSO)),
    "NumAcc1": Dataset("10000002", "1", [10000001, 10000003, 10000002]),
    "NumAcc2": Dataset("1.2", "0.1", spread(1.2, 1.1, 1.3)),
    "NumAcc3": Dataset("1000000.2", "0.1", spread(1000000.2, 1000000.1, 1000000.3)),
    "NumAcc4": Dataset("10000000.2", "0.1", spread(10000000.2, 10000000.1, 10000000.3)),
}
