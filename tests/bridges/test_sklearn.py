"""scikit-learn's shapes, beside scikit-learn."""

import pickle
from typing import Any

import numpy as np
import pytest
from asserting import passes
from judged import refused

pytest.importorskip("sklearn")

from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.extmath import _incremental_mean_and_var

from fastact import sklearn as fs

ACTIVATIONS = ["relu", "tanh", "logistic", "identity"]


def batches(dtype: Any, has_nan: bool) -> Any:
    rng = np.random.default_rng(4)
    x = rng.normal(5, 2, (3000, 6)).astype(dtype)
    if has_nan:
        x[rng.random(x.shape) < 0.1] = np.nan
    x[:, 3] = 0.1
    return np.split(x, [1200, 1201]), np.split(rng.random(3000), [1200, 1201])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("has_nan", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_incremental(dtype, has_nan, weighted):
    ours: Any = (0.0, 0.0, 0)
    theirs: Any = (np.zeros(6), np.zeros(6), np.zeros(6))
    for x, w in zip(*batches(dtype, has_nan), strict=True):
        weights = w if weighted else None
        ours = fs.incremental_mean_and_var(x, *ours, weights)
        if not np.isnan(x).all(0).any():  # where scikit-learn gives NaN
            theirs = _incremental_mean_and_var(x, *theirs, weights)
        else:
            theirs = ours
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, 1e-12 if dtype == np.float64 else 1e-6, 1e-20)
    mean, var, _ = fs.incremental_mean_and_var(x, 0.0, None, 0)
    assert var is None
    assert mean.shape == (6,)


WEIGHTS: dict[str, Any] = {
    "negative": [1.0, -0.5, 2.0, 0.0, 3.0, -0.25],
    "mostly negative": [-1.0, -0.5, 2.0, 0.0, -3.0, -0.25],
    "zero": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "zero and one": [0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    "of sum zero": [1.0, -1.0, 0.5, -0.5, 0.0, 0.0],
    "NaN": [1.0, np.nan, 1.0, 1.0, 1.0, 1.0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", WEIGHTS)
@pytest.mark.parametrize("second", WEIGHTS)
@pytest.mark.parametrize("has_nan", [False, True])
def test_weights_of_any_sign(has_nan, second, first):
    """Two batches; the sums, too, where nothing is left to divide by."""
    x = np.random.default_rng(1).normal(5, 2, (2, 6, 3))
    if has_nan:
        x[:, 0, 0] = x[1, 2, 2] = np.nan
    ours: Any = (0.0, 0.0, 0)
    theirs: Any = (np.zeros(3), np.zeros(3), np.zeros(3))
    for part, weights in zip(x, (WEIGHTS[first], WEIGHTS[second]), strict=True):
        ours = fs.incremental_mean_and_var(part, *ours, weights)
        theirs = _incremental_mean_and_var(part, *theirs, np.array(weights))
        if not np.isfinite(theirs[0]).all():  # from here on scikit-learn has NaN
            np.testing.assert_array_equal(np.isfinite(ours[0]), np.isfinite(theirs[0]))
            return
        if sum(weights) == 0:  # of a batch that weighs nothing it has no variance
            assert np.isfinite(ours[1]).all()
            return
        np.testing.assert_allclose(ours[0], theirs[0], 1e-9)
        np.testing.assert_allclose(ours[1], theirs[1], 1e-9)
        np.testing.assert_allclose(ours[2], theirs[2], 1e-12)


def test_far_from_zero():
    """Equal values do not vary, and a mean of 1e8 costs the variance nothing."""
    x = np.random.default_rng(5).normal(1e8, 1, (1000, 2))
    exact = np.var(x.astype(np.longdouble), 0)
    state: Any = (0.0, 0.0, 0)
    for part in np.split(x, 10):
        state = fs.incremental_mean_and_var(part, *state)
    np.testing.assert_allclose(state[1], exact.astype(float), 1e-9)
    weights = np.random.default_rng(6).random(1000)
    for w in (None, weights):
        assert not fs.incremental_mean_and_var(np.full((1000, 2), 0.1), 0.0, 0.0, 0, w)[1].any()


def test_a_feature_without_values():
    x = np.array([[1.0, np.nan], [3.0, np.nan]])
    mean, var, count = fs.incremental_mean_and_var(x, 0.0, 0.0, 0)
    np.testing.assert_array_equal((mean, var, count), [[2, np.nan], [1, np.nan], [2, 0]])
    mean, var, count = fs.incremental_mean_and_var(x, [2.0, 5.0], [1.0, 4.0], [2, 7])
    np.testing.assert_array_equal((mean, var, count), [[2, 5], [1, 4], [4, 7]])


def test_refused():
    for words, args in (
        ("X must be a plain array, got a masked one", (np.ma.ones((2, 2)), 0, 0, 0)),
        (r"X must have two axes, got shape \(3,\)", (np.ones(3), 0, 0, 0)),
        (r"sample_weight must have shape \(2,\)", (np.ones((2, 2)), 0, 0, 0, np.ones(3))),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"incremental_mean_and_var: {words}"):
            fs.incremental_mean_and_var(*args)


@parametrize_with_checks([fs.StandardScaler()])
@pytest.mark.filterwarnings("ignore")
def test_estimator(estimator, check):
    check(estimator)
    passes("scikit-learn's own asserts")


@pytest.mark.filterwarnings("ignore")
def test_scaler():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = load_digits().data
    ours, theirs = fs.StandardScaler(), StandardScaler()
    for part in np.array_split(x, 7):
        ours.partial_fit(part)
        theirs.partial_fit(part)
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x), 1e-10, 1e-12)
    np.testing.assert_allclose(fs.StandardScaler().fit(x).scale_, theirs.scale_, 1e-12)
    assert pickle.loads(pickle.dumps(ours)).n_samples_seen_ == len(x)
    csr = scipy_sparse.csr_array(x)
    sparse = [s(with_mean=False).fit(csr).var_ for s in (fs.StandardScaler, StandardScaler)]
    np.testing.assert_allclose(*sparse, 1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse(dtype, kind, weighted):
    """As the same batches in full: zeros that are stored, and not; empty and full columns, NaN."""
    made = getattr(pytest.importorskip("scipy.sparse"), kind)
    rng, (parts, weights) = np.random.default_rng(8), batches(dtype, True)
    ours, theirs = fs.StandardScaler(with_mean=False), StandardScaler(with_mean=False)
    ours_in_full: Any = (0.0, 0.0, 0)
    for x, w in zip(parts, weights, strict=True):
        x[:, 0], x[:, 1] = x[:, 0] - 5, 0
        x[:, 4:] *= rng.random((len(x), 2)) < 0.3
        sparse, w = made(x), w.astype(dtype) if weighted else None  # as scikit-learn has them
        sparse.data[::50] = 0
        ours.partial_fit(sparse, sample_weight=w)
        theirs.partial_fit(sparse, sample_weight=w)
        ours_in_full = fs.incremental_mean_and_var(sparse.toarray(), *ours_in_full, w)
    found = ours.mean_, ours.var_, np.broadcast_to(ours.n_samples_seen_, 6)
    for a, b in zip(found, ours_in_full, strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-15)
    for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
        tolerance = 1e-9 if dtype == np.float64 else 1e-4
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), tolerance, 1e-6)


