"""One call: its arrays seen and checked against each other, its outputs found or made."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from .. import _cpu
from .._cpu import View
from . import devices, foreign, streams, validate
from .frameworks import (
    NUMPY,
    Framework,
    Place,
    framework_of,
    in_native_order,
    one_element,
    see,
    to_numpy,
    whole_numbers,
)
from .validate import Role

#: A native function takes one of these by name.
Argument = View | int | float | str | tuple[int, ...] | tuple[float, ...] | None

_ONE_ELEMENT = 16  # bytes, of any dtype


class Call:
    """The arrays of one call, all of one framework, on one device.

    The first array leads: it decides framework, dtype and device. Others may be Python numbers,
    which stand for an array of that value, or lists, which NumPy converts to the leader's dtype.
    roles : the roles of arrays by name, where they are not data. A number that
    stands for a mask has a dtype of its own: a bool is a bool. A first array that is NumPy's
    may have the dtypes of its role, too.
    of_forward : arguments returned by `forward`; a NumPy scalar among them becomes a 0-d array and
    keeps its dtype.
    integers : the dtype in which a first array of integers is computed; None: as np.tanh or
    torch.tanh has it.

    A `with` block makes the framework work, and allocate, on the stream that the caller gave.

    All that a call does to memory is done by `run`, `output`, `writes`, `workspace` and `result`.
    Where the call is being recorded, they state it to `_draft`, from which the call cache makes a
    plan for calls with the same key (src/cpu/binding/call_cache.pyx) that repeats this and nothing
    else.
    """

    def __init__(
        self,
        where: str,
        /,
        stream: Any = None,
        roles: Mapping[str, Role] = MappingProxyType({}),
        integers: Any = None,
        of_forward: Sequence[str] = (),
        **values: Any,
    ) -> None:
        self.where = where
        self._roles = roles
        self._integers = integers
        frameworks: dict[str, Framework] = {}
        for name, value in values.items():
            foreign.plain(where, name, value)
            framework = framework_of(value)
            if framework is not None:
                frameworks[name] = framework
        self.framework: Framework = next(iter(frameworks.values()), NUMPY)
        if len(frameworks) > 1:
            validate.one_framework(where, frameworks)
        if self.framework.name == "torch" and foreign.is_traced():
            raise TypeError(
                f"{where}: tracers of torch, such as torch.jit.trace and make_fx, can't record "
                f"this call and would make its result a constant; call the op itself, and let "
                f"torch find gradients"
            )
        self.arrays: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        self._targets: list[Any] = []  # arrays of the caller's that kernels write
        self._has_run = False
        self._collected: list[tuple[_cpu.NativeCall, View | None]] | None = None  # by `repeat`
        self.scratch: list[tuple[View, Any]] = []  # workspaces, what holds them
        self._draft = _cpu.begin_call()
        leader = next(iter(values))
        device = (devices.CPU, 0)
        if leader in frameworks:
            device = self.framework.device(values[leader])
        self.native = devices.native(where, device)
        self.given = stream is not None
        if self.given and self._draft is not None:
            self._draft.refused = True
        self.place = Place(device, self._stream(device, stream, values[leader]))
        self.stream = self.place.stream or 0  # where the kernels are queued
        for name, value in values.items():
            is_array = name in of_forward and isinstance(value, np.generic)
            value, given = np.asarray(value) if is_array else value, value
            of = NUMPY if is_array else frameworks.get(name)
            self._take(name, value, of, leader, given=given)
        if self.framework is not NUMPY:
            for cls in map(type, self.arrays.values()):
                _register_tensor_type(cls)

    def __enter__(self) -> Self:
        if self.given:
            self._context = streams.on(self.framework.name, self.place.device[1], self.stream)
            self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.given:
            self._context.__exit__(kind, error, traceback)
        if self._has_run:
            for array in self._targets:
                foreign.mark_written(array)
            self.framework.has_run((*self.arrays.values(), *self._targets), self.place)

    def _stream(self, device: tuple[int, int], given: Any, leader: Any) -> int | None:
        if device[0] == devices.CPU:
            if given is not None:
                raise ValueError(f"{self.where}: stream must be None for arrays on the CPU")
            return None
        if given is None:
            return self.framework.stream(device, leader)
        stream = streams.pointer(self.where, given)
        of = self.native.device_of_stream(stream) if stream > 2 else device[1]
        if of != device[1]:
            raise ValueError(
                f"{self.where}: stream must be of device {device[1]}, where the arrays are, got "
                f"one of device {of}"
            )
        return stream

    def _take(
        self, name: str, value: Any, framework: Framework | None, leader: str, *, given: Any
    ) -> None:
        """Make a view of an argument; given: the caller's object, which the call's key has."""
        role = self._roles.get(name, validate.DATA)
        also = () if name == leader and self.framework is not NUMPY else role.also
        if name != leader and isinstance(value, bool | int | float):
            if role.repeats and not role.number:
                validate.no_number(self.where, name, value)
            if role.number or not also:
                self.views[name] = self._number(name, value, role, self.views[leader])
                return
        if framework is not self.framework:
            if self.framework is not NUMPY:
                raise TypeError(
                    f"{self.where}: {name} must come from {self.framework.name} as the other "
                    f"arrays do, got {type(given).__name__}"
                )
            dtype = None if name == leader else self.arrays[leader].dtype
            value = to_numpy(self.where, name, value, dtype, also)
        elif self.framework is NUMPY and name == leader:
            value = to_numpy(self.where, name, value, also=also, integers=self._integers)
        elif name == leader:
            value = foreign.promoted(value, self._integers)
        elif self.framework is NUMPY and also:
            value = whole_numbers(self.where, name, value, also)
        elif self.framework is NUMPY and value.dtype.kind in "biu":
            value = to_numpy(self.where, name, value, self.arrays[leader].dtype)
        if self.framework is NUMPY:
            value = in_native_order(value)
        self.arrays[name] = value
        self.views[name] = view = see(self.where, name, value, self.framework, self.place, also)
        if self._draft is not None:
            self._state(self._draft, view, given, value)

    def take(self, name: str, value: Any, like: str, model: View) -> None:
        """Take one argument more, which is as another one: of this shape and dtype."""
        if isinstance(value, bool | int | float):
            validate.holds(self.where, name, value, model.dtype_name)
            self.views[name] = self.repeated(float(value), model)
            return
        foreign.plain(self.where, name, value)
        framework = framework_of(value)
        if framework is not self.framework and not (framework is None and self.framework is NUMPY):
            raise TypeError(
                f"{self.where}: {name} must come from {self.framework.name} as the other arrays "
                f"do, got {foreign.describe(value)}"
            )
        self._take(name, value, framework, next(iter(self.arrays)), given=value)
        validate.same_as(self.where, name, self.views[name], like, model)

    def take_as(self, name: str, given: Any, array: Any, also: Sequence[str]) -> View:
        """Take one argument more, by an array that is the same memory as another dtype."""
        self.arrays[name] = array
        self.views[name] = view = see(self.where, name, array, self.framework, self.place, also)
        if self._draft is not None:
            self._draft.operand(view, given)
        return view

    def _state(self, draft: Any, view: View, given: Any, array: Any) -> None:
        """State where a view's memory is: in what the caller gave, or in the array made of it."""
        is_scalar = isinstance(given, np.generic)
        if is_scalar and self.framework is NUMPY and given.dtype == array.dtype:
            draft.operand(view, given)
        elif is_scalar or isinstance(given, bool | int | float):  # whose value the call is for
            draft.constant(view)
        else:
            draft.operand(view, array)

    def _number(self, name: str, value: float, role: Role, data: View) -> View:
        """Return a number in the place of an array: of the data's shape, or of one that repeats."""
        if validate.is_flag(self.where, name, value, role, data.dtype_name):
            return self.repeated(value, View.from_numpy(np.asarray(value)))
        return self.repeated(value, data.shaped(()) if role.number else data)

    @property
    def is_on_gpu(self) -> bool:
        """Whether a device runs the native functions."""
        return self.place.device[0] != devices.CPU

    def repeated(self, value: float, like: View) -> View:
        """Return a number as an array of another one's shape and dtype."""
        element = one_element(value, like.dtype_name)
        if self.place.device[0] == devices.CPU:
            view = View.from_numpy(element).repeats(like)
            if self._draft is not None:
                self._state(self._draft, view, value, element)
            return view
        scratch = self.workspace(_ONE_ELEMENT)
        assert scratch is not None
        bits = int.from_bytes(element.tobytes(), sys.byteorder)
        self.run("fill", y=scratch.repeats(like.shaped(())), bits=bits)
        return scratch.repeats(like)

    def run(self, function: str, /, **arguments: Argument) -> None:
        """Run a native function with the workspace that it needs."""
        self._has_run = True
        if not self.framework.computes:
            return
        native = _cpu.native_call(function, arguments)
        size = native.workspace_size()
        workspace = self.workspace(size) if size else None
        if self._collected is not None:
            self._collected.append((native, workspace))
            return
        if self._draft is not None:
            self._draft.native(native, workspace)
        native.run(workspace, self.stream)

    def repeat(self, work: Callable[[int, int], None], count: int, threads: int = 1) -> None:
        """Run what `work(part, thread)` runs, for so many parts of arrays, which lie evenly.

        work : called for two parts and two threads alone, where there are more: what is run for the
        others follows. Each thread has scratch memory of its own, which lies evenly, too.
        """
        if count < (2 if threads > 1 else 3):
            for part in range(count):
                work(part, 0)
            return
        first, second = (self._collect(work, part, 0) for part in (0, 1))
        other = self._collect(work, 0, 1) if threads > 1 else first
        loop = _cpu.native_loop(first, second, other, count, threads)
        if self._draft is not None:
            self._draft.loop(loop)
        loop.run(self.stream)

    def _collect(self, work: Callable[[int, int], None], part: int, thread: int) -> list[Any]:
        """Return the native functions that `work` would run."""
        found = self._collected = []
        try:
            work(part, thread)
        finally:
            self._collected = None
        return found

    def output(
        self,
        name: str,
        out: Any,
        like: str,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: int | None = None,
        in_place: bool = True,
        grouped: tuple[int, ...] = (),
        given: Any = None,
    ) -> tuple[View, Any]:
        """Return the output's view, and what `result` makes the caller's array of.

        like: the input whose dtype and whose shape it has unless others are given.
        in_place: `out` may be one of the inputs; False where the inputs are saved.
        grouped: the input's axes that give way to groups, which lie in memory as they do.
        given: the caller's array, where `out` is the same memory as another dtype.
        """
        model = self.model(like, shape, dtype, grouped)
        if out is None:
            if not self.framework.makes_arrays:
                raise TypeError(
                    f"{self.where}: {name} must be given, for {self.framework.name} has no "
                    f"from_dlpack to make an array with"
                )
            view, made = self.framework.output(model, self.arrays[like], self.place)
            if self._draft is not None:
                self._draft.output(view, made)
            return view, made
        foreign.plain(self.where, name, out)
        self.is_own(name, out, like)
        also = () if dtype is None else (_cpu.VIEW_DTYPE_NAMES[dtype],)
        view = see(self.where, name, out, self.framework, self.place, also)
        validate.same_as(self.where, name, view, like, model)
        validate.writable(self.where, name, view)
        inputs = {n: v for n, v in self.views.items() if n in self.arrays}
        validate.may_write(self.where, name, view, inputs, in_place=in_place)
        self.writes(name, view, out if given is None else given)
        return view, None

    def model(
        self,
        like: str,
        shape: tuple[int, ...] | None,
        dtype: int | None,
        grouped: tuple[int, ...] = (),
    ) -> View:
        """Return a model of an output, without memory, by the arguments that `output` takes."""
        model = self.views[like]
        if grouped:  # the groups' axis stands in the place of the last of them
            others = (axis for axis in range(model.ndim) if axis not in grouped)
            model = model.placed((*others, max(grouped)))
        if shape is not None:
            model = model.shaped(shape)
        return model if dtype is None else model.of_dtype(dtype)

    def is_own(self, name: str, array: Any, like: str) -> None:
        """Refuse an output of another framework, or of another byte order: kernels would write a
        copy."""
        given = framework_of(array)
        if given is not self.framework:
            came = type(array).__name__ if given is None else given.name
            raise TypeError(
                f"{self.where}: {name} must be an array of {self.framework.name}, as {like} is, "
                f"got {came}"
            )
        if given is NUMPY and not array.dtype.isnative:
            raise TypeError(
                f"{self.where}: {name}, which is written, must be in native byte order, got dtype "
                f"{array.dtype.str!r}"
            )

    def writes(self, name: str, view: View, array: Any) -> None:
        """Note that kernels write this array of the caller."""
        if foreign.requires_grad(array):
            raise foreign.gets_no_gradient(self.where, name)
        self._targets.append(array)
        if self._draft is not None:
            self._draft.writes(view, array)

    def workspace(self, nbytes: int) -> View | None:
        """Scratch memory for the kernels, from the framework; None for no bytes."""
        if nbytes == 0:
            return None
        view, memory = self.framework.scratch(nbytes, next(iter(self.arrays.values())), self.place)
        return self._temporary(view, memory)

    def temporary(
        self, like: str, shape: tuple[int, ...] | None = None, dtype: int | None = None
    ) -> View:
        """Return an array for the time of the call, of an input's dtype and shape or of others."""
        model = self.model(like, shape, dtype)
        view, memory = self.framework.output(model, self.arrays[like], self.place)
        return self._temporary(view, memory)

    def _temporary(self, view: View, memory: Any) -> View:
        self.scratch.append((view, memory))
        if self._draft is not None:
            self._draft.output(view, None)
        return view

    def result(self, out: Any, made: Any) -> Any:
        """Return the caller's array: `out` if given, else the framework's array of `made`."""
        if out is not None:
            return out
        kept = (*self.views.values(), *self.scratch)
        finished = self.framework.finish(made, partial(self._let_wait, self.stream), kept)
        if self._draft is not None:
            self._draft.finished(made, finished)
        return finished

    def seen_as(self, array: Any, dtype: Any) -> Any:
        """Return an array that `result` gave, as another dtype of as many bytes."""
        seen = array.view(dtype)
        if self._draft is not None:
            self._draft.seen_as(array, seen, dtype)
        return seen

    def scale(self, view: View, array: Any) -> bool:
        """Tell whether scales are positive and finite, which repeated calls ask, too."""
        if self._draft is not None:
            self._draft.scale(view, array)
        return not self.framework.computes or _cpu.are_scales(view)

    def reads_values(self) -> None:
        """Note that the call depends on values in arrays, so that others can't repeat it."""
        if self._draft is not None:
            self._draft.refused = True

    def _let_wait(self, ours: int, stream: Any) -> None:
        """Let the framework's stream wait for what has been queued on ours."""
        if self.place.device[0] != devices.CPU:
            self.native.make_wait(self.place.device[1], stream or streams.LEGACY, ours)


@lru_cache(maxsize=64)
def _register_tensor_type(cls: Any) -> None:
    """From now on arrays of this very type may take the fast path and the call cache.

    Only the framework's own classes: a subclass may mean something else by its memory.
    """
    if "__dlpack_c_exchange_api__" in vars(cls) or foreign.is_plain_class(cls):
        api = cls.__dlpack_c_exchange_api__
        _cpu.register_tensor_type(cls, api, foreign.torch_state(cls))
