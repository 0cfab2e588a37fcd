"""Recurrent gates in JAX's own operations, by the activated gates that `forward` saves.

src/common/gates/gates.h has the formulas. q is the recurrent part on which a reset gate
works, saved as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

Named = Mapping[str, Any]


def gradients(op: Any, incoming: Sequence[Any], named: Named) -> dict[str, Any]:
    """The gradients by the argument's name; named: what `forward` saved, and options."""
    letters, before = _letters(op, named), named[op.state]
    k = _parts(named["gates"], letters)
    dh, dc, *_ = *(0.0 if one is None else one for one in incoming), 0.0
    if "o" in k:
        t = jnp.tanh(named["c"])
        d = dc + dh * k["o"] * (1 - t * t)
        dk, dstate = {"i": d * k["g"], "f": d * before, "g": d * k["i"], "o": dh * t}, d * k["f"]
    elif "n" in k:
        dk, dstate = {"z": dh * (before - k["n"]), "n": dh * (1 - k["z"])}, dh * k["z"]
    else:
        dk, dstate = {"r": dh * before}, dh * k["r"]
    da = {letter: d * _slope(letter, k) for letter, d in dk.items()}
    du = da
    if "q" in k:
        da["r"] = da["n"] * k["q"] * _slope("r", k)
        du = {**da, "n": da["n"] * k["r"]}
    packed = [jnp.concatenate([d[n] for n in letters if n != "q"], -1) for d in (da, du)]
    of_gates, of_recurrent = packed
    of_bias, of_recurrent_bias = (d.reshape(-1, d.shape[-1]).sum(0) for d in packed)
    return {
        **{"gates": of_gates, "recurrent": of_recurrent, op.state: dstate},
        **{"bias": of_bias, "recurrent_bias": of_recurrent_bias},
    }


def tangent(op: Any, tangents: Named, named: Named) -> Any:
    """The tangent of the activated gates, by the tangents of the arguments."""
    letters = _letters(op, named)
    k = _parts(named["gates"], letters)
    packed = [letter for letter in letters if letter != "q"]
    none = jnp.zeros_like(jnp.concatenate([k[letter] for letter in packed], -1))
    x, u = (
        _parts(sum((tangents[n] for n in names if n in tangents), none), packed)
        for names in (("gates", "bias"), ("recurrent", "recurrent_bias"))
    )
    if "q" not in k:
        moved = {letter: (x[letter] + u[letter]) * _slope(letter, k) for letter in packed}
    else:
        moved = {letter: (x[letter] + u[letter]) * _slope(letter, k) for letter in "rz"}
        n = x["n"] + moved["r"] * k["q"] + k["r"] * u["n"]
        moved |= {"n": n * _slope("n", k), "q": u["n"]}
    return jnp.concatenate([moved[letter] for letter in letters], -1)


def _letters(op: Any, named: Named) -> str:
    """The gates that are saved, in their order."""
    order: str = named.get("order", op.kept)
    return order if "g" in order else order.replace("c", "g")


def _parts(packed: Any, letters: Sequence[str]) -> dict[str, Any]:
    return dict(zip(letters, jnp.split(packed, len(letters), -1), strict=True))


def _slope(letter: str, k: Named) -> Any:
    """The derivative of a gate, of its value: of a tanh or a sigmoid."""
    s = k[letter]
    return 1 - s * s if letter in "gn" else s * (1 - s)
