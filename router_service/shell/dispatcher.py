"""The single writer of the scheduler: feeds it events, carries out its commands, wakes it in time.

Purpose: the only access to the core. Everything here is synchronous and runs on one event loop, so nothing is locked
and no event waits for another.
Invariants: commands are carried out in order, before the next event; a timer is armed whenever something can expire.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, cast

from router_service.core.commands import (
    AskReconcile,
    CancelRun,
    CloseLink,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    DeliverTaken,
    DeliverTargets,
    DeliverValues,
    Flush,
    NameRoster,
    OpenLink,
    ReportLoad,
    ReportRunDefect,
    RetryLink,
    RouterCommand,
    Step,
    TakeValues,
)
from router_service.core.events import CallerLeft, RouterEvent, RouterTimePassed, SessionConnected, SessionDisconnected
from router_service.core.features.slot_operations import OutgoingOp
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import RUN_LIFE
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from router_service.shell.call_traces import RouterTraces
from router_service.shell.failure_log import FailureLog
from router_service.shell.receivers import (
    BroadcastSink,
    CallerSink,
    OpenLinks,
    ReplicaReceiver,
    RequestSource,
    SessionSink,
    SlotSink,
)
from slotmesh.errors import Failure
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock
from slotmesh.telemetry.names import DIRECTION_IN, DIRECTION_OUT
from slotmesh.transport.pump import WokenPumps

_log = get_logger(__name__)


class FrameCounts:
    """Frames and streams of the shell: totals since the start of the process, and what is open now; read by a scrape.

    Invariants: each number is written by the half of a stream that it is about.
    """

    def __init__(self) -> None:
        self.streams = 0
        """Open client streams."""
        self.defects = 0
        """Events that cannot happen to a run of calls in its state."""
        self.sessions = 0
        """Sessions whose newest stream is open."""
        self.client_frames: Counter[tuple[str, ...]] = Counter({(DIRECTION_IN,): 0, (DIRECTION_OUT,): 0})
        """Frames with calls and with results of clients, by direction."""
        self.replica_frames: Counter[tuple[str, ...]] = Counter()
        """Frames with calls to replicas and with their results, by backend and direction."""


PAUSE_S: Final = 1.0
"""How long timers wait after a step that raised."""
FIRST_TABLE_WAIT_S = 3.0
"""Maximum time that calls wait for the first routing table."""


class FirstTable:
    """Whether there is a routing table: calls that arrive before the first one wait for it, for a bounded time.

    The table watch reports the first table.
    """

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def came(self) -> None:
        """The first table has been applied."""
        self._came.set()

    async def wait(self) -> None:
        """Returns once there is a table, however long that takes."""
        await self._came.wait()

    async def wait_a_while(self) -> None:
        """Returns once there is a table, or after `FIRST_TABLE_WAIT_S`: a router that has just started gets it soon."""
        if not self._came.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_TABLE_WAIT_S):
                    await self._came.wait()


class Dispatcher:
    """Posts events to the scheduler and carries out its commands."""

    def __init__(
        self,
        scheduler: RouterScheduler,
        clock: Clock,
        open_link: Callable[[RoutedReplica, Dispatcher], ReplicaReceiver],
    ) -> None:
        """`open_link` starts to connect to a replica and reports through the dispatcher."""
        self.scheduler = scheduler
        """For reading only; events go through `post`."""
        self.clock = clock
        self.links = OpenLinks()
        self._links = self.links.by_replica
        self.first_table = FirstTable()
        self.counts = FrameCounts()
        self.woken = WokenPumps()
        """Of the streams to clients and replicas."""
        self.report_load: Callable[[], None] = lambda: None
        """Sends a load report to the controller now."""
        self.traces: RouterTraces | None = None
        """Spans of sampled calls; None without tracing."""
        self.failures: FailureLog | None = None
        """The log of failures that clients receive; None if there is none."""
        self._open_link = open_link
        self._sinks: dict[Caller, CallerSink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._not_before = 0.0
        """When the timer may be due again, after a step of it that raised."""

    def post(self, event: RouterEvent) -> None:
        """Passes an event to the scheduler, and carries out its commands before this returns.

        Streams with something to write then begin to write. A defect is raised, as late as it can be: what a step has
        commanded up to there is carried out, since it concerns others.
        """
        woken = self.woken
        is_first, woken.is_at_work = not woken.is_at_work, True
        step = Step(self.clock.now())
        try:
            try:
                self.scheduler.follow(event, step)
            finally:
                if self.failures is not None:
                    self.failures.carried_out(step.commands)
                if self.traces is not None:
                    self.traces.carried_out(step.commands, self.clock.now())
                self._do(step.commands)
        finally:
            if is_first:
                woken.write()

    def noted(self, failure: Failure, endpoint: str) -> Failure:
        """The failure of the single call of an rpc, with its id in the log."""
        return failure if self.failures is None else self.failures.noted(failure, 1, endpoint)

    def close(self) -> None:
        """Disconnects from all replicas and stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.links.close_all()
        if self.failures is not None:
            self.failures.close()

    # -- callers -------------------------------------------------------------------------------------------------

    def attach(self, caller: Caller, sink: CallerSink) -> None:
        """Outcomes of the caller's calls go to `sink` from now on."""
        self._sinks[caller] = sink
        if caller.session is not None:
            self.post(SessionConnected(caller))

    def detach(self, caller: Caller, *, is_overdue: bool = False) -> None:
        """The caller has left and gets no outcomes. Its calls are cancelled, unless its session may go on elsewhere.

        `is_overdue`: the deadline of its rpc has passed.
        """
        self._sinks.pop(caller, None)
        if self.traces is not None:
            self.traces.gone(caller, self.clock.now())
        if caller.session is not None:
            self.post(SessionDisconnected(caller))
        elif caller.has_open_calls or caller.request_id:
            self.post(CallerLeft(caller, is_overdue))

    @property
    def callers(self) -> Collection[Caller]:
        """All attached callers."""
        return self._sinks.keys()

    # -- links ---------------------------------------------------------------------------------------------------

    def cut_frame(self, replica: RoutedReplica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
        """What the next frame to the replica carries, without what has expired by now."""
        if self._timer is not None:
            self._expire_due()
        batches = self.scheduler.cut_frame(replica, max_calls, max_bytes)
        if self.traces is not None and batches:
            self.traces.left(batches, replica, self.clock.now())
        return batches

    def cut_ops(self, replica: RoutedReplica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of operations on slots carries, without what has expired by now."""
        self._expire_due()
        return self.scheduler.cut_ops(replica, max_bytes)

    # -- effects -------------------------------------------------------------------------------------------------

    def _do(self, commands: list[RouterCommand]) -> None:
        defect: Exception | None = None
        for command in commands:
            try:
                match command:
                    case DeliverResults() | DeliverDone() | DeliverFailure() | DeliverValues():
                        sink = self._sinks.get(command.caller)
                        if sink is not None:
                            sink.deliver(command)
                    case Flush(replica):
                        self._links[replica].flush()
                    case CancelRun(sent):
                        self._links[sent.replica].cancel(command)
                    case AskReconcile(replica, session):
                        self._links[replica].reconcile(session)
                    case TakeValues(replica, run_id, count):
                        self._links[replica].take(run_id, count)
                    case OpenLink(replica):
                        self._links[replica] = self._open_link(replica, self)
                    case NameRoster() | DeliverSlot() | DeliverTaken() | DeliverTargets():
                        self._inform(command)
                    case RetryLink(replica, delay_s):
                        self.links.retry(replica, delay_s)
                    case CloseLink(replica):
                        self.links.close(replica)
                    case ReportLoad():
                        self.report_load()
                    case ReportRunDefect(state, event):
                        self.counts.defects += 1
                        _log.error("a run of calls is in an impossible state", why=RUN_LIFE.impossible(state, event))
            except Exception as error:  # noqa: BLE001 - raised once the commands for others are carried out
                defect = defect or error
        self._arm()
        if defect is not None:
            raise defect

    def _inform(self, command: NameRoster | DeliverSlot | DeliverTaken | DeliverTargets) -> None:
        """Delivers commands that only one kind of caller receives."""
        sink = self._sinks.get(command.caller)
        match command:
            case _ if sink is None:
                return
            case NameRoster(_, version):
                cast("SessionSink", sink).name_roster(version)
            case DeliverSlot():
                cast("SlotSink", sink).deliver_slot(command)
            case DeliverTargets(_, targets):
                cast("BroadcastSink", sink).deliver_targets(targets)
            case DeliverTaken():
                cast("RequestSource", sink).taken(command)

    # -- time ----------------------------------------------------------------------------------------------------

    def _expire_due(self) -> None:
        """The timer is never too late; it may be too early, if the call it was set for has ended."""
        if self._timer is not None and self._timer_at <= self.clock.now():
            self._timer.cancel()
            self._wake()

    def _arm(self) -> None:
        """Wakes the scheduler at its next deadline; an earlier timer that is still needed stays."""
        due = self.scheduler.next_deadline()
        if due is None:
            return
        due = max(due, self._not_before)
        if self._timer is not None and self._timer_at <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        delay_s = max(0.0, due - self.clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self.clock.now()
        try:
            self.post(RouterTimePassed())
        except Exception:
            # The same step may still be due: without a pause the timer would fire at each turn of the event loop.
            self._not_before = now + PAUSE_S
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._arm()
            raise
