"""Admission: how many calls and bytes may wait for each backend.

Purpose: bounds the queues. Only waiting calls are charged; calls that can be sent on arrival are not.
Invariants: `calls`, `size` and the flows' counts are the sums over the waiting parts of the runs charged here, never
negative. `calls <= max_calls` and `size <= max_bytes`, except that a flow with little waiting is admitted to a queue
that others have filled: at most `FLOOR_CALLS` and `FLOOR_BYTES` each, and twice the bounds in all. A tenant of a flow
uses at most half as much room as it leaves free: however many calls of one tenant wait, there is room for those of
another.
Source: `slotmesh/calls/fair_shares.py`.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.calls import CallPayload, Flow
from router_service.core.limits.estimates import DrainRate, ServiceTime
from router_service.core.limits.tenant_limits import TenantAccount
from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.calls.payload_block import nbytes_of
from slotmesh.errors import Failure, Reason

FLOOR_CALLS = 16
"""Calls that a flow may have waiting even where others have filled the queue."""
FLOOR_BYTES = 64 * 1024
"""Payload bytes likewise."""
_TENANT_THRESHOLD = DynamicThreshold(times=1, per=2)
"""Of what one tenant may have waiting."""
_FLOOR_SHARE = 8
"""Where a queue's own bounds are small, so are the floors: this part of them."""
MIN_RETRY_DELAY_S = 0.01
FIRST_RETRY_DELAY_S = 0.1
"""Where nothing was ever sent out of a queue, at least; the longer it has been stuck, the longer."""
RETRY_JITTER = 0.2
"""Retry delays vary by this share up and down, so that calls that were refused together do not come back together."""
DRAIN_WINDOW_S = 1.0


def jittered(delay_s: float, chance: float) -> float:
    """A retry delay, varied. `chance` is uniform in [0, 1)."""
    return delay_s * (1 + RETRY_JITTER * (2 * chance - 1))


