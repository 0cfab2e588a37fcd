"""What holds of every op, in every way to call it, wherever kernels run.

Of the many shapes, dtypes and layouts each case takes some, by its name, so that all ops meet all.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrangements import (
    IN_ORDER,
    LAYOUTS,
    padded,
    plain,
    reversed_,
    shifted,
    stepped,
    transposed,
    turned,
)
from conftest import (
    ISAS,
    assert_all_same_bits,
    assert_same_bits,
    needs_a_fused_isa,
    needs_two_fused_isas,
    on_fused_isas,
    stores_past_the_caches,
)
from devices import DTYPES, EMULATED, FRAMEWORKS, KERNELS, Framework, to_emulated
from every import (
    EMPTY,
    PAIRS,
    PLACES,
    Call,
    arrays_in,
    each_call,
    fits,
    large,
    moved,
    parts,
    results,
    shapes_of,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layouts import is_aligned, views

import fastact as fa
from fastact import _cpu
from fastact.interop import devices, frameworks
from fastact.measure.norm_rows import traits
from fastact.measure.sum_axes import is_sum
from fastact.ops.engine.op import arrays_of

CPU = FRAMEWORKS[0]
pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
everywhere = each_call(PLACES)


def first_of(*named: Any) -> int:
    return zlib.crc32(repr((*map(str, named),)).encode())


def some_large(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> list[tuple[int, ...]]:
    """One on the CPU, of ways to call that cut the work otherwise."""
    return [large(op, way, dtype)] if place is CPU and {*way} <= {"axis", "channel_axis"} else []


def cancelled(call: Call, run: Any) -> float:
    """Give the size of the terms whose small difference a result may be.

    A norm's y is the difference of x and mean, times rstd and a weight; gradients are differences
    of |dy| rstd, or of |dy| |x|.
    """
    op, named = call.op, dict(zip(call.op.saves, call.saved, strict=True))
    if run.func == op.backward and op.family in ("norms", "reductions", "statistics"):
        factors = [named[n] for n in ("rstd", "x") if named.get(n) is not None][:1]
        factors += call.dys
    elif op.family == "norms":
        factors = [named[n] for n in ("rstd", "x") if named.get(n) is not None]
    else:
        return 0.0
    factors += [a for a in (call.named.get("weight"), call.named.get("weights")) if a is not None]
    largest = [np.abs(np.asarray(a, float)).max(initial=0) for a in factors]
    return float(np.prod([1 + size for size in largest]))


def sums_channels(op: Any) -> bool:
    """Whether gradients are made of sums over all but the channels."""
    is_norm = op.family == "norms" and traits(op).by_channel
    return is_norm or op.family in ("bias", "parametric")


def agree(found: list[Any], expected: list[Any], scale: float = 0.0) -> None:
    """Two roundings to the dtype, and what cancels of numbers as large as the largest, in the
    compute type: float32 but for float64."""
    for one, two in zip(found, expected, strict=True):
        assert (one is None) == (two is None)
        if two is None:
            continue
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        wide, info = two.astype(float), ml_dtypes.finfo(two.dtype)
        compute = 2.0**-53 if two.dtype == np.float64 else 2.0**-24
        size = np.abs(wide[np.isfinite(wide)]).max(initial=max(scale, 1.0))
        least = 128 * compute * size + 2 * float(info.smallest_subnormal)
        np.testing.assert_allclose(one.astype(float), wide, 2 * float(info.eps), least)


def one_or_all(out: tuple[Any, ...]) -> Any:
    return out if len(out) > 1 else out[0]


def goes_by_elements(op: Any, way: dict[str, Any]) -> bool:
    """Whether results of the data's shape are computed in an order that no layout changes."""
    if op.family == "norms":
        return "axis" not in way and not traits(op).channels and not traits(op).by_channel
    return op.family not in ("softmax", "reductions", "statistics", "divergences")


