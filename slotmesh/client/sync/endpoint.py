"""An endpoint, its lanes and direct lanes, for threads: methods by name.

Invariants: all threads share them. The same method of the same view is the same object, so that its calls travel as one
batch. Direct lanes are a thin layer over `slotmesh.client.direct`; the client's thread holds the slots.
Owner: the application; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from slotmesh.calls.call_options import OptionChanges
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.client.calls.options import AfterFailure
from slotmesh.client.direct.lanes import DirectLanes, DirectMethod, DirectOptions
from slotmesh.client.endpoint import Endpoint, Lane, MethodSpace
from slotmesh.client.mesh import Mesh
from slotmesh.client.slots.terms import AllArguments, ReserveArguments
from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.sync.method import SyncMethod, sync_method_of
from slotmesh.client.sync.slots import SyncReservation, SyncReservationOfAll

if TYPE_CHECKING:
    from slotmesh.client.sync.client_thread import ClientThread

if TYPE_CHECKING:
    from slotmesh.client.sync.client_thread import ClientThread


ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class SyncDirectMethod(Generic[ResultT]):
    """Calls one method over direct lanes. Get it as an attribute: `lanes.classify`."""

    __slots__ = ("_method", "_thread")

    def __init__(self, thread: ClientThread, method: DirectMethod[ResultT]) -> None:
        self._thread = thread
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> ResultT:
        """Makes a call, and waits for its result. Ctrl-C cancels the call.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: the arguments do not fit into one message.
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

    def options(self, **changes: Unpack[DirectOptions]) -> SyncDirectMethod[ResultT]:
        """The same method, with other options: as `slotmesh.DirectMethod.options`. Raises as that."""
        return SyncDirectMethod(self._thread, self._method.options(**changes))

    def returning(self, result_type: type[OtherT]) -> SyncDirectMethod[OtherT]:
        """The same method, with results of this type. Raises TypeError if the content type cannot carry it."""
        return SyncDirectMethod(self._thread, self._method.returning(result_type))

    def _begin(self, future: CallFuture[ResultT], payload: bytes) -> None:
        future.follow(self._method.begin(payload))

    def __repr__(self) -> str:
        return repr(self._method)


class SyncDirectLanes:
    """Slots of an endpoint's replicas, and calls straight to these: `lanes.classify(pixels)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. Slots are
    reserved when calls need them, and given back when they are idle, or the block ends.
    """

    def __init__(self, thread: ClientThread, lanes: DirectLanes) -> None:
        self._thread = thread
        self._lanes = lanes

    @property
    def held(self) -> int:
        """Slots that are held, or being reserved, now."""
        return self._lanes.held

    def method(self, name: str) -> SyncDirectMethod[Any]:
        """The handler's method of that name: for names that are attributes of this class, and for computed ones."""
        with self._thread.lock:
            return SyncDirectMethod(self._thread, self._lanes.method(name))

    def close(self) -> None:
        """Gives all slots back. Calls that wait are not sent, calls that run are cancelled."""
        self._thread.outcome_of_more(self._lanes.aclose)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler itself, a function or an object with `__call__`, and waits for its result."""
        return self.method("__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> SyncDirectMethod[Any]:
        if name.startswith("_"):  # never a handler's method; Python asks for many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = self.method(name)
        self.__dict__[name] = method  # from now on found without coming here
        return method

    def __enter__(self) -> SyncDirectLanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.outcome_of_more(
            partial(self._lanes.__aexit__, None if error is None else type(error), error, None)
        )

    def __repr__(self) -> str:
        return repr(self._lanes)


class SyncMethodSpace:
    """Methods by name: every attribute that is not our own is a method of the handler."""

    def __init__(self, thread: ClientThread, space: MethodSpace) -> None:
        self._thread = thread
        self._space = space
        self._methods: dict[str, SyncMethod[Any]] = {}

    def method(self, name: str) -> SyncMethod[Any]:
        """The handler's method of that name: for names that are attributes of this class, and for computed ones."""
        method = self._methods.get(name)
        if method is None:
            with self._thread.lock:
                method = self._methods.get(name)
                if method is None:
                    method = self._methods[name] = sync_method_of(self._thread, self._space.method(name))
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler itself, a function or an object with `__call__`, and waits for its result."""
        return self.method("__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> SyncMethod[Any]:
        if name.startswith("_"):  # never a handler's method; Python asks for many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = self.method(name)
        self.__dict__[name] = method  # from now on found without coming here
        return method

    def __dir__(self) -> list[str]:
        """Our own names, and the handler's methods. Where they are not known a router is asked, for a second."""
        if not self._space._remote_methods:
            with suppress(Exception):  # completion then shows the names that are known
                self._thread.outcome_of_more(self._space._learn_methods)
        return sorted({*super().__dir__(), *self._space._remote_methods})

    def __repr__(self) -> str:
        return repr(self._space)


