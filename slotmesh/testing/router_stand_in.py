"""Stands in for the router between a client and one replica, so that a handler runs without sockets.

Purpose: the client and the replica are the real ones; their frames differ little, and are converted here.
Invariants: run ids are the client's call ids, so that results pass unchanged. Every call is sent on immediately: calls
wait at the replica, whose limits admit all that a client may have unanswered. Frames of one direction keep their order;
after the end of a direction its reader always gets EOF.
Not simulated: choice of replicas, traffic, fairness among clients, SLOs, re-runs.
Owner: the hosted handler; one for each stream of the client, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc

from slotmesh.calls.key_hash import partition_of
from slotmesh.convert.batches import count_of, errors_to_wire, ids_from_wire, ids_of_results, ids_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import from_wire, to_wire
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from slotmesh.streams.spliced_frames import whole
from slotmesh.v1 import call_pb2, router_service_pb2


class Pipe:
    """Frames in one direction."""

    def __init__(self) -> None:
        self._frames: deque[Any] = deque()
        self._has_ended = False
        self._has_come = asyncio.Event()

    def put(self, frame: Any) -> None:
        """Adds the next frame; dropped after the end."""
        if not self._has_ended:
            self._frames.append(frame)
            self._has_come.set()

    def end(self) -> None:
        """Ends the direction."""
        self._has_ended = True
        self._has_come.set()

    async def get(self) -> Any:
        """The next frame, or EOF. For a single reader."""
        while not self._frames:
            if self._has_ended:
                return grpc.aio.EOF
            self._has_come.clear()
            await self._has_come.wait()
        return self._frames.popleft()


WINDOW_CALLS: Final = 8192
"""Calls that the client may have unanswered."""
WINDOW_BYTES: Final = 64 * 1024 * 1024
OWNER_EPOCH: Final = 1
LAST_CHANCE_TURNS: Final = 50
"""Iterations of the event loop in which the replica may report that an overdue call had not started; afterwards it
counts
as started. About ten are enough; a time limit would not be reliable on a busy machine."""

_IN_QUEUE: Final = Failure(reason=Reason.DEADLINE_IN_QUEUE, message="the deadline passed before the call was started")
_RUNNING: Final = Failure(
    reason=Reason.DEADLINE_RUNNING, message="the deadline passed while the call ran", executed=Executed.UNKNOWN
)
_LOST: Final = Failure(
    reason=Reason.REPLICA_LOST, message="the replica ended while the call ran", executed=Executed.UNKNOWN
)
ToClient = router_service_pb2.StreamCallsResponse
ToReplica = replica_service_pb2.ExecuteRequest


class RouterStandIn:
    """One stream: `down` and `up` are its two directions, read by the replica and by the client."""

    def __init__(self, router_id: str, replica_id: str, incarnation: str) -> None:
        self.down, self.up = Pipe(), Pipe()
        self._loop = asyncio.get_running_loop()
        self._opening = router_service_pb2.OpenStream()
        self._unanswered: set[int] = set()
        self._is_deserted = False
        """Whether the client has half-closed."""
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._overdue: dict[int, asyncio.Handle] = {}
        """Calls that were cancelled as overdue, and have no response of the replica yet."""
        self.down.put(
            ToReplica(
                open=replica_service_pb2.OpenExecute(
                    router_id=router_id, replica_id=replica_id, incarnation=incarnation
                )
            )
        )

    # -- from the client -------------------------------------------------------------------------------------------

    def half_closed(self) -> None:
        """The client has half-closed, and still gets results."""
        self._is_deserted = True
        self._end_if_over()

    def left(self) -> None:
        """The client has disconnected. Its calls are cancelled; the replica's results are still read."""
        self.up.end()
        if self._unanswered:
            self.down.put(ToReplica(cancel=replica_service_pb2.CancelRuns(runs=ids_to_wire(sorted(self._unanswered)))))
        self.half_closed()

    def sent(self, request: router_service_pb2.StreamCallsRequest) -> None:
        """A frame from the client."""
        match request.WhichOneof("frame"):
            case "open":
                self._opening = request.open
                self.up.put(ToClient(opened=_opened()))
            case "calls":
                runs = [self._run_of(batch) for batch in request.calls.batches]
                self.down.put(ToReplica(runs=replica_service_pb2.RunFrame(batches=runs)))
            case "cancel":
                self.down.put(ToReplica(cancel=replica_service_pb2.CancelRuns(runs=request.cancel.calls)))
            case "take":
                self.down.put(ToReplica(take=request.take))
            case "chunk":
                self.down.put(ToReplica(chunk=request.chunk))
            case "heartbeat":
                self.up.put(ToClient(heartbeat=call_pb2.Heartbeat(echoed_stamp=request.heartbeat.stamp)))
            case _:
                pass  # acknowledged results: the replica keeps none, as they are passed on immediately

    def _run_of(self, batch: router_service_pb2.CallBatch) -> replica_service_pb2.RunBatch:
        options = batch.options if batch.HasField("options") else self._opening.default_options
        ids = range(batch.first_call_id, batch.first_call_id + count_of(batch))
        self._unanswered.update(ids)
        run = replica_service_pb2.RunBatch(
            first_run_id=batch.first_call_id,
            options=options,
            payloads=batch.payloads,
            block=batch.block,
            payload_sizes=batch.payload_sizes,
            endpoint=self._opening.endpoint,
            session_id=self._opening.session_id,
            epoch=self._opening.epoch,
            call_ids=[batch.first_call_id],
            chunked_sizes=batch.chunked_sizes,
            ordering_keys=batch.ordering_keys,
            waited_us=1,
        )
        if options.shard_key or options.affinity_key or batch.trace_starts:
            run.origins.shard_keys.extend([options.shard_key] if options.shard_key else [])
            run.origins.affinity_keys.extend([options.affinity_key] if options.affinity_key else [])
            run.origins.trace_starts.extend(batch.trace_starts)
            run.origins.traceparents.extend(batch.traceparents)
            run.origins.tracestates.extend(batch.tracestates)
            run.origins.http_requests.extend(batch.http_requests)
        if batch.ordering_keys:
            run.partitions.extend(map(partition_of, batch.ordering_keys))
            run.owner_epochs.extend([OWNER_EPOCH] * len(ids))
        elif options.ordering_key:
            run.partition, run.owner_epoch = partition_of(options.ordering_key), OWNER_EPOCH
        if options.HasField("timeout"):
            run.time_left.CopyFrom(options.timeout)
            left_s = options.timeout.ToNanoseconds() / 1e9
            for call_id in ids:
                self._deadlines[call_id] = self._loop.call_later(left_s, self._time_is_over, call_id)
        return run

    def _time_is_over(self, call_id: int) -> None:
        """Cancels the call; the replica's response shows whether it had started."""
        del self._deadlines[call_id]
        self.down.put(ToReplica(cancel=replica_service_pb2.CancelRuns(runs=ids_to_wire([call_id]))))
        self._await_answer(call_id, LAST_CHANCE_TURNS)

    def _await_answer(self, call_id: int, turns: int) -> None:
        if turns:
            self._overdue[call_id] = self._loop.call_soon(self._await_answer, call_id, turns - 1)
        else:
            del self._overdue[call_id]
            self._fail([call_id], _RUNNING)

    # -- from the replica ------------------------------------------------------------------------------------------

    def answered(self, response: replica_service_pb2.ExecuteResponse) -> None:
        """A frame from the replica."""
        match response.WhichOneof("frame"):
            case "results":
                self._pass_on(response.results)
            case "refused":
                ids = ids_from_wire(response.refused.runs)
                self._fail(ids, from_wire(response.refused.failure))
                self._settle(ids)
            case "chunk":
                self.up.put(ToClient(chunk=response.chunk))
            case "heartbeat":
                echo = call_pb2.Heartbeat(echoed_stamp=response.heartbeat.stamp)
                self.down.put(ToReplica(heartbeat=echo))
            case "go_away" if response.go_away.HasField("time_left"):
                self.down.end()  # it keeps nothing to wait for
            case _:
                pass  # used only to choose a replica

    def ended(self) -> None:
        """The replica has ended the stream."""
        for handle in (*self._deadlines.values(), *self._overdue.values()):
            handle.cancel()
        self._deadlines.clear()
        self._overdue.clear()
        if self._unanswered:
            self._fail(sorted(self._unanswered), _LOST)
        self.up.end()

    def _pass_on(self, frame: call_pb2.ResultFrame) -> None:
        if self._overdue:
            self._judge(frame)
        ended = list(_ended_ids(frame))
        self.up.put(ToClient(results=frame))
        if ended:
            self.down.put(ToReplica(ack=replica_service_pb2.AckRuns(runs=ids_to_wire(sorted(ended)))))
            self._settle(ended)

    def _judge(self, frame: call_pb2.ResultFrame) -> None:
        """Converts the replica's responses for overdue calls into those of a router."""
        for errors in frame.errors:
            if all(call_id in self._overdue for call_id in ids_from_wire(errors.calls)):
                never_ran = from_wire(errors.failure).executed is Executed.NO
                errors.failure.CopyFrom(to_wire(_IN_QUEUE if never_ran else _RUNNING))

    def _settle(self, ids: Sequence[int]) -> None:
        """Removes ended calls."""
        self._unanswered.difference_update(ids)
        if self._deadlines or self._overdue:
            for call_id in ids:
                for handle in (self._deadlines.pop(call_id, None), self._overdue.pop(call_id, None)):
                    if handle is not None:
                        handle.cancel()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_deserted and not self._unanswered:
            self.down.end()

    def _fail(self, ids: list[int], failure: Failure) -> None:
        self.up.put(ToClient(results=call_pb2.ResultFrame(errors=[errors_to_wire(ids, to_wire(failure))])))


