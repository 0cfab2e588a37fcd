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

    def activation_forward(
        self, which: int, x: View, y: View, parameters: tuple[float, ...], stream: int
    ) -> None: ...

    def activation_backward(
        self,
        which: int,
        dy: View,
        saved: View,
        dx: View,
        parameters: tuple[float, ...],
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def bias_act_forward(
        self,
        which: int,
        x: View,
        bias: View,
        residual: View | None,
        y: View,
        axis: int,
        parameters: tuple[float, ...],
        stream: int,
    ) -> None: ...

    def bias_act_workspace(self, x: View, dbias: View, axis: int) -> int: ...

    def bias_act_backward(
        self,
        which: int,
        dy: View,
        x: View,
        bias: View,
        residual: View | None,
        dx: View,
        dbias: View,
        axis: int,
        parameters: tuple[float, ...],
        accumulate_dx: bool,
        accumulate_dbias: bool,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def gated_forward(
        self,
        which: int,
        a: View,
        b: View,
        bias_a: View | None,
        bias_b: View | None,
        y: View,
        axis: int,
        parameters: tuple[float, ...],
        limit: float,
        offset: float,
        stream: int,
    ) -> None: ...

    def gated_workspace(self, a: View, axis: int) -> int: ...

    def gated_backward(
        self,
        which: int,
        dy: View,
        a: View,
        b: View,
        bias_a: View | None,
        bias_b: View | None,
        da: View | None,
        db: View | None,
        dbias_a: View | None,
        dbias_b: View | None,
        axis: int,
        parameters: tuple[float, ...],
        limit: float,
        offset: float,
        accumulate: bool,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def softmax_workspace(self, x: View, axes: tuple[int, ...]) -> int: ...

    def softmax_forward(
        self,
        kind: int,
        x: View,
        mask: View | None,
        y: View,
        lse: View | None,
        axes: tuple[int, ...],
        scale: float,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def softmax_backward(
        self,
        kind: int,
        dy: View,
        y: View,
        dx: View,
        axes: tuple[int, ...],
        scale: float,
        accumulate: bool,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def logsumexp_backward(
        self,
        dy: View,
        x: View,
        mask: View | None,
        lse: View,
        dx: View,
        axes: tuple[int, ...],
        scale: float,
        accumulate: bool,
        stream: int,
    ) -> None: ...

    def cross_entropy_workspace(self, logits: View, axis: int) -> int: ...

    def cross_entropy_forward(
        self,
        logits: View,
        target: View,
        weight: View | None,
        lse: View | None,
        losses: View | None,
        loss: View | None,
        divisor: View | None,
        axis: int,
        ignore_index: int,
        label_smoothing: float,
        reduction: int,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def cross_entropy_backward(
        self,
        dloss: View,
        logits: View,
        target: View,
        weight: View | None,
        lse: View,
        divisor: View | None,
        dlogits: View,
        axis: int,
        ignore_index: int,
        label_smoothing: float,
        accumulate: bool,
        workspace: View | None,
        stream: int,
    ) -> None: ...

    def gates_sums_apart(self, kind: int, state: View) -> bool: ...

    def gates_forward(
        self,
        kind: int,
        gates: View,
        recurrent: View | None,
        bias: View | None,
        recurrent_bias: View | None,
        state: View,
        hidden: View,
        cell: View | None,
        kept: View | None,
        places: tuple[int, ...],
        stream: int,
    ) -> None: ...

    def gates_workspace(self, kind: int, state: View) -> int: ...

    def gates_backward(
        self,
        kind: int,
        gates: View,
        recurrent: View | None,
        bias: View | None,
        recurrent_bias: View | None,
        state: View,
        cell: View | None,
        hidden_gradient: View,
        cell_gradient: View | None,
        gates_gradient: View | None,
        recurrent_gradient: View | None,
        state_gradient: View | None,
        bias_gradient: View | None,
        recurrent_bias_gradient: View | None,
        places: tuple[int, ...],
        recomputes: bool,
        accumulate: bool,
        workspace: View | None,
        stream: int,
    ) -> None: ...


class Device(Native, Protocol):
    """What computes on a device, and what only a device needs."""

    def device_of_stream(self, stream: int) -> int: ...

    def device_of_memory(self, address: int) -> int: ...

    def make_wait(self, device: int, stream: int, ours: int) -> None: ...
