"""One replica's life: configuration, handler, drain.

Purpose: follows the state table of `core/lifecycle.py` and reports each change to the controller.
Invariants: the handler is constructed once, in a thread, so that it does not block the service's event loop. Routers
get streams only while the replica is ready. STOPPED is reported after the last outcome was written, or after the grace.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from replica_service.convert.reports import MAX_END_REASON_CHARS, clipped
from replica_service.core.events import PartitionEpochs
from replica_service.core.handler_health import HealthSettings
from replica_service.core.lifecycle import LifecycleEvent, State, next_state
from replica_service.core.session_table import RESUME_TTL_S
from replica_service.shell.engine import Engine
from replica_service.shell.handler.binding import bind_methods
from replica_service.shell.handler.handler_loop import HandlerLoop, OwnLoop, SharedLoop
from replica_service.shell.handler.hooks import KEYS_HOOK_TIMEOUT_S, Hook, Hooks, KeyHooks, Upkeep
from replica_service.shell.handler.loading import (
    Handler,
    LoadHandler,
    asks_for_contexts,
    construct,
    load_handler,
    users_traceback,
)
from replica_service.shell.handler.loop_watch import BlockReports, LoopWatch
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.handler.models import HandlerModels
from replica_service.shell.stopping import Drain
from slotmesh.client.handler_mesh import OwnMesh
from slotmesh.handlers import HandlerDescription, describe
from slotmesh.handlers.context import asking
from slotmesh.handlers.replica_context import OwnReplica
from slotmesh.handlers.reporting import HandlerState
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.logs import get_logger
from slotmesh.names import sendable_text
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.runtime.clock import Clock, MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.signals import StopRequest
from slotmesh.runtime.tasks import Supervisor
from slotmesh.spec.model import Backend
from slotmesh.user_code import described

MakeEngine = Callable[[dict[str, HandlerMethod], int, int, HandlerLoop], Engine]
"""Arguments: methods, `max_ongoing`, `prefetch`, and the loop that `async def` methods run on."""

REPLACED_WITHIN_S = 30.0
"""How long the controller has to replace an unhealthy replica before the replica drains by itself."""
UNHEALTHY = "its health checks failed"
UNCONSTRUCTED = "its handler could not be constructed"
_log = get_logger(__name__)


class HostedReplica:
    """Hosts one copy of a handler."""

    def __init__(
        self,
        handler: str,
        make_engine: MakeEngine,
        *,
        graceful_timeout_s: float,
        resume_ttl_s: float = RESUME_TTL_S,
        keys_hook_timeout_s: float = KEYS_HOOK_TIMEOUT_S,
        load: LoadHandler = load_handler,
        clock: Clock | None = None,
        dialer: Dialer = PLAIN_TEXT,
        logs_texts: bool = False,
        own: OwnReplica | None = None,
    ) -> None:
        """`load` returns the class or function that `handler` names. `logs_texts`: see `OwnLoop`."""
        self.own = own or OwnReplica()
        """What the handler sees of this replica."""
        self.state = State.STARTING
        self.stop_asked = StopRequest()
        self.configured = asyncio.Event()
        """Set when the first configuration has arrived."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change that is to be reported to the controller."""
        self.on_sick: Callable[[], None] = lambda: None
        """Called once, when the handler becomes unhealthy."""
        self.has_controller = False
        """Whether a controller may replace the replica."""
        self.address = ""
        self.metrics_address = ""
        self.engine: Engine | None = None
        self.handler: Any = None
        """The constructed object, or the function; None before."""
        self.own_mesh = OwnMesh(dialer)
        """The mesh's client for code of the handler."""
        self.handler_state = HandlerState()
        """What the handler reports of itself."""
        self.models: HandlerModels | None = None
        """What the handler has loaded; None before it is constructed."""
        self._handler = handler
        self._load = load
        self._logs_texts = logs_texts
        self._make_engine = make_engine
        self._graceful_timeout_s = graceful_timeout_s
        self._most_grace_s = inf
        self._resume_ttl_s = resume_ttl_s
        self._keys_hook_timeout_s = keys_hook_timeout_s
        self._key_hooks: KeyHooks | None = None
        self._backend = Backend(name="")
        """The backend's settings from the controller; defaults until they arrive."""
        self._description: HandlerDescription | None = None
        self._error = ""
        self._clock = clock or MonotonicClock()
        self._handler_loop: HandlerLoop = SharedLoop()
        self._upkeep: Upkeep | None = None
        self._blocks: BlockReports | None = None
        self._loop_watch: LoopWatch | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    # -- a member of the mesh --------------------------------------------------------------------------------------

    def report(self) -> wire.ReplicaReport:
        """Returns the replica's state and load."""
        upkeep, engine = self._upkeep, self.engine
        report = wire.ReplicaReport(
            state=self.state.value,  # type: ignore[arg-type]  # the enums share their numbers
            address=self.address if self.state in {State.READY, State.DRAINING} else "",
            error=clipped(self._error or (upkeep.problem if upkeep is not None else "")),
            metrics_address=self.metrics_address,
            unhealthy=self.is_sick,
            reconfigures=upkeep is not None and upkeep.reconfigures,
            warning=clipped(self._blocks.warning if self._blocks is not None else ""),
            end_reason=sendable_text(self._end_reason, MAX_END_REASON_CHARS),
        )
        if engine is None:
            return report
        scheduler, counters = engine.scheduler, engine.counters
        report.max_ongoing = scheduler.max_ongoing
        report.ended_calls, report.failed_calls = counters.ended_calls, counters.failed_calls
        load, totals = report.load, report.load.totals
        load.ongoing, load.slots = scheduler.in_use, scheduler.slots.reserved
        load.waiting = scheduler.waiting + scheduler.keyed
        load.sample_time.FromMicroseconds(round(self._clock.time_of_day() * 1e6))
        totals.calls, totals.failed = counters.calls, sum(counters.failures.values())
        totals.batches, totals.batched_calls = counters.batches, counters.batched_calls
        totals.times.extend(scheduler.call_times.runs.counts)
        totals.SetInParent()  # present even if all are 0
        if self.models is not None and self.models.is_multiplexed:
            report.models.CopyFrom(self.models.to_wire())
        return report

    @property
    def is_sick(self) -> bool:
        """Whether the handler is unhealthy, so that the replica should be replaced."""
        return self._upkeep is not None and self._upkeep.is_sick

    @property
    def _end_reason(self) -> str:
        """Why the replica ends, as text for operators; empty while it does not."""
        if self.state is not State.FAILED:
            return self.stop_asked.reason
        return ": ".join((UNCONSTRUCTED, *self._error.strip().splitlines()[-1:]))

    @property
    def newest_epoch(self) -> int:
        return self.engine.scheduler.newest_epoch if self.engine is not None else 0

    def configure(self, backend: Backend) -> None:
        before, self._backend = self._backend, backend
        self.configured.set()
        if self.engine is None or self._upkeep is None:
            return
        self._upkeep.configure(self._health())
        max_ongoing, prefetch = self._limits()
        if (max_ongoing, prefetch) != (self.engine.scheduler.max_ongoing, self.engine.scheduler.prefetch):
            _log.info("configured", max_ongoing=max_ongoing, prefetch=prefetch)
            self.engine.configure(max_ongoing=max_ongoing, prefetch=prefetch)
            self.on_change()
        if backend.user_config != before.user_config:
            self._reconfigure(self._upkeep)

    def follow_rank(self, rank: int | None, num_replicas: int | None) -> None:
        """The controller has assigned the rank, and announced the number of replicas; None: it has not."""
        self.own.current = replace(self.own.current, rank=rank, num_replicas=num_replicas)

    def follow_routers(self, addresses: Sequence[str]) -> None:
        self.own_mesh.follow(addresses)

    def drain(self, message: str) -> None:
        _log.info("stop requested", reason=message)
        self.stop_asked.ask(message)

    def drain_within(self, grace_s: float, message: str) -> None:
        """Drains with at most this grace."""
        self._most_grace_s = grace_s
        self.drain(message)

    def revoke(self, epochs: PartitionEpochs) -> AsyncGenerator[PartitionEpochs, None]:
        return self.engine.revoke(epochs) if self.engine is not None else _emptied(epochs)

    def fence(self, epoch: int) -> dict[str, set[int]]:
        return self.engine.fence(epoch) if self.engine is not None else {}

    # -- its life --------------------------------------------------------------------------------------------------

    async def start(self) -> bool:
        """Constructs the handler and becomes ready. Returns False if a stop was requested meanwhile.

        Raises:
            CannotStart: the handler cannot be imported or constructed; its traceback was reported or logged.
        """
        user_config = dict(self._backend.user_config)
        self.own.current = replace(self.own.current, version=self._backend.version)
        constructing = asyncio.ensure_future(self._construct(user_config))
        if not await self._unless_stopped(constructing):
            return False
        error = constructing.exception()
        if isinstance(error, CannotStart):
            self._failed(str(error))
            raise error
        if error is not None:
            self._failed(users_traceback(error))
            # With a controller, its report already shows the traceback to operators.
            log = _log.info if self.has_controller else _log.error
            log("handler cannot start", handler=self._handler, exc_info=error)
            raise CannotStart(f"handler {self._handler} cannot start: {described(error)}") from error
        constructed = constructing.result()
        self.handler, self.models = constructed.handler, constructed.models
        max_ongoing, prefetch = self._limits()
        self._upkeep = Upkeep(
            constructed.hooks,
            user_config,
            self._health(),
            self._clock,
            on_change=self.on_change,
            on_sick=self._got_sick,
        )
        self.engine = self._make_engine(constructed.methods, max_ongoing, prefetch, self._handler_loop)
        if constructed.hooks.has(Hook.ON_KEYS_GAINED) or constructed.hooks.has(Hook.ON_KEYS_LOST):
            self._key_hooks = KeyHooks(constructed.hooks, self._keys_hook_timeout_s, self.engine.post)
            self.engine.tell_keys = self._key_hooks.take
            self.engine.scheduler.hold_keys()
        if self._backend.user_config != user_config:
            self._reconfigure(self._upkeep)
        self._watch(self.engine)
        self._move(LifecycleEvent.CONSTRUCTED)
        _log.info("ready", handler=self._handler, address=self.address, max_ongoing=max_ongoing, prefetch=prefetch)
        return True

    async def wait_configured(self) -> bool:
        """Waits for the first configuration. Returns False if a stop was requested meanwhile."""
        return await self._unless_stopped(asyncio.ensure_future(self.configured.wait()))

    def look_after(self, tasks: Supervisor) -> None:
        """Starts the tasks that check the handler and reconfigure it."""
        if self._upkeep is not None:
            self._upkeep.start(tasks)

    async def finish(self) -> bool:
        """Drains. Returns False if calls in threads, which cannot be cancelled, still ran after the grace."""
        if self.engine is None or self._upkeep is None:
            return True
        self._move(LifecycleEvent.STOP_ASKED)
        if self._giving_up is not None:
            self._giving_up.cancel()
        grace_s = self._backend.graceful_timeout_s if self.configured.is_set() else self._graceful_timeout_s
        return await Drain(self.engine, self._upkeep, min(grace_s, self._most_grace_s), self._resume_ttl_s).run()

    def stopped(self) -> None:
        """Reports STOPPED: no call runs any more, and all outcomes are written."""
        self._move(LifecycleEvent.EMPTIED if self.state is State.DRAINING else LifecycleEvent.STOP_ASKED)

    def _watch(self, engine: Engine) -> None:
        """Starts to watch the handler's loop, unless its decorator disables that."""
        after_s = self._description.blocked_after_s if self._description is not None else 0.0
        if after_s:
            handler_loop = self._handler_loop
            self._blocks = BlockReports(engine.counters, self._clock.now, own_loop=handler_loop.is_own)
            self._loop_watch = LoopWatch(handler_loop, engine.methods.values(), self._blocks, after_s)

    async def close(self) -> None:
        """Ends the handler's own loop and its tasks. To be called last."""
        if self._key_hooks is not None:
            self._key_hooks.close()
        if self._loop_watch is not None:
            self._loop_watch.close()
        if self.models is not None:
            await self.models.close(self._handler_loop)
        await self.own_mesh.end(self._handler_loop.run)
        await self._handler_loop.close()

    def _reconfigure(self, upkeep: Upkeep) -> None:
        if not upkeep.reconfigures:
            _log.warning("user_config has changed, and the handler has no reconfigure: only new replicas apply it")
        upkeep.reconfigure(dict(self._backend.user_config))

    def _got_sick(self) -> None:
        """Drains, with a controller only after it has had `REPLACED_WITHIN_S` to start another replica."""
        self.on_sick()
        if not self.has_controller:
            self.stop_asked.ask(UNHEALTHY)
        else:
            self._giving_up = asyncio.get_running_loop().call_later(REPLACED_WITHIN_S, self.stop_asked.ask, UNHEALTHY)

    async def _construct(self, user_config: dict[str, Any]) -> _Constructed:
        def read() -> tuple[Handler, HandlerDescription]:
            handler = self._load(self._handler)
            asking.is_known = asking.is_known or asks_for_contexts()
            return handler, describe(handler)

        def make() -> _Constructed:
            constructed = construct(handler, user_config)
            hooks = Hooks(constructed, self._handler_loop)
            models = HandlerModels(constructed, self.handler_state)
            return _Constructed(constructed, bind_methods(constructed, description), hooks, models)

        handler, description = await self._handler_loop.construct(read)
        self._description = description
        if self._setting("own_loop"):
            self._handler_loop = OwnLoop(logs_texts=self._logs_texts)
        self.own_mesh.loop = self._handler_loop.loop
        return await self._handler_loop.construct(make)

    def _setting(self, name: str) -> Any:
        """Returns a setting of the backend; where it has none, that of the handler's decorator."""
        if self._description is None:
            raise RuntimeError("the handler has not been read yet")
        configured = getattr(self._backend, name)
        return getattr(self._description, name) if configured is None else configured

    def _limits(self) -> tuple[int, int]:
        return self._setting("max_ongoing"), self._setting("prefetch")

    def _health(self) -> HealthSettings:
        return HealthSettings(
            period_s=self._setting("health_check_period_s"), timeout_s=self._setting("health_check_timeout_s")
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
        self._move(LifecycleEvent.CONSTRUCTION_FAILED)

    def _move(self, event: LifecycleEvent) -> None:
        self.state = next_state(self.state, event)
        self.on_change()


class _Constructed(NamedTuple):
    """A handler that is ready to be called."""

    handler: Any
    methods: dict[str, HandlerMethod]
    hooks: Hooks
    models: HandlerModels


async def _emptied(epochs: PartitionEpochs) -> AsyncGenerator[PartitionEpochs, None]:
    """Yields all partitions as empty: before the engine exists, there are no calls."""
    yield epochs
