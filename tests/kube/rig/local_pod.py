"""A pod that is bound to a node of processes: its containers from start to end, and its status in the API.

Invariants: one task runs the containers, one writes the status; a status is written until the API server has it, or
has no such pod. The pod is deleted from the API after its last status, and only the pod of this uid.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.kube.rig.api import RETRY_S, STRATEGIC, UNREACHABLE, Api, ApiRefused, Document
from tests.kube.rig.container import Container, Place, Started, timestamp
from tests.kube.rig.contents import Contents, NotYet
from tests.support.mesh import ROOT, marked

RESTART_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Before the first, the second … restart of a container, and before all others the last."""


@dataclass(frozen=True, slots=True)
class Image:
    """What stands in for an image: this repository, unless told otherwise."""

    entrypoint: tuple[str, ...] = (sys.executable, "-m")
    cwd: Path = ROOT
    env: Mapping[str, str] = field(default_factory=dict)
    is_absent: bool = False
    """The registry has no such image."""


class LocalPod:
    """One pod. `run` is its life; `end` and `kill` are what happens to it."""

    def __init__(
        self,
        api: Api,
        pod: Document,
        place: Place,
        *,
        images: Mapping[str, Image],
        base: Path,
        write_kubeconfig: Callable[[Path, str], None],
    ) -> None:
        """`base`: the pod's directory. `write_kubeconfig`: for the token of its service account."""
        self.api = api
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{self.name}"
        self.place = place
        self.is_gone = False
        """The API server has no such pod."""
        self.contents = Contents(api, pod, base, place.address)
        self._images = images
        self._base = base
        self._write_kubeconfig = write_kubeconfig
        self._init = [Container(it, place, self._change) for it in pod["spec"].get("initContainers", ())]
        self.containers = [Container(it, place, self._change) for it in pod["spec"]["containers"]]
        self._phase = "Pending"
        self._started_at = timestamp()
        self._conditions: dict[str, tuple[str, str]] = {}
        self._ending = asyncio.Event()
        self._changes = 1
        self._written = 0
        self._settled = asyncio.Event()
        self._news = asyncio.Event()
        self._news.set()

    async def run(self, connected: asyncio.Event) -> None:
        """Runs the pod to its end. `connected`: whether the node reaches the API server."""
        writer = asyncio.ensure_future(self._write(connected))
        try:
            await self._run_containers()
            self._change()
            await self._ending.wait()
            await self.wait_written()
            await self._delete(connected)
        finally:
            self.kill()
            writer.cancel()
            await asyncio.wait([writer])

    async def end(self, grace_s: float) -> None:
        """Ends the containers as on deletion of the pod."""
        if not self._ending.is_set():
            self._ending.set()
            self._change()
            await asyncio.gather(*(it.stop(grace_s) for it in [*self._init, *self.containers]))

    def pids(self) -> list[int]:
        """Of all processes of its containers."""
        return [pid for it in [*self._init, *self.containers] for pid in marked(it.mark)]

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        for container in [*self._init, *self.containers]:
            container.kill()

    def compare(self, pod: Document) -> None:
        """Writes the status again if the API server has other conditions than were written, as after a lost node."""
        conditions = {it["type"]: it["status"] for it in pod["status"].get("conditions", ())}
        if any(conditions.get(kind) != status for kind, (status, _) in self._conditions.items()):
            self._change()

    def forget(self) -> None:
        """The API server has no such pod any more: its processes end now, and nothing is reported."""
        self.is_gone = True
        self._ending.set()
        self._settled.set()
        self._news.set()
        self.kill()

    async def wait_written(self) -> None:
        """Waits until the API server has the newest status, or no such pod."""
        await self._settled.wait()

    async def _run_containers(self) -> None:
        if not await self._prepare():
            return
        for container in self._init:
            if await self._keep(container, until_success=True) != 0:
                self._phase = "Failed"
                return
        if self._ending.is_set():
            return
        self._phase = "Running"
        codes = await asyncio.gather(*map(self._keep, self.containers))
        self._phase = "Failed" if any(codes) else "Succeeded"

    async def _prepare(self) -> bool:
        """Writes volumes, as soon as what they hold exists. Whether the pod may start."""
        for container in [*self._init, *self.containers]:
            if self._image(container).is_absent:
                container.wait_with("ImagePullBackOff", f"no image {container.spec['image']}")
                await self._ending.wait()
        while not self._ending.is_set():
            try:
                await self.contents.write_volumes()
                if self.contents.kubeconfig_token:
                    self._write_kubeconfig(self._base / "kubeconfig", self.contents.kubeconfig_token)
                return True
            except (NotYet, ApiRefused, *UNREACHABLE):
                await self._pause(RETRY_S)
        return False

    async def _keep(self, container: Container, *, until_success: bool = False) -> int:
        """Runs a container, again as the policy says. Returns its last exit code."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        while True:
            start = await self._start_of(container)
            if start is None:
                return 137
            code = await container.run(start)
            again = {"Always": not (until_success and code == 0), "OnFailure": code != 0, "Never": False}[policy]
            if self._ending.is_set() or not again:
                return code
            container.wait_with("CrashLoopBackOff")
            await self._pause(RESTART_S[min(container.restarts, len(RESTART_S) - 1)])
            container.restarts += 1

    async def _start_of(self, container: Container) -> Started | None:
        """What the container runs. None: the pod ends."""
        image = self._image(container)
        while not self._ending.is_set():
            try:
                own = await self.contents.environment(container.spec)
            except (NotYet, ApiRefused) as missing:
                container.wait_with("CreateContainerConfigError", str(missing))
            except UNREACHABLE:
                pass
            else:
                environment = {**self._usual(), **image.env, **own}
                return Started(self.contents.command(container.spec, [*image.entrypoint], environment), environment)
            await self._pause(RETRY_S)
        return None

    def _usual(self) -> dict[str, str]:
        home = self._base / "home"
        home.mkdir(exist_ok=True)
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(home),
            "TMPDIR": str(home),
            "HOSTNAME": self.name,
            "LANG": "C.UTF-8",
        }
        config = self._base / "kubeconfig"
        if config.exists():
            found["KUBECONFIG"] = str(config)
        return found

    def _image(self, container: Container) -> Image:
        return self._images.get(container.spec["image"]) or Image()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    # --- status ---

    def _change(self) -> None:
        self._changes += 1
        if not self.is_gone:
            self._settled.clear()
            self._news.set()

    async def _write(self, connected: asyncio.Event) -> None:
        while not self.is_gone:
            await self._news.wait()
            self._news.clear()
            self._settled.clear()
            while self._written < self._changes and not self.is_gone:
                await connected.wait()
                number = self._changes
                try:
                    await self.api.patch(f"{self.path}/status", self._status(), STRATEGIC)
                    self._written = number
                except ApiRefused as refused:
                    if refused.code in (404, 409):
                        self.is_gone = True
                    await asyncio.sleep(RETRY_S)
                except UNREACHABLE:
                    await asyncio.sleep(RETRY_S)
            self._settled.set()

    def _status(self) -> Document:
        is_ready = self._phase == "Running" and all(it.ready for it in self.containers)
        has_begun = self._phase != "Pending"
        values = {"Ready": is_ready, "ContainersReady": is_ready, "Initialized": has_begun, "PodScheduled": True}
        for kind, value in values.items():
            text = str(value)
            if self._conditions.get(kind, ("", ""))[0] != text:
                self._conditions[kind] = (text, timestamp())
        status: dict[str, Any] = {
            "phase": self._phase,
            "hostIP": "127.0.0.1",
            "podIP": self.place.address,
            "podIPs": [{"ip": self.place.address}],
            "startTime": self._started_at,
            "conditions": [
                {"type": kind, "status": value, "lastTransitionTime": since}
                for kind, (value, since) in self._conditions.items()
            ],
            "initContainerStatuses": [it.status() for it in self._init],
            "containerStatuses": [it.status() for it in self.containers],
        }
        return {"metadata": {"uid": self.uid}, "status": status}

    async def _delete(self, connected: asyncio.Event) -> None:
        while not self.is_gone:
            await connected.wait()
            try:
                await self.api.delete(self.path, grace_s=0, uid=self.uid)
                self.is_gone = True
            except ApiRefused as refused:
                self.is_gone = refused.code in (404, 409)
                await asyncio.sleep(RETRY_S)
            except UNREACHABLE:
                await asyncio.sleep(RETRY_S)
