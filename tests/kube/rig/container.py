"""A container of a pod: a process of this machine, its probes, and its state as the API shows it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.kube.rig.api import Document
from tests.kube.rig.control_plane import ends_with_us
from tests.kube.rig.probes import is_passed
from tests.support.mesh import MARK, marked

_BIND_RESOLVER: Final = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the processes of a pod run."""

    address: str
    mark: str
    """With a container's name, in the environment of all of its processes."""
    cwd: Path
    log: Path
    """Of all containers, stdout and stderr."""
    resolver: Path | None
    """Replaces /etc/resolv.conf. None: names of Services are not resolved."""


@dataclass(slots=True)
class Started:
    """What a container's process was started with."""

    command: list[str]
    environment: dict[str, str]


@dataclass(slots=True)
class Container:
    """One container; the pod's task is its only writer."""

    spec: Document
    place: Place
    changed: Callable[[], None]
    """Called after each change of what `status` returns."""
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    started: bool = False
    restarts: int = 0
    state: Document = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Document = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def mark(self) -> str:
        """In the environment of all of its processes."""
        return self.place.mark + self.name

    def status(self) -> Document:
        pid = self.process.pid if self.process else 0
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": self.spec["image"],
            "containerID": f"process://{pid}" if pid else "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    def wait_with(self, reason: str, message: str = "") -> None:
        """The state of a container that does not run yet, or not now."""
        waiting = {"waiting": {"reason": reason, "message": message}}
        if self.state != waiting:
            if "terminated" in self.state:
                self.last_state = self.state
            self.state = waiting
            self.changed()

    async def run(self, start: Started) -> int:
        """Runs the process to its end, with its probes; returns its exit code as Kubernetes counts them."""
        self._environment = start.environment
        begin = timestamp()
        self.process = await self._spawn(start.command)
        self.state = {"running": {"startedAt": begin}}
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self.changed()
        probes = asyncio.ensure_future(self._probe())
        try:
            code = await self.process.wait()
        finally:
            probes.cancel()
            self.kill()
            await asyncio.wait([probes])
        ended: Document = {"startedAt": begin, "finishedAt": timestamp(), "reason": "Error" if code else "Completed"}
        ended["exitCode"] = code if code >= 0 else 128 - code
        if code < 0:
            ended["signal"] = -code
        self.ready = self.started = False
        self.state = {"terminated": {**ended, "containerID": f"process://{self.process.pid}"}}
        self.changed()
        return int(ended["exitCode"])

    async def stop(self, grace_s: float) -> None:
        """The preStop hook, SIGTERM, and SIGKILL when `grace_s` is over."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._before_stop(self.spec.get("lifecycle", {}).get("preStop"))
                self.signal(signal.SIGTERM)
                await process.wait()
                return
        self.kill()
        await process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the container's first process."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the process and all that it has started."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def execute(self, command: Sequence[str]) -> int:
        """Runs a command beside the process, as an exec probe."""
        process = await self._spawn(list(command))
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _spawn(self, command: list[str]) -> asyncio.subprocess.Process:
        prefix: list[str] = []
        if self.place.resolver is not None:
            prefix = ["unshare", "--mount", "sh", "-c", _BIND_RESOLVER, "sh", str(self.place.resolver)]
        with self.place.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *prefix,
                *ends_with_us(),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.place.cwd,
                env={**self._environment, MARK: self.mark},
                start_new_session=True,
            )

    async def _before_stop(self, hook: Document | None) -> None:
        if hook is None:
            return
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        else:
            await self._passes({**hook, "timeoutSeconds": 3600})

    async def _probe(self) -> None:
        """Runs the startup probe, then the others, until cancelled."""
        if startup := self.spec.get("startupProbe"):
            if not await self._until(startup, passed=True):
                self._fail()
                return
            self.started = True
            self.ready = "readinessProbe" not in self.spec
            self.changed()
        async with asyncio.TaskGroup() as tasks:
            if readiness := self.spec.get("readinessProbe"):
                tasks.create_task(self._watch_readiness(readiness))
            if liveness := self.spec.get("livenessProbe"):
                tasks.create_task(self._watch_liveness(liveness))

    async def _watch_readiness(self, probe: Document) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            if await self._until(probe, passed=not self.ready):
                self.ready = not self.ready
                self.changed()

    async def _watch_liveness(self, probe: Document) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        if await self._until(probe, passed=False):
            self._fail()

    async def _until(self, probe: Document, *, passed: bool) -> bool:
        """Whether the probe has passed often enough; with `passed=False`, whether it has failed often enough.

        Ends with False when a startup probe has failed too often; otherwise it goes on until it is true.
        """
        is_startup = probe is self.spec.get("startupProbe")
        if is_startup:
            await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        row = {True: 0, False: 0}
        limits = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
        while True:
            result = await self._passes(probe)
            row[result], row[not result] = row[result] + 1, 0
            if row[passed] >= limits[passed]:
                return True
            if is_startup and row[False] >= limits[False]:
                return False
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _passes(self, probe: Document) -> bool:
        ports = {it["name"]: it["containerPort"] for it in self.spec.get("ports", ()) if "name" in it}
        execute: Callable[[Sequence[str]], Awaitable[int]] = self.execute
        return await is_passed(probe, self.place.address, ports, execute)

    def _fail(self) -> None:
        """A liveness probe failed: the process ends, and its restart policy decides what follows."""
        self.signal(signal.SIGTERM)
        grace_s: Any = self.spec.get("terminationGracePeriodSeconds", 5)
        asyncio.get_running_loop().call_later(grace_s, self.signal, signal.SIGKILL)
