"""A controller that shifts the traffic of endpoint `e` from v1 to v2, and routers that report what became of calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf import duration_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.histogram import CALL_TIMES
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {num_replicas: 1}
  v2: {num_replicas: 1}
  v3: {num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}, shadows: {v3: 0.5}}
"""
ERRORS = shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=0.01)
SLOW = shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_P99, max_time=duration_pb2.Duration(nanos=200_000_000))
LONG = duration_pb2.Duration(seconds=3_600)
SHORT = duration_pb2.Duration(seconds=1)


class CallTotals:
    """What a router has counted since its start."""

    def __init__(self) -> None:
        self._ends = {name: _no_ends() for name in ("v1", "v2", "v3")}
        self._copies = {"v3": _no_ends()}

    def end(self, backend: str, *, well: int = 0, time_s: float = 0.05, failed: int = 0, unanswered: int = 0) -> None:
        """So many calls more, those that ended well after this time, a bound of the histogram."""
        ends = self._ends[backend]
        ends.total += well + failed + unanswered
        ends.failed += failed
        ends.unanswered += unanswered
        ends.times[CALL_TIMES.index(time_s)] += well

    def loads(self) -> list[mesh_pb2.BackendLoad]:
        """As the router reports them."""
        return [
            mesh_pb2.BackendLoad(backend=name, sent=it.total, ended=it, shadow_ended=self._copies.get(name))
            for name, it in self._ends.items()
        ]

    def end_copies(self, backend: str, *, well: int = 0, failed: int = 0) -> None:
        """Copies of calls for a shadow ended."""
        ends = self._copies[backend]
        ends.total += well + failed
        ends.failed += failed
        ends.times[0] += well


def _no_ends() -> mesh_pb2.CallEnds:
    return mesh_pb2.CallEnds(times=[0] * (len(CALL_TIMES) + 1))


def shift_request(
    *guards: shift_pb.ShiftGuard,
    every: duration_pb2.Duration = LONG,
    step: float = 0.5,
    min_calls: int = 20,
    **weights: float,
) -> pb.ShiftTrafficRequest:
    """To v2, unless `weights` says something else."""
    return pb.ShiftTrafficRequest(
        endpoint="e", weights=weights or {"v2": 1.0}, step=step, every=every, guards=guards, min_calls=min_calls
    )


async def shift(mesh: Controlled) -> shift_pb.TrafficShift:
    """That of the endpoint."""
    (found,) = await newest_shifts(mesh)
    return found


async def newest_shifts(mesh: Controlled) -> list[shift_pb.TrafficShift]:
    """Of each endpoint that was shifted."""
    answer: pb.ListEndpointsResponse = await mesh.operator.ListEndpoints(pb.ListEndpointsRequest())
    return [it.status.shift for it in answer.endpoints if it.status.HasField("shift")]


async def shift_in(mesh: Controlled, phase: str) -> shift_pb.TrafficShift:
    """It, once it is in that phase."""

    async def ask() -> shift_pb.TrafficShift | None:
        found = await shift(mesh)
        return found if found.phase == shift_pb.ShiftPhase.Value(f"SHIFT_PHASE_{phase}") else None

    found = await eventually(ask, what=phase, timeout=40.0)
    assert found is not None
    return found


async def policy(mesh: Controlled) -> tuple[dict[str, float], dict[str, float]]:
    """Weights and shadows in force."""
    answer = await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name="e"))
    return dict(answer.endpoint.traffic.weights), dict(answer.endpoint.traffic.shadows)


def announced(table: membership_service_pb2.RoutingTable) -> Mapping[str, float]:
    """The weights of the endpoint in a table."""
    return next(dict(it.traffic.weights) for it in table.endpoints if it.name == "e")


@asynccontextmanager
async def shifting_controller(state: Path | None = None) -> AsyncIterator[tuple[Controlled, FakeRouter]]:
    """A controller with a replica of each backend, all ready, and a router."""
    async with running_controller(state=state) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH)
        for name in ("v1", "v2"):
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, name, f"{name}-a"))
            await replica.report("READY")
        router = await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        await router.wait_for(lambda table: len(table.endpoints) == 1, "the endpoint", timeout=40.0)
        await reported(mesh, router, CallTotals())
        yield mesh, router


async def reported(mesh: Controlled, router: FakeRouter, totals: CallTotals) -> None:
    """The router has reported these totals, and the controller has them."""
    loads = totals.loads()
    await router.acknowledge(loads=loads)

    def has_them() -> bool:
        observed = mesh.controller.state.observed.routers.get(router.router_id)
        return observed is not None and [it.sent for it in observed.loads] == [it.sent for it in loads]

    await wait_until(has_them, what="the report", timeout=40.0)


async def stop_shift(mesh: Controlled, **terms: Any) -> None:
    """Sets the present weights, which ends the shift where it is."""
    live = (await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name="e"))).endpoint
    only = FieldMask(paths=["weights"])
    request = pb.SetTrafficRequest(endpoint="e", traffic=live.traffic, update_mask=only, etag=live.etag, **terms)
    await mesh.operator.SetTraffic(request)


async def undo_shift(mesh: Controlled, **terms: Any) -> None:
    """Ends the shift, with the weights before it."""
    await mesh.operator.Rollback(pb.RollbackRequest(endpoint="e", **terms))
