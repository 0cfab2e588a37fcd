"""What the bridges to JAX, spaCy and scikit-learn gain, beside these alone.

    python -m benchmarks.bench_bridges calls|models --markdown docs/results/jax.md
    python -m benchmarks.bench_bridges spacy --markdown docs/results/thinc.md
    python -m benchmarks.bench_bridges sklearn

Of JAX: calls, one call in a program of XLA's and its gradient, from small ones on; models, gradient
steps of three networks. spacy: words a second of a blank English pipeline (tagger, parser,
entities, of random weights). sklearn: predictions of a network and a scaler's `partial_fit`.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.measure.peers import OURS
from fastact.terminal import markdown_table

from .pages import Call, Section, Timed, compare, in_process, main, marked, table_of

DOCUMENTS, WORDS = 60, 200
SHAPES = (1, 64), (64, 768), (4096, 768)
THREADS = 2
SKLEARN = "scikit-learn"


def of_numbers(seed: int, *shape: int) -> Any:
    """Normally distributed, scaled as weights are."""
    import jax.numpy as jnp

    scale = 1 if len(shape) < 2 else shape[0] ** -0.5
    return jnp.asarray(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def compiled(function: Callable[..., Any], *arguments: Any) -> Call:
    """A call that waits for the result; compiled on the way."""
    import jax

    call = jax.jit(function)
    jax.block_until_ready(call(*arguments))
    return lambda: jax.block_until_ready(call(*arguments))


# --- what a user of JAX writes, and the same by fastact -------------------------------------------


def by_jax() -> SimpleNamespace:
    import jax
    import jax.numpy as jnp

    def mish(x: Any) -> Any:
        return x * jnp.tanh(jax.nn.softplus(x))

    def layer_norm(x: Any, weight: Any = 1, bias: Any = 0) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias

    def rms_norm(x: Any, weight: Any = 1) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight

    def cross_entropy(logits: Any, target: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], 1)
        return -chosen.mean()

    def lstm_gates(gates: Any, c: Any) -> Any:
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    return SimpleNamespace(
        relu=jax.nn.relu,
        gelu=partial(jax.nn.gelu, approximate=False),
        mish=mish,
        softmax=lambda x, scale=1: jax.nn.softmax(scale * x),
        layer_norm=layer_norm,
        layer_norm_mish=lambda *arrays: mish(layer_norm(*arrays)),
        rms_norm=rms_norm,
        swiglu=lambda a, b: jax.nn.silu(a) * b,
        cross_entropy=cross_entropy,
        lstm_gates=lstm_gates,
    )


def by_fastact() -> SimpleNamespace:
    import fastact.jax as fj

    names = [name for name in vars(by_jax()) if name != "layer_norm_mish"]
    named = {name: getattr(fj, name) for name in names}
    return SimpleNamespace(**named, layer_norm_mish=partial(fj.layer_norm, activation="mish"))


def both() -> dict[str, SimpleNamespace]:
    return {"JAX": by_jax(), "fastact": by_fastact()}


# --- calls ----------------------------------------------------------------------------------------

# A program of ops and arrays (x, another of its shape, a class for each row).
PROGRAMS: dict[str, Callable[..., Any]] = {
    "relu": lambda ops, x, y, target: ops.relu(x),
    "relu(2 x + y), a chain": lambda ops, x, y, target: ops.relu(2 * x + y),
    "gelu": lambda ops, x, y, target: ops.gelu(x),
    "mish": lambda ops, x, y, target: ops.mish(x),
    "swiglu": lambda ops, x, y, target: ops.swiglu(x, y),
    "softmax": lambda ops, x, y, target: ops.softmax(x),
    "layer_norm": lambda ops, x, y, target: ops.layer_norm(x),
    "rms_norm": lambda ops, x, y, target: ops.rms_norm(x),
    "cross_entropy": lambda ops, x, y, target: ops.cross_entropy(x, target),
    "lstm_gates": lambda ops, x, y, target: ops.lstm_gates(x, y[:, : x.shape[1] // 4])[0],
}


def squared(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: (call(*arrays) ** 2).sum()


def calls(args: argparse.Namespace) -> Iterator[Timed]:
    """Yield the times of each program, and of its gradient, in each shape."""
    import jax
    import jax.numpy as jnp

    ways = {"call": lambda call: call, "gradient": lambda call: jax.grad(squared(call))}
    for (name, program), (rows, width), way in product(PROGRAMS.items(), SHAPES, ways):
        arrays = *(of_numbers(seed, rows, width) for seed in range(2)), jnp.arange(rows) % width
        both_ways = {
            who: compiled(ways[way](partial(program, ops)), *arrays) for who, ops in both().items()
        }
        yield compare(both_ways, args.seconds, None, name, f"{rows} × {width}", way)


def bench_calls(args: argparse.Namespace) -> Iterator[str]:
    yield (
        "A program of one call, and one of the gradient of the sum of its squares, float32, arrays "
        "that are there. ×: the time of JAX's own formula over the program's with fastact; "
        "in bold where XLA is faster. The smallest shape is what a call costs."
    )
    yield table_of(calls(args), ("a program", "shape", ""), unit="µs")


# --- gradient steps -------------------------------------------------------------------------------


def mlp(ops: SimpleNamespace) -> tuple[Callable[..., Any], Any]:
    """784-512-512-10, each hidden layer with a layer norm and Mish; batch 256."""
    import jax.numpy as jnp

    def loss(layers: Any, x: Any, target: Any) -> Any:
        *hidden, (last, bias) = layers
        for weight, bias_in, scale, shift in hidden:
            x = ops.layer_norm_mish(x @ weight + bias_in, scale, shift)
        return ops.cross_entropy(x @ last + bias, target)

    hidden = [
        (of_numbers(i, n, 512), jnp.zeros(512), jnp.ones(512), jnp.zeros(512))
        for i, n in enumerate((784, 512))
    ]
    layers = [*hidden, (of_numbers(2, 512, 10), jnp.zeros(10))]
    return loss, (layers, of_numbers(3, 256, 784), jnp.arange(256) % 10)


def transformer(ops: SimpleNamespace) -> tuple[Callable[..., Any], Any]:
    """A block of width 256 with 4 heads, 4096 classes; 4 texts of 128."""
    import jax.numpy as jnp

    texts, length, width, heads, inner, classes = 4, 128, 256, 4, 704, 4096

    def loss(p: Any, x: Any, target: Any) -> Any:
        a = ops.rms_norm(x, p["norm_a"])
        of_heads = (texts, length, heads, width // heads)
        q, k, v = (jnp.swapaxes((a @ p[n]).reshape(of_heads), 1, 2) for n in "qkv")
        shares = ops.softmax(q @ jnp.swapaxes(k, 2, 3), scale=(width // heads) ** -0.5)
        x = x + jnp.swapaxes(shares @ v, 1, 2).reshape(x.shape) @ p["o"]
        a = ops.rms_norm(x, p["norm_b"])
        x = x + ops.swiglu(a @ p["gate"], a @ p["up"]) @ p["down"]
        return ops.cross_entropy((x @ p["out"]).reshape(-1, classes), target)

    p = {name: of_numbers(i, width, width) for i, name in enumerate("qkvo")}
    p |= {"norm_a": jnp.ones(width), "norm_b": jnp.ones(width)}
    p |= {name: of_numbers(i, width, inner) for i, name in enumerate(("gate", "up"))}
    p |= {"down": of_numbers(2, inner, width), "out": of_numbers(3, width, classes)}
    return loss, (p, of_numbers(4, texts, length, width), jnp.arange(texts * length) * 7 % classes)


def lstm(ops: SimpleNamespace) -> tuple[Callable[..., Any], Any]:
    """128 units by lax.scan over 64 steps of 64 features, 10 classes; batch 64."""
    import jax
    import jax.numpy as jnp

    def loss(p: Any, x: Any, target: Any) -> Any:
        def step(state: Any, projected: Any) -> Any:
            h, c = ops.lstm_gates(projected + state[0] @ p["recurrent"], state[1])
            return (h, c), None

        start = jnp.zeros((x.shape[1], 128))
        (h, _), _ = jax.lax.scan(step, (start, start), x @ p["input"] + p["bias"])
        return ops.cross_entropy(h @ p["out"], target)

    p = {"input": of_numbers(0, 64, 512), "recurrent": of_numbers(1, 128, 512)}
    p |= {"bias": jnp.zeros(512), "out": of_numbers(2, 128, 10)}
    return loss, (p, of_numbers(3, 64, 64, 64), jnp.arange(64) % 10)


MODELS = {
    "MLP 784-512-512-10, layer norm and Mish, batch 256": mlp,
    "transformer block, width 256, RMSNorm and SwiGLU, 4 × 128 tokens, 4096 classes": transformer,
    "LSTM by scan, 128 units, 64 steps, batch 64": lstm,
}


def gradient_steps(args: argparse.Namespace) -> Iterator[Timed]:
    """Yield the times of each model's step, whose losses agree."""
    import jax

    for name, model in MODELS.items():
        calls, losses = {}, {}
        for who, ops in both().items():
            loss, arguments = model(ops)
            calls[who] = compiled(jax.value_and_grad(loss), *arguments)
            losses[who] = calls[who]()[0]
        np.testing.assert_allclose(losses["JAX"], losses["fastact"], rtol=1e-4)
        yield compare(calls, args.seconds, None, name)


