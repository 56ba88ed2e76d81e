"""Calls a balancer's hooks, where it has any: pairs of `routed` and `completed` or `abandoned`.

Invariants: every call and reservation that takes room and travels without an ordering key is placed once and ends once;
a call that is dispatched into a slot ends the pair that its reservation began. Costs one look where the balancer has no
hooks.
Owner: pure functions; `hooks` is the balancer where it has hooks, else None.
"""

from __future__ import annotations

from router_service.core.routing.balancers import Candidate, RoutingHooks
from router_service.core.runs import Sent
from router_service.core.slots.slot import Dispatch


def placed(hooks: RoutingHooks | None, replica: Candidate, count: int) -> None:
    """Calls, or a reservation, were placed at the replica."""
    if hooks is not None:
        hooks.routed(replica, count)


def answered(
    hooks: RoutingHooks | None, replica: Candidate, sent: Sent, count: int, now: float, *, is_used: bool = True
) -> None:
    """The replica has answered calls of the slice; not `is_used` where it reports that it has started none of them."""
    if hooks is not None and count and is_counted(sent):
        if is_used and not sent.run.reserves:
            hooks.completed(replica, count, now - sent.sent_at)
        else:
            hooks.abandoned(replica, count)


def abandoned(hooks: RoutingHooks | None, replica: Candidate, count: int) -> None:
    """What was placed came to nothing."""
    if count and hooks is not None:
        hooks.abandoned(replica, count)


def is_counted(sent: Sent) -> bool:
    """Whether the balancer's hooks are called for it."""
    return sent.run.partition is None and (sent.takes_room or isinstance(sent.run.slot, Dispatch))
