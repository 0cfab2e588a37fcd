"""Types of the native module; `_cuda` has the same functions for arrays on a GPU."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from .ops.types import Array

_A = TypeVar("_A", bound=Array)

ACTIVATIONS: tuple[str, ...]
SAVE_VALUE: frozenset[str]
DTYPE_NAMES: tuple[str, ...]
VIEW_DTYPE_NAMES: tuple[str, ...]
OF_M2: tuple[str, ...]
TERMS: tuple[str, ...]
GATE_KINDS: tuple[str, ...]
SOFTMAX_KINDS: tuple[str, ...]
REDUCTIONS: tuple[str, ...]
GATE_ULPS: tuple[float, float]
ELEMENTARY: tuple[str, ...]
view_table: Any

@disjoint_base
class View:
    dtype: int
    dtype_name: str
    device: tuple[int, int]
    readonly: bool
    itemsize: int
    owner: Any
    ndim: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    address: int
    reach: tuple[int, int]
    overlaps_itself: bool
    order: tuple[int, ...]
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @staticmethod
    def from_numpy(a: NDArray[Any]) -> View: ...
    @staticmethod
    def on_device(a: NDArray[Any], device: tuple[int, int]) -> View: ...
    @staticmethod
    def repeated(value: NDArray[Any], like: View) -> View: ...
    @staticmethod
    def from_exchange(tensor: Any, api_capsule: Any) -> View: ...
    @staticmethod
    def from_capsule(capsule: Any) -> View: ...
    @staticmethod
    def bytes(count: int, device: tuple[int, int]) -> View: ...
    def shaped(self, shape: tuple[int, ...]) -> View: ...
    def of_dtype(self, dtype: int) -> View: ...
    def split_axis(self, axis: int, groups: int) -> View: ...
    def sliced(self, axis: int, first: int, step: int, count: int) -> View: ...
    def with_axes(self, axes: tuple[int, ...]) -> View: ...
    def broadcast_to(self, shape: tuple[int, ...]) -> View: ...
    def repeats(self, like: View) -> View: ...

@disjoint_base
class Handover:
    def __init__(self, array: View, wait: Any, kept: Any) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any: ...

@disjoint_base
class Memory:
    def __new__(cls, model: View, api_capsule: Any = None) -> Memory: ...
    def view(self) -> View: ...
    def to_exchange(self, api_capsule: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any: ...

@disjoint_base
class FastActivation:
    _which: int
    def __init__(self, native: str, parameters: int, numbers: tuple[float, ...]) -> None: ...
    def _cache_calls(self, call: CachedCall, forward: CachedCall, backward: CachedCall) -> None: ...
    def _watch_autocast(self) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> Any: ...
    def backward(self, dy: Any, saved: Any, /, *args: Any, **kwargs: Any) -> Any: ...

@disjoint_base
class Arguments: ...

@disjoint_base
class Buffers: ...

@disjoint_base
class CallPlan: ...

@disjoint_base
class DeviceLaunches: ...

class Unrecorded(Exception): ...

@disjoint_base
class NativeCall:
    def workspace_size(self) -> int: ...
    def run(self, workspace: View | None, stream: int) -> None: ...

def native_call(name: str, arguments: dict[str, Any]) -> NativeCall: ...
def native_calls() -> dict[str, dict[str, dict[str, Any]]]: ...

FIELD_KINDS: tuple[str, ...]
ROLES: tuple[str, ...]
SHAPE_RULES: tuple[str, ...]
DTYPE_RULES: tuple[str, ...]

@disjoint_base
class PlanDraft:
    def operand(self, view: View, value: Any) -> None: ...
    def writes(self, view: View, value: Any) -> None: ...
    def output(self, view: View, made: Any) -> None: ...
    def finished(self, made: Any, array: Any) -> None: ...
    def workspace(self, view: View) -> None: ...
    def constant(self, view: View) -> None: ...
    def step(self, function: Any, arguments: tuple[Any, ...]) -> None: ...
    def native(self, call: NativeCall, workspace: View | None) -> None: ...
    def refuse(self) -> None: ...

@disjoint_base
class CachedCall:
    __doc__: str | None
    def __init__(self, function: Any, owner: Any, attribute: str, recorder: Any = None) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@disjoint_base
class CachedOp:
    def _cache_calls(self, entry: CachedCall) -> None: ...
    def _watch_autocast(self) -> None: ...
    def _cached_calls(self) -> int: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def gates_sums_apart(kind: int, state: View) -> bool: ...
def begin_call() -> PlanDraft | None: ...
def enable_call_cache(enabled: bool) -> None: ...
def is_call_cache_enabled() -> bool: ...
def register_result_type(cls: type, fields: tuple[str, ...]) -> None: ...
def activation_forward(
    which: int, x: View, y: View, parameters: tuple[float, ...], stream: int
) -> None: ...
def activation_backward(
    which: int,
    dy: View,
    saved: View,
    dx: View,
    parameters: tuple[float, ...],
    accumulate: bool,
    stream: int,
) -> None: ...
def plain_device_pair(device_type: int, device_id: int) -> tuple[int, int]: ...
def exchange_stream(api_capsule: Any, device: tuple[int, int]) -> int: ...
def register_device(device: tuple[int, int], table_capsule: Any) -> None: ...
def bias_act_forward(
    which: int,
    x: View,
    bias: View,
    residual: View | None,
    y: View,
    axis: int,
    parameters: tuple[float, ...],
    stream: int,
) -> None: ...
def bias_act_workspace(x: View, dbias: View, axis: int) -> int: ...
def bias_act_backward(
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
def gated_workspace(a: View, axis: int) -> int: ...
def gated_backward(
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
def warn(what: str) -> None: ...
def softmax_workspace(x: View, axes: tuple[int, ...]) -> int: ...
def softmax_forward(
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
def cross_entropy_workspace(logits: View, axis: int) -> int: ...
def cross_entropy_forward(
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
def gates_forward(
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
def gates_workspace(kind: int, state: View) -> int: ...
def gates_backward(
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
def elementary(name: str, x: View, y: View) -> None: ...
def compare(
    y: NDArray[Any], exact: NDArray[Any], allowed: float, edges: tuple[float, ...]
) -> tuple[float, float, int, float, int, list[int]] | None: ...
def level_of_features(leaf1_ecx: int, leaf7_ebx: int, extended_ecx: int, xcr0: int) -> int: ...
def shares_of_columns(arguments: dict[str, Any], threads: int) -> tuple[int, int]: ...
def elementary_bounds() -> dict[str, float]: ...
def copy(destination: NDArray[Any], source: NDArray[Any]) -> None: ...
def bypass_caches_from(size: int) -> int: ...
def keep_compiled_call(cls: type) -> None: ...
def plans_of(entry: Any) -> tuple[int, int]: ...
def gradient_by_input(which: int, dy: View, x: View, dx: View) -> None: ...
def kernel_addresses(isa: str) -> dict[tuple[str, str], int]: ...
def weighting_addresses(isa: str) -> dict[str, int]: ...
def sum_addresses(isa: str) -> dict[tuple[str, str], int]: ...
def gate_addresses(isa: str) -> dict[tuple[str, str], int]: ...
def learn_bfloat16(dtype: np.dtype[Any]) -> None: ...
def register_tensor_type(
    tensor_type: type, api_capsule: Any, state: tuple[Any, Any, dict[str, Any]] | None = None
) -> None: ...
def set_process_threads(n: int) -> None: ...
def set_local_threads(n: int) -> int: ...
def get_thread_limit() -> int: ...
def after_fork_in_child() -> None: ...
def build_info() -> dict[str, Any]: ...
def isa() -> str: ...
def supported_isas() -> tuple[str, ...]: ...
def select_isa(name: str) -> None: ...
