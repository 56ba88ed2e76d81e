"""What routers report of how calls have ended, over real gRPC."""

from __future__ import annotations

import pytest

from slotmesh.histogram import CALL_TIMES
from slotmesh.v1 import mesh_pb2, router_service_pb2
from tests.support.fakes.replica import hold
from tests.support.router_bench import RouterBench, router_bench
from tests.support.wait import wait_until

REQUEST = router_service_pb2.CallRequest(endpoint="echo", payload=b"x")


def ended(mesh: RouterBench) -> mesh_pb2.CallEnds:
    """As the newest report says it."""
    loads = mesh.controller.reports[-1].loads if mesh.controller.reports else ()
    return next((it.ended for it in loads if it.backend == "b"), mesh_pb2.CallEnds())


@pytest.mark.asyncio
async def test_an_rpc_whose_deadline_passes_was_not_answered_and_one_that_is_cancelled_says_nothing() -> None:
    async with router_bench() as mesh:
        for _ in range(3):
            await mesh.stub.Call(REQUEST)
        await wait_until(lambda: ended(mesh).total == 3, what="the answers", timeout=30.0)
        for replica in mesh.replicas:
            replica.answer = hold
        cancelled = mesh.stub.Call(REQUEST, timeout=60.0)
        held = [mesh.stub.Call(REQUEST, timeout=3.0) for _ in range(2)]
        await wait_until(lambda: sum(len(it.runs) for it in mesh.replicas) >= 6, what="the calls", timeout=30.0)
        cancelled.cancel()
        for call in held:
            assert "DEADLINE_EXCEEDED" in str(await call.code())
        await wait_until(lambda: ended(mesh).total == 5, what="the ends", timeout=30.0)
        found = ended(mesh)
        assert (found.unanswered, found.failed, sum(found.times)) == (2, 0, 3)
        assert len(found.times) == len(CALL_TIMES) + 1
