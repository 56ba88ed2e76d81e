"""The terms of a reservation, from the arguments of an application.

Invariant: values that every router would refuse are refused here, with the same reason, naming the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypedDict

from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S, MAX_LEASE_S
from slotmesh.client.calls.options import (
    BadOption,
    ViewOptions,
    blocks_of,
    check_known,
    check_text,
    checked_seconds,
    seconds,
)
from slotmesh.v1 import slot_service_pb2

DEFAULT_ALL_S: Final = 30.0
"""How long a reservation of several slots is tried by default."""


class ReserveArguments(TypedDict, total=False):
    """Arguments of a reservation; documented by `Endpoint.reserve`."""

    ttl: float | timedelta
    timeout: float | timedelta | None
    shard_key: str
    affinity_key: str
    prefix_blocks: Sequence[int]
    model_id: str
    replica_id: str
    excluded_replica_ids: Sequence[str]


class AllArguments(TypedDict, total=False):
    """Arguments of a reservation of several slots; documented by `Mesh.reserve_all`."""

    ttl: float | timedelta
    timeout: float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one reservation."""

    endpoint: str
    options: ViewOptions
    """Options of the reservation: timeout, shard key, affinity key, model, prefix blocks, SLO, tenant."""
    ttl_s: float = DEFAULT_LEASE_S
    replica_id: str = ""
    """The requested replica; empty: any."""
    excluded_replica_ids: tuple[str, ...] = ()

    def waiting(self, timeout_s: float) -> Terms:
        """The same terms, with this time to wait."""
        return replace(self, options=replace(self.options, timeout_s=timeout_s))

    def to_wire(self, request_id: str, timeout_s: float | None, attempt: int) -> slot_service_pb2.ReserveSlotRequest:
        """`timeout_s`: the remaining time to wait. `attempt`: the number of earlier requests without an answer."""
        wire = slot_service_pb2.ReserveSlotRequest(
            endpoint=self.endpoint,
            options=replace(self.options, timeout_s=timeout_s).to_wire("", rpc=CallRpc.RESERVE_SLOT),
            request_id=request_id,
            attempt=attempt,
            replica_id=self.replica_id,
            excluded_replica_ids=self.excluded_replica_ids,
        )
        wire.ttl.FromNanoseconds(round(self.ttl_s * 1e9))
        return wire


_CHOOSING: Final = ("shard_key", "affinity_key", "model_id", "prefix_blocks")
"""Options that choose a replica: those of the view, or of the reservation."""


def terms_of(endpoint: str, view: ViewOptions, arguments: ReserveArguments) -> Terms:
    """The terms of a reservation by a view of an endpoint.

    Raises:
            BadRequest: an invalid argument, or a view without replies. It is a ValueError, too.
            TypeError: an unknown argument.
    """
    given: dict[str, Any] = dict(arguments)
    check_known(given, ReserveArguments, "a reservation has no argument")
    if not view.reply:
        raise BadOption("reply", "must be True where slots are reserved: a call in a slot always has a reply")
    check_text("replica_id", given.get("replica_id", ""))
    options: dict[str, Any] = {it: getattr(view, it) for it in (*_CHOOSING, "timeout_s", "slo_s", "slo_at", "tenant")}
    if given.get("timeout") is not None:
        options["timeout_s"] = seconds(given["timeout"])
    options |= {name: blocks_of(given[name]) for name in _CHOOSING if name in given}
    return Terms(
        endpoint=endpoint,
        options=ViewOptions(**options),
        ttl_s=_ttl_s(given.get("ttl", DEFAULT_LEASE_S)),
        replica_id=given.get("replica_id", ""),
        excluded_replica_ids=_texts("excluded_replica_ids", given.get("excluded_replica_ids", ())),
    )


def timeout_of_all(arguments: AllArguments) -> tuple[float, ReserveArguments]:
    """How long to try for several slots, and the arguments of each reservation.

    Raises:
        BadRequest: an invalid timeout. It is a ValueError, too.
        TypeError: an unknown argument.
    """
    check_known(arguments, AllArguments, "reserve_all has no argument")
    timeout_s = checked_seconds("timeout", arguments.get("timeout", DEFAULT_ALL_S))
    each: ReserveArguments = {"ttl": arguments["ttl"]} if "ttl" in arguments else {}
    ViewOptions(timeout_s=timeout_s)  # checks it
    return timeout_s, each


def _ttl_s(ttl: Any) -> float:
    ttl_s = checked_seconds("ttl", ttl)
    if not 0 < ttl_s <= MAX_LEASE_S:  # NaN neither
        raise BadOption("ttl", f"must be more than 0 and at most {MAX_LEASE_S:g} seconds, got {ttl!r}")
    return ttl_s


def _texts(name: str, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise BadOption(name, f"must be a sequence of str, got the str {texts!r}")
    try:
        each = tuple(texts)
    except TypeError:
        raise BadOption(name, f"must be a sequence of str, got {texts!r}") from None
    for text in each:
        check_text(name, text)
        if not text:
            raise BadOption(name, "must not name an empty id")
    return each
