"""norm_apply: a norm by statistics that come from elsewhere."""

from dataclasses import replace
from typing import Any

from ..interop.call import Call
from .batch_norm_docs import NORM_APPLY
from .bounds_docs import norm_backward, noted
from .channel_norm import STATISTICS, ChannelNorm, scratch
from .fused import IDENTITY, bind_fused
from .norm_arrays import WEIGHTS, apart, chosen, present
from .op_before import REQUIRED, Takes, register


class NormApply(ChannelNorm):
    """Normalised by given statistics, which count as constants on backward."""

    axis_name = "axis"
    _takes = Takes(
        {**dict.fromkeys(STATISTICS, REQUIRED), **dict.fromkeys(WEIGHTS)},
        {"axis": REQUIRED, "activation": IDENTITY},
    )
    _takes_back = replace(_takes, accumulates=True, outputs=3, skips=True)

    def __init__(self, doc: str) -> None:
        notes = norm_backward(self.bounds, training=False, given=True)
        docs = {"call": doc, "backward": noted(type(self).backward, notes)}
        super().__init__("norm_apply", "norms", ("x",), self._takes, docs, more="parameters")

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), x, args, kwargs, saves=False)[0]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """forward(x, mean, rstd, weight=None, bias=None, *, axis, ...) -> (y, saved)

        The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Returns
        -------
        y : array
        saved : tuple
            ``(x, mean, rstd, weight, bias)``, not copied: do not change them before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> one = np.ones(1)
        >>> y, saved = fa.norm_apply.forward(np.array([[3.0]]), one, one, one, axis=1)
        >>> fa.norm_apply.backward(1.0, *saved, axis=1)
        (array([[1.]]), array([2.]), None)
        """
        return self._map(self._where("forward"), x, args, kwargs, saves=True)

    def _map(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        _, which, parameters, options = bind_fused(where, self._takes, args, kwargs)
        arrays = {"x": x, **chosen(options, (*STATISTICS, *WEIGHTS))}
        with Call(where, options.stream, **present(where, arrays)) as call:
            views = call.views
            axis = self._axis_of(call, options)
            y, made = call.output("out", options.out[0], "x", in_place=not saves)
            apart(call, {"out": y})
            call.run(
                "norm_apply",
                which,
                views["x"],
                y,
                views["mean"],
                views["rstd"],
                views.get("weight"),
                views.get("bias"),
                axis,
                parameters,
                scratch(call, axis),
            )
            return call.result(options.out[0], made), tuple(map(call.arrays.get, arrays))

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """backward(dy, x, mean, rstd, weight=None, bias=None, *, axis, activation="identity",
        out=None, accumulate=False, ...) -> (dx, dweight, dbias)

        The gradients with respect to x, weight and bias, for mean and rstd that do not depend on x:
        those of `batch_norm.backward` without training.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        x, mean, rstd, weight, bias
            What `forward` saved.
        axis, activation, ...
            As told to `forward`.
        out : tuple of three arrays or None, optional
            Where to write each gradient; one that is None is not computed. dx may be dy or x.
        accumulate : bool
            Add the gradients to `out` instead of overwriting it.

        Returns
        -------
        dx, dweight, dbias : array
            As of `batch_norm.backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.norm_apply.backward(1.0, np.ones((1, 2)), np.zeros(2), np.full(2, 0.5), axis=1)[0]
        array([[0.5, 0.5]])
        """
        return self._gradients(self._takes_back, dy, x, args, kwargs)


norm_apply = register(NormApply(NORM_APPLY))
