"""A `KubernetesLauncher` that follows a fake API server, and a record of what it reports."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from controller_service.shell.launchers.kubernetes.api import PodApi
from controller_service.shell.launchers.kubernetes.launcher import KubernetesLauncher
from controller_service.shell.launchers.kubernetes.manifests import PodManifests
from controller_service.shell.launchers.protocol import Exit, LaunchEvents
from controller_service.shell.replica_logs import LogBook
from slotmesh.runtime.backoff import Backoff
from tests.support.fakes.pod_api import FakePodApi
from tests.support.wait import wait_until


@dataclass
class RecordedEvents(LaunchEvents):
    """All that was reported, in order."""

    log: list[tuple[str, ...]] = field(default_factory=list)

    def found(self) -> None:
        self.log.append(("found",))

    def waits(self, replica_id: str, why: str) -> None:
        self.log.append(("waits", replica_id, why))

    def lost(self, replica_id: str, why: str) -> None:
        self.log.append(("lost", replica_id, why))

    def ended(self, replica_id: str, how: str) -> None:
        self.log.append(("ended", replica_id, how))

    def pod_ended(self, uid: str, how: str) -> None:
        self.log.append(("pod_ended", uid, how))

    def resumed(self) -> None:
        self.log.append(("resumed",))


MANIFESTS = PodManifests(
    mesh="default",
    template={"spec": {"containers": [{"name": "replica", "image": "app:1"}]}},
    controllers=lambda: ["127.0.0.1:7070"],
    orphan_timeout=timedelta(minutes=5),
    fence_after=timedelta(minutes=5),
)


@dataclass
class FollowedPods:
    """A launcher under test."""

    api: FakePodApi
    launcher: KubernetesLauncher
    exits: list[Exit]
    events: RecordedEvents
    following: asyncio.Task[None]
    book: LogBook

    def pods(self) -> list[str]:
        return [*self.api.pods]

    def observed(self) -> list[str]:
        return [it.replica_id for it in self.launcher.observe()]


def numbered() -> Callable[[str], str]:
    """Replica ids that count, of all backends together."""
    numbers = itertools.count(1)
    return lambda backend: f"{backend}-{next(numbers)}"


@asynccontextmanager
async def following_pods(
    api: FakePodApi | None = None,
    *,
    mint_id: Callable[[str], str] = lambda backend: backend,
    leaves: bool = False,
    **options: Any,
) -> AsyncIterator[FollowedPods]:
    """`leaves`: pods go on when this ends."""
    api = api or FakePodApi()
    exits: list[Exit] = []
    fake: Any = api
    pod_api: PodApi = fake
    book = LogBook(max_bytes=0)
    launcher = KubernetesLauncher(pod_api, MANIFESTS, exits.append, mint_id, book, close_grace_s=0.1, **options)
    launcher.follower.backoff = Backoff(initial_s=0.001, max_s=0.002)
    events = RecordedEvents()
    following = asyncio.create_task(launcher.follow(events))
    if not api.is_away and api.list_refusal is None:
        await wait_until(lambda: not launcher.follower.problem, what="the first list")
    try:
        yield FollowedPods(api, launcher, exits, events, following, book)
        async with asyncio.timeout(10.0):
            await (launcher.leave() if leaves else launcher.close())
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
