"""Channels that are replaced: to a server when the process has new certificates, to controllers when the leader moves.

Purpose: a channel uses the certificate that it was opened with for its whole life, and is refused once that expires.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.status import unresolved
from slotmesh.streams.leadership import ControllerSearch
from slotmesh.transport.local_sockets import local_target
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.units import is_host_port

_CONNECTED: Final = frozenset({grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING})


class CurrentChannel:
    """The channel to one server, requested before each rpc.

    Invariants: rpcs start on a channel with the newest certificate. Rpcs on an older channel continue there; it is
    closed when it has no connection, as gRPC drops one that is unused for half an hour, or by `aclose`.
    Owner: the client of the server, on one event loop.
    """

    def __init__(
        self,
        dialer: Dialer,
        address: str,
        server: Role,
        backend: str = "",
        *,
        host: str = "",
        incarnation: str = "",
    ) -> None:
        """Does not connect yet. `host`: the name that the address was resolved from.

        `incarnation`: the server's; then its local socket is used if it is on this machine.
        """
        self.address = address
        self._incarnation = incarnation
        self._host = host
        self._dialer = dialer
        self._server = server
        self._backend = backend
        self._version = 0
        self._channel: grpc.aio.Channel | None = None
        self._retired: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection with the newest certificate, according to the transport."""
        return (
            self._channel is not None
            and self._version == self._dialer.version
            and self._channel.get_state() is grpc.ChannelConnectivity.READY
        )

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt to connect has failed, and none is under way."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @property
    def is_open(self) -> bool:
        """Whether there is a channel, with a connection or without."""
        return self._channel is not None or bool(self._retired)

    def connects(self) -> bool:
        """Whether there is a connection with the newest certificate; if not, it begins to connect."""
        return self.get().get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    def get(self) -> grpc.aio.Channel:
        """The channel for rpcs that start now.

        Raises:
            ValueError: the address is not HOST:PORT.
        """
        version = self._dialer.version
        if self._channel is None or version != self._version:
            self._retire()
            self._channel, self._version = (
                self._dialer.open(
                    self.address,
                    self._server,
                    self._backend,
                    host=self._host,
                    local=local_target(self._incarnation, self.address),
                ),
                version,
            )
        return self._channel

    def problem(self, details: str) -> str | None:
        """Why the connection failed, with the way out, if certificates are the reason; else None."""
        problem = self._dialer.problem(details, self._server, self._backend)
        return None if problem is None else problem.text

    def renew(self, grace_s: float) -> None:
        """Replaces a silent connection: rpcs that start now use a new one, those on the old one have `grace_s` left."""
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


LEADER_FACT = "leader"
"""In the metadata of NOT_LEADER: the leader's address, `HOST:PORT`."""


_RESOLVED_WITHIN_S: Final = 1.0
"""How long an attempt waits for the first address, before it fails."""


class ControllerChannels:
    """A member's channel to the controller that it tries, of several of which one leads. A context manager.

    Invariants: there is one channel at a time, kept while its address is the current one and its certificate the
    newest. Names of controllers are resolved again when one that was tried does not lead.
    Owner: the task that keeps up a member's stream to its controller.
    """

    def __init__(self, addresses: ServerAddresses, dialer: Dialer = PLAIN_TEXT) -> None:
        """`addresses`: of the controllers that the member was started with; closed with the block."""
        self.search = ControllerSearch(addresses.known)
        self._addresses = addresses
        self._dialer = dialer
        self._channel: CurrentChannel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._addresses.aclose()
        await self._close()

    @property
    def address(self) -> str:
        """The address that is tried now, for messages; before one is known, what was given."""
        return self.search.current or self._addresses.text

    async def current(self) -> grpc.aio.Channel:
        """The channel to the controller that is tried now. Closes the previous one if that is another.

        Raises:
            AioRpcError: no address is known yet, as no name of a controller resolves.
        """
        known = await self._addresses.first(_RESOLVED_WITHIN_S)
        self.search.resolved(known)
        if not self.search.current:
            raise unresolved(self._addresses.problem)
        if self._channel is None or self._channel.address != self.search.current:
            await self._close()
            self._channel = CurrentChannel(self._dialer, self.search.current, Role.CONTROLLER)
        return self._channel.get()

    def explained(self, details: str) -> str:
        """The message of a failed rpc; if certificates are the reason, in words with the way out."""
        return self._dialer.explained(details, Role.CONTROLLER)

    def failed(self) -> None:
        """The attempt failed, or its stream has ended: the next address is tried."""
        self.search.failed()
        self._addresses.request()

    def refused(self, failure: Failure) -> bool:
        """Records a failed attempt. Returns whether to try the leader immediately."""
        if failure.reason is not Reason.NOT_LEADER:
            self.failed()
            return False
        leader = failure.metadata.get(LEADER_FACT, "")
        is_referred = self.search.referred(leader if is_host_port(leader) else "")
        if not is_referred:
            self._addresses.request()
        return is_referred

    async def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()
