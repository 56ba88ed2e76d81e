"""One membership stream, the leases of members, and the configurations that replicas get.

Invariants: one write in flight; neither half outlives the other; when the controller ends the stream, the member gets
the reason.
Owner: the task that awaits `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc

from controller_service.convert.replicas import configuration_to_wire
from controller_service.core.observed.leases import Leases
from controller_service.core.roster import HeldTable
from slotmesh.errors import Failure, SlotmeshError
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.runtime.clock import Clock
from slotmesh.server.guards import failure_of
from slotmesh.spec.model import Backend
from slotmesh.status import to_exception
from slotmesh.transport.duplex import read_request, run_stream
from slotmesh.transport.open_streams import stream_of
from slotmesh.transport.pump import StreamPump

InT = TypeVar("InT")
OutT = TypeVar("OutT")


class MemberStream(Generic[InT, OutT]):
    """A pump beside a reader."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], next_frame: Callable[[], OutT | None]) -> None:
        self._context = context
        self._pump = StreamPump(context.write, next_frame)
        self._ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.end_reason = ""
        """Why it has ended, for a person; empty before that, and if the member has closed it."""

    def wake(self) -> None:
        """There is something to send."""
        self._pump.wake()

    def end(self, failure: Failure) -> None:
        """Ends the stream with a failure, unless it has ended."""
        if not self._ended.done():
            self._ended.set_result(failure)

    async def run(self, on_frame: Callable[[InT], None]) -> None:
        """Until the member half-closes. Errors of `on_frame`, and the failure of `end`, are raised."""
        try:
            await run_stream(self._pump, self._converse(on_frame))
        except BaseException as error:
            self.end_reason = self._reason_of(error)
            raise

    def _reason_of(self, error: BaseException) -> str:
        stream = stream_of(self._context)
        if stream is not None and stream.failure is not None:
            return f"the controller ended its stream: {stream.failure.message}"
        if isinstance(error, SlotmeshError):
            return f"the controller ended its stream: {failure_of(error).message}"
        return "its connection broke"

    async def _converse(self, on_frame: Callable[[InT], None]) -> None:
        reading = asyncio.ensure_future(self._read_all(on_frame))
        try:
            await asyncio.wait((reading, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise to_exception(self._ended.result())
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_all(self, on_frame: Callable[[InT], None]) -> None:
        while (frame := await read_request(self._context)) is not None:
            on_frame(frame)


STOOD_STILL_S: Final = 1.0
"""A timer that fires this much too late shows that this process did not run."""


class LeaseWatch:
    """Leases of one kind of members: sleeps until the next one could run out.

    One timer at most, which fires at the earliest deadline, not at a beat. A member that ended has no lease. A
    controller that stood still itself suspects no member for reports that it could not read.
    """

    def __init__(self, clock: Clock, *, lease_s: float, on_silent: Callable[[str], None]) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._leases = Leases(lease_s=lease_s)
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None

    def renew(self, member: str) -> None:
        """The member has reported."""
        self._leases.renew(member, self._clock.now())
        if self._timer is None:
            self._sleep()

    def is_heard(self, member: str) -> bool:
        """Whether the member's lease has not run out."""
        return self._leases.is_renewed(member, self._clock.now())

    def end(self, member: str) -> None:
        """The member needs no lease any more."""
        self._leases.end(member)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sleep(self) -> None:
        deadline = self._leases.next_deadline()
        if deadline is None:
            self._timer = None
            return
        delay_s = max(0.0, deadline - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, deadline)

    def _look(self, deadline: float) -> None:
        now = self._clock.now()
        if now - deadline > STOOD_STILL_S:
            self._leases.renew_all(now)
        for member in self._leases.expire(now):
            self._on_silent(member)
        self._sleep()


MAX_FRAMES: Final = 1024
"""Configurations that are kept: one for each backend."""


class AnnouncedConfiguration(NamedTuple):
    """What a replica's configuration follows from."""

    backend: Backend
    is_known: bool
    """There is a backend of that name."""
    router_addresses: tuple[str, ...]
    controller_addresses: tuple[str, ...]
    num_replicas: int = 0
    """That the backend should have."""
    rank: int | None = None
    """Of the replica; all else is the same for all replicas of the backend."""


class ConfigurationFrames:
    """The newest configuration of each backend, as replicas get it: made once for all of them."""

    def __init__(self, version: Callable[[], HeldTable]) -> None:
        """`version` is that of the store."""
        self._version = version
        self._frames: dict[str, tuple[AnnouncedConfiguration, wire.AttachReplicaResponse]] = {}

    def of(self, content: AnnouncedConfiguration) -> wire.AttachReplicaResponse:
        """The frame of a configuration, with the version of the store at which it was made."""
        rank, content = content.rank, content._replace(rank=None)
        known = self._frames.get(content.backend.name)
        if known is None or known[0] != content:
            frame = configuration_to_wire(
                content.backend,
                version=self._version(),
                is_known=content.is_known,
                router_addresses=content.router_addresses,
                controller_addresses=content.controller_addresses,
                num_replicas=content.num_replicas,
            )
            if len(self._frames) >= MAX_FRAMES:
                self._frames.clear()
            known = self._frames[content.backend.name] = content, frame
        if rank is None:
            return known[1]
        own = wire.AttachReplicaResponse()
        own.CopyFrom(known[1])
        own.configuration.rank = rank
        return own
