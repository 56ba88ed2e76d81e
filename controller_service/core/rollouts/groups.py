"""The replicas of a backend, by what a rollout has to know of them.

Invariants: a replica that stays is either current or outdated; one that has ended, was asked to, or is being killed, is
neither, and counts as `ending` until its process was reaped: it holds what it holds (memory, a GPU) for that long.
Replicas that this controller neither started nor can replace are in no group.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller_service.core.observed import ObservedReplica, ReplicaState
from controller_service.core.templates import fixed_of, template_of
from controller_service.core.unattached import is_counted
from slotmesh.spec.model import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """The replicas that this controller has started."""

    current: tuple[ObservedReplica, ...] = ()
    """They run the present settings, well, as far as is known."""
    outdated: tuple[ObservedReplica, ...] = ()
    """They run other settings, or are unhealthy: others should replace them."""
    sick: int = 0
    """How many of these run the present settings, and are unhealthy."""
    ending: tuple[ObservedReplica, ...] = ()
    """They will end, or have, and their processes are still there."""


def group_replicas(replicas: Iterable[ObservedReplica], backend: Backend | None, now: float) -> ReplicaGroups:
    """`backend` has the present settings; None: it was deleted, and all are outdated."""
    template, fixed = ("", "") if backend is None else (template_of(backend), fixed_of(backend))
    current: list[ObservedReplica] = []
    outdated: list[ObservedReplica] = []
    ending: list[ObservedReplica] = []
    sick = 0
    for replica in replicas:
        is_new = backend is not None and runs_settings(replica, template, fixed)
        if not replica.gone and is_counted(replica, now) and _stays(replica):
            (current if is_new and not replica.is_unhealthy else outdated).append(replica)
            sick += is_new and replica.is_unhealthy
        elif replica.launched and not replica.reaped:
            ending.append(replica)
    return ReplicaGroups(current=tuple(current), outdated=tuple(outdated), sick=sick, ending=tuple(ending))


def runs_settings(replica: ObservedReplica, template: str, fixed: str) -> bool:
    """Whether it runs the settings with these digests, from its start or by a reconfiguration."""
    return replica.template == template or (replica.reconfigures and replica.fixed == fixed)


def _stays(replica: ObservedReplica) -> bool:
    if replica.is_told_to_drain or replica.is_given_up:
        return False
    return replica.state in {ReplicaState.STARTING, ReplicaState.READY}
