"""The router's scheduler between callers and replicas that exist in memory only.

Call ids are unique in a world, and a call's payload is its id, so that a test can say which call it finds where.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from router_service.core.callers import Window
from router_service.core.calls import CallPayload
from router_service.core.commands import DeliverFailure, RetryLink, RouterCommand
from router_service.core.events import (
    AllCallsResent,
    CallsCancelled,
    CallsResent,
    CallsSubmitted,
    CapacityReported,
    DrainAnnounced,
    LanesStopped,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RosterAcknowledged,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    SessionConnected,
    SessionDisconnected,
    SessionReconciled,
    TableReceived,
)
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import FoundCalls, KnownDeparture, KnownTerm, RosterVersion, SessionConnection
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from router_service.core.tenants import DEFAULT_TENANTS, TenantSettings
from slotmesh.calls.id_ranges import Range
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec.model import Prospect
from slotmesh.spec.tenants import TenantLimits
from slotmesh.streams.chunks import Announced, Payload, joined
from tests.support.keyed_batches import keyed_batch
from tests.support.shared_tables import sharing
from tests.unit.router.world_callers import SESSION, caller, options
from tests.unit.router.world_commands import DONE, OK, carry_out
from tests.unit.router.world_table import routing_table

__all__ = ["DONE", "OK", "World"]


class World:
    """One endpoint, `e`, unless told otherwise; what a test changes of the table is in force after `push`."""

    tenants: TenantLimits | None = None
    """What each tenant may have of each endpoint."""
    routers: Sequence[str] = ()
    """Addresses in the table. This router's is `me`."""
    ranks: Mapping[str, int] = MappingProxyType({})
    """Of the replicas that have one."""
    terms: Sequence[KnownTerm] = ()
    """From which the table follows."""
    targets: Sequence[str] = ()
    """The replicas of the newest broadcast."""
    load_reports = 0
    """How often the controller would have been told what waits, out of turn."""

    def __init__(self, backends: Mapping[str, Sequence[str]], *, slots: int = 4, seed: int = 0, **table: Any) -> None:
        """`backends` names the replicas of each; the first gets all traffic. `table` are attributes to begin with."""
        self.scheduler = _scheduler(seed, table.pop("book", DEFAULT_TENANTS), table.pop("subset_size", 0))
        self.now = 0.0
        self.slots = slots
        self.backends = {name: list(replicas) for name, replicas in backends.items()}
        self.settings: dict[str, Any] = {}
        """Of all backends, as BackendRoute has them."""
        self.prospects: dict[str, Prospect] = {}
        """What the controller says of backends without a ready replica; of the others nothing."""
        self.weights: dict[str, float] | None = {next(iter(backends)): 1.0}
        self.shadows: dict[str, float] = {}
        self.owner: tuple[str | None, int] = (None, 0)
        """The replica that owns all partitions, and its epoch."""
        self.owner_of: dict[str, tuple[str | None, int]] = {}
        """The same of the partitions of some ordering keys."""
        self.endpoints = ["e"]
        """All of them with this policy and these owners."""
        self.suspects: set[str] = set()
        self.draining: set[str] = set()
        """Replicas that the controller does not hear of, and those that drain according to the table."""
        self.links_at_once = True
        """Replicas are linked as soon as the table names them."""
        self.lazy = False
        """Frames leave by `cut` only."""
        for name, value in table.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.caller = caller()
        self.replicas: dict[str, RoutedReplica] = {}
        self.held: dict[str, dict[int, int]] = defaultdict(dict)
        """What each replica has not answered: run id -> call id, in order of arrival."""
        self.batches: dict[str, list[OutgoingBatch]] = defaultdict(list)
        """All that each replica got."""
        self.outcomes: dict[int, str] = {}
        """`OK`, or the reason, of each call that has ended."""
        self.failures: dict[int, Failure] = {}
        self.failure_commands: list[DeliverFailure] = []
        self.cancelled: dict[str, list[int]] = defaultdict(list)
        """Run ids that each replica was told to cancel."""
        self.asked_stops: list[Range] = []
        """Run ids, first and last, of calls that replicas were asked about as their lanes stop there."""
        self.asked: list[tuple[str, SessionConnection]] = []
        """The replicas that were asked about the calls of a session."""
        self.values: dict[int, list[CallPayload]] = defaultdict(list)
        """What handlers yielded in each call, as far as its caller has it."""
        self.taken: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        """Run ids of each replica whose values nobody reads, and how many of them."""
        self.flushes: list[str] = []
        """The links that were told that there is something to send."""
        self.closed: list[str] = []
        self.roster = RosterVersion("g", 0)
        """Of the newest table."""
        self.departed: list[KnownDeparture] = []
        self.named: dict[Caller, RosterVersion] = {}
        """The newest roster that each session was told of."""
        self.listed: set[str] = set()
        """The replicas of the newest table."""
        self._revision = 0
        self.push()

    # -- the table ---------------------------------------------------------------------------------------------------

    def push(self) -> None:
        """The controller sends the table."""
        self._revision += 1
        self.step(TableReceived(sharing(routing_table(self, self._revision), self.scheduler.table), "me"))
        if self.links_at_once:
            for names in self.backends.values():
                for each in names:
                    if (replica := self.replicas.get(each)) and replica.has_link and not replica.linked:
                        self.link(each)

    # -- callers -----------------------------------------------------------------------------------------------------

    def submit(self, ids: Iterable[int], by: Caller | None = None, to: str = "e", **fields: Any) -> None:
        """One batch of calls."""
        calls = list(ids)
        batch = options(**fields), calls, [b"%d" % each for each in calls]
        self.step(CallsSubmitted(by or self.caller, to, [batch]))

    def submit_column(self, keys: str, first: int = 1, by: Caller | None = None, **fields: Any) -> None:
        """One batch of calls with the next ids, of the keys that the letters are."""
        ids = range(first, first + len(keys))
        batch = keyed_batch(options(**fields), ids, [b"%d" % each for each in ids], keys)
        self.step(CallsSubmitted(by or self.caller, "e", [batch]))

    def connect(
        self,
        epoch: int = 1,
        *unanswered: Range,
        session_id: str = SESSION,
        rosters: Sequence[RosterVersion] | None = None,
        acknowledges: bool = True,
        says_all: bool = False,
    ) -> Caller:
        """A client opens a connection of a session, and acknowledges the roster.

        `rosters` are those that it has acknowledged before: the one in force unless told otherwise. `says_all`: the
        test says when all was sent again; otherwise that is never waited for.
        """
        known = rosters if rosters is not None else [self.roster] * (epoch > 1)
        session = SessionConnection(session_id, epoch, unanswered, known)
        caller = Caller(Window(calls=10**9, bytes=10**12), session=session)
        self.step(SessionConnected(caller))
        if acknowledges:
            self.acknowledge(caller)
        if not says_all:
            self.resent_all(caller)
        return caller

    def acknowledge(self, by: Caller, version: RosterVersion | None = None) -> None:
        """The client of a session knows this roster now: the one in force unless told otherwise."""
        self.step(RosterAcknowledged(by, version or self.scheduler.topology.table.roster.version))

    def disconnect(self, by: Caller) -> None:
        """The connection of a session breaks."""
        self.step(SessionDisconnected(by))

    def resend(
        self,
        ids: Iterable[int],
        by: Caller,
        age: float = 0.0,
        to: str = "e",
        first_roster: RosterVersion | None = None,
        **fields: Any,
    ) -> None:
        """One batch of calls that an earlier connection has sent; under the roster in force unless told otherwise."""
        calls = list(ids)
        batch = options(**fields), calls, [b"%d" % each for each in calls]
        self.step(CallsResent(by, to, [batch], age, first_roster or self.roster))

    def announce_again(self, call: int, size: int, by: Caller, **fields: Any) -> None:
        """A call that an earlier connection has sent, and whose payload is to come in chunks."""
        batch = options(**fields), [call], [Announced(size)]
        self.step(CallsResent(by, "e", [batch], 0.0, self.roster))

    def resent_all(self, by: Caller) -> None:
        """The client has sent all again."""
        self.step(AllCallsResent(by))

    def cancel(self, *ranges: tuple[int, int], by: Caller | None = None) -> None:
        """The caller takes calls back."""
        self.step(CallsCancelled(by or self.caller, ranges))

    # -- replicas ----------------------------------------------------------------------------------------------------

    def link(self, name: str, **capacity: Any) -> None:
        """The replica is connected."""
        self.step(LinkOpened(self.replicas[name], self.capacity(**capacity)))

    def lose(self, name: str) -> None:
        """The link to the replica breaks."""
        self.held[name].clear()
        self.step(LinkLost(self.replicas[name], "cut"))

    def fail_link(self, name: str) -> None:
        """The replica cannot be reached."""
        commands = self.scheduler.step(LinkFailed(self.replicas[name]), self.now)
        self.do([each for each in commands if not isinstance(each, RetryLink)])

    def complete(self, name: str, *calls: int) -> None:
        """The replica answers these calls; all that it has if none is named."""
        ids = self._take(name, calls)
        results = [b"result"] * len(ids)
        self.step(RunsCompleted(self.replicas[name], [(ids, results, "")], [], None))

    def fail(
        self, name: str, *calls: int, reason: Reason = Reason.HANDLER_ERROR, executed: Executed = Executed.YES
    ) -> None:
        """The handler raises in these calls, or whatever else the reason says."""
        failure = Failure(reason=reason, message="ValueError: no", executed=executed)
        ids = self._take(name, calls)
        self.step(RunsCompleted(self.replicas[name], [], [(ids, failure)], None))

    def stopped(self, name: str, *spans: Range) -> None:
        """The replica says that lanes have stopped at these run ids."""
        self.step(LanesStopped(self.replicas[name], spans))

    def cut_off(self, name: str, *calls: int) -> None:
        """The grace of the replica is over, and it has cancelled these calls."""
        failure = Failure(reason=Reason.DRAINING, message="cancelled", executed=Executed.UNKNOWN)
        ids = self._take(name, calls)
        self.step(RunsCompleted(self.replicas[name], [], [(ids, failure)], None))

    def give(self, name: str, **values: Sequence[Payload]) -> None:
        """Handlers yield: `c7=[b"x"]` is a value of call 7. Those of several calls come in turns, in one batch."""
        run_ids = {call_id: run_id for run_id, call_id in self.held[name].items()}
        turns = [
            (run_ids[int(call[1:])], payloads[turn])
            for turn in range(max(map(len, values.values())))
            for call, payloads in values.items()
            if turn < len(payloads)
        ]
        batch = [run_id for run_id, _ in turns], [payload for _, payload in turns], "text"
        self.step(RunsCompleted(self.replicas[name], [], [], None, [], [batch]))

    def end(self, name: str, *calls: int) -> None:
        """These calls end without a result of their own; all that the replica has if none is named."""
        ids = self._take(name, calls)
        self.step(RunsCompleted(self.replicas[name], [], [], None, ids))

    def refuse(self, name: str, *calls: int, reason: Reason = Reason.QUEUE_FULL, **capacity: Any) -> None:
        """The replica hands these calls back."""
        failure = Failure(reason=reason, message="no")
        ids = self._take(name, calls)
        self.step(RunsRefused(self.replicas[name], ids, failure, self.capacity(**capacity)))

    def reconcile(self, name: str, by: Caller, *, forgotten: bool = False, **found: Sequence[Range]) -> None:
        """The replica says what it has of the session's calls."""
        session = by.session
        assert session is not None
        replica = self.replicas[name]
        answer = FoundCalls(**found, forgotten=forgotten)
        self.step(SessionReconciled(replica, session.session_id, session.epoch, answer))

    def report(self, name: str, **capacity: Any) -> None:
        """The replica says how loaded it is."""
        self.step(CapacityReported(self.replicas[name], self.capacity(**capacity)))

    def drain(self, name: str) -> None:
        """The replica takes no more."""
        self.step(DrainAnnounced(self.replicas[name]))

    def cut(self, name: str, max_calls: int = 10**6) -> list[OutgoingBatch]:
        """The link writes one frame."""
        self.step(RouterTimePassed())
        frame = self.scheduler.cut_frame(self.replicas[name], max_calls, 10**9)
        for batch in frame:
            self.batches[name].append(batch)
            ids = map(int, map(joined, batch.payloads)) if batch.session is None else batch.call_ids
            self.held[name].update(enumerate(ids, batch.first_run_id))
        return frame

    def capacity(self, **fields: Any) -> ReportedCapacity:
        """A report of the world's replicas, with changes."""
        return ReportedCapacity(**{"max_ongoing": self.slots, **fields})

    # -- time, and what a test asks ------------------------------------------------------------------------------------

    def at(self, now: float) -> None:
        """Time passes."""
        self.now = now
        self.step(RouterTimePassed())

    def at_replica(self, name: str) -> list[int]:
        """The calls that the replica has not answered, in order of arrival."""
        return list(self.held[name].values())

    def got(self, name: str) -> list[int]:
        """All calls that the replica ever got, in order of arrival."""
        got = [batch for batch in self.batches[name] if not batch.recovers]
        return [int(joined(payload)) for batch in got for payload in batch.payloads]

    def recovered(self, name: str) -> list[int]:
        """All calls whose outcomes the replica was asked for."""
        return [call_id for batch in self.batches[name] if batch.recovers for call_id in batch.call_ids]

    @property
    def queued(self) -> dict[str, int]:
        """Calls that wait for each backend that has any."""
        accounts = {name: backend.account.calls for name, backend in self.scheduler.topology.backends.items()}
        return {name: calls for name, calls in accounts.items() if calls}

    def reasons(self, ids: Iterable[int]) -> set[str]:
        """How these calls ended."""
        return {self.outcomes[each] for each in ids}

    def step(self, event: RouterEvent) -> None:
        """Something happens, now; commands are carried out."""
        self.do(self.scheduler.step(event, self.now))

    def do(self, commands: list[RouterCommand]) -> None:
        """Carries commands out."""
        carry_out(commands, self)

    def _take(self, name: str, calls: Sequence[int]) -> list[int]:
        held = self.held[name]
        ids = [run_id for run_id, call_id in held.items() if not calls or call_id in calls]
        assert len(ids) == len(calls or ids), f"{calls} are not all at {name}: {held}"
        for each in ids:
            del held[each]
        return ids


def _scheduler(seed: int, tenants: TenantSettings, subset_size: int) -> RouterScheduler:
    return RouterScheduler(random.Random(seed).random, tenants=tenants, subset_size=subset_size)
