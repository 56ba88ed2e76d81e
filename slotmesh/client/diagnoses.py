"""Why routers are not reached, for the errors of a client.

Invariants: all callers of a client share one query per second and router, which a cancelled caller does not end. A
query that is ended by `aclose`, or whose channel is closed meanwhile, has no result, and cancels no caller.
Owner: the client's `Routers`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from slotmesh.runtime.channels import Dialer
from slotmesh.security.handshakes import ConnectionProblem
from slotmesh.security.identity import Role
from slotmesh.transport.connection_problems import connection_problem

_VALID_S: Final = 1.0


class Diagnoses:
    """The last one of each router."""

    def __init__(self, dialer: Dialer) -> None:
        """`dialer`: opens the channels."""
        self._dialer = dialer
        self._tasks: dict[str, tuple[float, asyncio.Task[ConnectionProblem | None]]] = {}

    async def of(self, address: str, channel: grpc.aio.Channel) -> ConnectionProblem | None:
        """Why this channel to the router has no connection; None if that is not known, or it has one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._tasks = {each: at for each, at in self._tasks.items() if now - at[0] < _VALID_S or not at[1].done()}
        if address not in self._tasks:
            asking = connection_problem(channel, address, self._dialer, Role.ROUTER)
            self._tasks[address] = now, loop.create_task(asking, name=f"slotmesh-client-diagnosis-{address}")
        task = self._tasks[address][1]
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    async def aclose(self) -> None:
        """Ends what still runs."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
