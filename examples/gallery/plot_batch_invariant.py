"""
Inference that no batch changes
===============================

A service that gathers requests into batches wants its answers to be *batch-invariant*: the answer
to a request must not depend on other requests. In fastact, the result of a row depends neither on
the other rows, nor on its place among them, nor on the number of threads.
"""

# %%
# One request among batches of different sizes, at different places.
import matplotlib.pyplot as plt
import numpy as np

import fastact as fa

rng = np.random.default_rng(0)
request = rng.normal(size=(1, 1000)).astype(np.float32)
weight = rng.normal(size=1000).astype(np.float32)


def naive(x):
    """The textbook's formula, by NumPy."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight


def ours(x):
    return fa.layer_norm(x, weight)


# %%
# A service cannot choose the memory layout either: here each batch is a part of a larger array, in
# C or in Fortran order.
sizes = [1, 2, 3, 7, 8, 33, 64, 257]
differ = {naive: [], ours: []}
for function, counts in differ.items():
    alone = function(request)
    for size in sizes:
        batch = rng.normal(size=(size, 1000)).astype(np.float32)
        place = int(rng.integers(size))
        batch[place] = request
        for threads in (1, 2, 4):
            with fa.num_threads(threads):
                in_c, in_f = function(batch), function(np.asfortranarray(batch))
        counts.append(sum(int((y[place] != alone[0]).sum()) for y in (in_c, in_f)))
assert not any(differ[ours])

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
place = np.arange(len(sizes))
axes.bar(place - 0.2, differ[naive], 0.4, label="NumPy's formula")
axes.bar(place + 0.2, differ[ours], 0.4, label="fastact.layer_norm: none")
axes.set_xticks(place, sizes)
axes.set(xlabel="requests in the batch", ylabel="elements with other bits")
axes.set_ylim(0, 1.3 * max(differ[naive]))
axes.legend(loc="upper left", ncols=2)
plt.show()
