"""Handlers with methods that the replica calls by itself: what happens in them, a test decides."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import slotmesh


@slotmesh.deployment(max_ongoing=8, health_check_period_s=0.02, health_check_timeout_s=0.05)
class Kept:
    """`async def` ones. Its calls are `async def`, too."""

    def __init__(self, name: str = "nobody") -> None:
        self.config: dict[str, Any] = {"name": name}
        self.configs: list[dict[str, Any]] = []
        """What `reconfigure` was called with."""
        self.problem: BaseException | None = None
        """What the next calls of the hooks raise."""
        self.verdict: bool | None = None
        """What `check_health` returns, once `verdicts` is empty."""
        self.verdicts: list[bool] = []
        """What the next calls of `check_health` return."""
        self.hangs = False
        self.released = asyncio.Event()
        self.checks = self.checking = self.most_checking = self.drains = 0
        self.loops: set[asyncio.AbstractEventLoop] = set()
        """Where it was called."""
        self.gate = asyncio.Event()
        self.waiting = 0

    async def greet(self) -> str:
        self.loops.add(asyncio.get_running_loop())
        return f"hello, {self.config['name']}"

    async def wait(self) -> str:
        self.waiting += 1
        await self.gate.wait()
        return "waited"

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.configs.append(user_config)
        if self.hangs:
            await self.released.wait()
        if self.problem is not None:
            raise self.problem
        self.config = user_config

    async def check_health(self) -> bool | None:
        self.loops.add(asyncio.get_running_loop())
        self.checks += 1
        self.checking += 1
        self.most_checking = max(self.most_checking, self.checking)
        try:
            while self.hangs:
                try:
                    await self.released.wait()
                    break
                except asyncio.CancelledError:
                    continue  # it does not want to
            if self.problem is not None:
                raise self.problem
            return self.verdicts.pop(0) if self.verdicts else self.verdict
        finally:
            self.checking -= 1

    async def on_drain(self) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.drains += 1
        if self.hangs:
            await self.released.wait()
        if self.problem is not None:
            raise self.problem

    def _secret(self) -> str:
        return "not for you"


@slotmesh.deployment(max_ongoing=1, health_check_period_s=0.02, health_check_timeout_s=0.05)
class KeptInThreads:
    """The same, `def`. Its one permit may be taken by a call."""

    def __init__(self, name: str = "nobody") -> None:
        self.config: dict[str, Any] = {"name": name}
        self.configs: list[dict[str, Any]] = []
        self.problem: BaseException | None = None
        self.verdict: bool | None = None
        self.verdicts: list[bool] = []
        self.hangs = False
        self.released = threading.Event()
        self.checks = self.checking = self.most_checking = self.drains = 0
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.waiting = 0

    def greet(self) -> str:
        return f"hello, {self.config['name']}"

    def wait(self) -> str:
        self.waiting += 1
        self.gate.wait(20)
        return "waited"

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._enter()
        self.configs.append(user_config)
        if self.problem is not None:
            raise self.problem
        self.config = user_config

    def check_health(self) -> bool | None:
        self.checks += 1
        self.checking += 1
        self.most_checking = max(self.most_checking, self.checking)
        try:
            self._enter()
            if self.problem is not None:
                raise self.problem
            return self.verdicts.pop(0) if self.verdicts else self.verdict
        finally:
            self.checking -= 1

    def on_drain(self) -> None:
        self.drains += 1
        self._enter()
        if self.problem is not None:
            raise self.problem

    def _enter(self) -> None:
        self.threads.add(threading.current_thread().name)
        if self.hangs:
            self.released.wait(20)


class Plain:
    """With none of them."""

    def __init__(self, name: str = "nobody") -> None:
        self.name = name

    async def greet(self) -> str:
        return f"hello, {self.name}"


class Misshapen:
    """One of them is no method."""

    check_health = True

    async def greet(self) -> str:
        return "hello"
