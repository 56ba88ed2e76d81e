"""Connects to a server of the mesh, and finds the leading one of several controllers. Errors are written for operators.

Invariants: an address where no server responds is an error, immediately or within `CONNECT_TIMEOUT_S`, with the way
out, and so is a name that does not resolve; a server of the wrong kind is distinguished from one that refuses. Only the
named addresses are queried for the leader; if some respond and none leads, an election is assumed and awaited for at
most `LEADS_WITHIN_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from slotmesh.cli.console import CommandFailed, looks
from slotmesh.cli.controller_view import ControllerStatus
from slotmesh.cli.credentials import dialer
from slotmesh.discovery.targets import parse_targets
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.security.identity import SERVERS, Role
from slotmesh.status import from_rpc_error, to_exception
from slotmesh.transport.connection_problems import connection_problem
from slotmesh.transport.name_lookups import LookupFailed, NameLookups
from slotmesh.units import join_host_port
from slotmesh.v1 import controller_service_pb2, info_service_pb2, router_service_pb2, tap_service_pb2
from slotmesh.v1.info_service_pb2 import GetServerInfoRequest, ServerKind
from slotmesh.version import VERSION

CONNECT_TIMEOUT_S: Final = 5.0
"""How long a server may take to answer at all."""

RPCS: Final = {
    rpc.input_type.full_name: rpc
    for file in (controller_service_pb2, info_service_pb2, router_service_pb2, tap_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
}
"""The rpcs by the type of the request: each has its own."""
_MAY_BE: Final = {
    "controller": "; a requested change may be made nevertheless: `slotmesh history` shows it",
    "router": "; what was called may have been executed",
}
_KINDS: Final = frozenset(ServerKind.values())
_State = grpc.ChannelConnectivity


def begin(channel: grpc.aio.Channel, request: Any, **terms: Any) -> Any:
    """Begins the rpc that has this type of request: to be awaited, or a stream of responses."""
    rpc = RPCS[request.DESCRIPTOR.full_name]
    method = channel.unary_stream if rpc.server_streaming else channel.unary_unary
    return method(
        f"/{rpc.containing_service.full_name}/{rpc.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(rpc.output_type).FromString,
    )(request, **terms)


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that a command talks to."""

    kind: str
    """`controller`, `router` or `server`."""
    address: str
    """`HOST:PORT`, or a name that is resolved: any of its addresses may respond."""
    is_listed: bool = False
    """A router whose address the controller has listed: in such a command `--router` names another one."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[grpc.aio.Channel]:
        """A channel that is connected. Raises CommandFailed where nothing answers, or certificates do not allow it."""
        problem = None
        for address, host in await resolved([self.address], self.kind):
            for role in self._roles:
                async with dialer().open(address, role, host=host) as channel:
                    if await _is_reached(channel):
                        yield channel
                        return
                    problem = await connection_problem(channel, address, dialer(), role)
                    if problem is None:
                        break
        if problem is not None:
            raise CommandFailed(f"no connection to {self.kind} {self.address}: {problem.text}")
        raise self._unanswered()

    async def ask(self, request: Any, timeout_s: float) -> Any:
        """The response to a request, by a connection of its own. Raises as `connect` and `telling` do."""
        async with self.connect() as channel:
            with self.telling():
                return await begin(channel, request, timeout=timeout_s)

    @property
    def _roles(self) -> Sequence[Role]:
        """What the server may be: each is tried, as the certificate of a server has the name of its role."""
        return [Role(self.kind)] if self.kind in SERVERS else SERVERS

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turns what rpcs raise into what operators read: SlotmeshError, or CommandFailed for the transport."""
        try:
            yield
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            said_by_peer = rpc_status.from_call(error) is not None  # type: ignore[arg-type]  # as in slotmesh.status
            if failure.reason is Reason.NOT_IMPLEMENTED and not said_by_peer:
                raise NotOffered(self) from error
            if is_lost(error) and self.kind != "router":
                raise ConnectionBroke(f"the connection to the {self.kind} at {self.address} broke") from error
            if failure.reason is Reason.DEADLINE_RUNNING and not said_by_peer:
                failure = replace(failure, message=self._overdue)
            raise to_exception(failure) from error

    def is_another_kind(self, found: str = "") -> CommandFailed:
        """The failure if another server answers. `found`: its kind, if that is known."""
        what_it_is = f": it is a {found}" if found else ""
        return self._unreachable(f"what answers at {self.address} is not a {self.kind}{what_it_is}")

    @property
    def _overdue(self) -> str:
        return (
            f"the {self.kind} at {self.address} was reached, and has not responded in time{_MAY_BE.get(self.kind, '')}"
        )

    def _unanswered(self) -> CommandFailed:
        if self.kind == Role.CONTROLLER:
            return NoController([self.address])
        return self._unreachable(f"no {self.kind} answers at {self.address}")

    def _unreachable(self, message: str) -> CommandFailed:
        way_out = f"name a {self.kind} with --address HOST:PORT or SLOTMESH_ADDRESS"
        if self.is_listed:
            way_out = f"run this where that address is reached, or name a {self.kind} with --router HOST:PORT"
        elif self.kind != "server":
            way_out += ", or start a mesh with `slotmesh run`"
        return CommandFailed(f"{message}; {way_out}")


