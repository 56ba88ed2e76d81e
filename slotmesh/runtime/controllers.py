"""The channel of a member to the controller that it tries, of several of which one leads.

Invariants: one channel at a time, which stays as long as its address is the one that is tried.
Owner: the task that keeps up a member's stream to its controller.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.units import parse_host_port
from slotmesh.wire.leadership import ControllerSearch

LEADER_FACT = "leader"
"""Of the metadata of a NOT_LEADER: where the leader is, `HOST:PORT`."""


class ControllerChannels:
    """Open as a context."""

    def __init__(self, search: ControllerSearch) -> None:
        self._search = search
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def current(self) -> grpc.aio.Channel:
        """To the controller that is tried now. The one before it is closed where that is another one."""
        if self._channel is None or self._address != self._search.current:
            await self._close()
            self._address = self._search.current
            self._channel = open_channel(self._address)
        return self._channel

    def refused(self, failure: Failure) -> bool:
        """The attempt has failed. Returns whether the next one should be made at once: to the leader."""
        if failure.reason is not Reason.NOT_LEADER:
            self._search.failed()
            return False
        leader = failure.metadata.get(LEADER_FACT, "")
        return self._search.referred(leader if _is_address(leader) else "")

    async def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _is_address(text: str) -> bool:
    try:
        parse_host_port(text)
    except ValueError:
        return False
    return True
