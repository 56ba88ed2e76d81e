"""Findings about routers, backends and endpoints, from the controller's view of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slotmesh.cli.checking.findings import MeshFinding, Section, SeenMesh, Severity, credential_fix, ok
from slotmesh.cli.checking.losses import HANGS, lost_text
from slotmesh.cli.console import some_of
from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, Snapshot
from slotmesh.cli.documents import time_of
from slotmesh.cli.parameters import BACKEND, REPLICA
from slotmesh.cli.view.changes import deferred_line
from slotmesh.cli.view.replicas import LOOPING_AFTER
from slotmesh.spec.devices import DIFFER
from slotmesh.spec.environment import PROCESS_DIFFERS
from slotmesh.spec.model import Backend, Prospect
from slotmesh.spec.routes import route_subject
from slotmesh.spec.writing import shown_shares
from slotmesh.v1 import rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb

_MAX_REASON_CHARS: Final = 200
_MOST_NAMED: Final = 5
_MOST_LOST: Final = 10
FAILING_SHARE: Final = 0.1
"""If at least this share of an endpoint's calls fails, this is reported."""
FAILING_PER_S: Final = 2.0
"""Fewer failures are not reported: a single bad call is no problem of the mesh."""
ROLLED_BACK_FOR_S: Final = 3_600.0
"""How long a shift that was rolled back is reported, unless the weights change before that."""


