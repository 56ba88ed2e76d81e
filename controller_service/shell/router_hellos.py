"""The first frames of the streams of routers: the parts of the table that a router has in force, and its hello.

Invariants: bytes and parts of one table, and the bytes of the tables of all routers that were not learnt from yet, are
counted before anything of a part is read; a hello has a limited time; no part holds the event loop for longer than a
slice, but for one element of it.
Owner: `RouterLinks`, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any, NamedTuple

import grpc

from controller_service.config import HelloBounds
from controller_service.convert.brought_tables import BroughtAssembly
from controller_service.core.brought_table import BroughtTable
from controller_service.core.lineage import HeldTable
from controller_service.core.state_adoption import MembersMesh
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.duplex import read_request
from slotmesh.runtime.loop_slices import LoopSlices
from slotmesh.status import to_exception
from slotmesh.v1 import membership_service_pb2 as wire


class ReadHello(NamedTuple):
    """A hello, and what it says of the table that the router has in force."""

    frame: wire.AttachRouterRequest
    brought: BroughtTable | None
    """The table, if it is of another generation than the controller's."""
    generation: str
    """Of the table; empty if the router has none."""
    revision: int
    term_id: str = ""
    mesh: MembersMesh | None = None
    """The configuration in the table, if it is newer than the controller's."""

    @property
    def held(self) -> HeldTable:
        """The version of the table."""
        return HeldTable(generation=self.generation, revision=self.revision, term_id=self.term_id)


class RouterHellos:
    """Reads them, one for each stream."""

    def __init__(
        self,
        bounds: HelloBounds,
        clock: Clock,
        generation: str,
        waiting: Callable[[], Container[str]],
        is_newer: Callable[[HeldTable], bool] = lambda _: False,
    ) -> None:
        """`generation`: the controller's own. `waiting`: the routers whose tables were not learnt from yet.

        Of tables of its own generation the configuration is read if they are newer (`is_newer`).
        """
        self._is_newer = is_newer
        self._bounds = bounds
        self._clock = clock
        self._generation = generation
        self._waiting = waiting
        self._reading = 0
        """Bytes of tables whose hello has not arrived."""
        self._brought: dict[str, int] = {}
        """Bytes of tables that wait, by router."""

    async def read(self, context: grpc.aio.ServicerContext[Any, Any]) -> ReadHello | None:
        """The hello of a stream; None if the stream ends before it.

        Raises:
            SlotmeshError: PAYLOAD_TOO_LARGE or QUOTA_EXCEEDED, a bound was passed; BAD_REQUEST, the table makes no
                sense or is not complete, or the hello did not arrive in time.
        """
        account = _Account()
        try:
            async with asyncio.timeout(self._bounds.timeout_s):
                hello = await self._read(context, account)
        except TimeoutError:
            text = f"hello: did not arrive within {self._bounds.timeout_s:g} s (router_hello_timeout of the controller)"
            raise _refusal(Reason.BAD_REQUEST, "hello", text) from None
        finally:
            self._reading -= account.size
        if hello is not None and hello.brought is not None:
            self._brought[hello.frame.hello.router_id] = account.size
        return hello

    async def _read(self, context: grpc.aio.ServicerContext[Any, Any], account: _Account) -> ReadHello | None:
        table = BroughtAssembly(self._generation, now := self._clock.time_of_day(), self._is_newer)
        is_open = False  # whether the last part of a table is still to come
        while (frame := await read_request(context)) is not None and frame.WhichOneof("frame") == "table_part":
            part: wire.TablePart = frame.table_part
            self._count(account, "table_part", part.ByteSize())
            if part.is_first:
                table = BroughtAssembly(self._generation, now, self._is_newer)
            elif not is_open:
                raise _refusal(Reason.BAD_REQUEST, "table_part", "table_part: no table has begun: is_first is not set")
            is_open = not part.is_last
            await _convert(table, part.table)
        if frame is None:
            return None
        if is_open:
            text = "hello: arrived before the last part of the table (table_part.is_last)"
            raise _refusal(Reason.BAD_REQUEST, "table_part.is_last", text)
        if frame.WhichOneof("frame") == "hello" and frame.hello.HasField("table"):
            self._count(account, "hello.table", frame.hello.table.ByteSize())
            table = BroughtAssembly(self._generation, now, self._is_newer)
            await _convert(table, frame.hello.table)
        return ReadHello(frame, table.finish(), table.generation, table.revision, table.term_id, table.mesh())

    def _count(self, account: _Account, field: str, size: int) -> None:
        bounds = self._bounds
        account.parts += 1
        if account.parts > bounds.table_parts:
            text = f"{field}: the table has more than {bounds.table_parts} parts (max_router_table_parts)"
            raise _refusal(Reason.PAYLOAD_TOO_LARGE, field, text)
        if account.size + size > bounds.table_bytes:
            text = f"{field}: the table has {account.size + size} bytes so far, {bounds.table_bytes} at most"
            raise _refusal(Reason.PAYLOAD_TOO_LARGE, field, f"{text} (max_router_table_size of the controller)")
        waiting = self._waiting()
        self._brought = {router: known for router, known in self._brought.items() if router in waiting}
        known = self._reading + sum(self._brought.values())
        if known + size > bounds.tables_bytes:
            text = f"{field}: tables of routers have {known + size} bytes, {bounds.tables_bytes} at most: attach later"
            raise _refusal(Reason.QUOTA_EXCEEDED, field, f"{text} (max_router_tables_size of the controller)")
        account.size += size
        self._reading += size


class _Account:
    """What one stream has sent of its table."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts = self.size = 0


async def _convert(table: BroughtAssembly, part: wire.RoutingTable) -> None:
    slices = LoopSlices()
    for _ in table.add(part):
        if slices.are_used:
            await slices.rest()


def _refusal(reason: Reason, field: str, text: str) -> Exception:
    return to_exception(Failure(reason=reason, message=text, metadata={"field": field}))
