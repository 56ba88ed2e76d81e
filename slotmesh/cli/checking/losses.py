"""Members that were lost: which they are follows from the events of their ends, and from those that are attached.

Owner: the commands `check` and `status`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from slotmesh.cli.checking.findings import LostMember
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.controller_view import SUSPECT_STATE, Members
from slotmesh.cli.figures import unix_time
from slotmesh.cli.operator import Operator
from slotmesh.errors import SlotmeshError
from slotmesh.v1 import controller_service_pb2 as pb

ASK_WITHIN_S: Final = 10.0
LOST_WITHIN_S: Final = 3_600.0
MAX_LOST: Final = 1_000
"""Events that are looked at, the newest ones."""
ORDERLY: Final = "said goodbye"
"""How the event of a router begins that has left by itself."""
FAILED_PART: Final = "a part of it has failed"
"""The beginning of the reason of a member that ended because of its own defect."""
HANGS: Final = "its connection is open, and it sends nothing"
"""The reason of a router that was lost although its process is there."""


async def lost_members(operator: Operator) -> dict[str, LostMember]:
    """Members whose latest end was not orderly, by subject."""
    kinds = [pb.EVENT_KIND_ROUTER_DETACHED, pb.EVENT_KIND_REPLICA_SUSPECT, pb.EVENT_KIND_REPLICA_DEAD]
    wanted = pb.WatchEventsRequest(kinds=kinds, from_oldest=True, until_newest=True)
    newest: deque[pb.WatchEventsResponse] = deque(maxlen=MAX_LOST)
    try:
        async with asyncio.timeout(ASK_WITHIN_S), aclosing(operator.stream(wanted)) as past:
            async for event in past:
                newest.append(event)
    except (CommandFailed, SlotmeshError, TimeoutError):
        return {}  # the other queries may still work
    return lost_among(newest)


def lost_among(events: Iterable[pb.WatchEventsResponse]) -> dict[str, LostMember]:
    """Members whose latest end was not orderly, by subject. `events`: ends of members, oldest first."""
    newest = {it.resource: it for it in events}
    return {
        subject: LostMember(subject, unix_time(it.time), it.message)
        for subject, it in newest.items()
        if not is_orderly(it.message)
    }


def is_orderly(message: str) -> bool:
    """Whether the message of a router's departure event reports an orderly stop."""
    return message.startswith(ORDERLY) and FAILED_PART not in message


def is_at(address: str, message: str) -> bool:
    """Whether the message of a router's departure event names this address as the router's."""
    return re.search(rf", at {re.escape(address)}(?:[,;]|$)", message) is not None


def still_lost(lost: Mapping[str, LostMember], members: Members, now: float) -> tuple[LostMember, ...]:
    """Routers that were lost within `LOST_WITHIN_S` and are not attached, and replicas that are suspect.

    A router is not lost if another one is attached from its address.

    `now`: seconds since 1970. Replicas that have ended, or were replaced, are not suspect.
    """
    attached = {f"router/{it.router_id}" for it in members.routers}
    routers = [
        each
        for subject, each in lost.items()
        if subject.startswith("router/")
        and subject not in attached
        and not any(is_at(it.address, each.why) for it in members.routers)
        and (each.at is None or each.at >= now - LOST_WITHIN_S)
    ]
    suspect = [f"replica/{it.replica_id}" for it in members.replicas if it.state == SUSPECT_STATE]
    return (*routers, *(lost.get(it) or LostMember(it, None, "it is silent past its lease") for it in suspect))


def lost_text(member: LostMember) -> str:
    """Which one was lost, when and why, in a line."""
    at = "" if member.at is None else datetime.fromtimestamp(member.at, UTC).strftime(" at %H:%M:%S UTC")
    return f"{member.subject} was lost{at}: {member.why}"
