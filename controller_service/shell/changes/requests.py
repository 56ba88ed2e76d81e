"""Operators' requests: those that are repeated, why they are refused, and the bounds of what they configure.

Repeated requests take effect once. `answers_once` wraps the rpcs of a service: what changes the store finds the request
that is being served, adds it to the change (`answer_now`), and looks for it among those that were answered before,
ahead of any planning (`require_new`).
Invariants: that look and the change are of one revision: of two requests with one id that are carried out at the same
time, the store takes the change of one, and the other finds its answer.
Owner: the context of an rpc's task; what runs in the background has no request.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from controller_service.convert.checks import names_all_violations
from controller_service.core.desired.merging import FieldConflict
from controller_service.core.desired.planning import Plan, users_of
from controller_service.core.desired.revisions import Resource, etag_of, subject_of
from controller_service.core.desired.state import (
    AnsweredRequest,
    AnsweredRequests,
    ChangeSet,
    Desired,
    deleted_subjects,
    find_answer,
)
from controller_service.shell.leadership import leads_no_more
from controller_service.store.protocol import LeadershipLost, StoreWriteFailed
from slotmesh.convert.specification import backend_to_wire, endpoint_to_wire, route_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.names import did_you_mean
from slotmesh.security.identity import of_caller
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, SpecViolation
from slotmesh.spec.routes import Route, route_path
from slotmesh.spec.rules import request_id_problem, show
from slotmesh.status import to_exception

STORE_RETRY_S: Final = 5.0
"""When to try again what could not be stored: an operator has to make room first."""


def apply_conflict(conflicts: Collection[FieldConflict]) -> Failure:
    lines = [
        f"{it.resource}: {it.field}: is {it.live}, was {it.applied} when the file was applied last, and the file has"
        f" {it.wanted} now"
        for it in conflicts
    ]
    lines.append("nothing was changed: force it, or write into the file what is there")
    return Failure(reason=Reason.APPLY_CONFLICT, message="\n".join(lines))


def not_stored(failed: StoreWriteFailed) -> Failure:
    if isinstance(failed, LeadershipLost) and failed.is_unwritten:  # else its successor may have the change
        return leads_no_more(failed)
    return Failure(
        reason=Reason.STORE_UNAVAILABLE,
        message=f"the change cannot be stored: {failed}. What is stored stays in force",
        executed=Executed.NO if failed.is_unwritten else Executed.UNKNOWN,
        retry_delay_s=STORE_RETRY_S,
    )


MOST_LISTED: Final = 8
"""Resources that an error names, at most."""
BACKEND, ENDPOINT, ROUTE = "backend", "endpoint", "route"
_NOT_FOUND: Final = {
    BACKEND: Reason.BACKEND_NOT_FOUND,
    ENDPOINT: Reason.ENDPOINT_NOT_FOUND,
    ROUTE: Reason.ROUTE_NOT_FOUND,
}


def no_such(kind: str, name: str, known: Collection[str]) -> Failure:
    """There is no resource of this kind that has this name; `known` are those that there are."""
    text = f"no {kind} is named {show(name)!r}{did_you_mean(name, known)}; there is: {_listed(known)}"
    return Failure(reason=_NOT_FOUND[kind], message=text, metadata={kind: show(name)})


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_LISTED]) or "none yet"
    return shown + (f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else "")


def known_backend(desired: Desired, name: str) -> Backend:
    """Raises BackendNotFound."""
    if (backend := desired.backends.get(name)) is None:
        raise to_exception(no_such(BACKEND, name, desired.backends))
    return backend


def known_endpoint(desired: Desired, name: str) -> Endpoint:
    """Raises EndpointNotFound."""
    if (endpoint := desired.endpoints.get(name)) is None:
        raise to_exception(no_such(ENDPOINT, name, desired.endpoints))
    return endpoint


def known_route(routes: Mapping[str, Route], path: str) -> Route:
    """Raises RouteNotFound."""
    if (route := routes.get(path)) is None:
        raise to_exception(no_such(ROUTE, path, routes))
    return route


def plan_deletion(desired: Desired, subjects: Iterable[str]) -> Plan:
    """The plan that deletes all of these. Raises InvalidSpec, NotFound and BackendInUse: then it deletes none."""
    names: dict[str, list[str]] = {BACKEND: [], ENDPOINT: [], ROUTE: []}
    unique: dict[str, None] = {}
    violations = []
    for at, subject in enumerate(subjects):
        kind, separator, name = subject.partition("/")
        if kind not in names or not (name or (kind == ROUTE and separator)):
            text = f"must be backend/NAME, endpoint/NAME or route/PATH, is {show(subject)!r}"
            violations.append(SpecViolation(f"deletions[{at}]", text))
        elif subject not in unique:
            unique[subject] = None
            names[kind].append(name if kind != ROUTE else route_path(subject))
    if violations:
        raise InvalidSpec(violations)
    for name in names[ENDPOINT]:
        known_endpoint(desired, name)
    for path in names[ROUTE]:
        known_route(desired.routes, path)
    for name in names[BACKEND]:
        known_backend(desired, name)
        if users := [it for it in users_of(desired, name) if it not in names[ENDPOINT]]:
            text = f"backend {name} is named by the traffic of {', '.join(users)}: change that first"
            raise to_exception(Failure(reason=Reason.BACKEND_IN_USE, message=text))
    change = ChangeSet(
        delete_backends=tuple(names[BACKEND]),
        delete_endpoints=tuple(names[ENDPOINT]),
        delete_routes=tuple(names[ROUTE]),
    )
    # An endpoint before the backends that its traffic names.
    return Plan(change=change, deleted=tuple(sorted(unique, key=lambda it: it.startswith(f"{BACKEND}/"))))


def revision_conflict(expected: int, present: int) -> Failure:
    text = (
        f"expected_revision is {expected}, but the configuration has changed since and is at revision {present}:"
        " read it again, and decide anew"
    )
    if expected > present:
        text = (
            f"expected_revision is {expected}, but this controller's configuration is at revision {present} only:"
            " it has begun anew since, or this is the revision of a routing table; read it again, and decide anew"
        )
    facts = {"expected_revision": str(expected), "revision": str(present)}
    return Failure(reason=Reason.REVISION_CONFLICT, message=text, metadata=facts)


def require_etags(desired: Desired, etags: Mapping[str, str]) -> None:
    """Raises RevisionConflict where a resource is another one than that with its etag."""
    for subject, etag in etags.items():
        resource = desired.resource(subject)
        present = "" if resource is None else etag_of(resource)
        if present != etag:
            text = f"{subject} has another etag than {show(etag)}: it has changed since that was read, or never had it;"
            text += " read it again, and decide anew"
            facts = {"resource": subject, "etag": present}
            raise to_exception(Failure(reason=Reason.REVISION_CONFLICT, message=text, metadata=facts))


def code_not_kept(why: str) -> Failure:
    """The snapshot of the code that a change needs cannot be stored."""
    return Failure(
        reason=Reason.STORE_UNAVAILABLE,
        message=f"the change is not made: {why}",
        executed=Executed.NO,
        retry_delay_s=STORE_RETRY_S,
    )


def changed_too_often(times: int) -> Failure:
    """Another change was faster, each time."""
    return Failure(reason=Reason.INTERNAL, message=f"the configuration changed {times} times meanwhile")


MAX_BACKEND_BYTES: Final = 4 * 1024 * 1024
"""Of one backend with its `user_config`."""
MAX_CONFIGURATION_BYTES: Final = 16 * 1024 * 1024
"""Of all backends, endpoints and routes: half of a frame, in which lists, snapshots and routes are answered."""
MAX_BACKENDS: Final = 10_000
MAX_ENDPOINTS: Final = 20_000
"""A router keeps about 2 KB for each, and 40 KB for each different assignment of partitions."""
MAX_ROUTES: Final = 20_000


class ConfigurationBounds:
    """Bounds of the configuration, which fits everything that carries it: lists, routing tables, frames of replicas.

    A change that would make something too large is refused when it is planned, with both sizes. What was accepted
    before the bounds were there stays: a change is refused for what it makes larger. Sizes are those on the wire; each
    resource is measured once.
    """

    def __init__(self) -> None:
        self._measured: dict[str, tuple[Resource, int]] = {}
        self._of: tuple[Mapping[str, Resource], ...] = ()
        """The mappings that were measured last."""
        self._total = 0

    def require_kept(self, desired: Desired, change: ChangeSet) -> None:
        """Raises InvalidSpec where the change passes a bound."""
        self._measure(desired)
        if violations := [*self._too_large(change), *self._too_many(desired, change)]:
            raise InvalidSpec(violations)

    def _measure(self, desired: Desired) -> None:
        of = (desired.backends, desired.endpoints, desired.routes)
        if len(self._of) == len(of) and all(one is other for one, other in zip(of, self._of, strict=True)):
            return
        measured: dict[str, tuple[Resource, int]] = {}
        for resources in of:
            for resource in resources.values():
                subject = subject_of(resource)
                known = self._measured.get(subject)
                is_known = known is not None and known[0] is resource
                measured[subject] = known if known is not None and is_known else (resource, _size_of(resource))
        self._measured, self._of = measured, of
        self._total = sum(size for _, size in measured.values())

    def _too_large(self, change: ChangeSet) -> Iterator[SpecViolation]:
        put: list[Resource] = [*change.put_backends, *change.put_endpoints, *change.put_routes]
        total = self._total
        for resource in put:
            size, before = _size_of(resource), self._size_before(subject_of(resource))
            total += size - before
            if isinstance(resource, Backend) and size > max(MAX_BACKEND_BYTES, before):
                yield SpecViolation(
                    f"backends.{show(resource.name)}",
                    f"has {size:,} bytes with its user_config, at most {MAX_BACKEND_BYTES:,}: keep what is larger in a"
                    " file or a store that the handler reads, and its name in user_config",
                )
        total -= sum(map(self._size_before, deleted_subjects(change)))
        if total > max(MAX_CONFIGURATION_BYTES, self._total):
            text = f"all backends, endpoints and routes would have {total:,} bytes, at most {MAX_CONFIGURATION_BYTES:,}"
            yield SpecViolation("mesh", f"{text}: make them smaller, or divide them between meshes")

    def _size_before(self, subject: str) -> int:
        known = self._measured.get(subject)
        return 0 if known is None else known[1]

    def _too_many(self, desired: Desired, change: ChangeSet) -> Iterator[SpecViolation]:
        for kind, there, put, deleted, most in (
            (
                "backends",
                desired.backends,
                [it.name for it in change.put_backends],
                change.delete_backends,
                MAX_BACKENDS,
            ),
            (
                *("endpoints", desired.endpoints, [it.name for it in change.put_endpoints]),
                *(change.delete_endpoints, MAX_ENDPOINTS),
            ),
            ("routes", desired.routes, [it.path for it in change.put_routes], change.delete_routes, MAX_ROUTES),
        ):
            count = len(there) + sum(name not in there for name in put) - len(deleted)
            if count > max(most, len(there)):
                yield SpecViolation(kind, f"would be {count:,}, at most {most:,}: divide them between meshes")


def _size_of(resource: Resource) -> int:
    """On the wire."""
    if isinstance(resource, Backend):
        return backend_to_wire(resource).ByteSize()
    return (endpoint_to_wire(resource) if isinstance(resource, Endpoint) else route_to_wire(resource)).ByteSize()


ServicerT = TypeVar("ServicerT")
Rpc = Callable[..., Awaitable[Any]]

MAX_REPLY_BYTES: Final = 16 * 1024
"""Of a longer reply its lists are not remembered: there may be thousands of names."""


class AlreadyAnswered(Exception):
    """The request was carried out before."""

    def __init__(self, reply: bytes) -> None:
        super().__init__("the request was carried out before")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request that is being served, if its caller has named it."""

    request_id: str
    key: str
    digest: str
    reply: type[Message]
    """The kind of message that answers it."""


