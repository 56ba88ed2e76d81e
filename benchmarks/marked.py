"""The processes of a mesh that `slotmesh run` has started, found by a mark in their environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.processes import MeshProcess

MARK: Final = "SLOTMESH_BENCHMARK"
"""The variable: another value for each mesh."""


def members(mark: str) -> list[MeshProcess]:
    """The router and the replica that have the mark in their environment. Others do little, whatever the load."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            is_marked = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            if is_marked and {b"router_service", b"replica_service", b"benchmarks.baseline"}.intersection(
                (path / "cmdline").read_bytes().split(b"\0")
            ):
                found.append(MeshProcess("member", int(path.name)))
    return found


def cpu_s(processes: Sequence[MeshProcess]) -> float:
    """Processor time of these processes and of this one."""
    return time.process_time() + sum(each.cpu_s() for each in processes)
