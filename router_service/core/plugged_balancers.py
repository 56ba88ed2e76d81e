"""Balancers of users' own (`slotmesh.balancers`): shown what they decide by, called within bounds, never trusted.

Purpose: a plug-in gets immutable candidates, made anew only for replicas that changed, and the calls that wait. What it
picks is checked. Whatever it does, calls are sent: an exception, None, a pick that is not possible, and a plug-in that
is set aside leave the pick to the router's own `least_loaded`.
Invariants: candidates are the replicas with `free > 0`, by replica id. Each fault is counted by its cause. A plug-in is
set aside after `FAULTS_IN_A_ROW`, or once it took more than `LATE_SHARE` of the time: for `PAUSE_S`, doubled each time
it is set aside again soon. So one that hangs delays the event loop once, and then seldom. Hooks are not called then.
Owner: the scheduler. Time is a function that is given: the core has no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import ref

from router_service.core.balancers import CallHooks
from router_service.core.counters import PickCounts, PickFault
from router_service.core.limits.capacity import KnownReplica, slice_calls
from router_service.core.runs import RouterRun
from slotmesh.balancers import Balancer, CallEnd, Calls, Candidate, FollowsCalls, FollowsReplicas, Pick
from slotmesh.calls.payload_block import nbytes_of

FAULTS_IN_A_ROW: Final = 10
LATE_SHARE: Final = 0.1
"""Of the time: picks over their budget may take no more."""
LATE_AT_ONCE_S: Final = 0.1
"""They may take this much at one time."""
PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 300.0


MakePlugIn = Callable[[], Balancer[Candidate]]
_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugIns:
    """The balancers of users' own that a router has, and what it gives them."""

    makers: Mapping[str, MakePlugIn] = field(default_factory=dict)
    """By the names that backends may give."""
    now: Callable[[], float] = lambda: 0.0
    """Monotonic seconds, exact enough to measure a pick."""
    budget_s: float = inf
    """For one pick."""
    metadata_of: Callable[[bytes], Mapping[str, str]] = lambda _: _NO_METADATA
    """The metadata that plug-ins may see, out of the options for replicas."""
    report: Callable[[str, str, PickFault, BaseException | None], None] = lambda *_: None
    """Called at each fault but SET_ASIDE, with the backend, the balancer, and what was raised, for the log."""


NO_PLUG_INS: Final = PlugIns()


class PlugInCircuit:
    """Whether a plug-in is called, or is set aside for a while."""

    __slots__ = ("_back_at", "_debt_s", "_faults", "_paid_at", "_pause_s", "until")

    def __init__(self) -> None:
        self.until = -inf
        """It is not called before."""
        self._back_at = -inf
        self._pause_s = PAUSE_S
        self._faults = 0
        """In a row."""
        self._debt_s = 0.0
        """Time of late picks, less `LATE_SHARE` of the time since."""
        self._paid_at = -inf

    def well(self) -> None:
        """A pick was used, in time."""
        self._faults = 0

    def fault(self, now: float, late_s: float = 0.0) -> None:
        """A pick was not used, or took `late_s`, over its budget."""
        self._faults += 1
        if late_s:
            paid_s = (now - self._paid_at) * LATE_SHARE
            self._debt_s = max(0.0, self._debt_s - paid_s) + late_s
            self._paid_at = now
        if self._faults < FAULTS_IN_A_ROW and self._debt_s <= LATE_AT_ONCE_S:
            return
        is_soon = now - self._back_at < LONGEST_PAUSE_S
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s) if is_soon else PAUSE_S
        self.until = self._back_at = now + self._pause_s
        self._faults, self._debt_s = 0, 0.0


MemberT = TypeVar("MemberT", bound=KnownReplica)
MAX_CHANGED: Final = 4096
"""Changed replicas that wait for the next pick."""


class Turn(NamedTuple):
    """Calls of a run for which there are several picks: what was known at the newest one."""

    run: ref[RouterRun] | None
    at: int
    """The cursor of the run."""
    end: int
    calls: int
    """Of all the picks together."""
    size: int
    """Bytes of the calls that are left."""

    def after(self, run: RouterRun, count: int) -> Turn:
        """The next pick, for `count` calls of the run."""
        at, end = run.cursor, run.cursor + count
        if self.run is not None and self.run() is run and self.end == end and self.at <= at:
            return self._replace(at=at, size=self.size - nbytes_of(run.payloads, self.at, at))
        size = nbytes_of(run.payloads, at, end) if run.slot is None else 0
        return Turn(ref(run), at, end, count, size)


