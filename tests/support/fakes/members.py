"""Replicas and routers that only belong: real gRPC clients of `MembershipService`, which tests lead step by step."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import duration_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from router_service.core.routing_table import RoutingTable, follow_delta
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub
from slotmesh.v1 import mesh_pb2
from tests.support.tables import delta_from_wire, merged, one_part, owners_of, reported, table_from_wire
from tests.support.wait import wait_until


class _Member(ABC):
    """One membership stream: what was received, and how it ended."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = MembershipServiceStub(channel)
        self.ended: grpc.RpcError | None = None
        self.is_ended = False
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.pid = 0
        self.start_time: Timestamp | None = None
        """Of its process; both are reported when it attaches."""

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.cut()

    async def attach(self) -> None:
        """Opens the stream and says hello."""
        self.is_ended, self.ended = False, None
        self._call = self._open()
        self._write = writer_of(self._call)
        await self._write(self._hello())
        self._reading = asyncio.create_task(self._read())

    async def move(self, channel: grpc.aio.Channel) -> None:
        """Attaches to another controller."""
        await self.cut()
        self.stub = MembershipServiceStub(channel)
        await self.attach()

    async def cut(self) -> None:
        """The connection breaks, without a word."""
        self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def say_goodbye(self) -> None:
        """Half-closes, and waits for the end."""
        await self._call.done_writing()
        await wait_until(lambda: self.is_ended, what="the end of the stream")

    async def send(self, frame: Any) -> None:
        """One frame after another: what a test says, and what the member answers by itself."""
        async with self._writing:
            await self._write(frame)

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def _hello(self) -> Any: ...

    @abstractmethod
    async def _received(self, frame: Any) -> None: ...

    async def _read(self) -> None:
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                await self._received(frame)
            if not await self._call.code() == grpc.StatusCode.OK:
                raise AssertionError("a stream that failed read as ended")
        except grpc.aio.AioRpcError as error:
            self.ended = error
        finally:
            self.is_ended = True


