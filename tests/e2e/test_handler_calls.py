"""What a handler knows of its calls, and what of it can be called, in one real mesh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Literal

import grpc
import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK
from slotmesh.errors import Executed, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.mesh import MeshRun, started_mesh
from tests.support.recorder import VARIABLE
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(120)

LOOP: Final[Literal["module"]] = "module"
"""The mesh is shared, so the event loop is."""


@pytest_asyncio.fixture(scope="module", loop_scope=LOOP)
async def curious_mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MeshRun]:
    records = tmp_path_factory.mktemp("curious") / "records"
    async with started_mesh("tests.e2e.life_handlers:Curious", env={VARIABLE: str(records)}) as mesh:
        yield mesh


@pytest_asyncio.fixture(scope="module", loop_scope=LOOP)
async def curious(curious_mesh: MeshRun) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(curious_mesh.router_address) as client:
        yield client.endpoint("Curious")


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_what_a_handler_knows_of_a_call(curious: slotmesh.Endpoint) -> None:
    view = curious.options(metadata={"tenant": "blue"}, timeout=30)
    for method in ("who", "who_in_thread"):
        one, two = await asyncio.gather(view.method(method)(), view.ordered("k").method(method)())
        assert (one["endpoint"], one["method"], one["metadata"]) == ("Curious", method, {"tenant": "blue"})
        assert 0 < one["time_left"] <= 30
        assert (one["ordering_key"], two["ordering_key"]) == ("", "k")
        assert one["session_id"] == two["session_id"] != ""
        assert (one["attempt"], two["attempt"]) == (0, 0)
        assert one["idempotency_key"] != two["idempotency_key"]
    seen = await asyncio.gather(*[curious.who() for _ in range(300)])
    assert len({each["call_id"] for each in seen}) == len({each["idempotency_key"] for each in seen}) == 300
    together = await asyncio.gather(*[curious.who_together(f"n{number}") for number in range(50)])
    assert [name for name, _ in together] == [f"n{number}" for number in range(50)]
    assert len({call_id for _, call_id in together}) == 50


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_what_is_private_is_nobodys_to_call(curious_mesh: MeshRun) -> None:
    """Not even where a client does not refuse by itself."""
    async with open_channel(curious_mesh.router_address) as channel:
        router = router_service_pb2_grpc.RouterServiceStub(channel)
        for method in ("_secret", "__init__", "on_drain"):
            options = call_pb2.CallOptions(method=method, content_type=MSGPACK)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await router.Call(router_service_pb2.CallRequest(endpoint="Curious", options=options, payload=b"\x90"))
            assert from_rpc_error(raised.value).reason is Reason.METHOD_NOT_FOUND


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_abort_is_what_the_caller_hears_and_the_log_does_not(
    curious_mesh: MeshRun, curious: slotmesh.Endpoint
) -> None:
    with pytest.raises(slotmesh.HandlerError) as raised:
        await curious.refuse("FAILED_PRECONDITION")
    error = raised.value
    assert (error.status, error.reason, error.executed) == (
        "FAILED_PRECONDITION",
        Reason.HANDLER_ERROR,
        Executed.YES,
    )
    assert str(error) == "FAILED_PRECONDITION/HANDLER_ERROR: not today"
    assert error.metadata["until"] == "tomorrow"
    with pytest.raises(slotmesh.HandlerError, match="ValueError: code 'NONSENSE' is no gRPC status"):
        await curious.refuse("NONSENSE")
    await wait_until(lambda: "ValueError" in curious_mesh.log_text(), what="the traceback of the mistake")
    assert "code 'NONSENSE'" not in curious_mesh.log_text(), "a text may quote a payload"
    assert curious_mesh.log_text().count("handler raised") == 1
