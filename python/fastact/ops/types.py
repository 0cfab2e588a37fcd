"""Types of arguments and results, for type checkers."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
)

if TYPE_CHECKING:
    from .activations import Activation


class Array(Protocol):
    """An array of any framework with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


#: The array that leads a call: what is returned is of its type.
A = TypeVar("A", bound=Array)

A_co = TypeVar("A_co", bound=Array, covariant=True)


class Sliced(Protocol[A_co]):
    """An array whose slices are of type A, and so what is left of it without some axes.

    An annotation may tell the array's own shape, which its sum does not have.
    """

    def __getitem__(self, key: slice, /) -> A_co: ...


#: The place for a result: an array, or as NumPy has it a tuple of one.
Out: TypeAlias = A | tuple[A | None] | None

#: The places for several results or gradients.
Outs: TypeAlias = tuple[A | None, ...] | None

#: Another array of a call, or a Python number that stands for an array of that value.
ArrayOrNumber: TypeAlias = Array | float

Axes: TypeAlias = int | tuple[int, ...] | None

#: A dtype, by its name or as NumPy, torch or JAX has it.
DType: TypeAlias = Any

#: A stream of CUDA's, torch's or CuPy's; see docs/conventions.md.
Stream: TypeAlias = Any

#: An activation by its name or by its op; "identity" is none.
ActivationLike: TypeAlias = "str | Activation[..., Any]"


#: The places at which a root-mean-square norm rounds.
Casting: TypeAlias = Literal["exact", "llama", "gemma"]


class Kwargs(TypedDict, Generic[A], total=False):
    """Saved arrays and options that `backward` takes by keyword, each op some of them."""

    activation: ActivationLike
    axis: Axes
    bias: Array | None
    by: Array | None
    c: Array | None
    c_prev: ArrayOrNumber
    casting: Casting
    channel_axis: int
    correction: float
    cos: Array
    count: float
    ddof: float | None
    dtotal: ArrayOrNumber | None
    dtype: DType
    eps: float
    gate: str
    gate_first: bool
    gates: Array
    group_size: int | None
    groups: int | None
    h_prev: ArrayOrNumber
    interleaved: bool
    keepdims: bool
    limit: float | None
    mean: Array
    offset: SupportsIndex | float
    order: str
    p: float
    positions: Array | None
    recompute: bool
    recurrent: Array | None
    recurrent_bias: Array | None
    rstd: Array
    scale: float
    seed: SupportsIndex
    sin: Array
    skipna: bool
    sum_dy: Array
    sum_dy_xhat: Array
    training: bool
    weight: Array | None
    weight_offset: float | None
    weights: Array | None
    where: ArrayOrNumber | None
    x_dtype: DType
    out: Out[A] | Outs[Array]
    accumulate: bool
    stream: Stream
