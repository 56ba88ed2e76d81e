"""`slotmesh traffic --shift` against a real controller, with a router that reports what a test says."""

from __future__ import annotations

import asyncio
import json

import pytest

from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import Controlled, eventually
from tests.support.shell import Said, slotmesh
from tests.support.shifting import CallTotals, newest_shifts, policy, reported, shift, shifting_controller

pytestmark = pytest.mark.asyncio

GUARDED = ("--every", "1s", "--step", "0.5", "--guard", "error_rate=0.01", "--guard", "p99=200ms", "--min-calls", "20")


async def run(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh(*arguments, env={"SLOTMESH_ADDRESS": mesh.controller.address})


@pytest.mark.long
async def test_who_waits_hears_that_it_went_back_and_why() -> None:
    async with shifting_controller() as (mesh, router):
        waiting = asyncio.create_task(run(mesh, "traffic", "e", "--shift", "v2=1.0", *GUARDED, "--wait"))
        await eventually(lambda: is_under_way(mesh), what="the shift")
        totals = CallTotals()
        totals.end("v2", well=20, failed=5)
        await reported(mesh, router, totals)
        said = await waiting
        assert said.status == 3
        why = "guard error_rate=0.01 tripped: backend v2 had 0.200 (5 of 25 calls) in step 1"
        assert said.err == f"e: rolled back: {why}\n"
        assert (await policy(mesh))[0] == {"v1": 1.0}
        for shown in (await run(mesh, "traffic", "endpoint/e"), await run(mesh, "describe", "endpoint/e")):
            assert shown.status == 0
            line = shown.out.splitlines()[-1]
            assert line.startswith("shift to v2=1: rolled back at ")
            assert line.endswith(f", step 1 of 2: {why}")


async def is_under_way(mesh: Controlled) -> bool:
    return any(it.phase == shift_pb.SHIFT_PHASE_SHIFTING for it in await newest_shifts(mesh))


async def test_who_waits_hears_that_it_got_there() -> None:
    async with shifting_controller() as (mesh, router):
        steps = ("--shift", "v2=1.0", "--step", "0.5", "--every", "1s")
        waiting = asyncio.create_task(run(mesh, "traffic", "e", *steps, "--wait"))
        await router.wait_for(
            lambda table: dict(table.endpoints[0].traffic.weights) == {"v2": 1.0}, what="the last step", timeout=40.0
        )
        assert not waiting.done(), "the router does not have it in force"
        await router.acknowledge()
        said = await waiting
        assert (said.status, said.err) == (0, "")
        assert said.out.splitlines()[-1].endswith("step 2 of 2: all steps were taken")
        assert (await policy(mesh))[0] == {"v2": 1.0}
        undone = await run(mesh, "rollback")
        assert (undone.status, undone.out.splitlines()[0]) == (0, "updated   endpoint/e")
        assert "slotmesh: the configuration is that of revision " in undone.err
        assert (await policy(mesh))[0] == {"v1": 1.0}, "what was before the shift, not before its last step"


@pytest.mark.long
async def test_a_rollback_says_when_it_leaves_what_others_have_changed() -> None:
    async with shifting_controller() as (mesh, _):
        assert (await run(mesh, "traffic", "e", "v1=1", "v3=0", "--no-wait")).status == 0
        await run(mesh, "traffic", "e", "--shift", "v2=1.0", "--step", "0.5", "--every", "1h")
        assert (await run(mesh, "scale", "v3", "2")).status == 0
        assert (await run(mesh, "traffic", "e", "--shift-stop")).status == 0
        assert (await policy(mesh))[0] == {"v1": 0.5, "v2": 0.5}
        undone = await run(mesh, "rollback")
        assert undone.status == 0
        assert undone.err == "slotmesh: the newest change is undone; changes since then stay\n"
        assert (await policy(mesh))[0] == {"v1": 1.0, "v3": 0.0}


@pytest.mark.long
async def test_it_is_shown_while_it_is_under_way_and_ended_as_is_said() -> None:
    async with shifting_controller() as (mesh, router):
        said = await run(mesh, "traffic", "e", "--shift", "v2=0.6", "--step", "0.3", "--guard", "p99=1s", "--json")
        assert said.status == 0
        document = json.loads(said.out)
        assert document["traffic"] == {"v1": 0.7, "v2": 0.3}
        shown = document["shift"]
        assert (shown["phase"], shown["step_number"], shown["steps"]) == ("SHIFTING", 1, 2)
        assert (shown["from"], shown["to"]) == ({"v1": 1.0}, {"v1": 0.4, "v2": 0.6})
        assert (shown["every_s"], shown["guards"], shown["min_calls"]) == (30.0, ["p99=1s"], 100)
        totals = CallTotals()
        totals.end("v2", well=7)
        await reported(mesh, router, totals)
        await eventually(lambda: has_calls(mesh), what="the figures")
        *_, line, figures = (await run(mesh, "traffic", "e")).out.splitlines()
        assert line == (
            "shift to v1=0.4 v2=0.6: shifting, step 1 of 2, every 30s, guards p99=1s (100 calls a step at least)"
        )
        assert figures == "  v2: 7 calls in this step, 0 failed, 0 not answered, p99 50ms at most"
        again = await run(mesh, "traffic", "e", "--shift", "v2=1")
        assert again.status == 1
        assert "end that first, with --shift-stop where it is or with --shift-back" in again.err
        late = await run(mesh, "traffic", "e", "--shift-stop", "--shift-back")
        assert late.status == 2
        assert (await run(mesh, "traffic", "e", "--shift-stop")).status == 0
        assert (await policy(mesh))[0] == {"v1": 0.7, "v2": 0.3}
        ended = await run(mesh, "traffic", "e", "--shift-back")
        assert (ended.status, ended.err.partition(";")[0]) == (1, "no shift of e is under way")
        assert "`slotmesh rollback` undoes one that has ended" in ended.err


async def has_calls(mesh: Controlled) -> bool:
    return any(it.calls for it in (await shift(mesh)).figures)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["v1=1", "--shift", "v2=1"], "one at a time"),
        (["--guard", "p99=1s"], "say how to --shift"),
        (["v1=1", "--every", "1s"], "say how to --shift"),
        (["--shift", "v2"], "expected BACKEND=SHARE"),
        (["--shift", "v2=1", "--guard", "p50=1s"], "expected error_rate=SHARE or p99=DURATION"),
        (["--shift", "v2=1", "--guard", "p99=200"], "expected error_rate=SHARE or p99=DURATION"),
        (["--shift", "v2=1", "--min-calls", "0"], "'--min-calls': must be at least 1, is 0"),
    ],
)
async def test_what_is_typed_wrongly_changes_nothing(arguments: list[str], expected: str) -> None:
    async with shifting_controller() as (mesh, _):
        said = await run(mesh, "traffic", "e", *arguments)
        assert said.status == 2
        assert expected in said.err
        assert (await policy(mesh))[0] == {"v1": 1.0}


async def test_a_backend_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with shifting_controller() as (mesh, _):
        for arguments in (["--shift", "v11=1.0"], ["v11=1.0"]):
            said = await run(mesh, "traffic", "e", *arguments)
            assert said.status == 1
            assert "no backend has this name; did you mean v1? (there are v1, v2, v3)" in said.err, said.err
        assert (await policy(mesh))[0] == {"v1": 1.0}
