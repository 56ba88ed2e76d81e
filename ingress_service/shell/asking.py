"""Questions to routers: unary rpcs that any of them can answer, asked as the caller, of one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from ingress_service.shell.callers import HttpCaller
from slotmesh.client.stream.rpc_failures import refusal_of
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception

ASK_S: Final = 2.0
"""What one router gets for its answer."""
_OF_ONE_ROUTER: Final = frozenset(
    {
        Reason.ROUTER_LOST,
        Reason.DEADLINE_RUNNING,
        Reason.NOT_IMPLEMENTED,
        Reason.DRAINING,
        Reason.STALE_TABLE,
        Reason.CANCELLED,
        Reason.INTERNAL,
    }
)
"""Another one may say something else."""

AnswerT = TypeVar("AnswerT")


async def ask_routers(caller: HttpCaller, ask: Callable[[str], Awaitable[AnswerT]], endpoint: str = "") -> AnswerT:
    """The first answer. `ask` is given an address. Raises SlotmeshError where no router has answered."""
    failure = Failure(reason=Reason.ROUTER_LOST, message="no router can be reached")
    for address in caller.routers.in_turn(""):
        try:
            return await ask(address)
        except grpc.RpcError as error:
            failure = refusal_of(error, address, caller.routers.dialer)
            if failure.reason not in _OF_ONE_ROUTER:
                break
    raise to_exception(failure, endpoint=endpoint)
