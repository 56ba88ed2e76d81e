"""Follows pods by one list, and watches from its version on.

Invariants: it never gives up; pods are listed once at the start, and again only if the API server does not have the
version any more (410), or has not reached it: it was restored from a backup, while it or a proxy before it failed, and
a watch from a version of the future has no events. Every interval between attempts is drawn at random. A watch that
ends without an error continues where it was.
Owner: one task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from controller_service.core.pods.book import PodBook, PodChange
from controller_service.core.pods.states import PodView, is_before, view_of
from controller_service.shell.launchers.kubernetes.api import ApiAway, ApiRefused, PodApi
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff, WarningBackoff

LONGEST_RETRY_S: Final = 3.0
SHORT_WATCH_S: Final = 1.0
"""A watch that ends sooner is repeated after pauses that grow, also if it was open."""
_VIEWS_AT_ONCE: Final = 100
"""Pods of a list that are read without a pause of the event loop's other work."""

_log = get_logger(__name__)


class PodFollower:
    """Keeps a `PodBook`."""

    def __init__(
        self,
        api: PodApi,
        on_changes: Callable[[Sequence[PodChange]], None],
        on_answer: Callable[[], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_answer` is called when the API server answers again, also for the first time."""
        self.book = PodBook()
        self.problem = "the API server of Kubernetes was not asked yet"
        """Why it is unknown what runs, or is not followed now; empty if it is."""
        self.is_refused = False
        """The API server answers, and does not allow it."""
        self.lists = 0
        """How often pods were listed."""
        self._api = api
        self._on_changes = on_changes
        self._on_answer = on_answer
        self.backoff = Backoff(initial_s=0.2, max_s=LONGEST_RETRY_S)
        self._warnings = WarningBackoff()
        self._monotonic = monotonic
        self._answered_at = monotonic()
        self._version = ""
        """What was read of the pods; empty: they have to be listed."""
        self._was_away = False
        """The API server has failed, or not answered, since: it may have been restored."""

    @property
    def age_s(self) -> float:
        """Seconds since the API server has confirmed that nothing is missing here, or since the start."""
        return self._monotonic() - self._answered_at

    async def run(self) -> None:
        """Until cancelled, which closes the connections to the API server. It may be run again after another error."""
        try:
            await self._follow()
        except asyncio.CancelledError:
            await self._api.aclose()
            raise

    async def _follow(self) -> None:
        while True:
            began = self._monotonic()
            try:
                if self._was_away and self._version and is_before(await self._api.version(), self._version):
                    self._version = ""
                self._was_away = False
                if not self._version:
                    await self._list()
                await self._watch()
                failed = False
            except ApiRefused as error:
                failed = True
                if error.code == HTTPStatus.GONE:
                    self._version = ""
                self._was_away = self._was_away or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
                self._failed(error)
            except ApiAway as error:
                failed = self._was_away = True
                self._failed(error)
            if self._monotonic() - began >= SHORT_WATCH_S:
                self.backoff.reset()
                if not failed:
                    self._warnings.reset()
                    continue  # it has ended at its time
            await asyncio.sleep(self.backoff.next_delay_s())

    async def _list(self) -> None:
        pods, version = await self._api.list()
        self.lists += 1
        views: list[PodView] = []
        for at, pod in enumerate(pods):
            views.append(view_of(pod))
            if at % _VIEWS_AT_ONCE == _VIEWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        self._version = version
        self._on_changes(self.book.listed(views, version))
        self._answered()

    async def _watch(self) -> None:
        async with aclosing(self._api.watch(self._version)) as events:
            async for event in events:
                self._answered()
                if not event:
                    continue
                pod, kind = event.get("object") or {}, event.get("type")
                if kind != "BOOKMARK":
                    self._on_changes(self.book.seen(view_of(pod, is_deleted=kind == "DELETED")))
                self._version = pod["metadata"]["resourceVersion"]
        self._answered()

    def _answered(self) -> None:
        self.is_refused = False
        self._answered_at = self._monotonic()
        if self.problem:
            self.problem = ""
            self._on_answer()

    def _failed(self, error: Exception) -> None:
        self.is_refused = False
        self.problem = f"the API server of Kubernetes does not answer: {error}"
        if isinstance(error, ApiRefused) and not error.is_temporary and error.code != HTTPStatus.GONE:
            self.is_refused = True
            self.problem = f"the API server of Kubernetes refuses to list or watch pods: {error}"
        if (left_out := self._warnings.take(self._monotonic())) is not None:
            _log.warning("pods cannot be followed; it is tried again", why=str(error), times_before=left_out)
