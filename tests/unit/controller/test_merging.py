"""A file that is applied again changes what it has changed itself, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.core.desired.handler_code import (
    NO_CODE,
    Code,
    HandlerCode,
    as_written,
    key_of,
    template_of,
)
from controller_service.core.desired.merging import FieldConflict, merge_mesh
from controller_service.core.desired.planning import plan_file, with_effects
from controller_service.core.desired.revisions import BY_CONTROLLER, ChangeOrigin, stored_roll_back_note
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord
from slotmesh.spec.environment import EnvironmentValue
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.examples import examples

V1 = Backend(name="v1", handler="app:One", num_replicas=2)
V2 = Backend(name="v2", handler="app:Two", num_replicas=2)
FILE = Mesh(backends=(V1, V2), endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 0.9, "v2": 0.1})),))
ALL_V1 = TrafficPolicy(weights={"v1": 1.0})


def applied(
    desired: Desired, file: Mesh, *, force: bool = False, prune: bool = False, is_spec: bool = False
) -> Desired:
    plan = plan_file(desired, file, prune=prune, launches=True, force=force, is_spec=is_spec)
    assert not plan.conflicts
    return desired.apply(plan.change)


def with_traffic(desired: Desired, policy: TrafficPolicy) -> Desired:
    return desired.apply(ChangeSet(put_endpoints=(Endpoint(name="e", traffic=policy),)))


def conflicts(desired: Desired, file: Mesh) -> list[tuple[str, str, str, str, str]]:
    found = merge_mesh(desired, file, force=False).conflicts
    return [(it.resource, it.field, it.applied, it.live, it.wanted) for it in found]


def test_scaling_by_the_file_does_not_undo_the_traffic_that_was_set() -> None:
    live = with_traffic(applied(Desired(), FILE), ALL_V1)
    scaled = replace(FILE, backends=(replace(V1, num_replicas=5), V2))
    after = applied(live, scaled)
    assert after.backends["v1"].num_replicas == 5
    assert after.endpoints["e"].traffic == ALL_V1
    # And once more: the file has not changed at all.
    assert plan_file(after, scaled, prune=False, launches=True, force=False).changes_nothing


def test_what_only_the_file_has_changed_is_taken_over() -> None:
    live = with_traffic(applied(Desired(), FILE), FILE.endpoints[0].traffic or ALL_V1)
    changed = replace(FILE, endpoints=(Endpoint(name="e", traffic=ALL_V1),))
    assert applied(live, changed).endpoints["e"].traffic == ALL_V1


def test_what_both_have_changed_is_a_conflict_and_the_file_wins_by_force_only() -> None:
    half = TrafficPolicy(weights={"v1": 0.5, "v2": 0.5})
    live = with_traffic(applied(Desired(), FILE), half).apply(ChangeSet(put_backends=(replace(V1, num_replicas=7),)))
    changed = Mesh(
        backends=(replace(V1, num_replicas=3, max_queue_time_s=5.0), V2),
        endpoints=(Endpoint(name="e", traffic=ALL_V1),),
    )
    assert conflicts(live, changed) == [
        ("backend/v1", "num_replicas", "2", "7", "3"),
        ("endpoint/e", "traffic", "{v1: 0.9, v2: 0.1}", "{v1: 0.5, v2: 0.5}", "{v1: 1}"),
    ]
    forced = applied(live, changed, force=True)
    assert (forced.backends["v1"].num_replicas, forced.endpoints["e"].traffic) == (3, ALL_V1)
    assert forced.backends["v1"].max_queue_time_s == 5.0


def test_a_rollout_that_was_rolled_back_is_not_repeated_by_the_same_file_and_no_conflict_for_the_next() -> None:
    bad, next_try = replace(V1, handler="app:Bad"), replace(V1, handler="app:Good")
    record = RolloutRecord(backend="v1", template=template_of(V1), why="it did not start", good=V1)
    with_bad = applied(applied(Desired(), FILE), replace(FILE, backends=(bad, V2)))
    live = with_bad.apply(ChangeSet(put_backends=(V1,), put_rollouts=(record,)))
    assert applied(live, replace(FILE, backends=(bad, V2))).backends["v1"] == V1
    assert applied(live, replace(FILE, backends=(next_try, V2))).backends["v1"] == next_try
    scaled = live.apply(ChangeSet(put_backends=(replace(V1, num_replicas=7),)))
    both = replace(FILE, backends=(replace(next_try, num_replicas=3), V2))
    assert conflicts(scaled, both) == [("backend/v1", "num_replicas", "2", "7", "3")]
    by_operator = with_bad.apply(ChangeSet(put_backends=(V1,)))
    assert conflicts(by_operator, replace(FILE, backends=(next_try, V2))) == [
        ("backend/v1", "handler", "app:Bad", "app:One", "app:Good")
    ]


GOOD = replace(V1, user_config={"k": 1}, version="file:1", code="1")
"""As it runs: named by its code. An operator has set its `user_config`."""
BAD = replace(V1, handler="app:Bad", cwd="/elsewhere")
FAILED = replace(GOOD, handler="app:Bad", cwd="/elsewhere")


def rolled_back(*, with_history: bool = True) -> Desired:
    """BAD was applied, and rolled back to GOOD."""
    record = RolloutRecord(backend="v1", template=template_of(GOOD), why="it did not start", good=GOOD)
    note = stored_roll_back_note("v1") if with_history else "of another change"
    state = Desired().apply(ChangeSet(put_backends=(FAILED,), put_applied=(BAD,)))
    origin = ChangeOrigin(who=BY_CONTROLLER, note=note)
    return state.apply(ChangeSet(put_backends=(GOOD,), put_rollouts=(record,), origin=origin))


def comes_to(state: Desired, wanted: Backend, *, force: bool = False, code: Code = NO_CODE) -> Backend:
    plan = plan_file(state, Mesh(backends=(wanted,)), prune=False, launches=True, force=force, code=code)
    assert not plan.conflicts
    return state.apply(plan.change).backends["v1"]


@pytest.mark.parametrize(
    "other",
    [
        {"version": "again"},
        {"handler": "app:Better"},
        {"handler": "app:One"},
        {"env": {"A": EnvironmentValue(value="b")}},
    ],
)
def test_the_next_try_of_a_file_has_all_that_the_roll_back_took_back_and_what_an_operator_has_set(other: Any) -> None:
    tried = comes_to(rolled_back(), replace(BAD, **other))
    assert as_written(tried) == replace(BAD, user_config={"k": 1}, **other)


def test_the_next_try_is_what_the_file_says_where_it_is_not_known_any_more_what_was_rolled_back() -> None:
    again = replace(BAD, version="again")
    assert comes_to(rolled_back(with_history=False), again) == again


def test_a_file_that_changes_nothing_that_replicas_are_started_with_is_no_next_try() -> None:
    scaled = replace(BAD, num_replicas=5)
    state = rolled_back()
    state = state.apply(ChangeSet(put_backends=(comes_to(state, scaled),), put_applied=(scaled,)))
    assert state.backends["v1"] == replace(GOOD, num_replicas=5)
    assert comes_to(state, scaled) == replace(GOOD, num_replicas=5)


def test_the_same_file_is_tried_again_by_force_only() -> None:
    state = rolled_back()
    plan = plan_file(state, Mesh(backends=(BAD,)), prune=False, launches=True, force=False)
    assert plan.changes_nothing
    assert [it.fields for it in plan.rolled_back] == [("handler", "user_config", "cwd")]
    assert as_written(comes_to(state, BAD, force=True)) == replace(BAD, user_config={"k": 1})
    forced = plan_file(state, Mesh(backends=(BAD,)), prune=False, launches=True, force=True)
    assert forced.rolled_back == ()
    begun = replace(state.rollouts["v1"], template="of what was tried", why="")
    succeeded = state.apply(ChangeSet(put_rollouts=(begun,)))
    assert comes_to(succeeded, BAD, force=True) == GOOD, "what an operator has set stays"


def test_files_of_code_that_have_changed_are_tried_with_all_settings_of_the_file() -> None:
    same = replace(BAD, handler="app:One")
    state = rolled_back().apply(ChangeSet(put_applied=(same,)))
    code = {
        key_of(GOOD): HandlerCode(code="2", version="file:2"),
        key_of(same): HandlerCode(code="2", version="file:2"),
    }
    assert comes_to(state, same, code=code) == replace(FAILED, handler="app:One", version="file:2", code="2")


def test_who_comes_to_the_same_is_no_conflict() -> None:
    live = with_traffic(applied(Desired(), FILE), ALL_V1)
    assert conflicts(live, replace(FILE, endpoints=(Endpoint(name="e", traffic=ALL_V1),))) == []


def test_weights_and_shadows_are_fields_of_their_own() -> None:
    live = with_traffic(applied(Desired(), FILE), TrafficPolicy(weights={"v1": 0.9, "v2": 0.1}, shadows={"v2": 0.5}))
    changed = replace(FILE, endpoints=(Endpoint(name="e", traffic=ALL_V1),))
    assert applied(live, changed).endpoints["e"].traffic == TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.5})


def test_what_was_never_applied_becomes_what_the_file_says() -> None:
    live = Desired().apply(ChangeSet(put_backends=(replace(V1, num_replicas=9), V2)))
    assert applied(live, FILE).backends["v1"] == V1


def test_what_was_deleted_since_comes_again_as_the_file_says_it() -> None:
    live = applied(Desired(), FILE).apply(ChangeSet(delete_endpoints=("e",)))
    after = applied(live, FILE)
    assert after.endpoints["e"] == FILE.endpoints[0]


def test_a_policy_that_the_file_lacks_stays_as_it_is() -> None:
    live = with_traffic(applied(Desired(), FILE), ALL_V1)
    without = replace(FILE, endpoints=(Endpoint(name="e"),))
    assert applied(live, without).endpoints["e"].traffic == ALL_V1


def test_a_plan_names_each_field_that_differs() -> None:
    live = applied(Desired(), FILE)
    plan = plan_file(
        live, replace(FILE, backends=(replace(V1, max_queue_time_s=0.25),)), prune=False, launches=True, force=False
    )
    plan = with_effects(live, plan, launches=True)
    assert [(it.resource, it.field, it.before, it.after) for it in plan.fields] == [
        ("backend/v1", "max_queue_time", "30s", "250ms")
    ]


FIELDS: dict[str, tuple[Any, ...]] = {
    "num_replicas": (None, 1, 2),
    "handler": ("app:One", "app:Two"),
    "user_config": ({}, {"k": 1}),
    "max_queue_time_s": (30.0, 5.0),
}
BACKENDS = st.builds(Backend, name=st.just("v1"), **{name: st.sampled_from(values) for name, values in FIELDS.items()})


@settings(max_examples=examples(200), deadline=None)
@given(base=BACKENDS, live=BACKENDS, wanted=BACKENDS, force=st.booleans())
def test_each_field_is_merged_by_itself(base: Backend, live: Backend, wanted: Backend, force: bool) -> None:
    desired = applied(Desired(), Mesh(backends=(base,))).apply(ChangeSet(put_backends=(live,)))
    merged = merge_mesh(desired, Mesh(backends=(wanted,)), force=force)
    (backend,) = merged.mesh.backends
    said = {it.field for it in merged.conflicts}
    for name in FIELDS:
        old, there, new = (getattr(it, name) for it in (base, live, wanted))
        is_conflict = new not in (old, there) and there != old
        assert (name.removesuffix("_s") in said) is (is_conflict and not force)
        expected = there if new == old or (is_conflict and not force) else new
        assert getattr(backend, name) == expected


SPEC = Mesh(backends=(V1,))
TEAM = Mesh(backends=(replace(V1, max_queued_calls=50, cwd="/team"),))


def started(desired: Desired, file: Mesh) -> Desired:
    """After a start with this `--spec`."""
    plan = plan_file(desired, file, prune=False, launches=True, force=False, is_spec=True)
    return desired.apply(plan.change)


def test_a_start_with_the_same_spec_changes_nothing_whatever_was_applied_meanwhile() -> None:
    live = applied(started(Desired(), SPEC), TEAM)
    assert plan_file(live, SPEC, prune=False, launches=True, force=False, is_spec=True).changes_nothing
    assert started(live, Mesh(backends=(replace(V1, max_queue_time_s=7.0),))).backends["v1"] == replace(
        TEAM.backends[0], max_queue_time_s=7.0
    )
    without = applied(live, SPEC)
    assert without.backends["v1"] == V1, "`apply` has stated both settings, and removes them"


def test_one_file_by_apply_and_by_spec_is_compared_with_what_it_stated_last() -> None:
    files = [Mesh(backends=(replace(V1, handler=f"app:Number{number}"),)) for number in range(5)]
    live = started(Desired(), files[0])
    for number, merge in ((1, applied), (2, started), (3, started), (4, applied), (0, started)):
        live = merge(live, files[number])
        assert live.backends["v1"] == files[number].backends[0]
    scaled = live.apply(ChangeSet(put_backends=(replace(live.backends["v1"], num_replicas=9),)))
    for merge in (started, applied):
        assert merge(scaled, files[0]).backends["v1"].num_replicas == 9


def test_a_rollout_that_was_rolled_back_is_not_repeated_by_a_start_with_its_spec() -> None:
    bad = Mesh(backends=(replace(V1, handler="app:Bad"),))
    record = RolloutRecord(backend="v1", template=template_of(V1), why="it did not start", good=V1)
    for merge in (applied, started):
        failed = merge(started(Desired(), SPEC), bad)
        live = failed.apply(ChangeSet(put_backends=(V1,), put_rollouts=(record,)))
        assert started(live, bad).backends["v1"] == V1


def test_what_spec_stated_goes_with_what_it_stated_it_of() -> None:
    live = started(Desired(), SPEC)
    assert len(live.applied) == 2
    assert not live.apply(ChangeSet(delete_backends=("v1",))).applied


@settings(max_examples=examples(200), deadline=None)
@given(spec=BACKENDS, team=BACKENDS, live=BACKENDS, wanted=BACKENDS)
def test_a_spec_changes_only_what_it_changed_itself(
    spec: Backend, team: Backend, live: Backend, wanted: Backend
) -> None:
    before = applied(started(Desired(), Mesh(backends=(spec,))), Mesh(backends=(team,)))
    before = before.apply(ChangeSet(put_backends=(live,)))
    file = Mesh(backends=(wanted,))
    said = {it.field for it in merge_mesh(before, file, force=False, is_spec=True).conflicts}
    after = started(before, file)
    for name in FIELDS:
        own, last, there, new = (getattr(it, name) for it in (spec, team, live, wanted))
        is_conflict = new not in (own, last, there) and there != last
        assert (name.removesuffix("_s") in said) is is_conflict
        is_kept = new in (own, last) or is_conflict
        assert getattr(after.backends["v1"], name) == (there if is_kept else new)
    again = plan_file(after, file, prune=False, launches=True, force=False, is_spec=True)
    assert again.changes_nothing
    assert not again.conflicts
    back = after.apply(ChangeSet(put_backends=(spec,)))
    assert started(back, file).backends["v1"] == spec, "an unchanged spec never changes anything"


@pytest.mark.parametrize("force", [False, True])
def test_a_conflict_is_a_value(force: bool) -> None:
    live = with_traffic(applied(Desired(), FILE), TrafficPolicy(weights={"v2": 1.0}))
    found = merge_mesh(live, replace(FILE, endpoints=(Endpoint(name="e", traffic=ALL_V1),)), force=force).conflicts
    assert all(isinstance(it, FieldConflict) for it in found)
    assert len(found) == (0 if force else 1)
