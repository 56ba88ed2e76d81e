"""Operations: what follows from a change, and is waited for. Whether one is done follows from the present state.

An operation is only a name; nothing is stored of it, so that any controller of the state can tell how far it is:
  revision/REVISION            every attached router has a table of that revision, or of a newer one
  rollout/BACKEND@REVISION     the replicas of a backend run its settings of that revision, and all routers reach them
  shift/ENDPOINT               the newest shift of an endpoint's traffic is complete, and in force at all routers
  drain/REPLICA@INCARNATION    that process of a replica has ended: a launched one was reaped; of any other, it is
                               proven, or reported by itself, that it starts nothing any more
Invariants: pure. An operation that is done stays so, except that a rollout may be replaced by a later one, that one
which fails may recover, and that routers and replicas may come and go. Unknown is not no: after the start of
a controller nothing that routers have to confirm is done before they had the time to attach again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.revisions import Resource
from controller_service.core.desired.shifts import ShiftPhase, ShiftRecord
from controller_service.core.desired.state import Desired, RolloutRecord
from controller_service.core.observed.replica_groups import outdated_among
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState, wanted_replicas
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.rollouts import EndedCalls, RolloutPhase, RolloutProgress, show_progress
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.spec.rules import show

MAX_REASON_CHARS: Final = 200
MAX_FAILURE_CHARS: Final = 1_000
_ENDED: Final = {ReplicaState.STOPPED, ReplicaState.FAILED}
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How far an operation is."""

    name: str
    done: bool = False
    """It is complete, or has failed."""
    failure: str = ""
    """Why it has failed; empty if it has not."""
    completed: int = 0
    """Of `total`: routers, replicas, steps of a shift; 1 once a replica has ended."""
    total: int = 0
    ongoing_calls: int = 0
    """Calls left at a draining replica."""
    pending: tuple[str, ...] = ()
    """What is missing, a line each, for people."""


class BeforeChange(NamedTuple):
    """A resource as it was before a change."""

    resource: Resource | None
    changed_at: int
    """The revision that changed it; 0 if none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFacts:
    """All that operations follow from."""

    desired: Desired
    observed: Observed
    generation: str
    launches: bool
    """Whether this controller starts replicas."""
    is_settled: bool = True
    """Members had the time to attach since the controller started."""
    is_on_hold: bool = False
    """It reconciles nothing, since members know a newer state."""
    now: float = 0.0
    time_of_day_s: float = 0.0
    ended_calls: Mapping[str, EndedCalls] = field(default_factory=dict[str, EndedCalls])
    ongoing_calls: Callable[[str], int] = lambda _: 0
    """By the newest report of a replica."""
    waits_for: Callable[[ShiftRecord], str] = lambda _: ""
    """What the next step of a shift waits for, although its time has come; empty if that is not known."""
    deferred_starts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why starts are not tried now, by backend."""
    later: dict[int, Mapping[str, BeforeChange]] = field(default_factory=dict, init=False)
    """By revision: the first change of each resource after it, by subject."""

    def changed_after(self, revision: int) -> Mapping[str, BeforeChange]:
        """As in `later`; found once."""
        if (found := self.later.get(revision)) is None:
            found = self.later[revision] = dict[str, BeforeChange]()
            for record in self.desired.history:
                for change in record.changes if record.revision > revision else ():
                    found.setdefault(change.subject, BeforeChange(change.before, record.revision))
        return found


def find_operation(name: str, facts: MeshFacts) -> Operation:
    """How far it is. Raises InvalidSpec if the name is that of no operation, or of one that is not kept any more."""
    kind, _, rest = name.partition("/")
    resource, _, version = rest.rpartition("@")
    if kind == "revision" and _NUMBER.fullmatch(rest):
        return _revision(name, int(rest), facts)
    if kind == "rollout" and resource and _NUMBER.fullmatch(version):
        return _rollout(name, resource, int(version), facts)
    if kind == "shift" and rest:
        return _shift(name, rest, facts)
    if kind == "drain" and resource:
        return _drain(name, Incarnation(resource, version), facts)
    raise _refusal(f"{show(name)!r} is no operation: take a name from the `operations` of a response")


def _refusal(text: str) -> InvalidSpec:
    return InvalidSpec([SpecViolation("names", text)])


def _ended(name: str, failure: str = "", completed: int = 0, total: int = 0) -> Operation:
    return Operation(name=name, done=True, failure=failure[:MAX_FAILURE_CHARS], completed=completed, total=total)


