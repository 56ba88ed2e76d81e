"""Slots, for threads: `with endpoint.reserve() as slot`.

Purpose: a thin layer over `slotmesh.client.slots`; the client's thread holds the slot, renews it, and gives it back.
Invariants: as there. Ctrl-C while the block is entered gives the slot back, also one that was granted at that moment.
Owner: the application; one thread at a time.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
from slotmesh.client.slots.slot import ReplicaLoad, Slot, SlotMethod
from slotmesh.client.slots.terms import DispatchOptions
from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.sync.method import SyncValueStream

if TYPE_CHECKING:
    from slotmesh.client.sync.client_thread import ClientThread

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class SyncSlotMethod(Generic[ResultT]):
    """Calls one method of the handler in a slot. Get it as an attribute: `slot.generate`."""

    __slots__ = ("_method", "_thread")

    def __init__(self, thread: ClientThread, method: SlotMethod[ResultT]) -> None:
        self._thread = thread
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Makes the call that the slot was reserved for, and waits for its result. Ctrl-C cancels the call.

        Raises:
            TypeError: the content type cannot carry the arguments. The slot is not used.
            PayloadTooLarge: the arguments do not fit into an rpc. The slot is not used.
            SlotUsed: a call was made in the slot already.
            SlotError: the slot was given back or lost.
            SlotmeshError: the call failed, and how.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        result: ResultT = self._thread.outcome(self._begin, self._method.encode(args, kwargs))
        return result

    def future(self, *args: Any, **kwargs: Any) -> Future[ResultT]:
        """Makes the call and does not wait. `cancel()` of the future cancels it at its replica.

        Raises as a call does, SlotmeshError from the future.
        """
        payload = self._method.encode(args, kwargs)
        future: CallFuture[ResultT] = CallFuture(self._thread)
        self._thread.hand_over(future, self._begin, payload)
        return future

    def stream(self, *args: Any, **kwargs: Any) -> SyncValueStream[ResultT]:
        """Calls a handler that yields: `for value in slot.generate.stream(prompt)`.

        Leaving the loop early cancels the call. Raises as a call does; SlotmeshError from the iterator, too.
        """
        payload = self._method.encode(args, kwargs)
        return SyncValueStream(self._thread, self._thread.call(partial(self._method.begin_stream, payload)))

    def options(self, **changes: Unpack[DispatchOptions]) -> SyncSlotMethod[ResultT]:
        """The same method, with other options: as `slotmesh.SlotMethod.options`. Raises as that."""
        return SyncSlotMethod(self._thread, self._method.options(**changes))

    def returning(self, result_type: type[OtherT]) -> SyncSlotMethod[OtherT]:
        """The same method, with results of this type. Raises TypeError if the content type cannot carry it."""
        return SyncSlotMethod(self._thread, self._method.returning(result_type))

    def _begin(self, future: CallFuture[ResultT], payload: bytes) -> None:
        future.follow(self._method.begin(payload))

    def __repr__(self) -> str:
        return repr(self._method)


class SyncSlot:
    """A permit of one replica, for one call: `slot.generate(prompt)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. It is
    renewed while its block runs, for five minutes in all, and given back when the block ends without a call.
    """

    def __init__(self, thread: ClientThread, slot: Slot) -> None:
        self._thread = thread
        self._slot = slot

    @property
    def token(self) -> str:
        """For another process to make the call: any router accepts it, and the replica. Its holder can use the slot."""
        return self._slot.token

    @property
    def backend(self) -> str:
        """The backend of the replica."""
        return self._slot.backend

    @property
    def replica_id(self) -> str:
        """The replica that holds the slot."""
        return self._slot.replica_id

    @property
    def replica_address(self) -> str:
        """Where the replica serves SlotService: `HOST:PORT`."""
        return self._slot.replica_address

    @property
    def ongoing(self) -> int:
        """The replica's running calls and reservations when the slot was granted, this one included."""
        return self._slot.ongoing

    def method(self, name: str) -> SyncSlotMethod[Any]:
        """The handler's method of that name: for names that are attributes of this class, and for computed ones."""
        return SyncSlotMethod(self._thread, self._slot.method(name))

    def release(self) -> ReplicaLoad:
        """Gives the slot back before its block ends, and returns the load of its replica.

        A slot that was used or given back is not changed.

        Raises:
            SlotmeshError: no router could be reached. The lease expires by itself.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        load: ReplicaLoad = self._thread.outcome(self._thread.start_task, (self._slot.release, (), {}))
        return load

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler itself, a function or an object with `__call__`, and waits for its result."""
        return self.method("__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> SyncSlotMethod[Any]:
        if name.startswith("_"):  # never a handler's method; Python asks for many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self.method(name)

    def __repr__(self) -> str:
        return repr(self._slot)


class SyncReservation:
    """`with endpoint.reserve() as slot`: a slot for a block. Made by `SyncEndpoint.reserve`; used once."""

    def __init__(self, thread: ClientThread, reservation: Reservation) -> None:
        self._thread = thread
        self._reservation = reservation

    def __enter__(self) -> SyncSlot:
        """Waits for a slot.

        Raises:
            NoSlot: none was free in time.
            SlotmeshError: the reservation failed.
            RuntimeError: the mesh is closed, this was entered before, or it is used where waiting would never end.
        """
        return SyncSlot(self._thread, _enter(self._thread, self._reservation))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._thread, self._reservation, error)

    def __repr__(self) -> str:
        return repr(self._reservation)


class SyncReservationOfAll:
    """Slots of several endpoints for a block, all or none. Made by `SyncMesh.reserve_all`; used once."""

    def __init__(self, thread: ClientThread, reservation: ReservationOfAll) -> None:
        self._thread = thread
        self._reservation = reservation

    def __enter__(self) -> tuple[SyncSlot, ...]:
        """Waits until all are had. Raises as `slotmesh.ReservationOfAll` does, and as `SyncReservation`."""
        return tuple(SyncSlot(self._thread, slot) for slot in _enter(self._thread, self._reservation))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._thread, self._reservation, error)

    def __repr__(self) -> str:
        return repr(self._reservation)


def _enter(thread: ClientThread, reservation: Reservation | ReservationOfAll) -> Any:
    try:
        return thread.outcome(thread.start_task, (reservation.__aenter__, (), {}))
    except BaseException:
        thread.go_on(CallFuture(thread), partial(_abandon, reservation))
        raise


def _leave(thread: ClientThread, reservation: Reservation | ReservationOfAll, error: BaseException | None) -> None:
    try:
        thread.outcome_of_more(partial(reservation.__aexit__, None if error is None else type(error), error, None))
    except Exception:
        if error is None:
            raise


async def _abandon(reservation: Reservation | ReservationOfAll) -> None:
    reservation.abandon()
