"""Direct lanes, for threads: `with endpoint.direct() as lanes`.

Purpose: a thin face of `slotmesh.client.direct`; the client's thread holds the slots.
Owner: the application; any thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from slotmesh.client.direct.direct_method import DirectMethod, DirectOptions
from slotmesh.client.direct.lanes import DirectLanes
from slotmesh.client.sync.call_future import CallFuture

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
        """Makes a call, and waits for its result. Ctrl-C takes the call back.

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
        """The same method, with results of this type. Raises TypeError where the content type never becomes it."""
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
        """The handler's method of that name: for names that are attributes of ours, and for computed ones."""
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
