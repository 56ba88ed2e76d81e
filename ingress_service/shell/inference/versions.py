"""Inferences of one version: streams of calls have no word for it, so these are rpcs of their own, of 4 MiB at most.

Invariant: an inference is sent again only where a router has said that it was not executed.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from ingress_service.convert.inferences import answer_from_wire, request_to_wire
from ingress_service.shell.asking import ASK_S
from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.request_spans import RequestTrace
from slotmesh.client.calls.payload_limits import too_large
from slotmesh.client.stream.rpc_failures import refusal_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.model import InferenceAnswer, InferenceRequest
from slotmesh.wire.limits import MAX_INLINE_BYTES

_ELSEWHERE: Final = frozenset({Reason.DRAINING, Reason.STALE_TABLE})


async def infer_version(
    caller: HttpCaller, request: InferenceRequest, trace: RequestTrace | None = None
) -> InferenceAnswer | Failure:
    """The answer of the version that the request names."""
    size = sum(len(each.data) for each in request.inputs)
    if size > MAX_INLINE_BYTES:
        return too_large(size, MAX_INLINE_BYTES)
    try:
        wire = request_to_wire(request)
    except RequestMistake as mistake:
        return mistake.failure
    metadata = None if trace is None else trace.metadata
    failure = Failure(reason=Reason.ROUTER_LOST, message="no router can be reached")
    for address in caller.routers.in_turn(""):
        try:
            async with asyncio.timeout(ASK_S):
                await caller.routers.wait_for_connection(address, patiently=False)
        except (ConnectionError, TimeoutError):
            continue
        try:
            stub = GRPCInferenceServiceStub(caller.routers.channel(address))
            return answer_from_wire(await stub.ModelInfer(wire, metadata=metadata))
        except grpc.RpcError as error:
            failure = refusal_of(error, address, caller.routers.dialer)
            if failure.executed is not Executed.NO or failure.reason not in _ELSEWHERE:
                break
    return failure
