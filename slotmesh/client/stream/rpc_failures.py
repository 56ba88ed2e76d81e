"""What an rpc to a router says that has failed, where it may have gone to a server of another kind."""

from __future__ import annotations

from dataclasses import replace

import grpc

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error, is_unknown_there


def refusal_of(error: grpc.RpcError, address: str, dialer: Dialer, service: str = "RouterService") -> Failure:
    """As `from_rpc_error`, in words for those who call routers.

    A server that does not know the rpc is told by its address, as the transport does not; what certificates are the
    reason of, with the way out.
    """
    failure = from_rpc_error(error)
    if failure.reason is Reason.ROUTER_LOST:
        return replace(failure, message=dialer.explained(failure.message, Role.ROUTER))
    if failure.reason is not Reason.NOT_IMPLEMENTED or not is_unknown_there(error):
        return failure
    message = (
        f"what answers at {address} is not a router: it does not know slotmesh.v1.{service} ({failure.message});"
        " give connect() the address of one"
    )
    return replace(failure, message=message)


def credential_refusal(error: grpc.RpcError) -> Failure | None:
    """The failure of the calls of a stream that ended because the caller's credential holds no longer; else None."""
    failure = from_rpc_error(error)
    return replace(failure, executed=Executed.UNKNOWN) if failure.reason is Reason.UNAUTHENTICATED else None
