"""Trace contexts are kept for as long as their calls, whatever else came in one frame with these."""

from __future__ import annotations

from router_service.core.events import CallsResent, CallsSubmitted
from slotmesh.calls.trace_context import TraceContext
from tests.unit.router.world import World
from tests.unit.router.world_callers import options

CALLS = 64
TRACES = {call: TraceContext(f"00-{call:032x}-{call:016x}-01") for call in range(1, CALLS + 1)}
BATCHES = [(options(ordering_key=f"k{call}"), [call], [b"%d" % call]) for call in range(1, CALLS + 1)]


def test_a_run_keeps_those_of_its_own_calls_only() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    world.step(CallsSubmitted(world.caller, "e", BATCHES, dict(TRACES)))
    assert sorted(len(run.traces or ()) for run in world.caller.runs) == [1] * CALLS
    world.complete("r", *range(2, CALLS + 1))
    (left,) = world.caller.runs
    assert left.traces == {1: TRACES[1]}


def test_so_does_one_that_was_sent_before() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    session = world.connect(2, (1, CALLS))
    world.step(CallsResent(session, "e", BATCHES, 0.0, world.roster, dict(TRACES)))
    assert sorted(len(run.traces or ()) for run in session.runs) == [1] * CALLS


def test_calls_without_one_keep_none() -> None:
    world = World({"b": ["r"]})
    world.step(CallsSubmitted(world.caller, "e", [(options(), [1, 2, 3], [b"1", b"2", b"3"])], {2: TRACES[2]}))
    (run,) = world.caller.runs
    assert run.traces == {2: TRACES[2]}
    assert [list(batch.traces) for batch in world.batches["r"]] == [[None, TRACES[2], None]]
