"""Clients that reserve slots and are killed at any moment, as processes of their own.

Purpose: each does what a caller may do with slots, again and again, until somebody kills its process.
Owner: `killing` starts them, kills them at random, and puts others in their place.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import grpc
from google.protobuf import duration_pb2

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc

LEASE_S: Final = 1
_PAUSE_S: Final = 0.2
"""Between two slots of a client, on average."""
_FOR_EVER_S: Final = 3600.0
"""A call that takes so long ends with its caller, or not at all."""


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients there are, and how long they live."""

    processes: int
    clients_each: int
    life_s: float
    """Of a process, on average."""

    @property
    def clients(self) -> int:
        return self.processes * self.clients_each


def main(addresses: Sequence[str], method: str, clients: int, seed: int) -> None:
    """Reserves, holds, renews, dispatches, releases and forgets slots until it is killed."""
    asyncio.run(_work(addresses, method, clients, random.Random(seed)))


async def _work(addresses: Sequence[str], method: str, clients: int, dice: random.Random) -> None:
    channels = [open_channel(address) for address in addresses]
    stubs = [slot_service_pb2_grpc.SlotServiceStub(channel) for channel in channels]
    await asyncio.gather(*(_Client(stubs, method, dice).live() for _ in range(clients)))


class _Client:
    def __init__(self, stubs: Sequence[Any], method: str, dice: random.Random) -> None:
        self._stubs = stubs
        self._dice = dice
        self._endpoint, _, name = method.partition(".")
        self._options = call_pb2.CallOptions(method=name, content_type="application/json")

    async def live(self) -> None:
        dice = self._dice
        while True:
            try:
                # Some lose patience, wherever they are just then.
                async with asyncio.timeout(dice.random() * 0.3 if dice.random() < 0.1 else None):
                    await self._use_a_slot()
            except (grpc.aio.AioRpcError, TimeoutError):
                pass
            await asyncio.sleep(dice.random() * 2 * _PAUSE_S)

    async def _use_a_slot(self) -> None:
        dice = self._dice
        wanted = slot_service_pb2.ReserveSlotRequest(
            endpoint=self._endpoint,
            ttl=duration_pb2.Duration(seconds=LEASE_S),
            options=call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=5)),
            request_id=uuid4().hex if dice.random() < 0.5 else "",
        )
        token = (await self._stub().ReserveSlot(wanted)).slot.token
        await self._hold()
        if dice.random() < 0.3:
            await self._stub().RenewSlot(slot_service_pb2.RenewSlotRequest(token=token, ttl=wanted.ttl))
            await self._hold()
        if (choice := dice.random()) < 0.7:
            await self._stub().Dispatch(
                slot_service_pb2.DispatchRequest(token=token, options=self._options, payload=self._arguments())
            )
        elif choice < 0.9:
            await self._stub().ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=token))

    def _stub(self) -> Any:
        """Any router will do."""
        return self._dice.choice(self._stubs)

    def _arguments(self) -> bytes:
        seconds = _FOR_EVER_S if self._dice.random() < 0.01 else self._dice.random() * 0.05
        return b'["x", %.3f]' % seconds

    async def _hold(self) -> None:
        await asyncio.sleep(self._dice.random() * 0.02)


async def killing(addresses: Sequence[str], method: str, *, load: Load, seconds: float, seed: int) -> int:
    """Keeps that many alive and kills their processes at random, for so long; returns how many were killed.

    They are forked by a process that has imported all of this and has not used gRPC.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    dice = random.Random(seed)
    loop = asyncio.get_running_loop()
    killed = 0

    async def one() -> None:
        nonlocal killed
        while loop.time() < end:
            arguments = ([*addresses], method, load.clients_each, dice.randrange(2**32))
            process = context.Process(target=main, args=arguments, daemon=True)
            process.start()
            try:
                await asyncio.sleep(dice.random() * 2 * load.life_s)
            finally:
                lived = process.is_alive()
                process.kill()
                await asyncio.to_thread(process.join)
                status = process.exitcode
                process.close()
            assert lived, f"a client ended by itself, with status {status}"
            killed += 1

    end = loop.time() + seconds
    await asyncio.gather(*(one() for _ in range(load.processes)))
    return killed
