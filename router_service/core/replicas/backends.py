"""One backend as the router sees it: its replicas, queue and balancer, and its retries.

Retries: when a replica that failed is tried again, and how many lost calls may be executed again.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from router_service.core.balancers import CallHooks, OwnBalancer, new_balancer
from router_service.core.balancers.near_first import NearFirst
from router_service.core.counters import BackendCounts, PickCounts
from router_service.core.limits.admission import Account
from router_service.core.limits.capacity import KnownReplica, joins
from router_service.core.limits.estimates import RecentCount
from router_service.core.plugged_balancers import NO_PLUG_INS, PluggedBalancer, PlugIns
from router_service.core.preferences import Preferences
from router_service.core.preferences.delays import Delays
from router_service.core.preferences.prefixes import MAX_BLOCKS, Prompts
from router_service.core.queueing.backend_queues import DueQueue, FairQueue
from router_service.core.queueing.run_queues import ConstrainedReservations
from router_service.core.rosters import ReplicaKey
from router_service.core.routing_table import BackendRoute
from router_service.core.runs import RouterRun
from router_service.core.sampling import Chance
from slotmesh.balancers import ANY_CALLS
from slotmesh.spec.model import BUILT_IN_BALANCERS, Affinity, Prospect, SloScope

FIRST_S = 0.1
LONGEST_S = 3.0
"""Keyed calls wait for their owner: longer would be felt when it is back."""
HEALTHY_S = 10.0


class _Record:
    __slots__ = ("strikes", "up_since")

    def __init__(self) -> None:
        self.strikes = 0
        self.up_since: float | None = None


class Ejections:
    """The ejected replicas of one backend, and when each is tried again after its link failed.

    Purpose: a replica that keeps failing is tried less and less often, while enough replicas are left for the load.
    Invariants: intervals double from `FIRST_S` to `LONGEST_S`, jittered, until a link has held for `HEALTHY_S`. While
    more than half of a backend's replicas are out, they are tried at the first interval.
    """

    __slots__ = ("_records", "out")

    def __init__(self) -> None:
        self._records: dict[ReplicaKey, _Record] = {}
        self.out = 0
        """Replicas that are out now."""

    def failed(self, replica: ReplicaKey, replicas: int, now: float, chance: float) -> float:
        """The replica could not be reached, or its link broke; it is one of `replicas`.

        Returns seconds until it may be tried again. `chance` is uniform in [0, 1).
        """
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _Record()
        if record.up_since is not None and now - record.up_since >= HEALTHY_S:
            record.strikes = 0
        if record.up_since is not None or not record.strikes:
            self.out += 1
        record.up_since = None
        record.strikes += 1
        ceiling_s = min(LONGEST_S, FIRST_S * 2.0 ** min(record.strikes - 1, 16))
        if 2 * self.out > replicas:
            ceiling_s = FIRST_S
        return ceiling_s * (0.5 + 0.5 * chance)

    def came_back(self, replica: ReplicaKey, now: float) -> None:
        """The replica's link is up."""
        record = self._records.get(replica)
        if record is not None and record.up_since is None:
            record.up_since = now
            self.out -= 1

    def forget(self, replica: ReplicaKey) -> None:
        """The replica left the backend."""
        record = self._records.pop(replica, None)
        if record is not None and record.up_since is None:
            self.out -= 1


SHARE = 0.2
FLOOR = 3
WINDOW_S = 10.0


class RetryBudget:
    """How many calls may be executed again.

    Purpose: a lost `idempotent` call is sent again, but a backend that keeps failing does not get more load for it.
    Invariants: within `WINDOW_S`, decaying, there are at most `SHARE` retries per successful call, but `FLOOR` retries
    are always allowed. Calls that were never sent, or were handed back untouched, do not count as retries.
    """

    __slots__ = ("_calls", "_retries")

    def __init__(self) -> None:
        self._calls = RecentCount(WINDOW_S)
        self._retries = RecentCount(WINDOW_S)

    def answered(self, count: int, now: float) -> None:
        """Calls ended well."""
        self._calls.add(count, now)

    def take(self, count: int, now: float) -> int:
        """Takes up to `count` retries out of the budget; returns how many there were."""
        # Rounded, because 15.000000001 are 15.
        allowed = round(max(FLOOR, SHARE * self._calls.value(now)) - self._retries.value(now), 6)
        granted = min(count, max(0, int(allowed)))
        self._retries.add(granted, now)
        return granted


