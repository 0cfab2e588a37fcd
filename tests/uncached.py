"""A process without recorded calls, which computes what others are compared with."""

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any


class Uncached:
    """Runs ops on NumPy arrays in a process of its own, where every call goes through Python."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "FASTACT_CALL_CACHE": "0"},
        )

    def __call__(self, op: str, entry: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The arrays of the result, as NumPy's; what it raises is raised here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((op, entry, args, named), self._process.stdin)
        self._process.stdin.flush()
        found = pickle.load(self._process.stdout)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def parts(result: Any) -> list[Any]:
    """The arrays of a result, in order."""
    if isinstance(result, tuple):
        return [part for item in result for part in parts(item)]
    return [] if result is None or isinstance(result, int) else [result]


def serve() -> None:
    import numpy as np

    import fastact as fa

    while True:
        try:
            op, entry, args, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        function = fa.ops[op].entry_point(entry)
        found: Any
        try:
            with np.errstate(all="ignore"):
                found = [np.array(part) for part in parts(function(*args, **named))]
        except Exception as error:
            found = error
        pickle.dump(found, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
