"""Outcomes of calls from the executors: counted, and passed to the links that requested them.

Purpose: the sink of all executors, for what a handler returns, yields or raises.
Invariant: each call has one outcome, in the outbox of its link, or kept by its session.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final

from replica_service.convert.reports import outlines_to_wire, tensors_to_wire
from replica_service.convert.slots import Issuer
from replica_service.core.events import Ended
from replica_service.core.runs import FRESH_S, ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.session_records import Mark
from replica_service.shell.handler.binding import RpcMethod
from replica_service.shell.handler.failures import too_large
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.repetitions import Repetitions
from replica_service.shell.router_outbox import Outbox
from replica_service.shell.sessions import Sessions
from replica_service.shell.state_reports import StateCursor
from replica_service.shell.telemetry import ReplicaCounters
from slotmesh.calls.method_outlines import fitting
from slotmesh.calls.result_envelopes import RPC_REQUESTS
from slotmesh.errors import Executed, Failure
from slotmesh.handlers.description import CALL
from slotmesh.handlers.reporting import HandlerState
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_METHODS, MAX_PAYLOAD_BYTES
from slotmesh.transport.pump import WokenPumps


class OutcomeReporter:
    """Passes outcomes to callers, and the ends of work to the scheduler."""

    def __init__(
        self, counters: ReplicaCounters, sessions: Sessions, repetitions: Repetitions, post: Callable[[Ended], None]
    ) -> None:
        """`post` passes events of ended work to the scheduler."""
        self.post = post
        self.woken = WokenPumps()
        """The streams to routers."""
        self._counters = counters
        self._sessions = sessions
        self._repetitions = repetitions

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        if run.options.no_reply:
            self._done(run, lo, len(payloads))
            return
        if (arrival := run.arrival) is not None and arrival.heads is not None:
            payloads = arrival.heads.begin_each(run.first + lo, payloads)
        size = sum(map(len, payloads))
        limit = run.max_result_bytes
        if size > limit and max(map(len, payloads)) > limit:
            if len(payloads) > 1:
                for index, payload in enumerate(payloads, lo):
                    self.payloads(run, index, (payload,))
            else:
                self.failed(run, lo, 1, too_large(size, limit))
            return
        if run.options.streaming:
            for index, payload in enumerate(payloads, lo):
                self.values(run, index, (payload,))
            self._done(run, lo, len(payloads))
            return
        self._counters.calls += len(payloads)
        _concluded(run, lo, len(payloads))
        if run.record is None:
            run.link.outbox.results(run.first + lo, payloads, size, run.options.content_type)
            if run.request is not None:
                self._repetitions.ended(run, payloads[0])
        else:
            self._sessions.results(run, run.record, lo, payloads, size)

    def values(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
        run.link.outbox.values(run.first + index, payloads, sum(map(len, payloads)), run.options.content_type)
        if run.request is not None:
            self._repetitions.yielded(run, payloads)

    def streamed(self, run: ReplicaRun, index: int) -> None:
        self._done(run, index, 1)

    def _done(self, run: ReplicaRun, lo: int, count: int) -> None:
        """Ends successful calls without a payload: streaming calls after their values, and calls with no_reply."""
        self._counters.calls += count
        _concluded(run, lo, count)
        if run.record is None:
            run.link.outbox.done(run.first + lo, count)
            if run.request is not None:
                self._repetitions.ended(run, None)
        else:
            self._sessions.ended(run, run.record, lo, count, Mark.DONE)

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        if failure.executed is Executed.YES:
            self._counters.calls += count
        self._counters.failures[failure.reason] += count
        _concluded(run, lo, count, failure)
        if run.record is not None:
            self._sessions.failed(run, run.record, lo, count, failure)
        elif run.options.no_reply:
            run.link.outbox.done(run.first + lo, count)
        else:
            run.link.outbox.failed(run.first + lo, count, failure)
            if run.request is not None:
                self._repetitions.ended(run, failure)


def never_started(run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
    """Cleans up calls that never start. A call that waits for its payload or is sampled is a run of its own."""
    if (uploads := run.link.uploads) is not None:
        uploads.forget(run.first + lo)
    _concluded(run, lo, hi - lo, failure)


def _concluded(run: ReplicaRun, lo: int, count: int, failure: Failure | None = None) -> None:
    """Ends the spans and the request streams of calls that have their outcome."""
    if run.traced is not None:
        run.traced.end(failure)
    if run.options.content_type == RPC_REQUESTS and run.link.requests is not None:
        run.link.requests.ended(run.first + lo, count)


NO_METHODS: Final[Mapping[str, HandlerMethod]] = MappingProxyType({})


def connect_link(
    scheduler: ReplicaScheduler,
    issuer: Issuer,
    now: float,
    stream_id: str,
    methods: Mapping[str, HandlerMethod] = NO_METHODS,
    state: HandlerState | None = None,
) -> tuple[RouterPeer, Outbox]:
    """Returns a router's link and its outbox. `stream_id`: the router's id of the stream.

    `methods`: of the handler; the empty name stands for the handler itself. `state`: what it reports of itself.
    """
    link = RouterPeer(
        stream_id=stream_id or new_id(STREAM_ID_BYTES), fresh_until=now + FRESH_S, max_result_bytes=MAX_PAYLOAD_BYTES
    )
    times = scheduler.service_times
    described = {name: method for name, method in sorted(methods.items()) if not isinstance(method, RpcMethod)}
    outbox = link.outbox = Outbox(
        lambda: scheduler.capacity(link),
        issuer,
        times=times,
        state=None if state is None else StateCursor(state),
        opening=replica_service_pb2.ExecuteOpened(
            methods=sorted(name or CALL for name in methods)[:MAX_METHODS],
            outlines=outlines_to_wire(fitting(each.outline for each in islice(described.values(), MAX_METHODS))),
            tensors=tensors_to_wire((name or CALL, each.tensors) for name, each in described.items()),
        ),
        about_to_end=partial(scheduler.about_to_end, link),
        are_quick=lambda: times.are_quick,
    )
    return link, outbox
