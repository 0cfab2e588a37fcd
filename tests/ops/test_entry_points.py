"""What the entry points of an op take fits together, however each is declared."""

import inspect
from itertools import takewhile
from operator import attrgetter

import numpy as np
import pytest

import fastact as fa
from fastact.ops.activations import FusedKwargs
from fastact.ops.engine.entry import REQUIRED

each_op = pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)


@each_op
def test_options_have_the_defaults_of_the_call(op):
    of_call = op.entry_points["call"].defaults
    for point in op.entry_points.values():
        for name in point.defaults.keys() & of_call.keys():
            assert point.defaults[name] in (of_call[name], REQUIRED)


@each_op
def test_a_missing_array_is_named(op):
    for name, point in op.entry_points.items():
        function = op.entry_point(name)
        for count, missing in enumerate(point.arrays):
            words = rf"^{point.where}: {missing} must be given, by position$"
            with pytest.raises(TypeError, match=words):
                function(*[np.ones((2, 3))] * count)


def test_a_typed_method_has_the_signature_that_is_bound():
    """Type checkers read the def line, the binder `entry_points`."""
    whole = seen = 0
    for op in fa.ops.values():
        for name, point in op.entry_points.items():
            method = None if name == "call" else vars(type(op)).get(name)
            if not inspect.isfunction(method):
                continue
            _, *declared = inspect.signature(method).parameters.values()
            taken = [*point.signature.parameters.values()]
            typed = [*takewhile(lambda p: p.kind is not p.VAR_POSITIONAL, declared)]
            is_whole = typed == declared
            if is_whole:
                facts, rest = attrgetter("name", "kind", "default"), []
            else:  # a class of ops with different options
                facts, rest = attrgetter("kind", "default"), taken[len(typed) :]
            assert [*map(facts, typed)] == [*map(facts, taken[: len(taken) - len(rest)])]
            by_name = {p.name for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            assert name == "forward" or by_name <= FusedKwargs.__annotations__.keys()
            whole, seen = whole + is_whole, seen + 1
    assert whole > 6
    assert seen > 50


def test_outputs_of_entry_points_that_one_op_alone_has():
    """Of batch_norm's sums one that is None is not computed, of value_and_grad's allocated."""
    x, dy = np.random.default_rng(0).normal(size=(2, 6, 4))
    sums = fa.batch_norm.backward_reduce(dy, x, x[0], x[1])
    for k, (one, other) in enumerate(((np.zeros((1, 4)), None), (None, np.zeros((1, 4))))):
        found = fa.batch_norm.backward_reduce(dy, x, x[0], x[1], out=(one, other))
        assert found[1 - k] is None
        np.testing.assert_array_equal(found[k], sums[k])
    with pytest.raises(ValueError, match="out must have an array for at least one gradient"):
        fa.batch_norm.backward_reduce(dy, x, x[0], x[1], out=(None, None))
    value, dx = fa.sum_squares.value_and_grad(x, out=(None, x))
    assert dx is x
    np.testing.assert_array_equal(value, np.sum((x / 2) ** 2))
