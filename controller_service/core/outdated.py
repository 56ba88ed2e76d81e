"""Replicas that run anything but the present settings of their backends, for people who wait for a change.

Owner: the servicer asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller_service.core.observed import ObservedReplica
from controller_service.core.rollouts.groups import runs_settings
from controller_service.core.templates import fixed_of, template_of
from slotmesh.spec.model import Backend


def outdated_among(backends: Mapping[str, Backend]) -> Callable[[ObservedReplica], bool]:
    """Whether the launched process of a replica runs anything but the present settings of its backend."""
    digests: dict[str, tuple[str, str]] = {}

    def is_outdated(replica: ObservedReplica) -> bool:
        name = replica.backend
        if not replica.template or replica.gone or (backend := backends.get(name)) is None:
            return False
        if name not in digests:
            digests[name] = template_of(backend), fixed_of(backend)
        return not runs_settings(replica, *digests[name])

    return is_outdated
