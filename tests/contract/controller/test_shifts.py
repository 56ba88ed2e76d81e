"""Shifts of traffic as operators ask for them, by rpc, and what routers are told."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.convert.specification import mesh_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import Controlled, eventually, violations
from tests.support.shifting import (
    ERRORS,
    MESH,
    SHORT,
    SLOW,
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
    undo_shift,
)


async def begin(mesh: Controlled, *guards: shift_pb.ShiftGuard, **said: Any) -> pb.ShiftTrafficResponse:
    answer: pb.ShiftTrafficResponse = await mesh.operator.ShiftTraffic(
        shift_request(*guards, **said), metadata=(("slotmesh-client", "a test"),)
    )
    return answer


async def counted(mesh: Controlled, calls: int) -> shift_pb.ShiftFigures:
    """The figures of v2, once so many calls are known of the step."""

    async def ask() -> shift_pb.ShiftFigures | None:
        figures = [it for it in (await shift(mesh)).figures if it.calls == calls]
        return figures[0] if figures else None

    found = await eventually(ask, what=f"{calls} calls", timeout=40.0)
    assert found is not None
    return found


async def events(mesh: Controlled) -> list[tuple[str, str]]:
    """Those of shifts, oldest first."""
    watch = mesh.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True, until_newest=True))
    kinds = [(pb.EventKind.Name(event.kind), event.message) async for event in watch]
    return [(kind.removeprefix("EVENT_KIND_TRAFFIC_SHIFT_"), text) for kind, text in kinds if "TRAFFIC_SHIFT" in kind]


@pytest.mark.asyncio
async def test_it_gets_there_step_by_step_and_every_step_is_in_the_history() -> None:
    async with shifting_controller() as (mesh, router):
        answer = await begin(mesh, ERRORS, SLOW, every=SHORT)
        assert answer.steps == 2
        assert await policy(mesh) == ({"v1": 0.5, "v2": 0.5}, {"v3": 0.5})
        totals = CallTotals()
        await eventually(lambda: _waits(mesh, "0 of 20 calls of backend v2"), what="that it waits for calls")
        totals.end("v2", well=30)
        await router.acknowledge(loads=totals.loads())
        await router.wait_for(lambda table: announced(table) == {"v1": 0.0, "v2": 1.0}, "the second step", timeout=40.0)
        await eventually(lambda: _waits(mesh, "0 of 20 calls"), what="that calls of the first step are over")
        totals.end("v2", well=20)
        await router.acknowledge(loads=totals.loads())
        done = await shift_in(mesh, "COMPLETE")
        assert (done.step_number, done.steps, dict(done.from_weights)) == (2, 2, {"v1": 1.0})
        assert await policy(mesh) == ({"v2": 1.0}, {"v3": 0.5}), "v1 can be deleted now"
        page = await mesh.operator.ListRevisions(pb.ListRevisionsRequest())
        assert [(it.who.partition(" at ")[0], it.note) for it in page.revisions[:-1]] == [
            ("controller", "shift of e: all steps were taken; v1 removed from the policy, with weight 0"),
            ("controller", "shift of e: step 2 of 2"),
            ("a test", "shift of e: step 1 of 2"),
        ]
        assert [kind for kind, _ in await events(mesh)] == ["STARTED", "STEPPED", "COMPLETE"]


async def _waits(mesh: Controlled, text: str) -> bool:
    return text in (await shift(mesh)).waits_for


@pytest.mark.asyncio
async def test_a_guard_that_trips_brings_the_weights_before_back_and_says_why() -> None:
    async with shifting_controller() as (mesh, router):
        await begin(mesh, ERRORS, SLOW)
        totals = CallTotals()
        totals.end("v1", failed=400)  # it is not the new one's fault
        totals.end("v2", well=100)
        await router.acknowledge(loads=totals.loads())
        await counted(mesh, 100)
        totals.end("v2", well=383, failed=12, unanswered=5)
        await router.acknowledge(loads=totals.loads())
        await router.wait_for(lambda table: announced(table) == {"v1": 1.0}, "what was before", timeout=40.0)
        ended = await shift_in(mesh, "ROLLED_BACK")
        why = "guard error_rate=0.01 tripped: backend v2 had 0.034 (17 of 500 calls) in step 1"
        assert ended.reason == why
        assert ended.end_time.seconds
        assert await policy(mesh) == ({"v1": 1.0}, {"v3": 0.5})
        newest = (await mesh.operator.ListRevisions(pb.ListRevisionsRequest())).revisions[0]
        assert newest.note == f"shift of e: {why}"
        kind, message = (await events(mesh))[-1]
        assert kind == "ROLLED_BACK"
        assert message.startswith(f"{why}; v1=1 again, at revision ")


@pytest.mark.asyncio
async def test_slow_calls_trip_it_by_the_bound_above_them() -> None:
    async with shifting_controller() as (mesh, router):
        await begin(mesh, SLOW)
        totals = CallTotals()
        totals.end("v2", well=99, time_s=0.2)
        totals.end("v2", well=1, time_s=20.0)
        await router.acknowledge(loads=totals.loads())
        assert (await counted(mesh, 100)).p99.ToMilliseconds() == 200, "one of a hundred may take longer"
        totals.end("v2", well=10, time_s=0.3)
        await router.acknowledge(loads=totals.loads())
        ended = await shift_in(mesh, "ROLLED_BACK")
        assert "p99=200ms tripped: backend v2 had up to 300ms (11 of 110 calls took longer than 200ms)" in ended.reason


@pytest.mark.asyncio
async def test_a_router_that_restarts_is_counted_anew_and_none_is_counted_twice() -> None:
    async with shifting_controller() as (mesh, router):
        totals = CallTotals()
        totals.end("v2", well=1_000, failed=1_000)  # from before the shift
        await reported(mesh, router, totals)
        await begin(mesh, ERRORS)
        totals.end("v2", well=100)
        await router.acknowledge(loads=totals.loads())
        await counted(mesh, 100)
        router.incarnation = "ab" * 16
        await router.cut()
        await router.attach()
        totals = CallTotals()
        totals.end("v2", well=2_000)
        await router.acknowledge(loads=totals.loads())
        await counted(mesh, 2_100)
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_SHIFTING


@pytest.mark.asyncio
async def test_who_changes_the_weights_meanwhile_ends_it_and_shadows_do_not() -> None:
    async with shifting_controller() as (mesh, _):
        await begin(mesh)
        shadows = mesh_pb2.TrafficPolicy(shadows={"v2": 0.2})
        only = FieldMask(paths=["shadows"])
        await mesh.operator.SetTraffic(pb.SetTrafficRequest(endpoint="e", traffic=shadows, update_mask=only))
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_SHIFTING
        await mesh.operator.SetTraffic(
            pb.SetTrafficRequest(
                endpoint="e",
                traffic=mesh_pb2.TrafficPolicy(weights={"v1": 0.7, "v2": 0.3}),
                update_mask=FieldMask(paths=["weights"]),
            ),
            metadata=(("slotmesh-client", "somebody"),),
        )
        ended = await shift(mesh)
        assert ended.phase == shift_pb.SHIFT_PHASE_OVERTAKEN
        assert ended.reason.startswith("its traffic was changed by somebody at 127.0.0.1:")
        assert ended.reason.endswith("in step 1 of 2")
        assert await policy(mesh) == ({"v1": 0.7, "v2": 0.3}, {"v2": 0.2})
        await eventually(lambda: _told(mesh, "ENDED", "changed by somebody"), what="the event")

        await begin(mesh)
        await mesh.apply(MESH.replace("v1: 1.0", "v3: 1.0"))
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_OVERTAKEN

        await begin(mesh)
        await eventually(lambda: _told(mesh, "STARTED", "v2=0.5, v3=0.5"), what="the start")
        await mesh.operator.DeleteEndpoint(pb.DeleteEndpointRequest(name="e"))
        assert await newest_shifts(mesh) == []
        await eventually(lambda: _told(mesh, "ENDED", "the endpoint was deleted"), what="the event")


@pytest.mark.asyncio
async def test_a_file_that_is_applied_again_does_not_end_it_unless_it_says_other_weights() -> None:
    async with shifting_controller() as (mesh, _):

        async def apply(text: str) -> None:
            wire = mesh_to_wire(parse_mesh(text))
            await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=wire, merge=True))

        await apply(MESH)
        await begin(mesh)
        await apply(MESH.replace("v1: {num_replicas: 1}", "v1: {num_replicas: 2}"))
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_SHIFTING
        assert (await policy(mesh))[0] == {"v1": 0.5, "v2": 0.5}
        with pytest.raises(grpc.aio.AioRpcError, match="force it"):
            await apply(MESH.replace("v1: 1.0", "v3: 1.0"))
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_SHIFTING


async def _told(mesh: Controlled, kind: str, text: str) -> bool:
    return any(it == kind and text in message for it, message in await events(mesh))


@pytest.mark.asyncio
@pytest.mark.parametrize(("go_back", "expected"), [(False, {"v1": 0.5, "v2": 0.5}), (True, {"v1": 1.0})])
async def test_an_operator_ends_it_where_it_is_or_goes_back(go_back: bool, expected: dict[str, float]) -> None:
    async with shifting_controller() as (mesh, _):
        await begin(mesh)
        with pytest.raises(grpc.aio.AioRpcError, match="with --shift-stop where it is or with --shift-back"):
            await begin(mesh, v3=1.0)
        end = undo_shift if go_back else stop_shift
        await end(mesh, validate_only=True)
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_SHIFTING
        await end(mesh)
        assert (await shift(mesh)).phase == shift_pb.SHIFT_PHASE_STOPPED
        assert (await policy(mesh))[0] == expected
        assert [kind for kind, _ in await events(mesh)] == ["STARTED", "ENDED"]
        with pytest.raises(grpc.aio.AioRpcError, match="no shift of e is under way"):
            await undo_shift(mesh)


@pytest.mark.asyncio
async def test_what_it_may_go_back_to_cannot_be_deleted_meanwhile() -> None:
    async with shifting_controller() as (mesh, _):
        await begin(mesh, step=1.0)
        assert (await policy(mesh))[0] == {"v1": 0.0, "v2": 1.0}
        with pytest.raises(grpc.aio.AioRpcError, match="is named by the traffic of e"):
            await mesh.operator.DeleteBackend(pb.DeleteBackendRequest(name="v1"))
        await undo_shift(mesh)
        assert (await policy(mesh))[0] == {"v1": 1.0}


@pytest.mark.asyncio
async def test_every_mistake_is_named_and_nothing_changed() -> None:
    async with shifting_controller() as (mesh, _):
        guards = [
            shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=1.5),
            shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_P99, max_time=duration_pb2.Duration(seconds=31)),
        ]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await begin(
                mesh, *guards, step=0.001, every=duration_pb2.Duration(nanos=1), min_calls=-1, v2=0.7, no=math.nan
            )
        assert violations(refused.value).keys() == {
            *("guards[0].max_error_rate", "guards[1].max_time", "step", "every", "min_calls", 'weights["no"]'),
        }
        for request, field in [
            (shift_request(shift_pb.ShiftGuard()), "guards[0].figure"),
            (shift_request(ERRORS, shift_pb.ShiftGuard(figure=SLOW.figure)), "guards[1].max_time"),
            (shift_request(shift_pb.ShiftGuard(figure=SLOW.figure, max_error_rate=0.1)), "guards[0].max_time"),
            (shift_request(shift_pb.ShiftGuard(figure=ERRORS.figure)), "guards[0].max_error_rate"),
            (shift_request(ERRORS, ERRORS), "guards[1]"),
            (shift_request(v2=0.7, v3=0.7), "weights"),
            (shift_request(v1=1.0), "weights"),
            (shift_request(v1=0.5), "weights"),
            (shift_request(step=math.nan), "step"),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await mesh.operator.ShiftTraffic(request)
            assert field in violations(refused.value), refused.value.details()
        with pytest.raises(grpc.aio.AioRpcError, match="no endpoint is named 'no'; there is: e"):
            await mesh.operator.ShiftTraffic(pb.ShiftTrafficRequest(endpoint="no"))
        assert await newest_shifts(mesh) == []
        dry = shift_request()
        dry.validate_only = True
        assert (await mesh.operator.ShiftTraffic(dry)).steps == 2
        assert await policy(mesh) == ({"v1": 1.0}, {"v3": 0.5})
