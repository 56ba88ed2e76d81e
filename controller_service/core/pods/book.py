"""All pods of a selection, followed by one list and a watch from its version on.

Purpose: `list or event -> consequences`. The order in which versions arrive is that of the API server, but for the
responses to requests of this controller, which may arrive early or late: `created`.
Invariants: a pod is found once, ends at most once, is lost at most once, and never after its end. One that was lost may
still turn out to have ended; nothing else that arrives then changes anything. A pod that is missing in a list has been
removed in between: whether it was bound then, or had ended, is unknown, so it is lost. One that is known only by the
response to its creation may be newer than what lists and the watch say: then nothing follows from them yet.
Owner: the task that follows the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from controller_service.core.pods.states import PodStage, PodView, is_before, without_report

OVER_KEPT: Final = 4_096
"""Pods that are over, and are remembered: for longer than any response is late."""
OVER: Final = frozenset({PodStage.ENDED, PodStage.LOST})


class PodNews(Enum):
    """What has happened to a pod."""

    FOUND = auto()
    """It was not known."""
    WAITS = auto()
    """It waits to be started, for another reason than before."""
    RUNS = auto()
    """Its replica has been started."""
    UNSTARTED = auto()
    """It is being deleted, and no start was reported: another one may start. It may still run, if its node is lost."""
    ENDED = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class PodChange:
    """Something has happened to a pod."""

    news: PodNews
    pod: PodView


@dataclass(slots=True)
class PodBook:
    """The pods that are there, by name."""

    is_complete: bool = False
    """A list was read: all pods are known."""
    _pods: dict[str, PodView] = field(default_factory=dict[str, PodView])
    """Those that are not over, in the order in which they were found."""
    _over: dict[str, PodStage] = field(default_factory=dict[str, PodStage])
    """By uid, those that are over; oldest first, bounded."""

    _unseen: set[str] = field(default_factory=set[str])
    """Of these, the uids of those that no list and no event has shown."""

    def __iter__(self) -> Iterator[PodView]:
        return iter(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, name: str) -> PodView | None:
        """The pod of this name, unless it is over."""
        return self._pods.get(name)

    def created(self, pod: PodView) -> list[PodChange]:
        """The response to a request of this controller. It says nothing new of a pod that was seen before."""
        known = self._pods.get(pod.name)
        if known is not None and known.uid == pod.uid:
            return []
        changes = self.seen(pod)
        if self._pods.get(pod.name) is pod:
            self._unseen.add(pod.uid)
        return changes

    def listed(self, pods: Iterable[PodView], version: str = "") -> list[PodChange]:
        """All pods that there were at this version."""
        changes, uids = list[PodChange](), set[str]()
        for pod in pods:
            uids.add(pod.uid)
            changes += self.seen(pod)
        self.is_complete = True
        for known in [it for it in self._pods.values() if it.uid not in uids]:
            if not self._is_newer(known, version):
                changes += self._finish(without_report(known))
        return changes

    def seen(self, pod: PodView) -> list[PodChange]:
        """A pod was added, is different, or was removed: then this is its last version, and its stage says so."""
        if pod.uid in self._over:
            return self._finish(pod) if pod.stage is PodStage.ENDED and not pod.is_rejected else []
        changes: list[PodChange] = []
        known = self._pods.get(pod.name)
        if known is not None and known.uid != pod.uid:
            if self._is_newer(known, pod.version):
                return []
            changes += self._finish(without_report(known))  # a name is free once its pod was removed
            known = None
        if pod.is_rejected and known is not None and known.stage is PodStage.RUNNING:
            pod = replace(pod, stage=PodStage.LOST)  # by a kubelet that was started again: it may run for a moment
        if known is None:
            changes.append(PodChange(PodNews.FOUND, pod))
        self._pods[pod.name] = pod
        self._unseen.discard(pod.uid)
        if pod.stage in OVER:
            return changes + self._finish(pod)
        if pod.is_unstarted:
            if known is None or not known.is_unstarted:
                changes.append(PodChange(PodNews.UNSTARTED, pod))
        elif pod.stage is PodStage.WAITING and (known is None or known.why != pod.why):
            changes.append(PodChange(PodNews.WAITS, pod))
        elif pod.stage is PodStage.RUNNING and (known is None or known.stage is PodStage.WAITING):
            changes.append(PodChange(PodNews.RUNS, pod))
        return changes

    def _is_newer(self, known: PodView, version: str) -> bool:
        return known.uid in self._unseen and is_before(version, known.version)

    def _finish(self, pod: PodView) -> list[PodChange]:
        known, before = self._pods.get(pod.name), self._over.get(pod.uid)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.name]
            self._unseen.discard(pod.uid)
        if before is pod.stage or before is PodStage.ENDED:
            return []
        self._over[pod.uid] = pod.stage
        while len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]
        return [PodChange(PodNews.ENDED if pod.stage is PodStage.ENDED else PodNews.LOST, pod)]
