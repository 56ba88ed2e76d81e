"""Takes the place of a router before a replica: one Execute stream, and the answers on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from slotmesh.convert.batches import ids_from_wire, ids_of_results, list_of
from slotmesh.internal.v1 import replica_service_pb2, replica_service_pb2_grpc
from slotmesh.runtime.channels import open_channel
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, slot_service_pb2
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse


class ExecuteStream:
    """Sends runs under fresh run ids, and keeps every answer by run id."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        self.call = call
        self.results: dict[int, bytes] = {}
        self.content_types: dict[int, str] = {}
        self.failures: dict[int, call_pb2.Failure] = {}
        self.refused: dict[int, call_pb2.Failure] = {}
        self.answer_order: list[int] = []
        self.capacities: list[replica_service_pb2.Capacity] = []
        self.frames: list[str] = []
        """Kinds of all frames, in order."""
        self.frame_numbers: list[int] = []
        self.heartbeats: list[call_pb2.Heartbeat] = []
        self.echoes = True
        """Whether heartbeats are echoed."""
        self.service_times: list[replica_service_pb2.ServiceTimes] = []
        self.handler_states: list[replica_service_pb2.HandlerState] = []
        self.stopped: list[tuple[int, int]] = []
        """Run ids, first and last, at which lanes have stopped."""
        self.reconciled: list[replica_service_pb2.Reconciled] = []
        self.values: dict[int, list[bytes]] = {}
        """What the handlers of calls have yielded."""
        self.value_frames: list[list[int]] = []
        """Run ids of values, in each frame that has any."""
        self.outcomes: list[call_pb2.ResultFrame] = []
        self.done: set[int] = set()
        """Run ids of calls that nobody waits for, and that ended."""
        self.slots: dict[int, slot_service_pb2.Slot] = {}
        self.released: dict[int, slot_service_pb2.ReleaseSlotResponse] = {}
        self.go_away = ""
        self.is_dismissed = False
        """The replica needs nothing more of the router."""
        self._parts: dict[int, bytearray] = {}
        """Of results in chunks, what has come."""
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = False
        self._writing = asyncio.Lock()
        self._next = 1

    async def write(self, request: Request) -> None:
        """One frame at a time: heartbeats are echoed beside those of a test.

        A frame is written whole even if the test cancels its task meanwhile: grpc.aio would cancel the stream.
        """
        await asyncio.shield(self._write(request))

    async def _write(self, request: Request) -> None:
        async with self._writing:
            await self.call.write(request)

    async def send(self, *batches: replica_service_pb2.RunBatch) -> None:
        """One frame of runs."""
        await self.write(Request(runs=replica_service_pb2.RunFrame(batches=batches)))

    def run(
        self,
        payloads: Sequence[bytes],
        *,
        method: str = "echo",
        content_type: str = "",
        key: str = "",
        partition: int = 0,
        epoch: int = 1,
        time_left_s: float | None = None,
        endpoint: str = "e",
        metadata: dict[str, str] | None = None,
        no_reply: bool = False,
        stop: int = 0,
        streaming: bool = False,
        **session: Any,
    ) -> replica_service_pb2.RunBatch:
        """A run under the next ids. `session`: fields of the batch, its epoch as `session_epoch`."""
        first, self._next = self._next, self._next + len(payloads)
        run = replica_service_pb2.RunBatch(
            first_run_id=first,
            options=wire_options(
                method=method,
                content_type=content_type,
                ordering_key=key,
                metadata=metadata or {},
                no_reply=no_reply,
                stop_generation=stop,
                streaming=streaming,
            ),
            payloads=payloads,
            endpoint=endpoint,
            partition=partition,
            owner_epoch=epoch if key else 0,
            epoch=session.pop("session_epoch", 1 if session.get("session_id") else 0),
            **session,
        )
        if time_left_s is not None:
            run.time_left.FromNanoseconds(round(time_left_s * 1e9))
        return run

    async def send_op(self, **op: Any) -> int:
        """One operation on a slot: `reserve`, `renew`, `release` or `dispatch`; returns its id."""
        op_id, self._next = self._next, self._next + 1
        ops = [replica_service_pb2.SlotOp(op_id=op_id, **op)]
        async with self.withdrawing(op_id):
            await self.write(Request(slots=replica_service_pb2.SlotOps(ops=ops)))
        return op_id

    @asynccontextmanager
    async def withdrawing(self, op_id: int) -> AsyncIterator[None]:
        """Takes the operation back if the test's task is cancelled here."""
        try:
            yield
        except asyncio.CancelledError:
            await self.cancel((op_id, op_id))
            raise

    def large(self, *sizes: int, **fields: Any) -> replica_service_pb2.RunBatch:
        """A run whose payloads come in chunks."""
        return self.run([b""] * len(sizes), chunked_sizes=sizes, **fields)

    async def send_chunks(self, run_id: int, payload: bytes, *, begin: int = 0, end: int | None = None) -> None:
        """The chunks of a payload from one offset up to another."""
        for offset in range(begin, len(payload) if end is None else end, CHUNK_BYTES):
            await self.send_chunk(run_id, offset, len(payload), payload[offset : offset + CHUNK_BYTES])

    async def send_chunk(self, run_id: int, offset: int, total: int, data: bytes) -> None:
        chunk = call_pb2.Chunk(call_id=run_id, offset=offset, total=total, data=data)
        await self.write(Request(chunk=chunk))

    async def cancel(self, *ranges: tuple[int, int], tell_stopped: bool = False) -> None:
        """Takes run ids back, both ends included."""
        wire = [call_pb2.IdRange(first=first, last=last) for first, last in ranges]
        cancel = replica_service_pb2.CancelRuns(runs=wire, tell_stopped=tell_stopped)
        await self.write(Request(cancel=cancel))

    async def take_values(self, **counts: int) -> None:
        """Takes values: `r7=3` takes three of run id 7."""
        take = call_pb2.TakeItems(call_ids=[int(name[1:]) for name in counts], counts=counts.values())
        await self.write(Request(take=take))

    async def acknowledge(self, *ranges: tuple[int, int]) -> None:
        """Says that clients have the outcomes of these run ids, both ends included."""
        wire = [call_pb2.IdRange(first=first, last=last) for first, last in ranges]
        await self.write(Request(ack=replica_service_pb2.AckRuns(runs=wire)))

    async def reconcile(self, session_id: str, epoch: int, *ranges: tuple[int, int]) -> replica_service_pb2.Reconciled:
        """Asks what became of calls of one session."""
        wire = [call_pb2.IdRange(first=first, last=last) for first, last in ranges]
        asked = replica_service_pb2.SessionCalls(session_id=session_id, epoch=epoch, calls=wire)
        heard = len(self.reconciled)
        await self.write(Request(reconcile=replica_service_pb2.Reconcile(sessions=[asked])))
        await wait_until(lambda: len(self.reconciled) > heard, what="an answer")
        return self.reconciled[heard]

    @property
    def answered(self) -> int:
        """Run ids with an outcome of any kind."""
        return len(self.answer_order)

    async def wait_answers(self, count: int, timeout: float = 20.0) -> None:
        await wait_until(
            lambda: self.answered >= count or self.ended,
            timeout=timeout,
            what=f"{count} answers",
        )
        assert self.answered == count, (self.answered, self.error)

    async def read(self) -> None:
        """Reads until the stream ends."""
        try:
            while (response := await read_frame(self.call)) is not None:
                self._take(response)
                if response.WhichOneof("frame") == "heartbeat" and self.echoes:
                    echo = call_pb2.Heartbeat(echoed_stamp=response.heartbeat.stamp)
                    with suppress(asyncio.InvalidStateError):  # after the half-close
                        await self.write(Request(heartbeat=echo))
        except grpc.aio.AioRpcError as error:
            self.error = error
        finally:
            self.ended = True

    def _take(self, response: Response) -> None:
        kind = response.WhichOneof("frame")
        self.frames.append(kind or "capacity")
        if response.HasField("capacity"):
            self.capacities.append(response.capacity)
        match kind:
            case "results":
                self._take_results(response.results)
            case "refused":
                for each in response.refused.runs:
                    for run_id in range(each.first, each.last + 1):
                        self._answer(run_id)
                        self.refused[run_id] = response.refused.failure
            case "slots":
                self._take_slots(response.slots)
            case "chunk":
                chunk = response.chunk
                parts = self._parts.setdefault(chunk.call_id, bytearray())
                assert chunk.offset == len(parts)
                assert 0 < len(chunk.data) <= LARGE_CHUNK_BYTES
                parts += chunk.data
                assert len(parts) <= chunk.total
            case "opened" | None:
                pass
            case "heartbeat":
                self.heartbeats.append(response.heartbeat)
            case "service_times":
                self.service_times.append(response.service_times)
            case "handler_state":
                self.handler_states.append(response.handler_state)
            case "stopped":
                self.stopped += [(each.first, each.last) for each in response.stopped.runs]
            case "reconciled":
                self.reconciled.append(response.reconciled)
            case "go_away":
                self.go_away = response.go_away.message
                self.is_dismissed = response.go_away.HasField("time_left")
            case _:
                raise AssertionError(f"not a frame of this replica: {kind}")

    def _take_slots(self, frame: replica_service_pb2.SlotResults) -> None:
        for result in frame.results:
            self._answer(result.op_id)
            match result.WhichOneof("outcome"):
                case "slot":
                    self.slots[result.op_id] = result.slot
                case "released":
                    self.released[result.op_id] = result.released
                case _:
                    self.failures[result.op_id] = result.failure

    def _take_results(self, frame: call_pb2.ResultFrame) -> None:
        self.outcomes.append(frame)
        self.frame_numbers.append(frame.frame_no)
        if ids := [run_id for batch in frame.batches if batch.partial for run_id in ids_of_results(batch)]:
            self.value_frames.append(ids)
        for batch in frame.batches:
            run_ids = ids_of_results(batch)
            sizes = batch.chunked_sizes or [0] * len(run_ids)
            for run_id, payload, size in zip(run_ids, list_of(batch), sizes, strict=True):
                whole = self._assembled(run_id, size) if size else payload
                if batch.partial:
                    assert run_id not in self.answer_order, f"a value of {run_id} after its end"
                    self.values.setdefault(run_id, []).append(whole)
                    continue
                self._answer(run_id)
                self.results[run_id] = whole
                self.content_types[run_id] = batch.content_type
        for errors in frame.errors:
            for run_id in ids_from_wire(errors.calls):
                self._answer(run_id)
                self.failures[run_id] = errors.failure
        for each in frame.done:
            for run_id in range(each.first, each.last + 1):
                self._answer(run_id)
                self.done.add(run_id)

    def _assembled(self, run_id: int, size: int) -> bytes:
        """What came in chunks before."""
        payload = bytes(self._parts.pop(run_id))
        assert len(payload) == size
        return payload

    def _answer(self, run_id: int) -> None:
        assert run_id not in self.results, f"{run_id} was answered twice"
        assert run_id not in self.failures, f"{run_id} was answered twice"
        assert run_id not in self.refused, f"{run_id} was answered twice"
        assert run_id not in self.done, f"{run_id} was answered twice"
        assert run_id not in self.slots, f"{run_id} was answered twice"
        assert run_id not in self.released, f"{run_id} was answered twice"
        self.answer_order.append(run_id)


@asynccontextmanager
async def execute_stream(
    address: str,
    replica_id: str,
    incarnation: str,
    router_id: str = "router-1",
) -> AsyncIterator[ExecuteStream]:
    """Opens a stream, waits for the first capacity or the end, reads in the background."""
    async with open_channel(address) as channel:
        call = replica_service_pb2_grpc.ReplicaServiceStub(channel).Execute()
        opening = replica_service_pb2.OpenExecute(
            router_id=router_id, replica_id=replica_id, incarnation=incarnation, features=["of-tomorrow"]
        )
        await call.write(Request(open=opening))
        stream = ExecuteStream(call)
        reading = asyncio.ensure_future(stream.read())
        try:
            await wait_until(lambda: stream.frames or stream.ended, what="first frame")
            yield stream
        finally:
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
