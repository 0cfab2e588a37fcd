"""The parts of gpu_check.sh that only pass or fail, in steps that several runs share.

    python tools/gpu_steps.py test|sanitize|bits|checks --json F [--markdown F] [--stop-after N]
        [--quick] [--only OP_OR_FAMILY ...] [--jobs N]

A step runs tests for at most some minutes: a file of them; a family's, or some ops' in one dtype,
under a tool of compute-sanitizer; a part of the bits of one activation. Steps that are in the
JSON file, of this machine and this commit, are not run again, and a file of another one is put
aside. The exit status is 3 while steps are left, and then 1 if one of them failed, in this run or
an earlier one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import fastact as fa
from fastact.interop.devices import cuda_config
from fastact.measure.files import commit, lines, read_parts, resume, write_parts, write_whole

ROOT = Path(__file__).resolve().parents[1]
SANITIZERS = ("memcheck", "racecheck", "initcheck")
DTYPES = ("float16", "bfloat16", "float32", "float64")
# What takes longer than a minute under a slow tool goes by dtypes and by so many ops.
SLOW_SANITIZERS, SLOW_FAMILY, OPS_OF_STEP = SANITIZERS[1:], "activations", 5
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
EVERY_KERNEL = "tests/devices/test_every_kernel.py"
EVERY_INPUT = "tests/activations/test_devices_every_input.py"
BITS_PARTS = 8  # that it cuts all inputs of an activation into
NOTHING_COLLECTED = 5  # pytest's exit status
LEFT = 3


@dataclass(frozen=True)
class Step:
    """A command, and the exit statuses besides 0 by which it passes."""

    part: str
    name: str
    command: tuple[str, ...]
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a step ended, and its last line of output."""

    part: str
    name: str
    verdict: str
    seconds: int
    said: str


def is_chosen(op: Any, only: Sequence[str]) -> bool:
    """Whether an op, or its family, is among the words; without any, each is."""
    return not only or op.name in only or op.family in only


def tests(quick: bool, only: Sequence[str]) -> list[Step]:
    """The cases that run on a GPU, a step a file; what is not large, as `thorough` as may be.

    The sanitizers' part has the tests of every kernel, without a tool as well.
    """
    reaches_one = re.compile("cuda|device|backend|framework|KERNELS")  # or its tests never see one
    files = [
        file
        for file in sorted(ROOT.glob("tests/*/test_*.py"))
        if reaches_one.search(file.read_text(encoding="utf-8"))
    ]
    if quick:
        of = ("devices/test_devices", "activations/test_accuracy", "activations/test_layouts")
        files = [ROOT / "tests" / f"{name}.py" for name in of]
    families = {op.family for op in fa.ops.values() if is_chosen(op, only)}
    found = []
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if name == EVERY_KERNEL or (only and file.parent.name not in families):
            continue
        words = ["-m", "not large", name]
        if file.parent.name != "devices":
            words += ["-k", "cuda"]
        found.append(Step("test", name, (*PYTEST, *words), (NOTHING_COLLECTED,)))
    return found


def sanitizers(quick: bool, only: Sequence[str]) -> list[Step]:
    """The tests of every kernel, by family: alone, then under each tool of compute-sanitizer."""
    families: dict[str, list[str]] = {}
    for op in fa.ops.values():
        if is_chosen(op, only):
            families.setdefault(op.family, []).append(op.name)
    found = []
    for tool in ("", *(SANITIZERS[:1] if quick else SANITIZERS)):
        under = "compute-sanitizer --error-exitcode 9 --print-limit 20 --target-processes all"
        before = (*under.split(), "--tool", tool) if tool else ()
        for family, names in families.items():
            what = f"{tool or 'alone'}, {family}"
            parts = [(what, DTYPES, names)]
            if family == SLOW_FAMILY and tool in SLOW_SANITIZERS:
                cuts = [names[i : i + OPS_OF_STEP] for i in range(0, len(names), OPS_OF_STEP)]
                parts = [
                    (f"{what}, {dtype}, {some[0]} to {some[-1]}", (dtype,), some)
                    for dtype in DTYPES
                    for some in cuts
                ]
            for title, dtypes, some in parts:
                of = product(dtypes, some)
                test = f"{EVERY_KERNEL}::test_results_are_the_cpus_nearly"
                cases = [f"{test}[cuda-torch-{dtype}-{name}]" for dtype, name in of]
                command = (*before, *PYTEST, "-m", "not large", *cases)
                found.append(Step("sanitize", title, command))
    return found


def bits(quick: bool, only: Sequence[str]) -> list[Step]:
    """Every input of each activation, the first part of all before others; quick: each 61st."""
    test = f"{EVERY_INPUT}::test_bits_are_the_cpus"
    cases = [("", "61")]
    if not quick:
        cases = [(f", {part + 1} of {BITS_PARTS}", f"1-{part}") for part in range(BITS_PARTS)]
    names = [
        op.name for op in fa.ops.values() if op.family == "activations" and is_chosen(op, only)
    ]
    return [
        Step("bits", name + title, (*PYTEST, "-m", "", f"{test}[{name}-cuda-torch-{case}]"))
        for title, case in cases
        for name in names
    ]


def rank(step: Step) -> tuple[int, int]:
    """What tells most comes first: every kernel, tests for devices, two sanitizers, bits, the rest.

    Within a rank the longest, by a file's size or the number of cases; bits stay as they are.
    """
    if step.part == "bits":
        return 4, 0
    if step.part == "test":
        for_devices = re.search(r"/devices/|_devices\.py$", step.name)
        return 1 if for_devices else 5, -(ROOT / step.name).stat().st_size
    tool = step.name.split(",")[0]
    return {"alone": 0, "memcheck": 2, "racecheck": 3}.get(tool, 5), -len(step.command)


