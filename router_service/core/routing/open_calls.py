"""Calls that have not ended: which ones, for how long, and where they are.

Purpose: an operator asks which call of which key runs, or what the oldest call waits for. The router's state has the
answer; nothing is recorded for it when calls are made.
Invariants: nothing is changed. A step looks at a bounded number of runs, and a scan at `MAX_RUNS` in all. Waiting calls
are scanned before those at replicas, and the calls to show are read in one piece at the end: a call that is sent
between two steps is shown once, where it is at the end.
Owner: a servicer runs one scan for each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappush, heappushpop
from itertools import islice
from typing import Final

from router_service.core.calls import Dispatch
from router_service.core.routing.endpoints import Partition
from router_service.core.routing.topology import Topology
from router_service.core.routing.waiting_causes import why
from router_service.core.run_states import Earlier, RunState
from router_service.core.runs import ABANDONED, ANSWERED, Caller, RouterRun, Sent
from slotmesh.calls.key_hash import partition_of
from slotmesh.calls.payload_block import nbytes_of

MAX_RUNS: Final = 1_000_000
"""That one scan looks at."""


class OpenCallState(IntEnum):
    """Where a call is. Values are those of `slotmesh.v1.OpenCallState`."""

    WAITING = 1
    SENDING = 2
    AT_REPLICA = 3
    ABANDONED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCallsFilter:
    """Which calls are listed."""

    endpoint: str = ""
    """Empty means all."""
    states: frozenset[OpenCallState] = frozenset(OpenCallState)
    tenant: str | None = None
    """None means all; likewise the key."""
    ordering_key: str | None = None
    limit: int = 100
    """The oldest ones, at most."""

    def matches(self, run: RouterRun) -> bool:
        """Whether calls of the run may be listed, their keys and states aside."""
        return (
            (run.slot is None or isinstance(run.slot, Dispatch))
            and self.endpoint in {"", run.endpoint}
            and self.tenant in {None, run.options.tenant}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that has not ended."""

    state: OpenCallState
    endpoint: str
    method: str
    age_s: float
    """Since its arrival."""
    backend: str
    """Empty if it has none yet."""
    replica_id: str
    """Empty while it waits."""
    sent_age_s: float | None
    """Since it was sent; None while it waits."""
    tenant: str
    partition: int
    """-1 without an ordering key."""
    ordering_key: str
    request_bytes: int
    attempt: int
    """From 1."""
    is_shadow: bool
    waits_for: str
    """Empty if it does not wait, or the cause is not known."""


class OpenCallsScan:
    """One look at all calls that have not ended. Call `step` until it returns True, then `calls`."""

    def __init__(self, wanted: OpenCallsFilter, topology: Topology, callers: Iterable[Caller]) -> None:
        self._wanted = wanted
        self._topology = topology
        self._left = _runs(list(callers), topology)
        self._looked_at = 0
        self._oldest: list[tuple[float, int, int, RouterRun | Sent]] = []
        """A heap with the youngest at the head: (-arrived, -age, number, run or slice)."""
        self.waiting = 0
        """Calls that match and wait or are being sent."""
        self.at_replicas = 0
        """Calls that match and are at replicas."""
        self.is_partial = False
        """There were more runs than a scan looks at."""
        self.endpoints: set[str] = set()
        """Of the calls that match."""

    def step(self, runs: int) -> bool:
        """Looks at this many runs more, or at as many calls with keys of their own. Returns whether it has ended."""
        cost = 0
        for each in self._left:
            cost += self._look_at(each)
            self._looked_at += 1
            if self._looked_at >= MAX_RUNS:
                self.is_partial = True
                return True
            if cost >= runs:
                return False
        return True

    def calls(self, now: float) -> list[OpenCall]:
        """The oldest calls that match, oldest first, as they are now."""
        found: list[OpenCall] = []
        causes = _Causes(self._topology)
        for *_, each in sorted(self._oldest, key=lambda entry: entry[:3], reverse=True):
            places = self._places(each)
            found += (self._shown(each, at, state, now, causes) for at, state in places)
            if len(found) >= self._wanted.limit:
                break
        return found[: self._wanted.limit]

    def _look_at(self, each: RouterRun | Sent) -> int:
        """Returns what it costs: 1 for a run, more if the key of each call is compared."""
        run = each.run if isinstance(each, Sent) else each
        key, cost = self._wanted.ordering_key, 1
        if not self._wanted.matches(run):
            return cost
        if key is None or (run.column is None and run.options.ordering_key == key):
            counts = _counts(each)
        elif run.column is None:
            return cost
        else:
            cost, counts = len(run.payloads), dict.fromkeys(OpenCallState, 0)
            for _, state in _places(each, key):
                counts[state] += 1
        counts = {state: count for state, count in counts.items() if count and state in self._wanted.states}
        if counts:
            self._keep(each, run, counts)
        return cost

    def _keep(self, each: RouterRun | Sent, run: RouterRun, counts: dict[OpenCallState, int]) -> None:
        self.endpoints.add(run.endpoint)
        for state, count in counts.items():
            if state in _HERE:
                self.waiting += count
            else:
                self.at_replicas += count
        entry = (-run.arrived, -run.seq, -self._looked_at, each)
        if len(self._oldest) < self._wanted.limit:
            heappush(self._oldest, entry)
        else:
            heappushpop(self._oldest, entry)

    def _places(self, each: RouterRun | Sent) -> Iterator[tuple[int, OpenCallState]]:
        places = (place for place in _places(each, self._wanted.ordering_key) if place[1] in self._wanted.states)
        return islice(places, self._wanted.limit)

    def _shown(self, each: RouterRun | Sent, at: int, state: OpenCallState, now: float, causes: _Causes) -> OpenCall:
        sent = each if isinstance(each, Sent) else None
        run = each.run if isinstance(each, Sent) else each
        key = run.options.ordering_key if run.column is None else run.column.keys[at]
        account = run.account
        return OpenCall(
            state=state,
            endpoint=run.endpoint,
            method=run.options.method or "__call__",
            age_s=max(0.0, now - run.arrived),
            backend=sent.replica.backend_name if sent is not None else account.backend if account is not None else "",
            replica_id=sent.replica.replica_id if sent is not None else "",
            sent_age_s=None if sent is None else max(0.0, now - sent.sent_at),
            tenant=run.options.tenant,
            partition=partition_of(key) if key else -1,
            ordering_key=key,
            request_bytes=nbytes_of(run.payloads, at, at + 1),
            attempt=run.attempt + 1,
            is_shadow=run.shadow_of is not None,
            waits_for=causes.of(run) if sent is None else "",
        )