def test_sparse_entries_of_one_place_add_up():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = scipy_sparse.csr_array(
        (np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2, 2])), (2, 3)
    )
    for of_format in (x, x.tocoo()):
        mean, var, count = fs.incremental_mean_and_var(of_format, 0.0, 0.0, 0)
        np.testing.assert_array_equal((mean, var, count), [[0, 1.5, 0], [0, 2.25, 0], [2, 2, 2]])
    assert x.nnz == 2


@pytest.mark.filterwarnings("ignore")  # it does not converge in a few steps
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_networks(activation):
    x, y = load_digits(return_X_y=True)
    settings: dict[str, Any] = {
        "hidden_layer_sizes": (32, 16), "activation": activation, "max_iter": 5, "random_state": 0
    }  # fmt: skip
    for classes in (y, y % 2, np.array(["even", "odd"])[y % 2], np.stack([y % 2, y // 5], 1)):
        model = MLPClassifier(**settings).fit(x, classes)
        ours = fs.MLPInference(model)
        np.testing.assert_array_equal(ours.predict(x), model.predict(x))
        np.testing.assert_allclose(ours.predict_proba(x), model.predict_proba(x), 1e-9, 1e-15)
    narrow = x.astype(np.float32)
    for targets in (y, np.stack([y, -y], 1)):
        regressor = MLPRegressor(**settings).fit(narrow, targets.astype(np.float32))
        expected = regressor.predict(narrow)
        found = fs.MLPInference(regressor).predict(narrow)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, 1e-3, 1e-3)


def test_networks_refused():
    with pytest.raises(TypeError, match="model must be an MLPClassifier or an MLPRegressor, got"):
        fs.MLPInference(StandardScaler())
    refused("not fitted", fs.MLPInference, MLPClassifier(), error=ValueError)