def bench_models(args: argparse.Namespace) -> Iterator[str]:
    yield (
        "`jax.value_and_grad` of the loss, compiled; float32; the losses agree to 1e-4. The "
        "products of matrices are XLA's on both sides."
    )
    yield table_of(gradient_steps(args), ("a gradient step",))


# --- spaCy ----------------------------------------------------------------------------------------


def pipeline(ops: str) -> Call:
    import spacy
    from thinc.api import get_ops, set_current_ops

    import fastact.thinc

    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    known = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choice(known, WORDS)) for _ in range(DOCUMENTS)]
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


POOLS = ("FASTACT", "OMP", "OPENBLAS", "BLIS", "MKL")


def bench_spacy(args: argparse.Namespace) -> Iterator[str]:
    rows = []
    for threads in range(1, THREADS + 1):
        of_all = {f"{pool}_NUM_THREADS": str(threads) for pool in POOLS}
        took = in_process("bench_bridges", "pipelines", "--seconds", args.seconds, **of_all)
        rate = [f"{DOCUMENTS * WORDS / took[ops]:,.0f}" for ops in ("numpy", OURS)]
        rows.append([f"{threads}", *rate, marked(took["numpy"] / took[OURS])])
    yield (
        f"Words a second of `spacy.blank('en')` with tagger, parser and entity recognizer, of "
        f"random weights: {DOCUMENTS} texts of {WORDS} words. Every library has the same number of "
        f"threads on both sides.\n\n"
        + markdown_table(["threads", "thinc's NumpyOps", "fastact", "×"], rows)
    )