@everywhere
def test_layouts(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """Each array in a layout of its own, and results in others: as of arrays in order."""
    for shape in shapes_of(op, way, dtype, place.name):
        call = Call(op, way, shape, dtype)
        for run, first in product(call.both, range(3 if place is CPU else 2)):
            turn = count(first_of(op.name, way, shape) + 2 * first)
            views = [LAYOUTS[next(turn) % len(LAYOUTS)] for _ in arrays_in(run)]
            given = {id(a): view(a) for a, view in zip(arrays_in(run), views, strict=True)}
            laid_out = moved(run, lambda a, g=given: place.of(g.get(id(a), a)))
            in_order = {key: view.copy() for key, view in given.items()}
            expected = results(CPU, run, lambda a, g=in_order: g.get(id(a), a))
            found = parts(laid_out(), place)
            agree(found, expected, cancelled(call, run))
            ordered = results(place, run, lambda a, g=in_order: g.get(id(a), a))
            if goes_by_elements(op, way):  # sums and statistics may follow the order of memory
                kept = [k for k, a in enumerate(ordered) if a is not None and a.shape == shape]
                assert_all_same_bits([found[k] for k in kept], [ordered[k] for k in kept])
            assert_all_same_bits(parts(laid_out(), place), found)
            views = [LAYOUTS[next(turn) % 6] for _ in found]
            out = tuple(
                None if a is None else place.of(view(np.zeros_like(a)))
                for a, view in zip(found, views, strict=True)
            )
            laid_out(out=one_or_all(out))
            agree(parts(out, place), expected, cancelled(call, run))


@everywhere
def test_addresses_do_not_show(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """Arrays and results that all begin elsewhere, each by an amount of its own: the same bits.

    On the CPU steps don't show either, while memory holds the axes in their order.
    """
    shapes = shapes_of(op, way, dtype, place.name, "addresses")
    for shape in shapes + some_large(op, way, place, dtype):
        for run in Call(op, way, shape, dtype).both:
            expected = results(place, run, lambda a: shifted(a, 0))
            for first in (1, 2):
                by = count(first, 3)
                there = moved(run, lambda a, by=by: place.of(shifted(a, next(by) % 17)))
                out = tuple(
                    None if a is None else place.of(shifted(np.zeros_like(a), next(by) % 17))
                    for a in expected
                )
                there(out=one_or_all(out))
                assert_all_same_bits(parts(out, place), expected)
            for view in IN_ORDER if place is CPU and "by" not in way else []:
                assert_all_same_bits(results(place, run, view), expected)


def places_of(run: Any, made: list[Any]) -> list[tuple[int, np.ndarray]]:
    """Each result of a call with each array of its shape and dtype that is read."""
    inputs = {id(a): a for a in arrays_in(run)}.values()
    return [
        (at, held)
        for at, held in product(range(len(made)), inputs)
        if made[at] is not None and (made[at].shape, made[at].dtype) == (held.shape, held.dtype)
    ]


def has_place(op: Any, way: dict[str, Any]) -> bool:
    call = Call(op, way, *shapes_of(op, way), np.float32)
    return any(places_of(run, results(CPU, run)) for run in call.both)


@each_call([CPU], has_place)
def test_results_keep_the_order(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """They lie in memory as the arrays of their shape do, like those of NumPy's ufuncs."""
    for shape in shapes_of(op, way, dtype, "order"):
        call = Call(op, way, shape, dtype)
        for run, view in product(call.both, (transposed, reversed_, stepped, turned)):
            made = results(place, run, view)
            for at, held in places_of(run, made):
                assert made[at].strides == np.empty_like(view(held)).strides


@each_call(PLACES, has_place)
def test_in_place(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """Each result over each array of its shape that is read: the same bits, or an error that says
    whose memory it must not share."""
    shapes = shapes_of(op, way, dtype, place.name, "in place")
    shapes += some_large(op, way, place, dtype)
    for run in (run for shape in shapes for run in Call(op, way, shape, dtype).both):
        expected = results(place, run)
        for (at, held), by in product(places_of(run, expected), (0, 1)):
            over = place.of(shifted(held, by))
            there = moved(
                run, lambda a, by=by, o=over, h=held: o if a is h else place.of(shifted(a, by))
            )
            out = [None if a is None else place.of(np.zeros_like(a)) for a in expected]
            out[at] = over
            try:
                there(out=one_or_all((*out,)))
            except ValueError as error:
                assert "must not share memory with" in str(error)  # noqa: PT017
                assert_same_bits(place.numpy(out[at]), held)
            else:
                assert_all_same_bits(parts((*out,), place), expected)


@everywhere
def test_accumulating(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """Into -0 nothing changes; into ones and to what is there a sum is rounded once more."""
    shapes = shapes_of(op, way, dtype, place.name, "accumulate")
    shapes += some_large(op, way, place, dtype)
    for shape in shapes:
        run = Call(op, way, shape, dtype).backward()
        made = results(place, run)
        there = moved(run, place.of)
        for value, view in ((-0.0, plain), (-0.0, shifted), (1.0, padded)):
            out = tuple(None if a is None else place.of(view(np.full_like(a, value))) for a in made)
            there(out=one_or_all(out), accumulate=True)
            for one, two in zip(parts(out, place), made, strict=True):
                if two is not None:
                    is_sum = two.shape != shape  # whose order may follow the arrays that lie by
                    eps = float(ml_dtypes.finfo(two.dtype).eps)
                    wide = two.astype(float)
                    size = max(1.0, np.abs(wide).max(initial=0))
                    least = 2 * eps * size if value or is_sum else 0
                    np.testing.assert_allclose(one.astype(float), wide + value, 0, least)


@everywhere
def test_nothing_else_is_written(
    op: Any, way: dict[str, Any], place: Framework, dtype: Any
) -> None:
    """Results are columns of wider arrays, whose other columns stay."""
    inner = np.s_[..., 16:-3]

    def inside(whole: Any, model: np.ndarray) -> Any:
        if hasattr(whole, "__getitem__"):
            return whole[inner]
        view = widened(model)[inner]
        return whole.view(view.shape, view.strides, 16 * view.itemsize)

    def widened(model: np.ndarray) -> np.ndarray:
        return np.full((*model.shape[:-1], model.shape[-1] + 19), 7, model.dtype)

    for shape in shapes_of(op, way, dtype, place.name, "neighbours"):
        for run in Call(op, way, shape, dtype).both:
            expected = results(place, run)
            if any(a is not None and a.ndim == 0 for a in expected):
                continue  # one number has no neighbours
            held = [a if a is None else place.of(widened(a)) for a in expected]
            pairs = list(zip(held, expected, strict=True))
            out = tuple(h if h is None else inside(h, a) for h, a in pairs)
            moved(run, place.of)(out=one_or_all(out))
            for whole, made in pairs:
                if made is not None:
                    found = place.numpy(whole)
                    agree([found[inner]], [made])
                    if place is CPU or made.shape == shape:  # sums may follow alignment
                        assert_same_bits(np.ascontiguousarray(found[inner]), made)
                    rest = np.delete(found.astype(float), np.s_[16:-3], -1)
                    assert (rest == 7).all()


def has_rows(op: Any, way: dict[str, Any]) -> bool:
    """Whether each row of the data has rows of results of its own, wherever it stands."""
    if not fits(op, repr(way), (6, 16)) or way.get("axis", -1) != -1:
        return False
    call = Call(op, way, (6, 16), np.float32)
    taken = {*op.entry_points["call"].arrays, *op.entry_points["call"].defaults}
    couples = {"seed", "target", "shape"} & taken or (
        op.family == "norms" and traits(op).by_channel
    )
    given = [a for run in call.both for a in arrays_in(run)]
    is_kept = all(np.ndim(y) == 2 and len(y) == 6 for y in arrays_of(call.result))
    return is_kept and not couples and not any(a.shape == (6,) for a in given)


@each_call(PLACES, has_rows)
def test_other_rows_do_not_show(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """A part of a batch has the bits that it has in the batch."""
    for shape in shapes_of(op, way, dtype, place.name, "rows"):
        call = Call(op, way, shape, dtype)
        for run, some in product(call.both, (slice(1, 2), slice(shape[0] // 2, None))):
            if "shape" in op.saves and run.func == op.backward:
                continue

            def part(a: Any, some: slice = some, rows: int = shape[0]) -> Any:
                return a[some] if a.ndim > 1 and len(a) == rows else a

            found, whole = results(place, run, part), results(place, run)
            kept = [k for k, b in enumerate(whole) if b is not None and b.shape[:1] == shape[:1]]
            kept = [k for k in kept if whole[k].ndim > 1]
            assert_all_same_bits([found[k] for k in kept], [part(whole[k]) for k in kept])


@everywhere
def test_a_repeated_gradient(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """What autograd hands over for a sum, one number with strides of 0: as of a whole array."""
    for shape in shapes_of(op, way, dtype, place.name, "repeated"):
        call = Call(op, way, shape, dtype)
        one = np.full((), 0.5, dtype)
        wide = [np.broadcast_to(one, np.shape(dy)) for dy in call.dys]
        whole, run = call.backward(*(np.array(dy) for dy in wide)), call.backward(*wide)
        expected, found = results(place, whole), results(place, run)
        if place is CPU or not sums_channels(op):
            assert_all_same_bits(found, expected)
        else:  # in the order in which dy lies
            agree(found, expected, cancelled(call, whole))


@everywhere
def test_gradients_of_nothing(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """They are sums of no terms: 0, or what stood there."""
    shapes = [shape for shape in EMPTY if fits(op, repr(way), shape)]
    assert shapes
    for shape in shapes:
        run = Call(op, way, shape, dtype).backward()
        made, there = results(place, run), moved(run, place.of)
        for accumulate, value in ((False, 0.0), (True, 3.0)):
            out = tuple(None if a is None else place.of(np.full_like(a, 3.0)) for a in made)
            there(out=one_or_all(out), accumulate=accumulate)
            for got in (*parts(out, place), *(() if accumulate else made)):
                assert got is None or (got.astype(float) == value).all()


@contextmanager
def filled(byte: int) -> Iterator[None]:
    """New arrays of NumPy's, and workspaces, hold this until somebody writes to them."""
    kind = type(frameworks.NUMPY)

    def fills(made: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            view, memory = made(self, *args)
            memory[...] = np.frombuffer(bytes([byte]) * memory.itemsize, memory.dtype)[0]
            return view, memory

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "output", fills(kind.output))
        patch.setattr(kind, "scratch", fills(kind.scratch))
        yield


@everywhere
def test_results_of_nothing(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """Whatever has elements all the same is written, saved arrays too; on every place alike."""
    for shape in (shape for shape in EMPTY if fits(op, repr(way), shape)):
        call = Call(op, way, shape, dtype)
        for run in (*call.both, op.bound("forward", call.named)):
            found = []
            for where, byte in ((CPU, 0x7B), (CPU, 0x11), (place, 0)):
                with filled(byte):
                    found.append(results(where, run))
            for one, *others in zip(*found, strict=True):
                for other in others:
                    assert (other is None) == (one is None)
                    if one is not None:
                        np.testing.assert_array_equal(other.astype(float), one.astype(float))


@everywhere
def test_outputs_that_are_none(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    """A result is allocated in the place of None, and a gradient is not computed."""
    shapes = shapes_of(op, way, dtype, place.name, "none")
    for shape in shapes + ([] if way else some_large(op, way, place, dtype)):
        for is_back, run in enumerate(Call(op, way, shape, dtype).both):
            expected, there = results(place, run), moved(run, place.of)
            skips = is_back and len(op.gradients) > 1
            for wanted in product(*((False, True)[: 1 + (a is not None)] for a in expected)):
                if skips and not any(wanted):
                    with pytest.raises(ValueError, match="an array for at least one gradient"):
                        there(out=(None,) * len(expected))
                    continue
                kept = [
                    a if w or not skips else None for a, w in zip(expected, wanted, strict=True)
                ]
                for adds in (False, True)[: 1 + (is_back and any(wanted))]:
                    out = tuple(
                        place.of(np.full_like(a, -0.0 if adds else 7)) if w else None
                        for a, w in zip(expected, wanted, strict=True)
                    )
                    made = there(out=out, **({"accumulate": True} if adds else {}))
                    pairs = zip(out, arrays_of(made), strict=True)
                    assert all(a is None or a is b for a, b in pairs)
                    (agree if adds else assert_all_same_bits)(parts(made, place), kept)


@each_call([CPU])
def test_results_that_go_past_the_caches(
    op: Any, way: dict[str, Any], place: Framework, dtype: Any
) -> None:
    """As some ops' outputs do where they are large, on some processors: the same bits, no more."""
    for shape in shapes_of(op, way, dtype, "caches", count=2):
        for run, threads in product(Call(op, way, shape, dtype).both, (1, 2)):
            expected = results(place, run)
            out = [None if a is None else padded(np.zeros_like(a)) for a in expected]
            with stores_past_the_caches(), fa.num_threads(threads):
                moved(run, place.of)(out=one_or_all((*out,)))
            assert_all_same_bits(out, expected)
            assert not any(o.base[..., -3:].any() for o in out if o is not None and o.ndim)


@needs_two_fused_isas
@each_call([CPU])
def test_avx2_and_avx512_have_the_same_bits(
    op: Any, way: dict[str, Any], place: Framework, dtype: Any
) -> None:
    for shape in (*shapes_of(op, way, dtype, "isas", count=2), large(op, way, dtype)):
        for run in Call(op, way, shape, dtype).both:
            expected, *others = on_fused_isas(lambda run=run: results(place, run))
            for other in others:
                assert_all_same_bits(other, expected)


def is_a_formula(op: Any, way: dict[str, Any]) -> bool:
    """Whether results of as many axes as the data have are formulas of elements, without a sum."""
    adds = is_sum(op) or ("rstd" in op.saves and "rstd" not in op.entry_points["call"].leading)
    return goes_by_elements(op, way) and not adds and op.family != "activations"


@needs_a_fused_isa
@each_call(KERNELS, is_a_formula)  # test_devices_bits.py has every class of activations' inputs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_devices_have_the_bits_of_the_cpu(
    op: Any, way: dict[str, Any], place: Framework, dtype: Any
) -> None:
    for shape in shapes_of(op, way, dtype, place.name, "bits", count=2):
        call = Call(op, way, shape, dtype)
        for run in (*call.both, op.bound("forward", call.named)):
            expected = on_fused_isas(lambda run=run: results(CPU, run))[0]
            for one, right in zip(results(place, run), expected, strict=True):
                if right is not None and right.ndim == len(shape):
                    assert_same_bits(np.ascontiguousarray(one), right)


@each_call([CPU])
def test_threads_do_not_show(op: Any, way: dict[str, Any], place: Framework, dtype: Any) -> None:
    for shape in (*shapes_of(op, way, dtype, "threads"), large(op, way, dtype)):
        for run in Call(op, way, shape, dtype).both:
            found = []
            for threads in (1, 2, 3, 5):
                with fa.num_threads(threads):
                    found.append(results(place, run))
            for other in found[1:]:
                assert_all_same_bits(other, found[0])


@pytest.mark.skipif(not EMULATED, reason="is of the emulated device")
@each_call(KERNELS[:1])
def test_other_devices_and_the_order_of_threads_do_not_show(
    op: Any, way: dict[str, Any], place: Framework, dtype: Any
) -> None:
    """Devices of more multiprocessors, of more shared memory, of clusters of up to 16 blocks."""
    emulated: Any = devices.emulate()
    others = [
        Framework("emulated", to_emulated(emulated.ExchangeArray, k), place.numpy, False)
        for k in (1, 2)
    ]
    for shape in shapes_of(op, way, dtype, "devices"):
        for run in Call(op, way, shape, dtype).both:
            expected = results(place, run)
            for other in others:
                assert_all_same_bits(results(other, run), expected)
            orders = ("forward", "backward", "shuffle")
            emulated.set_thread_order(orders[first_of(op.name, way, dtype) % 3], 7)
            try:
                assert_all_same_bits(results(place, run), expected)
            finally:
                emulated.set_thread_order("alternate", 0)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)), st.sampled_from(PAIRS))
def test_any_layout(place: Framework, data: Any, name: str, pair: Any) -> None:
    """Arrays of any rank, any order of axes, steps, repeats and alignment, and results too."""
    op, way = pair
    _cpu.select_isa(data.draw(st.sampled_from(ISAS)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    assume(fits(op, repr(way), shape))
    call, is_device = Call(op, way, shape, DTYPES[name]), place is not CPU
    assume(not (is_device and "by" in way))  # which a device has not
    for run in call.both:
        held: dict[int, Any] = {}
        for a in arrays_in(run):
            view = data.draw(views(a.shape, aligned=is_device))(a)
            held[id(a)] = view if not is_device or is_aligned(view) else a

        def laid_out(a: np.ndarray, held: Any = held) -> np.ndarray:
            view: np.ndarray = held.get(id(a), a)
            return view

        expected = results(CPU, run, lambda a, of=laid_out: np.array(of(a)))
        found = results(place, run, laid_out)
        agree(found, expected, cancelled(call, run))
        outs = [
            None if a is None
            else data.draw(views(a.shape, writable=True, aligned=is_device))(np.zeros_like(a))
            for a in expected
        ]  # fmt: skip
        out = tuple(None if o is None else place.of(o) for o in outs)
        moved(run, lambda a, of=laid_out: place.of(of(a)))(out=one_or_all(out))
        agree(parts(out, place), expected, cancelled(call, run))
