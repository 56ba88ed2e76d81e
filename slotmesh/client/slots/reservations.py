"""Reservations and their terms: of one slot, of a slot for a block, and of slots of several endpoints for a block.

Purpose: a task of its own waits for the slot, so that no granted slot is lost when a waiter is cancelled. Values that
every router would refuse are refused here, with the same reason, naming the argument.
Owner: the caller that reserves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, Final, TypedDict

import grpc

from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S, MAX_LEASE_S
from slotmesh.client.calls.call_spec import rpc_timeout_s
from slotmesh.client.calls.options import (
    BadOption,
    ViewOptions,
    blocks_of,
    check_known,
    check_text,
    checked_seconds,
    seconds,
)
from slotmesh.client.routers import CLOSED, is_cancelled_here
from slotmesh.client.slots.client import SlotClient, Stub
from slotmesh.client.slots.lease import RELEASE_S, SlotLease, leave
from slotmesh.client.slots.slot import Slot, SlotSpecs
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.ids import new_id
from slotmesh.runtime.backoff import Backoff
from slotmesh.status import to_exception
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


ReserveCall = grpc.aio.UnaryUnaryCall[Any, slot_service_pb2.ReserveSlotResponse]

_NO_ANSWER: Final = (
    "the router has not answered in the time that the reservation may wait; a slot that it grants goes back"
)


class Reserving:
    """One reservation; sent when the object is created.

    Invariants: a granted slot is used or given back. Abandoning the reservation withdraws it at the router; if the
    reply has arrived already, the slot is given back; if the reply was on its way, a request with the same id gets the
    slot once more. A router that does not answer in time has granted no slot, or one that is given back. If the router
    is lost, the reservation continues at another one, by a further attempt with its id: the slot is the same.
    """

    def __init__(self, client: SlotClient, terms: Terms) -> None:
        """Raises RuntimeError if the mesh is closed."""
        client.check_open(terms.endpoint)
        self._client = client
        self._terms = terms
        self._request_id, self._attempts = new_id(), count()
        self._began = asyncio.get_running_loop().time()
        self._call: ReserveCall | None = None
        self._is_abandoned = False
        client.giving_back.add(self.abandon)
        self._task = client.start(self._run(), name=f"slotmesh-client-reserve-{terms.endpoint}")
        self._task.add_done_callback(lambda _: client.giving_back.discard(self.abandon))

    async def outcome(self) -> SlotLease | Failure:
        """The slot, or the failure. If the waiter is cancelled, the reservation is abandoned."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._client.rpcs.closed and not is_cancelled_here():
                return CLOSED
            self.abandon()
            raise

    def abandon(self) -> None:
        """Withdraws the reservation. May be repeated, also after the reply."""
        was_abandoned, self._is_abandoned = self._is_abandoned, True
        if self._task.done():
            self._give_back()
        elif was_abandoned:
            pass
        elif self._call is None:
            self._task.cancel()
        else:
            # If the reply has arrived, unseen by the task, this does nothing, and the task gives the slot back.
            self._call.cancel()

    async def _run(self) -> SlotLease | Failure:
        outcome = await self._client.rpcs.again(self._ask, lambda: not self._is_abandoned)
        if isinstance(outcome, Failure):
            if self._is_abandoned and outcome.executed is Executed.UNKNOWN:
                await self._recall()
            elif outcome.reason is Reason.DEADLINE_RUNNING:
                self._client.start(self._recall(), name=f"slotmesh-client-recall-{self._terms.endpoint}")
                return replace(outcome, reason=Reason.NO_SLOT, executed=Executed.NO, message=_NO_ANSWER)
            return outcome
        lease = self._lease_of(outcome.slot)
        if self._is_abandoned:
            lease.give_back()
        return lease

    def _ask(self, stub: Stub) -> ReserveCall:
        if self._is_abandoned:
            raise asyncio.CancelledError
        timeout_s = self._terms.options.timeout_s
        if timeout_s is not None:
            timeout_s = max(timeout_s - (asyncio.get_running_loop().time() - self._began), 0.0)
        request = self._terms.to_wire(self._request_id, timeout_s, next(self._attempts))
        self._call = stub.ReserveSlot(request, timeout=rpc_timeout_s(timeout_s))
        return self._call

    async def _recall(self) -> None:
        """The rpc ended here, but may have been granted: a request with its id that does not wait gets that slot."""
        request = self._terms.to_wire(self._request_id, 0.0, next(self._attempts))
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                found = await self._client.rpcs.once(lambda stub: stub.ReserveSlot(request, timeout=RELEASE_S))
                if not isinstance(found, Failure):
                    self._lease_of(found.slot).give_back()

    def _lease_of(self, slot: slot_service_pb2.Slot) -> SlotLease:
        return SlotLease(self._client, self._terms.endpoint, self._terms.ttl_s, slot)

    def _give_back(self) -> None:
        if not self._task.cancelled() and isinstance(lease := self._task.result(), SlotLease):
            lease.give_back()


