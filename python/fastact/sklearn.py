"""Counterparts of scikit-learn: moments of a stream of batches, a scaler, and MLP predictions.

incremental_mean_and_var    mean and variance after one more batch, like scikit-learn's function
StandardScaler              scikit-learn's scaler, which uses that function
MLPInference                a fitted MLPClassifier or MLPRegressor, bias and activation in one pass
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from .waiting import installed

with installed("scikit-learn", "sklearn"):
    from scipy.sparse import issparse
    from sklearn import preprocessing
    from sklearn.base import _fit_context, is_classifier
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.utils.extmath import safe_sparse_dot
    from sklearn.utils.validation import check_is_fitted, validate_data

from .interop import foreign
from .ops.engine.op import ops
from .ops.moments import Moments

__all__ = ["MLPInference", "StandardScaler", "incremental_mean_and_var"]


# --- statistics -----------------------------------------------------------------------------------


def incremental_mean_and_var(
    X: Any,
    last_mean: Any,
    last_variance: Any,
    last_sample_count: Any,
    sample_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """Compute each feature's mean and variance over the samples so far and a batch.

    This is scikit-learn's `_incremental_mean_and_var`, except that a feature that is NaN in the
    whole batch keeps its mean and variance here.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features)
        The batch. NaN is left out, and zeros that are not stored count.
    last_mean, last_variance : array of shape (n_features,), or float
        The mean and variance of the samples so far. If the variance is None, it is not computed.
    last_sample_count : array of shape (n_features,), or int
        The number of samples so far, or the sum of their weights.
    sample_weight : array of shape (n_samples,), optional
        The weight of each sample. Negative weights subtract samples, and the data is read twice.

    Returns
    -------
    updated_mean, updated_variance, updated_sample_count : array of shape (n_features,)
        The results, in float64.

    Examples
    --------
    >>> import numpy as np, fastact.sklearn
    >>> fastact.sklearn.incremental_mean_and_var(np.array([[1.0], [3.0]]), 0.0, 0.0, 0)
    (array([2.]), array([1.]), array([2.]))
    """
    where = "fastact.sklearn.incremental_mean_and_var"
    if not issparse(X):
        foreign.plain(where, "X", X)
        X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"{where}: X must have two axes, got shape {X.shape}")
    if sample_weight is not None:
        foreign.plain(where, "sample_weight", sample_weight)
        sample_weight = np.asarray(sample_weight, np.float64)
        if sample_weight.shape != X.shape[:1]:
            raise ValueError(
                f"{where}: sample_weight must have shape {X.shape[:1]}, got {sample_weight.shape}"
            )
    features = X.shape[1:]
    so_far, mean, var = (
        np.array(np.broadcast_to(np.asarray(0.0 if v is None else v, np.float64), features))
        for v in (last_sample_count, last_mean, last_variance)
    )
    m = _Signed.of_checked(so_far, mean, var * so_far)
    for sign, weights in _by_sign(sample_weight):
        batch = _moments(X, weights)
        m = m.merge(_Signed.of_checked(sign * batch.count, batch.mean, sign * batch.m2))
    with np.errstate(all="ignore"):
        mean = np.where((m.count == 0) & np.isfinite(m.mean), np.nan, m.mean)
        return mean, None if last_variance is None else m.m2 / m.count, m.count


def _moments(X: Any, weights: Any) -> Moments:
    """Compute the moments of each column, without NaN."""
    moments: Any = ops["moments"]
    if not issparse(X):
        found: Moments = moments(X, 0, weights=weights, skipna=True)
        return found
    X = X if X.format in ("csr", "csc") else X.tocsr()
    if not X.has_canonical_format:  # entries of one place add up
        X = X.copy()
        X.sum_duplicates()
    (rows, columns), each, column = X.shape, None, X.indices[: X.nnz]
    lengths = np.diff(X.indptr)  # of rows, or of columns
    if weights is not None:
        each = np.repeat(weights, lengths) if X.format == "csr" else weights[column]
    if X.format == "csc":
        column = np.repeat(np.arange(columns, dtype=column.dtype), lengths)
    by: Any = {"by": column, "groups": columns}
    stored: Moments = moments(X.data[: X.nnz], weights=each, skipna=True, **by)
    if X.format == "csc":
        left = rows - lengths  # zeros that are not stored
    elif weights is None and stored.count.sum() == X.nnz:  # none is NaN
        left = rows - stored.count
    else:
        left = rows - np.bincount(column, minlength=columns)
    if weights is not None:
        left = np.where(left == 0, 0.0, weights.sum() - ops["sum"](each, **by))
    return stored.merge(Moments(left.astype(np.float64), np.zeros(columns), np.zeros(columns)))


class _Signed(Moments):
    """Moments whose count and m2 may be negative; a negative m2 is then not a root."""

    __slots__ = ()

    @property
    def _are_roots(self) -> Any:
        return np.zeros(np.shape(self.mean), bool)


def _by_sign(weights: Any) -> list[tuple[int, Any]]:
    """Split weights into nonnegative ones; Chan's formula also holds for negative counts."""
    if weights is None or not (weights < 0).any():
        return [(1, weights)]
    return [(1, np.maximum(weights, 0)), (-1, np.maximum(-weights, 0))]


