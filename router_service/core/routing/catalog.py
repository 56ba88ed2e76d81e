"""What can be called: endpoints with their methods, and endpoints as models with versions (Open Inference Protocol).

A backend of an endpoint's policy is a version of the model. This module only reads the state of the router.
Invariants: a response reflects the newest table and the reports of connected replicas. It names a bounded number of
methods and versions, however many endpoints there are.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from router_service.core import failures
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import RoutedEndpoint, no_version
from router_service.core.routing.topology import Topology
from router_service.core.routing_table import EndpointRoute
from slotmesh.calls.method_outlines import MAX_LISTED_CHARS, MethodOutline, MethodTensors, fitting
from slotmesh.errors import Failure
from slotmesh.oip.calls import method_of_inference
from slotmesh.spec.model import Prospect

MAX_NAMES: Final = 10_000
"""Names of methods in one answer; those of endpoints after them are left out."""


def callable_methods(topology: Topology, endpoint: str = "") -> Iterator[tuple[str, list[str]]]:
    """The methods of each endpoint, by name; only of `endpoint` where it is not empty."""
    of_backends: dict[str, frozenset[str]] = {}
    left = MAX_NAMES
    endpoints = topology.table.endpoints
    for name in sorted(endpoints) if not endpoint else [endpoint] if endpoint in endpoints else []:
        found = frozenset[str]()
        for backend in endpoints[name].weights or ():
            if backend not in of_backends:
                of_backends[backend] = _methods_of(topology, backend)
            found |= of_backends[backend]
        names = sorted(found)[:left]
        left -= len(names)
        yield name, names


def reported_outlines(topology: Topology, endpoints: Iterable[str]) -> Iterator[tuple[str, tuple[MethodOutline, ...]]]:
    """Arguments and results of the methods of each endpoint, by endpoint: as the first backend reports them."""
    left = MAX_LISTED_CHARS
    for name in endpoints:
        found: dict[str, MethodOutline] = {}
        for backend in topology.table.endpoints[name].weights or ():
            known = topology.backends.get(backend)
            for replica in known.replicas.values() if known is not None else ():
                if replica.linked:
                    found = {it.method: it for it in replica.outlines} | found
        outlines = fitting((found[each] for each in sorted(found)), left)
        left -= sum(it.size for it in outlines)
        yield name, outlines


def _methods_of(topology: Topology, backend: str) -> frozenset[str]:
    """All methods that its replicas reported: they may differ during a rollout."""
    known = topology.backends.get(backend)
    reported = (
        {replica.methods for replica in known.replicas.values() if replica.linked} if known is not None else set()
    )
    return frozenset[str]().union(*reported)


MAX_MODELS: Final = 10_000
"""Maximum number of versions in a response."""


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
    """The endpoint, which has this version. `shown`: the endpoints that the caller may see; None: all."""
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
    """The method that an inference calls if it names none: `infer`, else the only one, else `__call__`.

    It is `infer` if no replica has reported any methods.
    """
    reported = frozenset[str]().union(*(each.methods for each in _samples(topology, endpoint, version)))
    return method_of_inference(endpoint.name, reported)


def tensors_of_method(
    topology: Topology, endpoint: RoutedEndpoint, method: str, version: str = ""
) -> MethodTensors | None:
    """Tensors of the method, by the first backend whose replica reported them; None if none has."""
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
