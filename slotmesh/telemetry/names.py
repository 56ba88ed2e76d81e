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
    "Calls that ended in a failure; the backend is empty where none was chosen.",
    (ENDPOINT, BACKEND, REASON),
)
ROUTER_TENANT_CALLS = _counter(
    "slotmesh.router.tenant.calls",
    "{call}",
    "Calls that name a tenant, of those with most calls lately, and of all others together.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_FAILURES = _counter(
    "slotmesh.router.tenant.failures",
    "{call}",
    "Those of them that ended in a failure, refused ones included.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_REFUSALS = _counter(
    "slotmesh.router.tenant.refusals",
    "{call}",
    "Those of them that a limit of their tenant has refused, or the full queue of a backend.",
    (ENDPOINT, TENANT),
)
ROUTER_TENANT_UNANSWERED = _gauge(
    "slotmesh.router.tenant.unanswered",
    "{call}",
    "Calls without an outcome of the tenants with most calls lately.",
    (ENDPOINT, TENANT),
)
ROUTER_QUEUED = _gauge("slotmesh.router.queued", "{call}", "Calls waiting for a replica.", (BACKEND,))
ROUTER_ONGOING = _gauge(
    "slotmesh.router.ongoing",
    "{call}",
    "Calls at a replica, not answered yet: reservations and calls in slots, too.",
    (BACKEND,),
)
ROUTER_REFUSALS = _counter(
    "slotmesh.router.refusals", "{call}", "Calls that a replica handed back unexecuted.", (BACKEND, REASON)
)
ROUTER_RETRIES = _counter(
    "slotmesh.router.retries", "{call}", "Idempotent calls sent again after their replica was lost.", (BACKEND,)
)
ROUTER_SHADOWS = _counter(
    "slotmesh.router.shadows",
    "{call}",
    "Copies sampled for a shadow that ended: completed, failed, or dropped as no slot was free.",
    (BACKEND, OUTCOME),
)
ROUTER_RESERVATIONS = _counter(
    "slotmesh.router.reservations",
    "{reservation}",
    "Reservations that ended: granted, no_slot (none free in time), refused (the queue was full), cancelled or failed.",
    (ENDPOINT, OUTCOME),
)
ROUTER_RESERVE_TIME = _histogram(
    "slotmesh.router.reserve.time", "s", "Time of reservations from their arrival until they were granted.", (BACKEND,)
)
ROUTER_QUEUE_TIME = _histogram(
    "slotmesh.router.queue.time", "s", "Time of calls from their arrival until they were sent to a replica.", (BACKEND,)
)
ROUTER_REPLICA_TIME = _histogram(
    "slotmesh.router.replica.time", "s", "Time of calls from there until the replica answered.", (BACKEND,)
)
ROUTER_CALL_TIME = _histogram(
    "slotmesh.router.call.time",
    "s",
    "Time of calls that were executed, from arrival to outcome; methods of an endpoint beyond 32 are _other.",
    (ENDPOINT, METHOD),
)
ROUTER_CALL_QUEUE_TIME = _histogram(
    "slotmesh.router.call.queue.time",
    "s",
    "Time of the same calls from their arrival until they were sent to a replica.",
    (ENDPOINT, METHOD),
)
ROUTER_SESSIONS = _gauge("slotmesh.router.sessions", "{session}", "Sessions whose clients are connected here.")
ROUTER_LINK_FAILURES = _counter("slotmesh.router.link.failures", "{link}", "Links to replicas that broke.", (BACKEND,))
ROUTER_DEFECTS = _counter(
    "slotmesh.router.defects",
    "{event}",
    "Events that cannot happen to calls in their state: each is a defect of slotmesh, and in the router's log.",
)
ROUTER_FRAMES = _counter(
    "slotmesh.router.frames", "{frame}", "Frames with calls (in) and with results (out) of clients.", (DIRECTION,)
)
ROUTER_REPLICA_FRAMES = _counter(
    "slotmesh.router.replica.frames",
    "{frame}",
    "Frames with calls to replicas (out) and with their results (in).",
    (BACKEND, DIRECTION),
)
ROUTER_UNKNOWN_BALANCERS = _gauge(
    "slotmesh.router.balancers.unknown",
    "{backend}",
    "1 where the backend's balancer is not known to this version, and another one stands in for it.",
    (BACKEND,),
)
ROUTER_STREAMS = _gauge("slotmesh.router.streams", "{stream}", "Open client streams.")
ROUTER_UNREAD = _gauge("slotmesh.router.unread", "By", "Results that clients have not read, of all streams.")
ROUTER_BRAKES = _counter(
    "slotmesh.router.brakes", "{brake}", "Times that calls had to wait as clients had too many results unread."
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
    "Time of these requests, from their headers to the end of the answer.",
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
    "When the certificate that HTTP clients are shown expires, in seconds since 1970; not there in plain text.",
)
INGRESS_ROUTES_HELD = _gauge(
    "slotmesh.ingress.routes.held",
    "1",
    "1 while the routes in force are kept, as the controller's state file is an older copy.",
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
    "With --fence-after: for how long calls may start without another acknowledgement of the controller.",
    (BACKEND,),
)
REPLICA_WAITING = _gauge("slotmesh.replica.waiting", "{call}", "Calls waiting for a permit or in a lane.", (BACKEND,))
REPLICA_SLOTS_RESERVED = _gauge(
    "slotmesh.replica.slots.reserved",
    "{slot}",
    "Slots that are reserved, and in which no call runs yet; with all that direct streams hold.",
    (BACKEND,),
)
REPLICA_RESERVATIONS = _counter(
    "slotmesh.replica.reservations",
    "{reservation}",
    "Reservations that ended: granted, refused (no room, or draining), cancelled or timed_out while they waited.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOTS = _counter(
    "slotmesh.replica.slots",
    "{slot}",
    "Slots that are reserved no more: dispatched, released without a call, or expired.",
    (BACKEND, OUTCOME),
)
REPLICA_SLOT_HELD_TIME = _histogram(
    "slotmesh.replica.slot.held.time", "s", "Time of slots from their grant until a call was dispatched.", (BACKEND,)
)
REPLICA_CALL_TIME = _histogram(
    "slotmesh.replica.call.time",
    "s",
    "Time of calls from their start at the replica to their end there; what they wait before is not in it.",
    (BACKEND,),
)
REPLICA_WAIT_TIME = _histogram(
    "slotmesh.replica.wait.time",
    "s",
    "Time of calls from their arrival at the replica to their start there.",
    (BACKEND,),
)
REPLICA_DEFECTS = _counter(
    "slotmesh.replica.defects",
    "{event}",
    "Events that cannot happen in the state of their calls: ignored and logged, defects of the replica.",
    (BACKEND,),
)
REPLICA_BATCHES = _counter("slotmesh.replica.batches", "{batch}", "Batches handed to batch handlers.", (BACKEND,))
REPLICA_BLOCKS = _counter(
    "slotmesh.replica.loop.blocks", "{block}", "Times that the handler kept its event loop for too long.", (BACKEND,)
)
REPLICA_BLOCKED_TIME = _counter("slotmesh.replica.loop.blocked.time", "s", "How long it did, those times.", (BACKEND,))
REPLICA_BATCH_SIZE = _histogram("slotmesh.replica.batch.size", "{call}", "Calls in a batch.", (BACKEND,))
REPLICA_BATCH_AGE = _gauge(
    "slotmesh.replica.batch.age", "s", "How long the oldest running batch has run; 0 while none does.", (BACKEND,)
)