# --- scikit-learn ---------------------------------------------------------------------------------


def of_sklearn(args: argparse.Namespace) -> Iterator[Timed]:
    """Yield the times of predictions by both, which agree, and of a scaler's steps."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    from fastact import sklearn as fs

    x, y = load_digits(return_X_y=True)
    for activation in ("relu", "tanh", "logistic"):
        model = MLPClassifier((256, 256), activation=activation, max_iter=3, random_state=0)
        ours = fs.MLPInference(model.fit(x, y))
        assert (ours.predict(x) == model.predict(x)).all()
        calls = {SKLEARN: partial(model.predict_proba, x), OURS: partial(ours.predict_proba, x)}
        yield compare(calls, args.seconds, None, f"MLP, {activation}")
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        batch = rng.normal(size=(100_000, 32)).astype(dtype)
        scalers = {SKLEARN: StandardScaler, OURS: fs.StandardScaler}
        steps = {who: lambda of=of, x=batch: of().partial_fit(x) for who, of in scalers.items()}
        yield compare(steps, args.seconds, None, f"partial_fit, {dtype}")


def bench_sklearn(args: argparse.Namespace) -> Iterator[str]:
    yield table_of(of_sklearn(args), ("",))


# --- the command ----------------------------------------------------------------------------------


def pipelines(args: argparse.Namespace) -> Iterator[str]:
    """Yield the seconds of spaCy's pipeline by both."""
    yield json.dumps(compare({o: pipeline(o) for o in ("numpy", OURS)}, args.seconds).seconds)


_JAX = partial(Section, "JAX with and without fastact", packages=("jax", "jaxlib", "numpy"))
SECTIONS = {
    "calls": _JAX("Calls", bench_calls),
    "models": _JAX("Gradient steps", bench_models),
    "spacy": Section(
        "spaCy with and without fastact", "Words a second", bench_spacy, ("spacy", "thinc", "numpy")
    ),
    "pipelines": Section("spaCy", "Pipelines", pipelines),
    "sklearn": Section(
        "scikit-learn with and without fastact",
        "Predictions and scaling",
        bench_sklearn,
        ("scikit-learn", "numpy"),
    ),
}

if __name__ == "__main__":
    main("bench_bridges", __doc__, SECTIONS, {"seconds": 1.0})