class ClientEnd:
    """The client's side of the stream: the part of `grpc.aio.StreamStreamCall` that it uses."""

    def __init__(self, router: RouterStandIn) -> None:
        self._router = router

    async def wait_for_connection(self) -> None:
        """Returns immediately."""

    async def write(self, request: router_service_pb2.StreamCallsRequest) -> None:
        self._router.sent(request)
        await asyncio.sleep(0)  # lets the next frame fill

    async def read(self) -> Any:
        return await self._router.up.get()

    async def done_writing(self) -> None:
        self._router.half_closed()

    def cancel(self) -> bool:
        self._router.left()
        return True


class ReplicaEnd:
    """The replica's side of the stream: the part of `grpc.aio.ServicerContext` that it uses."""

    def __init__(self, router: RouterStandIn) -> None:
        self._router = router

    async def write(self, response: replica_service_pb2.ExecuteResponse) -> None:
        self._router.answered(whole(response))
        await asyncio.sleep(0)

    async def read(self) -> Any:
        return await self._router.down.get()


def _opened() -> router_service_pb2.StreamOpened:
    return router_service_pb2.StreamOpened(
        window=router_service_pb2.Window(calls=WINDOW_CALLS, bytes=WINDOW_BYTES),
        max_payload_bytes=MAX_PAYLOAD_BYTES,
    )


def _ended_ids(frame: call_pb2.ResultFrame) -> Iterator[int]:
    for batch in frame.batches:
        if not batch.partial:
            yield from ids_of_results(batch)
    for errors in frame.errors:
        yield from ids_from_wire(errors.calls)
    yield from ids_from_wire(frame.done)
