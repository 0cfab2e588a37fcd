"""
Mean and variance of a stream
=============================

``fa.moments`` of parts merge into those of the whole, in one fixed order whoever finishes first,
and they do not cancel. Sums of x and x² in float32 do.
"""

# %%
# Measurements far from zero, in parts that arrive one after another.
import matplotlib.pyplot as plt
import numpy as np

import fastact as fa

rng = np.random.default_rng(0)
offsets = 10.0 ** np.arange(0, 7)


def parts(offset):
    for _ in range(50):
        yield (offset + rng.normal(size=2000)).astype(np.float32)


# %%
# Each part is read once, and dropped. What is kept of it is a count, a mean and a sum of squared
# distances. Beside it, the formula of one pass with sums, in the data's type.
ours, sums = [], []
for offset in offsets:
    kept, total, squares, count = [], np.float32(0), np.float32(0), 0
    exact = []
    for part in parts(offset):
        kept.append(fa.moments(part))
        total += part.sum()
        squares += (part * part).sum()
        count += part.size
        exact.append(part.astype(np.float64))
    true = np.var(np.concatenate(exact))
    merged = fa.Moments.merge_many(kept)
    ours.append(abs(float(merged.var()) - true) / true)
    sums.append(abs(float(squares / count - (total / count) ** 2) - true) / true)

# %%
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.loglog(offsets, np.maximum(sums, 1e-17), "o-", label="sums of x and x², float32")
axes.loglog(offsets, np.maximum(ours, 1e-17), "s-", label="fastact.moments, merged")
axes.set(
    xlabel="mean of the data (its standard deviation is 1)", ylabel="relative error of the variance"
)
axes.legend()
plt.show()
