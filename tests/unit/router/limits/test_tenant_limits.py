"""Limits of tenants at a router: calls a second, calls in flight."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router_service.core.tenants import TenantSettings
from slotmesh.errors import Executed, Reason
from slotmesh.spec.tenants import TenantLimit, TenantLimits
from tests.unit.router.limits.test_tenants import B, known
from tests.unit.router.world import OK, World


def limited(slots: int = 100, **limits: object) -> World:
    return World({"v1": ["a"]}, slots=slots, tenants=TenantLimits(**limits))  # type: ignore[arg-type]


def refusals(world: World, ids: Sequence[int]) -> list[int]:
    return [each for each in ids if world.outcomes.get(each) == Reason.TENANT_LIMIT.value]


def test_calls_a_second_are_limited_with_the_time_of_the_next_token() -> None:
    world = limited(max_calls_per_s=10, burst=5)
    world.submit(range(1, 9), tenant="a")
    assert refusals(world, range(1, 9)) == [6, 7, 8]
    failure = world.failures[6]
    assert failure.executed is Executed.NO
    assert failure.retry_delay_s == pytest.approx(0.3), "three calls need three tokens of 0.1 s"
    assert failure.metadata == {"endpoint": "e", "limit": "max_calls_per_s", "tenant": "a"}
    assert "tenant 'a' may have 10 calls a second at endpoint e" in failure.message
    world.at(0.1)
    world.submit([10, 11], tenant="a")
    assert refusals(world, [10, 11]) == [11]
    assert world.failures[11].retry_delay_s == pytest.approx(0.1)
    world.at(0.1 + 0.1)
    world.submit([12], tenant="a")
    assert not refusals(world, [12]), "a caller that waits for as long as it was told is admitted"


def test_a_tenant_that_was_quiet_has_the_burst_and_no_more() -> None:
    world = limited(max_calls_per_s=10, burst=5)
    world.at(1_000.0)
    world.submit(range(1, 21), tenant="a")
    assert len(refusals(world, range(1, 21))) == 15


def test_the_burst_is_one_second_unless_it_is_stated() -> None:
    world = limited(max_calls_per_s=10)
    world.submit(range(1, 21), tenant="a")
    assert len(refusals(world, range(1, 21))) == 10


def test_calls_in_flight_are_limited_wherever_they_are() -> None:
    world = limited(slots=2, max_in_flight=5)
    world.submit(range(1, 8), tenant="a")
    assert refusals(world, range(1, 8)) == [6, 7]
    assert (world.failures[6].retry_delay_s or 0) > 0
    world.complete("a", 1)
    world.submit([8, 9], tenant="a")
    assert refusals(world, [8, 9]) == [9]
    world.cancel((2, 5))
    world.submit(range(10, 14), tenant="a")
    assert not refusals(world, range(10, 14))


def test_a_limit_of_one_tenant_refuses_no_other_tenant_and_no_call_without_one() -> None:
    world = limited(max_calls_per_s=1, max_in_flight=1)
    world.submit(range(1, 100), tenant="a")
    world.submit([B], tenant="b")
    world.submit(range(B + 1, B + 50))
    world.complete("a")
    assert world.reasons([1, *range(B, B + 50)]) == {OK}


def test_tenants_of_one_name_of_two_callers_are_two_tenants() -> None:
    world, one, other = limited(max_calls_per_s=1), known("one"), known("other")
    world.submit(range(1, 100), by=one, tenant="a")
    world.submit([B], by=other, tenant="a")
    assert not refusals(world, [B])
    world.submit([B + 1], by=known("one"), tenant="a")
    assert refusals(world, [B + 1]), "all streams of one caller share the limits of its tenant"


def test_overrides_replace_the_limits_of_their_tenant() -> None:
    world = limited(max_in_flight=1, overrides={"big": TenantLimit(max_in_flight=50), "free": TenantLimit()})
    world.submit(range(1, 101), tenant="big")
    world.submit(range(201, 301), tenant="free")
    world.submit([401, 402], tenant="small")
    assert len(refusals(world, range(1, 101))) == 50
    assert not refusals(world, range(201, 301))
    assert refusals(world, [402]) == [402]
    assert "(tenants.overrides.big.max_in_flight)" in world.failures[100].message, "the setting that has refused it"
    assert "(tenants.max_in_flight)" in world.failures[402].message


def test_keyed_calls_are_limited_and_go_on_in_order() -> None:
    world = limited(max_in_flight=3)
    world.owner = ("a", 1)
    world.push()
    world.submit_column("abcdabcd", tenant="t")
    assert refusals(world, range(1, 9)) == [4, 5, 6, 7, 8]
    assert world.at_replica("a") == [1, 2, 3]
    world.complete("a")
    world.submit(range(11, 16), tenant="t", ordering_key="k")
    assert refusals(world, range(11, 16)) == [14, 15]


def test_keyed_calls_without_limits_are_counted() -> None:
    world = World({"v1": ["a"]}, slots=8, owner=("a", 1))
    world.submit_column("abcd", tenant="t")
    assert [each.unanswered for each in world.scheduler.tenants.busiest(9, 0.0)] == [4]
    world.complete("a")
    assert [each.unanswered for each in world.scheduler.tenants.busiest(9, 0.0)] == [0]


def test_calls_of_a_session_that_moved_are_counted_and_not_refused() -> None:
    world = limited(max_calls_per_s=1, max_in_flight=1)
    by = world.connect(2, (1, 5))
    world.resend(range(1, 6), by, tenant="a")
    assert not refusals(world, range(1, 6)), "another router has admitted them"
    world.submit([9], by=by, tenant="a")
    assert refusals(world, [9])


def test_what_is_lost_and_executed_again_is_counted_once() -> None:
    world = World({"v1": ["a", "b"]}, slots=2)
    world.submit([1, 2, 3, 4], tenant="t", idempotent=True)
    world.lose("a")
    (account,) = world.scheduler.tenants.busiest(9, 0.0)
    assert account.unanswered == 4 - sum(each in world.outcomes for each in range(1, 5))
    for _ in range(4):
        world.complete("b")
    assert account.unanswered == 0


def test_an_account_that_owes_time_is_not_forgotten() -> None:
    world = limited(max_calls_per_s=1, burst=1)
    small = World(
        {"v1": ["a"]}, book=TenantSettings(most=4, most_named=1), tenants=TenantLimits(max_calls_per_s=1, burst=1)
    )
    for each in (world, small):
        each.submit([1], tenant="a")
        each.complete("a")
        for number in range(2, 30):
            each.submit([number], tenant=f"t{number}")
            each.complete("a") if each.at_replica("a") else None
        each.submit([B], tenant="a")
        assert refusals(each, [B]), "a tenant does not get a new bucket because others call"


def test_refusals_of_long_ago_are_none_a_second_while_the_tenant_has_calls() -> None:
    world = limited(max_in_flight=1)
    world.submit([1, 2, 3], tenant="a")
    (soon,) = world.scheduler.tenants.loads(9, 1.0)
    (late,) = world.scheduler.tenants.loads(9, 600.0)
    assert (soon.refused_per_s > 0, late.refused_per_s, late.unanswered) == (True, 0.0, 1)
