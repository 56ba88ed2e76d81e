"""Guards of shifts that look at a shadow: copies that fail there bring the weights back."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import Controlled, eventually, running_controller, violations
from tests.support.shifting import (
    ERRORS,
    SHORT,
    CallTotals,
    announced,
    newest_shifts,
    policy,
    shift,
    shift_in,
    shift_request,
    shifting_controller,
)

pytestmark = pytest.mark.asyncio
OF_SHADOW = shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=0.05, shadow="v3")


async def copies(mesh: Controlled, count: int) -> shift_pb.ShiftFigures:
    """The figures of the shadow, once so many copies are known of the step."""

    async def ask() -> shift_pb.ShiftFigures | None:
        return next((it for it in (await shift(mesh)).figures if it.shadow and it.calls == count), None)

    found = await eventually(ask, what=f"{count} copies", timeout=40.0)
    assert found is not None
    return found


@pytest.mark.parametrize("restarts", [False, True])
async def test_copies_that_fail_trip_it_whatever_else_goes_well(restarts: bool, tmp_path: Path) -> None:
    state = tmp_path / "state" if restarts else None
    async with shifting_controller(state) as (mesh, router):
        await mesh.operator.ShiftTraffic(shift_request(ERRORS, OF_SHADOW))
        assert [it.shadow for it in (await shift(mesh)).guards] == ["", "v3"]
        totals = CallTotals()
        totals.end("v2", well=500)
        totals.end_copies("v3", well=100)
        await router.acknowledge(loads=totals.loads())
        found = await copies(mesh, 100)
        assert (found.backend, found.failed) == ("v3", 0)
        totals.end_copies("v3", well=80, failed=20)
        await router.acknowledge(loads=totals.loads())
        await router.wait_for(lambda table: announced(table) == {"v1": 1.0}, "what was before", timeout=40.0)
        why = "guard v3:error_rate=0.05 tripped: shadow v3 had 0.100 (20 of 200 calls) in step 1"
        assert (await shift_in(mesh, "ROLLED_BACK")).reason == why
    if state is not None:
        async with running_controller(state=state) as mesh:
            assert [it.shadow for it in (await shift(mesh)).guards] == ["", "v3"], "as it was stored"


async def test_a_step_waits_for_copies_and_calls_that_fail_are_no_copies() -> None:
    async with shifting_controller() as (mesh, router):
        await mesh.operator.ShiftTraffic(shift_request(OF_SHADOW, every=SHORT))
        totals = CallTotals()
        totals.end("v2", failed=500)
        totals.end("v3", failed=500)
        totals.end_copies("v3", well=19)
        await router.acknowledge(loads=totals.loads())

        async def waits() -> bool:
            return (await shift(mesh)).waits_for.startswith("19 of 20 copies of calls of shadow v3 have ended")

        await eventually(waits, what="that it waits for one more", timeout=40.0)
        totals.end_copies("v3", well=1)
        await router.acknowledge(loads=totals.loads())
        await router.wait_for(lambda table: announced(table) == {"v1": 0.0, "v2": 1.0}, "the next step", timeout=40.0)
        assert (await policy(mesh))[1] == {"v3": 0.5}


async def test_a_guard_of_no_shadow_of_the_endpoint_is_refused() -> None:
    async with shifting_controller() as (mesh, _):
        of_none = shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=0.1, shadow="v2")
        for guards, field in (((of_none,), "guards[0].shadow"), ((OF_SHADOW, OF_SHADOW), "guards[1]")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await mesh.operator.ShiftTraffic(shift_request(*guards))
            assert violations(refused.value).keys() == {field}
        assert await newest_shifts(mesh) == []
