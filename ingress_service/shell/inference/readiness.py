"""Whether some router takes calls: asked by probes, which nobody has to be let in for.

Invariant: one question at a time, whose answer holds for a while, however many probes there are.
Owner: the front of inferences.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc

from ingress_service.shell.asking import ASK_S
from ingress_service.shell.callers import HttpCaller
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub

KEEP_S: Final = 0.5
"""How long an answer holds."""
_READY: Final = pb.ServerReadyRequest()


class RouterReadiness:
    """Asks, as the ingress itself."""

    def __init__(self) -> None:
        self._is_ready = False
        self._until = 0.0
        self._asked: asyncio.Task[bool] | None = None

    async def is_one_ready(self, own: HttpCaller) -> bool:
        """Whether one of the routers has said so, now or just before. Those that stop are not."""
        if asyncio.get_running_loop().time() < self._until:
            return self._is_ready
        if self._asked is None:
            self._asked = asyncio.create_task(self._ask(own), name="router-readiness")
        return await asyncio.shield(self._asked)

    def close(self) -> None:
        """Asks no more."""
        if self._asked is not None:
            self._asked.cancel()

    async def _ask(self, own: HttpCaller) -> bool:
        try:
            self._is_ready = await _is_one_ready(own)
            self._until = asyncio.get_running_loop().time() + KEEP_S
            return self._is_ready
        finally:
            self._asked = None


async def _is_one_ready(own: HttpCaller) -> bool:
    for address in own.routers.in_turn(""):
        stub: Any = GRPCInferenceServiceStub(own.routers.channel(address))
        with suppress(grpc.RpcError):
            if (await stub.ServerReady(_READY, timeout=ASK_S)).ready:
                return True
    return False
