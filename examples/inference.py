"""A trained network without the framework that trained it.

    pip install '.[test]'           # torch, and scikit-learn, which ships the data
    python examples/inference.py    # measures onnxruntime too, where it and onnx are installed

In torch a network with layer norms and Mish learns the 8 x 8 images of sklearn's `load_digits`.
Its arrays go into one .npz file, and each of the servers, in a process of its own, reads the images
of the test from it: with NumPy and fastact alone, with torch, with ONNX Runtime. They have to give
the same labels. For each it prints the time of a request on one thread, the memory of the
process, and how much is installed for it. A run of it: docs/results/inference.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 256
EPOCHS = 10
BATCHES = (1, 64)
REQUESTS, QUICK_REQUESTS = 2000, 50
REQUIRED_ACCURACY = 0.97
EPS = 1e-5

POOLS = ("FASTACT", "OMP", "OPENBLAS", "MKL")
ONE_THREAD = {
    f"{pool}_NUM_THREADS": "1" for pool in POOLS
}  # a pool's work is over before it begins

Reader = Callable[[Any], Any]  # of images, gives a number a digit


def with_fastact(net: dict[str, Any]) -> Reader:
    """The network with NumPy and fastact."""
    import fastact as fa

    def read(x: Any) -> Any:
        for layer in "01":
            x = x @ net[f"w{layer}"] + net[f"b{layer}"]
            x = fa.layer_norm(x, net[f"g{layer}"], net[f"h{layer}"], eps=EPS, activation="mish")
        return x @ net["w2"] + net["b2"]

    return read


def with_torch(net: dict[str, Any]) -> Reader:
    """The same in torch, without gradients."""
    import torch

    arrays = {name: torch.from_numpy(array) for name, array in net.items()}
    functional = torch.nn.functional

    @torch.inference_mode()
    def read(images: Any) -> Any:
        x = torch.from_numpy(images)
        for layer in "01":
            x = torch.addmm(arrays[f"b{layer}"], x, arrays[f"w{layer}"])
            weight, bias = arrays[f"g{layer}"], arrays[f"h{layer}"]
            x = functional.mish(functional.layer_norm(x, (WIDTH,), weight, bias, EPS))
        return torch.addmm(arrays["b2"], x, arrays["w2"]).numpy()

    return read


def with_onnxruntime(net: dict[str, Any]) -> Reader:
    """The same as a graph of ONNX."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    nodes, x = [], "x"
    for layer in "01":
        names = [f"{kind}{layer}" for kind in "wbgh"]
        nodes.append(helper.make_node("Gemm", [x, *names[:2]], [f"z{layer}"]))
        nodes.append(
            helper.make_node(
                "LayerNormalization", [f"z{layer}", *names[2:]], [f"n{layer}"], epsilon=EPS
            )
        )
        nodes.append(helper.make_node("Mish", [f"n{layer}"], [f"y{layer}"]))
        x = f"y{layer}"
    nodes.append(helper.make_node("Gemm", [x, "w2", "b2"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 10])],
        [numpy_helper.from_array(array, name) for name, array in net.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda images: session.run(None, {"x": images})[0]


# The server, and the packages that it needs.
SERVERS: dict[str, tuple[Callable[[dict[str, Any]], Reader], tuple[str, ...]]] = {
    "fastact": (with_fastact, ("numpy", "fastact")),
    "torch": (with_torch, ("numpy", "torch")),
    "onnxruntime": (with_onnxruntime, ("numpy", "onnxruntime")),
}


def train(path: Path) -> float:
    """Train the network in torch, and write its arrays and the test to a file; the accuracy."""
    import torch
    from _shared import load_digits
    from torch import nn

    digits = load_digits()
    images, test_images = (x.reshape(-1, 64) for x in (digits.train, digits.test))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (64, WIDTH):
        layers += [nn.Linear(inputs, WIDTH), nn.LayerNorm(WIDTH, EPS), nn.Mish()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    x: Any = torch.from_numpy(images)
    y: Any = torch.from_numpy(digits.train_labels)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(EPOCHS):
        order: Any = torch.randperm(len(x))
        for chosen in order.split(64):
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
    names = ("w0", "b0", "g0", "h0", "w1", "b1", "g1", "h1", "w2", "b2")
    net: dict[str, Any] = {
        name: np.ascontiguousarray(p.detach().numpy().T)
        for name, p in zip(names, model.parameters(), strict=True)
    }
    with torch.no_grad():
        read = model(torch.from_numpy(test_images)).argmax(1).numpy()
    np.savez(path, images=test_images, labels=read, **net)
    return float((read == digits.test_labels).mean())


def serve(server: str, path: str, requests: int) -> dict[str, Any]:
    """What one server says of itself, in its own process."""
    with np.load(path) as file:
        net = dict(file)
    images, labels = net.pop("images"), net.pop("labels")
    read = SERVERS[server][0](net)
    facts: dict[str, Any] = {"different": int((read(images).argmax(1) != labels).sum())}
    for batch in BATCHES:
        chosen = images[:batch].copy()
        times = []
        for _ in range(requests):
            begin = time.perf_counter()
            read(chosen)
            times.append(time.perf_counter() - begin)
        facts[f"us_{batch}"] = sorted(times)[len(times) // 2] * 1e6
    status = Path("/proc/self/status")
    if status.exists():
        found = [s for s in status.read_text().splitlines() if s.startswith("VmRSS")]
        facts["memory"] = int(found[0].split()[1]) / 1024
    own = {"torch", "onnxruntime", "onnx", "sklearn", "jax", "scipy"}
    facts["frameworks"] = sorted(own & sys.modules.keys())
    return facts


def installed(packages: tuple[str, ...]) -> float:
    """Megabytes of packages on disk, without what Python itself and tests have put there."""
    total = 0
    for name in packages:
        try:
            files = distribution(name).files or []
            paths = [Path(str(file.locate())) for file in files]
        except PackageNotFoundError:  # not installed, but found in a source tree
            spec = find_spec(name)
            folders = (spec and spec.submodule_search_locations) or []
            paths = [path for folder in folders for path in Path(folder).rglob("*")]
        left_out = ("__pycache__", "_cuda_emulated")
        paths = [path for path in paths if not any(part in str(path) for part in left_out)]
        total += sum(path.stat().st_size for path in paths if path.is_file())
    return total / 1e6


def main() -> int:
    if "--serve" in sys.argv:
        name, file, count = sys.argv[sys.argv.index("--serve") + 1 :]
        print(json.dumps(serve(name, file, int(count))))
        return 0
    requests = QUICK_REQUESTS if "--quick" in sys.argv else REQUESTS
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.npz"
        accuracy = train(path)
        print(f"{path.stat().st_size / 1e3:.0f} kB of arrays\n")
        print("            batch 1   batch 64     memory    installed")
        for server, (_, packages) in SERVERS.items():
            command = [sys.executable, __file__, "--serve", server, str(path), str(requests)]
            environ = {**os.environ, **ONE_THREAD}
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            if done.returncode:
                if "ModuleNotFoundError" not in done.stderr:
                    failures.append(done.stderr)
                print(f"{server:12}{done.stderr.splitlines()[-1]}")
                continue
            facts = json.loads(done.stdout)
            print(
                f"{server:12}{facts['us_1']:4.0f} us {facts['us_64']:7.0f} us "
                f"{facts.get('memory', float('nan')):8.0f} MB {installed(packages):9.0f} MB"
            )
            if facts["different"]:
                failures.append(f"{server} reads {facts['different']} images otherwise")
            if server == "fastact" and facts["frameworks"]:
                failures.append(f"{server} imported {facts['frameworks']}")
    if accuracy < REQUIRED_ACCURACY:
        failures.append(f"the accuracy must be {REQUIRED_ACCURACY}")
    print("\n" + "\n".join(failures))
    print(f"test accuracy {accuracy:.3f}, the same labels: {'failed' if failures else 'passed'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
