"""Balancers choose the replica of the next unkeyed calls: one policy per file, a non-blocking method over the loads.

Each balancer registers itself under its name in `slotmesh/spec/model.py`; importing this package imports all of its
modules. `placed`, `answered` and `abandoned` call the hooks of a balancer, if it has any, as pairs of `routed` and
`completed` or `abandoned`; `hooks` is None without.
Invariants: each name has one balancer. A backend that names none has the model's default. Every call and reservation
that takes room and has no ordering key is placed once and ends once; a call that is dispatched into a slot ends the
pair that its reservation began.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar, runtime_checkable

from router_service.core.calls import Dispatch
from router_service.core.limits.capacity import KnownReplica
from router_service.core.runs import Sent
from router_service.core.sampling import Chance
from slotmesh.spec.model import BalancerName


def placed(hooks: RoutingHooks | None, replica: KnownReplica, count: int) -> None:
    """Calls, or a reservation, were placed at the replica."""
    if hooks is not None:
        hooks.routed(replica, count)


def answered(
    hooks: RoutingHooks | None, replica: KnownReplica, sent: Sent, count: int, now: float, *, is_used: bool = True
) -> None:
    """The replica has answered calls of the slice; not `is_used` where it reports that it has started none of them."""
    if hooks is not None and count and is_counted(sent):
        if is_used and not sent.run.reserves:
            hooks.completed(replica, count, now - sent.sent_at)
        else:
            hooks.abandoned(replica, count)


def abandoned(hooks: RoutingHooks | None, replica: KnownReplica, count: int) -> None:
    """What was placed came to nothing."""
    if count and hooks is not None:
        hooks.abandoned(replica, count)


def is_counted(sent: Sent) -> bool:
    """Whether the balancer's hooks are called for it."""
    return sent.run.partition is None and (sent.takes_room or isinstance(sent.run.slot, Dispatch))


CandidateT = TypeVar("CandidateT", bound=KnownReplica)


class Balancer(Protocol[CandidateT]):
    """Picks among the replicas of one backend; looks at no more than a few of them, and changes none."""

    def changed(self, replica: CandidateT) -> None:
        """The replica's load, capacity or link changed; it may be new, or have left (`free` is 0)."""

    def pick(self) -> CandidateT | None:
        """The replica for the next calls: one with `free > 0`, or None. Changes nothing but the order of turns."""


@runtime_checkable
class RoutingHooks(Protocol):
    """A balancer with hooks for the end of what was placed. Each `routed` is followed by one of the others, later.

    The hooks are for calls and reservations without an ordering key. A new balancer also gets the ends of what the one
    before it placed.
    """

    def routed(self, replica: KnownReplica, count: int) -> None:
        """`count` calls, or a reservation, were placed at the replica."""

    def completed(self, replica: KnownReplica, count: int, latency_s: float) -> None:
        """It has answered calls, `latency_s` after they were placed, or dispatched into their slot."""

    def abandoned(self, replica: KnownReplica, count: int) -> None:
        """Refused, cancelled or lost: they may never have run. Or a slot that was released, or whose lease is over."""


MakeBalancer = Callable[[Chance], Balancer[Any]]
MakeT = TypeVar("MakeT", bound=MakeBalancer)
_MAKERS: dict[BalancerName, MakeBalancer] = {}


def register(name: BalancerName) -> Callable[[MakeT], MakeT]:
    """Makes a class, whose constructor takes where its chance comes from, the balancer of this name."""

    def registered(make: MakeT) -> MakeT:
        if name in _MAKERS:
            raise ValueError(f"{name.name} has a balancer already: {_MAKERS[name]!r}")
        _MAKERS[name] = make
        return make

    return registered


def new_balancer(name: BalancerName, chance: Chance) -> Balancer[Any]:
    """A balancer that knows no replica yet."""
    return _MAKERS[name](chance)


for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
