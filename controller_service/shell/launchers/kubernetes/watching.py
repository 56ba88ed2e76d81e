"""Pods that another system starts: their ends are proofs, and nothing else is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from controller_service.core.pods.book import PodChange, PodNews
from controller_service.shell.launchers.kubernetes.api import PodApi
from controller_service.shell.launchers.kubernetes.following import PodFollower
from controller_service.shell.launchers.protocol import Launcher, LaunchEvents


class PodWatchLauncher(Launcher):
    """Starts nothing, and reports the ends of pods by their uids."""

    def __init__(self, api: PodApi) -> None:
        self.follower = PodFollower(api, self._changed, lambda: None)
        self._events: LaunchEvents | None = None

    @property
    def watch_age_s(self) -> float | None:
        return self.follower.age_s

    async def follow(self, events: LaunchEvents) -> None:
        self._events = events
        await self.follower.run()

    def _changed(self, changes: Sequence[PodChange]) -> None:
        for change in changes:
            if change.news is PodNews.ENDED and self._events is not None:
                self._events.pod_ended(change.pod.uid, change.pod.why)
