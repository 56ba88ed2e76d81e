"""A scripted replica over real gRPC: it answers runs as a test tells it to, and remembers every frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from slotmesh.convert.batches import ids_to_wire
from slotmesh.internal.v1 import replica_service_pb2, replica_service_pb2_grpc
from slotmesh.server.server import GrpcServer
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import call_pb2
from tests.support.fakes.slots import ScriptedSlots

Response = replica_service_pb2.ExecuteResponse
Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[replica_service_pb2.RunBatch], Response | None]


def echo(batch: replica_service_pb2.RunBatch) -> Response:
    """Each call's result is its payload."""
    return results(batch, list(batch.payloads))


def results(batch: replica_service_pb2.RunBatch, payloads: list[bytes]) -> Response:
    """These results, for the calls of the batch."""
    ids = range(batch.first_run_id, batch.first_run_id + len(payloads))
    content_type = batch.options.content_type
    return Response(
        results=call_pb2.ResultFrame(
            batches=[call_pb2.ResultBatch(call_ids=ids, payloads=payloads, content_type=content_type)]
        )
    )


def fail(batch: replica_service_pb2.RunBatch) -> Response:
    """The handler raises in each call."""
    failure = call_pb2.Failure(code=2, reason="HANDLER_ERROR", message="ValueError: no", executed=call_pb2.EXECUTED_YES)
    ids = range(batch.first_run_id, batch.first_run_id + len(batch.payloads))
    return Response(results=call_pb2.ResultFrame(errors=[call_pb2.CallErrors(calls=ids_to_wire(ids), failure=failure)]))


def hold(_batch: replica_service_pb2.RunBatch) -> None:
    """No answer."""


class FakeReplica(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Answers each run with `answer`, which a test may replace at any time."""

    def __init__(self, answer: Answer = echo, max_ongoing: int = 512) -> None:
        self.answer = answer
        self.capacity = replica_service_pb2.Capacity(max_ongoing=max_ongoing, keyed_window=8192)
        self.frames: list[replica_service_pb2.ExecuteRequest] = []
        self.held: list[replica_service_pb2.RunBatch] = []
        """Runs that got no answer when they came."""
        self.address = ""
        self.set_serving: Callable[[bool], object] = lambda _: None
        """Changes what the health check says."""
        self.contexts: list[Context] = []
        self.slots = ScriptedSlots()
        self.greets = True
        """It says what it can take when a router has connected; else it keeps silent."""
        self._broken = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def runs(self) -> list[replica_service_pb2.RunBatch]:
        """Every run that arrived, in order."""
        return [batch for frame in self.frames for batch in frame.runs.batches]

    @property
    def payloads(self) -> list[bytes]:
        """Those of every call that arrived, in order."""
        return [payload for batch in self.runs for payload in batch.payloads]

    async def Execute(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        self.contexts.append(context)
        self._broken = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(context))
            broken = tasks.create_task(self._broken.wait())
            await asyncio.wait((reading, broken), return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            broken.cancel()
        if self._broken.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def _read(self, context: Context) -> None:
        if (opening := await read_request(context)) is None:
            return
        self.slots.opened(opening.open.replica_id, opening.open.incarnation, self.address)
        if self.greets:
            opened = replica_service_pb2.ExecuteOpened(features=["of-tomorrow"])
            await self._write(context, Response(opened=opened, capacity=self.capacity))
        while (request := await read_request(context)) is not None:
            self.frames.append(request)
            for batch in request.runs.batches:
                await self._run(batch, context)
            for op in request.slots.ops:
                await self._handle(op, context)

    async def _run(self, batch: replica_service_pb2.RunBatch, context: Context) -> None:
        if (response := self.answer(batch)) is not None:
            await self._write(context, response)
        else:
            self.held.append(batch)

    async def _handle(self, op: replica_service_pb2.SlotOp, context: Context) -> None:
        outcome = self.slots.handle(op)
        if isinstance(outcome, replica_service_pb2.RunBatch):
            await self._run(outcome, context)
            if outcome not in self.held:
                self.slots.ended(op.op_id)
            await self._tell_slots(context)
        elif outcome is not None:
            self.capacity.others = self.slots.held_permits
            if outcome.HasField("slots"):
                outcome.capacity.CopyFrom(self.capacity)
            await self._write(context, outcome)

    async def _tell_slots(self, context: Context) -> None:
        """The router hears when slots hold more permits, or less."""
        if self.capacity.others != self.slots.held_permits:
            self.capacity.others = self.slots.held_permits
            await self._write(context, Response(capacity=self.capacity))

    def break_link(self) -> None:
        """The newest router sees the stream break."""
        self._broken.set()

    async def _write(self, context: Context, response: Response) -> None:
        """One frame at a time: the transport takes no two at once, and a test speaks beside the reader."""
        async with self._writing:
            await context.write(response)

    async def say(self, response: Response) -> None:
        """Sends a frame to the newest router."""
        await self._write(self.contexts[-1], response)

    async def answer_held(self) -> None:
        """Echoes all that is held, in one frame."""
        frame = call_pb2.ResultFrame(batches=[each for batch in self.held for each in echo(batch).results.batches])
        for batch in self.held:
            self.slots.ended(batch.first_run_id)
        self.held.clear()
        await self.say(Response(results=frame))
        await self._tell_slots(self.contexts[-1])


@asynccontextmanager
async def fake_replica(answer: Answer = echo, max_ongoing: int = 512) -> AsyncIterator[FakeReplica]:
    """A scripted replica on a free port."""
    replica = FakeReplica(answer, max_ongoing)
    server = GrpcServer("fake replica")
    server.add(replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server, replica)
    await server.start()
    server.set_serving()
    replica.address, replica.set_serving = server.address, server.set_serving
    try:
        yield replica
    finally:
        await server.stop()


def cancelled(replica: FakeReplica) -> list[int]:
    """What the replica was told that nobody waits for."""
    ranges = [each for frame in replica.frames for each in frame.cancel.runs]
    return [run_id for each in ranges for run_id in range(each.first, each.last + 1)]
