"""The functions that every native module has, one signature for all: `_cpu` and the devices'
modules.

A type checker holds `_cpu.pyi` and the calls of the ops to it, a test the modules of devices, which
have no stub (tests/native/test_native_functions.py). Arrays are `View`s; which of them a function
writes (OUT), its comment in the native sources says. `stream` is 0 on the CPU.
"""

from typing import Protocol

from .._cpu import View


class Native(Protocol):
    """The module that computes, for arrays in the memory of the CPU or of a device."""

    def sum_workspace(self, term: int, x: View, y: View, axes: tuple[int, ...]) -> int: ...

    def sum(
        self,
        term: int,
        x: View,
        y: View,
        axes: tuple[int, ...],
        divisor: float,
        workspace: View | None,
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def sum_backward(
        self, term: int, dy: View, x: View, dx: View, accumulate: bool, stream: int
    ) -> None: ...

    def square_value_and_grad(
        self, x: View, y: View, grad: View, workspace: View | None, stream: int
    ) -> None: ...

    def broadcast(self, x: View, y: View, accumulate: bool, stream: int) -> None: ...

    def moments_workspace(
        self,
        x: View,
        weights: View | None,
        where: View | None,
        y: View,
        axes: tuple[int, ...],
        skips: bool,
    ) -> int: ...

    def moments(
        self,
        x: View,
        weights: View | None,
        where: View | None,
        mean: View | None,
        low: View | None,
        second: View | None,
        count: View | None,
        axes: tuple[int, ...],
        of_m2: int,
        correction: float,
        skips: bool,
        warning: str | None,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def moments_backward(
        self,
        dmean: View,
        dsecond: View,
        x: View,
        mean: View,
        low: View | None,
        dx: View,
        share: float,
        scale: float,
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def statistic_backward(
        self,
        dy: View,
        slope: View,
        x: View,
        mean: View | None,
        low: View | None,
        dx: View,
        skips: bool,
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def weighted_gradient(
        self,
        dy: View,
        slope: View,
        x: View,
        weights: View | None,
        where: View | None,
        mean: View | None,
        to: View,
        of_weights: bool,
        skips: bool,
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def batch_norm_scratch(self, x: View, axis: int) -> int: ...

    def batch_norm_forward(
        self,
        which: int,
        x: View,
        y: View,
        running_mean: View | None,
        running_var: View | None,
        weight: View | None,
        bias: View | None,
        mean: View | None,
        rstd: View | None,
        axis: int,
        parameters: tuple[float, ...],
        training: bool,
        momentum: float,
        eps: float,
        scratch: View | None,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def batch_norm_backward(
        self,
        which: int,
        dy: View,
        x: View,
        mean: View,
        rstd: View,
        weight: View | None,
        bias: View | None,
        sum_p: View | None,
        sum_p_xhat: View | None,
        count: float,
        dx: View | None,
        dweight: View | None,
        dbias: View | None,
        axis: int,
        parameters: tuple[float, ...],
        training: bool,
        accumulate: bool,
        scratch: View | None,
        stream: int,
    ) -> None: ...

    def norm_apply(
        self,
        which: int,
        x: View,
        y: View,
        mean: View,
        rstd: View,
        weight: View | None,
        bias: View | None,
        axis: int,
        parameters: tuple[float, ...],
        scratch: View | None,
        stream: int,
    ) -> None: ...


class Device(Native, Protocol):
    """What computes on a device, and what only a device needs."""

    def fill(self, destination: View, itemsize: int, bits: int, stream: int) -> None: ...

    def device_of_stream(self, stream: int) -> int: ...

    def device_of_memory(self, address: int) -> int: ...

    def make_wait(self, device: int, stream: int, ours: int) -> None: ...