_ASKED: Final[ContextVar[_Asked | None]] = ContextVar("slotmesh_asked_request", default=None)


def answers_once(service: ServiceDescriptor) -> Callable[[type[ServicerT]], type[ServicerT]]:
    """Has the rpcs of a servicer whose requests have a `request_id` answer a repeated one with its first reply.

    An InvalidSpec that any rpc raises becomes a status that names each violation.
    """

    def wrap(servicer: type[ServicerT]) -> type[ServicerT]:
        for method in service.methods:
            rpc = getattr(servicer, method.name)
            if "request_id" in method.input_type.fields_by_name:
                rpc = _once(rpc, method.full_name, GetMessageClass(method.output_type))
            setattr(servicer, method.name, names_all_violations(rpc))
        return servicer

    return wrap


def require_new(answers: AnsweredRequests, now_s: float) -> None:
    """Raises AlreadyAnswered if the request that is being served is among these, InvalidSpec if only its id is."""
    if (asked := _ASKED.get()) is None or (known := find_answer(answers, asked.key, now_s)) is None:
        return
    if known.digest == asked.digest:
        raise AlreadyAnswered(known.reply)
    name = show(asked.request_id)
    text = f"{name} is the id of another request, which was carried out: choose a new id for each request"
    raise InvalidSpec([SpecViolation("request_id", text)])


