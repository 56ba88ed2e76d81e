"""Every name of a metric and of an attribute, once.

Invariants: names follow OpenTelemetry's conventions (dots, singular units in braces); values of attributes come from
closed sets: names in the mesh's specification, the reasons of `slotmesh.errors`, outcomes. Tenants, which callers name,
are bounded in number by the router: those with most calls lately, and one value for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final

SERVICE_NAME: Final = "service.name"
INSTANCE: Final = "service.instance.id"
ENDPOINT: Final = "slotmesh.endpoint"
BACKEND: Final = "slotmesh.backend"
REASON: Final = "slotmesh.reason"
OUTCOME: Final = "slotmesh.outcome"
KIND: Final = "slotmesh.member.kind"
STATE: Final = "slotmesh.replica.state"
POOL: Final = "slotmesh.device.pool"
DEVICE_STATE: Final = "slotmesh.device.state"
EVENT: Final = "slotmesh.event"
DIRECTION: Final = "slotmesh.direction"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
TOKEN_PROBLEM: Final = "slotmesh.token.problem"  # noqa: S105 - the name of a label
METHOD: Final = "slotmesh.method"
TENANT: Final = "slotmesh.tenant"
OTHER_TENANTS: Final = "other"
"""In place of the names of all tenants that are not among those with most calls."""
QUOTA: Final = "slotmesh.quota"
ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
CUT: Final = "slotmesh.ingress.cut"
PICK_FAULT: Final = "slotmesh.pick.fault"
DISTANCE: Final = "slotmesh.distance"
STREAM_CUT: Final = "slotmesh.stream.cut"
TLS_SERVER: Final = "slotmesh.tls.server"
TLS_PROBLEM: Final = "slotmesh.tls.problem"
"""Of metrics only as far as its values are bounded."""
# Of spans and logs alone: values that callers choose, or of which there are many.
CALL_ID: Final = "slotmesh.call.id"
ATTEMPT: Final = "slotmesh.attempt"
ROUTER_ID: Final = "slotmesh.router.id"
REPLICA_ID: Final = "slotmesh.replica.id"
EXECUTED: Final = "slotmesh.executed"
BATCH_SIZE: Final = "slotmesh.batch.size"
LOG_REF_ATTRIBUTE: Final = "slotmesh.log_ref"
HTTP_METHOD: Final = "http.request.method"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
PROTOCOL_VERSION: Final = "network.protocol.version"
ERROR_TYPE: Final = "error.type"
LOG_REF: Final = "log_ref"
"""Fact of a failure: what is to be looked for in the log."""
NO_FACTS: Final[Mapping[str, str]] = MappingProxyType({})
NO_ATTRIBUTES: Final[Mapping[str, str | int | bool]] = MappingProxyType({})


class MetricKind(Enum):
    """What its values mean."""

    COUNTER = "counter"
    """A total that only grows."""
    GAUGE = "gauge"
    """The value of this moment."""
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured: name, unit (UCUM, or what is counted in braces), meaning, and the attributes of each value."""

    name: str
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    kind: MetricKind = field(kw_only=True)


_counter: Final = partial(Metric, kind=MetricKind.COUNTER)
_gauge: Final = partial(Metric, kind=MetricKind.GAUGE)
_histogram: Final = partial(Metric, kind=MetricKind.HISTOGRAM)