def routers(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether they have the newest table, and links to all replicas."""
    section, there = Section.ROUTERS, seen.snapshot.members.routers
    if not there:
        fix = "start one: `python -m router_service --controller HOST:PORT`"
        yield MeshFinding(section, Severity.ERROR, "", "no router is attached: no endpoint can be called", fix)
        return
    bad, is_on_hold = 0, seen.snapshot.is_on_hold
    is_unwritten = any(it.info.controller.store_problem for it in seen.answers)
    for router in there:
        subject, fix, text = f"router/{router.router_id}", "look at its log; start it again if it does not recover", ""
        if is_on_hold:
            fix = "end the hold first: a router that starts gets no routing table while the controller is on hold"
        if (silent_s := seen.silent_routers.get(router.router_id)) is not None:
            text = f"has said nothing for {silent_s:.0f} s"
        elif router.router_id in seen.lagging_routers:
            newest = seen.snapshot.members.table_revision
            text = f"has revision {router.table_revision} of the routing table, not {newest}"
            if is_on_hold:
                text = f"goes on with revision {router.table_revision} of the routing table"
                if not router.table_revision:
                    text = "has no routing table, and gets none while the controller is on hold: its calls fail"
            elif router.generation != seen.snapshot.members.generation:
                text = "has the routing table of another controller"
        elif missing := seen.unlinked.get(router.router_id):
            text = f"has no link to {len(missing)} ready replicas: {some_of(missing, _MOST_NAMED)}"
            fix = "see that the addresses which these announce (--advertise) are reached from the router"
            if is_unwritten:
                fix = "make the controller's state writable first: until then it announces no change to routers"
        if text:
            bad += 1
            problems = (it.problem for it in seen.answers if it.announced.subject == subject)
            fix = next(filter(None, map(credential_fix, problems)), fix)
            yield MeshFinding(section, Severity.ERROR, subject, f"{router.router_id} {text}", fix)
    if not bad:
        yield ok(section, f"{len(there)} attached, with the newest routing table and links to all ready replicas")
    for router in there:
        if router.unknown_balancers:
            names = some_of(router.unknown_balancers, _MOST_NAMED)
            text = f"{router.router_id} does not have balancer {names}, and uses least_loaded"
            fix = "start it with --balancers, install what has the entry point, or correct `balancer` of the backend"
            yield MeshFinding(section, Severity.WARNING, f"router/{router.router_id}", text, fix)


def lost_members(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Members that the controller has lost, and that have not come back."""
    for each in seen.lost_members[:_MOST_LOST]:
        text, severity = lost_text(each), Severity.WARNING
        fix = "see whether it runs, and its log; start it again, unless it was ended on purpose"
        if HANGS in each.why:
            severity = Severity.ERROR
            fix = "its process hangs or is stopped, or its network is cut: end it (SIGKILL), and start another"
        if each.subject.startswith(f"{REPLICA}/"):
            text += "; calls of its ordering keys wait for it"
            fix = (
                "start it again under the same id; if its process has ended for good and no controller has started it,"
                f" `slotmesh forget {each.subject}` lets its keys move"
            )
        if new_fix := credential_fix(each.why):
            fix = new_fix
        elif seen.snapshot.is_on_hold and each.subject.startswith("router/"):
            fix = "end the hold first: a router that starts gets no routing table while the controller is on hold"
        yield MeshFinding(Section.ROUTERS, severity, each.subject, text, fix)
    if (more := len(seen.lost_members) - _MOST_LOST) > 0:
        fix = "`slotmesh events` has them all"
        yield MeshFinding(Section.ROUTERS, Severity.WARNING, "", f"{more} more members were lost", fix)


def backends(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether each has the replicas that it should have, and why not."""
    snapshot = seen.snapshot
    led_to = {name for it in snapshot.endpoints if it.traffic is not None for name in it.traffic.weights}
    well = 0
    for backend in snapshot.backends:
        prospect = seen.prospects.get(backend.name, Prospect.UNKNOWN)
        finding = _of_backend(snapshot, backend, prospect, is_led_to=backend.name in led_to)
        rollout = next((it for it in snapshot.rollouts if it.backend == backend.name and it.problem), None)
        if rollout is not None:
            yield _failing(rollout, finding)  # one cause, one finding
        elif finding is None:
            well += 1
        else:
            yield finding
    known = {backend.name for backend in snapshot.backends}
    for replica in snapshot.members.replicas:
        if replica.state == READY_STATE and replica.backend not in known:
            name = replica.replica_id
            text = f"{name} is ready, and its backend {replica.backend} is not configured: no call gets there"
            fix = f"apply the backend (`slotmesh apply mesh.yaml`), or end the replica: `slotmesh drain {name}`"
            yield MeshFinding(Section.BACKENDS, Severity.WARNING, f"replica/{replica.replica_id}", text, fix)
        elif replica.warning.startswith(DIFFER):
            text = f"{replica.replica_id}: {replica.warning}"
            fix = "start it with the devices that its backend's `devices` name, or change these"
            yield MeshFinding(Section.BACKENDS, Severity.WARNING, f"replica/{replica.replica_id}", text, fix)
        elif replica.warning.startswith(PROCESS_DIFFERS):
            text = f"{replica.replica_id}: {replica.warning}"
            fix = "start it as the settings of its backend say, or change these"
            yield MeshFinding(Section.BACKENDS, Severity.WARNING, f"replica/{replica.replica_id}", text, fix)
    for name, why in snapshot.deferred_starts.items():
        fix = f"make room for it, or change what its replicas need: `slotmesh describe {name}`"
        yield MeshFinding(Section.BACKENDS, Severity.WARNING, f"backend/{name}", deferred_line(name, _short(why)), fix)
    if well:
        yield ok(Section.BACKENDS, f"{well} of {len(snapshot.backends)} have the replicas that they should have")


def _failing(rollout: rollout_pb2.Rollout, replicas: MeshFinding | None) -> MeshFinding:
    """The finding of a rollout that fails; `replicas`: that of the missing replicas of its backend."""
    name, problem = rollout.backend, _short(rollout.problem)
    text = f"the rollout of {name} fails: {problem}" + ("" if replicas is None else f"; {replicas.text}")
    fix = (
        f"see `slotmesh logs {name}`; correct it and apply it again, or `slotmesh rollout undo {name}` if it ran with"
        f" other settings before, or `slotmesh delete backend/{name}`"
    )
    return MeshFinding(Section.BACKENDS, Severity.ERROR, f"{BACKEND}/{name}", text, fix)


def rollouts(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether changes of backends and of traffic are in force, or were rolled back."""
    for each in seen.snapshot.rollouts:
        subject = f"backend/{each.backend}"
        if each.rollback_reason and not each.problem:
            rolled_back_at = time_of(each, "rollback_time")
            at = "" if rolled_back_at is None else f" at {rolled_back_at:%Y-%m-%d %H:%M} UTC"
            in_force = f"{each.handler} {each.version}".strip()
            text = f"the newest change of {each.backend} was rolled back{at}, {in_force} is in force:"
            text += f" {_short(each.rollback_reason)}"
            fix = (
                f"`slotmesh events backend/{each.backend} --kind rollout-rolled-back` has the reason; correct it"
                " and apply it again, the same file with `slotmesh apply FILE --force`. To end this warning, apply what"
                " is in force, or roll back to its revision"
            )
            yield MeshFinding(Section.BACKENDS, Severity.WARNING, subject, text, fix)
        if each.paused:
            text = (
                f"rollouts of {each.backend} are paused: a change of what its replicas are started with has no effect"
            )
            fix = f"`slotmesh rollout resume {each.backend}`"
            yield MeshFinding(Section.BACKENDS, Severity.WARNING, subject, text, fix)
    for shift in seen.snapshot.shifts:
        policy = seen.snapshot.traffic_of(shift.endpoint)
        is_before = policy is not None and dict(policy.weights) == dict(shift.from_weights)
        ended_at = time_of(shift, "end_time")
        if not (shift.phase == shift_pb.SHIFT_PHASE_ROLLED_BACK and is_before and ended_at is not None):
            continue
        if ended_at.timestamp() > seen.now - ROLLED_BACK_FOR_S:
            subject, wanted = f"endpoint/{shift.endpoint}", shown_shares(shift.to_weights)
            at = f"{ended_at:%Y-%m-%d %H:%M} UTC"
            text = f"the shift of {shift.endpoint} to {wanted} was rolled back at {at}: {_short(shift.reason)}"
            fix = f"`slotmesh events endpoint/{shift.endpoint}` has its steps"
            fix += f"; `slotmesh traffic {shift.endpoint}` shows the weights"
            yield MeshFinding(Section.ENDPOINTS, Severity.WARNING, subject, text, fix)


def _short(reason: str) -> str:
    """A reason in one line."""
    return " ".join(reason.split())[:_MAX_REASON_CHARS]


STARTED_ELSEWHERE: Final = (
    "its replicas are started elsewhere: look at their output there (`docker compose logs`, `kubectl logs`);"
    " `slotmesh events` shows those that came and went, `slotmesh status --tracebacks` errors that they reported"
)
_CALLS: Final = {
    Prospect.UNKNOWN: "calls fail, or wait while a replica starts",
    Prospect.COMING: "calls wait for its replicas, which are starting",
    Prospect.FAILING: "calls fail, as its replicas fail to start",
    Prospect.NONE: "calls fail, as no replica should run",
}
"""What becomes of the calls of a backend without a ready replica."""


def _of_backend(snapshot: Snapshot, backend: Backend, prospect: Prospect, *, is_led_to: bool) -> MeshFinding | None:
    name, members, wanted = backend.name, snapshot.members, snapshot.wanted(backend)
    ready = len(members.ready(name))
    subject, fix = f"backend/{name}", f"`slotmesh logs {name}`, `slotmesh status --tracebacks`"
    if not snapshot.rollouts:  # this controller launches no replicas, and has no output of them
        fix = STARTED_ELSEWHERE
    if ready >= (1 if wanted is None else wanted) and (ready or not is_led_to):
        return None
    severity = Severity.WARNING if ready or not is_led_to else Severity.ERROR
    if wanted == 0:
        if backend.autoscale is not None and backend.autoscale.min == 0:
            return None  # the first call starts one
        return MeshFinding(
            Section.BACKENDS,
            severity,
            subject,
            f"{name} should have no replica, and endpoints lead to it: calls fail, and ordering keys have no owner",
            f"`slotmesh scale {name} 1`, or lead its endpoints elsewhere with `slotmesh traffic`",
        )
    replicas = [it for it in members.replicas if it.backend == name]
    if not replicas:
        text = f"{name} has no replica"
        if wanted is None:
            fix = (
                f"start one: `python -m replica_service --handler MODULE:NAME --backend {name} --controller HOST:PORT`"
            )
    else:
        text = f"{name} has {ready} of {'any' if wanted is None else wanted} replicas ready"
        looping = max((it.restart_count for it in replicas if it.state != READY_STATE), default=0)
        if looping >= LOOPING_AFTER:
            severity, text = Severity.ERROR, f"{text}, one was restarted {looping} times"
        elif any(it.state == FAILED_STATE for it in replicas):
            severity = Severity.ERROR
    texts = [it.error or it.last_exit or it.end_reason for it in replicas if it.state != READY_STATE]
    said = [line for text in texts for line in text.splitlines()[-1:]]
    why = f": {said[-1][:_MAX_REASON_CHARS]}" if said else ""
    lost = f"; {_CALLS[prospect]}, and ordering keys have no owner" if not ready and is_led_to else ""
    return MeshFinding(Section.BACKENDS, severity, subject, f"{text}{lost}{why}", fix)


def endpoints(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether they lead anywhere."""
    snapshot, well = seen.snapshot, 0
    known = {backend.name for backend in snapshot.backends}
    for endpoint in snapshot.endpoints:
        subject, traffic = f"endpoint/{endpoint.name}", endpoint.traffic
        if traffic is None or not traffic.weights:
            text = f"{endpoint.name} leads nowhere: its calls wait"
            fix = f"`slotmesh traffic {endpoint.name} BACKEND=1`"
            yield MeshFinding(Section.ENDPOINTS, Severity.WARNING, subject, text, fix)
        elif missing := sorted({*traffic.weights, *traffic.shadows} - known):
            text = f"{endpoint.name} leads to backends that do not exist: {', '.join(missing)}"
            fix = f"`slotmesh traffic {endpoint.name} BACKEND=1`, or apply these backends"
            yield MeshFinding(Section.ENDPOINTS, Severity.ERROR, subject, text, fix)
        else:
            well += 1
    if well:
        yield ok(Section.ENDPOINTS, f"{well} of {len(snapshot.endpoints)} lead to backends that there are")
    yield from _failing_calls(seen)
    named = {endpoint.name for endpoint in snapshot.endpoints}
    for route in seen.routes:
        if route.endpoint not in named:
            text = f"route {route.path} leads to endpoint {route.endpoint}, which does not exist: its requests get 404"
            fix = f"apply the endpoint, or `slotmesh delete {route_subject(route.path)}`"
            yield MeshFinding(Section.ENDPOINTS, Severity.WARNING, route_subject(route.path), text, fix)
    if not snapshot.endpoints:
        text = "there is no endpoint: nothing can be called"
        yield MeshFinding(Section.ENDPOINTS, Severity.WARNING, "", text, "`slotmesh apply mesh.yaml`")


def _failing_calls(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Endpoints of whose calls many fail, as where a queue is full."""
    for name, (failures, calls) in sorted(seen.failing_calls.items()):
        if failures >= max(FAILING_PER_S, FAILING_SHARE * calls):
            share = f"{failures:.3g} of {calls:.3g}" if failures <= calls else f"{failures:.3g}"
            text = f"{name}: {share} calls a second failed or were refused in the last seconds"
            fix = "`slotmesh top` shows queues and errors; metric `slotmesh_router_failures_total` has the reasons"
            yield MeshFinding(Section.ENDPOINTS, Severity.WARNING, f"endpoint/{name}", text, fix)