class Reservation:
    """`async with endpoint.reserve() as slot`: a slot for a block. Made by `Endpoint.reserve`; used once.

    Invariants: however the block ends, even before it starts, its slot is used or given back. The first error reaches
    the caller, whatever fails while giving back.
    """

    def __init__(self, client: SlotClient, terms: Terms, specs: SlotSpecs) -> None:
        self._client = client
        self._terms = terms
        self._specs = specs
        self._reserving: Reserving | None = None
        self._lease: SlotLease | None = None

    async def __aenter__(self) -> Slot:
        """Waits for a slot.

        Raises:
            NoSlot: none was free in time.
            SlotmeshError: the reservation failed.
            RuntimeError: the mesh is closed, or this object was used before.
        """
        if self._reserving is not None:
            raise RuntimeError(f"a reservation is used once: call reserve() again for another slot of {self}")
        self._reserving = Reserving(self._client, self._terms)
        outcome = await self._reserving.outcome()
        if isinstance(outcome, Failure):
            raise to_exception(outcome, endpoint=self._terms.endpoint)
        self._lease = outcome
        return Slot(outcome, self._specs)

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._lease is not None:
            await leave([self._lease], error)

    def abandon(self) -> None:
        """Withdraws the reservation before the block starts. May be called any time, and repeated."""
        if self._reserving is not None:
            self._reserving.abandon()

    def __repr__(self) -> str:
        return f"<slotmesh reservation of {self._terms.endpoint}>"


TRY_S: Final = 0.05
"""How long a reservation may wait while another slot is held."""

_NO_ROOM: Final = frozenset({Reason.NO_SLOT, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.DEADLINE_IN_QUEUE})
"""Failures after which another attempt may succeed."""


class ReservationOfAll:
    """`async with mesh.reserve_all("prefill", "decode") as (p, d)`: slots of several endpoints, all or none.

    Made by `Mesh.reserve_all`; used once.
    Invariants: no reservation waits while others are held, except for `TRY_S`; so two clients that want the same slots
    cannot block each other. The next round waits first for the slot that was not available, with none held. However
    the block ends, each slot is used or given back.
    """

    def __init__(self, client: SlotClient, wanted: Sequence[tuple[Terms, SlotSpecs]], timeout_s: float) -> None:
        self._client = client
        self._wanted = tuple(wanted)
        self._timeout_s = timeout_s
        self._backoff = Backoff(initial_s=0.02, max_s=0.5)
        self._is_entered = False
        self._is_abandoned = False
        self._under_way: dict[int, Reserving] = {}
        """Reservations of this round, by index; granted ones, too."""
        self._leases: list[SlotLease] = []

    async def __aenter__(self) -> tuple[Slot, ...]:
        """Waits until all slots are reserved.

        Raises:
            NoSlot: they were not available together in time; the message is that of the one that was missing.
            SlotmeshError: one of the reservations failed. No slot is held.
            RuntimeError: the mesh is closed, or this object was used before.
        """
        if self._is_entered:
            raise RuntimeError(f"a reservation is used once: call reserve_all() again for other slots of {self}")
        self._is_entered = True
        try:
            self._leases = await self._take_all()
        except BaseException:
            self.abandon()
            raise
        return tuple(Slot(lease, specs) for lease, (_, specs) in zip(self._leases, self._wanted, strict=True))

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await leave(self._leases, error)

    def abandon(self) -> None:
        """Withdraws the reservations before the block starts. May be called any time, and repeated."""
        for reserving in self._under_way.values():
            reserving.abandon()

    async def _take_all(self) -> list[SlotLease]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        scarce: int | None = None
        while True:
            had: dict[int, SlotLease] = {}
            missing: tuple[int, Failure] | None = None
            self._under_way = {}
            if scarce is not None:  # waits for the slot that was not available, with none held
                missing = await self._reserve({scarce: until - loop.time()}, had)
            if missing is None:
                try_s = min(TRY_S, until - loop.time())
                missing = await self._reserve({at: try_s for at in range(len(self._wanted)) if at not in had}, had)
            if missing is None:
                return [had[place] for place in range(len(self._wanted))]
            scarce, failure = missing
            await leave(list(had.values()), None)  # before the next wait
            endpoint, pause_s = self._wanted[scarce][0].endpoint, self._backoff.next_delay_s()
            if failure.reason not in _NO_ROOM:
                raise to_exception(failure, endpoint=endpoint)
            if failure.reason is Reason.QUEUE_FULL:
                pause_s = max(pause_s, failure.retry_delay_s or 0.0)
            if loop.time() + pause_s >= until:
                raise to_exception(self._not_in_time(failure), endpoint=endpoint)
            await asyncio.sleep(pause_s)

    async def _reserve(self, timeouts: dict[int, float], had: dict[int, SlotLease]) -> tuple[int, Failure] | None:
        for place, timeout_s in timeouts.items():
            terms = self._wanted[place][0].waiting(max(timeout_s, 0.0))
            self._under_way[place] = Reserving(self._client, terms)
        missing: tuple[int, Failure] | None = None
        for place in timeouts:
            outcome = await self._under_way[place].outcome()
            if isinstance(outcome, SlotLease):
                had[place] = outcome
            elif missing is None or missing[1].reason in _NO_ROOM:
                missing = place, outcome
        return missing

    def _not_in_time(self, failure: Failure) -> Failure:
        names = ", ".join(terms.endpoint for terms, _ in self._wanted)
        return replace(
            failure,
            reason=Reason.NO_SLOT,
            message=f"slots of {names} were not free at the same time within {self._timeout_s:g} s; the last that was "
            f"missing: {failure.message}",
        )

    def __repr__(self) -> str:
        return f"<slotmesh reservation of {', '.join(terms.endpoint for terms, _ in self._wanted)}>"
