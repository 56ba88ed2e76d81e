"""Direct lanes when a stream is lost: where its calls go, and what callers hear."""

from __future__ import annotations

import pytest

from slotmesh.client.slots.direct_plan import DirectPlace, DirectPlan, Finish, PlacedCall, SendCall, Want
from slotmesh.errors import Executed, Failure, Reason

LOST = Failure(reason=Reason.REPLICA_LOST, message="lost", executed=Executed.UNKNOWN)
LAPSED = Failure(reason=Reason.SLOT_EXPIRED, message="lapsed")


def running(plan: DirectPlan, *calls: PlacedCall) -> list[DirectPlace]:
    """The calls are at a replica, each in a place of its own."""
    places = [it.place for call in calls for it in plan.call_made(call, 0.0) if isinstance(it, Want)]
    for place in places:
        plan.place_ready(place, 0.0)
    return places


def call(*, is_idempotent: bool = True) -> PlacedCall:
    return PlacedCall(None, is_idempotent=is_idempotent)


def test_a_call_that_was_lost_once_may_have_run_whatever_comes_then() -> None:
    plan, made = DirectPlan(1, 5.0), call()
    places = running(plan, made)
    assert not [it for it in plan.places_lost(places, LOST, 1.0) if isinstance(it, Finish)]
    (ended,) = [it for it in plan.close() if isinstance(it, Finish)]
    assert isinstance(ended.outcome, Failure)
    assert (ended.call, ended.outcome.executed) == (made, Executed.UNKNOWN)


def test_what_a_stream_loses_goes_to_no_other_place_of_it_and_keeps_its_order() -> None:
    plan, calls = DirectPlan(3, 5.0), [call(), call()]
    places = running(plan, *calls, call())
    plan.answered(places[2], b"", 0.5)  # idle, and lost with the others
    commands = plan.places_lost(places, LOST, 1.0)
    assert not [it for it in commands if isinstance(it, SendCall)]
    wanted = [it.place for it in commands if isinstance(it, Want)]
    sent = [it.call for place in wanted for it in plan.place_ready(place, 1.0) if isinstance(it, SendCall)]
    assert sent == calls


def test_a_call_that_met_the_end_of_its_lease_goes_on() -> None:
    plan, made = DirectPlan(1, 5.0), call(is_idempotent=False)
    commands = plan.places_lost(running(plan, made), LAPSED, 1.0)
    (want,) = [it for it in commands if isinstance(it, Want)]
    assert [it.call for it in plan.place_ready(want.place, 1.0) if isinstance(it, SendCall)] == [made]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_call_that_was_only_refused_has_not_run(is_idempotent: bool) -> None:
    plan, made = DirectPlan(1, 5.0), call(is_idempotent=is_idempotent)
    plan.places_lost(running(plan, made), LAPSED, 1.0)
    (ended,) = [it for it in plan.close() if isinstance(it, Finish)]
    assert isinstance(ended.outcome, Failure)
    assert (ended.call, ended.outcome.executed) == (made, Executed.NO)


def test_a_call_that_is_refused_after_it_was_lost_may_have_run() -> None:
    plan, made = DirectPlan(1, 5.0), call()
    commands = plan.places_lost(running(plan, made), LOST, 1.0)
    (want,) = [it for it in commands if isinstance(it, Want)]
    plan.place_ready(want.place, 1.0)
    plan.places_lost([want.place], LAPSED, 2.0)
    (ended,) = [it for it in plan.close() if isinstance(it, Finish)]
    assert isinstance(ended.outcome, Failure)
    assert ended.outcome.executed is Executed.UNKNOWN
