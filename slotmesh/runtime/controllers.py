"""The channel of a member to the controller that it tries, of several of which one leads.

Invariants: one channel at a time, which stays as long as its address is the one that is tried, and its certificate the
newest.
Owner: the task that keeps up a member's stream to its controller.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.runtime.current_channel import CurrentChannel
from slotmesh.security.identity import Role
from slotmesh.units import parse_host_port
from slotmesh.wire.leadership import ControllerSearch

LEADER_FACT = "leader"
"""Of the metadata of a NOT_LEADER: where the leader is, `HOST:PORT`."""


class ControllerChannels:
    """Open as a context."""

    def __init__(self, search: ControllerSearch, dialer: Dialer = PLAIN_TEXT) -> None:
        self._search = search
        self._dialer = dialer
        self._channel: CurrentChannel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def current(self) -> grpc.aio.Channel:
        """To the controller that is tried now. The one before it is closed where that is another one."""
        if self._channel is None or self._channel.address != self._search.current:
            await self._close()
            self._channel = CurrentChannel(self._dialer, self._search.current, Role.CONTROLLER)
        return self._channel.get()

    def explained(self, details: str) -> str:
        """What an rpc says that has failed; where that is for certificates, in words with the way out."""
        return self._dialer.explained(details, Role.CONTROLLER)

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
            await channel.aclose()


def _is_address(text: str) -> bool:
    try:
        parse_host_port(text)
    except ValueError:
        return False
    return True