CONTROLLER_MEMBERS = _gauge("slotmesh.controller.members", "{member}", "Attached routers and replicas.", (KIND,))
CONTROLLER_IS_LEADER = _gauge(
    "slotmesh.controller.is.leader",
    "{controller}",
    "1 while this controller leads, 0 while it stands by or begins or ends.",
)
CONTROLLER_STANDBYS = _gauge(
    "slotmesh.controller.standbys", "{controller}", "Controllers that stand by for this one; 0 while it does not lead."
)
CONTROLLER_STORE_FAILING = _gauge(
    "slotmesh.controller.store_failing",
    "1",
    "1 while the leader's state cannot be written: changes are refused, what is stored stays in force.",
)
CONTROLLER_NEWER_MEMBERS = _gauge(
    "slotmesh.controller.newer_members",
    "{member}",
    "Members that hold a newer state than the leader's state file; unless it is 0, nothing is reconciled.",
)
CONTROLLER_TERM = _gauge(
    "slotmesh.controller.term", "{term}", "The term under which this controller leads; 0 while it does not."
)
CONTROLLER_REPLICAS = _gauge(
    "slotmesh.controller.replicas",
    "{replica}",
    "Replicas that the controller knows, by where they are in their life; a suspect one has been silent for a lease.",
    (BACKEND, STATE),
)
CONTROLLER_REPLICAS_WANTED = _gauge(
    "slotmesh.controller.replicas.wanted",
    "{replica}",
    "Replicas that should run, by the settings or by the load; absent if no number is set.",
    (BACKEND,),
)
CONTROLLER_CRASH_LOOPS = _gauge(
    "slotmesh.controller.crash.loops",
    "{backend}",
    "1 while 3 or more replicas of the backend's present settings, started in place of each other, ended before they "
    "were ready or within 10 s after: the next start is delayed. Else 0. Of replicas that the controller starts.",
    (BACKEND,),
)
CONTROLLER_EVENTS = _counter("slotmesh.controller.events", "{event}", "Events, as in `slotmesh events`.", (EVENT,))
CONTROLLER_REVISION = _gauge("slotmesh.controller.revision", "{revision}", "Newest revision of the routing table.")
CONTROLLER_LAUNCHES = _counter(
    "slotmesh.controller.launches", "{process}", "Replica processes that were started.", (BACKEND,)
)