_NO_TURN: Final = Turn(None, 0, 0, 0, 0)


def _one_call(run: RouterRun) -> Turn:
    return Turn(None, 0, 1, 1, len(run.payloads[run.cursor]) if run.slot is None else 0)


class PluggedBalancer(Generic[MemberT]):
    """The plug-in of one backend, as a preference that goes before the router's own balancer."""

    def __init__(self, backend: str, name: str, plug_ins: PlugIns, counts: PickCounts) -> None:
        self._guard = guard = GuardedPlugIn(backend, name, plug_ins, counts)
        self._plug_in = guard.made(plug_ins.makers[name])
        self.hooks: CallHooks | None = GuardedHooks(self._plug_in, guard) if guard.has(FollowsCalls) else None
        """Calls the plug-in's hooks, if it has any."""
        self._follows = guard.has(FollowsReplicas)
        self._changed: dict[MemberT, None] = {}
        """Replicas whose candidates are to be made anew before the next pick."""
        self._ids: list[str] = []
        """Ids of the replicas with room, ascending; the next two are parallel."""
        self._open: list[MemberT] = []
        self._shown: list[Candidate] = []
        self._candidates: tuple[Candidate, ...] = ()
        self._turn = _NO_TURN

    @property
    def unlinked(self) -> MemberT | None:
        """Candidates are linked."""
        return None

    def changed(self, replica: MemberT) -> None:
        """See `Preference.changed`."""
        self._changed[replica] = None
        if len(self._changed) > MAX_CHANGED:
            self._show()

    def sent(self, run: RouterRun, count: int, replica: MemberT) -> None:
        """Plug-ins have `hooks` for it."""

    def pick(self, run: RouterRun, count: int) -> tuple[MemberT, int] | None:
        """See `Preference.pick`. A run that is picked for again has sent some of its calls since."""
        guard = self._guard
        if guard.is_set_aside():
            return None
        if self._changed:
            self._show()
        if not self._open:
            return None
        turn = self._turn = self._turn.after(run, count) if count > 1 else _one_call(run)
        calls = self._calls(run, turn)
        began = guard.now()
        most = 0
        try:
            picked = self._plug_in.pick(calls, self._candidates)
            if type(picked) is Pick:
                picked, most = picked.candidate, max(1, int(picked.calls))
            replica = self._open_one(picked.replica_id) if type(picked) is Candidate else None
        except BaseException as error:  # noqa: BLE001 - the plug-in's outcome, whatever it raises
            guard.fault(PickFault.RAISED, began, error)
            return None
        if replica is None:
            guard.fault(PickFault.NONE if picked is None else PickFault.IMPOSSIBLE, began)
            return None
        guard.picked(began)
        if count > 1 and not most:
            most = slice_calls(turn.calls, len(self._open), replica.times.get(run.options.method))
        return replica, min(most, count, replica.free) if count > 1 else 1

    def _open_one(self, replica_id: str) -> MemberT | None:
        at = bisect_left(self._ids, replica_id)
        return self._open[at] if at < len(self._ids) and self._ids[at] == replica_id else None

    def _show(self) -> None:
        """Makes the candidates of changed replicas anew, and reports them to a plug-in that follows changes."""
        ids, guard = self._ids, self._guard
        follows, began, count = self._follows and guard.is_heard, guard.now(), len(self._changed)
        while self._changed:
            replica, _ = self._changed.popitem()
            candidate = shown(replica)
            at = bisect_left(ids, candidate.replica_id)
            is_known = at < len(ids) and ids[at] == candidate.replica_id
            if replica.free > 0 and is_known:
                self._open[at], self._shown[at] = replica, candidate
            elif replica.free > 0:
                ids.insert(at, candidate.replica_id)
                self._open.insert(at, replica)
                self._shown.insert(at, candidate)
            elif is_known and self._open[at] is replica:
                del ids[at], self._open[at], self._shown[at]
            if follows:
                try:
                    self._plug_in.changed(candidate)
                except BaseException as error:  # noqa: BLE001 - the plug-in's outcome, whatever it raises
                    guard.fault(PickFault.HOOK, began, error)
                    follows, began, count = guard.is_heard, guard.now(), len(self._changed)
        if follows:
            guard.called(began, count)
        self._candidates = tuple(self._shown)

    def _calls(self, run: RouterRun, turn: Turn) -> Calls:
        options = run.options
        return Calls(
            run.endpoint,
            options.method,
            turn.end - turn.at,
            turn.size,
            options.affinity_key,
            options.model_id,
            options.tenant,
            options.prefix_blocks,
            self._guard.plug_ins.metadata_of(options.wire),
            run.slot is not None,
        )


