"""One replica's life: from its configuration over its handler to its drain.

Purpose: moves through the table of `core.lifecycle` and tells the controller of each step.
Invariants: the handler is constructed once, in a thread, so that the event loop goes on; routers get streams only while
the replica is ready; STOPPED is said after the last answer was written, or after the grace was over.
Owner: the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from replica_service.core.lifecycle import Event, State, next_state
from replica_service.core.sessions import RESUME_TTL_S
from replica_service.shell.controller_link import Configuration, Report
from replica_service.shell.engine import Engine
from replica_service.shell.loading import construct, load_handler
from replica_service.shell.methods import Method, bind_methods
from slotmesh.handlers import HandlerDescription, describe
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.log import get_logger

MakeEngine = Callable[[dict[str, Method], int, int], Engine]
"""From methods, `max_ongoing` and `prefetch`."""

ResultT = TypeVar("ResultT")

ROUTER_RETURN_S = 3.0
"""How long a replica that drains waits for a router where there is none. One that is started anew may need as long."""

_log = get_logger(__name__)


class Replica:
    """Hosts one copy of a handler."""

    def __init__(
        self,
        handler: str,
        make_engine: MakeEngine,
        *,
        graceful_timeout_s: float,
        resume_ttl_s: float = RESUME_TTL_S,
    ) -> None:
        self.state = State.STARTING
        self.stop_asked = asyncio.Event()
        self.configured = asyncio.Event()
        """The first configuration is there."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change that the controller should hear of."""
        self.address = ""
        self.metrics_address = ""
        self.engine: Engine | None = None
        self._handler = handler
        self._make_engine = make_engine
        self._graceful_timeout_s = graceful_timeout_s
        self._resume_ttl_s = resume_ttl_s
        self._configuration = Configuration(user_config={})
        self._description: HandlerDescription | None = None
        self._error = ""

    # -- a member of the mesh --------------------------------------------------------------------------------------

    def report(self) -> Report:
        scheduler = self.engine.scheduler if self.engine is not None else None
        return Report(
            state=self.state,
            address=self.address if self.state in {State.READY, State.DRAINING} else "",
            max_ongoing=scheduler.max_ongoing if scheduler is not None else 0,
            ongoing=scheduler.in_use if scheduler is not None else 0,
            error=self._error,
            metrics_address=self.metrics_address,
        )

    def configure(self, configuration: Configuration) -> None:
        before, self._configuration = self._configuration, configuration
        self.configured.set()
        if self.engine is None:
            return
        max_ongoing, prefetch = self._limits()
        if (max_ongoing, prefetch) != (self.engine.scheduler.max_ongoing, self.engine.scheduler.prefetch):
            _log.info("configured", max_ongoing=max_ongoing, prefetch=prefetch)
            self.engine.configure(max_ongoing=max_ongoing, prefetch=prefetch)
            self.on_change()
        if configuration.user_config != before.user_config:
            _log.warning("user_config has changed: it reaches replicas that start from now on, not this one")

    def drain(self, message: str) -> None:
        _log.info("told to stop", reason=message)
        self.stop_asked.set()

    def revoke(self, endpoint: str, epochs: dict[int, int]) -> AsyncGenerator[dict[int, int], None]:
        return self.engine.revoke(endpoint, epochs) if self.engine is not None else _at_once(epochs)

    def fence(self, epoch: int) -> dict[str, set[int]]:
        return self.engine.fence(epoch) if self.engine is not None else {}

    # -- its life --------------------------------------------------------------------------------------------------

    async def start(self) -> bool:
        """Constructs the handler, and is ready; False where the replica was told to stop meanwhile.

        Raises:
            CannotStart: the handler cannot be imported or constructed; its traceback was logged.
        """
        constructing = _in_thread(lambda: self._construct(self._configuration.user_config))
        if not await self._unless_stopped(constructing):
            return False
        methods = constructing.result()
        if isinstance(methods, CannotStart):
            self._failed(str(methods))
            raise methods
        if isinstance(methods, BaseException):
            self._failed("".join(traceback.format_exception(methods)))
            _log.error("handler cannot start", handler=self._handler, exc_info=methods)
            words = f"{type(methods).__name__}: {methods}"
            raise CannotStart(f"handler {self._handler} cannot start: {words}") from methods
        max_ongoing, prefetch = self._limits()
        self.engine = self._make_engine(methods, max_ongoing, prefetch)
        self._move(Event.CONSTRUCTED)
        _log.info("ready", handler=self._handler, address=self.address, max_ongoing=max_ongoing, prefetch=prefetch)
        return True

    async def wait_configured(self) -> bool:
        """Waits for the first configuration; False where the replica was told to stop meanwhile."""
        return await self._unless_stopped(asyncio.ensure_future(self.configured.wait()))

    async def finish(self) -> bool:
        """Drains. False where calls still ran when the grace was over.

        What is kept of sessions goes with this process: it stays, within the grace, until clients have it.
        """
        if self.engine is None:
            return True
        self._move(Event.STOP_ASKED)
        self.engine.drain()
        grace_s = self._configuration.graceful_timeout_s
        grace_s = self._graceful_timeout_s if grace_s is None else grace_s
        scheduler = self.engine.scheduler
        _log.info("draining", running=scheduler.in_use, grace_s=grace_s)
        now = asyncio.get_running_loop().time
        ends = now() + grace_s
        try:
            async with asyncio.timeout_at(ends):
                await self.engine.idle()
        except TimeoutError:
            _log.error("calls still run at the end of the grace; they are lost", running=scheduler.in_use)
            return False
        await self._stay(self.engine, min(ends, now() + self._resume_ttl_s))
        return True

    async def _stay(self, engine: Engine, ends: float) -> None:
        """Until clients have all outcomes, for as long as there are routers to bring them."""
        acknowledged = asyncio.ensure_future(engine.acknowledged())
        deserted = asyncio.ensure_future(engine.deserted(ROUTER_RETURN_S))
        try:
            async with asyncio.timeout_at(ends):
                await asyncio.wait((acknowledged, deserted), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            acknowledged.cancel()
            deserted.cancel()
            await asyncio.gather(acknowledged, deserted, return_exceptions=True)
        if runs := engine.sessions.unacknowledged:
            _log.warning("clients have not acknowledged all results", runs=runs)

    def stopped(self) -> None:
        """Nothing runs any more, and nothing is left to be said to routers."""
        self._move(Event.EMPTIED if self.state is State.DRAINING else Event.STOP_ASKED)

    def _construct(self, user_config: dict[str, Any]) -> dict[str, Method]:
        try:
            handler = load_handler(self._handler)
            self._description = describe(handler)
            return bind_methods(construct(handler, user_config), self._description)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Handed on as they are, these would end the event loop before anybody heard why.
            raise RuntimeError(f"the handler tried to end the process: {error!r}") from error

    def _limits(self) -> tuple[int, int]:
        described, told = self._description, self._configuration
        if described is None:
            raise RuntimeError("the handler has not been read yet")
        return (
            described.max_ongoing if told.max_ongoing is None else told.max_ongoing,
            described.prefetch if told.prefetch is None else told.prefetch,
        )

    async def _unless_stopped(self, task: asyncio.Future[Any]) -> bool:
        stop = asyncio.ensure_future(self.stop_asked.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
        return task.done() and not task.cancelled()

    def _failed(self, error: str) -> None:
        self._error = error
        self._move(Event.CONSTRUCTION_FAILED)

    def _move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        self.on_change()


async def _at_once(epochs: dict[int, int]) -> AsyncGenerator[dict[int, int], None]:
    """Nothing has come yet, so nothing is left."""
    yield epochs


def _in_thread(work: Callable[[], ResultT]) -> asyncio.Future[ResultT | BaseException]:
    """Runs it beside the loop, in a thread that does not keep the process: users' constructors may take for ever.

    What it raises is the result: a future would not take every exception.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT | BaseException] = loop.create_future()

    def settle(outcome: ResultT | BaseException) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        outcome: ResultT | BaseException
        try:
            outcome = work()
        except BaseException as error:  # noqa: BLE001 - handed on to whoever awaits the future
            outcome = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants to know
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="constructor", daemon=True).start()
    return future
