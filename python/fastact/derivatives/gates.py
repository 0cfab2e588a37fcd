"""Recurrent gates: what a step gives, and its gradients by the activated gates that it saves.

src/common/gates/gates.h has the formulas. q is the recurrent part on which a reset gate
works, saved as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.engine.op import ops

Named = Mapping[str, Any]


def results(op: Any, of: Named, m: Any) -> tuple[Any, ...]:
    k, before = activated(op, of, m), of[op.state]
    if "o" in k:
        c = k["f"] * before + k["i"] * k["g"]
        return k["o"] * m.tanh(c), c
    if "n" in k:
        return ((1 - k["z"]) * k["n"] + k["z"] * before,)
    return (k["r"] * before,)


def kept(op: Any, of: Named, m: Any) -> Any:
    """Return the activated gates of a call, packed as they are saved."""
    k = activated(op, of, m)
    return m.concat([k[letter] for letter in _letters(op, of)])


def activated(op: Any, of: Named, m: Any) -> dict[str, Any]:
    """Return the gates of a call, by their letters."""
    letters = _letters(op, of)
    packed = [letter for letter in letters if letter != "q"]

    def added(*names: str) -> dict[str, Any]:
        first, *others = (of[name] for name in names if of.get(name) is not None)
        return _parts(sum(others, first), packed)

    sigmoid = ops["sigmoid"]
    if "q" not in letters:
        a = added("gates", "bias", "recurrent", "recurrent_bias")
        return {n: m.tanh(a[n]) if n in "gn" else m.call(sigmoid, a[n], {}) for n in packed}
    x, u = added("gates", "bias"), added("recurrent", "recurrent_bias")
    r, z = (m.call(sigmoid, x[n] + u[n], {}) for n in "rz")
    return {"r": r, "z": z, "n": m.tanh(x["n"] + r * u["n"]), "q": u["n"]}


def gradients(op: Any, incoming: Sequence[Any], named: Named, m: Any) -> dict[str, Any]:
    """Return the gradients by the argument's name; named: what `forward` saved, and options.

    incoming : the results' gradients, and then, where there is one, the activated gates'.
    """
    letters, before = _letters(op, named), named[op.state]
    k = _parts(named["gates"], letters)
    dh, *others, back = (*incoming, None)[: len(op.results) + 1]
    dh, dc = (0.0 if d is None else d for d in (dh, *others, None)[:2])
    if "o" in k:
        t = m.tanh(named["c"])
        d = dc + dh * k["o"] * (1 - t * t)
        dk, dstate = {"i": d * k["g"], "f": d * before, "g": d * k["i"], "o": dh * t}, d * k["f"]
    elif "n" in k:
        dk, dstate = {"z": dh * (before - k["n"]), "n": dh * (1 - k["z"])}, dh * k["z"]
    else:
        dk, dstate = {"r": dh * before}, dh * k["r"]
    more = {} if back is None else _parts(back, letters)
    dk = {letter: d + more.get(letter, 0.0) for letter, d in dk.items()}
    da = {letter: d * _slope(letter, k) for letter, d in dk.items()}
    du = da
    if "q" in k:
        da["r"] = (da["n"] * k["q"] + more.get("r", 0.0)) * _slope("r", k)
        du = {**da, "n": da["n"] * k["r"] + more.get("q", 0.0)}
    packed = [m.concat([d[n] for n in letters if n != "q"]) for d in (da, du)]
    of_gates, of_recurrent = packed
    rows = tuple(range(len(of_gates.shape) - 1))
    of_bias, of_recurrent_bias = (m.sum(d, rows).reshape(-1) for d in packed)
    return {
        **{"gates": of_gates, "recurrent": of_recurrent, op.state: dstate},
        **{"bias": of_bias, "recurrent_bias": of_recurrent_bias},
    }


def _letters(op: Any, named: Named) -> str:
    """Return the gates that are saved, in their order."""
    order: str = named.get("order", op.kept)
    return order if "g" in order else order.replace("c", "g")


def _parts(packed: Any, letters: Sequence[str]) -> dict[str, Any]:
    size = packed.shape[-1] // len(letters)
    return {n: packed[..., i * size : (i + 1) * size] for i, n in enumerate(letters)}


def _slope(letter: str, k: Named) -> Any:
    """Return the derivative of a gate, of its value: of a tanh or a sigmoid."""
    s = k[letter]
    return 1 - s * s if letter in "gn" else s * (1 - s)
