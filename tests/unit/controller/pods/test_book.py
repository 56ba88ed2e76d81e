"""What follows from versions of pods that arrive one after another."""

from __future__ import annotations

from typing import Any

from controller_service.core.pods.book import PodBook, PodNews
from controller_service.core.pods.states import PodStage, PodView, view_of
from tests.support.pods import RUNNING, pod_document

REJECTED: dict[str, Any] = {"phase": "Failed", "message": "Pod was rejected: Node affinity"}


def news(book: PodBook, *, is_deleted: bool = False, **pod: Any) -> list[PodNews]:
    return [it.news for it in book.seen(view_of(pod_document(**pod), is_deleted=is_deleted))]


def test_a_pod_that_its_node_rejects_has_ended() -> None:
    book = PodBook()
    assert news(book, phase="Pending") == [PodNews.FOUND, PodNews.WAITS]
    assert news(book, **REJECTED) == [PodNews.ENDED]
    assert news(book, is_deleted=True, **REJECTED) == []


def test_a_pod_that_a_kubelet_rejects_after_its_own_restart_may_run_on() -> None:
    book = PodBook()
    assert news(book, state=RUNNING) == [PodNews.FOUND, PodNews.RUNS]
    assert news(book, **REJECTED) == [PodNews.LOST]
    assert news(book, is_deleted=True, **REJECTED) == []


def test_only_what_no_list_or_event_has_shown_may_be_newer_than_these() -> None:
    def version(uid: str, number: str) -> PodView:
        return PodView(name="a", uid=uid, version=number, stage=PodStage.WAITING)

    book = PodBook()
    book.created(version("new", "20"))
    assert book.seen(version("old", "10")) == [], "it was removed before"
    assert [it.uid for it in book] == ["new"]
    book.seen(version("new", "20"))
    assert [it.news for it in book.listed([], "10")] == [PodNews.LOST]
