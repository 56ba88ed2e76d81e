"""What an inference costs beside a unary call: ModelInfer of 100 bytes, also at MLServer where that is installed.

All take turns with the same client code, so that what the machine does meanwhile meets each; ratios are of one round.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Final

from benchmarks import findings
from benchmarks.baseline import request
from benchmarks.findings import Finding
from benchmarks.mlserver_process import PROGRAM, mlserver
from benchmarks.progress import show
from benchmarks.statistics import Sample, percentile
from benchmarks.workloads import PAYLOAD, UNARY_IN_FLIGHT
from examples.local_mesh import local_mesh
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

HANDLER: Final = "benchmarks.oip_handler:EchoModel"
CALL, INFER, MLSERVER = "call", "infer", "mlserver"
LEAST_OF_CALLS: Final = 0.6
"""An inference is a call, with tensors to be converted at router and replica."""
_TITLES: Final = {
    CALL: "RouterService.Call through the router",
    INFER: "ModelInfer through the router",
    MLSERVER: "ModelInfer at MLServer, without a router",
}
_WARM_UP_S: Final = 0.5

Rpc = Callable[[], Awaitable[object]]


async def measure(*, rounds: int, seconds: float) -> list[Finding]:
    """A round is a turn of each, `UNARY_IN_FLIGHT` rpcs in flight, then one at a time.

    Raises:
        CannotStart: a server did not get ready.
    """
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        channel = await stack.enter_async_context(open_channel(mesh.router))
        call, inference = RouterServiceStub(channel), inference_request()
        infer: Any = GRPCInferenceServiceStub(channel)
        message = request("EchoModel", "echo", PAYLOAD)
        rpcs: dict[str, Rpc] = {CALL: lambda: call.Call(message), INFER: lambda: infer.ModelInfer(inference)}
        if PROGRAM.exists():
            other = await stack.enter_async_context(mlserver())
            rpcs[MLSERVER] = lambda: other.ModelInfer(inference)
        for rpc in rpcs.values():
            await turn(rpc, UNARY_IN_FLIGHT, _WARM_UP_S)
        many: dict[str, list[Sample]] = {name: [] for name in rpcs}
        single: dict[str, list[Sample]] = {name: [] for name in rpcs}
        for number in range(rounds):
            show(f"oip: round {number + 1} of {rounds}")
            for name, rpc in list(rpcs.items())[:: -1 if number % 2 else 1]:
                many[name].append(await turn(rpc, UNARY_IN_FLIGHT, seconds))
                single[name].append(await turn(rpc, 1, seconds))
    show("")
    return found(many, single)


def inference_request() -> pb.ModelInferRequest:
    """100 bytes, as a tensor."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="UINT8", shape=[len(PAYLOAD)])
    return pb.ModelInferRequest(model_name="EchoModel", inputs=[tensor], raw_input_contents=[PAYLOAD])


async def turn(rpc: Rpc, in_flight: int, seconds: float) -> Sample:
    """So many rpcs in flight, for about that many seconds."""
    latencies_s = array("d")
    started = time.perf_counter()
    until = started + seconds

    async def again() -> None:
        while (made := time.perf_counter()) < until:
            await rpc()
            latencies_s.append(time.perf_counter() - made)

    await asyncio.gather(*(again() for _ in range(in_flight)))
    return Sample(len(latencies_s), time.perf_counter() - started, latencies_s)


def found(many: dict[str, list[Sample]], single: dict[str, list[Sample]]) -> list[Finding]:
    """Of the medians of all rounds; ratios round by round."""
    results: list[Finding] = []
    for name, samples in many.items():
        rate = median(each.calls_per_s for each in samples)
        p50_s = median(percentile(sorted(each.latencies_s), 50) for each in single[name])
        title = _TITLES[name]
        results += [
            findings.figure(f"oip_{name}", f"{title}, {UNARY_IN_FLIGHT} in flight", rate, findings.rate),
            findings.figure(f"oip_{name}_p50", f"{title}, one at a time, p50", p50_s, findings.microseconds),
        ]
    for other, least in ((CALL, LEAST_OF_CALLS), (MLSERVER, 1.0)):
        if other in many:
            times = median(
                mine.calls_per_s / its.calls_per_s for mine, its in zip(many[INFER], many[other], strict=True)
            )
            title = f"inferences / {'unary calls' if other == CALL else 'inferences at MLServer'}"
            results.append(findings.at_least(f"oip_of_{other}", title, times, least, findings.ratio))
    return results
