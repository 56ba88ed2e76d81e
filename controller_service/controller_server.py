"""What is served at a controller's address from its start to its end, whether it leads or not.

Purpose: the server, and gates in front of the servicers of operators and members: while this controller does not lead,
each of their rpcs is refused with NOT_LEADER and the leader's address. Identity and health are always answered.
Invariants: a controller that does not lead answers nothing but who leads; health is SERVING only while it leads.
Owner: the composition root.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from controller_service.config import ControllerSettings
from controller_service.shell.leadership import LeadershipBoard
from controller_service.store.protocol import Leader
from slotmesh.config.members import WILDCARDS
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import membership_service_pb2_grpc
from slotmesh.runtime.channels import Dialer
from slotmesh.security.quotas import QuotaKind, RateQuota
from slotmesh.security.tokens import Tokens
from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.server import GrpcServer
from slotmesh.status import to_exception
from slotmesh.transport.current_channel import LEADER_FACT
from slotmesh.units import parse_host_port
from slotmesh.v1 import (
    controller_service_pb2_grpc,
    http_route_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
)

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsSource

RETRY_S: Final = 1.0
"""When to ask again, where it is not known who leads."""

Context = grpc.aio.ServicerContext[Any, Any]
_REGISTER: Final[tuple[Callable[[Any, Any], None], ...]] = (
    controller_service_pb2_grpc.add_ControllerServiceServicer_to_server,
    membership_service_pb2_grpc.add_MembershipServiceServicer_to_server,
    http_route_service_pb2_grpc.add_HttpRouteServiceServicer_to_server,
)


class Gate:
    """Mounted in place of a servicer: passes rpcs on to that of the leader, and refuses them while there is none."""

    def __init__(self, kind: type, refusal: Callable[[], Failure]) -> None:
        """`kind` is the class of the servicer."""
        self._kind = kind
        self._refusal = refusal
        self.behind: Any = None
        """The servicer; None while this controller does not lead."""

    def __getattr__(self, rpc: str) -> Callable[[Any, Context], Awaitable[Any]]:
        @functools.wraps(getattr(self._kind, rpc))
        async def passed(request: Any, context: Context) -> Any:
            if self.behind is None:
                raise to_exception(self._refusal())
            return await getattr(self.behind, rpc)(request, context)

        return passed


class Front:
    """The server of a controller. Made before it leads; `start` may come before that, too."""

    def __init__(
        self,
        settings: ControllerSettings,
        operators: type,
        members: type,
        routes: type,
        *,
        tls: TlsSource | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """`operators`, `members` and `routes` are the classes of the servicers that answer while this controller leads.

        `tls` has its certificates; None: in plain text. `tokens` knows the holders of bearer tokens.
        """
        self._settings = settings
        self.dialer = Dialer(tls)
        """Connects to other controllers."""
        self.is_started = False
        """It listens."""
        self._leadership: LeadershipBoard | None = None
        self.leader: Callable[[], Leader] | None = None
        """Who leads while this controller stands by; None if it does not."""
        self.server = GrpcServer(
            "controller",
            host=settings.host,
            port=settings.port,
            insecure=settings.insecure,
            channelz=settings.channelz,
            limits=settings.edge_limits,
            tls=tls,
            token_port=settings.token_port,
            tokens=tokens,
        )
        self.server.edge.change_quota = RateQuota(
            QuotaKind.CHANGES, settings.max_changes_per_caller, "max_changes_per_caller"
        )
        self.info = InfoServicer(info_service_pb2.SERVER_KIND_CONTROLLER, tls=tls, amend=self._add_standing)
        self._gates = [Gate(each, self._refusal) for each in (operators, members, routes)]
        for register, gate in zip(_REGISTER, self._gates, strict=True):
            self.server.add(register, gate)
        self.server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, self.info)

    @property
    def address(self) -> str:
        """Where others reach this controller, `HOST:PORT`; empty where only the host knows. Only after `start`."""
        address = self._settings.advertised(self.server.address)
        return "" if parse_host_port(address)[0] in WILDCARDS else address

    @property
    def leadership(self) -> LeadershipBoard | None:
        """That of this controller, while it leads."""
        return self._leadership

    async def start(self) -> None:
        """Listens. May be called again. Raises CannotStart."""
        if not self.is_started:
            await self.server.start()
            self.is_started = True
            self.info.address = self.address or self.server.address

    def open(self, operators: Any, members: Any, routes: Any, leadership: LeadershipBoard) -> None:
        """This controller leads: these servicers answer."""
        for gate, servicer in zip(self._gates, (operators, members, routes), strict=True):
            gate.behind = servicer
        self._leadership = leadership
        self.leader = None

    def close(self) -> None:
        """It leads no more: from now on rpcs are refused. Those under way go on."""
        self._leadership = None
        for gate in self._gates:
            gate.behind = None
        if self.is_started:
            self.server.set_serving(False)

    def why_not_serving(self, in_full: bool) -> str:
        """For `/readyz`. `in_full`: the caller may see the mesh, so the leader's address too."""
        if (leader := self.leader) is None:
            if problem := self.store_problem:
                return f"the state cannot be written: {problem}" if in_full else "the state cannot be written"
            return "not serving"
        return f"standing by: {leader().name} leads" if in_full else "standing by"

    @property
    def store_problem(self) -> str:
        """Why the store of this controller cannot be written; empty if it can, or this controller does not lead."""
        return self._leadership.standing.problem if self._leadership is not None else ""

    def _refusal(self) -> Failure:
        if self.leader is None:
            text = "this controller does not lead: it is starting or ending"
            return Failure(reason=Reason.NOT_LEADER, message=text, retry_delay_s=RETRY_S)
        leader = self.leader()
        text = f"this controller stands by, and {leader.name} leads: ask that one"
        facts = {LEADER_FACT: leader.address} if leader.address else {}
        return Failure(reason=Reason.NOT_LEADER, message=text, retry_delay_s=RETRY_S, metadata=facts)

    def _add_standing(self, info: info_service_pb2.GetServerInfoResponse) -> None:
        info.controller.SetInParent()
        if (leads := self._leadership) is not None:
            info.incarnation = leads.generation
            info.controller.leads = True
            info.controller.term = leads.standing.term
            info.controller.leads_since_time.FromMicroseconds(round(leads.since_s * 1e6))
            info.controller.leader_address = leads.address
            info.controller.standby_addresses.extend(leads.standing.standbys)
            info.controller.store_problem = leads.standing.problem
            info.controller.newer_members.extend(() if leads.newer is None else leads.newer.reasons)
        elif self.leader is not None:
            info.controller.leader_address = self.leader().address
