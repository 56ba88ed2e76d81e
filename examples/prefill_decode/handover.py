"""From a prefill replica to a decode replica: a call in a slot that somebody else has reserved.

The replica serves the same SlotService as the routers, so this is all that a program in any language has to do.
Invariant: one connection to each decode replica, for as long as this process lives.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from slotmesh.codec import MSGPACK, decode, encode
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc


class Handover:
    """Made once for each prefill replica."""

    def __init__(self) -> None:
        self._stubs: dict[str, Any] = {}

    async def words(self, address: str, token: str, prompt: str, cache: bytes, count: int) -> AsyncGenerator[str, None]:
        """Dispatches `generate` into the slot, and yields what it yields."""
        stub = self._stubs.get(address)
        if stub is None:
            stub = self._stubs[address] = slot_service_pb2_grpc.SlotServiceStub(open_channel(address))
        request = slot_service_pb2.DispatchStreamingRequest(
            token=token,
            endpoint="Decode",
            options=call_pb2.CallOptions(method="generate", content_type=MSGPACK),
            payload=encode(MSGPACK, [prompt, cache, count]),
        )
        async for response in stub.DispatchStreaming(request):
            yield str(decode(MSGPACK, response.payload))
