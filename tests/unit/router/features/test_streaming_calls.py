"""Calls whose handlers yield: values pass as they come, and settle nothing."""

from __future__ import annotations

import pytest

from router_service.core.commands import CancelRun, DeliverDone, DeliverFailure, DeliverTaken
from router_service.core.events import CallerLeft, RequestsTaken, RunsCompleted
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import PayloadParts
from tests.unit.router.world import DONE, OK, World
from tests.unit.router.world_callers import Fields, caller


def one(slots: int = 4) -> World:
    """A world with one replica, `r`."""
    return World({"b": ["r"]}, slots=slots, owner=("r", 1))


def pair() -> World:
    """A world with two replicas of one backend, the second one linked later."""
    world = World({"b": ["r", "s"]}, links_at_once=False)
    world.link("r")
    return world


class TestValues:
    def test_they_pass_in_order_and_the_call_goes_on(self) -> None:
        world = one()
        world.submit([7], streaming=True)
        world.give("r", c7=[b"1", b"2"])
        world.give("r", c7=[b"3"])
        assert world.values[7] == [b"1", b"2", b"3"]
        assert not world.outcomes
        assert world.caller.runs
        world.end("r")
        assert world.outcomes == {7: DONE}
        assert not world.caller.runs

    def test_those_of_several_calls_and_callers_are_told_apart(self) -> None:
        world = one()
        other = caller()
        world.submit([1, 2], streaming=True)
        world.submit([3], other, streaming=True)
        world.give("r", c1=[b"a", b"b", b"c"], c2=[b"x"], c3=[b"y", b"z"])
        assert world.values == {1: [b"a", b"b", b"c"], 2: [b"x"], 3: [b"y", b"z"]}
        world.end("r", 2)
        world.give("r", c1=[b"d"], c3=[b"w"])
        assert (world.values[1][-1], world.values[3][-1]) == (b"d", b"w")

    def test_a_call_holds_its_slot_and_its_lane_until_it_ends(self) -> None:
        world = one(slots=1)
        world.submit([1], streaming=True)
        world.submit([2])
        world.give("r", c1=[b"a"])
        assert world.at_replica("r") == [1]
        world.end("r", 1)
        assert world.at_replica("r") == [2]

    def test_a_value_and_the_end_may_come_in_one_frame(self) -> None:
        world = one()
        world.submit([1], streaming=True)
        replica = world.replicas["r"]
        world.do(world.scheduler.step(RunsCompleted(replica, [], [], None, [1], [([1], [b"last"], "")]), 0.0))
        assert world.values[1] == [b"last"]
        assert world.outcomes == {1: DONE}

    def test_a_failure_may_follow_them(self) -> None:
        world = one()
        world.submit([1], streaming=True)
        world.give("r", c1=[b"a"])
        world.fail("r", 1)
        assert world.values[1] == [b"a"]
        assert world.outcomes == {1: Reason.HANDLER_ERROR}

    def test_those_of_calls_that_have_ended_or_never_were_are_dropped(self) -> None:
        world = one()
        world.submit([1, 2], streaming=True)
        world.cancel((1, 1))
        world.give("r", c1=[b"late"], c2=[b"a"])
        assert world.values == {2: [b"a"]}
        world.end("r")
        replica = world.replicas["r"]
        world.do(world.scheduler.step(RunsCompleted(replica, [], [], None, [], [([1, 2, 77], [b"x"] * 3, "")]), 0.0))
        assert world.values == {2: [b"a"]}
        assert not world.taken["r"]

    def test_calls_with_and_without_streaming_are_no_batch(self) -> None:
        world = World({"b": ["r"]}, lazy=True)
        world.submit([1])
        world.submit([2], streaming=True)
        assert [batch.options.streaming for batch in world.cut("r")] == [False, True]


