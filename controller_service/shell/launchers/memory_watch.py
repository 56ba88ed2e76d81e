"""Ends replicas that use more memory than their backend's `memory`.

Purpose: a bound without privileges, for processes that this controller has launched, in their process groups.
Invariants: one task reads `/proc` for all, only while there is a bound, in a thread; memory that processes of a group
share counts once; a replica is reported once. What is allocated faster than `LOOK_EVERY_S` may exceed the bound.
Owner: the process launcher, on its event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from slotmesh.logs import get_logger
from slotmesh.units import format_size

LOOK_EVERY_S: Final = 0.5
_PROC: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_log = get_logger(__name__)


class MemoryWatch:
    """The bounds of process groups, by their ids."""

    def __init__(self, on_excess: Callable[[int, str], object]) -> None:
        """`on_excess` is called with a group that uses more than its bound, and a text for people."""
        self._on_excess = on_excess
        self._bounds: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, group: int, bound: int) -> None:
        """From now on."""
        if not (_PROC / "self/stat").exists():
            _log.warning("memory of replicas is not bounded: this operating system has no /proc")
            return
        self._bounds[group] = bound
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look(), name="memory of replicas")

    def forget(self, group: int) -> None:
        """It has ended. May be called for any."""
        self._bounds.pop(group, None)

    def close(self) -> None:
        """Ends the task. May be called again."""
        self._bounds.clear()
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while self._bounds:
            try:
                exceeded = await asyncio.to_thread(exceeding, dict(self._bounds))
            except (OSError, RuntimeError) as error:  # no descriptor or thread is left: the next look may have one
                _log.warning("memory of replicas cannot be read; it is tried again", error=str(error))
                exceeded = {}
            for group, used in exceeded.items():
                if (bound := self._bounds.pop(group, None)) is not None:
                    self._on_excess(group, f"used {used / 2**20:,.0f} MiB of its memory: {format_size(bound)}")
            await asyncio.sleep(LOOK_EVERY_S)


def exceeding(bounds: Mapping[int, int]) -> dict[int, int]:
    """The process groups that use more than their bound, and how much, in bytes. Blocks."""
    resident: dict[int, int] = dict.fromkeys(bounds, 0)
    members: dict[int, list[int]] = {group: [] for group in bounds}
    for name in os.listdir(_PROC):  # noqa: PTH208 - names alone
        if name.isdecimal() and (group := _group_of(int(name))) in bounds:
            members[group].append(int(name))
            resident[group] += _resident(int(name))
    exceeded = dict[int, int]()
    for group, used in resident.items():
        if used > bounds[group] and (shared_once := sum(map(_proportional, members[group]))) > bounds[group]:
            exceeded[group] = shared_once
    return exceeded


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0  # it has just ended


def _resident(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text("ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0  # likewise


def _proportional(pid: int) -> int:
    """Resident memory in bytes, of which pages that several processes share count in parts."""
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text("utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0  # it has ended, or is about to
    return 0