def answer_now(make_reply: Callable[[type[Message]], Message], now_s: float) -> AnsweredRequest | None:
    """The request that is being served, with its reply: to be stored with the change. None if it has no id."""
    if (asked := _ASKED.get()) is None:
        return None
    content = (reply := make_reply(asked.reply)).SerializeToString()
    if len(content) > MAX_REPLY_BYTES:
        content = asked.reply(revision=getattr(reply, "revision", 0)).SerializeToString()
    return AnsweredRequest(key=asked.key, digest=asked.digest, time_s=now_s, reply=content)


def _once(rpc: Rpc, name: str, reply: type[Message]) -> Rpc:
    @functools.wraps(rpc)
    async def once(servicer: object, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if not request.request_id:
            return await rpc(servicer, request, context)
        if (problem := request_id_problem(request.request_id)) is not None:
            raise InvalidSpec([SpecViolation("request_id", problem)])
        token = _ASKED.set(_Asked(request.request_id, of_caller(request.request_id), _digest(name, request), reply))
        try:
            return await rpc(servicer, request, context)
        except AlreadyAnswered as known:
            return reply.FromString(known.reply)
        finally:
            _ASKED.reset(token)

    return once


def _digest(name: str, request: Message) -> str:
    content = request.SerializeToString(deterministic=True)
    return blake2b(name.encode() + b"\0" + content, digest_size=16).hexdigest()
