"""A client without the SDK: stubs made from the protos, and what gRPC itself does about connections that go."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import Final

import grpc

from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.history.log import HistoryLog
from tests.history.model import Call, Outcome

CLIENT: Final = "plain"
CALL_S: Final = 30.0
SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "slotmesh.v1.RouterService"}],
                "waitForReady": True,
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                },
            }
        ]
    }
)
"""Only for calls that may be executed again: gRPC does not know which were executed. CANCELLED is its own answer to
calls that arrive while it shuts a server down."""


async def call_plainly(address: str, log: HistoryLog, stop: asyncio.Event) -> int:
    """Calls one after the other until it is stopped; returns how many had a result."""
    results = 0
    options = [("grpc.service_config", SERVICE_CONFIG)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        for number in count():
            if stop.is_set():
                return results
            now = time.monotonic()
            tag = f"{CLIENT}//{number}"
            log.add(
                Call(tag=tag, client=CLIENT, endpoint="Ledger", idempotent=True, sent_at=now, deadline=now + CALL_S)
            )
            request = router_service_pb2.CallRequest(
                endpoint="Ledger",
                options=call_pb2.CallOptions(method="append", content_type="application/json", idempotent=True),
                payload=json.dumps(["", tag]).encode(),
            )
            try:
                response = await stub.Call(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
                log.add(Outcome(tag=tag, at=time.monotonic(), reason=reason, executed="UNKNOWN"))
            else:
                log.add(Outcome(tag=tag, at=time.monotonic(), reply=json.loads(response.payload)))
                results += 1
    return results
