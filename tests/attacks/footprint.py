"""What a process holds: resident memory and open descriptors, and whether it holds more than before.

Invariants: a process may have a tenth more than before, and a constant: caches and pools of the transport.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MORE: Final = 1.1
"""A tenth more than before is no growth."""
MORE_MIB: Final = 8.0
MORE_DESCRIPTORS: Final = 8
_MIB: Final = 1024 * 1024
_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process, at one moment."""

    rss_mib: float
    descriptors: int

    def has_grown_since(self, before: Footprint) -> bool:
        return (
            self.rss_mib > before.rss_mib * MORE + MORE_MIB
            or self.descriptors > before.descriptors * MORE + MORE_DESCRIPTORS
        )


Footprints = Mapping[str, Footprint]
"""By what the process is: `router`, `replica`, `controller`."""


def footprint_of(pid: int) -> Footprint:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text("ascii"), re.MULTILINE)
    assert found is not None, f"process {pid} has ended"
    return Footprint(int(found[1]) * 1024 / _MIB, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - only counted


def footprints(pids: Mapping[str, int]) -> Footprints:
    return {name: footprint_of(pid) for name, pid in pids.items()}


class Peak:
    """The most that each process was seen to hold."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.most = footprints(pids)

    def look(self) -> None:
        for name, now in footprints(self._pids).items():
            most = self.most[name]
            seen = Footprint(max(most.rss_mib, now.rss_mib), max(most.descriptors, now.descriptors))
            self.most = {**self.most, name: seen}


@asynccontextmanager
async def peak_of(pids: Mapping[str, int]) -> AsyncIterator[Peak]:
    """Looks several times a second, for as long as the block lasts."""
    peak = Peak(pids)

    async def look() -> None:
        while True:
            peak.look()
            await asyncio.sleep(_LOOK_S)

    task = asyncio.create_task(look())
    try:
        yield peak
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_back(pids: Mapping[str, int], before: Footprints, within_s: float) -> tuple[Footprints, float]:
    """Waits until no process holds more than before; returns what they hold then, and how long that took, seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        now = footprints(pids)
        grown = {name: (before[name], it) for name, it in now.items() if it.has_grown_since(before[name])}
        took_s = loop.time() - began
        if not grown:
            return now, took_s
        assert took_s < within_s, f"not back within {within_s:g} s: {grown}"
        await asyncio.sleep(_LOOK_S)
