"""Calls that have not ended, of all routers: the oldest of each, in one list.

Invariants: all routers are asked at the same time; one that does not answer is named, and the calls of the others are
shown. No list is longer than the limit.
Owner: the command `calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slotmesh.cli.connection import Peer
from slotmesh.cli.outcome import CommandFailed
from slotmesh.errors import SlotmeshError
from slotmesh.spec.wire import seconds
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1.tap_service_pb2_grpc import TapServiceStub

ANSWER_S: Final = 10.0
"""How long a router may take."""
WAITING, SENDING, RUNNING, LANE, LEFT = "waiting", "sending", "running", "in lane", "left"
_STATES: Final = {
    pb.OPEN_CALL_STATE_WAITING: WAITING,
    pb.OPEN_CALL_STATE_SENDING: SENDING,
    pb.OPEN_CALL_STATE_AT_REPLICA: RUNNING,
    pb.OPEN_CALL_STATE_ABANDONED: LEFT,
}


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call, and the router that has it."""

    router: str
    """Its address."""
    call: pb.OpenCall
    is_behind: bool = False
    """It is at its replica, behind an older call of its ordering key."""

    @property
    def state(self) -> str:
        """One that a newer router knows is shown by its number."""
        state = _STATES.get(self.call.state, str(self.call.state))
        return LANE if state == RUNNING and self.is_behind else state


@dataclass(slots=True)
class ListedCalls:
    """The oldest calls of all routers, and how many there are."""

    calls: list[ListedCall] = field(default_factory=list)
    """Oldest first."""
    waiting: int = 0
    at_replicas: int = 0
    partial: list[str] = field(default_factory=list)
    """Addresses of routers that had more calls than they look at."""
    silent: dict[str, str] = field(default_factory=dict)
    """Addresses of routers that did not answer, and why."""

    @property
    def left_out(self) -> int:
        """Calls that match and are not shown."""
        return max(0, self.waiting + self.at_replicas - len(self.calls))

    def document(self) -> dict[str, Any]:
        """Values of JSON. Times are seconds."""
        return {
            "calls": [_document(each) for each in self.calls],
            "waiting": self.waiting,
            "at_replicas": self.at_replicas,
            "left_out": self.left_out,
            "partial_routers": self.partial,
            "silent_routers": self.silent,
        }


async def list_calls(request: pb.ListCallsRequest, routers: Sequence[str], *, limit: int) -> ListedCalls:
    """Asks these routers. Raises what a router says of the request itself, if none has answered it."""
    answers = await asyncio.gather(*(_of_router(request, each) for each in routers), return_exceptions=True)
    listed = ListedCalls()
    refusals: list[CommandFailed | SlotmeshError] = []
    for address, answer in zip(routers, answers, strict=True):
        match answer:
            case pb.ListCallsResponse():
                listed.calls += _of_one(address, answer)
                listed.waiting += answer.waiting
                listed.at_replicas += answer.at_replicas
                listed.partial += [address] if answer.is_partial else []
            case CommandFailed() | SlotmeshError():
                listed.silent[address] = await answer.explained() if isinstance(answer, CommandFailed) else str(answer)
                refusals.append(answer)
            case BaseException():
                raise answer
    if len(refusals) == len(routers):
        raise refusals[0]
    listed.calls.sort(key=lambda each: -seconds(each.call.age))
    del listed.calls[limit:]
    return listed


async def _of_router(request: pb.ListCallsRequest, address: str) -> pb.ListCallsResponse:
    peer = Peer("router", address)
    async with peer.connect() as channel:
        stub: Any = TapServiceStub(channel)
        with peer.telling():
            response: pb.ListCallsResponse = await stub.ListCalls(request, timeout=ANSWER_S)
            return response


def _of_one(address: str, response: pb.ListCallsResponse) -> list[ListedCall]:
    """Of one key, at one replica, the oldest call is the one that runs."""
    seen: set[tuple[str, str, str]] = set()
    listed: list[ListedCall] = []
    for call in response.calls:
        is_behind = False
        if call.key_tag and call.replica_id:
            key = (call.endpoint, call.key_tag, call.replica_id)
            is_behind = key in seen
            seen.add(key)
        listed.append(ListedCall(address, call, is_behind))
    return listed


def _document(listed: ListedCall) -> dict[str, Any]:
    call = listed.call
    return {
        "state": listed.state,
        "endpoint": call.endpoint,
        "method": call.method,
        "age_s": round(seconds(call.age), 3),
        "sent_s": round(seconds(call.sent_age), 3) if call.HasField("sent_age") else None,
        "backend": call.backend or None,
        "replica": call.replica_id or None,
        "tenant": call.tenant or None,
        "partition": call.partition if call.HasField("partition") else None,
        "key_tag": call.key_tag or None,
        "request_bytes": call.request_bytes,
        "attempt": call.attempt,
        "shadow": call.is_shadow,
        "waits_for": call.waits_for or None,
        "router": listed.router,
        **({"key": call.ordering_key} if call.HasField("ordering_key") else {}),
    }
