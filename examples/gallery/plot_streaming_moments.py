"""
Mean and variance of more than fits into memory
===============================================

A file is read once, in parts, and each part is dropped. Only its moments are kept: a count, a mean
and a sum of squared distances. They merge into the moments of the whole, in one fixed order whoever
finishes first, and they do not suffer from cancellation. Sums of x and x² do.
"""

# %%
# The file has measurements far from zero, in three channels that drift. It stands for a file that
# does not fit into memory: from here on, at most a twentieth of it is held at a time.
import tempfile
import tracemalloc
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fastact as fa

rng = np.random.default_rng(0)
folder = tempfile.TemporaryDirectory()
rows, channels, part = 2_000_000, 3, 50_000
shape, path = (rows, channels), Path(folder.name) / "measured.f4"
data = np.memmap(path, np.float32, "w+", shape=shape)
for begin in range(0, rows, part):
    drift = 1e4 + begin / rows * np.array([0.0, 1.0, 10.0])
    data[begin : begin + part] = drift + rng.normal(size=(part, channels))
data.flush()
print(f"{path.stat().st_size / 1e6:.0f} MB in {rows // part} parts")

# %%
# One read is enough. ``update`` would merge part after part; ``merge_many`` merges a list in a
# tree, to which other processes or machines can contribute parts.
data = np.memmap(path, np.float32, "r", shape=shape)
tracemalloc.start()
moments = [fa.moments(data[begin : begin + part], axis=0) for begin in range(0, rows, part)]
whole = fa.Moments.merge_many(moments)
peak = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()
print(f"{whole.count:,} rows, at most {peak / 1e3:.0f} kB allocated")
print("mean     ", whole.mean.round(3))
print("deviation", whole.std().round(4))

# %%
# Compare with sums of x and x², in the data's type and in float64, while the mean moves away from
# zero: how many digits of the variance are left?
offsets = 10.0 ** np.arange(0, 8)
errors = {"sums, float32": [], "sums, float64": [], "fastact.moments, float32 data": []}
for offset in offsets:
    x = (offset + rng.normal(size=100_000)).astype(np.float32)
    parts = np.array_split(x, 50)
    true = np.var(x.astype(np.longdouble))
    narrow = np.mean(x * x) - np.mean(x) ** 2
    wide = np.mean(x.astype(np.float64) ** 2) - np.mean(x, dtype=np.float64) ** 2
    ours = fa.Moments.merge_many(fa.moments(p) for p in parts).var()
    for kept, found in zip(errors.values(), (narrow, wide, ours), strict=True):
        kept.append(float(abs(found - true) / true))

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (name, found), style in zip(errors.items(), ("o-", "^-", "s-"), strict=True):
    axes.loglog(offsets, np.maximum(found, 1e-17), style, label=name)
axes.axhline(1, color="gray", lw=1, ls=":")
axes.annotate(
    "no digit is right", (offsets[0], 1), (0, 4), textcoords="offset points", color="gray"
)
axes.set(
    xlabel="mean of the data (their standard deviation is 1)",
    ylabel="relative error of the variance",
)
axes.grid(alpha=0.25)
axes.legend()
plt.show()

# %%
# With dask the same is one call, ``fa.moments(array, 0)``, on any number of machines.
del data
folder.cleanup()