ROUTER_CALLS = _counter("slotmesh.router.calls", "{call}", "Calls accepted, whatever became of them.", (ENDPOINT,))
ROUTER_FAILURES = _counter(
    "slotmesh.router.failures",
    "{call}",
    "Calls that failed; the backend is empty if none was chosen.",
    (ENDPOINT, BACKEND, REASON),
)
ROUTER_TENANT_CALLS = _counter(
    "slotmesh.router.tenant.calls",
    "{call}",
    "Calls with a tenant.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_FAILURES = _counter(
    "slotmesh.router.tenant.failures",
    "{call}",
    "Those of them that failed, refused ones included.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_REFUSALS = _counter(
    "slotmesh.router.tenant.refusals",
    "{call}",
    "Those refused by a limit of their tenant, or by a full queue.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_UNANSWERED = _gauge(
    "slotmesh.router.tenant.unanswered",
    "{call}",
    "Calls with a tenant that have no outcome yet.",
    (ENDPOINT, TENANT),
)
ROUTER_QUEUED = _gauge("slotmesh.router.queued", "{call}", "Calls waiting for a replica.", (BACKEND,))
ROUTER_ONGOING = _gauge(
    "slotmesh.router.ongoing",
    "{call}",
    "Calls at a replica; reservations and calls in slots, too.",
    (BACKEND,),
)
ROUTER_REFUSALS = _counter(
    "slotmesh.router.refusals", "{call}", "Calls that a replica handed back unexecuted.", (BACKEND, REASON)
)
ROUTER_AFFINITY = _counter(
    "slotmesh.router.affinity",
    "{call}",
    "Calls and reservations with an affinity key: `preferred` at the replica of their key, `spilled` at another one.",
    (BACKEND, OUTCOME),
)
ROUTER_PREFIX_BLOCKS = _counter(
    "slotmesh.router.prefix_blocks",
    "{block}",
    "Blocks of the prompts of calls that were sent: `known` at their replica, from calls before, or `new` there.",
    (BACKEND, OUTCOME),
)
ROUTER_RETRIES = _counter(
    "slotmesh.router.retries", "{call}", "Idempotent calls sent again after their replica was lost.", (BACKEND,)
)
ROUTER_SHADOWS = _counter(
    "slotmesh.router.shadows",
    "{call}",
    "Copies for a shadow that ended: completed, failed, or dropped as no slot was free.",
    (BACKEND, OUTCOME),
)
ROUTER_RESERVATIONS = _counter(
    "slotmesh.router.reservations",
    "{reservation}",
    "Reservations that ended: granted, no_slot (none free in time), refused (full queue), cancelled, failed.",
    (ENDPOINT, OUTCOME),
)
ROUTER_BROADCASTS = _counter(
    "slotmesh.router.broadcasts",
    "{broadcast}",
    "Broadcasts that ended: completed at each replica, failed at one or more, refused (no call began), cancelled (the "
    "client left before the last outcome). Their calls are counted as all calls are.",
    (ENDPOINT, OUTCOME),
)
ROUTER_RESERVE_TIME = _histogram(
    "slotmesh.router.reserve.time", "s", "From the arrival of a reservation until it was granted.", (BACKEND,)
)
ROUTER_QUEUE_TIME = _histogram(
    "slotmesh.router.queue.time", "s", "From the arrival of a call until it was sent to a replica.", (BACKEND,)
)
ROUTER_REPLICA_TIME = _histogram(
    "slotmesh.router.replica.time", "s", "Time of calls from there until the replica answered.", (BACKEND,)
)
ROUTER_CALL_TIME = _histogram(
    "slotmesh.router.call.time",
    "s",
    "From arrival to outcome, of executed calls; methods of an endpoint beyond 32 are _other.",
    (ENDPOINT, METHOD),
)
ROUTER_CALL_QUEUE_TIME = _histogram(
    "slotmesh.router.call.queue.time",
    "s",
    "From the arrival of the same calls until they were sent to a replica.",
    (ENDPOINT, METHOD),
)
ROUTER_SESSIONS = _gauge("slotmesh.router.sessions", "{session}", "Sessions whose clients are connected here.")
ROUTER_LINK_FAILURES = _counter("slotmesh.router.link.failures", "{link}", "Links to replicas that broke.", (BACKEND,))
ROUTER_DEFECTS = _counter(
    "slotmesh.router.defects",
    "{event}",
    "Events that a call's state does not allow: defects of slotmesh, logged.",
)
ROUTER_FRAMES = _counter(
    "slotmesh.router.frames", "{frame}", "Frames with calls (in) and with results (out) of clients.", (DIRECTION,)
)
ROUTER_REPLICA_FRAMES = _counter(
    "slotmesh.router.replica.frames",
    "{frame}",
    "Frames to replicas (out) and from them (in).",
    (BACKEND, DIRECTION),
)
ROUTER_UNKNOWN_BALANCERS = _gauge(
    "slotmesh.router.balancers.unknown",
    "{backend}",
    "1 if this router does not have the backend's balancer, and uses least_loaded.",
    (BACKEND,),
)
ROUTER_BALANCER_FAULTS = _counter(
    "slotmesh.router.balancer.faults",
    "{pick}",
    "Picks of a balancer of the user's own that were not used, and least_loaded picked: it raised, picked none, or "
    "what is impossible, or was set_aside for earlier faults; and picks that were late, and hooks that raised.",
    (BACKEND, PICK_FAULT),
)
ROUTER_BALANCER_TIME = _histogram(
    "slotmesh.router.balancer.pick.time", "s", "Time of picks of a balancer of the user's own.", (BACKEND,)
)
ROUTER_ZONE_CALLS = _counter(
    "slotmesh.router.zone.calls",
    "{call}",
    "Calls without an ordering key that were sent to replicas of the router's own zone (near) or to others (far), if "
    "the router has a zone.",
    (BACKEND, DISTANCE),
)
ROUTER_STREAMS = _gauge("slotmesh.router.streams", "{stream}", "Open client streams.")
ROUTER_UNREAD = _gauge("slotmesh.router.unread", "By", "Results that clients have not read, of all streams.")
ROUTER_BRAKES = _counter(
    "slotmesh.router.brakes", "{brake}", "Times that calls waited because clients had too many unread results."
)

