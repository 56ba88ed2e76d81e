"""The links of one router: to all replicas, or to its subset and to what its calls need beside it.

Purpose: with more replicas than `size`, a router links to a subset (`subsets`), its *members*, and gives unkeyed calls
to no others. Owners of ordering keys, replicas of affinity keys, replicas with slots, earlier owners, replicas that are
queried about a session, and suspects are linked when they are needed, and unlinked once they are not. Only those of
affinity keys get unkeyed calls.
Invariants: each backend has `LEAST_LINKS` usable members, or all usable replicas if they are fewer: the subset is
widened while its members are lost, drain or are suspect. A replica stays a member for a while after it has left the
subset, until others are linked. A link closes only if the replica owes this router nothing and no session waits for its
answer. At most `MAX_EXTRA` links are beside the members; what needs a further one waits. A link that was closed by this
router proves nothing about its replica.
Owner: the topology.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from router_service.core.commands import CloseLink, OpenLink, Step
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.subsets import LEAST_LINKS, copies_of, divided, place_of
from router_service.core.routing_table import RoutingTable

LinkedBackend = RoutedBackend[RoutedReplica]

IDLE_S: Final = 60.0
"""A link beside the members closes after this time without use: as long as replicas keep outcomes for clients."""
LINGER_S: Final = 5.0
"""Replicas that have left the subset take unkeyed calls for this time: others are linked meanwhile."""
WIDENED_S: Final = 30.0
"""Replicas that were added to the subset leave it after this time, unless they are still needed."""
POLL_S: Final = 0.25
"""Interval of attempts to find an unused link among `MAX_EXTRA`."""
MAX_EXTRA: Final = 1_024
MAX_UNREACHED: Final = 16
"""Replicas of a backend that were added to the subset and cannot be reached: then the router is cut off, and adds no
more."""
MAX_WATCHED: Final = 64
"""Replicas without contact to the controller to which each router links, so that it can report whether they live."""


class SubsetLinks:
    """Decides which links are open, and which replicas take unkeyed calls of this router."""

    def __init__(self, size: int) -> None:
        """`size`: links to members, of all backends together; 0: to all replicas."""
        self.own_address = ""
        """As tables list it."""
        self.is_partial = False
        """The newest table has more replicas than this router links to. To be read."""
        self._size = size
        self._shares: dict[str, tuple[tuple[Collection[str], int, frozenset[str]], set[str]]] = {}
        """By backend, what its subset was computed from, and the ids of the subset's replicas."""
        self._leaving: dict[RoutedReplica, float] = {}
        """Members that are not in the subset, and until when."""
        self._extra: dict[RoutedReplica, tuple[float, int]] = {}
        """Links beside the members: when it may close, and the next run id at that time. In the order of times."""
        self._watched: set[RoutedReplica] = set()
        """Those of the newest table that stay linked, so that it can be reported whether they can be reached."""
        self._waiting: dict[RoutedReplica, None] = {}
        """Needed links for which there is no room."""
        self._queries: dict[RoutedReplica, None] = {}
        """The same, of replicas that are queried about sessions: after the others, as there may be thousands."""
        self.joined: Callable[[RoutedReplica, Step], None] = lambda _replica, _step: None
        """Called with each replica that takes unkeyed calls from now on, once its link is established."""
        self.awaited_owners: Callable[[], Collection[RoutedReplica]] = tuple
        """Returns the replicas that own partitions with waiting calls."""
        self.timed: Final = ChainMap[RoutedReplica, Any](self._leaving, self._extra, self._waiting, self._queries)
        """Empty if there is no next deadline."""
        self._full_until = 0.0
        """No link beside the members can be closed before, monotonic seconds."""

    # -- tables ----------------------------------------------------------------------------------------------------

    def follow(self, table: RoutingTable, backends: Mapping[str, LinkedBackend], step: Step) -> None:
        """Opens the links that the table calls for; members that leave the subset stay for a while."""
        routers = {*table.router_addresses, self.own_address} if self._size else {""}
        live = {name: [it for it in each.replicas.values() if not it.draining] for name, each in backends.items()}
        copies = copies_of(len(routers), {name: len(each) for name, each in live.items()}, self._size)
        self.is_partial = any(copies[name] < len(routers) for name in live)
        for name, backend in backends.items():
            if copies[name] >= len(routers):
                self._shares.pop(name, None)
                for replica in backend.replicas.values():
                    self._join(replica, step)
                continue
            self._follow_subset(backend, live[name], routers, copies[name], step)
        for name in self._shares.keys() - backends.keys():
            del self._shares[name]
        self._watched = set(_watched(backends.values())) if self.is_partial else set()
        for replica in sorted(self._watched, key=lambda each: each.key):
            self.need(replica, step)

    def _follow_subset(
        self, backend: LinkedBackend, live: Collection[RoutedReplica], routers: Collection[str], copies: int, step: Step
    ) -> None:
        basis = routers, copies, frozenset(each.replica_id for each in live)
        known = self._shares.get(backend.name)
        if known is None or known[0] != basis:
            known = basis, divided(routers, basis[2], copies)[self.own_address]
            self._shares[backend.name] = known
        share = known[1]
        for replica in backend.replicas.values():
            if replica.replica_id in share:
                self._join(replica, step)
            elif not replica.has_link:
                replica.is_member = False
            elif replica.is_member and not replica.draining:
                self._leaving.setdefault(replica, step.now + LINGER_S)
        self.widen(backend, step)

    def unlisted(self, replica: RoutedReplica) -> None:
        """The table no longer names the replica: its link stays until it owes nothing."""
        self._leaving.pop(replica, None)
        self._take_out(replica)

    def retire(self, replica: RoutedReplica, step: Step) -> None:
        """Nothing is open there any more."""
        replica.linked = False
        if replica.has_link:
            replica.has_link = False
            step.commands.append(CloseLink(replica))

    # -- members ---------------------------------------------------------------------------------------------------

    def widen(
        self,
        backend: LinkedBackend,
        step: Step,
        admits: Callable[[RoutedReplica], bool] = lambda _: True,
        least: int | None = None,
    ) -> None:
        """Adds members until `least` (`LEAST_LINKS`) of those that are admitted can be used, or all that there are."""
        if backend.name not in self._shares:
            return
        least = LEAST_LINKS if least is None else least
        usable = sum(1 for it in backend.replicas.values() if it.is_member and admits(it) and _is_usable(it))
        unreached = sum(it.backend is backend and it.has_failed for it in self._leaving)
        if usable >= least or unreached >= MAX_UNREACHED:
            return
        others = [it for it in backend.replicas.values() if not it.is_member and admits(it) and _is_usable(it)]
        for replica in nsmallest(least - usable, others, key=self._rank):
            self._join(replica, step)
            self._leaving[replica] = step.now + WIDENED_S

    def _rank(self, replica: RoutedReplica) -> int:
        """Each router adds others."""
        return place_of(f"{self.own_address} {replica.replica_id}")

    def _join(self, replica: RoutedReplica, step: Step) -> None:
        self._leaving.pop(replica, None)
        self._take_out(replica)
        self._open(replica, step)
        if not replica.is_member:
            backend, replica.is_member = replica.backend, True
            backend.changed(replica)
            step.has_flipped = step.has_flipped or backend.is_serving is not backend.can_serve
            step.then(partial(self.joined, replica))

    def _take_out(self, replica: RoutedReplica) -> None:
        for each in (self._extra, self._waiting, self._queries):
            each.pop(replica, None)

    @staticmethod
    def _leave(replica: RoutedReplica) -> None:
        replica.is_member = False
        replica.backend.changed(replica)

    # -- needed links ----------------------------------------------------------------------------------------------

    def need(self, replica: RoutedReplica, step: Step, *, is_query: bool = False) -> None:
        """Something can be done at this replica only: opens a link if there is none."""
        if replica.has_link or not replica.listed:
            return
        if len(self._extra) < MAX_EXTRA or self._close_unused(step):
            if not replica.has_link:  # it may have become a member in place of one that was closed
                self._add(replica, step)
        elif is_query:
            self._queries[replica] = None
        else:
            self._waiting[replica] = None

    def wish(self, replica: RoutedReplica, step: Step) -> None:
        """Calls would rather go to this replica than to others: opens a link if there is none, and room for it.

        Half of the room is for what can be done at one replica only.
        """
        if not replica.has_link and replica.listed and len(self._extra) < MAX_EXTRA // 2:
            self._add(replica, step)

    def _add(self, replica: RoutedReplica, step: Step) -> None:
        self._extra[replica] = step.now + IDLE_S, replica.inflight.next_id
        self._open(replica, step)

    def _close_unused(self, step: Step) -> bool:
        """Closes the link beside the members that was unused for longest; returns whether one was closed.

        If all are used, those that cannot be established, and that no call waits for.
        """
        if step.now < self._full_until:
            return False
        idle = (each for each in self._extra if each not in self._watched and not is_busy(each))
        if (unused := next((each for each in idle if each.linked), None)) is not None:
            self._close(unused, step)
            return True
        failed = [each for each in self._extra if each.has_failed and each not in self._watched and not is_busy(each)]
        needed = self.awaited_owners() if failed else ()
        if not (failed := [each for each in failed if each not in needed]):
            self._full_until = step.now + POLL_S
            return False
        for replica in failed:
            self._close(replica, step)
        for backend in dict.fromkeys(each.backend for each in failed):
            self.widen(backend, step)  # they are replicas that were not tried, from now on
        return True

    def _open(self, replica: RoutedReplica, step: Step) -> None:
        if not replica.has_link:
            replica.has_link, replica.has_failed = True, False
            step.commands.append(OpenLink(replica))

    def _close(self, replica: RoutedReplica, step: Step) -> None:
        del self._extra[replica]
        backend = replica.backend
        if replica.linked:
            replica.lose()
        replica.has_link = replica.has_failed = False
        backend.ejections.forget(replica.key)
        backend.await_replica(replica, is_awaited=False)
        backend.changed(replica)
        step.commands.append(CloseLink(replica))

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `expire` has something to do, monotonic seconds; None if it has not."""
        dues = [min(self._leaving.values())] if self._leaving else []
        if self._extra:
            dues.append(next(iter(self._extra.values()))[0])
        if self._waiting or self._queries:
            dues.append(self._full_until)
        return min(dues, default=None)

    def expire(self, step: Step) -> None:
        """Ends memberships and links that are over."""
        fewer: dict[LinkedBackend, None] = {}
        """Backends that may need other members. Each is looked at once: it may have thousands of replicas."""
        for replica in [each for each, until in self._leaving.items() if until <= step.now]:
            backend = replica.backend
            if replica.taking and backend.candidates <= LEAST_LINKS:
                self._leaving[replica] = step.now + LINGER_S
                continue
            del self._leaving[replica]
            self._leave(replica)
            self._extra[replica] = step.now + IDLE_S, replica.inflight.next_id
            fewer[backend] = None
        due: list[RoutedReplica] = []
        for replica, (until, _) in self._extra.items():
            if until > step.now:
                break
            due.append(replica)
        needed = self.awaited_owners() if due else ()
        for replica in due:
            is_used = replica.inflight.next_id != self._extra[replica][1] or is_busy(replica)
            if is_used or replica in needed or replica in self._watched:
                del self._extra[replica]
                self._extra[replica] = step.now + IDLE_S, replica.inflight.next_id
            else:
                if replica.has_failed:
                    fewer[replica.backend] = None  # from now on it is one that was not tried
                self._close(replica, step)
        for backend in fewer:
            self.widen(backend, step)
            step.has_flipped = step.has_flipped or backend.is_serving is not backend.can_serve
        for waiting in (self._waiting, self._queries):
            self._serve(waiting, step)

    def _serve(self, waiting: dict[RoutedReplica, None], step: Step) -> None:
        while waiting and (len(self._extra) < MAX_EXTRA or self._close_unused(step)):
            if (replica := next(iter(waiting), None)) is None:
                return  # it has become a member
            del waiting[replica]
            if waiting is self._waiting or replica.link_users:
                self._add(replica, step)


def unlinked(replicas: Iterable[RoutedReplica]) -> list[RoutedReplica]:
    """Replicas to which there should be a link, and that have none that works."""
    return [each for each in replicas if each.has_link and not each.linked]


def _watched(backends: Collection[LinkedBackend]) -> list[RoutedReplica]:
    """Replicas without contact to the controller, and those whose id another incarnation has, too.

    These go first, as keys may wait for the proof that one has ended. It takes the reports of all routers: each watches
    the same ones.
    """
    ids = Counter(each.replica_id for backend in backends for each in backend.replicas.values())
    found = {each for backend in backends for each in backend.suspects}
    if ids.total() > len(ids):
        found |= {each for backend in backends for each in backend.replicas.values() if ids[each.replica_id] > 1}
    return nsmallest(MAX_WATCHED, found, key=lambda each: (ids[each.replica_id] < 2, each.key))


def _is_usable(replica: RoutedReplica) -> bool:
    return not (replica.draining or replica.has_failed or replica in replica.backend.suspects)


def is_busy(replica: RoutedReplica) -> bool:
    """Whether it owes this router something, or its link is needed for what may follow."""
    return bool(replica.inflight or replica.outbox or replica.ops or replica.link_users)
