"""
Arrays of a GPU, and of any library, by DLPack
==============================================

fastact computes an array with ``__dlpack__`` on its device: on the CPU, or on a GPU, on its
framework's current stream. Nothing is copied, and fastact links against no framework. This page
uses a GPU if there is one, and prints what it found.
"""

# %%
# ``show_config`` shows which devices can be used, and why others cannot. Arrays of a GPU are never
# computed on the CPU instead.
import importlib.util
import time

import matplotlib.pyplot as plt
import numpy as np

import fastact as fa

fa.show_config()

# %%
# Your own library must provide three things for an array: its memory, by ``__dlpack__``, its
# device, and a namespace that makes an array from given memory. Here the memory is NumPy's.


class Namespace:
    """What fastact asks of a library that it does not know."""

    @staticmethod
    def from_dlpack(producer):
        return Array(np.from_dlpack(producer))


class Array:
    """An array of that library."""

    def __init__(self, values):
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array_namespace__(self):
        return Namespace


x = np.linspace(-8, 4, 50_000, dtype=np.float32)
y = fa.mish(Array(x))
assert (y.values == fa.mish(x)).all()
print(f"{type(y).__name__} of {y.shape}, the bits of NumPy's")

# %%
# The same works on a GPU, with torch or CuPy. Without one, the example uses the device that
# fastact's tests emulate on the CPU, in builds that have it. Float32 and float64 give the same bits
# as the CPU.


def on_a_gpu(array):
    """Where it is, the array there, and how to get one back."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
            return name, torch.from_numpy(array).cuda(), lambda t: t.cpu().numpy()
    if importlib.util.find_spec("cupy"):
        import cupy

        if cupy.cuda.is_available():
            return "CuPy's device", cupy.asarray(array), cupy.asnumpy
    if importlib.util.find_spec("fastact._cuda_emulated"):
        from fastact.interop import devices

        there = devices.emulate().ExchangeArray.from_bytes(
            array.tobytes(), array.dtype.name, array.shape, 0
        )
        return (
            "the emulated device",
            there,
            lambda a: np.frombuffer(a.tobytes(), array.dtype).reshape(array.shape),
        )
    return None


if found := on_a_gpu(x):
    name, there, back = found
    y, saved = fa.mish.forward(there)
    dx = fa.mish.backward(y, *saved)
    same = (back(y) == fa.mish(x)).all()
    print(f"on {name}: {'the bits of the CPU' if same else 'other bits than on the CPU'}")
else:
    print("There is no GPU where this page was built.")

# %%
# DLPack adds a constant time to each call, compared with a NumPy array, which matters only for
# small arrays. No byte of the array is copied.
sizes = [10, 100, 1_000, 10_000, 100_000, 1_000_000]


def microseconds(array):
    """The quickest of some calls."""
    best = np.inf
    for _ in range(30):
        begin = time.perf_counter()
        fa.relu(array)
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best


def timed(kind):
    return [microseconds(kind(np.ones(size, np.float32))) for size in sizes]


figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.loglog(sizes, timed(np.asarray), "o-", label="an array of NumPy")
axes.loglog(sizes, timed(Array), "s-", label="an array of the library above")
axes.set(
    xlabel="elements", ylabel="µs for relu, of one call", title="measured as the page was built"
)
axes.grid(alpha=0.25)
axes.legend()
plt.show()
