"""How a replica ends: the drain, the fence that ends it without acknowledgements, and the absence of the controller.

`Drain`: no new calls, unstarted calls are handed back, running ones end, clients get their results. It ends within a
bounded time after the grace, regardless of the handler. Kept outcomes of sessions are lost with this process, so it
stays, within the grace, until clients have them. The replica drains once.
`Fencing` carries out the decisions of `core.lifecycle.Fence`. The end of the process does not depend on its own code: a
kernel timer ends it by SIGALRM, even if a handler blocks the event loop. A process that was stopped (SIGSTOP, a frozen
container) when the timer fired is ended when it continues, before its own code runs. The timer is armed before the
controller can learn that the replica is ready, and only an acknowledgement moves it. It is set by the clock that the
lease is measured with, and set again if the process was suspended between reading that clock and setting the timer.
`ControllerAbsence` logs and drains.
Owner: the app (fencing), the controller link (absence) and the replica (drain), on the event loop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from replica_service.core.lifecycle import Fence
from replica_service.shell.engine import Engine
from replica_service.shell.handler.hooks import Upkeep
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock
from slotmesh.units import format_duration

SLACK_S: Final = 0.1
"""How late the timer may end the process: the bound on the time to set it."""
_SOONEST_S: Final = 1e-6
"""0 would disarm the timer."""
REMIND_S: Final = 60.0
"""Interval of the warning while no controller is connected."""

_log = get_logger(__name__)


class EndTimer(Protocol):
    """Ends this process at a set time, independently of its code."""

    def set(self, ends_at: float) -> None:
        """Sets the time, on the clock, and replaces the previous one."""

    @property
    def is_overridden(self) -> bool:
        """Whether other code handles the timer's signal, so that it would not end the process."""


