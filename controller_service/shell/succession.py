"""Finds out whether another controller leads, while this one cannot reach its store.

Purpose: a leading controller that is cut off from etcd alone does not learn there that another one leads. Members stay
with it, and their fences stay open, while its successor counts them as ended.
Invariants: it stops leading only if a controller that stood by answers that it leads the same generation in a later
term. Silence proves nothing: without etcd no other controller leads.
Owner: one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from controller_service.shell.leadership import LeadershipBoard
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.v1.info_service_pb2 import GetServerInfoRequest, GetServerInfoResponse
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub

LOOK_EVERY_S: Final = 0.5
WITHIN_S: Final = 1.0
"""The time limit for a response."""


class Succession:
    """Queries the controllers that stood by."""

    def __init__(self, board: LeadershipBoard, dialer: Dialer) -> None:
        self._board = board
        self._dialer = dialer

    async def watch(self, on_lost: Callable[[], None]) -> None:
        """Until another controller leads: then `on_lost` is called."""
        while not self._board.lost:
            standing = self._board.standing
            if standing.problem:
                answers = await asyncio.gather(*map(self._ask, filter(None, standing.standbys)))
                if successor := next((it for it in answers if it is not None and self._succeeds(it)), None):
                    reason = f"{successor.address} leads in term {successor.controller.term}, and {standing.problem}"
                    self._board.lose(reason, on_lost)
                    return
            await asyncio.sleep(LOOK_EVERY_S)

    def _succeeds(self, info: GetServerInfoResponse) -> bool:
        is_later = info.controller.leads and info.controller.term > self._board.standing.term
        return is_later and info.incarnation == self._board.generation

    async def _ask(self, address: str) -> GetServerInfoResponse | None:
        try:
            async with self._dialer.open(address, Role.CONTROLLER) as channel:
                stub: Any = InfoServiceStub(channel)
                info: GetServerInfoResponse = await stub.GetServerInfo(GetServerInfoRequest(), timeout=WITHIN_S)
        except (grpc.RpcError, ValueError):
            return None
        return info
