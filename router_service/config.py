"""The settings of a router process."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from router_service.core.features.uploads import MAX_UPLOAD_BYTES
from router_service.core.limits.quotas import MAX_BYTES, MAX_CALLS, MAX_SESSIONS
from router_service.core.preferences.prefixes import MAX_BLOCKS as MAX_PREFIX_BLOCKS
from router_service.core.tenants import MAX_NAMED, MAX_TENANTS
from slotmesh.config import Duration, ServerTargets, Size, check_functions
from slotmesh.config.declaring import Field
from slotmesh.config.members import MemberId, TokenPortSettings
from slotmesh.ids import new_id
from slotmesh.spec.option_rules import MAX_METADATA_ENTRIES, metadata_key_problem
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from slotmesh.units import parse_names

_KEY: Final = re.compile(r"[a-z0-9_.-]+")


def _check_keys(text: str) -> None:
    for key in parse_names(text):
        if problem := metadata_key_problem(key):
            raise ValueError(problem)


def _check_call_metadata(text: str) -> None:
    keys = parse_names(text)
    if len(keys) > MAX_METADATA_ENTRIES:
        raise ValueError(f"at most {MAX_METADATA_ENTRIES} names, got {len(keys)}")
    _check_keys(text)
    for key in keys:
        if key.endswith("-bin") or not _KEY.fullmatch(key):
            raise ValueError(f"key {key!r} is none that text of gRPC metadata has: a-z 0-9 _ . -, without -bin")


class RouterSettings(TokenPortSettings):
    """The router: queues calls, picks a replica, keeps order."""

    port: int = Field(7071, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int = Field(
        9465, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    controller: ServerTargets = Field(
        "127.0.0.1:7070",
        description="Where the controller is: several HOST:PORT, or dns:///NAME:PORT; the router follows the leader.",
    )
    router_id: MemberId = Field(
        default_factory=lambda: f"router-{new_id(4)}",
        min_length=1,
        description="Identity, unique in the mesh. @hostname is the machine's own name.",
    )
    window_calls: int = Field(8192, ge=1, description="Calls that a client's stream may have unanswered.")
    window_bytes: Size = Field(16 * 1024 * 1024, ge=1, description="Payload bytes of a stream's unanswered calls.")
    max_payload_bytes: Size = Field(
        MAX_PAYLOAD_BYTES, ge=1, le=MAX_PAYLOAD_BYTES, description="Largest payload of a call that comes in chunks."
    )
    max_upload_bytes: Size = Field(
        MAX_UPLOAD_BYTES,
        ge=1,
        description="Payload bytes of all streams that are under way in chunks, and of what waits behind them.",
    )
    subset_size: int = Field(
        200,
        ge=0,
        description="Links to replicas that are enough: with more replicas in the mesh, the router links to a part of "
        "them, which is even over all routers, and to others as calls need them. 0: to all.",
    )
    prefix_blocks: int = Field(
        MAX_PREFIX_BLOCKS,
        ge=8_192,
        le=2**28,
        description="Blocks of prompts whose replicas the router knows, of each backend; about 100 bytes each.",
    )
    graceful_timeout: Duration = Field(
        timedelta(seconds=10), ge=timedelta(0), description="Time that pending calls have to end when the router stops."
    )
    max_pending_unary: int = Field(10_000, ge=1, description="Maximum number of pending unary calls; more are refused.")
    max_calls_per_caller: int = Field(
        MAX_CALLS,
        ge=1,
        description="Calls that one caller, known by certificate or token, may have unanswered, on all its streams and "
        "rpcs.",
    )
    max_bytes_per_caller: Size = Field(MAX_BYTES, ge=1, description="Payload bytes of these calls.")
    max_sessions_per_caller: int = Field(
        MAX_SESSIONS,
        ge=1,
        description="Sessions that one caller may have, with those that it left open within the last minute.",
    )
    max_tenants: int = Field(
        MAX_TENANTS,
        ge=1,
        le=1_000_000,
        description="Tenants of all callers and endpoints that have accounts of their own; one caller has at most half "
        "of those that are left. All further tenants share one queue, limits and figures.",
    )
    max_shown_tenants: int = Field(
        MAX_NAMED, ge=0, le=1_000, description="Tenants that metrics name: those with most calls lately."
    )
    call_metadata: str = Field(
        "",
        check=_check_call_metadata,
        description="Names of gRPC metadata of unary rpcs that handlers get as metadata of the call, with commas "
        "between them; traceparent and tracestate become the call's trace context. None of it unless it is named, but "
        "for x-request-id.",
    )

    balancers: str = Field(
        "",
        check=check_functions,
        description="Balancers that backends may name, as `my_balancers:MostMemory`; separated by commas. They are "
        "imported at the start, as are entry points of the group slotmesh.balancers.",
    )
    balancer_budget: Duration = Field(
        timedelta(milliseconds=1),
        ge=timedelta(microseconds=10),
        description="Time of one pick of such a balancer. One that takes longer often is set aside for a while.",
    )
    balancer_metadata: str = Field(
        "",
        check=_check_keys,
        description="Names of calls' metadata that such balancers get to see, with commas between them.",
    )

    tap_payloads: bool = Field(
        False,
        description="Whether operators who tap calls (`slotmesh tap --payloads`) may see payloads and results. Without "
        "authentication, every client that reaches the router's port may.",
    )

    @property
    def tls_names(self) -> tuple[str, ...]:
        return ("router",)
