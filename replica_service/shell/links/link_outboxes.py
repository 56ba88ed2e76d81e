"""What a router's stream begins with: its link, as the core knows it, and the outbox that its answers go to."""

from __future__ import annotations

from functools import partial
from math import inf

from replica_service.convert import Issuer
from replica_service.core.calls import FRESH_S, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.shell.links.router_outbox import Outbox
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.wire.limits import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES


def connect_link(
    scheduler: ReplicaScheduler,
    issuer: Issuer,
    now: float,
    *,
    echoes: bool,
    cuts: bool,
    wants_times: bool,
    stream_id: str,
) -> tuple[RouterPeer, Outbox]:
    """A link and its outbox. For the options see `Engine.open`."""
    link = RouterPeer(
        stream_id=stream_id or new_id(STREAM_ID_BYTES),
        fresh_until=now + FRESH_S if echoes else inf,
        max_result_bytes=MAX_PAYLOAD_BYTES if cuts else MAX_INLINE_BYTES,
    )
    times = scheduler.service_times
    outbox = link.outbox = Outbox(
        lambda: scheduler.capacity(link),
        issuer,
        cuts=cuts,
        times=times if wants_times else None,
        about_to_end=partial(scheduler.about_to_end, link),
        are_quick=lambda: times.are_quick,
    )
    return link, outbox