def _require_made(name: str, revision: int, desired: Desired) -> None:
    """Raises InvalidSpec for a revision that the configuration has not reached."""
    if revision > desired.configured_at:
        raise _refusal(f"{name} is to come: the configuration is at revision {desired.configured_at}")


ON_HOLD: Final = "it is stored; the controller is on hold, since members know a newer state than its state file"


def _revision(name: str, revision: int, facts: MeshFacts) -> Operation:
    _require_made(name, revision, facts.desired)
    if facts.is_on_hold:
        return _ended(name, ON_HOLD)
    routers = facts.observed.routers.values()
    behind = [it for it in routers if it.generation != facts.generation or it.revision < revision]
    pending = [] if facts.is_settled else ["routers: may not be attached to this controller yet"]
    if behind:
        named = ", ".join(sorted(f"{it.router_id} ({it.address})" for it in behind))[:MAX_REASON_CHARS]
        pending.append(f"routers: {len(behind)} of {len(routers)} do not have the change yet: {named}")
    reached = len(routers) - len(behind)
    return Operation(name=name, done=not pending, completed=reached, total=len(routers), pending=tuple(pending))


def _rollout(name: str, backend_name: str, revision: int, facts: MeshFacts) -> Operation:
    desired = facts.desired
    _require_made(name, revision, desired)
    asked, replaced_at = _settings_at(facts, backend_name, revision)
    if not isinstance(asked, Backend):
        raise _refusal(f"{name}: there was no backend {show(backend_name)!r} at that revision")
    if facts.is_on_hold:
        return _ended(name, ON_HOLD)
    backend = desired.backends.get(backend_name)
    if backend is None:
        return _ended(name, f"the backend was deleted at revision {replaced_at}")
    replicas = [*facts.observed.replicas(backend_name)]
    progress = show_progress(
        desired.rollouts.get(backend_name),
        backend,
        wanted_replicas(backend, facts.observed),
        replicas,
        facts.now,
        time_of_day_s=facts.time_of_day_s,
        ended_calls=facts.ended_calls,
    )
    record = progress.record
    if template_of(asked) != template_of(backend):
        return _ended(name, f"rolled back: {record.why}" if record.why else f"replaced by revision {replaced_at}")
    if progress.trouble and facts.launches and not _has_way_back(record):
        way_out = f"correct it and apply it again, or `slotmesh delete backend/{backend_name}`"
        failure = f"fails, and there is nothing to go back to: {progress.trouble}; it stays until you {way_out}"
        return _ended(name, failure, progress.available, progress.wanted)
    is_outdated = outdated_among(desired.backends)
    old = [it for it in replicas if is_outdated(it) and it.state not in _ENDED]
    ready = [it for it in replicas if it.shown_state is ReplicaState.READY and it.takes_calls]
    current = [it for it in ready if not is_outdated(it)]
    wanted = progress.wanted if facts.launches else backend.num_replicas or 0
    is_short = len(current) < wanted and backend.autoscale is None
    pending = [*_missing(backend, replicas, len(current), len(old), wanted, progress, facts, is_short=is_short)]
    owners = {it.owner for it in ready}
    unlinked = [it.router_id for it in facts.observed.routers.values() if any(map(it.lacks, owners))]
    if unlinked:
        pending.append(f"routers: {', '.join(sorted(unlinked))} not linked to all replicas of {backend_name} yet")
    if not facts.is_settled:
        pending.append("routers: may not be attached to this controller yet")
    return Operation(
        name=name,
        done=not pending,
        completed=len(current),
        total=max(wanted, len(current)),
        pending=tuple(pending),
    )


def _has_way_back(record: RolloutRecord) -> bool:
    """Whether a rollout that fails is rolled back: there are other settings that were good."""
    return record.good is not None and template_of(record.good) != record.template


def _missing(
    backend: Backend,
    replicas: list[ObservedReplica],
    current: int,
    old: int,
    wanted: int,
    progress: RolloutProgress,
    facts: MeshFacts,
    *,
    is_short: bool,
) -> Iterator[str]:
    name, held = backend.name, ""
    if progress.record.is_paused and old:
        way_out = f"`slotmesh rollout resume {name}` (in a request: PauseRollout with resume)"
        held = f"; its rollout is paused: {way_out} lets it continue"
    if is_short:
        new = "new replicas" if old else "replicas"
        yield f"{name}: {current} of {wanted} {new} ready{_why(name, replicas, facts)}{held}"
    elif old:
        yield f"{name}: {current} replicas ready, {old} that were there before drain{held}"
    elif facts.launches and progress.phase is not RolloutPhase.COMPLETE:
        of_wanted = f"{progress.available} of {progress.wanted} new replicas"
        yield f"{name}: {of_wanted} have been ready for {backend.min_ready_s:g} s (min_ready)"


