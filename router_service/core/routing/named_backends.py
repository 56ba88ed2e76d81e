"""Calls that name the backend which must execute them: whether it may.

Invariants: only backends of the endpoint's policy can be named, those of weight 0 included. Sequences go to the owner
of their partition, whichever backend that is of: a call with an ordering key may name a backend only where there is no
other.
Owner: pure functions of the intake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router_service.core.failures import UNAVAILABLE_DELAY_S, listed
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.backends import RoutedBackend
from router_service.core.routing.endpoints import RoutedEndpoint
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason


def named_mistake(
    run: RouterRun, endpoint: RoutedEndpoint, backends: Mapping[str, RoutedBackend[RoutedReplica]]
) -> Failure | None:
    """Why the backend that the run names cannot have it; None where it can."""
    name = run.options.backend
    known = endpoint.route.weights or {}
    if name not in known:
        return no_version(endpoint.name, name, known)
    if run.options.partition >= 0 and endpoint.policy.only != name:
        return sequence_elsewhere(endpoint.name, name)
    backend = backends.get(name)
    if backend is not None and not (backend.is_serving or backend.is_coming):
        return version_unavailable(endpoint.name, name)
    return None


def no_version(endpoint: str, backend: str, known: Iterable[str]) -> Failure:
    """The endpoint's policy does not name the backend that the call names."""
    return Failure(
        reason=Reason.BACKEND_NOT_FOUND,
        message=f"no backend of {endpoint} is named {backend!r}; there is: {listed(known)}",
        metadata={"endpoint": endpoint, "backend": backend},
    )


def sequence_elsewhere(endpoint: str, backend: str) -> Failure:
    """A call with an ordering key names one of several backends."""
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"model_version: calls of a sequence go to the backend that owns it, and {endpoint} has other backends "
        f"than {backend}: leave the version empty",
        metadata={"field": "model_version"},
    )


def version_unavailable(endpoint: str, backend: str) -> Failure:
    """The backend that the call names has no replica, and none is on its way."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"no replica of {backend} serves {endpoint}, and none is on its way: `slotmesh status` shows why",
        retry_delay_s=UNAVAILABLE_DELAY_S,
        metadata={"endpoint": endpoint, "backend": backend},
    )