class KernelTimer:
    """The interval timer of the process, whose signal ends it by default."""

    def __init__(
        self,
        clock: Clock,
        arm: Callable[[float], object] = lambda delay_s: signal.setitimer(signal.ITIMER_REAL, delay_s),
    ) -> None:
        self._now = clock.now
        self._arm = arm

    def prepare(self) -> None:
        """Makes sure that the signal ends the process. Call it in the main thread."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def set(self, ends_at: float) -> None:
        while True:
            began = self._now()
            self._arm(max(_SOONEST_S, ends_at - began))
            # If the process was suspended in between, the delay was too long: set it again.
            if self._now() - began < SLACK_S:
                return

    @property
    def is_overridden(self) -> bool:
        return signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL


class Fencing:
    """Follows the lease of this replica."""

    def __init__(self, fence: Fence, clock: Clock, timer: EndTimer, drain: Callable[[str], None]) -> None:
        """`drain` is called once, with the reason, when the fence closes."""
        self._fence = fence
        self._now = clock.now
        self._timer = timer
        self._drain = drain
        self._look_at: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def bound_s(self) -> float:
        """The process ends within this time after the newest acknowledged report was sent."""
        return self._fence.settings.bound_s

    @property
    def left_s(self) -> float:
        """How long calls may start without another acknowledgement, seconds; 0 if none may."""
        return 0.0 if self._is_over else max(0.0, self._fence.closes_at - self._now())

    def begin(self) -> None:
        """Starts the lease. To be called before the replica reports that it is ready."""
        self._fence.begin(self._now())
        self._timer.set(self._fence.ends_at)
        self._look()

    def stamp(self) -> int:
        """Returns the stamp of a report that is sent now: nanoseconds of the clock."""
        self._is_still_open()
        return round(self._now() * 1e9)

    def acknowledged(self, stamp: int) -> None:
        """Prolongs the lease: the controller has read the report with this stamp."""
        if not self._is_still_open():
            return
        if self._timer.is_overridden:
            self._close("code of the handler handles SIGALRM, by which the fence ends the process")
            return
        if self._fence.acknowledged(stamp / 1e9, self._now()):
            self._timer.set(self._fence.ends_at)

    def close(self) -> None:
        """Stops following the lease, because the replica ends. The timer stays, and ends a process that does not."""
        self._is_over = True
        if self._look_at is not None:
            self._look_at.cancel()

    def _look(self) -> None:
        if self._is_still_open():
            delay_s = self._fence.closes_at - self._now()
            self._look_at = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._look)

    def _is_still_open(self) -> bool:
        if not self._is_over and self._fence.is_closed(self._now()):
            after = format_duration(timedelta(seconds=self._fence.settings.after_s))
            self._close(f"the controller has acknowledged no report for {after} (--fence-after)")
        return not self._is_over

    def _close(self, why: str) -> None:
        self.close()
        _log.error("fenced: no further call starts", reason=why, ends_within_s=self._fence.settings.grace_s)
        self._drain(f"fenced: {why}")


class ControllerAbsence:
    """The time without a controller: from the first failure to reach one to the next frame of one that leads.

    The first failure is logged immediately as a warning, and again every minute, independently of the number of
    attempts. With a timeout, the replica drains after that time without such a frame.
    """

    def __init__(
        self, addresses: Callable[[], str], timeout_s: float | None, on_timeout: Callable[[str], None]
    ) -> None:
        """`addresses`: those of the controllers, for the log. `timeout_s` None: the replica waits without limit.

        `on_timeout` is called once, with the reason, when the timeout has passed.
        """
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._reason = ""
        self._has_configuration = False
        self._ending: asyncio.TimerHandle | None = None
        self._reminder: asyncio.TimerHandle | None = None

    def begin(self, reason: str) -> None:
        """Notes that no controller can be reached, or that it ended the stream. May be called repeatedly."""
        self._reason = reason
        if self._reminder is not None:
            return
        if self._timeout_s is not None:
            self._ending = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, self._timeout_s)
        self._remind()

    def end(self, *, is_attached: bool = False) -> None:
        """Ends the absence: the replica is attached, or ends. May be called repeatedly."""
        self._has_configuration = self._has_configuration or is_attached
        for timer in (self._ending, self._reminder):
            if timer is not None:
                timer.cancel()
        self._ending = self._reminder = None

    def _remind(self) -> None:
        loop = asyncio.get_running_loop()
        self._reminder = loop.call_later(REMIND_S, self._remind)
        left: dict[str, str] = {}
        if self._ending is not None:
            left["drains_in"] = _in_words(round(self._ending.when() - loop.time(), 1))
        _log.warning(
            "no controller: this replica continues with its last configuration, and tries again"
            if self._has_configuration
            else "no controller: this replica has no configuration yet and serves no call, and tries again",
            controller=self._addresses(),
            reason=self._reason,
            **left,
        )

    def _give_up(self, timeout_s: float) -> None:
        self.end()
        _log.warning("no controller for too long: draining", controller=self._addresses(), orphan_timeout_s=timeout_s)
        self._on_timeout(f"no controller for {_in_words(timeout_s)} (--orphan-timeout)")


def _in_words(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


ROUTER_RETURN_S = 3.0
"""How long a draining replica without routers waits for one: the time that a restarted router may need."""
RESUME_S = 1.0
"""How long a draining replica stays to be queried by clients whose router was lost."""
CANCEL_S = 1.0
"""How long calls that were cancelled at the end of the grace have to end."""


class Drain:
    """One drain. Its construction, on the engine's loop, begins the grace."""

    def __init__(self, engine: Engine, upkeep: Upkeep, grace_s: float, resume_ttl_s: float) -> None:
        self._engine = engine
        self._upkeep = upkeep
        self._grace_s = grace_s
        self._resume_ttl_s = resume_ttl_s
        self._now = asyncio.get_running_loop().time
        self._ends = self._now() + grace_s
        """When the grace is over."""

    async def run(self) -> bool:
        """Drains. Returns False if calls still run despite their cancellation, or slots are still granted."""
        engine, ends = self._engine, self._ends
        engine.drain()
        _log.info("draining", running=engine.scheduler.in_use, grace_s=self._grace_s)
        hook = asyncio.create_task(self._call_hook(), name="on_drain")
        try:
            async with asyncio.timeout_at(ends):
                await engine.idle()
        except TimeoutError:
            _log.warning("calls still run at the end of the grace; they are cancelled", running=engine.scheduler.in_use)
            return await self._cut_off()
        else:
            await self._stay(min(ends, self._now() + self._resume_ttl_s))
            return True
        finally:
            # Bounded, so that no handler keeps the process alive.
            await asyncio.wait((hook,), timeout=max(0.0, ends - self._now()) + CANCEL_S)

    async def _call_hook(self) -> None:
        """Calls the handler's `on_drain`, which may take until the end of the grace."""
        try:
            async with asyncio.timeout_at(self._ends):
                await self._upkeep.drain()
        except TimeoutError:
            _log.warning("on_drain has not ended at the end of the grace")

    async def _cut_off(self) -> bool:
        """Cancels running calls. Returns False if some still run, or slots are still granted."""
        engine = self._engine
        engine.cut_off()
        try:
            async with asyncio.timeout(CANCEL_S):
                await engine.quiet()
        except TimeoutError:
            _log.error("calls run on although they were cancelled; they are lost", running=engine.scheduler.in_use)
            engine.give_up()
        return engine.scheduler.is_idle

    async def _stay(self, ends: float) -> None:
        """Waits until clients have all outcomes, while there are routers that can deliver them."""
        engine = self._engine
        acknowledged = asyncio.ensure_future(engine.acknowledged(RESUME_S))
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
