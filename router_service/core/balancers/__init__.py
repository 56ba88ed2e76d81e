"""Balancers choose the replica of the next unkeyed calls: one policy per file, a non-blocking method over the loads.

All have the interface of `slotmesh.balancers`. Those of this package get the router's own replicas as candidates, and
follow each change of them: for a pick they look at no more than a few. Each registers itself under its name; importing
this package imports all of its modules. `router_service.core.plugged_balancers` calls balancers of users' own.
`placed`, `answered` and `abandoned` call the hooks of a balancer as pairs of `sent` and `ended`; `hooks` is None if it
has none.
Invariants: each name has one balancer. Every call and reservation that takes room and has no ordering key is placed
once and ends once; a call that is dispatched into a slot ends the pair that its reservation began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar

from router_service.core.calls import Dispatch
from router_service.core.limits.capacity import KnownReplica
from router_service.core.runs import Sent
from router_service.core.sampling import Chance
from slotmesh.balancers import Balancer, CallEnd, Calls, FollowsCalls, FollowsReplicas
from slotmesh.spec.model import BUILT_IN_BALANCERS

CallHooks = FollowsCalls[KnownReplica]
CandidateT = TypeVar("CandidateT", bound=KnownReplica)


def placed(hooks: CallHooks | None, replica: KnownReplica, count: int) -> None:
    """Calls, or a reservation, were placed at the replica."""
    if hooks is not None:
        hooks.sent(replica, count)


def answered(
    hooks: CallHooks | None, replica: KnownReplica, sent: Sent, count: int, now: float, end: CallEnd = CallEnd.WELL
) -> None:
    """The replica has answered calls of the slice; UNUSED if it reports that it has started none of them."""
    if hooks is not None and count and is_counted(sent):
        if end is CallEnd.UNUSED or sent.run.reserves:
            hooks.ended(replica, count, CallEnd.UNUSED, 0.0)
        else:
            hooks.ended(replica, count, end, now - sent.sent_at)


def abandoned(hooks: CallHooks | None, replica: KnownReplica, count: int) -> None:
    """What was placed came to nothing."""
    if count and hooks is not None:
        hooks.ended(replica, count, CallEnd.UNUSED, 0.0)


def is_counted(sent: Sent) -> bool:
    """Whether the balancer's hooks are called for it."""
    return sent.run.partition is None and (sent.takes_room or isinstance(sent.run.slot, Dispatch))


class OwnBalancer(Balancer[CandidateT], FollowsReplicas[CandidateT], Protocol[CandidateT]):
    """A balancer of the router: it changes no replica, and needs no candidates."""

    def pick(self, calls: Calls, candidates: Sequence[CandidateT], /) -> CandidateT | None:
        """One with `free > 0`; None if there is none."""


MakeBalancer = Callable[[Chance], OwnBalancer[Any]]
MakeT = TypeVar("MakeT", bound=MakeBalancer)
_MAKERS: dict[str, MakeBalancer] = {}


def register(name: str) -> Callable[[MakeT], MakeT]:
    """Makes a class, whose constructor takes where its chance comes from, the balancer of this name."""
    if name not in BUILT_IN_BALANCERS or name in _MAKERS:
        raise ValueError(f"{name} is none of {', '.join(BUILT_IN_BALANCERS)}, or has a balancer already")

    def registered(make: MakeT) -> MakeT:
        _MAKERS[name] = make
        return make

    return registered


def new_balancer(name: str, chance: Chance) -> OwnBalancer[Any]:
    """A balancer of the router that knows no replica yet."""
    return _MAKERS[name](chance)


for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
