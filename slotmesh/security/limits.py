"""What the caller of the running rpc may do beyond its role, asked wherever calls and members come in.

Invariants: asked once an rpc or a frame, never once a call; who has no limit costs a look. A refusal is in the audit
log, and does not tell whether what it names exists.
"""

from __future__ import annotations

from slotmesh.errors import Failure
from slotmesh.security.audit import AUDIT
from slotmesh.security.current import caller, current_rpc
from slotmesh.security.identity import Role
from slotmesh.security.refusals import (
    refused_backend,
    refused_endpoint,
    refused_payloads,
    refused_service,
    unnamed_endpoint,
)


def endpoint_refusal(endpoint: str) -> Failure | None:
    """Why the caller may not call this endpoint; None where it may."""
    who = caller()
    return None if who.endpoints is None else _noted(refused_endpoint(who, endpoint))


def service_refusal(service: str) -> Failure:
    """Why the caller, who may call certain endpoints only, may not call this service of a user's own proto."""
    failure = refused_service(caller(), service)
    AUDIT.denied(caller(), current_rpc(), failure)
    return failure


def slot_refusal(endpoint: str) -> Failure | None:
    """The same of a call into a slot, which need not name the endpoint unless the caller is limited to some.

    Where it does, the replica compares it with that of the slot.
    """
    return endpoint_refusal(endpoint) if endpoint else _noted(unnamed_endpoint(caller()))


def callable_endpoints() -> frozenset[str] | None:
    """The endpoints that the caller may call, and whose slots it may use; None: all."""
    return caller().endpoints


def backend_refusal(backend: str) -> Failure | None:
    """Why the caller may not be a replica of this backend; None where it may."""
    return _noted(refused_backend(caller(), backend))


def payloads_refusal() -> Failure | None:
    """Why the caller may not see payloads of others; None where it may."""
    return _noted(refused_payloads(caller()))


def known_endpoints() -> frozenset[str] | None:
    """The endpoints that the caller may know of; None: all."""
    who = caller()
    if who.endpoints is None or Role.VIEWER in who.roles or Role.OPERATOR in who.roles:
        return None
    return who.endpoints


def _noted(failure: Failure | None) -> Failure | None:
    if failure is not None:
        AUDIT.denied(caller(), current_rpc(), failure)
    return failure
