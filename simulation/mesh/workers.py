"""Many seeds on all processors: each worker is a process, so that nothing of one run is left for another worker's.

Invariants: a worker has the same hash seed, whatever the parent has; what it found comes back as JSON lines.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

HASH_SEED: Final = "0"
SEEDS_A_WORKER: Final = 100
"""What one process does before another one takes its place: what runs leave behind is not collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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


def run_seeds(
    seeds: Sequence[int], seconds: float, plot: str, processes: int, defect: str = ""
) -> Generator[Found, None, None]:
    """In no order. `plot`: a name, or several with commas between them, or empty; `defect`: a name, or empty."""
    size = min(SEEDS_A_WORKER, -(-len(seeds) // processes))
    chunks = [list(seeds[at : at + size]) for at in range(0, len(seeds), size)]
    chunks.reverse()
    running: dict[int, subprocess.Popen[str]] = {}
    try:
        with selectors.DefaultSelector() as selector:
            while chunks or running:
                while chunks and len(running) < processes:
                    worker = _start(chunks.pop(), seconds, plot, defect)
                    if worker.stdout is None:
                        raise RuntimeError("a worker has no output")
                    running[worker.stdout.fileno()] = worker
                    selector.register(worker.stdout, selectors.EVENT_READ)
                for key, _ in selector.select():
                    worker = running[key.fd]
                    line = worker.stdout.readline() if worker.stdout is not None else ""
                    if line:
                        yield _read(line)
                        continue
                    selector.unregister(key.fileobj)
                    del running[key.fd]
                    worker.communicate()
                    if status := worker.wait():
                        raise RuntimeError(f"a worker ended with status {status}")
    finally:
        for worker in running.values():
            worker.kill()
            worker.communicate()


def _start(seeds: list[int], seconds: float, plot: str, defect: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "simulation.mesh.worker", str(seconds), plot, defect, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, bufsize=1)


def _read(line: str) -> Found:
    said = json.loads(line)
    return Found(**{**said, "violations": [(name, text) for name, text in said["violations"]]})
