"""Numbers, axes, shapes and switches as arguments: what is one, and what is refused by name.

Text is not parsed, no imaginary part or unit is dropped, and a message is short whatever came.
"""

import copy
import decimal
import fractions
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from arrays import f32
from judged import refused

import fastact as fa
from fastact.measure import cases
from fastact.runtime.threads import MOST

TIMES = 5  # until a call that could be recorded is


X = f32(2, 3)
BIG = np.zeros(100_000)

# Every float that an op takes: name, and the call with it.
NUMBERS: dict[str, Any] = {
    "layer_norm: eps": lambda v: fa.layer_norm(X, eps=v),
    "layer_norm.forward: eps": lambda v: fa.layer_norm.forward(X, eps=v),
    "layer_norm.backward: eps": lambda v: fa.layer_norm.backward(X, X, f32(2, 1), f32(2, 1), eps=v),
    "group_norm: eps": lambda v: fa.group_norm(X, 1, eps=v),
    "batch_norm: eps": lambda v: fa.batch_norm(X, f32(3), f32(3), eps=v),
    "batch_norm: momentum": lambda v: fa.batch_norm(X, f32(3), f32(3), training=True, momentum=v),
    "mean_var: correction": lambda v: fa.mean_var(X, correction=v),
    "leaky_relu: negative_slope": lambda v: fa.leaky_relu(X, v),
    "leaky_relu.backward: negative_slope": lambda v: fa.leaky_relu.backward(X, X, v),
    "elu: alpha": lambda v: fa.elu(X, alpha=v),
    "bias_act: negative_slope": lambda v: fa.bias_act(X, f32(3), "leaky_relu", negative_slope=v),
    "Moments.var: correction": lambda v: fa.moments(X).var(v),
}

GOOD: dict[str, Any] = {
    "float": 0.5, "int": 1, "True": True, "NumPy float": np.float32(0.5), "NumPy int": np.int8(1),
    "NumPy bool": np.True_, "half": np.float16(0.5), "0-d": np.array(0.5), "one": np.array([[0.5]]),
    "0-d int": np.array(1), "tensor": torch.tensor(0.5), "one tensor": torch.tensor([0.5]),
    "int tensor": torch.tensor(1), "bfloat16 tensor": torch.tensor(0.5, dtype=torch.bfloat16),
    "fraction": fractions.Fraction(1, 2), "decimal": decimal.Decimal("0.5"),
}  # fmt: skip

BAD: dict[str, Any] = {
    "text": "0.5", "bytes": b"0.5", "bytearray": bytearray(b"0.5"), "NumPy text": np.str_("0.5"),
    "complex": 0.5 + 0j, "NumPy complex": np.complex64(0.5), "0-d complex": np.array(0.5 + 0j),
    "complex tensor": torch.tensor(0.5 + 0j), "two": np.ones(2), "two of torch": torch.ones(2),
    "none of them": np.ones(0), "many": BIG, "list": [0.5], "tuple": (0.5,), "object": object(),
    "0-d text": np.array("0.5"), "0-d object": np.array(0.5, object), "date": np.datetime64(1, "s"),
    "duration": np.timedelta64(1, "s"), "0-d duration": np.array(1, "m8[s]"), "type": float,
    "an op": fa.mish,
}  # fmt: skip


@pytest.mark.parametrize("value", GOOD)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name, value):
    call, value = NUMBERS[name], GOOD[value]
    number = float(value.item() if hasattr(value, "item") else value)
    for _ in range(TIMES):
        given, expected = call(value), call(number)
        np.testing.assert_equal(given, expected)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number(name, value):
    call, value = NUMBERS[name], BAD[value]
    call(0.5)  # which has the hash of some of these
    refused(rf"^fastact\.{name} must be a real number, got ", call, value, longest=200)


@pytest.mark.parametrize("name", [n for n in NUMBERS if "momentum" not in n])
def test_none_is_no_number(name):
    refused(rf"^fastact\.{name} must be a real number, got None", NUMBERS[name], None)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_not_finite(name):
    for value in (np.nan, np.inf, -np.inf, np.array(np.nan), torch.tensor(np.inf)):
        words = rf"^fastact\.{name} must be finite, got -?(nan|inf)"
        refused(words, NUMBERS[name], value, error=ValueError)
    words = rf"^fastact\.{name} must be a number that float64 holds, got an integer of \d+ bits"
    for value in (10**400, -(10**400), 10**5000):  # Python prints no number of 5000 digits
        refused(words, NUMBERS[name], value, error=ValueError)


