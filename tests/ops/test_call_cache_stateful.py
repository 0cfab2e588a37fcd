"""Recorded calls under any history: each gives the bits that it has uncached.

What a plan may not depend on changes between the calls: values, memory, layouts, threads,
parameters and the kind of object they are, calls that are refused, arrays that are gone.
"""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from calls import backward, uncached
from conftest import assert_same_bits
from devices import DTYPES, from_torch, to_torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import fastact as fa
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

# Few of each, so that calls of one kind meet often enough to be recorded; the last shape is large
# enough for two threads and workspaces.
SHAPES = [(4, 8), (8, 4), (3, 8), (64, 512)]
PARAMETERS = [0.125, 0.25, 0.5, 1.0]  # of all of them: a momentum is 1 at the most
KINDS: dict[str, Any] = {
    "float": float,
    "float32": np.float32,
    "float64": np.float64,
    "0-d": np.array,
    "tensor": torch.tensor,
}
# The calls, with the parameter that is a number.
CALLS = [
    ("mish", "call", None),
    ("leaky_relu", "call", "negative_slope"),
    ("elu", "backward", "alpha"),
    ("sum", "call", None),
    ("sum_squares", "value_and_grad", None),
    ("bias_grad", "call", None),
    ("mean_var", "call", "correction"),
    ("bias_act", "call", "alpha"),
    ("bias_act", "backward", "alpha"),
    ("layer_norm", "call", "eps"),
    ("layer_norm", "forward", "eps"),
    ("add_rms_norm", "call", "eps"),
    ("batch_norm", "forward", "momentum"),
    ("lstm_gates", "backward", None),
]


def laid_out(values: np.ndarray, layout: str, offset: int) -> np.ndarray:
    """The values in other memory. offset: bytes by which it misses a multiple of 64 or so."""
    raw = np.zeros(values.nbytes + offset, np.uint8)[offset:]
    made = raw.view(values.dtype).reshape(values.shape)
    if layout == "fortran":
        made = made.reshape(values.shape[::-1]).T
    made[...] = values
    return made


class Calls(RuleBasedStateMachine):
    """Ops, and a pool of arrays that they are called with."""

    @initialize()
    def start(self) -> None:
        self.pool: list[np.ndarray] = []
        self.last: Any = None
        self.history: list[str] = []
        self.rng = np.random.default_rng(0)

    @rule(
        shape=st.sampled_from(SHAPES),
        dtype=st.sampled_from(sorted(DTYPES)),
        layout=st.sampled_from(["C", "fortran"]),
        offset=st.sampled_from([0, 16, 1]),
    )
    def add(self, shape: Any, dtype: str, layout: str, offset: int) -> None:
        values = self.rng.standard_normal(shape).astype(DTYPES[dtype])
        self.pool.append(laid_out(values, layout, offset))

    @precondition(lambda self: self.pool)
    @rule(at=st.integers(0, 99))
    def change(self, at: int) -> None:
        x = self.pool[at % len(self.pool)]
        x[...] = self.rng.standard_normal(x.shape).astype(x.dtype)

    @precondition(lambda self: self.pool)
    @rule(at=st.integers(0, 99))
    def delete(self, at: int) -> None:
        self.pool.pop(at % len(self.pool))
        gc.collect()

    @rule(threads=st.integers(1, 4))
    def share(self, threads: int) -> None:
        fa.set_num_threads(threads)

    @precondition(lambda self: self.pool)
    @rule(
        at=st.integers(0, 99),
        what=st.sampled_from(CALLS),
        first=st.sampled_from(PARAMETERS),
        more=st.lists(st.sampled_from(PARAMETERS), max_size=3),
        kind=st.sampled_from(sorted(KINDS)),
        is_torch=st.sampled_from([False, False, True]),
        gives_out=st.booleans(),
    )
    def call(
        self, at: int, what: Any, first: float, more: list[float], kind: str, is_torch: bool,
        gives_out: bool,
    ) -> None:  # fmt: skip
        x = self.pool[at % len(self.pool)]
        for value in [first, first, first, *more]:  # the third one is replayed
            self._call(x, what, KINDS[kind](value), is_torch, gives_out)
            x[...] = x[::-1].copy()  # other values in the same memory

    @precondition(lambda self: self.last is not None)
    @rule(kind=st.sampled_from(["keyword", "dtype", "nothing"]))
    def refuse(self, kind: str) -> None:
        function, args, named = self.last
        if kind == "keyword":
            named = {**named, "no_such_option": 1}
        args = (np.zeros(args[0].shape, np.complex64), *args[1:]) if kind == "dtype" else args
        with pytest.raises((TypeError, ValueError)):
            function(*(() if kind == "nothing" else args), **named)

    def _call(self, x: Any, what: Any, value: Any, is_torch: bool, gives_out: bool) -> None:
        name, entry, parameter = what
        function = fa.ops[name].entry_point(entry)
        of, back = (to_torch, from_torch) if is_torch else (np.asarray, np.asarray)
        options = {} if parameter is None else {parameter: value}

        def run(**more: Any) -> list[Any]:
            args, named = self._arguments(x, name, entry)  # anew: some are written to
            args = tuple(of(a) if isinstance(a, np.ndarray) else a for a in args)
            named = {k: of(v) if isinstance(v, np.ndarray) else v for k, v in named.items()}
            self.last = function, args, {**named, **options, **more}
            found = function(*args, **self.last[2])
            if entry == "forward":
                found = (*arrays_of(found[0]), *found[1])
            is_array = (hasattr(a, "dtype") for a in arrays_of(found))
            pairs = zip(arrays_of(found), is_array, strict=True)
            return [np.array(back(a)) if there else a for a, there in pairs]

        expected, more = uncached(run), {}
        if gives_out and entry == "call" and [part.shape for part in expected] == [x.shape]:
            more["out"] = of(np.empty_like(x))
        found = run(**more)
        self.history.append(f"{name}.{entry} {x.dtype}{x.shape} {is_torch} {value!r}")
        for one, other in zip(found, expected, strict=True):
            try:
                assert one is other or assert_same_bits(one, other) is None
            except AssertionError as error:  # what is recorded outlives an example: say all of it
                raise AssertionError("; ".join(self.history[-9:])) from error

    def _arguments(self, x: np.ndarray, name: str, entry: str) -> tuple[Any, dict[str, Any]]:
        """Arrays that fit x, made of its values."""
        op = fa.ops[name]
        point = op.entry_points[entry]
        sample = cases.sample(op, x, x)
        if "running_mean" in sample:
            moving = np.zeros(x.shape[1], np.float32 if x.itemsize < 8 else np.float64)
            sample |= {"running_mean": moving, "running_var": 1 + moving}
        call = backward(op, x, x) if entry == "backward" else op.bound(entry, sample)
        named = dict(zip((*point.arrays, *point.defaults), call.args, strict=False))
        named |= call.keywords
        if "activation" in point.defaults:  # one with a parameter
            named["activation"] = "elu"
        return tuple(named.pop(name) for name in point.arrays), named


@pytest.mark.thorough  # each of its 600 calls is computed twice
def test_calls() -> None:
    threads = fa.get_num_threads()

    case = Calls.TestCase()
    case.settings = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        phases=[
            Phase.generate
        ],  # what is recorded outlives an example: a smaller one need not fail
        suppress_health_check=list(HealthCheck),
    )
    try:
        with np.errstate(all="ignore"):
            case.runTest()
    finally:
        fa.set_num_threads(threads)
