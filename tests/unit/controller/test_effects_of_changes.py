"""What the response to a change states: the fields that differ, replicas that are replaced, the restored revision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.convert.changes import reply_of
from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.planning import Plan, plan_mesh, with_effects
from controller_service.core.desired.rollback import plan_rollback, plan_undo_of_rollout, restoring
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord
from controller_service.core.reconciling.shift_planning import RequestedShift, plan_end, plan_shift
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Mesh, TrafficPolicy
from slotmesh.v1 import controller_service_pb2 as pb

OLD, NEW = (Backend(name="b", handler="app:App", num_replicas=2, version=it) for it in ("1", "2"))
OTHER = Backend(name="c", handler="app:App", num_replicas=1)


def endpoint(**weights: float) -> Endpoint:
    return Endpoint(name="e", traffic=TrafficPolicy(weights=weights))


def after(desired: Desired, *changes: ChangeSet) -> Desired:
    for change in changes:
        desired = desired.apply(change)
    return desired


FIRST = after(Desired(), ChangeSet(put_backends=(OLD, OTHER), put_endpoints=(endpoint(b=1.0),)))
ROLLED_OUT = RolloutRecord(backend="b", template=template_of(NEW), is_complete=True, good=NEW, previous=OLD)
ROLLED = after(FIRST, ChangeSet(put_backends=(NEW,)), ChangeSet(put_rollouts=(ROLLED_OUT,)))


def fields(plan: Plan) -> list[tuple[str, str, str, str]]:
    return [(it.resource, it.field, it.before, it.after) for it in plan.fields]


def test_an_undone_rollout_states_its_replicas_its_fields_and_the_revision_before() -> None:
    plan = with_effects(ROLLED, plan_undo_of_rollout(ROLLED, "b"), launches=True)
    assert plan.rolling == ("b",)
    assert fields(plan) == [("backend/b", "version", "2", "1")]
    assert plan.restores == FIRST.configured_at
    assert with_effects(ROLLED, plan, launches=False).rolling == (), "others start its replicas"


def test_the_restored_revision_is_the_newest_with_the_same_configuration() -> None:
    there_and_back = after(ROLLED, ChangeSet(put_backends=(OLD,)), ChangeSet(put_endpoints=(endpoint(b=0.5, c=0.5),)))
    newest = there_and_back.history[-2].revision
    back = Plan(change=ChangeSet(put_endpoints=(endpoint(b=1.0),)))
    assert restoring(there_and_back, back).restores == newest > FIRST.configured_at
    new = Plan(change=ChangeSet(put_endpoints=(endpoint(b=0.25, c=0.75),)))
    assert restoring(there_and_back, new).restores is None
    assert restoring(there_and_back, Plan(change=ChangeSet())).restores == there_and_back.configured_at


@pytest.mark.parametrize("revision", [-1, 3, 4])
def test_a_number_that_is_no_revision_of_the_configuration_is_refused(revision: int) -> None:
    desired = after(ROLLED, ChangeSet(), ChangeSet(put_backends=(OLD,)))
    assert [it.revision for it in desired.history] == [1, 2, 5]
    with pytest.raises(InvalidSpec, match=f"{revision} is no revision of the configuration that is kept"):
        plan_rollback(desired, revision, launches=True)
    for kept in (0, 1, 2, 5):
        assert plan_rollback(desired, kept, launches=True).restores == kept


def test_a_shift_states_the_weights_of_each_step_and_its_end_is_no_operation() -> None:
    asked = RequestedShift(endpoint="e", weights={"c": 1.0}, step=0.5, every_s=60.0, guards=())
    plan = with_effects(FIRST, plan_shift(FIRST, asked, who="", time_s=1.0), launches=True)
    assert fields(plan) == [("endpoint/e", "traffic", "{b: 1}", "{b: 0.5, c: 0.5}")]
    begun = reply_of(pb.ShiftTrafficResponse, 2, plan)
    assert (begun.steps, [dict(it.weights) for it in begun.weights]) == (
        2,
        [{"b": 0.5, "c": 0.5}, {"b": 0.0, "c": 1.0}],
    )
    assert list(begun.operations) == ["revision/2", "shift/e"]
    shifting = FIRST.apply(plan.change)
    ended = restoring(shifting, plan_end(shifting, "e", goes_back=True, who="an operator", time_s=2.0))
    undone = reply_of(pb.RollbackResponse, 3, with_effects(shifting, ended, launches=True))
    assert list(undone.operations) == ["revision/3"], "a shift that was ended counts as failed"
    assert undone.rolled_back_to == FIRST.configured_at
    assert [it.field for it in undone.fields] == ["traffic"]
    assert ended.change.put_shifts[0].why == "rolled back by an operator in step 1 of 2"


def test_what_is_created_and_deleted_has_its_fields() -> None:
    wanted = Mesh(backends=(OLD, Backend(name="d", handler="app:Other")), endpoints=(endpoint(b=1.0),))
    plan = with_effects(FIRST, plan_mesh(FIRST, wanted, prune=True, launches=True), launches=True)
    assert fields(plan) == [
        ("backend/c", "handler", "app:App", "unset"),
        ("backend/c", "num_replicas", "1", "unset"),
        ("backend/d", "handler", "unset", "app:Other"),
    ]


def test_the_fields_of_a_large_change_are_listed_as_far_as_they_fit() -> None:
    large = [replace(OLD, name=f"b{at}", user_config={"text": "x" * 2**19}) for at in range(3)]
    plan = with_effects(
        Desired(), plan_mesh(Desired(), Mesh(backends=(*large,)), prune=False, launches=True), launches=True
    )
    assert {it.resource for it in plan.fields} == {"backend/b0", "backend/b1"}
    assert plan.rolling == ("b0", "b1", "b2")
