"""What queueing theory says of waiting: Erlang's C formula, for M/M/c. Times are in mean service times."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.queues.settings import QueuesSettings


@dataclass(frozen=True, slots=True)
class Reference:
    """Quantiles of the queue time in an idealised mesh; infinite where the queue would grow for ever."""

    name: str
    p50: float
    p99: float


def references(settings: QueuesSettings) -> list[Reference]:
    """Between which limits a mesh with these settings is.

    Nobody beats one queue for all, and a freed slot waits a round trip for its next call: with one slot a replica that
    is 4 % more work at the default delay. Routers that share nothing have a queue and a share of the slots each.
    """
    slots, rate, routers = settings.slots * settings.replicas, settings.arrival_rate, settings.routers
    occupied = 1.0 + 2 * settings.link_delay
    return [
        _reference(f"one queue for all, M/M/{slots:,}", slots, rate, 1.0),
        _reference("the same, a round trip between calls", slots, rate, occupied),
        _reference(f"a queue a router, M/M/{slots // routers:,}", slots // routers, rate / routers, 1.0),
        _reference("the same, a round trip between calls", slots // routers, rate / routers, occupied),
    ]


def probability_of_waiting(servers: int, work: float) -> float:
    """Erlang's C: the share of calls that find all servers busy. `work` arrives in a mean service time."""
    if work >= servers:
        return 1.0
    inverse_of_b = 1.0
    for busy in range(1, servers + 1):
        inverse_of_b = 1.0 + inverse_of_b * busy / work
    blocked = 1.0 / inverse_of_b
    return blocked / (1.0 - work / servers * (1.0 - blocked))


def waiting_time(servers: int, rate: float, quantile: float, occupied: float = 1.0) -> float:
    """The quantile of the queue time, where `rate` calls arrive and each occupies a server for so long on average."""
    work = rate * occupied
    if work >= servers:
        return inf
    waiting = probability_of_waiting(servers, work)
    return max(0.0, log(waiting / (1.0 - quantile)) * occupied / (servers - work))


def _reference(name: str, servers: int, rate: float, occupied: float) -> Reference:
    return Reference(
        name,
        p50=waiting_time(servers, rate, 0.5, occupied),
        p99=waiting_time(servers, rate, 0.99, occupied),
    )
