"""What a router's stream begins with: its link, as the core knows it, and the outbox that its answers go to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Final

from replica_service.convert import Issuer, tensors_to_wire
from replica_service.convert.answers import outlines_to_wire
from replica_service.core.calls import FRESH_S, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.handler.own_rpcs import RpcMethod
from replica_service.shell.links.router_outbox import Outbox
from slotmesh.handlers.description import CALL
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.v1 import replica_service_pb2
from slotmesh.wire.features import CHUNKS, HEARTBEATS
from slotmesh.wire.limits import MAX_INLINE_BYTES, MAX_METHODS, MAX_PAYLOAD_BYTES
from slotmesh.wire.outlines import fitting

NO_METHODS: Final[Mapping[str, HandlerMethod]] = MappingProxyType({})


def connect_link(
    scheduler: ReplicaScheduler,
    issuer: Issuer,
    now: float,
    features: Collection[str],
    stream_id: str,
    methods: Mapping[str, HandlerMethod] = NO_METHODS,
) -> tuple[RouterPeer, Outbox]:
    """A link and its outbox. `features`: the router's, which calls the stream `stream_id`, if it has a name for it.

    `methods`: of the handler; the empty name is that of the handler itself.
    """
    link = RouterPeer(
        stream_id=stream_id or new_id(STREAM_ID_BYTES),
        fresh_until=now + FRESH_S if HEARTBEATS in features else inf,
        max_result_bytes=MAX_PAYLOAD_BYTES if CHUNKS in features else MAX_INLINE_BYTES,
    )
    times = scheduler.service_times
    told = {name: method for name, method in sorted(methods.items()) if not isinstance(method, RpcMethod)}
    outbox = link.outbox = Outbox(
        lambda: scheduler.capacity(link),
        issuer,
        features,
        times=times,
        opening=replica_service_pb2.ExecuteResponse(
            methods=sorted(name or CALL for name in methods)[:MAX_METHODS],
            outlines=outlines_to_wire(fitting(each.outline for each in islice(told.values(), MAX_METHODS))),
            tensors=tensors_to_wire((name or CALL, each.tensors) for name, each in told.items()),
        ),
        about_to_end=partial(scheduler.about_to_end, link),
        are_quick=lambda: times.are_quick,
    )
    return link, outbox
