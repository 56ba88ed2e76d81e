"""The life of a call as a table: what cannot happen changes nothing, is reported, logged and counted."""

from __future__ import annotations

import logging

import pytest

from replica_service.core.call_states import CALL_LIFE, LANE_LIFE, CallEvent, CallState, LaneEvent, LaneState
from replica_service.core.events import (
    BatchEnded,
    CallsEnded,
    PayloadReceived,
    ReportDefect,
    RunsReceived,
    TurnEnded,
    TurnsEnded,
    WorkReturned,
)
from replica_service.core.runs import RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from tests.unit.replica.hosting import hosting
from tests.unit.replica.scheduler_notes import batch_of, run, scheduler, told, turn_of


def counts(core: ReplicaScheduler, link: RouterPeer) -> tuple[int, ...]:
    return core.in_use, core.waiting, core.keyed, link.unkeyed, link.keyed, link.handed, len(link.waiting)


def defects(core: ReplicaScheduler, event: object) -> list[str]:
    commands = core.step(event, 1.0)  # type: ignore[arg-type]
    assert all(isinstance(command, ReportDefect) for command in commands), told(commands)
    return told(commands)


def test_each_state_can_be_reached_and_but_for_the_last_left() -> None:
    for table, states, last in ((CALL_LIFE, CallState, CallState.ENDED), (LANE_LIFE, LaneState, LaneState.DROPPED)):
        reached = {after for (state, _), after in table.steps.items() if state is not after}
        left = {state for state, _ in table.steps}
        first = next(iter(table.steps))[0]
        assert reached | {first, CallState.UPLOADING} >= {*states}
        assert left == {*states} - {last}


def test_each_event_can_happen() -> None:
    for table, events in ((CALL_LIFE, CallEvent), (LANE_LIFE, LaneEvent)):
        assert {event for _, event in table.steps} == {*events}


def test_calls_end_only_once() -> None:
    core, link = scheduler(max_ongoing=4), RouterPeer()
    calls = run(link, 1, 3)
    core.step(RunsReceived([calls]), 0.0)
    core.step(CallsEnded(calls, 2), 0.0)
    before = counts(core, link)
    assert defects(core, CallsEnded(calls, 2)) == [
        "defect: 'executed' cannot happen to calls of a run in state 'Executing'"
    ]
    assert counts(core, link) == before
    core.step(CallsEnded(calls, 1), 0.0)
    assert defects(core, CallsEnded(calls, 1)) == [
        "defect: 'executed' cannot happen to calls of a run in state 'Ended'"
    ]
    assert defects(core, WorkReturned(StartCalls(calls, 0, 1))) == [
        "defect: 'returned unstarted' cannot happen to calls of a run in state 'Ended'"
    ]
    assert counts(core, link) == (0,) * 7
    assert core.is_idle


def test_a_run_is_accepted_only_once() -> None:
    core, link = scheduler(max_ongoing=4), RouterPeer()
    calls = run(link, 1, 1)
    core.step(RunsReceived([calls]), 0.0)
    before = counts(core, link)
    assert "'accepted' cannot happen" in defects(core, RunsReceived([calls]))[0]
    assert counts(core, link) == before


def test_a_turn_ends_only_once() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 2, key="a")]), 0.0))
    core.step(TurnEnded(turn, 2), 0.0)
    for event in (TurnEnded(turn, 2), TurnEnded(turn, 0), TurnsEnded([turn])):
        assert len(defects(core, event)) == 1
        assert counts(core, link) == (0,) * 7
    assert core.is_idle


def test_a_turn_that_ends_behind_its_calls_ends_with_them() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 2, key="a")]), 0.0))
    assert len(defects(core, TurnEnded(turn, 3))) == 1
    assert counts(core, link) == (0,) * 7


def test_a_batch_ends_only_once() -> None:
    core, link = scheduler(), RouterPeer()
    batch = batch_of(
        core.step(RunsReceived([run(link, 1, 4, method="batch"), run(link, 9, 1, method="batch", key="a")]), 9.0)
    )
    core.step(BatchEnded(batch), 9.0)
    before = counts(core, link)
    for event in (BatchEnded(batch), WorkReturned(batch)):
        assert len(defects(core, event)) == 1
        assert counts(core, link) == before


def test_a_payload_that_is_not_awaited_has_no_effect() -> None:
    core, link = scheduler(max_ongoing=1), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1)]), 0.0)
    waiting = run(link, 2, 1)
    core.step(RunsReceived([waiting]), 0.0)
    assert told(core.step(PayloadReceived(waiting, b"other"), 0.0)) == []
    assert waiting.payloads != [b"other"]


@pytest.mark.asyncio
async def test_a_defect_is_logged_and_counted_and_the_replica_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Echo:
        async def __call__(self, payload: bytes) -> bytes:
            return payload

    caplog.set_level(logging.ERROR)
    async with hosting(Echo) as host:
        calls = host.run("", [b"1"])
        await host.execute(calls)
        host.engine.post(CallsEnded(calls, 1))
        assert host.engine.counters.defects == 1
        assert "a defect of the replica: an event was ignored" in caplog.text
        outbox = await host.execute(host.run("", [b"2"]))
        assert list(outbox.results_of.values())[-1] == b"2"
