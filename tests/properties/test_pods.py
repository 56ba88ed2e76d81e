"""The book of pods against what really happens on nodes, whatever of it a list and a watch miss."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller_service.core.pods.book import PodBook, PodChange, PodNews
from controller_service.core.pods.states import PodStage, view_of
from tests.support.pods import RUNNING, pod_document, terminated

NAMES = ("a", "b", "c")


@dataclass
class RealPod:
    """A pod, and its process."""

    name: str
    uid: str
    node: str = ""
    runs: bool = False
    """Its process lives, or a kubelet is about to start it."""
    is_reported: bool = False
    """Its kubelet has reported a start."""
    is_marked: bool = False
    """A version without a report of its end says that it has failed."""
    deleting: bool = False
    document: dict[str, Any] = field(default_factory=dict)
    """Its newest version."""


class PodMachine(RuleBasedStateMachine):
    """Versions are written in order, and read in order by a watch, or skipped by a list."""

    def __init__(self) -> None:
        super().__init__()
        self.book = PodBook()
        self.pods: dict[str, RealPod] = {}
        """What the API server has, by name."""
        self.nodes: dict[str, RealPod] = {}
        """All pods that there were, by uid."""
        self.is_listing = False
        """A list was requested, whose answer was not read."""
        self.listing: list[dict[str, Any]] | None = None
        """What it has, and its version; None: the API server has not answered it."""
        self.version = self.list_version = 0
        self.unread: list[tuple[dict[str, Any], bool]] = []
        """Versions that the watch after that list delivers."""
        self.log: list[tuple[dict[str, Any], bool]] = []
        """Versions that the watch has not delivered: the document, and whether it was deleted."""
        self.news = Counter[tuple[str, PodNews]]()
        self.order: list[tuple[str, PodNews]] = []

    def _write(self, pod: RealPod, *, is_deleted: bool = False, **changes: Any) -> None:
        pod.document = pod_document(pod.name, uid=pod.uid, node=pod.node, deleting=pod.deleting, **changes)
        self.version += 1
        pod.document["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((pod.document, is_deleted))
        self.unread.append((pod.document, is_deleted))
        if is_deleted:
            del self.pods[pod.name]

    def _read(self, changes: list[PodChange]) -> None:
        for change in changes:
            self.news[change.pod.uid, change.news] += 1
            self.order.append((change.pod.uid, change.news))
            if change.news is PodNews.ENDED:
                assert not self.nodes[change.pod.uid].runs, "what counts as ended must not run, now or later"
            if change.news is PodNews.LOST:
                pod = self.nodes[change.pod.uid]
                assert pod.is_marked or self.pods.get(pod.name) is not pod, "what is there is not lost"
            if change.news is PodNews.UNSTARTED:
                assert change.pod.is_asked, "one that nobody deletes is waited for"
                assert PodNews.RUNS not in {news for uid, news in self.order if uid == change.pod.uid}

    def _some(self, data: st.DataObject, **having: Any) -> RealPod | None:
        found = [it for it in self.pods.values() if all(getattr(it, name) == value for name, value in having.items())]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(name=st.sampled_from(NAMES), answer=st.booleans())
    def create(self, name: str, answer: bool) -> None:
        if name not in self.pods:
            pod = self.pods[name] = RealPod(name, f"uid-{len(self.nodes)}")
            self.nodes[pod.uid] = pod
            self._write(pod, phase="Pending")
            if answer:
                self._read(self.book.created(view_of(pod.document)))

    @rule(data=st.data())
    def late_answer(self, data: st.DataObject) -> None:
        if self.nodes:
            pod = data.draw(st.sampled_from([*self.nodes.values()]))
            first = pod_document(pod.name, uid=pod.uid, node="", phase="Pending")
            if self.news[pod.uid, PodNews.FOUND]:
                self._read(self.book.created(view_of(first)))

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        if pod := self._some(data, node=""):
            pod.node, pod.runs = "node", True
            self._write(pod, phase="Pending")

    @rule(data=st.data())
    def report_running(self, data: st.DataObject) -> None:
        if pod := self._some(data, node="node", runs=True):
            pod.is_reported = True
            self._write(pod, state=RUNNING)

    @rule(data=st.data())
    def request_deletion(self, data: st.DataObject) -> None:
        """As an eviction does. On a node that is lost, nothing more is reported."""
        if pod := self._some(data, node="node", runs=True):
            pod.deleting = True
            self._write(pod, **({"state": RUNNING} if pod.is_reported else {"phase": "Pending"}))

    @rule(data=st.data(), code=st.sampled_from([0, 1, 137]))
    def end(self, data: st.DataObject, code: int) -> None:
        if pod := self._some(data, node="node", runs=True):
            pod.runs = False
            self._write(pod, state=terminated(code), phase="Failed" if code else "Succeeded")

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        """As a kubelet does before it starts a pod; and one that was started again, before it ends the pod."""
        pod = self._some(data, node="node", runs=True)
        if pod is not None and (not pod.is_reported or self.news[pod.uid, PodNews.RUNS]):
            pod.runs, pod.is_marked = pod.is_reported, True
            self._write(pod, phase="Failed", reason="OutOfcpu", message="Pod was rejected: no CPU")

    @rule(data=st.data())
    def mark_failed(self, data: st.DataObject) -> None:
        """As the collector of orphaned pods does."""
        if pod := self._some(data, node="node", runs=True):
            pod.is_marked = True
            self._write(pod, state=RUNNING, phase="Failed", reason="NodeLost")

    @rule(data=st.data())
    def force_delete(self, data: st.DataObject) -> None:
        if pod := self._some(data):
            if not pod.node:
                self._write(pod, is_deleted=True, phase="Pending")
            elif pod.runs:
                self._write(pod, is_deleted=True, state=RUNNING)
            else:
                self._write(pod, is_deleted=True, state=terminated(), phase="Succeeded")

    @precondition(lambda self: self.log and not self.is_listing)
    @rule()
    def watch(self) -> None:
        document, is_deleted = self.log.pop(0)
        self._read(self.book.seen(view_of(document, is_deleted=is_deleted)))

    @precondition(lambda self: not self.is_listing)
    @rule()
    def request_list(self) -> None:
        self.is_listing = True

    @precondition(lambda self: self.is_listing and self.listing is None)
    @rule()
    def answer_list(self) -> None:
        """The API server reads all pods; its answer arrives later."""
        self.listing, self.list_version = [it.document for it in self.pods.values()], self.version
        self.unread.clear()

    @precondition(lambda self: self.listing is not None)
    @rule()
    def read_list(self) -> None:
        documents, self.listing, self.is_listing = self.listing or [], None, False
        self.log, self.unread = self.unread, []
        self._read(self.book.listed([view_of(it) for it in documents], str(self.list_version)))
        if not self.log:
            self._is_up_to_date()

    def _is_up_to_date(self) -> None:
        listed = {it.uid for it in self.book}
        there = {it.uid for it in self.pods.values()}
        over = {uid for uid, news in self.news if news in {PodNews.ENDED, PodNews.LOST}}
        assert listed == there - over
        unstarted = {it.uid for it in self.pods.values() if it.deleting and it.runs and not it.is_reported} - over
        assert unstarted <= {uid for uid, news in self.news if news is PodNews.UNSTARTED}

    @invariant()
    def each_pod_has_one_life(self) -> None:
        assert all(count == 1 for (_, news), count in self.news.items() if news not in {PodNews.WAITS, PodNews.RUNS})
        for uid in {uid for uid, _ in self.news}:
            of_pod = [news for its, news in self.order if its == uid]
            assert of_pod[0] is PodNews.FOUND
            if PodNews.ENDED in of_pod:
                assert of_pod[-1] is PodNews.ENDED

    @invariant()
    def the_book_has_no_pod_that_is_over(self) -> None:
        assert all(it.stage not in {PodStage.ENDED, PodStage.LOST} for it in self.book)

    def teardown(self) -> None:
        if self.is_listing:
            self.answer_list()
            self.read_list()
        while self.log:
            self.watch()
        self._is_up_to_date()


TestPods = PodMachine.TestCase