class TestWhoTakesThem:
    def test_those_of_a_shadow_are_taken_at_once(self) -> None:
        world = World({"b": ["r"], "dark": ["d"]}, shadows={"dark": 1.0})
        world.submit([1], streaming=True)
        world.give("d", c1=[b"a", b"b"])
        assert world.taken["d"] == {1: 2}
        assert not world.values
        world.give("r", c1=[b"a"])
        assert not world.taken["r"]

    @pytest.mark.parametrize("fields", [{}, {"no_reply": True}, {"no_reply": True, "streaming": True}])
    def test_those_that_nobody_asked_for_are_taken_at_once(self, fields: Fields) -> None:
        world = one()
        world.submit([1], **fields)
        world.give("r", c1=[b"a"])
        assert not world.values
        assert world.taken["r"] == {1: 1}
        world.end("r")
        assert world.outcomes == {1: DONE}

    def test_a_value_that_the_caller_cannot_take_ends_its_call(self) -> None:
        world = one()
        world.caller.max_value_bytes = 4
        world.submit([1, 2], streaming=True)
        world.give("r", c1=[b"fits", b"fit", PayloadParts([b"too", b"big"]), b"x"], c2=[b"y"])
        assert world.values == {1: [b"fits", b"fit"], 2: [b"y"]}
        assert world.outcomes == {1: Reason.PAYLOAD_TOO_LARGE}
        assert world.failures[1].executed is Executed.YES
        assert world.failures[1].metadata["actual"] == "6"
        assert world.cancelled["r"] == [1], "the handler is told to stop"
        world.end("r")
        assert world.outcomes[2] == DONE

    def test_it_may_be_the_only_one(self) -> None:
        world = one()
        world.caller.max_value_bytes = 4
        world.submit([1], streaming=True)
        world.give("r", c1=[b"large"])
        assert world.outcomes == {1: Reason.PAYLOAD_TOO_LARGE}


class TestLostReplicas:
    def test_what_has_given_a_value_is_not_executed_again(self) -> None:
        world = pair()
        world.submit([1, 2, 3], streaming=True, idempotent=True)
        world.give("r", c2=[b"a"])
        world.lose("r")
        assert world.outcomes == {2: Reason.REPLICA_LOST}
        assert world.failures[2].executed is Executed.YES
        world.link("s")
        assert world.at_replica("s") == [1, 3]
        world.give("s", c1=[b"b"])
        world.end("s")
        assert world.values == {1: [b"b"], 2: [b"a"]}

    def test_without_idempotence_nothing_is(self) -> None:
        world = pair()
        world.submit([1, 2], streaming=True)
        world.give("r", c1=[b"a"])
        world.lose("r")
        assert world.reasons([1, 2]) == {Reason.REPLICA_LOST}
        assert (world.failures[1].executed, world.failures[2].executed) == (Executed.YES, Executed.UNKNOWN)
        assert "broke after the handler had begun, before the call had ended" in world.failures[1].message
        assert "broke before it answered" in world.failures[2].message

    @pytest.mark.parametrize("fields", [{}, {"ordering_key": "k"}, {"idempotent": True}])
    def test_a_replica_that_cancels_at_its_end_has_executed_what_gave_a_value(self, fields: Fields) -> None:
        world = one()
        world.submit([1], streaming=True, **fields)
        world.give("r", c1=[b"a"])
        cut_off = Failure(reason=Reason.DRAINING, message="at its end", executed=Executed.UNKNOWN)
        world.step(RunsCompleted(world.replicas["r"], [], [([1], cut_off)], None, []))
        assert world.outcomes == {1: Reason.REPLICA_LOST}
        assert world.failures[1].executed is Executed.YES

    def test_what_ended_before_stays_as_it_was(self) -> None:
        world = pair()
        world.submit([1, 2], streaming=True, idempotent=True)
        world.give("r", c1=[b"a"], c2=[b"b"])
        world.end("r", 1)
        world.lose("r")
        assert world.outcomes == {1: DONE, 2: Reason.REPLICA_LOST}


