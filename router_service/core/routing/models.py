"""Endpoints as models, and backends of their policies as versions: what the Open Inference Protocol tells of them.

Purpose: which method an inference calls, what it takes and gives, what is ready. It only reads.
Invariants: an answer is about the newest table, and about what replicas that are linked have told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from router_service.core import failures
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import RoutedEndpoint
from router_service.core.routing.named_backends import no_version
from router_service.core.routing.table import EndpointRoute
from router_service.core.routing.topology import Topology
from slotmesh.errors import Failure
from slotmesh.oip.methods import method_of_inference
from slotmesh.oip.signatures import MethodTensors
from slotmesh.spec.prospect import Prospect

MAX_MODELS: Final = 10_000
"""Versions that one answer tells of."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of a model."""

    endpoint: str
    backend: str
    """Empty where the endpoint has no policy."""
    state: str
    """`READY`, `LOADING` or `UNAVAILABLE`."""
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls."""
        return self.state == "READY"


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Calls of one endpoint at one backend, and times of the backend, in nanoseconds."""

    endpoint: str
    backend: str
    succeeded: int
    success_ns: int
    failed: int
    queued: int
    queue_ns: int
    computed: int
    compute_ns: int


def versions_of(route: EndpointRoute) -> list[str]:
    """The backends of an endpoint's policy, those of weight 0 included."""
    return sorted(route.weights or ())


def model_of(topology: Topology, name: str, version: str, shown: frozenset[str] | None) -> RoutedEndpoint | Failure:
    """The endpoint, which has this version. `shown`: the endpoints that the caller may know of; None: all."""
    endpoint = topology.endpoint(name) if shown is None or name in shown else None
    if endpoint is None:
        return failures.no_endpoint(name, topology.table.endpoints, shown)
    if version and version not in (endpoint.route.weights or {}):
        return no_version(name, version, endpoint.route.weights or {})
    return endpoint


def states_of(topology: Topology, shown: frozenset[str] | None = None, only: str = "") -> Iterator[ModelState]:
    """Each version of each endpoint, or of one, in order; no more than `MAX_MODELS`."""
    left = MAX_MODELS
    endpoints = topology.table.endpoints
    for name in sorted(endpoints) if not only else [only]:
        if (shown is not None and name not in shown) or (route := endpoints.get(name)) is None:
            continue
        for version in versions_of(route) or [""]:
            if not left:
                return
            left -= 1
            yield state_of(topology, name, version)


def state_of(topology: Topology, name: str, version: str) -> ModelState:
    """One version; empty: that of an endpoint without a policy."""
    if not version:
        return ModelState(name, "", "UNAVAILABLE", "the endpoint has no traffic policy")
    backend = topology.backends.get(version)
    if backend is not None and backend.candidates:
        return ModelState(name, version, "READY")
    if backend is None or backend.prospect is Prospect.UNKNOWN or backend.prospect is Prospect.COMING:
        return ModelState(name, version, "LOADING", "no replica takes calls yet")
    return ModelState(name, version, "UNAVAILABLE", "no replica takes calls, and none is on its way")


def inference_method(topology: Topology, endpoint: RoutedEndpoint, version: str = "") -> str | Failure:
    """The method that an inference calls where it names none: `infer`, or the only one that there is.

    Where no replica has told any, it is `infer`.
    """
    told = frozenset[str]().union(*(each.methods for each in _samples(topology, endpoint, version)))
    return method_of_inference(endpoint.name, told)


def tensors_of_method(
    topology: Topology, endpoint: RoutedEndpoint, method: str, version: str = ""
) -> MethodTensors | None:
    """What the method takes and gives, by the first backend whose replica has told it; None where none has."""
    for replica in _samples(topology, endpoint, version):
        if (found := replica.tensors.get(method)) is not None:
            return found
    return None


def figures_of(topology: Topology, state: ModelState) -> ModelFigures | None:
    """What was counted of one version since the router's start; None of an endpoint without a policy."""
    backend = topology.backends.get(state.backend)
    if backend is None:
        return None
    counts = backend.counts
    ended = counts.ended.by_endpoint.get(state.endpoint)
    queue, replica = counts.queue_time, counts.replica_time
    return ModelFigures(
        state.endpoint,
        state.backend,
        succeeded=sum(ended.times.counts) if ended is not None else 0,
        success_ns=_ns(ended.times.total) if ended is not None else 0,
        failed=ended.failed + ended.unanswered + ended.refused if ended is not None else 0,
        queued=sum(queue.counts),
        queue_ns=_ns(queue.total),
        computed=sum(replica.counts),
        compute_ns=_ns(replica.total),
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _samples(topology: Topology, endpoint: RoutedEndpoint, version: str) -> Iterator[RoutedReplica]:
    """A replica of each backend that is linked: it stands for the others, so that a request costs no look at these."""
    for name in [version] if version else versions_of(endpoint.route):
        backend = topology.backends.get(name)
        if backend is not None and (found := next((it for it in backend.replicas.values() if it.linked), None)):
            yield found
