"""An endpoint and its lanes: methods by name, and the names of endpoints and methods that a router describes.

Invariants: views and lanes of one endpoint share one stream. The same method of the same view is the same object, so
that its calls travel as one batch.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Unpack

from slotmesh.calls.call_options import OptionChanges
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.client.broadcast import Broadcast
from slotmesh.client.calls.call_spec import CallSpec, MethodSignature
from slotmesh.client.calls.named_methods import NamedMethods
from slotmesh.client.calls.options import AfterFailure, ViewOptions, check_method_name, check_ordering_key
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.described_endpoints import DescribedEndpoints
from slotmesh.client.method import Method, method_of
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.direct_lanes import DirectLanes, direct_lanes
from slotmesh.client.slots.reservations import Reservation
from slotmesh.client.slots.slot import SlotSpecs
from slotmesh.client.slots.terms import ReserveArguments, Terms, terms_of
from slotmesh.client.stream.call_stream import CallStream

LOOK_S: Final = 1.0
"""How long completion in a shell may wait for a router, seconds."""


class MethodSpace(NamedMethods[Method[Any]]):
    """The methods of an endpoint, or of a lane."""

    def __init__(self, stream: CallStream, options: ViewOptions, described: DescribedEndpoints) -> None:
        super().__init__()
        self._stream = stream
        self._options = options
        self._described = described

    def _new_method(self, name: str, signature: MethodSignature) -> Method[Any]:
        check_method_name(name)
        spec = CallSpec(self._stream.endpoint, name, self._options, self._new_queue(), signature)
        return method_of(self._stream, spec)

    def __dir__(self) -> list[str]:
        """The attributes of this class, and the handler's methods, once `Mesh.endpoints` has read them."""
        return sorted({*super().__dir__(), *self._remote_methods})

    @property
    def _remote_methods(self) -> tuple[str, ...]:
        """The cached names of the handler's methods."""
        return self._described.methods_of(self._stream.endpoint)

    async def _learn_methods(self) -> None:
        """Reads them from a router. Raises SlotmeshError if none has answered."""
        await self._described.learn(self._stream.endpoint, timeout_s=LOOK_S)

    @abstractmethod
    def _new_queue(self) -> CallQueue[Any]:
        """The queue for the calls of one more method."""


