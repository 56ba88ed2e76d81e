"""Types and decorators by face: the same handler called by the SDK, over HTTP, and with JSON values by `Call`."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated, Any

import numpy as np
import pydantic
import pytest
import pytest_asyncio
from google.protobuf import json_format, struct_pb2
from numpy.typing import NDArray

import slotmesh
from slotmesh.codec import JSON, MSGPACK
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio


def plain(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Blob(pydantic.BaseModel):
    data: bytes
    size: pydantic.PositiveInt = pydantic.Field(default=1, alias="Size")


class Types:
    @plain
    async def blob(self, blob: Blob) -> Blob:
        return blob

    def blob_in_thread(self, blob: Blob) -> Blob:
        return blob

    @plain
    @slotmesh.batch(max_batch_size=4)
    async def blobs(self, blobs: list[Blob]) -> list[Blob]:
        return blobs

    def later(self, blob: Blob) -> Awaitable[Blob]:
        return self.blob(blob)  # type: ignore[no-any-return]  # a decorator without types

    async def total(self, numbers: Iterable[int], start: Annotated[int, pydantic.Field(ge=0)] = 0) -> deque[int]:
        return deque([sum(numbers, start)])

    def empty(self, numbers: NDArray[np.int64]) -> str:
        return f"{numbers.dtype} {numbers.shape}"


class Faces:
    """The same call by each face; `arguments` and results are as JSON has them."""

    def __init__(self, served: ServedMesh, client: Any, stub: Any) -> None:
        self._served, self._client, self._stub = served, client, stub

    async def sdk(self, content_type: str, method: str, arguments: Any) -> Any:
        endpoint = self._client.endpoint("types")
        return await endpoint.method(method).options(content_type=content_type)(*arguments)

    async def http(self, method: str, arguments: Any) -> Any:
        answer = await self._served.post(f"/types/{method}", arguments)
        if answer.status != 200:
            raise slotmesh.BadArguments(answer.body.decode())
        return answer.json

    async def json_values(self, method: str, arguments: Any) -> Any:
        request = router_service_pb2.CallRequest(
            endpoint="types", arguments=json_format.ParseDict(arguments, struct_pb2.Value())
        )
        request.options.method = method
        response = await self._stub.Call(request)
        return json_format.MessageToDict(response.result)

    @property
    def all(self) -> dict[str, Callable[[str, Any], Awaitable[Any]]]:
        return {
            "msgpack": functools.partial(self.sdk, MSGPACK),
            "json": functools.partial(self.sdk, JSON),
            "http": self.http,
            "JSON values": self.json_values,
        }


@pytest_asyncio.fixture
async def faces() -> AsyncIterator[Faces]:
    async with (
        served_mesh({"types": Types}) as served,
        slotmesh.connect(served.mesh.router_addresses[0]) as client,
        open_channel(served.mesh.router_addresses[0]) as channel,
    ):
        yield Faces(served, client, router_service_pb2_grpc.RouterServiceStub(channel))


async def test_each_face_carries_the_same(faces: Faces) -> None:
    octets = b"\xff\xfe\x00"
    for face, call in faces.all.items():
        data = octets if face == "msgpack" else "//4A"
        for method in ("blob", "blob_in_thread", "blobs", "later"):
            assert await call(method, [{"data": data, "Size": 3}]) == {"data": data, "Size": 3}, (face, method)
            with pytest.raises(Exception, match=r"(?i)size: Input should be greater than 0"):
                await call(method, [{"data": data, "Size": 0}])
        assert await call("total", [[1, 2], 3]) == [6], face
        with pytest.raises(Exception, match=r"args\[1\]: expected int >= 0"):
            await call("total", [[1, 2], -1])
        assert await call("empty", [[]]) == "int64 (0,)", face
        assert await call("empty", [[[], []]]) == "int64 (2, 0)", face


async def test_models_come_back_as_models(faces: Faces) -> None:
    endpoint = faces._client.endpoint("types")
    blob = Blob(data=b"\xff\xfe\x00", Size=3)
    for content_type in (MSGPACK, JSON):
        for method in ("blob", "blob_in_thread", "blobs", "later"):
            returning = endpoint.method(method).options(content_type=content_type).returning(Blob)
            assert await returning(blob) == blob
            assert await returning.map([blob, blob]) == [blob, blob]
