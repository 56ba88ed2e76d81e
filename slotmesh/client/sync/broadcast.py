"""Broadcasts, as threads use them."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any, Generic, Unpack

from slotmesh.calls.call_options import OptionChanges
from slotmesh.client.broadcast import Broadcast, BroadcastMethod, BroadcastResult
from slotmesh.client.calls.method_types import P, ResultT
from slotmesh.client.sync.client_thread import ClientThread
from slotmesh.client.sync.method import SyncNamedMethods


class SyncBroadcastMethod(Generic[ResultT, P]):
    """Calls one method on every replica. Get it as an attribute: `endpoint.broadcast.drop_cache`."""

    __slots__ = ("_method", "_thread")

    def __init__(self, thread: ClientThread, method: BroadcastMethod[ResultT, P]) -> None:
        self._thread = thread
        self._method = method

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> BroadcastResult[ResultT]:
        """As `slotmesh.BroadcastMethod`, and waits until each replica has its outcome.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: they do not fit into an rpc.
            SlotmeshError: no replica was called, and why; failures of replicas are in the result.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        return self._thread.run(partial(self._method, *args, **kwargs), copy_context())

    def __repr__(self) -> str:
        return repr(self._method)


class SyncBroadcast(SyncNamedMethods[SyncBroadcastMethod[Any, ...]]):
    """The methods of an endpoint, on every replica: `results = digits.broadcast.drop_cache()`."""

    _awaited: Broadcast
    _for_threads = SyncBroadcastMethod

    def only(self, backend: str) -> SyncBroadcast:
        """Only replicas of this backend, which the endpoint's policy has to name.

        Raises:
            ValueError: the name is empty, or no str.
        """
        with self._thread.lock:
            return SyncBroadcast(self._thread, self._awaited.only(backend))

    def options(self, **changes: Unpack[OptionChanges]) -> SyncBroadcast:
        """A view whose calls differ in what is given here."""
        with self._thread.lock:
            return SyncBroadcast(self._thread, self._awaited.options(**changes))