INGRESS_REQUESTS = _counter(
    "slotmesh.ingress.requests",
    "{request}",
    "Requests of HTTP that were answered; the route is _default for calls without a route of their own, _none for no "
    "path that there is, and _other beyond a thousand.",
    (ROUTE, HTTP_STATUS),
)
INGRESS_TIME = _histogram(
    "slotmesh.ingress.request.time",
    "s",
    "From a request's headers to the end of the answer.",
    (ROUTE,),
)
INGRESS_LEFT = _counter(
    "slotmesh.ingress.left", "{request}", "Requests whose client left before the end of the answer.", (ROUTE,)
)
INGRESS_VALUES = _counter(
    "slotmesh.ingress.values", "{value}", "Values of handlers that yield, sent one by one.", (ROUTE,)
)
INGRESS_CUTS = _counter(
    "slotmesh.ingress.cuts", "{connection}", "Connections that were closed, or not taken, for a bound.", (CUT,)
)
INGRESS_IN_FLIGHT = _gauge("slotmesh.ingress.in_flight", "{request}", "Requests that are being answered.")
INGRESS_CONNECTIONS = _gauge("slotmesh.ingress.connections", "{connection}", "Connections of HTTP that are open.")
INGRESS_CALLERS = _gauge("slotmesh.ingress.callers", "{caller}", "Bearer tokens with connections to routers.")
INGRESS_HELD = _gauge("slotmesh.ingress.held", "By", "Bodies of requests that are being read or called.")
INGRESS_CERTIFICATE_END = _gauge(
    "slotmesh.ingress.https.certificate.end",
    "s",
    "When the certificate for HTTP clients expires, seconds since 1970.",
)
INGRESS_ROUTES_HELD = _gauge(
    "slotmesh.ingress.routes.held",
    "1",
    "1 while routes are not updated, as the controller's state file is an older copy.",
)
INGRESS_REVISION = _gauge("slotmesh.ingress.routes.revision", "1", "Revision of the routes in force; -1 before any.")

