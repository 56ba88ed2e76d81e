"""Slots and direct lanes, for threads: `with endpoint.reserve() as slot`, `with endpoint.direct() as lanes`.

Purpose: a thin layer over the asynchronous ones; the client's thread holds the slots, renews them, and gives them back.
Invariants: as there. Ctrl-C while the block is entered gives the slot back, also one that was granted at that moment.
Owner: the application: of a slot one thread at a time, of direct lanes any thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Unpack

from slotmesh.client.calls.method_types import OtherT, P, ResultT, ValueT
from slotmesh.client.slots.direct_lanes import DirectLanes, DirectMethod, DirectOptions
from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
from slotmesh.client.slots.slot import DispatchOptions, ReplicaLoad, Slot, SlotMethod
from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.sync.client_thread import ClientThread
from slotmesh.client.sync.method import SyncNamedMethods, SyncValueStream


class _InSlots(Generic[ResultT, P]):
    """Calls one method in slots, for threads."""

    __slots__ = ("_method", "_thread")

    def __init__(self, thread: ClientThread, method: SlotMethod[ResultT, P, Any] | DirectMethod[ResultT, P]) -> None:
        self._thread = thread
        self._method = method

    def future(self, *args: P.args, **kwargs: P.kwargs) -> Future[ResultT]:
        """Makes the call and does not wait. `cancel()` of the future cancels it at its replica.

        Raises as a call does, SlotmeshError from the future.
        """
        payload = self._method.encode(args, kwargs)
        future: CallFuture[ResultT] = CallFuture(self._thread.work)
        self._thread.hand_over(future, self._begin, payload)
        return future

    def _outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ResultT:
        result: ResultT = self._thread.outcome(self._begin, self._method.encode(args, kwargs))
        return result

    def _begin(self, future: CallFuture[ResultT], payload: bytes) -> None:
        future.follow(self._method.begin(payload))

    def __repr__(self) -> str:
        return repr(self._method)


class SyncSlotMethod(_InSlots[ResultT, P], Generic[ResultT, P, ValueT]):
    """Calls one method of the handler in a slot. Get it as an attribute: `slot.generate`."""

    __slots__ = ()
    _method: SlotMethod[ResultT, P, ValueT]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Makes the call that the slot was reserved for, and waits for its result. Ctrl-C cancels the call.

        Raises:
            TypeError: the content type cannot carry the arguments. The slot is not used.
            PayloadTooLarge: the arguments do not fit into an rpc. The slot is not used.
            SlotUsed: a call was made in the slot already.
            SlotError: the slot was given back or lost.
            SlotmeshError: the call failed, and how.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        return self._outcome(args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> SyncValueStream[ValueT]:
        """Calls a handler that yields: `for value in slot.generate.stream(prompt)`.

        Leaving the loop early cancels the call. Raises as a call does; SlotmeshError from the iterator, too.
        """
        payload = self._method.encode(args, kwargs)
        return SyncValueStream(self._thread, self._thread.call(partial(self._method.begin_stream, payload)))

    def options(self, **changes: Unpack[DispatchOptions]) -> SyncSlotMethod[ResultT, P, ValueT]:
        """The same method, with other options: as `slotmesh.SlotMethod.options`. Raises as that."""
        return SyncSlotMethod(self._thread, self._method.options(**changes))

    def returning(self, result_type: type[OtherT]) -> SyncSlotMethod[OtherT, P, OtherT]:
        """The same method, with results of this type. Raises TypeError if the content type cannot carry it."""
        return SyncSlotMethod(self._thread, self._method.returning(result_type))


class SyncDirectMethod(_InSlots[ResultT, P]):
    """Calls one method over direct lanes. Get it as an attribute: `lanes.classify`."""

    __slots__ = ()
    _method: DirectMethod[ResultT, P]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Makes a call, and waits for its result. Ctrl-C cancels the call.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: the arguments do not fit into one message.
            SlotmeshError: the call failed, and how.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        return self._outcome(args, kwargs)

    def options(self, **changes: Unpack[DirectOptions]) -> SyncDirectMethod[ResultT, P]:
        """The same method, with other options: as `slotmesh.DirectMethod.options`. Raises as that."""
        return SyncDirectMethod(self._thread, self._method.options(**changes))

    def returning(self, result_type: type[OtherT]) -> SyncDirectMethod[OtherT, P]:
        """The same method, with results of this type. Raises TypeError if the content type cannot carry it."""
        return SyncDirectMethod(self._thread, self._method.returning(result_type))


class SyncSlot(SyncNamedMethods[SyncSlotMethod[Any]]):
    """A permit of one replica, for one call: `slot.generate(prompt)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. It is
    renewed while its block runs, for five minutes in all, and given back when the block ends without a call.
    """

    _awaited: Slot
    _for_threads = SyncSlotMethod

    @property
    def token(self) -> str:
        """For another process to make the call: any router accepts it, and the replica. Its holder can use the slot."""
        return self._awaited.token

    @property
    def backend(self) -> str:
        """The backend of the replica."""
        return self._awaited.backend

    @property
    def replica_id(self) -> str:
        """The replica that holds the slot."""
        return self._awaited.replica_id

    @property
    def replica_address(self) -> str:
        """Where the replica serves SlotService: `HOST:PORT`."""
        return self._awaited.replica_address

    @property
    def ongoing(self) -> int:
        """The replica's running calls and reservations when the slot was granted, this one included."""
        return self._awaited.ongoing

    def release(self) -> ReplicaLoad:
        """Gives the slot back before its block ends, and returns the load of its replica.

        A slot that was used or given back is not changed.

        Raises:
            SlotmeshError: no router could be reached. The lease expires by itself.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        return self._thread.run(self._awaited.release)


class SyncDirectLanes(SyncNamedMethods[SyncDirectMethod[Any]]):
    """Slots of an endpoint's replicas, and calls straight to these: `lanes.classify(pixels)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. Slots are
    reserved when calls need them, and given back when they are idle, or the block ends.
    """

    _awaited: DirectLanes
    _for_threads = SyncDirectMethod

    @property
    def held(self) -> int:
        """Slots that are held, or being reserved, now."""
        return self._awaited.held

    def close(self) -> None:
        """Gives all slots back. Calls that wait are not sent, calls that run are cancelled."""
        self._thread.outcome_of_more(self._awaited.aclose)

    def __enter__(self) -> SyncDirectLanes:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._thread.outcome_of_more(partial(self._awaited.__aexit__, None, error, None))


class _Block:
    """A block with slots that are reserved for it."""

    def __init__(self, thread: ClientThread, reservation: Reservation | ReservationOfAll) -> None:
        self._thread = thread
        self._reservation = reservation

    def _enter(self) -> Any:
        try:
            return self._thread.run(self._reservation.__aenter__)
        except BaseException:
            self._thread.go_on(CallFuture(self._thread.work), self._abandon)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._thread.outcome_of_more(partial(self._reservation.__aexit__, None, error, None))
        except Exception:
            if error is None:
                raise

    async def _abandon(self) -> None:
        self._reservation.abandon()

    def __repr__(self) -> str:
        return repr(self._reservation)


class SyncReservation(_Block):
    """`with endpoint.reserve() as slot`: a slot for a block. Made by `SyncEndpoint.reserve`; used once."""

    def __enter__(self) -> SyncSlot:
        """Waits for a slot.

        Raises:
            NoSlot: none was free in time.
            SlotmeshError: the reservation failed.
            RuntimeError: the mesh is closed, this was entered before, or it is used where waiting would never end.
        """
        return SyncSlot(self._thread, self._enter())


class SyncReservationOfAll(_Block):
    """Slots of several endpoints for a block, all or none. Made by `SyncMesh.reserve_all`; used once."""

    def __enter__(self) -> tuple[SyncSlot, ...]:
        """Waits until all are had. Raises as `slotmesh.ReservationOfAll` does, and as `SyncReservation`."""
        return tuple(SyncSlot(self._thread, slot) for slot in self._enter())