def shown(replica: KnownReplica) -> Candidate:
    """The replica as plug-ins see it."""
    capacity, own = replica.capacity, replica.own
    return Candidate(
        replica.key[0],
        replica.rank,
        replica.zone,
        replica.is_near,
        replica.devices,
        capacity.max_ongoing,
        own + capacity.others,
        replica.limit - own,
        replica.models,
        replica.figures,
    )


class GuardedPlugIn:
    """What surrounds each call of one plug-in: measures it, counts its faults, sets it aside."""

    def __init__(self, backend: str, name: str, plug_ins: PlugIns, counts: PickCounts) -> None:
        self._backend = backend
        self._name = name
        self.plug_ins = plug_ins
        self.now = plug_ins.now
        self._counts = counts
        self._circuit = PlugInCircuit()
        self._plug_in: object = None

    def made(self, make: MakePlugIn) -> Any:
        """The plug-in; None if its constructor raised: then it is set aside for good."""
        began = self.now()
        try:
            self._plug_in = make()
            self.has(FollowsCalls), self.has(FollowsReplicas)
        except BaseException as error:  # noqa: BLE001 - the plug-in's outcome, whatever it raises
            self.fault(PickFault.RAISED, began, error)
            self._plug_in, self._circuit.until = None, inf
        return self._plug_in

    def has(self, hooks: type[Any]) -> bool:
        """Whether the plug-in has these hooks."""
        return self._plug_in is not None and isinstance(self._plug_in, hooks)

    def is_set_aside(self) -> bool:
        """Whether it is not to be called for this pick, which is counted then."""
        if self._circuit.until == -inf or self.now() >= self._circuit.until:
            return False
        self._counts.faults[PickFault.SET_ASIDE] += 1
        return True

    @property
    def is_heard(self) -> bool:
        """Whether its hooks are called."""
        return self.now() >= self._circuit.until

    def picked(self, began: float) -> None:
        """A pick was used."""
        took_s = self.now() - began
        self._counts.times.observe(took_s, 1)
        if took_s > self.plug_ins.budget_s:
            self.fault(PickFault.LATE, began)
        else:
            self._circuit.well()

    def called(self, began: float, times: int = 1) -> None:
        """A hook was called, that many times."""
        if self.now() - began > self.plug_ins.budget_s * times:
            self.fault(PickFault.LATE, began)

    def fault(self, cause: PickFault, began: float, error: BaseException | None = None) -> None:
        """A pick was not used, or late; or a hook was."""
        now = self.now()
        late_s = now - began if now - began > self.plug_ins.budget_s else 0.0
        self._counts.faults[cause] += 1
        self._circuit.fault(now, late_s)
        self.plug_ins.report(self._backend, self._name, cause, error)


class GuardedHooks:
    """The hooks of a plug-in that follows calls."""

    def __init__(self, plug_in: FollowsCalls, guard: GuardedPlugIn) -> None:
        self._plug_in = plug_in
        self._guard = guard

    def sent(self, replica: KnownReplica, count: int) -> None:
        """See `FollowsCalls`."""
        self._call(lambda: self._plug_in.sent(shown(replica), count))

    def ended(self, replica: KnownReplica, count: int, end: CallEnd, latency_s: float) -> None:
        """See `FollowsCalls`."""
        self._call(lambda: self._plug_in.ended(shown(replica), count, end, latency_s))

    def _call(self, hook: Callable[[], None]) -> None:
        guard = self._guard
        if not guard.is_heard:
            return
        began = guard.now()
        try:
            hook()
        except BaseException as error:  # noqa: BLE001 - the plug-in's outcome, whatever it raises
            guard.fault(PickFault.HOOK, began, error)
        else:
            guard.called(began)