class Endpoint(MethodSpace):
    """The public name that clients call: `await mesh.endpoint("digits").classify(pixels)`."""

    def __init__(
        self, stream: CallStream, options: ViewOptions, slots: SlotClient, described: DescribedEndpoints
    ) -> None:
        super().__init__(stream, options, described)
        self._slots = slots
        self._slot_specs: SlotSpecs | None = None
        self._broadcast: Broadcast | None = None

    def options(self, **changes: Unpack[OptionChanges]) -> Endpoint:
        """A view of the same endpoint whose calls differ in what is given here. Make it once, and keep it.

        Args:
            **changes: fields of `slotmesh.OptionChanges`, which documents them.

        Raises:
            BadRequest: an invalid value, or both kinds of SLO. It is a ValueError, too.
            TypeError: an unknown option.
        """
        return Endpoint(self._stream, self._options.changed(**changes), self._slots, self._described)

    def ordered(self, key: str, *, after_failure: AfterFailure = "continue") -> Lane:
        """A lane: calls of one ordering key, executed one after another, in the order in which they were made.

        Args:
            key: the ordering key.
            after_failure: what the calls after one that has failed do: "continue", or "stop": they fail with
                PredecessorFailed, and are not executed, until `Lane.reset`.

        Raises:
            BadRequest: the key is empty or longer than 1,024 bytes, or after_failure is something else. It is a
                ValueError, too.
        """
        check_ordering_key(key)
        options = replace(self._options, ordering_key=key, after_failure=after_failure)
        return Lane(self._stream, options, self._described)

    def reserve(self, **arguments: Unpack[ReserveArguments]) -> Reservation:
        """A slot, for one call whose replica is known before it is made: `async with digits.reserve() as slot`.

        It is renewed while the block runs, and given back when the block is left without a call.

        Args:
            **arguments: any of these.

                `ttl`: length of the lease, after which the mesh takes the slot back unless it is renewed; more than 0
                and at most 300 seconds, or a timedelta. 10 s.

                `timeout`: how long to wait for a slot; seconds or a timedelta. 0: not at all, a slot that is free now
                is taken. None: the view's timeout, or the backend's `max_queue_time` where the view has none.

                `shard_key`, `affinity_key`, `model_id`, `prefix_blocks`: as `options`. Empty: none. Not given: the
                view's.

                `replica_id`: the requested replica. Empty: any.

                `excluded_replica_ids`: replicas to avoid.

        Raises:
            BadRequest: an invalid value, or a view without replies. It is a ValueError, too.
            TypeError: an unknown argument.
        """
        return Reservation(self._slots, *self.reservation_of(arguments))

    def direct(
        self, slots: int = 1, *, ttl: float | timedelta = DEFAULT_LEASE_S, idle: float | timedelta | None = None
    ) -> DirectLanes:
        """Calls straight to replicas, in slots that are held: `async with digits.direct(slots=4) as lanes`.

        Fewer steps than a call through a router, and so the least time. Slots are reserved through routers when calls
        need them, renewed while they are held, and reserved elsewhere when their replica drains or dies. They count as
        running calls wherever load is looked at. Calls that find no free slot wait here. With one slot calls are
        executed one after another, in the order in which they were made.

        Args:
            slots: how many are held at most; 1 … 256.
            ttl: length of their leases, after which the mesh takes them back unless they are renewed; more than 0
                and at most 300 seconds, or a timedelta. 10 s.
            idle: a slot without a call for this time is given back; seconds or a timedelta. None: as `ttl`.

        Raises:
            BadRequest: an invalid value, or a view without replies. It is a ValueError, too.
        """
        return direct_lanes(self._slots, self._stream.endpoint, self._options, slots, ttl, idle)

    @property
    def broadcast(self) -> Broadcast:
        """Calls on every replica, with an outcome for each: `results = await digits.broadcast.drop_cache()`.

        The replicas are those that the router lists as not draining, of each backend with a share of the traffic;
        `broadcast.only("v2")`: of one. A handler's own method of this name is `digits.method("broadcast")`.
        """
        if self._broadcast is None:
            self._broadcast = Broadcast(self._stream, self._options)
        return self._broadcast

    def reservation_of(self, arguments: ReserveArguments) -> tuple[Terms, SlotSpecs]:
        """The terms of a reservation by this view, and the specifications of calls in its slot. Raises as `reserve`."""
        if self._slot_specs is None:
            self._slot_specs = SlotSpecs(self._stream.endpoint, self._options)
        terms = terms_of(self._stream.endpoint, self._options, arguments)
        if (model_id := terms.options.model_id) != self._options.model_id:
            return terms, SlotSpecs(self._stream.endpoint, replace(self._options, model_id=model_id))
        return terms, self._slot_specs

    def _new_queue(self) -> CallQueue[Any]:
        return CallQueue()

    def __repr__(self) -> str:
        return f"<slotmesh endpoint {self._stream.endpoint}>"


class Lane(MethodSpace):
    """Calls of one ordering key. All lanes of a key are one lane, within a client and in the mesh.

    `async with` waits on its way out until all calls of the key have their outcomes, unless an exception passes.
    """

    def __init__(self, stream: CallStream, options: ViewOptions, described: DescribedEndpoints) -> None:
        super().__init__(stream, options, described)
        self._queue = stream.queue_of(options.ordering_key)
        self._stop = stream.stop_of(self._queue, options.ordering_key) if options.stops else None

    def _new_queue(self) -> CallQueue[Any]:
        return self._queue

    def options(self, **changes: Unpack[OptionChanges]) -> Lane:
        """A view of the same lane whose calls differ in what is given here, as `Endpoint.options`.

        Raises:
            BadRequest: an invalid value, or both kinds of SLO. It is a ValueError, too.
            TypeError: an unknown option.
        """
        return Lane(self._stream, self._options.changed(**changes), self._described)

    def reset(self) -> None:
        """Calls made from now on are executed, whatever failed before. Calls of a lane that continues always are."""
        if self._stop is not None:
            self._stop.reset()

    async def __aenter__(self) -> Lane:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None and not self._queue.idle:
            answered = asyncio.Event()
            self._queue.call_when_idle(answered.set)
            await answered.wait()

    def __repr__(self) -> str:
        return f"<slotmesh lane {self._options.ordering_key!r} of {self._stream.endpoint}>"