def checks(*told: Any) -> list[Step]:
    """All of them, as one part: nothing here is timed, so that they may run side by side."""
    return sorted([*tests(*told), *sanitizers(*told), *bits(*told)], key=rank)


PARTS = {"test": tests, "sanitize": sanitizers, "bits": bits, "checks": checks}


def run(step: Step, seconds: float, jobs: int = 1) -> Outcome | None:
    """Run a step and show what it says; None if that takes longer than it may.

    jobs : how many run side by side, each with its part of the processors.
    """
    started = time.monotonic()
    print(f"-- {step.name}", flush=True)
    # Each array in an allocation of its own, or nothing is out of bounds; plugins that happen to
    # be installed are no part of this.
    more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if step.part == "sanitize" else {}
    if jobs > 1:
        more["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // jobs, 1))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}
    try:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    except OSError as error:  # no such program, say
        print(error, flush=True)
        return Outcome(step.part, step.name, "FAILED (not begun)", 0, str(error))
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a tool has processes of its own
        process.communicate()
        return None
    print(f"-- {step.name} said:\n" * (jobs > 1) + output, end="", flush=True)
    said = [line for line in output.splitlines() if line.strip()]
    passed = process.returncode in (0, *step.also)
    verdict = "passed" if passed else f"FAILED ({process.returncode})"
    took = round(time.monotonic() - started)
    return Outcome(step.part, step.name, verdict, took, said[-1] if said else "")


def facts() -> dict[str, Any]:
    """What must not change between runs whose outcomes stand in one table."""
    cuda = cuda_config()
    return {
        "gpu": ", ".join(cuda.get("devices", ())),
        "driver": cuda.get("driver", 0),
        "compiler": cuda.get("compiler", ""),
        "architectures": cuda.get("architectures", ""),
        "fastact": fa.__version__,
        "commit": commit(),
    }


class Done(NamedTuple):
    """The steps that were run, and where."""

    facts: dict[str, Any]
    outcomes: list[Outcome]


def read(file: Path, of: dict[str, Any]) -> list[Outcome]:
    """The outcomes that earlier runs on this machine at this commit have written."""

    def made(found: Any) -> Done:
        return Done(dict(found["machine"]), [Outcome(**one) for one in found["steps"]])

    done = resume(file, lambda path: read_parts(path, made, "tools/gpu_steps.py"), of, tuple(of))
    return done.outcomes if done else []


def write(file: Path, of: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """As JSON, for `read`; whoever is interrupted leaves the old file as it was."""
    parts = {"machine": json.dumps(of, indent=2), "steps": lines(map(asdict, outcomes))}
    write_parts(file, parts)


def page(of: dict[str, Any], outcomes: Sequence[Outcome], left: Sequence[Step]) -> str:
    """As Markdown: what was done, and what was not reached."""
    facts = "; ".join(f"{name} {value}" for name, value in of.items() if value)
    text = f"# What passed on a GPU\n\n{facts}.\n\n"
    text += "| part | step | | s | it said |\n|---|---|---|---:|---|\n"
    for one in outcomes:
        said = one.said.replace("|", r"\|").strip("= ")
        text += f"| {one.part} | {one.name} | {one.verdict} | {one.seconds} | {said} |\n"
    if left:
        text += "\nNot reached:\n\n" + "".join(f"- {step.part}, {step.name}\n" for step in left)
    return text


def go_on(
    steps: Sequence[Step],
    file: Path,
    markdown: Path | None,
    of: dict[str, Any],
    seconds: float,
    jobs: int = 1,
) -> int:
    """Run the steps that are not in the file, as long as there is time; the exit status.

    jobs : how many of them run at a time.
    """
    end = time.monotonic() + seconds
    outcomes = read(file, of)
    done = {(one.part, one.name) for one in outcomes}
    waiting = deque(step for step in steps if (step.part, step.name) not in done)
    left = list(waiting)
    running: dict[Future[Outcome | None], Step] = {}
    first = set(left[:jobs])  # which have all the time that there is
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while waiting and len(running) < jobs and (here := end - time.monotonic()) > 0:
                step = waiting.popleft()
                running[pool.submit(run, step, here, jobs)] = step
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                outcome = future.result()
                if outcome is None:
                    if step not in first:
                        continue  # the next run begins with it
                    outcome = Outcome(step.part, step.name, "FAILED (time)", round(seconds), "")
                left.remove(step)
                outcomes.append(outcome)
                write(file, of, outcomes)
                if markdown is not None:
                    write_whole(markdown, page(of, outcomes, left))
    wanted = {(step.part, step.name) for step in steps}
    failed = [one for one in outcomes if (one.part, one.name) in wanted and one.verdict != "passed"]
    for one in failed:
        print(f"{one.verdict}: {one.part}, {one.name}")
    print(f"{len(steps) - len(left)} of {len(steps)} steps are done, {len(failed)} failed")
    return LEFT if left else int(bool(failed))


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description="Parts of gpu_check.sh, in steps.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="steps at a time")
    parser.add_argument("--json", type=Path, required=True, metavar="F", help="what was done")
    parser.add_argument("--markdown", type=Path, metavar="F", help="the same to read")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--quick", action="store_true", help="fewer tests, tools and inputs")
    parser.add_argument("--only", nargs="*", default=(), metavar="W", help="these ops or families")
    args = parser.parse_args()
    known = {word for op in fa.ops.values() for word in (op.name, op.family)}
    if missing := [word for word in args.only if word not in known]:
        parser.error(f"no op or family {', '.join(missing)}")
    steps = PARTS[args.part](args.quick, args.only)
    return go_on(steps, args.json, args.markdown, facts(), args.stop_after, args.jobs)


if __name__ == "__main__":
    sys.exit(main())
