"""What the bridges to JAX and spaCy gain: python tools/bench_bridges.py jax|spacy [--quick]

jax: one call in a program of XLA's, forward and with its gradient, against JAX's own formula, from
small ones on. spacy: words a second of a blank English pipeline (tagger, parser, entities, of
random weights) with thinc's backend and with fastact's, on the same threads. Both in turns, best of
many.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS, QUICK_ROUNDS = 30, 2
DOCUMENTS, WORDS = 60, 200


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The best time of each in seconds, after a call that does not count."""
    best = dict.fromkeys(calls, float("inf"))
    for count in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if count:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def bench_jax(rounds: int) -> None:
    import jax
    import jax.numpy as jnp

    import fastact.jax as fj

    def layer_norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    formulas = {
        "relu": jax.nn.relu,
        "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "softmax": jax.nn.softmax,
        "layer_norm": layer_norm,
    }
    print(
        f"{'microseconds':12} {'shape':>12} {'JAX':>9} {'fastact':>9} {'JAX, gradient':>15} fastact"
    )
    for name, formula in formulas.items():
        for shape in ((1, 64), (64, 768), (4096, 768)):
            x = jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))
            calls = {}
            for who, function in (("JAX", formula), ("fastact", getattr(fj, name))):
                call = jax.jit(function)
                step = jax.jit(jax.grad(lambda x, f=function: (f(x) ** 2).sum()))
                calls[who] = lambda call=call, x=x: call(x).block_until_ready()
                calls[f"{who}, gradient"] = lambda step=step, x=x: step(x).block_until_ready()
            us = {who: 1e6 * seconds for who, seconds in in_turns(calls, rounds).items()}
            print(
                f"{name:12} {shape!s:>12} {us['JAX']:9.1f} {us['fastact']:9.1f} "
                f"{us['JAX, gradient']:15.1f} {us['fastact, gradient']:.1f}"
            )


def bench_spacy(rounds: int) -> None:
    import spacy
    from thinc.api import get_ops, set_current_ops

    import fastact.thinc

    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    known = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choice(known, WORDS)) for _ in range(DOCUMENTS)]

    def pipeline(ops: str) -> Callable[[], Any]:
        set_current_ops(get_ops(ops))
        nlp = spacy.blank("en")
        labels = {"tagger": ["A", "B"], "parser": ["dep"], "ner": ["THING"]}
        for name, of_pipe in labels.items():
            component: Any = nlp.add_pipe(name)
            for label in of_pipe:
                component.add_label(label)
        nlp.initialize()
        if ops == "fastact":
            for _, component in nlp.pipeline:
                fastact.thinc.convert(component.model)

        def run() -> None:
            set_current_ops(get_ops(ops))
            for _ in nlp.pipe(texts):
                pass

        return run

    calls = {ops: pipeline(ops) for ops in ("numpy", "fastact")}
    for ops, seconds in in_turns(calls, rounds).items():
        print(f"{ops:8} {DOCUMENTS * WORDS / seconds:9.0f} words/s")


if __name__ == "__main__":
    run = {"jax": bench_jax, "spacy": bench_spacy}
    run[sys.argv[1]](QUICK_ROUNDS if "--quick" in sys.argv else ROUNDS)
