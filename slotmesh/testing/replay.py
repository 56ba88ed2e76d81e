"""Runs a balancer against recorded or made-up calls: the router's own core, on virtual time, without a mesh.

    calls = [ReplayedCall(at=0.01 * number, service_time=0.03) for number in range(1000)]
    assert slotmesh.testing.replay_balancer(MostMemory, calls).queue_time(0.99) < 0.05

Invariants: the same calls, replicas and seed give the same picks. Replicas execute up to `max_ongoing` calls at a time,
each for as long as it is to take; links take no time. What a balancer of the user's own does wrong is counted as in a
router; its time is not, as virtual time stands still while it picks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil
from types import MappingProxyType
from typing import Any, Final, cast

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import Flush, OpenLink, RouterCommand
from router_service.core.events import (
    CallsSubmitted,
    HandlerStateReported,
    LinkOpened,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    TableReceived,
)
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.plugged_balancers import PlugIns
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.balancers import Balancer
from slotmesh.spec.model import BUILT_IN_BALANCERS, MAX_TIME_S, Affinity
from slotmesh.spec.model import Backend as BackendSettings

NAME: Final = "replayed"
_MANY: Final = 2**53
_NO_TEXT: Final[Mapping[str, str]] = MappingProxyType({})
_NO_FIGURES: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedCall:
    """A call without an ordering key. Calls that are alike and arrive at one moment arrive in one frame."""

    at: float = 0.0
    """When it arrives at the router, seconds."""
    service_time: float = 0.01
    """How long a replica executes it, seconds."""
    size: int = 0
    """Bytes of its payload."""
    method: str = ""
    affinity_key: str = ""
    model_id: str = ""
    tenant: str = ""
    prefix_blocks: tuple[int, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: _NO_TEXT)
    """What the router shows to balancers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedReplica:
    """A replica, which is there from the beginning to the end."""

    replica_id: str
    max_ongoing: int = 8
    zone: str = ""
    figures: Mapping[str, float] = field(default_factory=lambda: _NO_FIGURES)
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of the calls; the sequences are parallel to them."""

    replica_ids: Sequence[str]
    """Where each was executed; empty if it failed at the router."""
    queue_times: Sequence[float]
    """How long each waited for a replica, seconds."""
    faults: Mapping[str, int]
    """Picks that were not used, by cause, as `slotmesh_router_balancer_faults_total` counts them."""

    @property
    def calls_by_replica(self) -> Mapping[str, int]:
        """Calls of each replica."""
        return Counter(each for each in self.replica_ids if each)

    def queue_time(self, share: float) -> float:
        """The time that this share of the calls did not exceed: 0.99 for the 99th percentile."""
        times = sorted(self.queue_times)
        return times[max(0, ceil(share * len(times)) - 1)] if times else 0.0


def replay_balancer(
    balancer: str | Callable[[], Balancer],
    calls: Iterable[ReplayedCall],
    replicas: int | Sequence[ReplayedReplica] = 4,
    *,
    zone: str = "",
    service_time: Callable[[ReplayedCall, str], float] | None = None,
    seed: int = 0,
) -> Replay:
    """Runs the calls through a router with this balancer, on virtual time.

    Args:
        balancer: the class, or the name of one that routers have: `least_loaded`.
        calls: in any order.
        replicas: their number, or each of them.
        zone: that of the router.
        service_time: returns the seconds that a call takes at the replica of this id, where it depends on that: a cache
            may have what it needs. It is called when the call starts, in order.
        seed: of the router's own random choices.

    Raises:
        ValueError: there is no such balancer, or there are no replicas.
    """
    if isinstance(balancer, str) and balancer not in BUILT_IN_BALANCERS:
        raise ValueError(
            f"no balancer is named {balancer!r}: there are {', '.join(BUILT_IN_BALANCERS)}, or give a class"
        )
    if isinstance(replicas, int):
        replicas = [ReplayedReplica(replica_id=f"r{number}") for number in range(replicas)]
    if not replicas:
        raise ValueError("replicas: at least one is needed")
    given = [*calls]
    order = sorted(range(len(given)), key=lambda number: given[number].at)
    by_arrival = [given[number] for number in order]
    world = _World(balancer, by_arrival, replicas, zone, service_time or (lambda call, _: call.service_time), seed)
    world.run()
    places = [0] * len(given)
    for place, number in enumerate(order):
        places[number] = place
    return Replay(
        replica_ids=[world.where[place] for place in places],
        queue_times=[world.queue_times[place] for place in places],
        faults=world.faults,
    )


class _Payload:
    """Stands for the payload of a call: nothing here reads one."""

    __slots__ = ("call", "size")

    def __init__(self, call: int, size: int) -> None:
        self.call = call
        self.size = size

    def __len__(self) -> int:
        return self.size


class _World:
    """A router's core, and what its replicas execute."""

    def __init__(
        self,
        balancer: str | Callable[[], Balancer],
        calls: Sequence[ReplayedCall],
        replicas: Sequence[ReplayedReplica],
        zone: str,
        service_time: Callable[[ReplayedCall, str], float],
        seed: int,
    ) -> None:
        self._calls = calls
        self._service_time = service_time
        self._now = 0.0
        self._ends: list[tuple[float, int, RoutedReplica, int]] = []
        """When running calls end, in which order they started, where, and their run ids."""
        self._started = 0
        self.queue_times = [0.0] * len(calls)
        self.where = [""] * len(calls)
        """Ids of replicas."""
        self._metadata: dict[bytes, Mapping[str, str]] = {}
        self._caller = Caller(Window(calls=_MANY, bytes=_MANY))
        makers: dict[str, Callable[[], Balancer]] = {} if isinstance(balancer, str) else {NAME: balancer}
        plug_ins = PlugIns(
            makers=makers, now=lambda: self._now, metadata_of=lambda it: self._metadata.get(it, _NO_TEXT)
        )
        self._core = RouterScheduler(random.Random(seed).random, plug_ins=plug_ins, zone=zone)  # noqa: S311 - no secret
        self._begin(balancer if isinstance(balancer, str) else NAME, replicas)

    def run(self) -> None:
        """Until each call has ended."""
        at = 0
        while at < len(self._calls) or self._ends:
            if at < len(self._calls) and not (self._ends and self._ends[0][0] <= self._calls[at].at):
                self._pass_time(self._calls[at].at)
                at = self._arrive(at)
            else:
                when, _, replica, run_id = heappop(self._ends)
                self._pass_time(when)
                self._step(RunsCompleted(replica, [([run_id], [b""], "")], [], None))

    @property
    def faults(self) -> Mapping[str, int]:
        """Of the balancer, by cause."""
        picks = self._core.counters.backend(NAME).picks
        return {} if picks is None else {fault.value: count for fault, count in picks.faults.items() if count}

    def _begin(self, balancer: str, replicas: Sequence[ReplayedReplica]) -> None:
        """The router gets its table and its links."""
        settings = BackendSettings(
            name=NAME,
            balancer=balancer,
            affinity=Affinity.PREFIX,
            max_queued_calls=_MANY,
            max_queued_bytes=_MANY,
            max_queue_time_s=MAX_TIME_S,
        )
        routes = [
            ReplicaRoute(key=(it.replica_id, ""), address="", max_ongoing=it.max_ongoing, zone=it.zone, rank=rank)
            for rank, it in enumerate(replicas)
        ]
        table = RoutingTable(
            generation=NAME,
            revision=1,
            endpoints={NAME: EndpointRoute(name=NAME, weights={NAME: 1.0})},
            backends={NAME: BackendRoute(settings=settings, replicas=routes)},
        )
        given = {it.replica_id: it for it in replicas}
        for command in self._core.step(TableReceived(table, ""), self._now):
            if isinstance(command, OpenLink):
                replica, it = command.replica, given[command.replica.replica_id]
                self._step(LinkOpened(replica, ReportedCapacity(max_ongoing=it.max_ongoing)))
                self._step(HandlerStateReported(replica, it.figures, it.models))

    def _arrive(self, at: int) -> int:
        """The next calls that are alike arrive; returns the index of those behind them."""
        first, end = self._calls[at], at + 1
        while end < len(self._calls) and _shared(self._calls[end]) == _shared(first):
            end += 1
        options = _options(first)
        if first.metadata:
            options["wire"] = b"%d" % at
            self._metadata[b"%d" % at] = MappingProxyType(dict(first.metadata))
        payloads: list[Any] = [_Payload(each, self._calls[each].size) for each in range(at, end)]
        batch = (RouterCallOptions(**options), range(at + 1, end + 1), payloads)
        self._step(CallsSubmitted(self._caller, NAME, [batch]))
        return end

    def _step(self, event: RouterEvent) -> None:
        self._carry_out(self._core.step(event, self._now))

    def _pass_time(self, until: float) -> None:
        self._now = max(self._now, until)
        due = self._core.next_deadline()
        if due is not None and due <= self._now:
            self._step(RouterTimePassed())

    def _carry_out(self, commands: Iterable[RouterCommand]) -> None:
        for command in commands:
            if isinstance(command, Flush):
                while batches := self._core.cut_frame(command.replica, _MANY, _MANY):
                    for batch in batches:
                        for number, payload in enumerate(batch.payloads):
                            self._start(command.replica, batch.first_run_id + number, cast("Any", payload).call)

    def _start(self, replica: RoutedReplica, run_id: int, call: int) -> None:
        self.where[call] = replica.replica_id
        self.queue_times[call] = self._now - self._calls[call].at
        ends_at = self._now + self._service_time(self._calls[call], replica.replica_id)
        heappush(self._ends, (ends_at, self._started, replica, run_id))
        self._started += 1


def _shared(call: ReplayedCall) -> ReplayedCall:
    """What calls of one batch share."""
    return replace(call, size=0, service_time=0.0)


def _options(call: ReplayedCall) -> dict[str, Any]:
    return {
        "method": call.method,
        "affinity_key": call.affinity_key,
        "model_id": call.model_id,
        "tenant": call.tenant,
        "prefix_blocks": call.prefix_blocks,
    }