class _Causes:
    """Why calls wait, found once for all that wait for the same thing."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, run: RouterRun) -> str:
        if run.state is RunState.ARRIVING:
            return "its payload is still arriving"
        if run.session is not None and run.session.is_suspended:
            return "the session of its client has not acknowledged all replicas"
        if run.earlier is not Earlier.NONE and run.state is RunState.HELD:
            return "replicas are asked whether it has been executed"
        owner: object = None
        if isinstance(run.partition, Partition) and (owner := run.partition.owner) is not None:
            owner = run.partition
        group = (run.endpoint, run.account, owner, run.partition is None)
        if (known := self._known.get(group)) is None:
            known = self._known[group] = why(run, self._topology)
        return known


_HERE: Final = frozenset({OpenCallState.WAITING, OpenCallState.SENDING})


def _runs(callers: list[Caller], topology: Topology) -> Iterator[RouterRun | Sent]:
    """All runs with calls that wait, and all slices that replicas have. Each part is copied as the scan gets there."""
    for caller in callers:
        yield from list(caller.runs)
    for replica in list(topology.connected.values()):
        yield from [*replica.ops, *replica.outbox, *replica.inflight.values()]


def _counts(each: RouterRun | Sent) -> dict[OpenCallState, int]:
    """Calls of the run that wait, or of the slice that are unanswered, by state."""
    if not isinstance(each, Sent):
        return {OpenCallState.WAITING: each.waiting if each.unanswered else 0}
    abandoned = 0 if each.states is None else each.states.count(ABANDONED)
    at_replica = OpenCallState.AT_REPLICA if each.first else OpenCallState.SENDING
    return {at_replica: each.remaining - abandoned, OpenCallState.ABANDONED: abandoned}


def _places(each: RouterRun | Sent, key: str | None) -> Iterator[tuple[int, OpenCallState]]:
    """Indices in the run, and states, of calls that have not ended; of this ordering key only, unless it is None."""
    if not isinstance(each, Sent):
        if each.unanswered and key in {None, each.options.ordering_key}:
            yield from ((at, OpenCallState.WAITING) for at in range(each.cursor, len(each.payloads)))
        return
    run, states = each.run, each.states
    if not each.remaining or (run.column is None and key not in {None, run.options.ordering_key}):
        return
    at_replica = OpenCallState.AT_REPLICA if each.first else OpenCallState.SENDING
    keys = None if key is None or run.column is None else run.column.keys
    for offset in range(each.count):
        at = each.lo + offset
        known = 0 if states is None else states[offset]
        if known != ANSWERED and (keys is None or keys[at] == key):
            yield at, OpenCallState.ABANDONED if known == ABANDONED else at_replica
