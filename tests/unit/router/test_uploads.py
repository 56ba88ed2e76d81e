"""Calls whose payloads come in chunks keep their place among those of their key, and no other's."""

from __future__ import annotations

import pytest

from router_service.core.callers import Caller
from slotmesh.chunks import Announced, PayloadParts
from slotmesh.errors import Executed, Failure, Reason
from tests.unit.router.world import OK, World, caller, options


def payload_of(call_id: int) -> PayloadParts:
    return PayloadParts([b"%d" % call_id])


def announce(world: World, call_id: int, by: Caller, **fields: object) -> None:
    world.do(world.scheduler.submit(by, "e", [(options(**fields), [call_id], [Announced(100)])], world.now))


def upload(world: World, call_id: int, by: Caller) -> None:
    world.do(world.scheduler.uploaded(by, call_id, payload_of(call_id), world.now))


def test_a_call_is_sent_when_its_payload_is_complete() -> None:
    world, client = World({"b": ["r"]}), caller()
    announce(world, 1, client)
    assert world.got("r") == []
    assert world.scheduler.awaits(client, 1)
    upload(world, 1, client)
    assert world.got("r") == [1]
    assert not world.scheduler.awaits(client, 1)


def test_calls_of_its_key_wait_behind_it_in_order_and_others_pass() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    announce(world, 3, client, ordering_key="k")
    world.submit([4], by=client, ordering_key="k")
    world.submit([5], by=client, ordering_key="j")
    world.submit([6], by=client)
    assert sorted(world.got("r")) == [5, 6]
    upload(world, 3, client)
    assert sorted(world.got("r")) == [5, 6]
    upload(world, 1, client)
    assert world.got("r")[2:] == [1, 2, 3, 4]


def test_another_caller_of_the_key_does_not_wait() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], ordering_key="k")
    assert world.got("r") == [2]


def test_what_is_taken_back_before_it_is_complete_keeps_nobody_waiting() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    world.do(world.scheduler.cancel_calls(client, [(1, 1)], world.now))
    assert world.reasons([1]) == {Reason.CANCELLED}
    assert world.got("r") == [2]
    upload(world, 1, client)
    assert world.got("r") == [2]


def test_a_deadline_counts_while_the_payload_is_under_way() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k", timeout_s=5.0)
    world.submit([2], by=client, ordering_key="k")
    world.at(6.0)
    assert world.reasons([1]) == {Reason.DEADLINE_IN_QUEUE}
    assert world.got("r") == [2]


def test_a_payload_that_will_never_be_complete_fails_its_call_alone() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    failure = Failure(reason=Reason.BAD_REQUEST, message="chunk.offset: 7, where 0 comes next")
    world.do(world.scheduler.not_uploaded(client, 1, failure, world.now))
    assert (world.reasons([1]), world.failures[1].executed) == ({Reason.BAD_REQUEST}, Executed.NO)
    assert world.got("r") == [2]


@pytest.mark.parametrize("is_session", [False, True])
def test_a_caller_that_goes_leaves_nothing_behind(is_session: bool) -> None:
    world = World({"b": ["r"]})
    client = world.connect(1) if is_session else caller()
    announce(world, 1, client)
    world.do(
        world.scheduler.disconnected(client, world.now) if is_session else world.scheduler.cancel(client, world.now)
    )
    assert not client.runs
    upload(world, 1, client)
    assert world.got("r") == []


def test_a_session_is_asked_for_when_the_payload_of_what_comes_again_is_complete() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect(2, (1, 2))
    keyed = options(ordering_key="k")
    world.do(world.scheduler.submit_again(client, "e", [(keyed, [1], [Announced(9)])], 0.0, world.roster, world.now))
    world.resend([2], by=client, ordering_key="k")
    world.submit([3], by=client, ordering_key="k")
    world.reconcile("r", client)
    assert world.got("r") == []
    upload(world, 1, client)
    assert world.got("r") == [1, 2, 3]
    world.complete("r")
    assert world.reasons([2, 3]) == {OK}
