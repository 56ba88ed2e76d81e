"""Calls with affinity keys: how evenly replicas are loaded, how many calls go to their replica, and what moves.

Purpose: three real router cores and ten replicas on virtual time, keys drawn alike and by Zipf's law, compared with the
same calls without keys.
What has to hold: at a load of `LOAD`, the busiest replica runs at most `LARGEST_SHARE` times the mean of calls; the
routers agree on `LEAST_AGREED` of the keys that are drawn alike, by where each sent most calls of a key; an eleventh
replica moves at most 1/11 of the keys and `MOST_MOVED` more. By Zipf's law a single key has more calls than a replica
takes: what else prefers that replica spills over, and it is chance where most of it goes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Final

from router_service.core.calls import RouterCallOptions
from router_service.core.limits.capacity import KnownReplica, ReportedCapacity
from router_service.core.preferences.affinity import Ring
from simulation.queues.mesh import QueuesMesh
from simulation.queues.settings import QueuesSettings
from slotmesh.calls.key_hash import place_of_key

if TYPE_CHECKING:
    from router_service.core.replicas.frames import OutgoingBatch
    from router_service.core.replicas.replica import RoutedReplica as Far

LOADS: Final = (0.5, 0.8, 0.9)
LOAD: Final = 0.8
LARGEST_SHARE: Final = 1.25
LEAST_AGREED: Final = 0.99
MOST_MOVED: Final = 0.05
KEYS: Final = 1_000
ALIKE: Final = "alike"
LEAST_CALLS: Final = 10
"""Calls of a key at a router from which on it counts where most of them went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityOutcome:
    """One mesh."""

    settings: QueuesSettings
    keys: str
    """How keys are drawn."""
    busiest: float
    """Calls of the replica with most calls, as a multiple of the mean."""
    peak: float
    """The same of the calls that run at one moment: the mean over moments."""
    preferred: float
    """Share of the calls that went to the replica of their key."""
    agreed: float
    """Share of the keys of which all routers sent most calls to the same replica."""
    p99: float
    """Of the queue time, mean service times."""
    plain_p99: float
    """The same without keys."""

    @property
    def is_as_expected(self) -> bool:
        """Whether what has to hold does."""
        if self.settings.load != LOAD:
            return True
        return self.busiest <= LARGEST_SHARE and (self.keys != ALIKE or self.agreed >= LEAST_AGREED)


def settings(*, is_quick: bool) -> list[QueuesSettings]:
    """Each mesh."""
    calls = 20_000 if is_quick else 50_000
    return [
        QueuesSettings(routers=3, replicas=10, slots=32, load=load, calls=calls)
        for load in ((LOAD,) if is_quick else LOADS)
    ]


def simulate(meshes: Sequence[QueuesSettings]) -> list[AffinityOutcome]:
    """Each mesh with keys that are drawn alike, and by Zipf's law."""
    outcomes: list[AffinityOutcome] = []
    weights: dict[str, list[float]] = {ALIKE: [1.0] * KEYS, "Zipf": [1.0 / rank for rank in range(1, KEYS + 1)]}
    for each in meshes:
        plain = QueuesMesh(each).run().p99
        outcomes += [_outcome(each, name, of_keys, plain) for name, of_keys in weights.items()]
    return outcomes


def _outcome(given: QueuesSettings, name: str, weights: Sequence[float], plain_p99: float) -> AffinityOutcome:
    options = [RouterCallOptions(affinity_key=f"key {number}") for number in range(len(weights))]
    bounds = list(accumulate(weights))

    def drawn(draws: Random) -> RouterCallOptions:
        return draws.choices(options, cum_weights=bounds)[0]

    mesh = QueuesMesh(given, options=drawn)
    sent: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in mesh.routers]
    peaks: list[float] = []
    for router, of_router in zip(mesh.routers, sent, strict=True):
        router.frames_to = partial(_count, of_router, lambda: peaks.append(_peak(mesh)))
    figures = mesh.run()
    started = [each.started for each in mesh.replicas]
    counts = [router.core.counters.backends["backend"] for router in mesh.routers]
    preferred, spilled = sum(each.preferred for each in counts), sum(each.spilled for each in counts)
    return AffinityOutcome(
        settings=given,
        keys=name,
        busiest=max(started) * len(started) / sum(started),
        peak=sum(peaks) / len(peaks),
        preferred=preferred / (preferred + spilled),
        agreed=_agreed(sent),
        p99=figures.p99,
        plain_p99=plain_p99,
    )


def _count(
    sent: dict[str, Counter[str]], look: Callable[[], None], replica: Far, batches: Sequence[OutgoingBatch]
) -> None:
    look()
    for batch in batches:
        keys = batch.affinity_keys
        for at in range(len(batch.payloads)):
            sent[keys[at if len(keys) > 1 else 0]][replica.replica_id] += 1


def _peak(mesh: QueuesMesh) -> float:
    running = [each.running for each in mesh.replicas]
    return max(running) * len(running) / max(1, sum(running))


def _agreed(sent: Sequence[dict[str, Counter[str]]]) -> float:
    common = [
        [of_router[key].most_common(1)[0][0] for of_router in sent]
        for key in sent[0]
        if all(of_router[key].total() >= LEAST_CALLS for of_router in sent)
    ]
    return sum(len(set(each)) == 1 for each in common) / max(1, len(common))


def moved(before: int = 10, keys: int = 20_000) -> float:
    """Share of the keys that have another replica once there is one more."""
    ring = Ring[KnownReplica]()
    owners: list[list[str]] = []
    replicas = [
        KnownReplica((f"replica-{number}", ""), "", "backend", ReportedCapacity(max_ongoing=1), draining=False)
        for number in range(before + 1)
    ]
    for of_ring in (replicas[:before], replicas):
        for each in of_ring:
            ring.put(each, is_member=True)
        owners.append([next(ring.follow(place_of_key(f"key {number}"))).replica_id for number in range(keys)])
    before_it, with_it = owners
    return sum(one != other for one, other in zip(before_it, with_it, strict=True)) / keys


def table(outcomes: Sequence[AffinityOutcome], share_moved: float) -> str:
    """A line for each mesh."""
    first = outcomes[0].settings
    lines = [
        f"{first.routers} routers, {first.replicas} replicas, {KEYS:,} keys, {first.calls:,} calls",
        "load  keys   busiest/mean  at a moment  preferred  agreed     p99  p99 without keys",
    ]
    lines += [
        f"{each.settings.load:4.0%}  {each.keys:5}  {each.busiest:12.3f}  {each.peak:11.3f}  {each.preferred:9.1%}  "
        f"{each.agreed:6.1%}  {each.p99:6.3f}  {each.plain_p99:16.3f} {'✓' if each.is_as_expected else '✗'}"
        for each in outcomes
    ]
    lines.append(f"10 replicas become 11: {share_moved:.1%} of the keys move {'✓' if moves_few(share_moved) else '✗'}")
    return "\n".join(lines)


def moves_few(share_moved: float) -> bool:
    """Whether an eleventh replica moves no more keys than it has to, and `MOST_MOVED`."""
    return share_moved <= 1 / 11 + MOST_MOVED
