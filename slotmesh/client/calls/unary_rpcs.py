"""What all calls by an rpc of their own share: how large, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.payload_limits import MAX_UNARY_BYTES, too_large
from slotmesh.codec import EncodeError
from slotmesh.status import to_exception

_SLACK_S: Final = 1.0
"""How much later than the router's deadline the transport's is, so that the router's answer can arrive."""

_LONGEST_RPC_S: Final = 10**8
"""The transport takes far longer timeouts for deadlines that have passed. The router has the true one."""


def payload_of(spec: CallSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The payload of a call.

    Raises:
        TypeError: the content type cannot carry the arguments.
        PayloadTooLarge: they do not fit into an rpc.
    """
    try:
        payload = spec.encode(args, kwargs)
    except EncodeError as error:
        raise EncodeError(f"{spec.endpoint}.{spec.method}: {error}") from None
    if len(payload) > MAX_UNARY_BYTES:
        raise to_exception(too_large(len(payload), MAX_UNARY_BYTES), endpoint=spec.endpoint, method=spec.method)
    return payload


def rpc_timeout_s(timeout_s: float | None) -> float | None:
    """What the transport gives an rpc that has `timeout_s` at the router."""
    return None if timeout_s is None else min(timeout_s + _SLACK_S, _LONGEST_RPC_S)
