"""An API server with the pods of one namespace, and a kubelet that runs them as a test wants.

It passes for `PodApi`, whose real form is held to the same tests by tests/kube/test_kubernetes_launcher.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from copy import deepcopy
from typing import Any

from controller_service.shell.launchers.kubernetes.api import ApiAway, ApiRefused, LogSilent
from tests.support.pods import RUNNING, terminated


class FakePodApi:
    """Pods run as soon as they are created, and end when they are asked to, unless a test says otherwise."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.lists = 0
        self.is_away = False
        """Nothing answers, and watches break."""
        self.proxy: ApiRefused | None = None
        """Answers in place of the API server."""
        self.refusal: ApiRefused | None = None
        """Of requests to create pods."""
        self.list_refusal: ApiRefused | None = None
        self.loses_answers = False
        """Pods are created, and their creators are not told."""
        self.starts_pods = True
        """Pods are bound to a node, and started."""
        self.stubborn: set[str] = set()
        """Pods that end at the end of their grace only."""
        self.silent: set[str] = set()
        """Pods whose kubelet does not learn that they should end."""
        self.deletions: list[tuple[str, int]] = []
        """The names and the graces that were requested."""
        self.owner_uid: str | None = "owner-uid"
        self.is_closed = False
        self.written: dict[str, list[bytes]] = {}
        """Lines with their times, by pod."""
        self.log_requests: list[tuple[str, str, int | None, str, bool]] = []
        self.lines_sent = 0
        self.log_refusal: ApiRefused | None = None
        self.log_silences = 0
        """So many requests for logs bring nothing."""
        self._broken = 0
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._compacted = 0
        self._version = 0
        self._changed = asyncio.Event()

    async def list(self) -> tuple[list[Mapping[str, Any]], str]:
        self._require_here()
        self.lists += 1
        if self.list_refusal is not None:
            raise self.list_refusal
        return deepcopy([*self.pods.values()]), str(self._version)

    async def version(self) -> str:
        self._require_here()
        return str(self._version)

    async def watch(self, version: str) -> AsyncGenerator[Mapping[str, Any], None]:
        self._require_here()
        at = int(version)
        if at >= self._compacted:
            yield {}
        while True:
            changed = self._changed
            self._require_here()
            if at < self._compacted:
                raise ApiRefused(410, "Expired", "too old resource version")
            for number, kind, pod in [it for it in self._events if it[0] > at]:
                at = number
                yield {"type": kind, "object": pod}
            await changed.wait()

    async def create(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        self._require_here()
        if self.refusal is not None:
            raise self.refusal
        name = pod["metadata"]["name"]
        if name in self.pods:
            raise ApiRefused(409, "AlreadyExists", f'pods "{name}" already exists')
        made = deepcopy(dict(pod))
        made["metadata"]["uid"] = f"uid-{self._version + 1}"
        made["status"] = {"phase": "Pending"}
        self.pods[name] = made
        self._publish("ADDED", made)
        first = deepcopy(made)
        if self.starts_pods:
            self.run(name)
        if self.loses_answers:
            raise ApiAway("ReadTimeout")
        return first

    async def get(self, name: str) -> Mapping[str, Any]:
        self._require_here()
        if name not in self.pods:
            raise ApiRefused(404, "NotFound", f'pods "{name}" not found')
        return deepcopy(self.pods[name])

    async def delete(self, name: str, uid: str, grace_s: int) -> None:
        self._require_here()
        self.deletions.append((name, grace_s))
        pod = self.pods.get(name)
        if pod is None:
            raise ApiRefused(404, "NotFound", f'pods "{name}" not found')
        if pod["metadata"]["uid"] != uid:
            raise ApiRefused(409, "Conflict", "Precondition failed: UID in precondition")
        if grace_s == 0 or "nodeName" not in pod["spec"]:
            self.remove(name)
            return
        self.update(name, metadata={"deletionTimestamp": "now"})
        if name in self.silent:
            return
        delay_s = 0.05 * grace_s if name in self.stubborn else 0.0
        asyncio.get_running_loop().call_later(delay_s, self._end_and_remove, name, uid)

    async def log(
        self, name: str, container: str, *, lines: int | None, since: str = "", follow: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Lines of `written`; with `follow`, until the pod has ended."""
        self._require_here()
        self.log_requests.append((name, container, lines, since, follow))
        if self.log_refusal is not None:
            raise self.log_refusal
        if name not in self.pods:
            raise ApiRefused(404, "NotFound", f'pods "{name}" not found')
        if self.log_silences:
            self.log_silences -= 1
            raise LogSilent("ReadTimeout")
        yield b""
        written = self.written.setdefault(name, [])
        at = max(0, len(written) - (len(written) if lines is None else lines))
        while True:
            changed, broken = self._changed, self._broken
            for line in written[at:]:
                if line[:19] >= since[:19].encode():
                    self.lines_sent += 1
                    yield line
            at = len(written)
            is_over = name not in self.pods or self.pods[name]["status"]["phase"] in {"Failed", "Succeeded"}
            if is_over or not follow:
                return
            await changed.wait()
            self._require_here()
            if broken != self._broken:
                raise ApiAway("ReadError")

    def write(self, name: str, *lines: str) -> None:
        """The pod's container writes lines, two in each microsecond."""
        written = self.written.setdefault(name, [])
        for line in lines:
            written.append(f"2026-11-29T12:00:00.{len(written) // 2:06}000Z {line}\n".encode())
        self._wake()

    def break_logs(self) -> None:
        """Connections break on which logs are read."""
        self._broken += 1
        self._wake()

    async def uid_of_config_map(self, name: str) -> str:
        self._require_here()
        if self.owner_uid is None:
            raise ApiRefused(404, "NotFound", f'configmaps "{name}" not found')
        return self.owner_uid

    async def aclose(self) -> None:
        self.is_closed = True

    def run(self, name: str) -> None:
        """A node gets the pod, and starts it."""
        self.update(name, spec={"nodeName": "node-a"}, status=_status("Running", RUNNING))

    def end(self, name: str, code: int = 137) -> None:
        """The pod's process ends."""
        self.update(name, status=_status("Failed" if code else "Succeeded", terminated(code)))

    def update(self, name: str, **parts: Mapping[str, Any]) -> None:
        """Changes parts of a pod's metadata, specification or status."""
        pod = deepcopy(self.pods[name])
        for part, values in parts.items():
            pod[part] = {**pod[part], **values}
        self.pods[name] = pod
        self._publish("MODIFIED", pod)

    def remove(self, name: str) -> None:
        """Its document is deleted, whatever its process does."""
        self._publish("DELETED", deepcopy(self.pods.pop(name)))

    def break_watches(self, *, compact: bool = False) -> None:
        """`compact`: their versions are not there any more."""
        if compact:
            self._version += 1
            self._compacted = self._version
            self._events.clear()
        self._wake()

    def restore(self) -> None:
        """From a backup that was made before there were any versions, with the same pods."""
        self._version = 0
        self._events.clear()

    def _end_and_remove(self, name: str, uid: str) -> None:
        pod = self.pods.get(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        self.end(name, 137 if name in self.stubborn else 0)
        self.remove(name)

    def _publish(self, kind: str, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, deepcopy(pod)))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _require_here(self) -> None:
        if self.proxy is not None:
            raise self.proxy
        if self.is_away:
            raise ApiAway("ConnectError: All connection attempts failed")


def _status(phase: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": "replica", "restartCount": 0, "state": state}]}
