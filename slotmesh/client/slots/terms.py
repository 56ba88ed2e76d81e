"""The terms of a reservation, and the options of calls in its slot: checked where the application passes them.

Invariant: values that every router would refuse are refused here, with the same reason, naming the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypedDict

from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S, MAX_LEASE_S
from slotmesh.client.calls.options import BadOption, ViewOptions, check_text, checked_seconds, seconds
from slotmesh.v1 import slot_service_pb2

DEFAULT_ALL_S: Final = 30.0
"""How long a reservation of several slots is tried by default."""


class ReserveArguments(TypedDict, total=False):
    """Arguments of a reservation; documented by `Endpoint.reserve`."""

    ttl: float | timedelta
    timeout: float | timedelta | None
    shard_key: str
    replica_id: str
    excluded_replica_ids: Sequence[str]


class AllArguments(TypedDict, total=False):
    """Arguments of a reservation of several slots; documented by `Mesh.reserve_all`."""

    ttl: float | timedelta
    timeout: float | timedelta


class DispatchOptions(TypedDict, total=False):
    """Options in which a call in a slot may differ from the view that the slot was reserved by."""

    content_type: str
    timeout: float | timedelta | None
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one reservation."""

    endpoint: str
    options: ViewOptions
    """Options of the reservation: timeout, shard key, SLO, tenant."""
    ttl_s: float = DEFAULT_LEASE_S
    replica_id: str = ""
    """The requested replica; empty: any."""
    excluded_replica_ids: tuple[str, ...] = ()

    def waiting(self, timeout_s: float) -> Terms:
        """The same terms, with this time to wait."""
        return replace(self, options=replace(self.options, timeout_s=timeout_s))

    def to_wire(self, request_id: str, timeout_s: float | None) -> slot_service_pb2.ReserveSlotRequest:
        """`timeout_s`: the remaining time to wait."""
        options = replace(self.options, timeout_s=timeout_s)
        wire = slot_service_pb2.ReserveSlotRequest(
            endpoint=self.endpoint,
            options=options.to_wire(""),
            request_id=request_id,
            replica_id=self.replica_id,
            excluded_replica_ids=self.excluded_replica_ids,
        )
        wire.ttl.FromNanoseconds(round(self.ttl_s * 1e9))
        return wire


def terms_of(endpoint: str, view: ViewOptions, arguments: ReserveArguments) -> Terms:
    """The terms of a reservation by a view of an endpoint.

    Raises:
            BadRequest: an invalid argument, or a view without replies. It is a ValueError, too.
            TypeError: an unknown argument.
    """
    given: dict[str, Any] = dict(arguments)
    if unknown := given.keys() - ReserveArguments.__annotations__.keys():
        known = ", ".join(ReserveArguments.__annotations__)
        raise TypeError(f"a reservation has no argument {', '.join(sorted(unknown))}; there are {known}")
    if not view.reply:
        raise BadOption("reply", "must be True where slots are reserved: a call in a slot always has a reply")
    changes: dict[str, Any] = {"timeout_s": seconds(given.get("timeout"))} if given.get("timeout") is not None else {}
    if given.get("shard_key", "") != "":
        changes["shard_key"] = given["shard_key"]
    waiting = ViewOptions(
        timeout_s=view.timeout_s,
        slo_s=view.slo_s,
        slo_at=view.slo_at,
        shard_key=view.shard_key,
        tenant=view.tenant,
    )
    return Terms(
        endpoint=endpoint,
        options=replace(waiting, **changes),
        ttl_s=_ttl_s(given.get("ttl", DEFAULT_LEASE_S)),
        replica_id=_text("replica_id", given.get("replica_id", "")),
        excluded_replica_ids=_texts("excluded_replica_ids", given.get("excluded_replica_ids", ())),
    )


def timeout_of_all(arguments: AllArguments) -> tuple[float, ReserveArguments]:
    """How long to try for several slots, and the arguments of each reservation.

    Raises:
        BadRequest: an invalid timeout. It is a ValueError, too.
        TypeError: an unknown argument.
    """
    if unknown := arguments.keys() - AllArguments.__annotations__.keys():
        known = ", ".join(AllArguments.__annotations__)
        raise TypeError(f"reserve_all has no argument {', '.join(sorted(unknown))}; there are {known}")
    timeout_s = checked_seconds("timeout", arguments.get("timeout", DEFAULT_ALL_S))
    each: ReserveArguments = {"ttl": arguments["ttl"]} if "ttl" in arguments else {}
    ViewOptions(timeout_s=timeout_s)  # checks it
    return timeout_s, each


def in_slot(view: ViewOptions, *, is_idempotent: bool = False) -> ViewOptions:
    """The options of a view that apply to calls in a slot, whose replica is chosen already.

    `is_idempotent`: they may be sent again. In a slot that is used once, they cannot be.
    """
    return ViewOptions(
        content_type=view.content_type,
        timeout_s=view.timeout_s,
        tenant=view.tenant,
        metadata=view.metadata,
        idempotent=is_idempotent,
    )


def check_dispatch_options(changes: Mapping[str, Any]) -> None:
    """Raises TypeError for an option that calls in a slot do not have."""
    if unknown := changes.keys() - DispatchOptions.__annotations__.keys():
        known = ", ".join(DispatchOptions.__annotations__)
        raise TypeError(f"a call in a slot has no option {', '.join(sorted(unknown))}; there are {known}")


def _ttl_s(ttl: Any) -> float:
    ttl_s = checked_seconds("ttl", ttl)
    if not 0 < ttl_s <= MAX_LEASE_S:  # NaN neither
        raise BadOption("ttl", f"must be more than 0 and at most {MAX_LEASE_S:g} seconds, got {ttl!r}")
    return ttl_s


def _text(name: str, text: Any) -> str:
    check_text(name, text)
    return str(text)


def _texts(name: str, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise BadOption(name, f"must be a sequence of str, got the str {texts!r}")
    try:
        each = tuple(texts)
    except TypeError:
        raise BadOption(name, f"must be a sequence of str, got {texts!r}") from None
    for text in each:
        if not _text(name, text):
            raise BadOption(name, "must not name an empty id")
    return each
