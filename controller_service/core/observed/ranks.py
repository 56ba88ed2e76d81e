"""Ranks of replicas: small numbers that tell the live replicas of one backend apart.

Invariants: of the attached replicas of a backend that are not gone, no two have the same rank. A replica gets the
lowest free rank when it attaches, and keeps it while it lives. One that reports a rank of an earlier life of the
controller keeps that; if another one has it, the one whose process began first does, and the other gets another rank.
The rank of a replica that has not attached here, if a table named it, is not free. Replicas that drain still live:
during a rollout, ranks reach the number of replicas plus the surge, minus one.
Owner: `core.observed`, of which this is a part; `transitions.attached` is the only caller.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import inf

from controller_service.core.observed.state import Observed, ObservedReplica


def with_attached(observed: Observed, replica: ObservedReplica) -> Observed:
    """With the record of a replica that has attached. The rank in it, if there is one, is what it reports."""
    before = observed.replica(replica.replica_id)
    others = [it for it in observed.incarnations(replica.backend) if not (it.gone or it is before)]
    taken, rank = {it.rank for it in others}, replica.rank
    lowest = next(number for number in count() if number not in taken)
    rivals = [it for it in others if it.rank == rank is not None]
    if rank is None or any(_began(it) < _began(replica) for it in rivals):
        return observed.with_replica(replace(replica, rank=lowest))
    moved = [replace(it, rank=lowest) for it in rivals if it.has_attached and it.owner not in observed.unresolved]
    return observed.with_replicas([*moved, replica])


def _began(replica: ObservedReplica) -> tuple[float, float, str]:
    """When its process began, where it is known, and what decides between those that are alike."""
    began = replica.process_began_s
    return inf if began is None else began, replica.started_at, replica.replica_id
