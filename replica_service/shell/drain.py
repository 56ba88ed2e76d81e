"""The drain of a replica: no new calls, unstarted calls are handed back, running ones end, clients get their results.

Invariants: the drain ends within a bounded time after the grace, regardless of the handler. Kept outcomes of sessions
are lost with this process, so it stays, within the grace, until clients have them.
Owner: the replica, which drains once.
"""

from __future__ import annotations

import asyncio

from replica_service.shell.engine import Engine
from replica_service.shell.handler.upkeep import Upkeep
from slotmesh.logs import get_logger

ROUTER_RETURN_S = 3.0
"""How long a draining replica without routers waits for one: the time that a restarted router may need."""
CANCEL_S = 1.0
"""How long calls that were cancelled at the end of the grace have to end."""

_log = get_logger(__name__)


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
