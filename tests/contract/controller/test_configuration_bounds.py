"""What is accepted can be delivered: what is too large for that is refused when it is planned, with both sizes."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from controller_service.shell.changes import requests
from controller_service.shell.changes.requests import MAX_BACKEND_BYTES, MAX_CONFIGURATION_BYTES
from slotmesh.streams.limits import MAX_MESSAGE_BYTES
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import running_controller, violations
from tests.support.fakes.members import FakeReplica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


def backend(name: str, nbytes: int) -> mesh_pb2.Backend:
    config = struct_pb2.Struct()
    config["text"] = "x" * nbytes
    return mesh_pb2.Backend(name=name, handler="app:One", user_config=config)


@pytest.fixture(params=["ApplyMesh", "ApplyBackend", "file"])
def apply(request: pytest.FixtureRequest) -> Any:
    def rpc(operator: Any, *backends: mesh_pb2.Backend, validate_only: bool = False) -> Any:
        if request.param == "ApplyBackend":
            return operator.ApplyBackend(pb.ApplyBackendRequest(backend=backends[0], validate_only=validate_only))
        mesh = mesh_pb2.Mesh(backends=backends)
        return operator.ApplyMesh(
            pb.ApplyMeshRequest(mesh=mesh, merge=request.param == "file", validate_only=validate_only)
        )

    return rpc


async def test_a_configuration_that_no_replica_can_be_sent_is_refused(apply: Any) -> None:
    async with running_controller() as mesh:
        for validate_only in (True, False):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await apply(mesh.operator, backend("v1", 20 * 1024 * 1024), validate_only=validate_only)
            assert violations(refused.value).keys() <= {"backend", "mesh", "mesh.backends[0]"}
            text = next(
                it
                for it in (refused.value.details() or "").splitlines()
                if it.startswith(("backends.v1: ", "backend: "))
            )
            assert "20,971," in text, text
            assert f"at most {MAX_BACKEND_BYTES:,}" in text
        assert not (await mesh.operator.ListBackends(pb.ListBackendsRequest())).backends


async def test_the_largest_configuration_reaches_its_replica(apply: Any) -> None:
    async with running_controller() as mesh:
        await apply(mesh.operator, backend("v1", MAX_BACKEND_BYTES - 200))
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await wait_until(lambda: replica.configurations, what="a configuration")
            assert replica.configurations[-1].backend.user_config == backend("v1", MAX_BACKEND_BYTES - 200).user_config


async def test_all_of_it_together_fits_what_carries_it_and_what_does_not_is_refused() -> None:
    async with running_controller() as mesh:
        for number in range(4):
            one = backend(f"v{number}", MAX_BACKEND_BYTES - 4_096)
            await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=one))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=backend("more", 64 * 1024)))
        (text,) = violations(refused.value).values()
        assert f"at most {MAX_CONFIGURATION_BYTES:,}" in text
        listed = await mesh.operator.ListBackends(pb.ListBackendsRequest())
        assert listed.ByteSize() < MAX_MESSAGE_BYTES
        assert (await mesh.operator.GetSnapshot(pb.GetSnapshotRequest())).ByteSize() < MAX_MESSAGE_BYTES
        # What makes it smaller is not refused, nor what leaves its size as it is.
        await mesh.operator.DeleteBackend(pb.DeleteBackendRequest(name="v0"))
        await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=backend("more", 64 * 1024)))


async def test_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_BACKENDS", "MAX_ENDPOINTS", "MAX_ROUTES"):
        monkeypatch.setattr(requests, name, 2)
    async with running_controller() as mesh:
        await mesh.apply("{backends: {a: , b: }, endpoints: {a: , b: }}")
        for more in ("{backends: {c: }}", "{endpoints: {c: }}"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await mesh.apply(more)
            (text,) = violations(refused.value).values()
            assert text.startswith("would be 3, at most 2"), text
        await mesh.operator.DeleteEndpoint(pb.DeleteEndpointRequest(name="a"))
        await mesh.apply("{endpoints: {c: }}")
