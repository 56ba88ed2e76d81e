"""A shift that outlives its controller goes on where it was, one step at a time, judged by what comes from then on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from controller_service.store.state_document import export_state
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import Controlled, as_if_killed, eventually, running_controller, undo_newest
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.shifting import (
    ERRORS,
    SHORT,
    CallTotals,
    announced,
    newest_shifts,
    policy,
    reported,
    shift,
    shift_in,
    shift_request,
    shifting_controller,
    stop_shift,
)


async def calls_known(mesh: Controlled, calls: int) -> bool:
    return [it.calls for it in (await shift(mesh)).figures if it.backend == "v2"] == [calls]


@pytest.mark.asyncio
async def test_the_next_controller_goes_on_and_mixes_no_figures(tmp_path: Path) -> None:
    totals = CallTotals()
    async with shifting_controller(tmp_path / "state") as (mesh, router):
        request = shift_request(ERRORS, step=0.25, every=duration_pb2.Duration(seconds=2))
        await mesh.operator.ShiftTraffic(request)
        totals.end("v2", well=15, failed=0)
        await reported(mesh, router, totals)
        await eventually(lambda: calls_known(mesh, 15), what="the figures")
        begun = await shift(mesh)
        state = as_if_killed(tmp_path / "state")
        run_id = router.incarnation
    totals.end("v2", well=1_000, failed=500)  # while there was no controller: nobody knows in which step
    async with running_controller(state=state) as mesh, AsyncExitStack() as stack:
        found = await shift(mesh)
        assert (found.phase, found.step_number, found.start_time) == (
            shift_pb.SHIFT_PHASE_SHIFTING,
            1,
            begun.start_time,
        )
        assert await policy(mesh) == ({"v1": 0.75, "v2": 0.25}, {"v3": 0.5})
        router = FakeRouter(mesh.channel, "r")
        router.incarnation = run_id
        await stack.enter_async_context(router)
        await router.wait_for(lambda table: len(table.endpoints) == 1, "the endpoint", timeout=40.0)
        await reported(mesh, router, totals)
        await eventually(lambda: waits(mesh, "backend v2 has no ready replica"), what="that it waits for replicas")
        for name in ("v1", "v2"):
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, name, f"{name}-b"))
            await replica.report("READY")
        await eventually(lambda: waits(mesh, "0 of 20 calls"), what="that nothing of before counts")
        totals.end("v2", well=19)
        await reported(mesh, router, totals)
        await eventually(lambda: waits(mesh, "19 of 20 calls"), what="the new figures")
        totals.end("v2", well=1)
        await reported(mesh, router, totals)
        await eventually(lambda: is_at(mesh, 2), what="the second step")
        assert (await policy(mesh))[0] == {"v1": 0.5, "v2": 0.5}, "one step, however long it was due"
        totals.end("v2", failed=1)
        await reported(mesh, router, totals)
        ended = await shift_in(mesh, "ROLLED_BACK")
        assert "(1 of 1 calls) in step 2" in ended.reason
        assert await policy(mesh) == ({"v1": 1.0}, {"v3": 0.5}), "what was before the first controller's first step"


async def waits(mesh: Controlled, text: str) -> bool:
    return text in (await shift(mesh)).waits_for


async def is_at(mesh: Controlled, number: int) -> bool:
    return (await shift(mesh)).step_number == number


@pytest.mark.asyncio
async def test_what_has_ended_stays_ended_and_is_in_an_export(tmp_path: Path) -> None:
    async with shifting_controller(tmp_path / "state") as (mesh, _):
        await mesh.operator.ShiftTraffic(shift_request(ERRORS, every=SHORT))
        await stop_shift(mesh)
        ended = await shift(mesh)
        store = mesh.controller.store
        assert '"phase": "stopped"' in export_state(store.generation, store.read())
        state = as_if_killed(tmp_path / "state")
    async with running_controller(state=state) as mesh:
        assert await shift(mesh) == ended
        await mesh.operator.DeleteEndpoint(pb.DeleteEndpointRequest(name="e"))
        state = as_if_killed(state)
    async with running_controller(state=state) as mesh:
        assert await newest_shifts(mesh) == []


@pytest.mark.asyncio
async def test_a_rollback_undoes_all_steps_also_those_before_the_restart(tmp_path: Path) -> None:
    async with shifting_controller(tmp_path / "state") as (mesh, router):
        await mesh.operator.ShiftTraffic(shift_request(every=SHORT))
        await router.wait_for(
            lambda table: {"v2": 1.0}.items() <= announced(table).items(), "the second step", timeout=40.0
        )
        state = as_if_killed(tmp_path / "state")
    async with running_controller(state=state) as mesh:
        planned = await undo_newest(mesh, validate_only=True)
        done = await undo_newest(mesh)
        assert await policy(mesh) == ({"v1": 1.0}, {"v3": 0.5})
        assert list(done.updated) == list(planned.updated) == ["endpoint/e"]
        (first, *_) = [
            it.base_revision
            for it in reversed((await mesh.operator.ListRevisions(pb.ListRevisionsRequest())).revisions)
            if it.note.startswith("shift of e: step 1")
        ]
        assert done.rolled_back_to == planned.rolled_back_to == first
        assert (await shift(mesh)).phase != shift_pb.SHIFT_PHASE_SHIFTING


@pytest.mark.asyncio
async def test_a_rollback_of_a_shift_leaves_what_was_changed_during_it(tmp_path: Path) -> None:
    """No revision has that configuration, so that the reply names none."""
    async with shifting_controller(tmp_path / "state") as (mesh, router):
        await mesh.operator.ShiftTraffic(shift_request(every=duration_pb2.Duration(seconds=2)))
        other = mesh_pb2.Backend(name="v3", num_replicas=2)
        await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=other))
        await router.wait_for(
            lambda table: {"v2": 1.0}.items() <= announced(table).items(), "the second step", timeout=40.0
        )
        planned = await undo_newest(mesh, validate_only=True)
        assert not planned.HasField("rolled_back_to")
        assert not planned.deleted
        assert not (await undo_newest(mesh)).HasField("rolled_back_to")
        assert await policy(mesh) == ({"v1": 1.0}, {"v3": 0.5})
        assert (await mesh.operator.GetBackend(pb.GetBackendRequest(name="v3"))).backend.num_replicas == 2
