"""Where norms write: in place, to given arrays, added; and gradients that come expanded."""

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same_bits, on_backends
from normed import SETTINGS, Arrays, few_settings, run

import fastact as fa


@few_settings
def test_statistics_may_be_given_memory(setting):
    arrays = Arrays(setting, np.dtype(np.float32))
    y, saved = arrays.call(arrays.op.forward)
    assert not setting.adds or saved[0] is y[1]
    end = len(saved) - len(arrays.weights)
    first = end - len(arrays.setting.kind.statistics)
    statistics = saved[first:end]
    out = (*map(np.empty_like, (*(y if setting.adds else (y,)), *statistics)),)
    again, kept = arrays.call(arrays.op.forward, out=out)
    assert (again[0] if setting.adds else again) is out[0]
    for a, b in zip(statistics, kept[first:], strict=False):
        assert_same_bits(a, b)
        assert any(b is o for o in out)


@on_backends("setting", [(s,) for s in SETTINGS if s.adds])
def test_gradient_of_the_sum(setting, dtype, backend):
    arrays = Arrays(setting, dtype)
    at = int(setting.kind.drops)  # behind dx, which is dropped
    (_, saved), gradients = run(arrays, backend, activation="mish")
    dx, dtotal = gradients[at], arrays.residual
    options = {**setting.options, "activation": "mish"}
    given = [None if a is None else backend.of(a) for a in (arrays.dy, *saved)]
    held = backend.of(dtotal.copy())  # and in place
    both = backend.numpy(arrays.op.backward(*given, dtotal=held, **options)[at])
    wide = np.promote_types(dtype, np.float32)
    eps = float(ml_dtypes.finfo(dtype).eps)
    expected = dx.astype(wide) + dtotal.astype(wide)
    np.testing.assert_allclose(both.astype(wide), expected, 2 * eps, 4 * eps)
    outs = tuple(held if i == at else None for i in range(len(gradients)))
    arrays.op.backward(*given, dtotal=held, out=outs, **options)
    assert_same_bits(backend.numpy(held), both)
    added = backend.of(np.ones_like(dx))
    outs = tuple(added if i == at else None for i in range(len(gradients)))
    held = backend.of(dtotal.copy())
    arrays.op.backward(*given, dtotal=held, out=outs, accumulate=True, **options)
    np.testing.assert_allclose(
        backend.numpy(added).astype(wide), both.astype(wide) + 1, 2 * eps, 4 * eps
    )


@pytest.mark.parametrize("columns", [64, 512, 4096])
@pytest.mark.parametrize("op", [fa.add_rms_norm, fa.add_layer_norm], ids=str)
def test_all_that_is_added_to_dx(op, columns, dtype, backend):
    """The sum's gradient and what is there, of whole rows, for which devices have kernels."""
    random = np.random.default_rng(0)
    x, residual, dy, dtotal = random.normal(size=(4, 30, columns)).astype(dtype)
    _, saved = op.forward(x, residual, np.ones(columns, dtype))
    given = [None if a is None else backend.of(a) for a in (dy, *saved)]
    plain = [None if g is None else backend.numpy(g) for g in op.backward(*given)]
    outs = tuple(None if g is None else backend.of(np.ones_like(g)) for g in plain)
    op.backward(*given, dtotal=backend.of(dtotal), out=outs, accumulate=True)
    wide, eps = np.promote_types(dtype, np.float32), float(ml_dtypes.finfo(dtype).eps)
    expected = plain[0].astype(wide) + dtotal.astype(wide) + 1
    found = backend.numpy(outs[0]).astype(wide)
    np.testing.assert_allclose(found, expected, 4 * eps, 8 * eps)
