"""What every op refuses, in each of its entry points: by the class of the error, the argument's
name and what is allowed, and nothing is written."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from every import Call, fits
from numpy.exceptions import AxisError

import fastact as fa
from fastact.interop import validate
from fastact.ops.engine.op import arrays_of

ENTRIES = ("call", "forward", "backward")
each_entry = pytest.mark.parametrize(
    ("op", "entry"),
    [(op, entry) for op in fa.ops.values() for entry in ENTRIES],
    ids=lambda part: getattr(part, "name", part),
)
SHAPE = (6, 16)


class Right:
    """A call that is right, with its arguments by name."""

    def __init__(self, op: Any, entry: str) -> None:
        assert fits(op, "{}", SHAPE)
        call = Call(op, {}, SHAPE, np.float32)
        run = call.backward() if entry == "backward" else op.bound(entry, call.named)
        point = op.entry_points[entry]
        names = (*point.arrays, *point.defaults)
        self.op, self.function, self.where = op, run.func, point.where
        self.named = {**dict(zip(names, run.args, strict=False)), **run.keywords}
        self.count, self.leader = len(run.args), names[0]
        made = run()
        made = made[0] if entry == "forward" else made
        self.models = [*map(np.asarray, arrays_of(made))]
        self.data = call.named[op.entry_points["call"].arrays[0]]

    def __call__(self, **changed: Any) -> Any:
        named = {**self.named, **changed}
        args = [named.pop(n) for n in [*self.named][: self.count]]
        return self.function(*args, **named)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        kinds = (np.ndarray,)
        return {n: v for n, v in self.named.items() if isinstance(v, kinds) and v.dtype.kind == "f"}

    def refuses(self, error: type[Exception], words: str, **changed: Any) -> None:
        held = [np.full_like(model, 7) for model in self.models]
        given = {} if "accumulate" in changed else {"out": (*held,) if len(held) > 1 else held[0]}
        for out in ({}, given, given):  # when the call that is right is recorded, too
            with pytest.raises(error, match=rf"(?s)^{self.where}: .*{words}") as caught:
                self(**{**out, **changed})
        assert len(str(caught.value)) < 500
        assert all((y == 7).all() for y in held)


def out_of(right: Right, array: Any) -> Any:
    """An output in the place of the first, as the entry point takes it."""
    return array if len(right.models) == 1 else (array, *[None] * (len(right.models) - 1))


@each_entry
def test_arrays(op, entry):
    """Of another shape, dtype, framework or kind."""
    right = Right(op, entry)
    for name, array in right.arrays.items():
        role = op.roles.get(name)
        if len(right.arrays) > 1:  # or another array does not fit this one
            wrong = np.ones((2, 3, 5, 7), array.dtype)
            right.refuses(ValueError, "must (have|broadcast|divide)", **{name: wrong})
        right.refuses(TypeError, name, **{name: array.astype(complex)})
        right.refuses(TypeError, name, **{name: object()})
        right.refuses(TypeError, name, **{name: "01"})
        right.refuses(TypeError, name, **{name: ["0", "1"]})
        if len(right.arrays) > 1:
            right.refuses(TypeError, r"\w", **{name: torch.from_numpy(array.copy())})
        if role is None and name in op.entry_points[entry].arrays:
            right.refuses(TypeError, rf"{name} must be", **{name: None})
        if role is validate.PARAMETER:
            right.refuses(TypeError, rf"{name} must have dtype", **{name: array.astype("f2")})
            right.refuses(TypeError, rf"{name} must be an array", **{name: 1.0})
        elif (
            array.shape == SHAPE and role is None and name != right.op.entry_points[entry].arrays[0]
        ):
            right.refuses(TypeError, "must have dtype", **{name: array.astype("f8")})


@each_entry
def test_outputs(op, entry):
    """Of another shape, dtype or framework, read-only, partly an input, or too many."""
    right = Right(op, entry)
    model, *_ = right.models
    held = np.full(model.shape, 7, model.dtype)
    frozen = held.copy()
    frozen.flags.writeable = False
    wide = np.float32 if model.dtype == np.float64 else np.float64
    for error, words, wrong in (
        (ValueError, "must have shape", np.ones((*model.shape, 2), model.dtype)),
        (TypeError, "must have dtype", held.astype(wide)),
        (TypeError, "must be an array of numpy", torch.from_numpy(held.copy())),
        (TypeError, "must be an array of numpy", [0.0]),
        (ValueError, "must be writable", frozen),
    ):
        right.refuses(error, rf"out.*{words}", out=out_of(right, wrong))
    assert (frozen == 7).all()
    if model.ndim > 1 and min(model.shape[0], model.shape[-1]) > 1:  # each row begins in another
        steps = [*model.strides[1:-1], model.itemsize]
        steps.insert(0, model.itemsize * (model.shape[-1] - 1))
        tangled = np.lib.stride_tricks.as_strided(held, model.shape, steps)
        right.refuses(ValueError, "out.*must not overlap itself", out=out_of(right, tangled))
        assert (held == 7).all()
    count = 20
    right.refuses((ValueError, TypeError), r"out must", out=(held,) * count)
    for k, one in enumerate(right.models[1:], 1):
        out: list[Any] = [None for _ in right.models]
        for error, words, wrong in (
            (ValueError, "must have shape", np.ones((*one.shape, 2), one.dtype)),
            (TypeError, "must have dtype", np.ones(one.shape, np.int8)),
        ):
            out[k] = wrong
            right.refuses(error, rf"out\[{k}\].*{words}", out=(*out,))
        if one.dtype == model.dtype:
            memory = np.zeros(one.size + model.size, one.dtype)
            out[0], out[k] = (memory[: a.size].reshape(a.shape) for a in (model, one))
            right.refuses(ValueError, r"out\[.*must not share memory", out=(*out,))
    if len(right.models) > 1 and entry == "backward":
        none = (None,) * len(right.models)
        right.refuses(ValueError, "out must have an array for at least one gradient", out=none)
    elif len(right.models) > 1:
        right.refuses(ValueError, "a tuple of", out=held)
    for name, array in right.arrays.items():
        if array.shape == model.shape and array.ndim:
            memory = np.zeros(array.size + 1, array.dtype)
            low, high = (memory[k : k + array.size].reshape(array.shape) for k in (0, 1))
            low[...] = array
            kept = memory.copy()
            for over in (high, low[::-1]):
                right.refuses(ValueError, "out.*", **{name: low, "out": out_of(right, over)})
            np.testing.assert_array_equal(memory, kept)


def wrong_options(op: Any, entry: str) -> Iterator[tuple[dict[str, Any], type[Exception], str]]:
    """Values of options that no op takes."""
    big, zeros = np.ones(100_000), np.zeros(SHAPE)
    known: dict[str, list[tuple[Any, type[Exception], str]]] = {
        "axis": [(1.0, TypeError, "axis must"), (True, TypeError, "axis must"),
                 ("0", TypeError, "axis must"), (7, AxisError, "axis must be from"),
                 (-7, AxisError, "axis must be from"),
                 (big, TypeError, "axis must")],
        "channel_axis": [(7, AxisError, "channel_axis must be from")],
        "keepdims": [(1, TypeError, "keepdims must be True or False")],
        "eps": [(-1e-5, ValueError, "eps must"),
                (np.nan, ValueError, "eps must be finite"),
                ("1", TypeError, "eps must be a real number")],
        "activation": [("mihs", ValueError, "'mihs'; did you mean 'mish'"),
                       (fa.sum, TypeError, "activation"), (None, TypeError, "activation")],
        "stream": [(1, ValueError, "stream must be None")],
        "accumulate": [(True, ValueError, "accumulate=True must come with out=")],
        "interleaved": [(1, TypeError, "interleaved must be True or False")],
        "limit": [(0.0, ValueError, "limit must be above zero"), ("7", TypeError, "limit must be")],
        "softcap": [(0.0, ValueError, "softcap must be above zero"), ("2", TypeError, "softcap")],
        "casting": [("lama", ValueError, "casting must be 'exact' or 'llama' or 'gemma'")],
        "weight_offset": [(np.nan, ValueError, "weight_offset must be finite"),
                          ("1", TypeError, "weight_offset must be a real number")],
        "p": [(1.5, ValueError, "p must be from 0 to 1"), (np.nan, ValueError, "p must be finite"),
              ("half", TypeError, "p must be a real number"), (None, TypeError, "p must")],
        "seed": [(2**64, ValueError, "seed must be an integer from"), (True, TypeError, "seed"),
                 (-(2**63) - 1, ValueError, "seed"), (1.0, TypeError, "seed must be an integer")],
        "group_size": [(5, ValueError, "group_size must divide"),
                       (0, ValueError, "group_size must divide"),
                       (1.5, TypeError, "group_size must be an integer")],
        "num_groups": [(5, ValueError, "num_groups must divide"), (0, ValueError, "num_groups"),
                       (1.5, TypeError, "num_groups must be an integer")],
        "gate": [("left", ValueError, "gate must be 'first' or 'second'")],
        "momentum": [(1.5, ValueError, "momentum must be from 0 to 1")],
        "reduction": [("max", ValueError, "reduction must be")],
        "label_smoothing": [(1.5, ValueError, "label_smoothing must be from 0 to 1")],
        "z_loss": [(-1, ValueError, "z_loss must not be negative"),
                   (np.inf, ValueError, "z_loss must be finite"), ("1", TypeError, "z_loss must")],
        "ignore_index": [(1.5, TypeError, "ignore_index must be an integer"),
                         (2**63, ValueError, "ignore_index must be an integer from")],
        "order": [("ifg", ValueError, "order must be a permutation"), (3, ValueError, "order")],
        "offset": [(np.inf, ValueError, "offset must")],
        "scale": [(np.inf, ValueError, "scale must be finite")],
        "beta": [(0.0, ValueError, "beta must be above zero, got .*beta=0.0"),
                 (-1, ValueError, "beta must be above zero")],
        "negative_slope": [(np.inf, ValueError, "negative_slope must be finite")],
        "approximate": [("erf", ValueError, "approximate must be 'none' or 'tanh', got 'erf'"),
                        (None, ValueError, "approximate must be 'none' or 'tanh', got None")],
        "initial": [("1", TypeError, "initial must be"), (1j, TypeError, "initial must be"),
                    ([1], TypeError, "initial must"), (np.nan, ValueError, "initial must be"),
                    (np.inf, ValueError, "initial must be")],
        "weights": [(zeros + 1j, TypeError, "weights must have dtype"),
                    (torch.ones(SHAPE), TypeError, "one framework")],
        "where": [(np.ma.ones(SHAPE), TypeError, "where")],
        "nothing": [(1, TypeError, "unexpected keyword argument 'nothing'")],
    }  # fmt: skip
    labels = zeros.astype(int)
    groups: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"by": labels[0, :2]}, ValueError, r"by must broadcast to x's shape \(6, 16\)"),
        ({"by": zeros}, TypeError, "by must have dtype int32 or"),
        ({"by": zeros.astype(object)}, TypeError, "by must have dtype"),
        ({"by": 1}, TypeError, "by must be an array, got 1"),
        *(({"by": labels + far, "out": None}, ValueError, "by must hold groups from")
          for far in (3, -2, 2**63 - 1, -(2**63))),
        ({"by": None}, TypeError, "groups must come with by"),
        ({"groups": -1}, ValueError, "groups must not be neg.* got -1"),
        ({"groups": 10**400}, ValueError, "groups must be an int.* from"),
        ({"groups": 2.5}, TypeError, "groups must be an integer, got 2.5"),
        ({"keepdims": True}, ValueError, "keepdims must be"),
        ({"axis": ()}, ValueError, "axis to reduce"),
    ]  # fmt: skip
    takes = "by" in op.entry_points[entry].defaults and entry != "backward"
    for changed, error, words in groups if takes else ():
        yield {"by": labels, "groups": 3, **changed}, error, words
    for name, wrongs in known.items():
        if name == "nothing" or name in op.entry_points[entry].defaults:
            yield from (({name: wrong}, error, words) for wrong, error, words in wrongs)
    yield {"outt": None}, TypeError, "did you mean 'out'"


@each_entry
def test_options(op, entry):
    right = Right(op, entry)
    for changed, error, words in wrong_options(op, entry):
        if op.traits.counts_elements and "offset" in changed:
            words, error = "offset must be an integer", TypeError
        right.refuses(error, words, **changed)
