"""A channel to one server, which is opened anew when the process has new certificates.

Purpose: a channel keeps the certificate for ever with which it was opened, and would be refused once that has expired.
Invariants: rpcs begin on a channel of the newest certificate. What runs on an older one goes on there: it is closed
when it has no connection any more, as gRPC drops one that nothing has used for half an hour, or with `aclose`.
Owner: who connects to the server, on one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role

_CONNECTED: Final = frozenset({grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING})


class CurrentChannel:
    """Asked for its channel before each rpc."""

    def __init__(self, dialer: Dialer, address: str, server: Role, backend: str = "") -> None:
        """Connects to nothing yet."""
        self.address = address
        self._dialer = dialer
        self._server = server
        self._backend = backend
        self._version = 0
        self._channel: grpc.aio.Channel | None = None
        self._retired: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection by the newest certificate, as far as the transport knows."""
        return (
            self._channel is not None
            and self._version == self._dialer.version
            and self._channel.get_state() is grpc.ChannelConnectivity.READY
        )

    def get(self) -> grpc.aio.Channel:
        """The channel for what begins now.

        Raises:
            ValueError: the address is not HOST:PORT.
        """
        version = self._dialer.version
        if self._channel is None or version != self._version:
            self._retire()
            self._channel, self._version = self._dialer.open(self.address, self._server, self._backend), version
        return self._channel

    def problem(self, details: str) -> str | None:
        """Why no connection was made, in words with the way out; None where that is not for certificates."""
        return self._dialer.problem(details, self._server, self._backend)

    def renew(self, grace_s: float) -> None:
        """The connection is silent: what begins next takes a new one. What is on it has `grace_s` left."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._keep(asyncio.get_running_loop().create_task(channel.close(grace_s)), channel)

    async def aclose(self) -> None:
        """Closes all connections."""
        channels = [*self._retired.values(), *([] if self._channel is None else [self._channel])]
        tasks = list(self._retired)
        self._channel = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()

    def _retire(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._keep(asyncio.get_running_loop().create_task(_close_when_unconnected(channel)), channel)

    def _keep(self, task: asyncio.Task[None], channel: grpc.aio.Channel) -> None:
        self._retired[task] = channel
        task.add_done_callback(lambda done: self._retired.pop(done, None))


async def _close_when_unconnected(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state()) in _CONNECTED:
        await channel.wait_for_state_change(state)
    await channel.close()