REPLICA_CALLS = _counter("slotmesh.replica.calls", "{call}", "Calls executed to their end.", (BACKEND,))
REPLICA_FAILURES = _counter(
    "slotmesh.replica.failures", "{call}", "Calls that ended in a failure at the replica.", (BACKEND, REASON)
)
REPLICA_ONGOING = _gauge(
    "slotmesh.replica.ongoing", "{call}", "Permits in use: calls being executed, and slots.", (BACKEND,)
)
REPLICA_FENCE = _gauge(
    "slotmesh.replica.fence.left",
    "s",
    "With --fence-after: time until calls may not start.",
    (BACKEND,),
)
REPLICA_WAITING = _gauge("slotmesh.replica.waiting", "{call}", "Calls waiting for a permit or in a lane.", (BACKEND,))
REPLICA_SLOTS_RESERVED = _gauge(
    "slotmesh.replica.slots.reserved",
    "{slot}",
    "Reserved slots without a call, and all of direct streams.",
    (BACKEND,),
)
REPLICA_RESERVATIONS = _counter(
    "slotmesh.replica.reservations",
    "{reservation}",
    "Reservations that ended: granted, refused (no room, or draining), cancelled, timed_out.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOTS = _counter(
    "slotmesh.replica.slots",
    "{slot}",
    "Slots that ended: dispatched, released without a call, expired.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOT_HELD_TIME = _histogram(
    "slotmesh.replica.slot.held.time", "s", "Time of slots from their grant until a call was dispatched.", (BACKEND,)
)
REPLICA_CALL_TIME = _histogram(
    "slotmesh.replica.call.time",
    "s",
    "From the start of a call at the replica to its end there.",
    (BACKEND,),
)
REPLICA_WAIT_TIME = _histogram(
    "slotmesh.replica.wait.time",
    "s",
    "From the arrival of a call at the replica to its start.",
    (BACKEND,),
)
REPLICA_DEFECTS = _counter(
    "slotmesh.replica.defects",
    "{event}",
    "Events that a call's state does not allow: defects of slotmesh, logged.",
    (BACKEND,),
)
REPLICA_BATCHES = _counter("slotmesh.replica.batches", "{batch}", "Batches handed to batch handlers.", (BACKEND,))
REPLICA_BLOCKS = _counter(
    "slotmesh.replica.loop.blocks", "{block}", "Times that the handler kept its event loop for too long.", (BACKEND,)
)
REPLICA_BLOCKED_TIME = _counter("slotmesh.replica.loop.blocked.time", "s", "How long it did, those times.", (BACKEND,))
REPLICA_BATCH_SIZE = _histogram("slotmesh.replica.batch.size", "{call}", "Calls in a batch.", (BACKEND,))
REPLICA_MODELS = _gauge("slotmesh.replica.models", "{model}", "Models that the handler has loaded by id.", (BACKEND,))
REPLICA_MODEL_HITS = _counter(
    "slotmesh.replica.model.hits", "{request}", "Requests of calls for models that were loaded.", (BACKEND,)
)
REPLICA_MODEL_LOADS = _counter(
    "slotmesh.replica.model.loads", "{model}", "Loads of models that ended: ok or failed.", (BACKEND, OUTCOME)
)
REPLICA_MODEL_LOAD_TIME = _counter(
    "slotmesh.replica.model.load.time", "s", "Time of the loads that ended well.", (BACKEND,)
)
REPLICA_MODEL_UNLOADS = _counter("slotmesh.replica.model.unloads", "{model}", "Models that were unloaded.", (BACKEND,))
REPLICA_BATCH_AGE = _gauge(
    "slotmesh.replica.batch.age", "s", "How long the oldest running batch has run; 0 while none does.", (BACKEND,)
)

CONTROLLER_MEMBERS = _gauge("slotmesh.controller.members", "{member}", "Attached routers and replicas.", (KIND,))
CONTROLLER_IS_LEADER = _gauge(
    "slotmesh.controller.is.leader",
    "{controller}",
    "1 while this controller leads.",
)
CONTROLLER_STANDBYS = _gauge("slotmesh.controller.standbys", "{controller}", "Controllers that stand by for this one.")
CONTROLLER_STORE_FAILING = _gauge(
    "slotmesh.controller.store_failing",
    "1",
    "1 while the leader's state cannot be written: changes are refused.",
)
CONTROLLER_NEWER_MEMBERS = _gauge(
    "slotmesh.controller.newer_members",
    "{member}",
    "Members with a newer state than the leader's state file; unless it is 0, nothing is reconciled.",
)
CONTROLLER_TERM = _gauge(
    "slotmesh.controller.term", "{term}", "The term under which this controller leads; 0 while it does not."
)
CONTROLLER_REPLICAS = _gauge(
    "slotmesh.controller.replicas",
    "{replica}",
    "Replicas by state; a suspect one has been silent for a lease.",
    (BACKEND, STATE),
)
CONTROLLER_REPLICAS_WANTED = _gauge(
    "slotmesh.controller.replicas.wanted",
    "{replica}",
    "Replicas that should run; absent if no number is set.",
    (BACKEND,),
)
CONTROLLER_CRASH_LOOPS = _gauge(
    "slotmesh.controller.crash.loops",
    "{backend}",
    "1 while 3 or more launched replicas in a row ended before they were ready, or soon after: starts are delayed.",
    (BACKEND,),
)
CONTROLLER_EVENTS = _counter("slotmesh.controller.events", "{event}", "Events, as in `slotmesh events`.", (EVENT,))
CONTROLLER_REVISION = _gauge("slotmesh.controller.revision", "{revision}", "Newest revision of the routing table.")
CONTROLLER_POD_WATCH_AGE = _gauge(
    "slotmesh.controller.pod.watch.age",
    "s",
    "Time since the API server of Kubernetes last confirmed the list of pods; absent if the controller follows none.",
)
CONTROLLER_DEVICES = _gauge(
    "slotmesh.controller.devices",
    "{device}",
    "Devices of --devices by pool and state: `free`, `shared` (a part is free), `held`; absent without pools.",
    (POOL, DEVICE_STATE),
)
CONTROLLER_LAUNCHES = _counter(
    "slotmesh.controller.launches", "{process}", "Replica processes that were started.", (BACKEND,)
)

