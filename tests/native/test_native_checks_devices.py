"""The CUDA module's native functions with workspaces that are short and arrays that do not fit."""

from typing import Any

import numpy as np
import pytest
from devices import KERNELS
from native import ANY, Calls, recording

import fastact as fa
from fastact import _cpu
from fastact._cpu import View

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def recorded() -> Calls:
    """Native functions with arguments that are right, at sizes that need workspaces."""
    if not KERNELS:
        pytest.skip("neither a GPU nor the emulated device")
    of = KERNELS[0].of

    def f32(*shape: int) -> Any:
        return of(RNG.normal(size=shape).astype(np.float32))

    with recording() as (calls, kept):
        x, one = f32(700, 3), f32(3)
        results = [
            fa.mish(f32(3, 5)),
            fa.sum(x, 0),
            fa.sum(f32(30_000)),
            fa.sum_squares.value_and_grad(f32(30_000)),
            fa.moments(f32(30_000)),
            fa.nanvar(f32(40_000), weights=of(np.ones(40_000, np.float32))),
            fa.average.backward(one, f32(700, 3), f32(700, 1), axis=0),
            fa.bias_act.backward(x, x, one, None, "mish"),
        ]
        y, saved = fa.gated.forward(x, x, "mish", bias=f32(6))
        results += [y, saved, fa.gated.backward(x, *saved, "mish")]
        y, saved = fa.layer_norm.forward(f32(300, 8), f32(8), f32(8))
        results += [y, saved, fa.layer_norm.backward(f32(300, 8), *saved)]
        y, saved = fa.batch_norm.forward(x, None, None, one, one, training=True)
        results += [y, saved, fa.batch_norm.backward(x, *saved, training=True)]
        (h, c), saved = fa.lstm_gates.forward(f32(300, 8), f32(300, 2), bias=f32(8))
        results += [h, c, saved, fa.lstm_gates.backward(h, c, *saved)]
        long = f32(2, 33_000)  # from 8192 vectors on rows are cut
        for op in (fa.softmax, fa.log_softmax, fa.logsumexp):
            y, saved = op.forward(long)
            results += [y, saved, op.backward(y, *saved)]
        target = of(np.array([5, 7]))
        for reduction in ("none", "mean"):
            y, saved = fa.cross_entropy.forward(long, target, reduction=reduction)
            results += [y, saved, fa.cross_entropy.backward(y, *saved, reduction=reduction)]
    calls.append((None, (*kept, results)))  # their memory
    return calls


def replaced(arguments: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*arguments[:at], value, *arguments[at + 1 :])


def test_workspaces_that_are_short(recorded):
    needed = set()
    for function, arguments in recorded[:-1]:
        for at, value in enumerate(arguments):
            if type(value) is not View or value.dtype >= 0:
                continue
            for size in (value.size - 1, 0):
                short = value.shaped((size,))
                with pytest.raises(ValueError, match=r"_cuda: (\w+: )?workspace must have \d"):
                    function(*replaced(arguments, at, short))
            with pytest.raises(ValueError, match=r"workspace must have \d+ bytes, got 0"):
                function(*replaced(arguments, at, None))
            needed.add(function.__name__)
    assert needed >= {"sum", "square_value_and_grad", "bias_act_backward", "batch_norm_forward"}
    assert needed >= {"batch_norm_backward", "gated_backward", "gates_backward", "norm_backward"}
    assert needed >= {"softmax_forward", "softmax_backward", "cross_entropy_forward"}


def test_arrays_that_do_not_fit(recorded):
    refused, passed = 0, []
    for function, arguments in recorded[:-1]:
        for at, value in enumerate(arguments):
            if type(value) is not View or value.dtype < 0:
                continue
            for wrong in (
                value.with_axes((0,)),
                value.with_axes((value.ndim,)),
                value.shaped(value.shape),
                View(),
            ):
                try:
                    function(*replaced(arguments, at, wrong))
                except (ValueError, TypeError, AttributeError, RuntimeError):
                    refused += 1
                else:
                    assert wrong.address != 0
                    passed.append(function.__name__)
    assert refused > 100
    # A channel's numbers may have one axis or as many as x, one number any axes.
    rules = {n: {f["shape"] for f in fields.values()} for n, fields in _cpu.native_calls().items()}
    assert all(rules[name] & {"channels", "one"} for name in passed)


@pytest.mark.parametrize(
    "wrong",
    [object(), np.ones(3, np.float32), View, View()],
    ids=["object", "array", "class", "unfilled"],
)
def test_what_is_no_view(recorded, wrong):
    """Or one that was never filled in: nothing is read of it."""
    for function, arguments in recorded[:-1]:
        first = next(at for at, value in enumerate(arguments) if type(value) is View)
        with pytest.raises(TypeError, match=r"fastact\._c(uda|pu): .* must be a View"):
            function(*replaced(arguments, first, wrong))


def test_numbers_out_of_range(recorded):
    for function, arguments in recorded[:-1]:
        for at, (name, value) in enumerate(zip(function.fields, arguments, strict=True)):
            if type(value) is int and name not in {*ANY, "stream"}:
                for wrong in (-1, 1000, 2**31 - 1):
                    with pytest.raises((ValueError, TypeError)):
                        function(*replaced(arguments, at, wrong))
            if type(value) is tuple:
                for wrong in ((64,), (-1,), tuple(range(5, 100))):
                    if function.__name__ == "activation_forward" and len(wrong) == 1:
                        continue  # a parameter, of any value
                    try:
                        function(*replaced(arguments, at, wrong))
                    except (ValueError, TypeError):
                        continue
                    assert (len(wrong), value) == (1, ())  # parameters, again
