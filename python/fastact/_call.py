"""One call: its arrays seen and checked against each other, its outputs found or made."""

from types import ModuleType
from typing import Any

from . import _checks, _cpu
from ._arrays import NUMPY, Framework, framework_of, repeated, see, to_numpy
from ._backend import native
from ._cpu import View


class Call:
    """The arrays of one call, all of one framework, on one device.

    The first array leads: it decides framework, dtype and device. Others may be Python numbers,
    which stand for an array of that value, or lists, which NumPy converts to the leader's dtype.
    """

    def __init__(self, where: str, **values: Any) -> None:
        self.where = where
        frameworks = {n: f for n, v in values.items() if (f := framework_of(v)) is not None}
        _checks.one_framework(where, frameworks)
        self.framework: Framework = next(iter(frameworks.values()), NUMPY)
        self.arrays: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        leader = next(iter(values))
        for name, value in values.items():
            self._take(name, value, leader)
        self.native: ModuleType = native(where, self.views[leader].device)
        if self.framework is not NUMPY:
            _register_short_cut(self.arrays[leader])

    def _take(self, name: str, value: Any, leader: str) -> None:
        if name != leader and isinstance(value, bool | int | float):
            self.views[name] = repeated(value, self.views[leader])
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
        self.views[name] = see(self.where, name, value, self.framework)

    def output(self, name: str, out: Any, like: str, *, in_place: bool = True) -> tuple[View, Any]:
        """The output's view, and what `result` makes the caller's array of.

        in_place: `out` may be one of the inputs; False where the inputs are saved.
        """
        if out is None:
            return self.framework.output(self.views[like])
        given = framework_of(out)
        if given is not self.framework:
            came = type(out).__name__ if given is None else given.name
            raise TypeError(
                f"{self.where}: {name} must be an array of {self.framework.name}, as {like} is, "
                f"got {came}"
            )
        view = see(self.where, name, out, self.framework)
        _checks.same_as(self.where, name, view, like, self.views[like])
        _checks.writable(self.where, name, view)
        inputs = {n: v for n, v in self.views.items() if n in self.arrays}
        _checks.may_write(self.where, name, view, inputs, in_place=in_place)
        return view, None

    def result(self, out: Any, made: Any) -> Any:
        """The caller's array: `out` where it was given, else the framework's array of `made`."""
        return self.framework.finish(made) if out is None else out


def _register_short_cut(array: Any) -> None:
    """From now on arrays of this very type may take the compiled short cut.

    Only the framework's own classes: a subclass may mean something else by its memory.
    """
    cls = type(array)
    api = vars(cls).get("__dlpack_c_exchange_api__")
    if api is not None:
        _cpu.register_tensor_type(cls, api)