RPC_SERVER_CALL_DURATION = _histogram(
    "rpc.server.call.duration",
    "s",
    "Duration of rpcs, by OpenTelemetry's conventions; a stream is one rpc.",
    (RPC_SYSTEM, RPC_METHOD, RPC_STATUS),
)
PROCESS_SPANS_DROPPED = _counter(
    "slotmesh.process.spans.dropped",
    "{span}",
    "Spans that were not exported.",
)
PROCESS_LOOP_LAG = _histogram(
    "slotmesh.process.loop.lag",
    "s",
    "Delay of a timer of the event loop, four times a second: what a call waits for the loop.",
)

TLS_CERTIFICATE_END = _gauge(
    "slotmesh.tls.certificate.end", "s", "When the certificate of the process expires, in seconds since 1970."
)
TLS_AUTHORITY_END = _gauge(
    "slotmesh.tls.authority.end",
    "s",
    "When the first of the authorities that it trusts expires, in seconds since 1970.",
)
TLS_REVOKED = _gauge("slotmesh.tls.revoked", "{certificate}", "Certificates that its lists of revoked ones name.")
TLS_REVOCATIONS_END = _gauge(
    "slotmesh.tls.revocations.end", "s", "When the first of these lists should have a newer one, since 1970; 0: never."
)
TLS_RELOAD_FAILURES = _counter(
    "slotmesh.tls.reload.failures",
    "{reload}",
    "Changed certificate files that could not be used; the former ones stay in use.",
)
TLS_HANDSHAKES = _counter(
    "slotmesh.tls.handshakes",
    "{handshake}",
    "Handshakes begun by gRPC servers.",
)
TLS_HANDSHAKE_FAILURES = _counter(
    "slotmesh.tls.handshake.failures",
    "{handshake}",
    "Failed handshakes of an ingress (https) or the metrics page (metrics); gRPC reports none.",
    (TLS_SERVER, TLS_PROBLEM),
)
TOKEN_REFUSALS = _counter(
    "slotmesh.token.refusals",
    "{token}",
    "Refused bearer tokens, by cause.",
    (TOKEN_PROBLEM,),
)
TOKEN_RELOAD_FAILURES = _counter(
    "slotmesh.token.reload.failures",
    "{reload}",
    "Changed files of tokens or keys that could not be used; the former ones stay in use.",
)

SERVER_STREAMS = _gauge("slotmesh.server.streams", "{stream}", "Streams that are open, of all rpcs.")
SERVER_STREAM_CUTS = _counter(
    "slotmesh.server.stream.cuts",
    "{stream}",
    "Streams ended by the server: credential invalid, no first frame, or silent for too long.",
    (STREAM_CUT,),
)
QUOTA_REFUSALS = _counter(
    "slotmesh.server.quota.refusals",
    "{refusal}",
    "What callers were refused who had as much as one may have.",
    (QUOTA,),
)
QUOTA_LARGEST = _gauge(
    "slotmesh.server.quota.largest.ratio",
    "1",
    "The largest share of the quota that one caller has.",
    (QUOTA,),
)

DIRECTION_IN: Final = "in"
DIRECTION_OUT: Final = "out"
KIND_ROUTER: Final = "router"
KIND_REPLICA: Final = "replica"


def metrics() -> Iterator[Metric]:
    """All of them, as they are declared."""
    return (each for each in globals().values() if isinstance(each, Metric))


def prometheus_name(metric: Metric) -> str:
    """As Prometheus has it, without what it adds to the parts of a histogram."""
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return f"{name}_total" if metric.kind is MetricKind.COUNTER else name


_UNITS: Final = {"s": "_seconds", "By": "_bytes"}
"""What is counted in braces has no unit there."""