def test_what_is_masked_is_no_number():
    value = np.ma.array(0.5, mask=True)
    refused("eps must be a plain array, got a masked one", fa.layer_norm, X, eps=value)


# --- axes, shapes, switches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["1", b"1", 1.0, True, np.True_, np.array([1]), np.array(1.0), torch.tensor(True), [[0]], {0},
     np.ma.array(1, mask=True), np.ma.array(1), 1j, [None], BIG],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_is_no_axis(value):
    fa.sum(X, axis=1)
    words = r"^fastact\.sum: axis must be None, an integer or"
    refused(words, fa.sum, X, axis=value, longest=200)


@pytest.mark.parametrize("value", [1, np.int8(1), np.array(1), torch.tensor(1), [1], (-1,)])
def test_axes(value):
    for _ in range(TIMES):
        assert fa.sum(X, axis=value).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (b"\x02", TypeError, r"a tuple of integers, got b'\\x02'"),
        ("23", TypeError, "a tuple of integers, got '23'"),
        ({2, 3}, TypeError, "a tuple of integers"),
        ({2: 3}, TypeError, "a tuple of integers"),
        (6, TypeError, "a tuple of integers, got 6"),
        ((2.0,), TypeError, "a tuple of integers"),
        (BIG, TypeError, "a tuple of integers, got ndarray of float64"),
        ((2, -1), ValueError, r"no negative length, got \(2, -1\)"),
        ((2**70,), ValueError, r"fewer than 2\*\*58 elements"),
        ((2**31, 2**31), ValueError, r"fewer than 2\*\*58 elements"),
        ((0, 2**62), ValueError, r"fewer than 2\*\*58 elements"),
    ],
)
def test_shapes(value, error, words):
    words = rf"^fastact\..*: shape must (be|have) .*{words}"
    for call, first in ((fa.sum.backward, 1.0), (fa.unbroadcast, X)):
        refused(words, call, first, value, error=error, longest=200)
    words = r"^fastact\.Moments\.from_buffer: shape must"
    refused(words, fa.Moments.from_buffer, np.ones(3), value, error=error)


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no words")


def test_what_cannot_be_printed_is_named():
    refused(r"eps must be a real number, got \S*Unprintable", fa.layer_norm, X, eps=Unprintable())


@pytest.mark.parametrize(
    "n", [0, -1, MOST + 1, 2**31, 1.5, 3.0, "2.5", "3", b"3", None, BIG], ids=lambda n: str(n)[:9]
)
def test_thread_counts(n):
    before = fa.get_num_threads()
    error = ValueError if isinstance(n, int) else TypeError
    for take in (fa.set_num_threads, fa.num_threads):
        words = rf"^fastact\.{take.__name__}: n must be an integer from 1 to {MOST}, got "
        with pytest.raises(error, match=words) as caught:
            take(n)
        assert len(str(caught.value)) < 130
        assert n is BIG or str(caught.value).endswith(f"got {n!r}")
    assert fa.get_num_threads() == before


# --- saved arguments whose values do not matter ---------------------------------------------------


def test_the_identitys_x_must_fit_all_the_same():
    dy, bias = f32(2, 3), f32(3)
    expected = fa.bias_act.backward(dy, None, bias)
    words = r"^fastact\.bias_act\.backward: "
    for _ in range(TIMES):
        for x, residual in ((X, None), (X, X), (None, X), (np.full_like(X, np.nan), None)):
            dx, dbias = fa.bias_act.backward(dy, x, bias, residual)
            assert (dx == expected[0]).all()
            assert (dbias == expected[1]).all()
        with pytest.raises(ValueError, match=words + r"dy must have shape \(7,\), got \(2, 3\)"):
            fa.bias_act.backward(dy, f32(7), bias)
        with pytest.raises(TypeError, match=words + "dy must have dtype float64, as x has"):
            fa.bias_act.backward(dy, np.ones((2, 3)), bias)
        refused(words + "x must be an array, got 'x'", fa.bias_act.backward, dy, "x", bias)
        with pytest.raises(TypeError, match=words + "all arrays must come from one framework"):
            fa.bias_act.backward(dy, torch.ones(2, 3), bias)
        with pytest.raises(ValueError, match=words + "residual must have shape"):
            fa.bias_act.backward(dy, None, bias, f32(7))
    dx, dbias = fa.bias_act.backward(2.0, X, bias)  # a number for dy, as with any activation
    assert (dx == 2).all()
    assert (dbias == 4).all()


