"""The models that a `@multiplexed` method has loaded: once for all calls that need them, and held while calls use them.

Purpose: `ModelPool` carries out what `model_places` decides; by `model_holding`, methods hold what they load.
Invariants: a place that becomes free wakes the calls that wait for one model, those that have waited longest. An
`async def` method loads in a task of its own, which a cancelled call does not end; a `def` method in the
thread of the first call that needs the model. A victim is unloaded before the next model is loaded, so never more than
the limit are in memory. A failed load fails the calls that wait for it. All pools have one lock, which is never held
over a wait or a load: whether calls wait for each other depends on several pools.
Owner: the instance of the handler has a pool for each such method; the replica reads what is loaded, and unloads at its
end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final

from slotmesh.handlers.context import current_place
from slotmesh.handlers.kinds import MethodKind, kind_of
from slotmesh.handlers.model_holding import call_uses, current_uses, present_uses
from slotmesh.handlers.model_places import FoundPlace, ModelPlace, ModelPlaces, ModelUses, PlacesStuck
from slotmesh.logs import get_logger

MAX_MODEL_ID_BYTES: Final = 1_024
"""As of the call option."""
_log = get_logger(__name__)
_lock: Final = threading.Lock()
_current_loads: ContextVar[tuple[ModelPlace, ...]] = ContextVar("slotmesh.loads", default=())
"""The models whose loads run this code."""


class ModelCounts:
    """Totals of one pool: plain integers and seconds, read at each scrape."""

    __slots__ = ("failed_loads", "hits", "load_s", "loads", "unloads")

    def __init__(self) -> None:
        self.hits = 0
        """Requests for models that were loaded."""
        self.loads = 0
        """Models that were loaded."""
        self.failed_loads = 0
        self.load_s = 0.0
        """Time of all loads."""
        self.unloads = 0


class ModelPool:
    """The models of one multiplexed method of one handler."""

    def __init__(
        self, name: str, load: Callable[[str], Any], unload: Callable[[Any], Any] | None, most: int, *, is_async: bool
    ) -> None:
        """`unload` None: the model's own method of that name, if it has one."""
        self.counts = ModelCounts()
        self.is_async = is_async
        self.on_change: Callable[[], None] = lambda: None
        """Called when models were loaded or unloaded, in any thread."""
        self._name = name
        self._load = load
        self._unload = unload
        self._lock = _lock
        self._places = ModelPlaces(most, name)
        self._waiting: OrderedDict[str, list[Future[None]]] = OrderedDict()
        """The calls that wait for a place, by model, the longest wait first. Each of these is done once a place for the
        model may be free, and removed."""
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> list[str]:
        """Ids of the loaded models, those of the latest uses first."""
        with self._lock:
            return list(self._places.loaded)

    async def get(self, model_id: str) -> Any:
        """The model, for `async def` methods."""
        has_waited = False
        while True:
            with present_uses() as uses:  # anew after each wait: the call may have ended
                found = self._take(model_id, uses, has_waited=has_waited)
                if not isinstance(found, FoundPlace):
                    has_waited = False
                    try:
                        await _awaited(found)
                        has_waited = True
                    finally:
                        self._stop_waiting(model_id, uses, found, is_woken=has_waited)
                    continue
                if found.is_new:
                    context = copy_context()
                    context.run(current_place.set, None)
                    task = asyncio.get_running_loop().create_task(self._load_async(found), context=context)
                    self._tasks.add(task)
                    task.add_done_callback(partial(self._load_ended, found.place))
                done = found.place.done
                return done.result() if done.done() else await _awaited(done)

    def get_in_thread(self, model_id: str) -> Any:
        """The model, for `def` methods."""
        if _is_on_loop():
            raise RuntimeError(
                f"{self._name} is `def`, and would block the event loop: make it `async def` and await it, or call it "
                "in `def` methods, or by asyncio.to_thread"
            )
        has_waited = False
        while True:
            with present_uses() as uses:
                found = self._take(model_id, uses, has_waited=has_waited)
                if not isinstance(found, FoundPlace):
                    has_waited = False
                    try:
                        found.result()
                        has_waited = True
                    finally:
                        self._stop_waiting(model_id, uses, found, is_woken=has_waited)
                    continue
                if found.is_new:
                    self._load_here(found, uses)
                return found.place.done.result()

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        """See `Holding.release`."""
        with self._lock:
            place.holders.discard(uses)
            if place.is_free:
                self._wake()

    async def close(self) -> None:
        """Unloads all models that no call uses. No call begins any more."""
        with self._lock:
            self._is_closed = True
            while self._waiting:
                self._wake_model(next(iter(self._waiting)))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with self._lock:
            victims = self._places.take_all_free()
        for each in victims:
            if self.is_async:
                await self._unload_async(each)
            else:
                await asyncio.to_thread(self._unload_here, each)

    # -- places ------------------------------------------------------------------------------------------------------

    def _take(self, model_id: str, uses: ModelUses, *, has_waited: bool) -> FoundPlace | Future[None]:
        """The place of the model; or what the call has to wait for, and then calls `_stop_waiting`.

        `has_waited`: a place was free for it. If the call does not take that, the next one that waits may.
        """
        if not isinstance(model_id, str):
            raise TypeError(f"{self._name}: the id of a model is a str, got {type(model_id).__name__}")
        if not model_id:
            raise ValueError(f"{self._name}: the id of the model is empty; a call names it by its option model_id")
        if len(model_id.encode()) > MAX_MODEL_ID_BYTES:
            raise ValueError(f"{self._name}: the id of a model has at most {MAX_MODEL_ID_BYTES} bytes")
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self._name}: the replica ends, and loads no more models")
            try:
                found = self._places.take(model_id, uses)
            except PlacesStuck as error:
                self._wake()
                raise RuntimeError(self._stuck(model_id, {*error.pools})) from None
            if found is None:
                self._places.waits(uses, 1)
                return self._wait(model_id, is_first=has_waited)
            uses.add(found.place, self)
            if found.is_new:
                self._wake_model(model_id)
            elif has_waited:
                self._wake()
            if found.place in _current_loads.get() and not found.place.is_loaded:
                raise RuntimeError(f"{self._name}: the load of model {model_id!r} needs model {model_id!r} itself")
            if found.is_new:
                found.place.done = Future()
            self.counts.hits += found.place.is_loaded
        return found

    def _stuck(self, model_id: str, pools: Collection[str]) -> str:
        text = f"{self._name}: no place for model {model_id!r}: each loaded model is used by a call that waits for"
        if len(pools) < 2:
            return f"{text} another one; raise max_models, or let a call use fewer models"
        names = " or ".join(sorted(pools))
        return f"{text} one of {names}; let all calls get these in one order, or raise max_models"

    def _wait(self, model_id: str, *, is_first: bool) -> Future[None]:
        place: Future[None] = Future()
        self._waiting.setdefault(model_id, []).append(place)
        if is_first:
            self._waiting.move_to_end(model_id, last=False)
        return place

    def _stop_waiting(self, model_id: str, uses: ModelUses, place: Future[None], *, is_woken: bool) -> None:
        with self._lock:
            self._places.waits(uses, -1)
            if not place.done():
                alike = self._waiting[model_id]
                alike.remove(place)
                if not alike:
                    del self._waiting[model_id]
            elif not is_woken:  # it was cancelled meanwhile: the place is for the next one
                self._wake()

    def _wake(self) -> None:
        """Calls of the model that has waited longest go on, if there is a place. Called under the lock."""
        if self._waiting and self._places.has_room:
            self._wake_model(next(iter(self._waiting)))

    def _wake_model(self, model_id: str) -> None:
        """The calls that wait for this model go on. Called under the lock."""
        for place in self._waiting.pop(model_id, ()):
            place.set_result(None)

    # -- models ------------------------------------------------------------------------------------------------------

    def _load_ended(self, place: ModelPlace, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not place.done.done():  # it was cancelled before it began
            self._failed(place, asyncio.CancelledError())

    async def _load_async(self, found: FoundPlace) -> None:
        try:
            if found.victim is not None:
                await self._unload_async(found.victim)
            began = time.perf_counter()
            with call_uses() as uses, self._loading(found.place, uses):
                model = await self._load(found.place.model_id)
        except BaseException as error:
            self._failed(found.place, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self._was_loaded(found.place, model, time.perf_counter() - began)

    def _load_here(self, found: FoundPlace, uses: ModelUses) -> None:
        try:
            if found.victim is not None:
                self._unload_here(found.victim)
            began = time.perf_counter()
            with self._loading(found.place, uses):
                model = self._load(found.place.model_id)
        except BaseException as error:  # noqa: BLE001 - raised by each call that waits for the model
            self._failed(found.place, error)
        else:
            self._was_loaded(found.place, model, time.perf_counter() - began)

    @contextmanager
    def _loading(self, place: ModelPlace, uses: ModelUses) -> Iterator[None]:
        """What the load itself needs is held by `uses`, and cannot wait for its own place."""
        with self._lock:
            place.holders.add(uses)
            uses.add(place, self)
        loads, before = _current_loads.set((*_current_loads.get(), place)), current_uses.set(uses)
        try:
            yield
        finally:
            current_uses.reset(before)
            _current_loads.reset(loads)

    def _was_loaded(self, place: ModelPlace, model: Any, took_s: float) -> None:
        with self._lock:
            self.counts.loads += 1
            self.counts.load_s += took_s
            place.is_loaded = True
            place.done.set_result(model)
            self._wake()
        self.on_change()

    def _failed(self, place: ModelPlace, error: BaseException) -> None:
        with self._lock:
            self.counts.failed_loads += 1
            self._places.failed(place)
            self._wake()
        place.done.set_exception(error)

    async def _unload_async(self, victim: ModelPlace) -> None:
        try:
            if (unload := self._unloader(victim.done.result())) is not None:
                if kind_of(unload) is MethodKind.ASYNC:
                    await unload()
                else:
                    await asyncio.to_thread(unload)
        except Exception as error:  # noqa: BLE001 - the user's own; the model is given up in any case
            _log.error("a model could not be unloaded", model=victim.model_id, exc_info=error)
        finally:
            self._was_unloaded(victim)

    def _unload_here(self, victim: ModelPlace) -> None:
        try:
            if (unload := self._unloader(victim.done.result())) is not None:
                unload()
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("a model could not be unloaded", model=victim.model_id, exc_info=error)
        finally:
            self._was_unloaded(victim)

    def _unloader(self, model: Any) -> Callable[[], Any] | None:
        if self._unload is None:
            own = getattr(model, "unload", None)
            return own if callable(own) else None
        unload = self._unload
        if kind_of(unload) is MethodKind.ASYNC:

            async def unload_async() -> None:
                await unload(model)

            return unload_async
        return lambda: unload(model)

    def _was_unloaded(self, victim: ModelPlace) -> None:
        victim.done = None  # a call may still have the place, and with it the model
        with self._lock:
            self.counts.unloads += 1
            self._places.unloaded()
            self._wake()
        self.on_change()


def _awaited(future: Future[Any]) -> Awaitable[Any]:
    """Waits for it; a cancellation of the wait is none of the future, whose failure is then no one's."""
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda it: it.cancelled() or it.exception())
    return asyncio.shield(wrapped)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