class Account:
    """What waits for one backend (or for an endpoint that has none yet)."""

    __slots__ = (
        "_by_flow",
        "_by_tenant",
        "_drain",
        "backend",
        "calls",
        "max_bytes",
        "max_calls",
        "max_queue_time_s",
        "name",
        "service_time",
        "size",
    )

    def __init__(
        self,
        name: str,
        max_calls: int = 0,
        max_bytes: int = 0,
        max_queue_time_s: float = 0.0,
        *,
        backend: str | None = None,
    ) -> None:
        """`backend`: the backend of the account, by default the one called `name`; empty: none."""
        self.name = name
        self.backend = name if backend is None else backend
        self.limit(max_calls, max_bytes, max_queue_time_s)
        self.calls = 0
        self.size = 0
        self._by_flow: dict[Flow, tuple[int, int]] = {}
        """Waiting calls, and their bytes, of each flow that has any."""
        self._by_tenant: dict[tuple[Flow, TenantAccount], tuple[int, int]] = {}
        """The same of each tenant of a flow."""
        self._drain = DrainRate(DRAIN_WINDOW_S)
        self.service_time = ServiceTime()

    def limit(self, max_calls: int, max_bytes: int, max_queue_time_s: float) -> None:
        """Applies new bounds; what waits stays."""
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.max_queue_time_s = max_queue_time_s

    def waits(self, now: float) -> bool:
        """Something was charged. Returns whether nothing has waited before."""
        return self._drain.waits(now)

    def admit(self, flow: Flow, tenant: TenantAccount | None, payloads: Sequence[CallPayload], begin: int) -> int:
        """Charges the first calls from index `begin` on that fit; returns how many do."""
        fits, room = self._room_of(flow)
        fits = min(len(payloads) - begin, fits)
        if tenant is not None:
            calls, size = self._by_tenant.get((flow, tenant), (0, 0))
            fits = min(fits, _left_to_tenant(self.max_calls - self.calls, FLOOR_CALLS, self.max_calls, calls))
            room = min(room, _left_to_tenant(self.max_bytes - self.size, FLOOR_BYTES, self.max_bytes, size))
        if fits <= 0:
            return 0
        size = nbytes_of(payloads, begin, begin + fits)
        while fits and size > room:
            fits -= 1
            size -= len(payloads[begin + fits])
        if fits:
            self.add(flow, tenant, fits, size)
        return fits

    def _room_of(self, flow: Flow) -> tuple[int, int]:
        """Calls and bytes that the queue accepts from a flow, for all its tenants together. Bytes may be negative."""
        calls, size = self._by_flow.get(flow, (0, 0))
        floor = min(FLOOR_CALLS, max(1, self.max_calls // _FLOOR_SHARE)) - calls
        floor_bytes = min(FLOOR_BYTES, self.max_bytes // _FLOOR_SHARE) - size
        return (
            max(0, self.max_calls - self.calls, min(floor, 2 * self.max_calls - self.calls)),
            max(self.max_bytes - self.size, min(floor_bytes, 2 * self.max_bytes - self.size)),
        )

    def _has_room(self, flow: Flow, size: int) -> bool:
        """Whether the queue would take a call of this size of the flow, if it had another tenant."""
        calls, room = self._room_of(flow)
        return calls > 0 and size <= room

    def waiting_of(self, flow: Flow) -> int:
        """Calls of the flow that wait here."""
        return self._by_flow.get(flow, (0, 0))[0]

    def add(self, flow: Flow, tenant: TenantAccount | None, count: int, size: int) -> None:
        """Charges `count` calls of `size` bytes, over the bounds if need be."""
        self.calls += count
        self.size += size
        calls, total = self._by_flow.get(flow, (0, 0))
        self._by_flow[flow] = calls + count, total + size
        if tenant is not None:
            calls, total = self._by_tenant.get((flow, tenant), (0, 0))
            self._by_tenant[flow, tenant] = calls + count, total + size

    def give(self, flow: Flow, tenant: TenantAccount | None, count: int, size: int) -> None:
        """`count` charged calls of `size` bytes no longer wait."""
        self.calls -= count
        self.size -= size
        if not self.calls:
            self._drain.empty()
        calls, total = self._by_flow[flow]
        if calls > count:
            self._by_flow[flow] = calls - count, total - size
        else:
            del self._by_flow[flow]
        if tenant is not None:
            key = flow, tenant
            calls, total = self._by_tenant[key]
            if calls > count:
                self._by_tenant[key] = calls - count, total - size
            else:
                del self._by_tenant[key]

    def drained(self, count: int, now: float) -> None:
        """`count` calls are sent to a replica, and released next: what the retry delay is computed from."""
        self._drain.sent(count, now)

    def full(
        self,
        now: float,
        chance: float,
        why: str = "",
        *,
        flow: Flow | None = None,
        tenant: TenantAccount | None = None,
        size: int = 0,
    ) -> Failure:
        """The failure of calls that do not fit. `chance` is uniform in [0, 1); `why` they wait, if not for load.

        The first of them is of this flow and tenant, and has `size` bytes.
        """
        waits = f"{self.calls} of {self.max_calls} calls and {self.size} of {self.max_bytes} bytes wait"
        message, metadata = f"the queue of {self.name} is full: {waits}", {"backend": self.name}
        if flow is not None and tenant is not None and self._has_room(flow, size):
            calls, size = self._by_tenant.get((flow, tenant), (0, 0))
            message = (
                f"the share of {tenant.whose} in the queue of {self.name} is full: {calls} of its calls and {size} "
                f"of its bytes wait, {waits} in all, and each tenant of a client gets half of the room that it leaves"
            )
            metadata["tenant"] = tenant.name
        return Failure(
            reason=Reason.QUEUE_FULL,
            message=f"{message}; {why or 'try again later, or raise max_queued_calls or max_queued_bytes'}",
            retry_delay_s=jittered(self.retry_delay_s(now), chance),
            metadata=metadata,
        )

    def retry_delay_s(self, now: float) -> float:
        """The time until what waits now will have been sent, at the rate of the last second of waiting; no jitter."""
        if rate := self._drain.per_s(now):
            delay_s = max(self.calls / rate, MIN_RETRY_DELAY_S)
        else:
            delay_s = max(self._drain.waiting_s(now), FIRST_RETRY_DELAY_S)
        return min(delay_s, self.max_queue_time_s)


def _left_to_tenant(free: int, floor: int, most: int, held: int) -> int:
    """What a tenant that has `held` may add: half of what it leaves then, or up to half of what a flow always may."""
    return max(_TENANT_THRESHOLD.room(held, free), max(1, min(floor, most // _FLOOR_SHARE) // 2) - held)
