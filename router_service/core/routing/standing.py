"""How policies stand with the backends that there are: which can serve, and what may wait for them.

Purpose: thousands of endpoints have few different policies; what follows from one is found once for all of them.
Invariants: what a standing says holds until a backend changes, or can serve otherwise than before.
Owner: the topology makes them anew whenever that may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from router_service.core.queueing.admission import Account
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.backends import RoutedBackend
from router_service.core.routing.table import EndpointRoute
from router_service.core.routing.traffic import TrafficShares
from slotmesh.spec import model

_DEFAULTS: Final = model.Backend(name="")


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """Of one policy."""

    policy: TrafficShares
    """What was announced."""
    traffic: TrafficShares
    """What calls are divided by: the backends that can serve, or may soon."""
    is_unavailable: bool
    """No backend of the policy can serve, and no replica of them is on its way: calls fail immediately."""
    only: Account | None
    """That of the one backend that gets everything; None where there are several, or none."""
    max_calls: int
    """The widest limit of its backends, as are the next two; the defaults of a backend where there is none."""
    max_bytes: int
    max_queue_time_s: float


class PolicyStandings:
    """Of all policies, at one moment."""

    def __init__(self, backends: Mapping[str, RoutedBackend[RoutedReplica]], policies: Iterable[TrafficShares]) -> None:
        """`policies` are those that there are: equal ones are not made again."""
        self._backends = backends
        self._policies = {policy.key: policy for policy in policies}
        self._known: dict[TrafficShares, PolicyStanding] = {}

    def of_route(self, route: EndpointRoute) -> PolicyStanding:
        """That of an endpoint's policy."""
        key = TrafficShares.key_of(route.weights or {}, route.shadows)
        if (policy := self._policies.get(key)) is None:
            policy = self._policies[key] = TrafficShares(route.weights or {}, route.shadows)
        return self.of(policy)

    def of(self, policy: TrafficShares) -> PolicyStanding:
        """That of a policy."""
        if (standing := self._known.get(policy)) is None:
            standing = self._known[policy] = self._found(policy)
        return standing

    def _found(self, policy: TrafficShares) -> PolicyStanding:
        """Where no backend can serve, calls are divided among those that may soon.

        A backend of the policy that no table has named may be named by the next one.
        """
        backends, names = self._backends, policy.weights
        serving = [name for name in names if (each := backends.get(name)) is not None and each.is_serving]
        coming = serving or [name for name in names if (each := backends.get(name)) is None or each.is_coming]
        accounts = [backends[name].account for name in names if name in backends]
        only = backends.get(policy.only) if policy.only is not None else None
        return PolicyStanding(
            policy=policy,
            traffic=_among(policy, coming),
            is_unavailable=bool(names) and not coming,
            only=None if only is None else only.account,
            max_calls=max((one.max_calls for one in accounts), default=_DEFAULTS.max_queued_calls),
            max_bytes=max((one.max_bytes for one in accounts), default=_DEFAULTS.max_queued_bytes),
            max_queue_time_s=max((one.max_queue_time_s for one in accounts), default=_DEFAULTS.max_queue_time_s),
        )


def _among(policy: TrafficShares, names: Collection[str]) -> TrafficShares:
    weights = policy.weights
    if len(names) == len(weights):
        return policy
    return TrafficShares({name: weights[name] for name in names}, policy.shadows)
