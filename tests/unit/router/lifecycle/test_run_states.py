"""The life of a run is a table, and what it does not list is reported, logged and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router_service.core.events import CallsSubmitted, RunsCompleted
from router_service.core.run_states import ROWS, RUN_LIFE, RunEvent, RunState
from router_service.core.runs import RouterRun
from slotmesh.errors import Reason
from tests.unit.router.shell.test_dispatcher import Shell
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "call-states.md"
LAST = {RunState.ENDED, RunState.LEFT}


def state_of(run: RouterRun) -> RunState:
    return run.state


def test_every_state_is_reached_and_the_last_ones_are_not_left() -> None:
    reached, ahead = {RunState.NEW}, [RunState.NEW]
    while ahead:
        state = ahead.pop()
        new = {row[state] for row in ROWS.values() if state in row} - reached
        reached |= new
        ahead += new
    assert reached == set(RunState)
    assert {after for row in ROWS.values() for state, after in row.items() if state in LAST} <= LAST


def test_a_run_ends_wherever_it_is_but_in_a_queue() -> None:
    assert ROWS[RunEvent.ENDED].keys() == set(RunState) - {RunState.ENDED, RunState.QUEUED}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, [RunState.SENT]), ({"ordering_key": "k"}, [RunState.SENT])],
)
def test_a_run_that_finds_room_is_sent_at_once(fields: dict[str, Any], expected: list[RunState]) -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    world.submit([1, 2], **fields)
    assert [run.state for run in world.caller.runs] == expected
    world.complete("r")
    assert world.outcomes == {1: OK, 2: OK}


def test_a_run_of_which_a_part_waits_is_queued_until_all_of_it_was_sent() -> None:
    world = World({"b": ["r"]}, slots=1)
    world.submit([1, 2])
    (run,) = world.caller.runs
    assert state_of(run) is RunState.QUEUED
    world.complete("r", 1)
    assert state_of(run) is RunState.SENT
    world.complete("r", 2)
    assert state_of(run) is RunState.ENDED


def test_a_run_whose_deadline_has_passed_at_its_replica_has_ended() -> None:
    world = World({"b": ["r"]})
    world.submit([1], timeout_s=1.0)
    (run,) = world.caller.runs
    world.at(2.0)
    assert world.outcomes == {1: Reason.DEADLINE_RUNNING}
    assert state_of(run) is RunState.ENDED


def test_a_run_of_a_lane_that_stops_waits_overdue_for_its_replica() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    world.submit([1], client, ordering_key="k", stop_generation=1, timeout_s=1.0)
    (run,) = client.runs
    world.at(1.5)
    assert state_of(run) is RunState.OVERDUE
    world.stopped("r", (1, 1))
    assert state_of(run) is RunState.ENDED


@pytest.mark.asyncio
async def test_an_impossible_event_is_logged_and_counted_and_the_router_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shell = Shell()
    shell.table("r")
    shell.link("r")
    client = shell.attach(caller())
    shell.submit(client, 1)
    (run,) = client.runs
    run.state = RunState.ENDED
    shell.cut("r")
    shell.dispatcher.post(RunsCompleted(shell.replica("r"), [([1], [b"a"], "")], [], None))
    assert shell.dispatcher.counts.defects == 1
    assert "'last outcome' cannot happen to a run in state 'Ended'" in caplog.text
    shell.notes.take()
    shell.dispatcher.post(CallsSubmitted(client, "e", [(options(), [2], [b"x"])]))
    shell.cut("r")
    shell.dispatcher.post(RunsCompleted(shell.replica("r"), [([2], [b"a"], "")], [], None))
    assert shell.notes.take()[-1] == "DeliverResults [2]"
    assert shell.dispatcher.counts.defects == 1


def test_the_document_shows_the_table() -> None:
    assert f"```mermaid\n{RUN_LIFE.diagram()}\n```" in DOCUMENT.read_text("utf-8"), "run make format"
