"""One call: its arrays seen and checked against each other, its outputs found or made."""

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self

from . import _backend, _checks, _cpu, _streams
from ._arrays import NUMPY, Framework, Place, framework_of, repeated, see, to_numpy
from ._cpu import View

_ONE_ELEMENT = 16  # bytes, of any dtype


class Call:
    """The arrays of one call, all of one framework, on one device.

    The first array leads: it decides framework, dtype and device. Others may be Python numbers,
    which stand for an array of that value, or lists, which NumPy converts to the leader's dtype.

    A `with` block makes the framework work, and allocate, on the stream that the caller gave.

    All that a call does to memory is done by `run`, `output`, `workspace` and `result`: from what
    they note its door makes a plan for calls of the same kind (src/cpu/doors.pyx), which repeats
    that and nothing else.
    """

    def __init__(self, where: str, stream: Any = None, **values: Any) -> None:
        self.where = where
        frameworks = {n: f for n, v in values.items() if (f := framework_of(v)) is not None}
        _checks.one_framework(where, frameworks)
        self.framework: Framework = next(iter(frameworks.values()), NUMPY)
        self.arrays: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        self.runs: list[tuple[Any, tuple[Any, ...]]] = []  # native functions, their arguments
        self.made: list[list[Any]] = []  # for each new output: its view, what it became
        self.written: list[View] = []  # arrays of the caller's that kernels write
        self.scratch: list[tuple[View, Any]] = []  # workspaces, what holds them
        self.constants: list[View] = []  # numbers in place of arrays
        leader = next(iter(values))
        device = (
            (_backend.CPU, 0)
            if framework_of(values[leader]) is None
            else self.framework.device(values[leader])
        )
        self.native: Any = _backend.native(where, device)
        self.given = stream is not None
        self.place = Place(device, self._stream(device, stream))
        for name, value in values.items():
            self._take(name, value, leader)
        if self.framework is not NUMPY:
            _register_short_cut(self.arrays[leader])
        _cpu.note(self)

    @property
    def stream(self) -> int:
        """Where the kernels are queued; 0 on the CPU."""
        return self.place.stream or 0

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = (
            _streams.on(self.framework.name, self.place.device[1], self.stream)
            if self.given
            else nullcontext()
        )
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)

    def _stream(self, device: tuple[int, int], given: Any) -> int | None:
        if device[0] == _backend.CPU:
            if given is not None:
                raise ValueError(f"{self.where}: stream must be None for arrays on the CPU")
            return None
        if given is None:
            return self.framework.stream(device)
        stream = _streams.pointer(self.where, given)
        of = self.native.device_of_stream(stream) if stream > 2 else device[1]
        if of != device[1]:
            raise ValueError(
                f"{self.where}: stream must be of device {device[1]}, where the arrays are, got "
                f"one of device {of}"
            )
        return stream

    def _take(self, name: str, value: Any, leader: str) -> None:
        if name != leader and isinstance(value, bool | int | float):
            self.views[name] = self.repeated(value, self.views[leader])
            return
        if framework_of(value) is not self.framework:
            if self.framework is not NUMPY:
                raise TypeError(
                    f"{self.where}: {name} must come from {self.framework.name} as the other "
                    f"arrays do, got {type(value).__name__}"
                )
            value = to_numpy(value, None if name == leader else self.arrays[leader].dtype)
        elif self.framework is NUMPY and name == leader:
            value = to_numpy(value)
        self.arrays[name] = value
        self.views[name] = see(self.where, name, value, self.framework, self.place)

    def repeated(self, value: float, like: View) -> View:
        """A number as an array of another one's shape and dtype."""
        element = repeated(value, like)
        if self.place.device[0] == _backend.CPU:
            self.constants.append(element)
            return element
        scratch = self.workspace(_ONE_ELEMENT)
        assert scratch is not None
        bits = int.from_bytes(element.owner.tobytes(), sys.byteorder)
        self.run("fill", scratch, like.itemsize, bits)
        return scratch.repeats(like)

    def run(self, function: str, *arguments: Any) -> None:
        """Run a native function on the call's stream."""
        native = getattr(self.native, function)
        arguments = (*arguments, self.stream)
        self.runs.append((native, arguments))
        native(*arguments)

    def output(
        self,
        name: str,
        out: Any,
        like: str,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: int | None = None,
        in_place: bool = True,
    ) -> tuple[View, Any]:
        """The output's view, and what `result` makes the caller's array of.

        like: the input whose dtype and whose shape it has unless others are given.
        in_place: `out` may be one of the inputs; False where the inputs are saved.
        """
        model = self.views[like]
        if shape is not None:
            model = model.shaped(shape)
        if dtype is not None:
            model = model.of_dtype(dtype)
        if out is None:
            view, made = self.framework.output(model, self.arrays[like], self.place)
            self.made.append([view, made])
            return view, made
        given = framework_of(out)
        if given is not self.framework:
            came = type(out).__name__ if given is None else given.name
            raise TypeError(
                f"{self.where}: {name} must be an array of {self.framework.name}, as {like} is, "
                f"got {came}"
            )
        view = see(self.where, name, out, self.framework, self.place)
        _checks.same_as(self.where, name, view, like, model)
        _checks.writable(self.where, name, view)
        inputs = {n: v for n, v in self.views.items() if n in self.arrays}
        _checks.may_write(self.where, name, view, inputs, in_place=in_place)
        self.written.append(view)
        return view, None

    def workspace(self, nbytes: int) -> View | None:
        """Scratch memory for the kernels, from the framework; None for no bytes."""
        if nbytes == 0:
            return None
        view, memory = self.framework.scratch(nbytes, next(iter(self.arrays.values())), self.place)
        self.scratch.append((view, memory))
        return view

    def temporary(self, like: str, shape: tuple[int, ...] | None = None) -> View:
        """An array for the time of the call, of an input's dtype and of its shape or another."""
        model = self.views[like]
        if shape is not None:
            model = model.shaped(shape)
        view, memory = self.framework.output(model, self.arrays[like], self.place)
        self.scratch.append((view, memory))
        return view

    def result(self, out: Any, made: Any) -> Any:
        """The caller's array: `out` where it was given, else the framework's array of `made`."""
        if out is not None:
            return out
        kept = (*self.views.values(), *self.scratch)
        finished = self.framework.finish(made, partial(self._let_wait, self.stream), kept)
        for output in self.made:
            if output[1] is made:
                output[1] = finished
        return finished

    def _let_wait(self, ours: int, stream: Any) -> None:
        """Let the framework's stream wait for what has been queued on ours."""
        if self.place.device[0] != _backend.CPU:
            self.native.make_wait(self.place.device[1], stream or _streams.LEGACY, ours)


def _register_short_cut(array: Any) -> None:
    """From now on arrays of this very type may take the compiled short cut.

    Only the framework's own classes: a subclass may mean something else by its memory.
    """
    cls = type(array)
    api = vars(cls).get("__dlpack_c_exchange_api__")
    if api is not None:
        _cpu.register_tensor_type(cls, api)