class FakeReplica(_Member):
    """A replica that says what it is told to say. Each object is one incarnation."""

    def __init__(self, channel: grpc.aio.Channel, backend: str, replica_id: str) -> None:
        super().__init__(channel)
        self.backend = backend
        self.replica_id = replica_id
        self.incarnation = secrets.token_hex(16)
        self.address = f"127.0.0.1:{1_024 + secrets.randbelow(60_000)}"
        self.configurations: list[pb.ReplicaConfiguration] = []
        self.drains: list[str] = []
        self.revoked: list[pb.RevokePartitions] = []
        self.clings = False
        """It does not give up partitions that it is told to; `give_up` does."""
        self.has_served = False
        """What it says of itself when it attaches, with the three below."""
        self.generation = ""
        self.newest_epoch = 0
        self.revision = 0
        self.term_id = ""
        self.process = ""
        self.pid = 4_711
        self.devices: tuple[str, ...] = ()
        self.process_facts: pb.ProcessFacts | None = None
        self.zone = ""
        self.rank: int | None = None
        """What it reports of an earlier life of the controller."""
        self.fenced_after_s = 0.0
        """The bound that it announces; 0: it does not fence itself."""
        self.acknowledged: list[int] = []
        """Stamps of its reports that were confirmed."""
        self.holds: list[bool] = []
        """`is_starting` of each frame by which the controller has reported that it sends no configuration."""
        self.terms: set[int] = set()
        """Under which it was told anything."""

    async def report(self, state: str, *, error: str = "", max_ongoing: int = 4, stamp: int = 0) -> None:
        """Says how it does; `state` is the name of a ReplicaState without its prefix."""
        await self.send(
            pb.AttachReplicaRequest(
                report=pb.ReplicaReport(
                    state=mesh_pb2.ReplicaState.Value(f"REPLICA_STATE_{state}"),
                    address="" if state in {"STARTING", "FAILED"} else self.address,
                    max_ongoing=max_ongoing,
                    error=error,
                    stamp=stamp,
                )
            )
        )

    def told_to_give_up(self, endpoint: str) -> dict[int, int]:
        """Partition -> epoch, of all that it was told to."""
        return {
            number: epoch
            for order in self.revoked
            for each in order.endpoints
            if each.endpoint == endpoint
            for number, epoch in zip(each.partitions, each.owner_epochs, strict=True)
        }

    async def give_up(self) -> None:
        """Says that nothing of what it was told to give up is left."""
        self.clings = False
        for order in self.revoked:
            await self._empty(order)

    async def say_busy(self, endpoint: str, *partitions: int) -> None:
        """Answers the order to give up everything: done, but for these partitions."""
        order = next(order for order in self.revoked if order.through_epoch)
        busy = pb.EndpointPartitions(
            endpoint=endpoint, partitions=partitions, owner_epochs=[order.through_epoch] * len(partitions)
        )
        await self.send(
            pb.AttachReplicaRequest(emptied=pb.PartitionsEmptied(through_epoch=order.through_epoch, busy=[busy]))
        )

    async def _empty(self, order: pb.RevokePartitions) -> None:
        emptied = pb.PartitionsEmptied(endpoints=order.endpoints, through_epoch=order.through_epoch)
        await self.send(pb.AttachReplicaRequest(emptied=emptied))

    def _open(self) -> Any:
        return self.stub.AttachReplica()

    def _hello(self) -> pb.AttachReplicaRequest:
        return pb.AttachReplicaRequest(
            hello=pb.ReplicaHello(
                replica_id=self.replica_id,
                incarnation=self.incarnation,
                backend=self.backend,
                pid=self.pid,
                start_time=self.start_time,
                version="0.2.0",
                has_served=self.has_served,
                generation=self.generation,
                newest_epoch=self.newest_epoch,
                process=self.process,
                revision=self.revision,
                term_id=self.term_id,
                rank=self.rank,
                devices=self.devices,
                process_facts=self.process_facts,
                zone=self.zone,
                fenced_after=_duration(self.fenced_after_s) if self.fenced_after_s else None,
            )
        )

    async def _received(self, frame: pb.AttachReplicaResponse) -> None:
        if not frame.HasField("on_hold"):  # a controller that may not be the newest one names no term
            self.terms.add(frame.term)
        match frame.WhichOneof("frame"):
            case "configuration":
                self.configurations.append(frame.configuration)
            case "drain":
                self.drains.append(frame.drain.message)
            case "revoke":
                self.revoked.append(frame.revoke)
                if not self.clings:
                    await self._empty(frame.revoke)
            case "acknowledged":
                self.acknowledged.append(frame.acknowledged.stamp)
            case "on_hold":
                self.holds.append(frame.on_hold.is_starting)
            case other:
                raise AssertionError(f"unexpected frame {other}")


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


