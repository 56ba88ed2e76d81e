"""Processes that dispatch into the same slots at the same instant, each at an address of its own.

Owner: `race`, which starts them and waits for their ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Any, Final

import grpc

from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc

_PATIENCE_S: Final = 30.0


def main(address: str, method: str, tokens: Sequence[str], start: Barrier, told: Any) -> None:
    """Dispatches into one slot after the other, with all the others; tells what came of each."""
    told.send(asyncio.run(_dispatch(address, method, tokens, start)))
    told.close()


async def _dispatch(address: str, method: str, tokens: Sequence[str], start: Barrier) -> list[str]:
    options = call_pb2.CallOptions(method=method, content_type="application/json")
    outcomes = []
    async with open_channel(address) as channel:
        await channel.channel_ready()
        stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
        for token in tokens:
            request = slot_service_pb2.DispatchRequest(
                token=token, options=options, payload=f'["{address}", 0]'.encode()
            )
            start.wait(_PATIENCE_S)
            try:
                outcomes.append((await stub.Dispatch(request)).payload.decode())
            except grpc.aio.AioRpcError as error:
                outcomes.append(from_rpc_error(error).reason.value)
    return outcomes


async def race(addresses: Sequence[str], method: str, tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """What each process heard, in the order of their addresses, for each token."""
    return await asyncio.to_thread(_race, addresses, method, tokens)


def _race(addresses: Sequence[str], method: str, tokens: Sequence[str]) -> list[tuple[str, ...]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    start = context.Barrier(len(addresses))
    processes, pipes = [], []
    try:
        for address in addresses:
            told, tell = context.Pipe(duplex=False)
            process = context.Process(target=main, args=(address, method, tokens, start, tell), daemon=True)
            process.start()
            tell.close()
            processes.append(process)
            pipes.append(told)
        heard: list[list[str]] = [told.recv() for told in pipes if told.poll(_PATIENCE_S)]
        assert len(heard) == len(addresses), "one of them has not ended"
        return [*zip(*heard, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()
