"""A launcher without processes: replicas end when a test says so.

Held to the same contract tests as the real ones: tests/contract/test_controller_launchers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller_service.shell.launchers.protocol import Exit, LaunchFailed, LaunchOrder, OnExit


class FakeLauncher:
    """Implements `Launcher`. Replicas end as soon as they are asked to, unless they are `stubborn`."""

    def __init__(self, on_exit: OnExit, *, on_start: Callable[[LaunchOrder], None] | None = None) -> None:
        self.running: dict[str, LaunchOrder] = {}
        self.started: list[LaunchOrder] = []
        self.stopped: list[str] = []
        """Ids, in the order in which they were asked to end."""
        self.stubborn: set[str] = set()
        """Ids of replicas that end only when they are killed."""
        self.refusal = ""
        """Why nothing can be started; empty where it can."""
        self._on_exit = on_exit
        self._on_start = on_start
        self._killing: dict[str, asyncio.TimerHandle] = {}
        self._emptied = asyncio.Event()

    @property
    def launches(self) -> bool:
        return True

    async def start(self, order: LaunchOrder) -> int:
        if self.refusal:
            raise LaunchFailed(self.refusal)
        self.running[order.replica_id] = order
        self.started.append(order)
        if self._on_start is not None:
            asyncio.get_running_loop().call_soon(self._on_start, order)
        return 10_000 + len(self.started)

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        if replica_id not in self.running or replica_id in self._killing:
            return
        self.stopped.append(replica_id)
        loop = asyncio.get_running_loop()
        how = "was killed by SIGKILL" if replica_id in self.stubborn else "exited with status 0"
        self._killing[replica_id] = loop.call_later(
            grace_s if replica_id in self.stubborn else 0.0, self.exit, replica_id, how
        )

    async def close(self) -> None:
        for replica_id in [*self.running]:
            self.stop(replica_id, grace_s=0.1)
        while self.running:
            self._emptied.clear()
            await self._emptied.wait()

    def exit(self, replica_id: str, how: str = "was killed by SIGKILL") -> None:
        """The replica's process ends, now."""
        if self.running.pop(replica_id, None) is None:
            return
        if timer := self._killing.pop(replica_id, None):
            timer.cancel()
        self._on_exit(Exit(replica_id=replica_id, how=how, failed=how != "exited with status 0"))
        self._emptied.set()
