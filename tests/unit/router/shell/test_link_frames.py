"""Cancels and acknowledgements to a replica are cut into frames, however many have gathered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router_service.core.callers import Window
from router_service.core.calls import NO_OPTIONS
from router_service.core.commands import CancelRun
from router_service.core.events import CallsSubmitted
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.core.runs import Caller, RouterRun, Sent
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.replicas.frames import LinkFrames, Request
from slotmesh.streams.limits import MAX_FRAME_RANGES
from tests.support.fakes.clock import FakeClock
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller


@pytest.fixture
def replica() -> RoutedReplica:
    return World({"b": ["r"]}).replicas["r"]


@pytest.fixture
def frames(replica: RoutedReplica) -> LinkFrames:
    return LinkFrames(replica, None, FakeClock(), lambda: None)  # type: ignore[arg-type]  # nothing is cut of its calls


def all_of(frames: LinkFrames) -> Iterator[Request]:
    while (frame := frames.next_frame()) is not None:
        yield frame


def session(number: int, ranges: int) -> SessionConnection:
    return SessionConnection(f"{number:032x}", 2, [(2 * at + 1, 2 * at + 1) for at in range(ranges)])


@pytest.mark.asyncio
async def test_sessions_are_asked_about_as_many_at_a_time_as_fit(frames: LinkFrames) -> None:
    asked = [session(number, MAX_FRAME_RANGES // 4) for number in range(10)]
    for each in asked:
        frames.reconcile(each)
    told = [frame.reconcile for frame in all_of(frames)]
    assert [len(each.sessions) for each in told] == [4, 4, 2]
    assert [each.session_id for frame in told for each in frame.sessions] == [each.session_id for each in asked]
    spans = [(each.first, each.last) for each in told[0].sessions[0].calls]
    assert spans == asked[0].unanswered


@pytest.mark.asyncio
async def test_one_session_is_asked_about_as_a_whole(frames: LinkFrames) -> None:
    for number, ranges in enumerate((1, 3 * MAX_FRAME_RANGES, 1)):
        frames.reconcile(session(number, ranges))
    told = [[len(each.calls) for each in frame.reconcile.sessions] for frame in all_of(frames)]
    assert told == [[1], [3 * MAX_FRAME_RANGES], [1]]


@pytest.mark.asyncio
async def test_runs_go_between_questions() -> None:
    """Each question keeps the replica busy for as long as thousands of calls."""
    world = World({"b": ["r"]}, lazy=True)
    replica = world.replicas["r"]
    dispatcher = Dispatcher(world.scheduler, FakeClock(), lambda *_: None)  # type: ignore[arg-type]
    frames = LinkFrames(replica, dispatcher, FakeClock(), lambda: None)
    for number in range(3):
        frames.reconcile(session(number, MAX_FRAME_RANGES))
    told: list[str | None] = []
    for frame in all_of(frames):
        told.append(frame.WhichOneof("frame"))
        if len(told) == 1:
            world.step(CallsSubmitted(caller(), "e", [(NO_OPTIONS, [1], [b""])]))
    assert told == ["reconcile", "runs", "reconcile", "reconcile"]


@pytest.mark.asyncio
async def test_cancels_and_takes_are_cut(frames: LinkFrames, replica: RoutedReplica) -> None:
    many = MAX_FRAME_RANGES + 1
    run = RouterRun(1, Caller(Window(1, 1)), "e", NO_OPTIONS, range(1, many + 1), [b""] * many, 0.0)
    sent = Sent(run, 0, many, replica, 0, 0.0)
    sent.first = 1
    for at in range(many):
        frames.cancel(CancelRun(sent, at, 1))
        frames.take(at + 1, 1)
    told = [(len(frame.cancel.runs), len(frame.take.call_ids)) for frame in all_of(frames)]
    assert told == [(MAX_FRAME_RANGES, 0), (1, 0), (0, MAX_FRAME_RANGES), (0, 1)]


@pytest.mark.asyncio
async def test_acknowledgements_are_cut(frames: LinkFrames) -> None:
    for at in range(MAX_FRAME_RANGES + 1):
        frames.forget(2 * at + 1, 1)
    frames.flush()
    assert [len(frame.ack.runs) for frame in all_of(frames)] == [MAX_FRAME_RANGES, 1]
