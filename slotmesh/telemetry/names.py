"""Every name of a metric and of an attribute, once.

Invariants: names follow OpenTelemetry's conventions (dots, singular units in braces); values of attributes come from
closed sets: names in the mesh's specification, the reasons of `slotmesh.errors`, outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVICE_NAME: Final = "service.name"
ENDPOINT: Final = "slotmesh.endpoint"
BACKEND: Final = "slotmesh.backend"
REASON: Final = "slotmesh.reason"
OUTCOME: Final = "slotmesh.outcome"
KIND: Final = "slotmesh.member.kind"
DIRECTION: Final = "slotmesh.direction"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured: name, unit (UCUM, or what is counted in braces), meaning, and the attributes of each value."""

    name: str
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


ROUTER_CALLS = Metric("slotmesh.router.calls", "{call}", "Calls accepted, whatever became of them.", (ENDPOINT,))
ROUTER_FAILURES = Metric(
    "slotmesh.router.failures",
    "{call}",
    "Calls that ended in a failure; the backend is empty where none was chosen.",
    (ENDPOINT, BACKEND, REASON),
)
ROUTER_QUEUED = Metric("slotmesh.router.queued", "{call}", "Calls waiting for a replica.", (BACKEND,))
ROUTER_ONGOING = Metric("slotmesh.router.ongoing", "{call}", "Calls at a replica, not answered yet.", (BACKEND,))
ROUTER_REFUSALS = Metric(
    "slotmesh.router.refusals", "{call}", "Calls that a replica handed back unexecuted.", (BACKEND, REASON)
)
ROUTER_RETRIES = Metric(
    "slotmesh.router.retries", "{call}", "Idempotent calls sent again after their replica was lost.", (BACKEND,)
)
ROUTER_SHADOWS = Metric(
    "slotmesh.router.shadows",
    "{call}",
    "Copies sampled for a shadow that ended: completed, failed, or dropped for want of a free slot.",
    (BACKEND, OUTCOME),
)
ROUTER_RESERVATIONS = Metric(
    "slotmesh.router.reservations",
    "{reservation}",
    "Reservations that ended: granted, no_slot (none free in time), refused (the queue was full), cancelled or failed.",
    (ENDPOINT, OUTCOME),
)
ROUTER_RESERVE_TIME = Metric(
    "slotmesh.router.reserve.time", "s", "Time of reservations from their arrival until they were granted.", (BACKEND,)
)
ROUTER_QUEUE_TIME = Metric(
    "slotmesh.router.queue.time", "s", "Time of calls from their arrival until they were sent to a replica.", (BACKEND,)
)
ROUTER_REPLICA_TIME = Metric(
    "slotmesh.router.replica.time", "s", "Time of calls from there until the replica answered.", (BACKEND,)
)
ROUTER_LINK_FAILURES = Metric("slotmesh.router.link.failures", "{link}", "Links to replicas that broke.", (BACKEND,))
ROUTER_FRAMES = Metric(
    "slotmesh.router.frames", "{frame}", "Frames with calls (in) and with results (out) of clients.", (DIRECTION,)
)
ROUTER_REPLICA_FRAMES = Metric(
    "slotmesh.router.replica.frames",
    "{frame}",
    "Frames with calls to replicas (out) and with their results (in).",
    (BACKEND, DIRECTION),
)
ROUTER_UNKNOWN_BALANCERS = Metric(
    "slotmesh.router.balancers.unknown",
    "{backend}",
    "1 where the backend's balancer is not known to this version, and another one stands in for it.",
    (BACKEND,),
)
ROUTER_STREAMS = Metric("slotmesh.router.streams", "{stream}", "Open client streams.")
ROUTER_UNREAD = Metric("slotmesh.router.unread", "By", "Results that clients have not read, of all streams.")
ROUTER_BRAKES = Metric(
    "slotmesh.router.brakes", "{brake}", "Times that calls had to wait as clients had too many results unread."
)

REPLICA_CALLS = Metric("slotmesh.replica.calls", "{call}", "Calls executed to their end.", (BACKEND,))
REPLICA_FAILURES = Metric(
    "slotmesh.replica.failures", "{call}", "Calls that ended in a failure at the replica.", (BACKEND, REASON)
)
REPLICA_ONGOING = Metric(
    "slotmesh.replica.ongoing", "{call}", "Permits in use: calls being executed, and slots.", (BACKEND,)
)
REPLICA_WAITING = Metric("slotmesh.replica.waiting", "{call}", "Calls waiting for a permit or in a lane.", (BACKEND,))
REPLICA_SLOTS_RESERVED = Metric(
    "slotmesh.replica.slots.reserved",
    "{slot}",
    "Slots that are reserved, and in which no call runs yet; with all that direct streams hold.",
    (BACKEND,),
)
REPLICA_RESERVATIONS = Metric(
    "slotmesh.replica.reservations",
    "{reservation}",
    "Reservations that ended: granted, refused (no room, or draining), cancelled or timed_out while they waited.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOTS = Metric(
    "slotmesh.replica.slots",
    "{slot}",
    "Slots that are reserved no more: dispatched, released without a call, or expired.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOT_HELD_TIME = Metric(
    "slotmesh.replica.slot.held.time", "s", "Time of slots from their grant until a call was dispatched.", (BACKEND,)
)
REPLICA_BATCHES = Metric("slotmesh.replica.batches", "{batch}", "Batches handed to batch handlers.", (BACKEND,))
REPLICA_BLOCKS = Metric(
    "slotmesh.replica.loop.blocks", "{block}", "Times that the handler kept its event loop for too long.", (BACKEND,)
)
REPLICA_BLOCKED_TIME = Metric("slotmesh.replica.loop.blocked.time", "s", "How long it did, those times.", (BACKEND,))
REPLICA_BATCH_SIZE = Metric("slotmesh.replica.batch.size", "{call}", "Calls in a batch.", (BACKEND,))
REPLICA_BATCH_AGE = Metric(
    "slotmesh.replica.batch.age", "s", "How long the oldest running batch has run; 0 while none does.", (BACKEND,)
)

CONTROLLER_MEMBERS = Metric("slotmesh.controller.members", "{member}", "Attached routers and replicas.", (KIND,))
CONTROLLER_REVISION = Metric("slotmesh.controller.revision", "{revision}", "Newest revision of the routing table.")
CONTROLLER_LAUNCHES = Metric("slotmesh.controller.launches", "{process}", "Replica processes started.", (BACKEND,))

DIRECTION_IN: Final = "in"
DIRECTION_OUT: Final = "out"
KIND_ROUTER: Final = "router"
KIND_REPLICA: Final = "replica"
