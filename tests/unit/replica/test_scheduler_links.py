"""Decisions that a scenario shows best: calls of links that are not fresh wait."""

from __future__ import annotations

from replica_service.core.events import (
    CallsEnded,
    DrainBegan,
    LinkClosed,
    RunsCancelled,
    RunsReceived,
    SessionsMoved,
    StampEchoed,
    TurnEnded,
    WorkReturned,
)
from replica_service.core.runs import RouterPeer
from replica_service.core.work import StartCalls
from tests.unit.replica.scheduler_notes import run, scheduler, told, turn_of


def fenced_link(fresh_until: float = 3.0) -> RouterPeer:
    link = RouterPeer()
    link.fresh_until = fresh_until
    return link


def test_calls_of_a_link_that_is_not_fresh_wait_for_its_echo_and_hold_nobody_up() -> None:
    core, silent, other = scheduler(max_ongoing=2), fenced_link(), RouterPeer()
    sent = [
        run(silent, 1, 2),
        run(silent, 3, 1, key="k"),
        run(silent, 4, 1, key="k"),
        run(silent, 5, 2, method="batch"),
    ]
    assert told(core.step(RunsReceived(sent), 3.0)) == ["refuse 6-6 QUEUE_FULL"]
    theirs = [run(other, 1, 1), run(other, 2, 1, key="k")]
    started = core.step(RunsReceived(theirs), 3.0)
    assert sorted(told(started)) == ["calls 1-1", "turn 2-2"]
    assert core.capacity(other).others == 1, "the lane's permit"
    assert told(core.step(StampEchoed(silent, 0.0), 3.5)) == [], "the stamp is too old"
    core.step(CallsEnded(theirs[0], 1), 3.5)
    core.step(TurnEnded(turn_of(started), 1), 3.5)
    assert told(core.step(StampEchoed(silent, 3.4), 3.5)) == ["turn 3-3", "calls 1-1"]


def test_parked_runs_of_a_key_start_in_order() -> None:
    core, link = scheduler(), fenced_link()
    core.step(RunsReceived([run(link, 1, 1, key="k"), run(link, 2, 1, key="k"), run(link, 3, 1, key="k")]), 3.0)
    first = core.step(StampEchoed(link, 3.0), 3.0)
    second = core.step(TurnEnded(turn_of(first), 1), 3.0) if told(first) == ["turn 1-1"] else []
    assert told(second)[:1] == ["turn 2-2"]


def test_what_is_parked_is_taken_back_handed_back_and_dropped() -> None:
    for event, answer in (
        ("cancel", "fail 1-2 CANCELLED"),
        ("close", "fail 1-2 CANCELLED"),
        ("drain", "refuse 1-2 DRAINING"),
        ("hand back", "refuse 1-2 SESSION_FENCED"),
    ):
        for key in ("", "k"):
            core, link = scheduler(), fenced_link()
            sent = run(link, 1, 2, key=key)
            assert told(core.step(RunsReceived([sent]), 3.0)) == []
            match event:
                case "cancel":
                    commands = core.step(RunsCancelled(link, [(1, 2)]), 3.0)
                case "close":
                    commands = core.step(LinkClosed(link), 3.0)
                case "drain":
                    commands = core.step(DrainBegan(), 3.0)
                case _:
                    commands = core.step(SessionsMoved([sent]), 3.0)
            assert told(commands) == [answer]
            assert core.is_idle
            assert (core.waiting, core.in_use, core.keyed, link.unkeyed, link.waiting) == (0, 0, 0, 0, {})


def test_a_turn_that_did_not_come_to_its_first_call_waits_again() -> None:
    core, link = scheduler(), fenced_link()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 3, key="k")]), 0.0))
    assert told(core.step(TurnEnded(turn, 0), 3.0)) == []
    assert core.in_use == 0
    assert told(core.step(StampEchoed(link, 3.0), 3.0)) == ["turn 1-3"]


def test_calls_that_executors_give_back_are_dropped_with_their_link() -> None:
    core, link = scheduler(), fenced_link()
    work, other = core.step(RunsReceived([run(link, 1, 2), run(link, 3, 2)]), 0.0)
    assert isinstance(work, StartCalls)
    assert isinstance(other, StartCalls)
    core.step(LinkClosed(link), 0.0)
    assert told(core.step(WorkReturned(work), 0.0)) == ["fail 1-2 CANCELLED"]
    core.step(CallsEnded(other.run, 2), 0.0)
    assert core.is_idle
