"""Many seeds on all processors: each worker is a process, which gets some seeds at a time.

Invariants: a worker has the same hash seed, whatever the parent has; what it found comes back as JSON lines. Seeds are
taken as they are needed: who gives them may end at any time.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

HASH_SEED: Final = "0"
SEEDS_AT_A_TIME: Final = 5
"""What a worker gets, and does in one child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedVerdict:
    """What is told of one seed."""

    seed: int
    violations: list[tuple[str, str]]
    """Invariant and words."""
    digest: str
    calls: int
    virtual_s: float
    cpu_s: float
    reached: int
    """How often the code that a defect changes was called."""


class _Worker:
    """A process, and what it has said of a line that is not complete."""

    def __init__(self, seconds: float, plot: str, defect: str) -> None:
        command = [sys.executable, "-m", "simulation.mesh.worker", str(seconds), plot, defect]
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a worker has no input, or no output")
        self._input = self._process.stdin
        self.output = self._process.stdout
        self._said = b""

    def give(self, seeds: list[int]) -> None:
        """No seeds: it ends."""
        if seeds:
            self._input.write(f"{' '.join(map(str, seeds))}\n".encode())
            self._input.flush()
        else:
            self._input.close()

    def read(self) -> list[bytes]:
        """Whole lines, of which an empty one asks for more seeds; none: it has ended."""
        while b"\n" not in self._said and (more := os.read(self.output.fileno(), 65_536)):
            self._said += more
        *lines, self._said = self._said.split(b"\n")
        return lines

    def end(self) -> None:
        """Raises RuntimeError where it has failed."""
        with self._process as process:
            if status := process.wait():
                raise RuntimeError(f"a worker ended with status {status}")

    def kill(self) -> None:
        """With its child."""
        with self._process as process, suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def run_seeds(
    seeds: Iterable[int], seconds: float, plot: str, processes: int, defect: str = ""
) -> Generator[SeedVerdict, None, None]:
    """In no order. `plot`: a name, or several with commas between them, or empty; `defect`: a name, or empty."""
    left = iter(seeds)
    running: dict[int, _Worker] = {}
    try:
        with selectors.DefaultSelector() as selector:
            for _ in range(processes):
                if some := list(islice(left, SEEDS_AT_A_TIME)):
                    worker = _Worker(seconds, plot, defect)
                    running[selector.register(worker.output, selectors.EVENT_READ).fd] = worker
                    worker.give(some)
            while running:
                for key, _ in selector.select():
                    worker = running[key.fd]
                    lines = worker.read()
                    for line in lines:
                        if line:
                            yield _read(line)
                        else:
                            worker.give(list(islice(left, SEEDS_AT_A_TIME)))
                    if not lines:
                        selector.unregister(key.fileobj)
                        running.pop(key.fd).end()
    finally:
        for worker in running.values():
            worker.kill()


def _read(line: bytes) -> SeedVerdict:
    said = json.loads(line)
    return SeedVerdict(**{**said, "violations": [(name, text) for name, text in said["violations"]]})
