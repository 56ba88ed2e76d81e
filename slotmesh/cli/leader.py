"""Which of several controllers leads: commands ask that one.

Invariants: only the addresses that were named are asked; where some answer and none leads, one is about to: that is
waited for, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from slotmesh.cli.connection import CONNECT_TIMEOUT_S, Peer
from slotmesh.cli.outcome import CommandFailed
from slotmesh.cli.snapshot import ControllerStatus
from slotmesh.v1 import info_service_pb2 as pb
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub

LEADS_WITHIN_S: Final = 15.0
"""How long a command waits for one to lead."""
_ASK_EVERY_S: Final = 0.1


async def leader_among(addresses: Sequence[str]) -> str:
    """The address of the controller that leads. Raises CommandFailed where none does."""
    if len(addresses) == 1:
        return addresses[0]
    deadline = asyncio.get_running_loop().time() + LEADS_WITHIN_S
    while True:
        answers = await asyncio.gather(*(_ask(address) for address in addresses), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ControllerStatus) and answer.leads:
                return answer.address
            if isinstance(answer, BaseException) and not isinstance(answer, CommandFailed):
                raise answer
        failures = [str(answer) for answer in answers if isinstance(answer, CommandFailed)]
        if len(failures) == len(addresses):
            raise CommandFailed("\n".join(failures))
        if asyncio.get_running_loop().time() >= deadline:
            waiting = [answer.address for answer in answers if isinstance(answer, ControllerStatus)]
            words = f"no controller leads; standing by: {', '.join(waiting)}"
            raise CommandFailed("\n".join([words, *failures]))
        await asyncio.sleep(_ASK_EVERY_S)


async def standing_of(channel: grpc.aio.Channel, peer: Peer) -> ControllerStatus:
    """Whether the controller leads, as it says itself. One of an older version does.

    Raises SlotmeshError, or CommandFailed where it cannot be asked or is no controller.
    """
    stub: Any = InfoServiceStub(channel)
    with peer.telling():
        info = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CONNECT_TIMEOUT_S)
    if info.kind != pb.SERVER_KIND_CONTROLLER:
        raise peer.is_another_kind()
    said = info.controller
    return ControllerStatus(
        address=peer.address,
        leads=said.leads or not info.HasField("controller"),
        term=said.term,
        leader_address=said.leader_address,
        standby_addresses=tuple(said.standby_addresses),
        newer_members=tuple(said.newer_members),
        knows_request_ids=said.knows_request_ids,
        generation=info.incarnation,
    )


async def _ask(address: str) -> ControllerStatus:
    """Raises CommandFailed where nothing answers, or something else than a controller."""
    peer = Peer("controller", address)
    async with peer.connect() as channel:
        return await standing_of(channel, peer)