def _why(name: str, replicas: list[ObservedReplica], facts: MeshFacts) -> str:
    """The newest failure of a replica that should have got ready, or why none is started now."""
    is_outdated = outdated_among(facts.desired.backends)
    failed = [it for it in replicas if it.error and not is_outdated(it)]
    newest = max(failed, key=lambda it: it.started_at, default=None)
    if newest is None:
        deferred = facts.deferred_starts.get(name, "")
        return f"; {deferred[:MAX_REASON_CHARS]}" if deferred else ""
    reason = newest.error.strip().splitlines()[-1][:MAX_REASON_CHARS]
    return f"; {newest.replica_id} {newest.shown_state.name.lower()}: {reason}"


def _settings_at(facts: MeshFacts, backend: str, revision: int) -> BeforeChange:
    """The backend at a revision. Raises InvalidSpec."""
    desired = facts.desired
    oldest = desired.history[0].base if desired.history else desired.configured_at
    if revision < oldest:
        raise _refusal(f"revision {revision} is not kept any more: the history begins after revision {oldest}")
    present = BeforeChange(desired.backends.get(backend), 0)
    return facts.changed_after(revision).get(f"backend/{backend}", present)


def _shift(name: str, endpoint: str, facts: MeshFacts) -> Operation:
    record = facts.desired.shifts.get(endpoint)
    if record is None:
        raise _refusal(f"{name}: no shift of {show(endpoint)!r} is known: there was none, or the endpoint was deleted")
    if facts.is_on_hold:
        return _ended(name, ON_HOLD)
    if record.is_under_way:
        pending = (_of_shift(record, facts.waits_for(record)),)
        return Operation(name=name, completed=max(0, record.number - 1), total=record.steps, pending=pending)
    if record.phase is not ShiftPhase.COMPLETE:
        how = record.phase.name.lower().replace("_", " ")
        return _ended(name, f"{how}: {record.why}" if record.why else how, max(0, record.number - 1), record.steps)
    at_routers = _revision(name, facts.desired.configured_at, facts)
    steps = record.steps
    return Operation(name=name, done=at_routers.done, completed=steps, total=steps, pending=at_routers.pending)


def _of_shift(record: ShiftRecord, waits_for: str) -> str:
    if record.is_waiting:
        why = waits_for or f"the rollout of {', '.join(sorted(record.awaits))}"
        weights = " ".join(f"{name}={weight:.6g}" for name, weight in sorted(record.target.items()))
        return f"traffic of {record.endpoint} moves to {weights} later; it waits for {why}"
    line = f"traffic of {record.endpoint} is in step {record.number} of {record.steps}"
    return f"{line}; the next step waits: {waits_for}" if waits_for else line


def _drain(name: str, owner: Incarnation, facts: MeshFacts) -> Operation:
    desired, replica = facts.desired, facts.observed.incarnation(owner)
    is_known = replica is not None or "/".join(owner) in desired.orders or desired.roster.has_departed(owner)
    if replica is None and not owner.incarnation and is_known:
        replica = facts.observed.replica(owner.replica_id)  # a process that had not attached
    if replica is None and not facts.is_settled:
        return Operation(name=name, total=1, pending=("replicas: may not be attached to this controller yet",))
    if not is_known:
        text = "no such process is known: it was not drained, or that is not kept any more"
        raise _refusal(f"{show(name)}: {text}; take a name from the `operations` of a response")
    if replica is None or (replica.reaped if replica.launched else replica.gone or replica.state in _ENDED):
        return _ended(name, completed=1, total=1)
    calls = facts.ongoing_calls(owner.replica_id)
    left = (
        f", with {calls} {'call' if calls == 1 else 'calls'} left"
        if replica.state not in _ENDED
        else f"; its process {replica.pid} still runs"
    )
    line = f"{owner.replica_id} {replica.shown_state.name.lower()}{left}"
    return Operation(name=name, total=1, ongoing_calls=calls, pending=(line,))