RPC_SERVER_CALL_DURATION = _histogram(
    "rpc.server.call.duration",
    "s",
    "Time of rpcs from their begin to their end, by OpenTelemetry's semantic conventions; a stream is one rpc.",
    (RPC_SYSTEM, RPC_METHOD, RPC_STATUS),
)
PROCESS_SPANS_DROPPED = _counter(
    "slotmesh.process.spans.dropped",
    "{span}",
    "Spans that did not leave: too many waited, some could not be encoded, or the collector did not take them.",
)
PROCESS_LOOP_LAG = _histogram(
    "slotmesh.process.loop.lag",
    "s",
    "How much later than asked for a timer of the event loop ran, four times a second: what a call waits for the loop.",
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
    "Times that files of certificates changed and could not be used; those before them stay in use.",
)
TLS_HANDSHAKES = _counter(
    "slotmesh.tls.handshakes",
    "{handshake}",
    "Handshakes that gRPC has begun as a server, whether they succeed or not.",
)
TLS_HANDSHAKE_FAILURES = _counter(
    "slotmesh.tls.handshake.failures",
    "{handshake}",
    "Handshakes that failed, at the HTTPS of an ingress (https) or the page for metrics (metrics); gRPC reports none.",
    (TLS_SERVER, TLS_PROBLEM),
)
TOKEN_REFUSALS = _counter(
    "slotmesh.token.refusals",
    "{token}",
    "Bearer tokens that were not accepted, by what is wrong with them.",
    (TOKEN_PROBLEM,),
)
TOKEN_RELOAD_FAILURES = _counter(
    "slotmesh.token.reload.failures",
    "{reload}",
    "Times that the file of tokens or of an issuer's keys changed and could not be used; what it held before holds on.",
)

SERVER_STREAMS = _gauge("slotmesh.server.streams", "{stream}", "Streams that are open, of all rpcs.")
SERVER_STREAM_CUTS = _counter(
    "slotmesh.server.stream.cuts",
    "{stream}",
    "Streams that the server has ended: of whom it knows no longer, without a first frame, or silent for too long.",
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
    "What the caller who has most of it has, as a share of the quota.",
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
