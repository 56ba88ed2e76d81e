"""Why a waiting call has not started: too much load, or no replica that could take it.

Purpose: the failure of a call that ends while it waits names the cause and the remedy, as far as this router knows
them. Computed only when a call fails, or when an operator lists calls.
Owner: pure functions; `failures` makes messages of their results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from router_service.core.limits.admission import Account
from router_service.core.queueing.run_queues import constraint_of
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.endpoints import Partition, RoutedEndpoint
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun
from slotmesh.spec.model import Prospect

_NAMED = 4
"""Replicas and backends that a message names; it counts the others."""
_MORE = "start more replicas, raise max_ongoing, or allow more time"
_ABSENT = {
    Prospect.COMING: "its replicas are starting",
    Prospect.FAILING: "its replicas fail to start",
    Prospect.NONE: "none should run",
}
_STATUS = "`slotmesh status` shows its replicas, and why they are not ready"


@dataclass(frozen=True, slots=True)
class WaitingCause:
    """Why calls wait."""

    what: str
    way_out: str
    is_load: bool = False
    """Replicas take calls, and have too many."""

    @property
    def text(self) -> str:
        """For a person, as part of a sentence."""
        return f"{self.what}; {self.way_out}"


def why(run: RouterRun, topology: Topology) -> str:
    """Why the run waits; empty where it does not, or that is not known."""
    cause = _cause_of(run, run.account, topology) if run.waiting else None
    return cause.text if cause is not None else ""


def why_not_load(run: RouterRun, account: Account | None, topology: Topology) -> str:
    """The same, for a run that is or would be charged to this account, where it is another reason than the load."""
    cause = _cause_of(run, account, topology) if run.waiting else None
    return cause.text if cause is not None and not cause.is_load else ""


def why_unavailable(endpoint: RoutedEndpoint, topology: Topology) -> str:
    """Why no backend of the endpoint's policy can serve, and none is about to."""
    backends = [topology.backends[name] for name in sorted(endpoint.policy.weights) if name in topology.backends]
    causes = "; ".join(f"there is no ready replica of {each.name}{_absence(each)}" for each in backends[:_NAMED])
    more = f"; the same goes for {len(backends) - _NAMED} more" if len(backends) > _NAMED else ""
    return f"{causes}{more}; {_STATUS}"


def _absence(backend: RoutedBackend[RoutedReplica]) -> str:
    known = _ABSENT.get(backend.prospect)
    return f" ({known})" if known is not None else ""


def _cause_of(run: RouterRun, account: Account | None, topology: Topology) -> WaitingCause | None:
    endpoint = topology.endpoints.get(run.endpoint)
    if endpoint is None or account is None:
        return None
    if run.partition is not None:
        partition = endpoint.partitions.get(run.partition.number)
        return _of_partition(partition, endpoint, topology) if partition is not None else None
    backend = topology.backends.get(account.name)
    if backend is None or backend.account is not account:
        return _without_backend(endpoint)
    return _of_backend(run, backend)


def _of_backend(run: RouterRun, backend: RoutedBackend[RoutedReplica]) -> WaitingCause:
    replicas: Collection[RoutedReplica] = backend.replicas.values()
    whose = backend.name
    if (wish := constraint_of(run)) is not None:
        replicas = [each for each in replicas if wish.admits(each.replica_id)]
        whose += " that the reservation accepts"
    elif backend.candidates:
        if backend.queue.is_braked and any(each.free > 0 for each in replicas):
            return WaitingCause("clients of the router have too many results unread", "read results always")
        return WaitingCause(f"no replica of {whose} had room", _MORE, is_load=True)
    return _of_replicas(replicas, whose, _absence(backend))


def _of_replicas(replicas: Collection[RoutedReplica], whose: str, absence: str = "") -> WaitingCause:
    if not replicas:
        return WaitingCause(f"there is no ready replica of {whose}{absence}", _STATUS)
    if any(each.taking for each in replicas):
        return WaitingCause(f"no replica of {whose} had room", _MORE, is_load=True)
    staying = [each for each in replicas if not each.draining]
    if not staying:
        return WaitingCause(f"all replicas of {whose} drain ({_ids(replicas)}), and there is no ready one", _STATUS)
    unlinked = [each for each in staying if not each.linked]
    if not unlinked:
        return _joining(staying)
    return WaitingCause(
        f"the router has no connection to any replica of {whose} ({_ids(unlinked)})",
        "see whether they run, hang or are cut off (`slotmesh status`, their logs)",
    )


def _of_partition(partition: Partition, endpoint: RoutedEndpoint, topology: Topology) -> WaitingCause:
    """Calls of an ordering key run at its owner only."""
    owner = partition.owner
    if owner is None:
        return _without_owner(endpoint, topology)
    whose = f"replica {owner.replica_id}, which owns the call's ordering key,"
    if owner.draining:
        return WaitingCause(
            f"{whose} drains", "its keys move when their calls there have ended, to a replica that is ready"
        )
    if not owner.linked:
        return WaitingCause(
            f"the router has no connection to {whose} and no other one may run it",
            "see whether it runs, hangs or is cut off (`slotmesh status`, its log): its keys move when it has ended",
        )
    if owner.is_joining:
        return _joining([owner])
    if partition.stale:
        return WaitingCause(
            "calls at the replica that owned its ordering key before have not ended", "let them end, or cancel them"
        )
    if partition.epoch <= partition.refused_epoch:
        return WaitingCause(
            f"{whose} owns it no longer, and the router has not received another owner yet",
            "see whether the controller runs (`slotmesh status`): it names the next owner",
        )
    return WaitingCause(f"{whose} had no room", "spread calls over more keys, or allow more time", is_load=True)


def _without_owner(endpoint: RoutedEndpoint, topology: Topology) -> WaitingCause:
    backends = [topology.backends[name] for name in endpoint.policy.weights if name in topology.backends]
    if not backends:
        return _without_backend(endpoint)
    replicas = [replica for backend in backends for replica in backend.replicas.values()]
    if any(each.taking for each in replicas):
        return WaitingCause(
            "no replica owns the call's ordering key yet",
            "see whether the controller runs (`slotmesh status`): it gives each key an owner",
        )
    return _of_replicas(replicas, _some(backend.name for backend in backends))


def _without_backend(endpoint: RoutedEndpoint) -> WaitingCause:
    weights = endpoint.policy.weights
    if not weights:
        return WaitingCause(
            f"endpoint {endpoint.name} has no traffic policy", "say which backends get its calls (`slotmesh traffic`)"
        )
    return WaitingCause(
        f"the policy of endpoint {endpoint.name} names {_some(weights)}, which the router does not know",
        "see whether the controller runs, and has that backend (`slotmesh status`)",
    )


def _joining(replicas: Iterable[RoutedReplica]) -> WaitingCause:
    return WaitingCause(
        f"the only ready replicas ({_ids(replicas)}) are new, and clients of sessions do not all know them yet",
        "allow more time; clients send each roster back that the router names (docs/protocol.md)",
    )


def _ids(replicas: Iterable[RoutedReplica]) -> str:
    return _some(each.replica_id for each in replicas)


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more
