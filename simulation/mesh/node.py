"""One simulated process: started, stopped in order, paused, killed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from simulation.mesh.loop import node_loop
from slotmesh.runtime.signals import StopRequest

if TYPE_CHECKING:
    from simulation.mesh.world import World

Main = Callable[["Node"], Awaitable[Any]]
"""What the process does, until `node.stop` is set."""


class Node:
    """A process with its own loop, address and id."""

    def __init__(self, world: World, name: str, address: str, main: Main) -> None:
        """Starts at once."""
        self.world = world
        self.name = name
        self.address = address
        self.pid = world.next_pid()
        self.loop = node_loop(
            world.timeline,
            name,
            world.timeline.chance(f"node {name} {self.pid}"),
            zero=world.timeline.chance(f"zero {name} {self.pid}").uniform(10.0, 1e5),
        )
        self.loop.on_error = self._failed
        self.stop = StopRequest()
        """SIGTERM."""
        self.has_ended = False
        world.surroundings.pids[self.loop.name] = self.pid
        self._task: asyncio.Task[Any] | None = None
        self.loop.call_soon(self._begin, main, context=contextvars.Context())

    def _begin(self, main: Main) -> None:
        async def live() -> None:
            await main(self)

        self._task = self.loop.create_task(live(), name=self.name)
        self._task.add_done_callback(self._ended)

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    def terminate(self) -> None:
        """SIGTERM: it ends in order."""
        self.loop.deliver(self.stop.set)

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive:
            self.world.note(self.name, "killed")
            self._gone()

    def pause(self) -> None:
        if self.is_alive and not self.loop.is_paused:
            self.world.note(self.name, "paused")
            self.loop.pause()
            self.world.network.paused(self.loop)

    def resume(self) -> None:
        if self.is_alive and self.loop.is_paused:
            self.world.note(self.name, "resumed")
            self.loop.resume()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.world.note(self.name, f"failed: {error!r}" if error is not None else "ended")
        if error is not None:
            self.world.defect(f"{self.name} failed: {error!r}", error)
        self._gone()

    def _gone(self) -> None:
        self.has_ended = True
        self.loop.kill()
        self.world.history.died(self.pid)
        self.world.network.killed(self.loop)
        self.world.ended(self)

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.note(self.name, f"error: {context.get('message')}: {error!r}")
        if isinstance(error, Exception):
            self.world.defect(f"{self.name}: {context.get('message')}: {error!r}", error)
