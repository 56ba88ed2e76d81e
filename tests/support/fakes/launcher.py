"""A launcher without processes: replicas end when a test says so.

Held to the same contract tests as the real ones: tests/contract/controller/test_launchers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from controller_service.core.devices import DeviceLedger, Pools
from controller_service.shell.launchers.protocol import (
    Exit,
    Instance,
    LaunchDeferred,
    Launcher,
    LaunchFailed,
    LaunchOrder,
    OnExit,
    Stranger,
)
from slotmesh.spec.devices import read_devices, written


class FakeLauncher(Launcher):
    """Replicas end as soon as they are asked to, unless they are `stubborn`."""

    launches = True

    def __init__(
        self,
        on_exit: OnExit,
        *,
        on_start: Callable[[Instance], None] | None = None,
        found: Sequence[Instance] = (),
        mint_id: Callable[[str], str] | None = None,
    ) -> None:
        """`found` were started by an earlier life of the controller, and run."""
        self._mint_id = mint_id
        self.running: dict[str, Instance] = {it.replica_id: it for it in found}
        self.started: list[Instance] = []
        self.stopped: list[str] = []
        """Ids, in the order in which they were asked to end."""
        self.killed: list[str] = []
        self.stubborn: set[str] = set()
        """Ids of replicas that end only when they are killed."""
        self.unkillable: set[str] = set()
        """Ids of replicas whose process is not reaped even then, until a test says so."""
        self.refusal = ""
        """Why nothing can be started; empty where it can."""
        self.deferral = ""
        """Why nothing can be started now; empty where it can."""
        self.is_left = False
        self.foreign: list[Stranger] = []
        """What `strangers` returns."""
        self.is_disowned = False
        self.pools: Pools | None = None
        """Devices that it hands out; None: it hands out none."""
        self._on_exit = on_exit
        self._on_start = on_start
        self._killing: dict[str, asyncio.TimerHandle] = {}
        self._emptied = asyncio.Event()

    async def start(self, order: LaunchOrder, count: int) -> None:
        present = [it for it in self.running.values() if it.order == order and it.replica_id not in self._killing]
        for _ in range(count - len(present)):
            if self.refusal:
                raise LaunchFailed(self.refusal)
            if self.deferral:
                raise LaunchDeferred(self.deferral)
            if (ledger := self.devices()) is not None and order.wanted_devices:
                if (chosen := ledger.choose(order.wanted_devices)) is None:
                    raise LaunchDeferred(ledger.lack(order.wanted_devices))
                order = replace(order, devices=written(chosen))
            number = len(self.started) + 1
            replica_id = self._mint_id(order.backend) if self._mint_id else f"{order.backend}-{number}"
            instance = Instance(replica_id=replica_id, order=order, pid=10_000 + number)
            self.running[instance.replica_id] = instance
            self.started.append(instance)
            if self._on_start is not None:
                asyncio.get_running_loop().call_soon(self._on_start, instance)

    async def prepare(self, order: LaunchOrder) -> None:
        if self.refusal:
            raise LaunchFailed(self.refusal)
        if self.deferral:
            raise LaunchDeferred(self.deferral)

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        if replica_id not in self.running or replica_id in self._killing:
            return
        self.stopped.append(replica_id)
        loop = asyncio.get_running_loop()
        how = "was killed by SIGKILL" if replica_id in self.stubborn else "exited with status 0"
        self._killing[replica_id] = loop.call_later(
            grace_s if replica_id in self.stubborn else 0.0, self.exit, replica_id, how
        )

    def kill(self, replica_id: str) -> None:
        if replica_id not in self.running:
            return
        self.killed.append(replica_id)
        if timer := self._killing.pop(replica_id, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        delay_s = 3600.0 if replica_id in self.unkillable else 0.0
        self._killing[replica_id] = loop.call_later(delay_s, self.exit, replica_id)

    def devices(self) -> DeviceLedger | None:
        if self.pools is None:
            return None
        held = {name: read_devices(it.order.devices) for name, it in self.running.items()}
        return DeviceLedger(pools=self.pools, holders=held)

    def observe(self) -> Sequence[Instance]:
        return [*self.running.values()]

    def strangers(self) -> Sequence[Stranger]:
        return [] if self.is_disowned else self.foreign

    def disown(self) -> None:
        self.is_disowned = True

    async def leave(self) -> None:
        self.is_left = True

    async def close(self) -> None:
        for replica_id in [*self.running]:
            self.stop(replica_id, grace_s=0.1)
        while self.running:
            self._emptied.clear()
            await self._emptied.wait()

    def exit(self, replica_id: str, how: str = "was killed by SIGKILL", last_output: str = "") -> None:
        """The replica's process ends, now."""
        if self.running.pop(replica_id, None) is None:
            return
        if timer := self._killing.pop(replica_id, None):
            timer.cancel()
        exit_ = Exit(
            replica_id=replica_id,
            how=how,
            failed=how != "exited with status 0",
            was_killed="SIGKILL" in how,
            last_output=last_output,
        )
        self._on_exit(exit_)
        self._emptied.set()