class FakeRouter(_Member):
    """A router that keeps the tables it is sent."""

    def __init__(self, channel: grpc.aio.Channel, router_id: str, address: str = "127.0.0.1:7071") -> None:
        super().__init__(channel)
        self.router_id = router_id
        self.address = address
        self.tables: list[pb.RoutingTable] = []
        """Those that were sent, and those that follow from deltas."""
        self.wholes: list[pb.RoutingTable] = []
        """Those that were sent."""
        self._table = RoutingTable()
        """The newest, as a router reads it."""
        self.deltas: list[pb.RoutingTableDelta] = []
        """The changes that were sent."""
        self._parts: list[pb.TablePart] = []
        """What has arrived of a table or a delta."""
        self.brings: pb.RoutingTable | None = None
        """Its current table when it attaches."""
        self.brings_parts: list[pb.TablePart] = []
        """The same, in several parts."""
        self.incarnation = secrets.token_hex(16)
        """Of its process."""
        self.terms: set[int] = set()
        """Under which it was told anything."""
        self.controllers: list[str] = []
        """Where controllers are, as it was told last."""
        self.holds = 0
        """How often the controller has reported that it sends no table."""

    @property
    def table(self) -> pb.RoutingTable:
        """The newest."""
        return self.tables[-1]

    async def acknowledge(
        self,
        *linked: str,
        loads: Sequence[mesh_pb2.BackendLoad] = (),
        ended: Sequence[FakeReplica] = (),
        table: pb.RoutingTable | None = None,
    ) -> None:
        """Reports the newest table as the one in force, unless another one is given."""
        table = table or self.table
        life_of = {it.replica_id: it.incarnation for route in table.backends for it in route.replicas}
        report = pb.RouterReport(
            generation=table.generation,
            revision=table.revision,
            linked=[pb.PartitionOwner(replica_id=it, incarnation=life_of.get(it, "")) for it in linked],
            loads=loads,
            ended=[pb.PartitionOwner(replica_id=it.replica_id, incarnation=it.incarnation) for it in ended],
        )
        await self.send(pb.AttachRouterRequest(report=report))

    async def wait_for(
        self, condition: Callable[[pb.RoutingTable], object], what: str, *, timeout: float = 20.0
    ) -> pb.RoutingTable:
        """The newest table, once it meets the condition."""
        await wait_until(lambda: bool(self.tables) and condition(self.table), what=what, timeout=timeout)
        return self.table

    def _open(self) -> Any:
        return self.stub.AttachRouter()

    async def attach(self) -> None:
        """Opens the stream, sends the parts of its table, and says hello."""
        self.is_ended, self.ended, self._parts = False, None, []
        self._call = self._open()
        self._write = writer_of(self._call)
        self._reading = asyncio.create_task(self._read())
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused meanwhile: `ended` says why
            for part in [*self.brings_parts, *([one_part(self.brings)] if self.brings is not None else [])]:
                await self._write(pb.AttachRouterRequest(table_part=part))
            await self._write(self._hello())

    def _hello(self) -> pb.AttachRouterRequest:
        return pb.AttachRouterRequest(
            hello=pb.RouterHello(
                router_id=self.router_id,
                address=self.address,
                version="0.2.0",
                incarnation=self.incarnation,
                pid=self.pid,
                start_time=self.start_time,
            )
        )

    async def _received(self, frame: pb.AttachRouterResponse) -> None:
        if not frame.is_on_hold:
            self.terms.add(frame.term)
        if frame.controller_addresses:
            self.controllers = [*frame.controller_addresses]
            assert frame.WhichOneof("frame") is None
        elif frame.is_on_hold:
            self.holds += 1
            assert frame.WhichOneof("frame") is None
        else:
            assert frame.WhichOneof("frame") == "table_part"
            self._parts.append(frame.table_part)
            if frame.table_part.is_last:
                whole, self._parts = merged(self._parts), []
                if isinstance(whole, pb.RoutingTableDelta):
                    self.deltas.append(whole)
                    self._table = follow_delta(self._table, delta_from_wire(whole, self._table))
                    table = reported(self._table)
                    table.terms.extend(self.wholes[-1].terms)  # no delta changes them; no router reports them
                    self.tables.append(table)
                else:
                    self.wholes.append(whole)
                    self._table = table_from_wire(whole)
                    self.tables.append(whole)


def owners(table: pb.RoutingTable, endpoint: str) -> dict[str, int]:
    """Partitions of each replica, by id; unowned ones under the empty id. None of an endpoint that is not there."""
    assignment = owners_of(table, endpoint)
    return Counter(assignment.owners[index].replica_id if index >= 0 else "" for index in assignment.partition_owners)


def epochs(table: pb.RoutingTable, endpoint: str) -> list[int]:
    """The epoch of each partition."""
    assignment = owners_of(table, endpoint)
    return [assignment.base_epoch + epoch for epoch in assignment.owner_epochs]


def replica_routes(table: pb.RoutingTable, backend: str) -> dict[str, pb.ReplicaRoute]:
    """Replicas of a backend, by id."""
    return {
        replica.replica_id: replica for route in table.backends if route.name == backend for replica in route.replicas
    }