class TestSessions:
    def test_a_connection_that_breaks_cancels_its_streaming_calls_and_no_other(self) -> None:
        world = one()
        client = world.connect()
        world.submit([1], client, streaming=True)
        world.submit([2], client)
        world.disconnect(client)
        assert world.cancelled["r"] == [1]
        assert not client.runs
        assert 2 not in world.outcomes
        world.end("r", 1)

    def test_what_was_not_sent_never_starts(self) -> None:
        world = World({"b": ["r"]}, slots=1, lazy=True)
        client = world.connect()
        world.submit([1, 2], client, streaming=True)
        world.disconnect(client)
        assert not world.cut("r")
        assert not world.queued
        assert not client.runs

    def test_it_stops_nothing_of_its_key_at_the_next_connection(self) -> None:
        world = one()
        client = world.connect()
        world.submit([1], client, streaming=True, ordering_key="k", stop_generation=1)
        world.disconnect(client)
        assert not client.stops

    def test_such_calls_are_not_sent_again(self) -> None:
        world = one()
        client = world.connect(2, (1, 1))
        world.resend([1], client, streaming=True)
        assert world.outcomes == {1: Reason.ROUTER_LOST}
        assert world.failures[1].executed is Executed.UNKNOWN
        assert not world.got("r")

    def test_nobody_keeps_their_outcomes(self) -> None:
        world = one()
        client = world.connect()
        commands = []
        world.submit([1, 2], client, streaming=True)
        for run_id, outcome in ((1, "done"), (2, "failure")):
            failures = [([run_id], failure())] if outcome == "failure" else []
            done = [run_id] if outcome == "done" else []
            commands += world.scheduler.step(RunsCompleted(world.replicas["r"], [], failures, None, done), 0.0)
        assert [type(each) for each in commands] == [DeliverDone, DeliverFailure]
        assert [each.replica for each in commands if isinstance(each, DeliverDone | DeliverFailure)] == [None, None]

    def test_nobody_keeps_anything_of_one_that_was_taken_back(self) -> None:
        world = one()
        client = world.connect()
        world.submit([1], client, streaming=True)
        world.submit([2], client)
        world.cancel((1, 2), by=client)
        world.end("r", 1)
        world.complete("r", 2)
        assert [each.replica for each in world.failure_commands] == [None, world.replicas["r"]]

    def test_other_calls_of_the_session_are_answered_as_ever(self) -> None:
        world = one()
        client = world.connect()
        world.submit([1], client, streaming=True)
        world.submit([2], client)
        world.complete("r", 2)
        assert world.outcomes == {2: OK}


def test_a_caller_that_leaves_has_its_handlers_stopped() -> None:
    world = one()
    world.submit([1], streaming=True)
    world.give("r", c1=[b"a"])
    commands = world.scheduler.step(CallerLeft(world.caller), world.now)
    assert any(isinstance(each, CancelRun) for each in commands)
    assert not world.caller.runs


def test_a_deadline_ends_a_call_that_yields() -> None:
    world = one()
    world.submit([1], streaming=True, timeout_s=2.0)
    world.give("r", c1=[b"a"])
    world.at(2.0)
    assert world.outcomes == {1: Reason.DEADLINE_RUNNING}
    assert world.failures[1].executed is Executed.YES
    assert world.cancelled["r"] == [1]
    world.give("r", c1=[b"late"])
    assert world.values[1] == [b"a"]


def test_a_call_with_a_value_that_is_taken_back_was_executed_and_others_may_have_been() -> None:
    world = one()
    world.submit([1, 2, 3], streaming=True)
    world.give("r", c2=[b"a"])
    world.cancel((1, 3))
    assert world.reasons([1, 2, 3]) == {Reason.CANCELLED}
    executed = [world.failures[call_id].executed for call_id in (1, 2, 3)]
    assert executed == [Executed.UNKNOWN, Executed.YES, Executed.UNKNOWN]


@pytest.mark.parametrize("end", ["lost", "deadline", "cancelled", "at its end"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_call_whose_handler_takes_requests_was_executed_without_a_value(end: str, is_idempotent: bool) -> None:
    """It is not sent again either: its requests are gone."""
    world = one()
    world.submit([1, 2], takes_requests=True, timeout_s=2.0, idempotent=is_idempotent)
    run_ids = {call_id: run_id for run_id, call_id in world.held["r"].items()}
    [taken] = world.scheduler.step(RequestsTaken(world.replicas["r"], [(run_ids[2], 0)]), 0.0)
    assert isinstance(taken, DeliverTaken)
    match end:
        case "lost":
            world.lose("r")
        case "deadline":
            world.at(2.0)
        case "cancelled":
            world.cancel((1, 2))
        case _:
            cut_off = Failure(reason=Reason.DRAINING, message="at its end", executed=Executed.UNKNOWN)
            world.step(RunsCompleted(world.replicas["r"], [], [([*run_ids.values()], cut_off)], None, []))
    assert world.failures[2].executed is Executed.YES
    is_sent_again = is_idempotent and end in {"lost", "at its end"}
    assert is_sent_again or world.failures[1].executed is Executed.UNKNOWN
    assert (1 in world.failures) is not is_sent_again


def test_a_failure_of_the_replica_that_leaves_it_open_is_executed_with_a_value() -> None:
    world = one()
    world.submit([1, 2], streaming=True)
    world.give("r", c1=[b"a"])
    overdue = Failure(reason=Reason.DEADLINE_RUNNING, message="late", executed=Executed.UNKNOWN)
    world.step(RunsCompleted(world.replicas["r"], [], [([1, 2], overdue)], None, []))
    assert (world.failures[1].executed, world.failures[2].executed) == (Executed.YES, Executed.UNKNOWN)


def failure() -> Failure:
    return Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)
