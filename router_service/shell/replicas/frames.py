"""Cuts what one replica is sent into frames: the writing half of a link.

Purpose: everything that waits for the replica is kept as a value, and becomes a frame when one can be written, so that
later calls join it, and few calls wait for a moment if more are about to arrive (`slotmesh.streams.pacing`). The core
has the replica's queues; everything else to send is kept here.
Invariants: heartbeats go first, then what frees room and slots, then queries, runs and chunks: no two queries without
runs between them, if there are any. Run ids are those of the current link, and nothing is kept beyond it.
Owner: the `ReplicaLink`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from router_service import convert
from router_service.core.commands import CancelRun
from router_service.core.replicas.frames import is_full, pending
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.replicas.channel import OutgoingRequests
from slotmesh.calls.id_ranges import Range, merged
from slotmesh.calls.payload_block import nbytes_of
from slotmesh.convert.batches import FramePayloads, ids_from_wire, ranges_to_wire
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.clock import Clock
from slotmesh.streams.chunks import ChunkTurns
from slotmesh.streams.limits import MAX_FRAME_BYTES, MAX_FRAME_CALLS, MAX_FRAME_RANGES
from slotmesh.streams.spliced_frames import spliced
from slotmesh.telemetry.names import DIRECTION_OUT
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import call_pb2

ACK_GAP_S = 0.05
"""Between two frames of acknowledgements, at least: each costs as much as a hundred calls."""


class RunAcks:
    """Acknowledgements for one replica: gathered for a while, sent in one frame.

    Purpose: clients acknowledge frames of results; each replica gets its runs in them, as few ranges of run ids.
    Invariants: ids are those of the current link; those gathered for an earlier link are dropped with it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when `take` has something to give."""
        self._wake = wake
        self._ranges: deque[Range] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False
        """`take` has something to give."""

    def add(self, first: int, count: int) -> None:
        """The outcomes of these runs need not be kept."""
        self._ranges.append((first, first + count - 1))
        if self._timer is None and not self.is_due:
            self._timer = asyncio.get_running_loop().call_later(ACK_GAP_S, self._fall_due)

    def take(self) -> list[Range] | None:
        """What was gathered, up to the bound of a frame, once its time has come: disjoint, ascending."""
        if not self.is_due:
            return None
        ranges = [self._ranges.popleft() for _ in range(min(len(self._ranges), MAX_FRAME_RANGES))]
        self.is_due = bool(self._ranges)
        return merged(ranges)

    def flush(self) -> None:
        """`take` returns everything from now on, because the link is about to close."""
        if self._timer is not None:
            self._timer.cancel()
            self._fall_due()

    def drop(self) -> None:
        """The link has ended, and its run ids have no meaning any more."""
        self._ranges.clear()
        self.is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fall_due(self) -> None:
        self._timer = None
        self.is_due = True
        self._wake()


Request = replica_service_pb2.ExecuteRequest
_CHUNK_DATA: Final = (Request.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)
_RUN_PAYLOADS: Final = (
    Request.RUNS_FIELD_NUMBER,
    replica_service_pb2.RunFrame.BATCHES_FIELD_NUMBER,
    replica_service_pb2.RunBatch.PAYLOADS_FIELD_NUMBER,
)


class LinkFrames:
    """Everything that waits to be sent to one replica."""

    def __init__(self, replica: RoutedReplica, dispatcher: Dispatcher, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` is called when `next_frame` has something to give."""
        self._replica = replica
        self._dispatcher = dispatcher
        self._clock = clock
        self._wake = wake
        self._is_up = False
        self._pacer = Pacer(wake, clock.now)
        self._cancels: deque[CancelRun] = deque()
        self._questions: deque[SessionConnection] = deque()
        self._acks = RunAcks(wake)
        self._takes: dict[int, int] = {}
        """Values taken of each run that were not yet reported to the replica."""
        self._echo = 0
        """The newest stamp of the replica that was not echoed; 0 where there is none."""
        self._chunks: ChunkTurns[int] = ChunkTurns()
        """Payloads of calls on their way, by run id."""
        self._requests = OutgoingRequests()
        self._is_request_due = False
        """A frame of requests may go before the next other frame."""
        self._is_question_due = True
        """A question may go before the next runs: each keeps the replica busy for as long as thousands of calls."""

    # -- what happens ------------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        """Operations on slots may leave."""
        self._is_up = True

    def hurry(self) -> None:
        """Everything that waits leaves immediately, because the link is about to close."""
        self._pacer.hurry()

    def drop(self) -> None:
        """The link is gone, and its run ids mean nothing any more."""
        self._is_up = False
        self._pacer.stop()
        self._pacer = Pacer(self._wake, self._clock.now)
        self._echo = 0
        self._cancels.clear()
        self._questions.clear()
        self._takes.clear()
        self._chunks.clear()
        self._requests.clear()
        self._acks.drop()

    def echo(self, stamp: int) -> None:
        """The replica has given a sign of life. The echo is what lets it start runs."""
        self._echo = stamp
        self._wake()

    def answered(self) -> None:
        """The replica has answered runs: what waits for that may leave."""
        if self._replica.has_unsent_runs:
            self._wake()

    # -- what is to be sent ------------------------------------------------------------------------------------------

    def cancel(self, command: CancelRun) -> None:
        """No caller waits for these calls any more."""
        self._cancels.append(command)
        self._wake()

    def reconcile(self, session: SessionConnection) -> None:
        """What became of the session's unanswered calls?"""
        self._questions.append(session)
        self._wake()

    def forget(self, first: int, count: int) -> None:
        """The outcomes of these runs need not be kept."""
        self._acks.add(first, count)

    def take(self, run_id: int, count: int) -> None:
        """`count` values of the run were taken."""
        self._takes[run_id] = self._takes.get(run_id, 0) + count
        self._wake()

    def request(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        """OutgoingRequests of a call that takes several; None: there are no more."""
        self._requests.add(run_id, requests)
        self._wake()

    def flush(self) -> None:
        """Acknowledgements leave immediately, because the link is about to close."""
        self._acks.flush()

    # -- frames ------------------------------------------------------------------------------------------------------

    def next_frame(self) -> Request | None:
        """What leaves now; None if nothing does."""
        waits = self._echo or self._cancels or self._takes or self._acks.is_due or self._replica.has_unsent_ops
        if waits and (frame := self._small_frame()) is not None:
            return frame
        if self._questions and self._is_question_due:
            return self._question_frame()
        self._is_question_due = True
        if self._requests and self._is_request_due:
            return self._request_frame()
        self._is_request_due = bool(self._requests)
        if self._chunks.rota:
            return self._chunks.next(self._chunk_frame, self._other_frame)
        return self._other_frame() or (self._request_frame() if self._requests else None)

    def _other_frame(self) -> Request | None:
        """Runs, or a question behind them."""
        frame = self._run_frame() if self._replica.has_unsent_runs else None
        return self._question_frame() if frame is None and self._questions else frame

    def _small_frame(self) -> Request | None:
        """The sign of life first, then what makes room, then slots."""
        if self._echo:
            stamp, self._echo = self._echo, 0
            return Request(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp))
        if self._cancels:
            taken = [self._cancels.popleft() for _ in range(min(len(self._cancels), MAX_FRAME_RANGES))]
            ranges = ranges_to_wire(_run_ids_of(each) for each in taken)
            asks = any(each.asks for each in taken)
            if self._chunks:
                self._chunks.discard(ids_from_wire(ranges))
            for run_id in ids_from_wire(ranges) if self._requests else ():
                self._requests.discard(run_id)
            return Request(cancel=replica_service_pb2.CancelRuns(runs=ranges, tell_stopped=asks))
        if self._takes:
            takes = {run_id: self._takes.pop(run_id) for run_id in list(islice(self._takes, MAX_FRAME_RANGES))}
            return Request(take=convert.takes_to_wire(takes))
        if (acked := self._acks.take()) is not None:
            return Request(ack=replica_service_pb2.AckRuns(runs=ranges_to_wire(acked)))
        return self._slots_frame() if self._is_up and self._replica.has_unsent_ops else None

    def _question_frame(self) -> Request:
        self._is_question_due = False
        return Request(reconcile=convert.reconcile_of(self._cut_questions()))

    def _cut_questions(self) -> list[SessionConnection]:
        """Sessions for the next frame: one as a whole, and more where these fit."""
        sessions: list[SessionConnection] = []
        ranges = 0
        while self._questions:
            ranges += len(self._questions[0].unanswered)
            if sessions and ranges > MAX_FRAME_RANGES:
                break
            sessions.append(self._questions.popleft())
        return sessions

    def _slots_frame(self) -> Request | None:
        ops = self._dispatcher.cut_ops(self._replica, MAX_FRAME_BYTES)
        if not ops:
            return None
        request = Request()
        now = self._clock.now()
        for op in ops:
            convert.add_op(request.slots, op, now)
        return request

    def _chunk_frame(self) -> Request:
        chunk = self._chunks.take()
        wire = call_pb2.Chunk(call_id=chunk.owner, offset=chunk.offset, total=chunk.total)
        return spliced(Request(chunk=wire), _CHUNK_DATA, [chunk.data])

    def _request_frame(self) -> Request:
        self._is_request_due = False
        return Request(requests=self._requests.take())

    def _run_frame(self) -> Request | None:
        replica = self._replica
        lone_calls = replica.lone_calls
        is_alone = lone_calls > 0 or not replica.has_unanswered
        if self._pacer.gathers(lone_calls) if lone_calls else self._holds_back(is_alone=is_alone):
            return None
        batches = self._dispatcher.cut_frame(replica, MAX_FRAME_CALLS, MAX_FRAME_BYTES)
        if not batches:
            return None
        if not is_alone:
            self._pacer.left()
        calls = len(batches[0].payloads) if len(batches) == 1 else sum([len(batch.payloads) for batch in batches])
        self._pacer.gathered(calls, is_alone=is_alone)
        self._dispatcher.counts.replica_frames[replica.backend.name, DIRECTION_OUT] += 1
        request = Request()
        now = self._clock.now()
        if self._chunks.rota:
            self._chunks.passed(sum(nbytes_of(batch.payloads) for batch in batches))
        payloads = FramePayloads(len(batches))
        for batch in batches:
            for run_id, payload in convert.add_batch(request.runs, batch, payloads, now):
                self._chunks.add(run_id, payload)
        return spliced(request, _RUN_PAYLOADS, payloads.beside) if payloads.beside else request

    def _holds_back(self, *, is_alone: bool) -> bool:
        """Whether what is pending is little, and better waits for more: for the answers to quick calls, where it is.

        `is_alone`: nothing else is unanswered. It waits for calls of other callers then.
        """
        if is_full(self._replica):
            return False
        calls, unanswered, are_quick = pending(self._replica)
        if not is_alone and self._pacer.holds(calls, unanswered, are_quick=are_quick):
            return True
        return self._pacer.gathers(calls)


def _run_ids_of(command: CancelRun) -> Range:
    first = command.sent.first + command.lo
    return first, first + command.count - 1
