"""One unary call that streams the values of its handler.

Purpose: writes each value to the client as it comes, then how the call ended.
Invariants: values are written in order, one at a time, and before the failure that may follow them. What waits for a
client that reads slowly is at most the credit of one call: its handler goes on when values were written.
Owner: the servicer's task of this call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.shell.clients.single_deliveries import values_singly
from router_service.shell.clients.taken_values import Taking
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure
from slotmesh.wire.chunks import joined

WriteValue = Callable[[bytes, str, str, str], Awaitable[object]]
"""Takes a payload, its content type, and who executes the call: backend and replica, empty but for the first value."""


class StreamedCall:
    """Values and outcome of one call, on their way to the client."""

    def __init__(self, dispatcher: Dispatcher, write: WriteValue) -> None:
        self._taking = Taking(dispatcher, {})
        self._write = write
        self._deliveries: deque[Delivery] = deque()
        self._has_come = asyncio.Event()
        self._is_first = True
        """No value was written."""

    def deliver(self, delivery: Delivery) -> None:
        """Values of the call, or its outcome."""
        self._deliveries.append(delivery)
        self._has_come.set()

    async def run(self) -> Failure | None:
        """Writes until the call has ended; returns why it failed, if it did."""
        while True:
            await self._has_come.wait()
            self._has_come.clear()
            while self._deliveries:
                match self._deliveries.popleft():
                    case DeliverValues() as values:
                        await self._write_values(values)
                    case DeliverFailure(failure=failure):
                        return failure
                    case DeliverDone():
                        return None
                    case result:
                        await self._write_value(joined(result.payloads[0]), result)
                        return None

    async def _write_values(self, values: DeliverValues) -> None:
        for each in values_singly(values):
            self._taking.leave(each)
            payload = joined(each.payloads[0])  # type: ignore[arg-type]  # only a writer of chunks puts a size in its place
            await self._write_value(payload, each)
            self._taking.written()

    async def _write_value(self, payload: bytes, source: DeliverValues | DeliverResults) -> None:
        backend, replica_id = (source.replica.backend.name, source.replica.replica_id) if self._is_first else ("", "")
        self._is_first = False
        await self._write(payload, source.content_type, backend, replica_id)
