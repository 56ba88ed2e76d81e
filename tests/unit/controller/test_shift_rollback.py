"""`rollback` after a shift: all revisions of one shift are one change, whatever others have changed meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.planning import Plan
from controller_service.core.desired.revisions import BY_CONTROLLER, ChangeOrigin, stored_roll_back_note
from controller_service.core.desired.rollback import plan_rollback, plan_undo_of_change
from controller_service.core.desired.shifts import ShiftPhase
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.reconciling.shift_planning import RequestedShift, plan_end, plan_move, plan_shift
from controller_service.core.reconciling.shift_steps import CallFlow, ShiftLook, ended, follow
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, TrafficPolicy

BEFORE = {"v1": 0.75, "v2": 0.25}
STEPS = 4
SAID = RequestedShift(endpoint="e", weights={"v3": 1.0}, step=0.25, every_s=1.0, guards=())
LOOK = ShiftLook(is_due=True, figures={}, flow=CallFlow.NONE, ready={"v1", "v2", "v3"})


def committed(desired: Desired, plan: Plan) -> Desired:
    """As the configurator commits a plan."""
    return desired.apply(replace(plan.change, origin=ChangeOrigin(note=plan.note, part_of=plan.part_of)))


def start() -> Desired:
    backends = tuple(Backend(name=name, num_replicas=1) for name in ("v1", "v2", "v3"))
    policies = {"e": TrafficPolicy(weights=BEFORE), "f": TrafficPolicy(weights={"v1": 1.0})}
    endpoints = tuple(Endpoint(name=name, traffic=policy) for name, policy in policies.items())
    desired = Desired().apply(ChangeSet(put_backends=backends, put_endpoints=endpoints))
    return desired.apply(ChangeSet(put_backends=(Backend(name="v1", num_replicas=2),)))  # an earlier change


def stepped(desired: Desired, endpoint: str = "e", time_s: float = 2.0) -> Desired:
    shift = desired.shifts[endpoint]
    return committed(desired, plan_move(desired, shift, follow(shift, LOOK, time_s)))


def begun(desired: Desired, said: RequestedShift = SAID, time_s: float = 1.0) -> Desired:
    return committed(desired, plan_shift(desired, said, who="a test", time_s=time_s))


def weights(desired: Desired, endpoint: str = "e") -> dict[str, float]:
    policy = desired.endpoints[endpoint].traffic
    assert policy is not None
    return {name: weight for name, weight in policy.weights.items() if weight}


def finished(desired: Desired, how: str, *, is_begun: bool = False) -> Desired:
    """The shift, in its second step or as it ended."""
    desired = stepped(desired if is_begun else begun(desired))
    shift = desired.shifts["e"]
    match how:
        case "complete":
            while desired.shifts["e"].is_under_way:
                desired = stepped(desired)
        case "stopped":
            desired = committed(desired, plan_end(desired, "e", goes_back=False, who="a test", time_s=3.0))
        case "gone back":
            desired = committed(desired, plan_end(desired, "e", goes_back=True, who="a test", time_s=3.0))
        case "taken back":
            move = ended(shift, ShiftPhase.ROLLED_BACK, "a guard tripped", 3.0, goes_back=True)
            desired = committed(desired, plan_move(desired, shift, move))
        case _:
            pass
    return desired


def undone(desired: Desired) -> Plan:
    """The newest change."""
    return plan_undo_of_change(desired, desired.history[-1].revision, launches=False)


@pytest.mark.parametrize("how", ["under way", "complete", "stopped"])
def test_it_brings_the_weights_before_the_shift_back(how: str) -> None:
    before = start()
    after = finished(before, how)
    plan = undone(after)
    done = committed(after, plan)
    assert weights(done) == BEFORE
    assert (done.endpoints, done.backends) == (before.endpoints, before.backends), "and nothing before it is undone"
    assert plan.restores == before.configured_at
    assert not done.shifts["e"].is_under_way
    assert done.history[-1].origin.part_of == ""
    forward = committed(done, undone(done))
    assert weights(forward) == weights(after), "the rollback is a change by itself: undone, the traffic is as it was"


@pytest.mark.parametrize("how", ["taken back", "gone back"])
def test_a_shift_that_has_gone_back_is_undone_already_and_the_revision_before_is_named(how: str) -> None:
    before = start()
    after = finished(before, how)
    assert weights(after) == BEFORE
    with pytest.raises(InvalidSpec, match=f"undone already .*; {before.history[-1].base} undoes the change before"):
        undone(after)
    done = committed(after, plan_rollback(after, before.history[-1].base, launches=False))
    assert done.backends["v1"].num_replicas == 1


@pytest.mark.parametrize("how", ["taken back", "gone back"])
def test_what_undoes_the_change_before_is_not_named_where_others_have_changed_something_meanwhile(how: str) -> None:
    desired = begun(start())
    desired = desired.apply(ChangeSet(put_backends=(Backend(name="v2", num_replicas=5),)))
    after = finished(desired, how, is_begun=True)
    with pytest.raises(InvalidSpec, match=r"undone already .*; the history has the revisions"):
        undone(after)


def deployed(desired: Desired, handler: str, *, also: tuple[Backend, ...] = ()) -> Desired:
    backend = replace(desired.backends["v1"], handler=handler)
    return desired.apply(ChangeSet(put_backends=(backend, *also)))


def taken_back(desired: Desired, good: Desired, name: str = "v1") -> Desired:
    """As the controller does it."""
    origin = ChangeOrigin(who=BY_CONTROLLER, note=stored_roll_back_note(name))
    backend = replace(desired.backends[name], handler=good.backends[name].handler)
    return desired.apply(ChangeSet(put_backends=(backend,), origin=origin))


@pytest.mark.parametrize("times", [1, 2])
def test_a_deployment_that_was_taken_back_is_not_made_again(times: int) -> None:
    good = deployed(start(), "app:Good")
    after = good
    for _ in range(times):
        after = taken_back(deployed(after, "app:Bad"), good)
    base = good.history[-1].base
    with pytest.raises(InvalidSpec, match=f"undone already .*rolled back.*; {base} undoes the change before that"):
        undone(after)
    assert committed(after, plan_rollback(after, base, launches=False)).backends == start().backends


def test_what_else_such_a_deployment_has_changed_is_undone() -> None:
    good = deployed(deployed(start(), "app:Good"), "app:Good", also=(Backend(name="v2", handler="app:Good"),))
    bad = deployed(good, "app:Bad", also=(Backend(name="v2", handler="app:Bad"), Backend(name="v3", num_replicas=7)))
    after = taken_back(taken_back(bad, good), good, "v2")
    done = committed(after, undone(after))
    assert (done.backends, done.endpoints) == (good.backends, good.endpoints)


def test_a_rollout_that_was_taken_back_after_other_changes_is_not_made_again() -> None:
    good = deployed(start(), "app:Good")
    bad = deployed(good, "app:Bad").apply(ChangeSet(put_backends=(Backend(name="v2", num_replicas=5),)))
    with pytest.raises(InvalidSpec, match=r"undone already .*; the history has the revisions"):
        undone(taken_back(bad, good))


def test_what_an_operator_has_brought_back_can_be_undone() -> None:
    """It looks like what the controller takes back, and somebody has asked for it."""
    good = deployed(start(), "app:Good")
    back = deployed(deployed(good, "app:Bad"), "app:Good")
    done = committed(back, undone(back))
    assert done.backends["v1"].handler == "app:Bad"


@pytest.mark.parametrize("how", ["under way", "complete"])
def test_what_others_have_changed_during_the_shift_stays(how: str) -> None:
    desired = begun(start())
    other = RequestedShift(endpoint="f", weights={"v2": 1.0}, step=0.5, every_s=1.0, guards=())
    desired = begun(desired, other, time_s=1.5)
    desired = desired.apply(ChangeSet(put_backends=(Backend(name="v2", num_replicas=5),)))
    policy = desired.endpoints["e"].traffic
    assert policy is not None
    shadowed = replace(desired.endpoints["e"], traffic=replace(policy, shadows={"v1": 0.5}))
    desired = desired.apply(ChangeSet(put_endpoints=(shadowed,)))
    desired = stepped(desired, "f")
    desired = stepped(desired)
    while how == "complete" and desired.shifts["e"].is_under_way:
        desired = stepped(desired)
    others = weights(desired, "f")
    plan = undone(desired)
    assert (plan.updated, plan.created, plan.deleted, plan.restores) == (("endpoint/e",), (), (), None)
    done = committed(desired, plan)
    assert weights(done) == BEFORE
    assert done.endpoints["e"].traffic is not None
    assert done.endpoints["e"].traffic.shadows == {"v1": 0.5}
    assert done.backends["v2"].num_replicas == 5
    assert weights(done, "f") == others
    assert done.shifts["f"].is_under_way


@pytest.mark.parametrize("lost", [1, 2])
def test_the_weights_before_are_known_although_the_first_steps_are_not_kept(lost: int) -> None:
    """The history is bounded."""
    desired = finished(start(), "complete")
    first = len(desired.history) - STEPS - 1
    kept = desired.history[first + lost :]
    assert weights(committed(desired, undone(replace(desired, history=kept)))) == BEFORE


def test_a_second_shift_of_the_endpoint_is_another_change() -> None:
    first = finished(start(), "complete")
    back = RequestedShift(endpoint="e", weights={"v1": 1.0}, step=0.5, every_s=1.0, guards=())
    desired = stepped(begun(first, back, time_s=9.0))
    done = committed(desired, undone(desired))
    assert weights(done) == weights(first)


def test_a_step_that_is_named_can_be_gone_back_to() -> None:
    desired = finished(start(), "complete")
    step = desired.history[-STEPS]
    done = committed(desired, plan_rollback(desired, step.revision, launches=False))
    assert sum(weights(done).values()) == pytest.approx(1.0)
    assert weights(done) not in (BEFORE, {"v3": 1.0})