def _of_sparse(
    X: Any, *, last_mean: Any = 0.0, last_var: Any = 0.0, last_n: Any = 0, **options: Any
) -> tuple[Any, Any, Any]:
    """Stand in for scikit-learn's functions of a first and a further sparse batch."""
    return incremental_mean_and_var(X, last_mean, last_var, last_n, options.get("weights"))


#: Our functions, by the names of scikit-learn's.
_OURS = {
    "_incremental_mean_and_var": incremental_mean_and_var,
    "mean_variance_axis": _of_sparse,
    "incr_mean_variance_axis": _of_sparse,
}


def _with_ours(method: Any) -> Any:
    """Return scikit-learn's method with its functions of these names replaced by ours."""
    function = getattr(method, "__wrapped__", method)
    for name in _OURS:
        if name not in function.__globals__:
            raise ImportError(f"fastact.sklearn: this version of scikit-learn has no {name}")
    names = {**function.__globals__, **_OURS}
    made = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    made.__module__, made.__qualname__ = __name__, f"StandardScaler.{function.__name__}"
    return _fit_context(prefer_skip_nested_validation=True)(made)


class StandardScaler(preprocessing.StandardScaler):  # type: ignore[misc]
    """scikit-learn's StandardScaler, with means and variances by `incremental_mean_and_var`.

    Everything else is scikit-learn's own: parameters, attributes and `transform`.

    Examples
    --------
    >>> import numpy as np, fastact.sklearn
    >>> scaler = fastact.sklearn.StandardScaler()
    >>> for batch in (np.array([[1.0], [3.0]]), np.array([[5.0], [7.0]])):
    ...     scaler = scaler.partial_fit(batch)
    >>> scaler.mean_, scaler.var_
    (array([4.]), array([5.]))
    """

    partial_fit = _with_ours(preprocessing.StandardScaler.partial_fit)


# --- networks -------------------------------------------------------------------------------------

_ACTIVATIONS = {"identity": "identity", "logistic": "sigmoid", "tanh": "tanh", "relu": "relu"}


class MLPInference:
    """Predictions of a fitted MLPClassifier or MLPRegressor.

    After each matrix product, bias and activation are applied in one pass, in place.

    Parameters
    ----------
    model : MLPClassifier or MLPRegressor
        The fitted model. It is read at each call, so it may be fitted further.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from fastact.sklearn import MLPInference
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MLPClassifier(random_state=0, max_iter=1000).fit(X, y)
    >>> bool((MLPInference(model).predict(X) == model.predict(X)).all())
    True
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, MLPClassifier | MLPRegressor):
            raise TypeError(
                f"fastact.sklearn.MLPInference: model must be an MLPClassifier or an "
                f"MLPRegressor, got {foreign.describe(model)}"
            )
        check_is_fitted(model)
        if model.activation not in _ACTIVATIONS:
            raise ValueError(
                f"fastact.sklearn.MLPInference: model must have an activation of "
                f"{', '.join(_ACTIVATIONS)}, got {model.activation!r}"
            )
        self.model = model

    def predict(self, X: Any) -> Any:
        """Return the model's own predictions, which are classes or values."""
        model, y = self.model, self._outputs(X)
        if not is_classifier(model):
            return y.ravel() if y.shape[1] == 1 else y
        if model.out_activation_ == "softmax":
            return model.classes_[y.argmax(1)]
        chosen = (y > 0.5).astype(int)
        return model.classes_[chosen.ravel()] if model.n_outputs_ == 1 else chosen

    def predict_proba(self, X: Any) -> Any:
        """Return a classifier's probabilities, in the model's own shape."""
        if not is_classifier(self.model):
            raise AttributeError("fastact.sklearn.MLPInference: a regressor has no probabilities")
        y = self._outputs(X)
        return np.hstack([1 - y, y]) if self.model.n_outputs_ == 1 else y

    def _outputs(self, X: Any) -> Any:
        model = self.model
        y = validate_data(model, X, accept_sparse=["csr", "csc"], reset=False)
        out = model.out_activation_
        hidden = [_ACTIVATIONS[model.activation]] * (len(model.coefs_) - 1)
        last = _ACTIVATIONS.get(out, "identity")
        for weight, bias, activation in zip(
            model.coefs_, model.intercepts_, [*hidden, last], strict=True
        ):
            y = safe_sparse_dot(y, weight)
            ops["bias_act"](y, bias.astype(y.dtype, copy=False), activation, out=y)
        return ops["softmax"](y, out=y) if out == "softmax" else y