class SyncEndpoint(SyncMethodSpace):
    """The public name that clients call: `mesh.endpoint("digits").classify(pixels)`."""

    def __init__(self, thread: ClientThread, endpoint: Endpoint) -> None:
        super().__init__(thread, endpoint)
        self._endpoint = endpoint

    def options(self, **changes: Unpack[OptionChanges]) -> SyncEndpoint:
        """A view of the same endpoint whose calls differ in what is given here. Make it once, and keep it.

        Options are those of `slotmesh.Endpoint.options`.

        Raises:
            BadRequest: an invalid value, or both kinds of SLO. It is a ValueError, too.
            TypeError: an unknown option.
        """
        with self._thread.lock:
            return SyncEndpoint(self._thread, self._endpoint.options(**changes))

    def reserve(self, **arguments: Unpack[ReserveArguments]) -> SyncReservation:
        """A slot, for one call whose replica is known before it is made: `with digits.reserve() as slot`.

        It is renewed while the block runs, and given back when the block is left without a call. Arguments are those of
        `slotmesh.Endpoint.reserve`.

        Raises:
            BadRequest: a value that no reservation may have, or a view without replies. It is a ValueError, too.
            TypeError: there is no such argument.
        """
        with self._thread.lock:
            return SyncReservation(self._thread, self._endpoint.reserve(**arguments))

    def direct(
        self, slots: int = 1, *, ttl: float | timedelta = DEFAULT_LEASE_S, idle: float | timedelta | None = None
    ) -> SyncDirectLanes:
        """Calls straight to replicas, in slots that are held: `with digits.direct(slots=4) as lanes`.

        Arguments and errors are those of `slotmesh.Endpoint.direct`. Threads share the slots.
        """
        with self._thread.lock:
            return SyncDirectLanes(self._thread, self._endpoint.direct(slots, ttl=ttl, idle=idle))

    def ordered(self, key: str, *, after_failure: AfterFailure = "continue") -> SyncLane:
        """A lane: calls of one ordering key, executed one after another, in the order in which they were made.

        Args:
            key: the ordering key.
            after_failure: what the calls after one that has failed do: "continue", or "stop": they fail with
                PredecessorFailed, and are not executed, until `SyncLane.reset`.

        Raises:
            BadRequest: the key is empty or longer than 1,024 bytes, or after_failure is something else. It is a
                ValueError, too.
        """
        with self._thread.lock:
            return SyncLane(self._thread, self._endpoint.ordered(key, after_failure=after_failure))


def reserve_all(
    thread: ClientThread, mesh: Mesh, views: Sequence[SyncEndpoint], arguments: AllArguments
) -> SyncReservationOfAll:
    """Slots of these endpoints, all or none. As `slotmesh.Mesh.reserve_all`."""
    with thread.lock:
        return SyncReservationOfAll(thread, mesh.reserve_all(*(view._endpoint for view in views), **arguments))


class SyncLane(SyncMethodSpace):
    """Calls of one ordering key. All lanes of a key are one lane, within a client and in the mesh.

    Calls that one thread makes are in the order of its statements, also those that it does not wait for. Calls of
    several threads are in the order in which they happened to be made.

    `with` waits on its way out until all calls of the key have their outcomes, unless an exception passes.
    """

    def __init__(self, thread: ClientThread, lane: Lane) -> None:
        super().__init__(thread, lane)
        self._lane = lane

    def reset(self) -> None:
        """Calls made from now on are executed, whatever failed before. Calls of a lane that continues always are.

        Raises:
            RuntimeError: the mesh is closed, or belongs to another process.
        """
        self._thread.hand_over(CallFuture(self._thread), self._reset, None)

    def __enter__(self) -> SyncLane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._thread.outcome_of_more(partial(self._lane.__aexit__, None, None, None))

    def _reset(self, _future: CallFuture[None], _nothing: None) -> None:
        with self._thread.lock:  # the lane's methods are made anew
            self._lane.reset()
