"""The client's side of a direct stream: all slots that direct lanes hold at one replica.

Purpose: frames are sent from where the call is made; what arrives becomes events of the plan where it is read.
Invariants: the plan gets no event after the stream was lost, nor after `close`; a call that was sent is answered or
lost. A replica that answers no renewal for the duration of its leases is given up: its leases have expired.
Owner: the `SlotHolder`, which executes the commands that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import grpc

from slotmesh.client.slots.direct_plan import DirectCommand, DirectPlace, DirectPlan
from slotmesh.client.slots.lease import SlotLease
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.transport.prompt_writer import PromptWriter
from slotmesh.v1 import call_pb2, direct_service_pb2, direct_service_pb2_grpc, slot_service_pb2
from slotmesh.version import VERSION

RENEWALS_A_LEASE = 3
"""How many times a lease is renewed while it lasts."""

Request = direct_service_pb2.AttachRequest
_Call = direct_service_pb2.SlotCall
_RENEW = Request(renew=direct_service_pb2.RenewAttached())


Execute = Callable[[list[DirectCommand]], None]
"""Executes commands of the plan."""


class AttachedSlot(NamedTuple):
    """The slot of a place, attached to the stream to its replica."""

    link: DirectReplicaLink
    number: int
    lease: SlotLease


class DirectReplicaLink:
    """One stream to one replica."""

    def __init__(
        self,
        slot: slot_service_pb2.Slot,
        ttl_s: float,
        dialer: Dialer,
        plan: DirectPlan,
        execute: Execute,
        execute_result: Execute,
    ) -> None:
        """Connects to the slot's replica immediately.

        `execute`: executes what follows from an event; `execute_result`: the same after a call that has succeeded.

        Raises:
            ValueError: the address is invalid.
        """
        self.replica_id = slot.replica_id
        self.is_over = False
        """It was lost, or closed."""
        self.is_leaving = False
        """The replica drains."""
        self._is_open = False
        """The replica has answered: from now on, calls may have reached it."""
        self._plan = plan
        self._execute = execute
        self._execute_result = execute_result
        self._address = slot.replica_address
        self._backend = slot.backend
        self._ttl_s = ttl_s
        self._dialer = dialer
        self._channel = dialer.open(slot.replica_address, Role.REPLICA, slot.backend)
        stub: Any = direct_service_pb2_grpc.DirectServiceStub(self._channel)
        self._stream = stub.Attach()
        self._writer: PromptWriter[Request] = PromptWriter(writer_of(self._stream))
        self._last_call_id = 0
        self._last_number = 0
        self._slot_of: dict[int, int] = {}
        """Call id -> slot, of those that have no answer."""
        self._call_in: dict[int, int] = {}
        """Slot -> call id."""
        self.places: dict[int, DirectPlace] = {}
        """Slot -> its place: slots that were attached, or are about to be, and were not given back."""
        self._loop = asyncio.get_running_loop()
        self._silent_since: float | None = None
        """When the oldest unanswered renewal was sent; monotonic seconds."""
        self._timer = self._loop.call_later(ttl_s / RENEWALS_A_LEASE, self._renew)
        opening = direct_service_pb2.OpenAttach(version=VERSION, replica_id=slot.replica_id)
        self._writer.send(Request(open=opening))
        self._task = self._loop.create_task(self._read(), name=f"slotmesh-client-direct-{slot.replica_id}")

    # -- up --------------------------------------------------------------------------------------------------------

    def attach(self, place: DirectPlace, lease: SlotLease) -> None:
        """Attaches the slot of a place."""
        self._last_number = number = self._last_number + 1
        self.places[number] = place
        place.slot = AttachedSlot(self, number, lease)
        attached = direct_service_pb2.AttachSlot(slot_id=number, token=lease.wire.token, endpoint=lease.endpoint)
        attached.ttl.FromNanoseconds(round(self._ttl_s * 1e9))
        self._writer.send(Request(attach=attached))

    def call(self, number: int, options: call_pb2.CallOptions, payload: bytes) -> None:
        """Sends a call to a free slot."""
        self._last_call_id = call_id = self._last_call_id + 1
        self._slot_of[call_id] = number
        self._call_in[number] = call_id
        self._writer.send(Request(call=_Call(slot_id=number, call_id=call_id, options=options, payload=payload)))

    def take_back(self, number: int) -> None:
        """Cancels the call that runs in the slot."""
        call_id = self._call_in.get(number)
        if call_id is not None:
            self._writer.send(Request(cancel=direct_service_pb2.CancelSlotCall(call_id=call_id)))

    def detach(self, number: int) -> None:
        """Gives a slot back, unless the stream is over."""
        self.places.pop(number, None)
        self._forget_call(number)
        if not self.is_over:
            self._writer.send(Request(detach=direct_service_pb2.DetachSlot(slot_id=number)))

    async def close(self) -> None:
        """Ends the stream, once everything was sent. Never raises."""
        self._end()
        with suppress(Exception):
            async with asyncio.timeout(1.0):
                await self._writer.drained()
                await self._stream.done_writing()
                await self._task
        self._writer.stop()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    # -- down ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        read = cast("Any", self._stream).read
        try:
            while (response := await read()) is not grpc.aio.EOF:
                self._silent_since = None
                self._handle(response)
            self._lose("the replica ended the stream")
        except grpc.RpcError as error:
            self._refused(error)
        except (asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            self._lose(f"{type(error).__name__}")
        except asyncio.CancelledError:
            self._lose("the stream was cancelled")
            raise

    def _handle(self, response: direct_service_pb2.AttachResponse) -> None:
        match response.WhichOneof("frame"):
            case "result":
                self._answered(response.result.call_id, response.result.payload)
            case "failed":
                self._answered(response.failed.call_id, from_wire(response.failed.failure))
            case "attached":
                self._attached(response.attached)
            case "detached":
                self._detached(response.detached)
            case "opened":
                self._is_open = True
            case "go_away":
                self._leave()
            case "renewed" | None:
                pass

    def _attached(self, wire: direct_service_pb2.SlotAttached) -> None:
        place = self.places.get(wire.slot_id)
        if place is None or self.is_over:
            return
        if not wire.HasField("failure"):
            self._execute(self._plan.place_ready(place, self._loop.time()))
            return
        del self.places[wire.slot_id]
        failure = from_wire(wire.failure)
        place.slot.lease.call_ended(failure)
        self._execute(self._plan.place_refused(place, failure, self._loop.time(), is_final=False))

    def _detached(self, wire: direct_service_pb2.SlotDetached) -> None:
        """Ignored for a slot that was given back, and if the replica is of a newer version."""
        if wire.HasField("failure"):
            place = self.places.pop(wire.slot_id, None)
            self._forget_call(wire.slot_id)
            if place is not None and not self.is_over:
                self._execute(self._plan.places_lost([place], from_wire(wire.failure), self._loop.time()))

    def _answered(self, call_id: int, outcome: bytes | Failure) -> None:
        number = self._slot_of.pop(call_id, None)
        if number is None or self._call_in.pop(number, None) is None or self.is_over:
            return
        place = self.places.get(number)
        if place is not None:
            execute = self._execute if isinstance(outcome, Failure) else self._execute_result
            execute(self._plan.answered(place, outcome, self._loop.time()))

    def _leave(self) -> None:
        self.is_leaving = True
        if not self.is_over:
            for place in list(self.places.values()):
                self._execute(self._plan.place_leaves(place, self._loop.time()))

    def _forget_call(self, number: int) -> None:
        call_id = self._call_in.pop(number, None)
        if call_id is not None:
            self._slot_of.pop(call_id, None)

    # -- its end ---------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        now = self._loop.time()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= self._ttl_s:
            self._lose(f"it answered no renewal for {self._ttl_s:g} s")
            self._stream.cancel()
            return
        self._writer.send(_RENEW)
        self._timer = self._loop.call_later(self._ttl_s / RENEWALS_A_LEASE, self._renew)

    def _refused(self, error: grpc.RpcError) -> None:
        failure = from_rpc_error(error)
        failure = replace(failure, message=self._dialer.explained(failure.message, Role.REPLICA, self._backend))
        if self._is_open and failure.reason is Reason.UNAUTHENTICATED:
            self._lose_all(replace(failure, executed=Executed.UNKNOWN))
        elif self._is_open or failure.executed is not Executed.NO:
            self._lose(failure.message)
        else:
            self._lose_all(failure)

    def _lose(self, problem: str) -> None:
        self._lose_all(
            Failure(
                reason=Reason.REPLICA_LOST,
                message=f"the direct stream to replica {self.replica_id} at {self._address} was lost ({problem})",
                executed=Executed.UNKNOWN,
                metadata={"replica_id": self.replica_id},
            )
        )

    def _lose_all(self, failure: Failure) -> None:
        """`failure`: of calls that were sent and have no answer."""
        if self.is_over:
            return
        self._end()
        lost, self.places = list(self.places.values()), {}
        for place in lost:
            place.slot.lease.call_ended(cut_off=True)
        now = self._loop.time()
        if failure.reason is not Reason.NOT_IMPLEMENTED:
            self._execute(self._plan.places_lost(lost, failure, now))
            return
        for place in lost:
            self._execute(self._plan.place_refused(place, failure, now, is_final=True))

    def _end(self) -> None:
        self.is_over = True
        self._timer.cancel()
