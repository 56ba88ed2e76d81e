"""A naive client of a mesh: it counts its calls, as sessions do, and remembers each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from router_service import convert
from router_service.core.callers import Window
from router_service.core.calls import Batch, KeyedBatch, RouterCallOptions
from router_service.core.commands import CallDelivery
from router_service.core.events import (
    AllCallsResent,
    CallsCancelled,
    CallsResent,
    CallsSubmitted,
    RosterAcknowledged,
    SessionConnected,
)
from router_service.core.rosters import RosterVersion, SessionConnection
from router_service.core.runs import Caller
from slotmesh.client.stream.resends import Rosters
from slotmesh.errors import Executed, Failure, Reason
from tests.support.keyed_batches import keyed_batch
from tests.support.memory_nodes import ENDPOINT, RouterNode, wire_options

STOPPED = Failure(reason=Reason.PREDECESSOR_FAILED, message="not sent again", executed=Executed.UNKNOWN)


@dataclass
class Call:
    """A call that a client made."""

    tag: bytes
    key: str
    idempotent: bool
    timeout_s: float = 0.0
    """0: it has none."""
    stop_generation: int = 0
    is_cancelled: bool = False
    """Its caller has given it up."""
    sent_at: float | None = None
    first_roster: RosterVersion | None = None
    outcome: Failure | bytes | None = None
    executions: int = 0


@dataclass(eq=False)
class Connection:
    """One stream of a session."""

    router: RouterNode
    caller: Caller
    is_open: bool = True
    """The client reads and writes."""
    heard: set[int] = field(default_factory=set)
    unacknowledged: list[CallDelivery] = field(default_factory=list)


class Client:
    """A session, as a client knows it."""

    def __init__(self, name: str, session_id: str) -> None:
        self.name = name
        self.session_id = session_id
        self.epoch = 0
        self.calls: dict[int, Call] = {}
        self.connection: Connection | None = None
        self.rosters = Rosters()
        self.stops = False
        """Its lanes stop at failures."""
        self.generations: dict[str, int] = {}
        """By key."""

    @property
    def unanswered(self) -> dict[int, Call]:
        return {call_id: call for call_id, call in self.calls.items() if call.outcome is None}

    def make(self, count: int, key: str, *, idempotent: bool, timeout_s: float) -> list[int]:
        first = len(self.calls) + 1
        ids = list(range(first, first + count))
        for call_id in ids:
            generation = self.generations.get(key, 1) if self.stops and key else 0
            self.calls[call_id] = Call(f"{self.name}/{call_id}".encode(), key, idempotent, timeout_s, generation)
        return ids

    def failed(self, call_id: int) -> None:
        """A call has failed. Where its lane stops, the next calls are of a new generation."""
        call = self.calls[call_id]
        if call.stop_generation:
            self.generations[call.key] = max(self.generations.get(call.key, 1), call.stop_generation + 1)

    def stop_lanes(self) -> None:
        """What is behind a failure is not sent again."""
        for call_id, call in self.unanswered.items():
            first = self.first_failure(call)
            if first is not None and first < call_id:
                call.outcome = STOPPED

    def first_failure(self, call: Call) -> int | None:
        """Of the calls of its lane and generation."""
        lane = (call.key, call.stop_generation)
        failed = (
            call_id
            for call_id, each in self.calls.items()
            if call.stop_generation and isinstance(each.outcome, Failure) and (each.key, each.stop_generation) == lane
        )
        return min(failed, default=None)

    def cancel(self, call_id: int, now: float) -> None:
        """A caller gives its call up."""
        self.calls[call_id].is_cancelled = True
        if (connection := self.connection) is not None and connection.is_open:
            router = connection.router
            router.do(router.scheduler.step(CallsCancelled(connection.caller, [(call_id, call_id)]), now))

    def connect(self, router: RouterNode, now: float) -> None:
        """Goes on at this router: what was sent is sent again, what was not follows."""
        self.epoch += 1
        self.stop_lanes()
        sent = [call_id for call_id, call in self.unanswered.items() if call.sent_at is not None]
        spans = [(group[0], group[-1]) for group in _consecutive(sent)]
        rosters = [convert.roster_from_wire(each) for each in self.rosters.at_opening(is_resuming=bool(sent))]
        session = SessionConnection(self.session_id, self.epoch, spans, rosters)
        self.connection = Connection(router, Caller(Window(10**6, 10**9), session=session))
        caller = self.connection.caller
        router.inboxes[caller] = []
        router.named[caller] = router.scheduler.topology.table.roster.version
        router.do(router.scheduler.step(SessionConnected(caller), now))
        for ids in self._alike(sent):
            age_s = now - (self.calls[ids[0]].sent_at or 0.0)
            first = self.calls[ids[0]].first_roster
            router.do(router.scheduler.step(CallsResent(caller, ENDPOINT, [self._batch(ids)], age_s, first), now))
        router.do(router.scheduler.step(AllCallsResent(caller), now))
        for call_id in sent:
            if self.calls[call_id].is_cancelled:
                self.cancel(call_id, now)
        self.send(now)

    def acknowledge_roster(self, now: float) -> None:
        """The roster that the client was told of reaches it, and its router hears of that."""
        connection = self.connection
        if connection is not None and (version := connection.router.named.pop(connection.caller, None)) is not None:
            self.rosters.acknowledge(convert.roster_to_wire(version))
            connection.router.do(connection.router.scheduler.step(RosterAcknowledged(connection.caller, version), now))

    def send(self, now: float) -> None:
        """What has not been sent leaves, if there is a connection."""
        connection = self.connection
        if connection is not None and connection.is_open:
            ids = [call_id for call_id, call in self.unanswered.items() if call.sent_at is None]
            newest = self.rosters.newest
            for call_id in ids:
                self.calls[call_id].sent_at = now
                self.calls[call_id].first_roster = newest and convert.roster_from_wire(newest)
            batches = [self._any_batch(each) for each in self._alike(ids, _traits_but_key)]
            router = connection.router
            router.do(router.scheduler.step(CallsSubmitted(connection.caller, ENDPOINT, batches), now))

    def _alike(self, ids: list[int], traits: Callable[[Call], tuple[object, ...]] | None = None) -> Iterator[list[int]]:
        """Calls that may travel as one batch."""
        for _, group in groupby(ids, key=lambda each: (traits or _traits)(self.calls[each])):
            yield list(group)

    def _any_batch(self, ids: list[int]) -> Batch | KeyedBatch:
        """Calls that were not sent before, with a column of keys where theirs differ."""
        keys = [self.calls[call_id].key for call_id in ids]
        if len(set(keys)) == 1:
            return self._batch(ids)
        call = self.calls[ids[0]]
        options = convert.options_from_wire(
            wire_options("", idempotent=call.idempotent, timeout_s=call.timeout_s, stop_generation=0)
        )
        assert isinstance(options, RouterCallOptions)
        return keyed_batch(options, ids, [self.calls[call_id].tag for call_id in ids], keys)

    def _batch(self, ids: list[int]) -> Batch:
        call = self.calls[ids[0]]
        wire = wire_options(
            call.key, idempotent=call.idempotent, timeout_s=call.timeout_s, stop_generation=call.stop_generation
        )
        options = convert.options_from_wire(wire)
        assert isinstance(options, RouterCallOptions)
        return options, ids, [self.calls[call_id].tag for call_id in ids]


def _traits(call: Call) -> tuple[object, ...]:
    """What calls of a batch share."""
    return call.key, call.idempotent, call.timeout_s, call.stop_generation, call.sent_at, call.first_roster


def _traits_but_key(call: Call) -> tuple[object, ...]:
    """The same of a batch that may have a column of keys: only calls with a key whose lane goes on have one."""
    key, *others = _traits(call)
    return key if not call.key or call.stop_generation else None, *others


def _consecutive(ids: list[int]) -> list[list[int]]:
    return [[each for _, each in group] for _, group in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0])]
