"""What batch_norm and norm_apply share: a mean, an rstd, a weight and a bias a channel."""

from collections.abc import Mapping
from typing import Any

from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .batch_norm_docs import CHANNEL_BOUNDS
from .fused import bind_fused
from .norm_arrays import WEIGHTS, chosen, gradients, present, results
from .op_before import QuickOp, Takes

STATISTICS = ("mean", "rstd")
RUNNING = ("running_mean", "running_var")


def one_a_channel(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape of statistics with as many axes as x."""
    return tuple(n if i == axis else 1 for i, n in enumerate(shape))


class ChannelNorm(QuickOp):
    """A norm whose statistics and parameters have one value a channel.

    axis_name : of the option that says which axis the channels are.
    """

    bounds = CHANNEL_BOUNDS
    axis_name: str

    def _axis_of(self, call: Call, options: Any) -> int:
        """The channels' axis of x, once every array of the call is known to fit x."""
        where, x = call.where, call.views["x"]
        axis = axes.one(where, getattr(options, self.axis_name), x.ndim, self.axis_name)
        for name, view in call.views.items():
            if name == "dy":
                validate.same_as(where, name, view, "x", x)
            elif name != "x":
                validate.parameter_dtype(where, name, view, "x", x)
                flat, kept = (x.shape[axis],), one_a_channel(x.shape, axis)
                is_flat = name in WEIGHTS or name in RUNNING
                if view.shape != flat and (is_flat or view.shape != kept):
                    axes.has_shape(where, name, view, flat if is_flat else kept)
        return axis

    def _gradients(
        self,
        takes: Takes,
        dy: Any,
        x: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, ...]:
        """dx, dweight and dbias; in training, if the op knows that, the statistics are x's own."""
        where = self._where("backward")
        _, which, parameters, options = bind_fused(where, takes, args, kwargs)
        arrays = {"x": x, "dy": dy, **chosen(options, (*STATISTICS, *WEIGHTS))}
        with Call(where, options.stream, **present(where, arrays)) as call:
            axis = self._axis_of(call, options)
            made = gradients(call, options)
            run_backward(
                call,
                which,
                axis,
                parameters,
                dict(zip(("dx", "dweight", "dbias"), (view for view, _ in made), strict=True)),
                training=getattr(options, "training", False),
                accumulate=options.accumulate,
            )
            return results(call, options.out, made)


def run_backward(
    call: Call,
    which: int,
    axis: int,
    parameters: tuple[float, ...],
    outs: Mapping[str, View | None],
    *,
    training: bool,
    accumulate: bool,
    count: float = 1.0,
) -> None:
    """Run the kernels of backward.

    outs : of "dx", "dweight" and "dbias" those that are wanted.
    count : of values that the call's sum_dy and sum_dy_xhat, if it has them, are over.
    """
    views = call.views
    call.run(
        "batch_norm_backward",
        which,
        views["dy"],
        views["x"],
        views["mean"],
        views["rstd"],
        views.get("weight"),
        views.get("bias"),
        views.get("sum_dy"),
        views.get("sum_dy_xhat"),
        count,
        outs.get("dx"),
        outs.get("dweight"),
        outs.get("dbias"),
        axis,
        parameters,
        training,
        accumulate,
        scratch(call, axis),
    )


def scratch(call: Call, axis: int) -> View | None:
    """What the kernels note of each channel."""
    return call.workspace(call.native.batch_norm_scratch(call.views["x"], axis))