async def resolved(targets: Sequence[str], kind: str) -> list[tuple[str, str]]:
    """The addresses of servers of this kind, and the name that each is of. Raises CommandFailed if there is none."""
    found: dict[str, str] = {}
    problem = ""
    for target in parse_targets(targets):
        if isinstance(target, str):
            found.setdefault(target, "")
            continue
        try:
            hosts = await NameLookups()(target)
        except LookupFailed as error:
            problem = f"{target} does not resolve: {error}"
        else:
            found |= {join_host_port(host, target.port): target.host for host in hosts}
    if not found:
        raise CommandFailed(f"{problem}; correct the name, or name a {kind} with --address HOST:PORT")
    return list(found.items())


def is_lost(error: grpc.RpcError) -> bool:
    """Whether the connection broke before a server reported an outcome: the rpc may or may not have been executed."""
    return from_rpc_error(error).reason is Reason.ROUTER_LOST and rpc_status.from_call(error) is None  # type: ignore[arg-type]  # as in slotmesh.status


class NoController(CommandFailed):
    """Nothing answers at any of the addresses of controllers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(
            f"no controller answers at {' or '.join(addresses)}; name the one that runs with --address HOST:PORT or"
            " SLOTMESH_ADDRESS (not a router or the HTTP ingress), or start a mesh with `slotmesh run`; if a controller"
            " that was started with --state has ended, start it again, with the --state file that it had"
        )


class ConnectionBroke(CommandFailed):
    """The connection broke before there was an answer."""


class NotOffered(CommandFailed):
    """The server does not have the rpc: it is of another kind, or of another version."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(str(peer.is_another_kind()))
        self._peer = peer

    async def explained(self) -> str:
        """Which of both, as the server itself answers."""
        peer = self._peer
        try:
            info = await peer.ask(GetServerInfoRequest(), CONNECT_TIMEOUT_S)
        except (CommandFailed, SlotmeshError):
            return str(self)
        kind = ServerKind.Name(info.kind).removeprefix("SERVER_KIND_").lower() if info.kind in _KINDS else "server"
        if peer.kind in SERVERS and kind in SERVERS and kind != peer.kind:
            return str(peer.is_another_kind(kind))
        return (
            f"the {kind} at {peer.address} runs slotmesh {info.version}, which does not have what this command asks"
            f" for; the command is of slotmesh {VERSION}: upgrade the {kind}, or use the command of its version"
        )


async def _is_reached(channel: grpc.aio.Channel) -> bool:
    """Waits for the connection, or for the first sign that there will be none."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while (state := channel.get_state(try_to_connect=True)) is not _State.READY:
                if state is _State.TRANSIENT_FAILURE:
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True


LEADS_WITHIN_S: Final = 15.0
"""How long a command waits for one to lead."""
_ASK_EVERY_S: Final = 0.1


async def leader_among(addresses: Sequence[str]) -> str:
    """The address of the controller that leads; some may be given by name. Raises CommandFailed where none does."""
    addresses = [address for address, _ in await resolved(addresses, "controller")]
    if len(addresses) == 1:
        return addresses[0]
    async for is_late in looks(_ASK_EVERY_S, LEADS_WITHIN_S):
        answers = await asyncio.gather(*(_ask(address) for address in addresses), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ControllerStatus) and answer.role.leads:
                return answer.address
            if isinstance(answer, BaseException) and not isinstance(answer, CommandFailed):
                raise answer
        failures = [str(answer) for answer in answers if isinstance(answer, CommandFailed)]
        if all(isinstance(answer, NoController) for answer in answers):
            raise NoController(addresses)
        if len(failures) == len(addresses):
            raise CommandFailed("\n".join(failures))
        if is_late:
            raise _no_leader(addresses, [it for it in answers if isinstance(it, ControllerStatus)], failures)
    raise AssertionError("the last look returns or raises")


def _no_leader(
    addresses: Sequence[str], standbys: Sequence[ControllerStatus], failures: Sequence[str]
) -> CommandFailed:
    """The failure if none of these controllers leads. `failures`: of those that did not answer."""
    for standby in standbys:
        leader = standby.role.leader_address
        if not leader or leader in {it.address for it in standbys}:
            continue
        reported = f"{leader} leads, as {standby.address} reports, and"
        if leader in addresses:
            return CommandFailed(
                f"{reported} does not answer; if it is stuck, kill its process (SIGKILL): a controller that stands by"
                " leads then"
            )
        named = ",".join((*addresses, leader))
        return CommandFailed("\n".join([f"{reported} was not named; name it, too: --address {named}", *failures]))
    words = f"no controller leads; standing by: {', '.join(it.address for it in standbys)}"
    return CommandFailed("\n".join([words, *failures]))


async def standing_of(channel: grpc.aio.Channel, peer: Peer) -> ControllerStatus:
    """The role that the controller reports.

    Raises SlotmeshError, or CommandFailed where it cannot be asked or is no controller.
    """
    with peer.telling():
        info = await begin(channel, GetServerInfoRequest(), timeout=CONNECT_TIMEOUT_S)
    if info.kind != ServerKind.SERVER_KIND_CONTROLLER:
        raise peer.is_another_kind()
    return ControllerStatus(peer.address, info.controller, info.incarnation, info.version, info.address)


async def _ask(address: str) -> ControllerStatus:
    """Raises CommandFailed where nothing answers, or something else than a controller."""
    peer = Peer("controller", address)
    async with peer.connect() as channel:
        return await standing_of(channel, peer)