# --- copies and pickles ---------------------------------------------------------------------------

ENTRIES = [
    f"{name}.{entry}"
    for name, op in fa.ops.items()
    for entry in ("forward", "backward", "backward_reduce", "backward_apply", "value_and_grad")
    if hasattr(op, entry)
]


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_points_pickle_and_copy_by_name(name):
    op, entry = name.split(".")
    function = getattr(fa.ops[op], entry)
    for other in (
        pickle.loads(pickle.dumps(function)),
        copy.copy(function),
        copy.deepcopy(function),
    ):
        assert other == getattr(fa.ops[op], entry)


def test_entry_points_pickle_and_copy_once_used():
    """With the calls that they have recorded, which stay where they are."""
    _, saved = fa.layer_norm.forward(X, f32(3))
    for _ in range(TIMES):
        fa.layer_norm.forward(X, f32(3))
        expected = fa.layer_norm.backward(X, *saved)
    for function in (fa.layer_norm.backward, fa.layer_norm.forward, fa.sum.forward):
        assert copy.deepcopy({"f": function})["f"] == function
        assert pickle.loads(pickle.dumps([function])) == [function]
    again = copy.deepcopy(fa.layer_norm.backward)(X, *saved)
    np.testing.assert_equal(again[:2], expected[:2])


def test_moments_and_their_methods_pickle_and_copy():
    m = fa.moments(X, 0)
    for other in (pickle.loads(pickle.dumps(m)), copy.copy(m), copy.deepcopy(m)):
        assert other == m
    for method in (m.var, m.merge, fa.Moments.merge_many, fa.Moments.from_buffer):
        assert callable(pickle.loads(pickle.dumps(method)))
        assert callable(copy.deepcopy(method))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(m.var))(), m.var())


# What others call a keyword, and what it is called here.
OTHERS_NAMES = {
    "alpha": ("negative_slope",),
    "dim": ("axis", "channel_axis"),
    "inplace": ("out",),
    "keepdim": ("keepdims",),
    "normalized_shape": ("axis",),
    "unbiased": ("correction",),
    "where": ("mask",),
}


@pytest.mark.parametrize("other", OTHERS_NAMES)
def test_what_others_call_a_keyword(other: str) -> None:
    """The message names ours, where the op has it, and else none that happens to look alike."""
    hinted = 0
    for op in fa.ops.values():
        allowed = op.entry_points["call"].defaults
        if other in allowed:
            continue
        ours = [name for name in OTHERS_NAMES[other] if name in allowed]
        example = op.bound("call", cases.sample(op, np.ones((2, 4)), np.ones((2, 4))))
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{other}'") as raised:
            example(**{other: 1})
        assert ("did you mean" in str(raised.value)) == bool(ours)
        if ours:
            assert str(raised.value).endswith(f"did you mean {ours[0]!r}?")
            hinted += 1
    assert hinted


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("layernorm", "layer_norm"),
        ("LayerNorm", "layer_norm"),
        ("Mish", "mish"),
        ("CrossEntropyLoss", "cross_entropy"),
        ("softmx", "softmax"),
    ],
)
def test_a_name_that_is_not_there_names_what_is_near(wrong: str, near: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{wrong}'; did you mean '{near}'"):
        getattr(fa, wrong)
    assert not hasattr(fa, wrong)
    assert getattr(fa, wrong, None) is None
    with pytest.raises(ImportError, match=wrong):
        exec(f"from fastact import {wrong}")


def test_a_name_that_nothing_is_near() -> None:
    for name in ("xyzzy", "__wrapped__", "_mish"):
        with pytest.raises(AttributeError) as raised:
            getattr(fa, name)
        assert "did you mean" not in str(raised.value)