MemberT = TypeVar("MemberT", bound=KnownReplica)


class RoutedBackend(Generic[MemberT]):
    """Mutable state of one backend. Compared by identity."""

    __slots__ = (
        "_chance",
        "_plug_ins",
        "_slo_scope",
        "account",
        "awaited",
        "balancer",
        "balancer_name",
        "candidates",
        "constrained",
        "counts",
        "delays",
        "ejections",
        "filling",
        "has_plug_in",
        "hooks",
        "is_serving",
        "max_wire_batch_size",
        "name",
        "near",
        "preferences",
        "prompts",
        "prospect",
        "queue",
        "replicas",
        "retries",
        "suspects",
        "zone",
    )

    def __init__(
        self,
        route: BackendRoute,
        counts: BackendCounts,
        chance: Chance,
        prefix_blocks: int = MAX_BLOCKS,
        plug_ins: PlugIns = NO_PLUG_INS,
        zone: str = "",
    ) -> None:
        """`prefix_blocks`: of prompts that are known at most. `zone`: that of the router."""
        self.name = route.name
        self.counts = counts
        settings = route.settings
        self.account = Account(route.name)
        self._slo_scope = settings.slo_scope
        self.queue = _queue_for(settings.slo_scope)
        self.delays = Delays(self.account, self.queue)
        """The calls that wait for a replica with their model."""
        self.constrained = ConstrainedReservations()
        self.retries = RetryBudget()
        self.ejections = Ejections()
        self.replicas: dict[ReplicaKey, MemberT] = {}
        self.candidates = 0
        """Replicas that take calls."""
        self.near = 0
        """Those of them that are in the router's zone."""
        self.awaited = 0
        """Replicas of the first table whose links have neither opened nor failed."""
        self.is_serving = False
        """`can_serve`, as of the newest look at it (`availability`): calls are divided by this."""
        self.suspects: dict[MemberT, None] = {}
        """Replicas that have lost contact with the controller: they take unkeyed calls only while no other one does."""
        self.filling: MemberT | None = None
        """The replica that the latest calls went to: quick ones join them there."""
        self.zone = zone
        self._chance = chance
        self._plug_ins = plug_ins
        self.prompts = Prompts(prefix_blocks)
        """What is read of its calls' prompts."""
        self._apply(route)
        self.balance_by(settings.balancer)

    def reconfigure(self, route: BackendRoute) -> None:
        """Applies new settings; waiting runs stay."""
        self._apply(route)
        settings = route.settings
        if settings.balancer != self.balancer_name:
            self.balance_by(settings.balancer)
        if settings.slo_scope is not self._slo_scope:
            self._slo_scope = settings.slo_scope
            before, self.queue = self.queue, _queue_for(settings.slo_scope)
            self.delays.queue = self.queue
            self.queue.brake(is_on=before.is_braked)
            for run in before.drain():
                self.queue.append(run)

    def _apply(self, route: BackendRoute) -> None:
        """The settings of which a change needs nothing else."""
        settings = route.settings
        self.prospect = route.prospect
        """Prospect of the backend in the table, if no replica is ready."""
        self.account.limit(settings.max_queued_calls, settings.max_queued_bytes, settings.max_queue_time_s)
        self.max_wire_batch_size = settings.max_wire_batch_size
        self.prompts.read(is_read=settings.affinity is Affinity.PREFIX)

    def balance_by(self, name: str) -> None:
        """Makes the balancer of this name, which may be a plug-in, anew."""
        self.balancer_name = name
        self.has_plug_in = name in self._plug_ins.makers
        """Then it alone goes before the balancer."""
        self.preferences: Preferences[MemberT] | PluggedBalancer[MemberT] | None = None
        """What goes before the balancer; None until a run states a preference."""
        self.hooks: CallHooks | None = None
        """Those of the plug-in for the end of what was sent, if it has any."""
        if self.has_plug_in:
            self.counts.picks = self.counts.picks or PickCounts()
            plugged = self.preferences = PluggedBalancer[MemberT](self.name, name, self._plug_ins, self.counts.picks)
            self.hooks = plugged.hooks
        self.rebuild_balancer()

    def rebuild_balancer(self) -> None:
        """Makes the router's own balancer anew: its name, or the zone of replicas, changed."""
        own = self.balancer_name if self.balancer_name in BUILT_IN_BALANCERS else BUILT_IN_BALANCERS[0]
        self.balancer: OwnBalancer[MemberT] = (
            NearFirst(lambda: new_balancer(own, self._chance)) if self.zone else new_balancer(own, self._chance)
        )
        """Where a plug-in does not pick, this one does."""
        for replica in self.replicas.values():
            self.load_changed(replica)

    @property
    def has_its_balancer(self) -> bool:
        """Whether the router has the balancer that the backend names."""
        return self.has_plug_in or self.balancer_name in BUILT_IN_BALANCERS

    def suspect(self, replica: MemberT, *, is_suspect: bool) -> None:
        """Records whether the table marks a replica as out of contact with the controller."""
        if is_suspect:
            self.suspects[replica] = None
        else:
            self.suspects.pop(replica, None)
            replica.is_passed_over = False
        self.changed(replica)

    def changed(self, replica: MemberT) -> None:
        """A replica was linked or lost, drains, joined or left."""
        self._refresh(replica)
        self.load_changed(replica)
        if self.suspects:
            self._weigh_suspects()
        if replica.is_awaited and (replica.linked or replica.draining):
            self.await_replica(replica, is_awaited=False)

    def await_replica(self, replica: MemberT, *, is_awaited: bool) -> None:
        """Marks whether the link of the replica has neither opened nor failed yet."""
        self.awaited += is_awaited - replica.is_awaited
        replica.is_awaited = is_awaited

    @property
    def can_serve(self) -> bool:
        """Whether a replica takes calls, or may take calls."""
        return self.candidates > 0 or self.awaited > 0

    @property
    def is_coming(self) -> bool:
        """Whether a replica may take calls soon. UNKNOWN counts as yes: a disconnected replica may return."""
        if self.prospect in {Prospect.UNKNOWN, Prospect.COMING}:
            return True
        return any(not each.draining for each in self.replicas.values())

    def _weigh_suspects(self) -> None:
        """Passes over suspects while another replica takes calls."""
        is_any_other = self.candidates > sum(each.taking for each in self.suspects)
        for each in self.suspects:
            if each.is_passed_over != is_any_other:
                each.is_passed_over = is_any_other
                self._refresh(each)
                self.load_changed(each)

    def _refresh(self, replica: MemberT) -> None:
        was_taking = replica.taking
        replica.refresh()
        joined = replica.taking - was_taking
        self.candidates += joined
        self.near += joined if replica.is_near else 0

    def load_changed(self, replica: MemberT) -> None:
        """The load of a replica changed: those that choose by it follow."""
        self.balancer.changed(replica)
        if self.preferences is not None:
            self.preferences.changed(replica)

    def preferences_of(self, run: RouterRun, now: float) -> Preferences[MemberT] | PluggedBalancer[MemberT] | None:
        """What goes before the balancer for this run; None if nothing does."""
        is_stated = run.options.prefers or run.options.method in self.prompts.arguments
        if not is_stated and not self.has_plug_in:
            return None
        if self.preferences is None:
            self.preferences = Preferences(self.replicas.values(), self.counts, self.prompts, self.delays)
        self.prompts.begin(now)
        self.delays.now = now
        return self.preferences

    def pick(self, method: str) -> MemberT | None:
        """The replica for the next calls of the method: one with `free > 0`, or None.

        The one that is being filled, if the calls can start immediately and join others (`capacity.joins`); else the
        one that the balancer picks.
        """
        filling = self.filling
        if (
            filling is not None
            and filling.work_ns
            and filling.free_slots > 0
            and joins(filling.work_ns, filling.times.get(method))
        ):
            return filling
        replica = self.balancer.pick(ANY_CALLS, ())
        # While there are near ones, the room of others is the last one to be filled up.
        self.filling = replica if replica is None or replica.is_near or not self.near else None
        return replica

    @property
    def ongoing(self) -> int:
        """This router's calls at the backend's replicas, including reservations and operations in slots."""
        return sum(replica.own + replica.keyed + replica.bound for replica in self.replicas.values())

    @property
    def slot_calls(self) -> int:
        """Of these, the operations in granted slots."""
        return sum(replica.bound for replica in self.replicas.values())


def _queue_for(scope: SloScope) -> FairQueue | DueQueue:
    return DueQueue() if scope is SloScope.BACKEND else FairQueue()
