"""Replicas as bare pods: each replica is one pod, which is never restarted.

Invariants: nothing is started before all pods of the mesh are known. A request whose answer was lost is repeated under
the same name, until the API server has refused it or shows the pod. A pod is deleted by its uid, and never one that has
got its name since. An exit is reported only if the kubelet has reported it, or no node ever had the pod; otherwise the
replica is lost, and its fence or an operator proves its end. So is one whose pod another client deletes before a start
was reported: its node may be lost. Deletions are repeated until the API server has them.
Owner: the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from math import ceil
from typing import Any, Final

from controller_service.core.pods.book import PodChange, PodNews
from controller_service.core.pods.states import CONTAINER, PodView, view_of
from controller_service.shell.launchers.kubernetes.api import ApiAway, ApiRefused, PodApi
from controller_service.shell.launchers.kubernetes.container_settings import container_violations
from controller_service.shell.launchers.kubernetes.following import PodFollower
from controller_service.shell.launchers.kubernetes.manifests import REPLICA_ID, PodManifests, order_of, pod_name
from controller_service.shell.launchers.kubernetes.pod_logs import LoggedPod, PodLogs
from controller_service.shell.launchers.protocol import (
    Exit,
    Instance,
    LaunchDeferred,
    Launcher,
    LaunchEvents,
    LaunchFailed,
    LaunchOrder,
    OnExit,
)
from controller_service.shell.replica_logs import LogBook
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff
from slotmesh.spec.model import Backend, SpecViolation

START_WITHIN_S: Final = 2.0
"""`start` waits for the API server for this long: the controller has other work."""
CREATED_AT_ONCE: Final = 8
SHORTEST_GRACE_S: Final = 1
"""A deletion without grace is not waited for by the API server: nothing would be known of the pod's end."""
CLOSE_GRACE_S: Final = 5.0
"""Time that `close` gives to pods that were not asked to end before."""
_CLOSE_MARGIN_S: Final = 10.0
_LAST_REQUESTS_S: Final = 2.0
"""Deletions that were requested are still sent for this long."""

_log = get_logger(__name__)


class KubernetesLauncher(Launcher):
    """Starts pods."""

    launches = True

    def __init__(
        self,
        api: PodApi,
        manifests: PodManifests,
        on_exit: OnExit,
        mint_id: Callable[[str], str],
        book: LogBook,
        *,
        owner: str | None = None,
        close_grace_s: float = CLOSE_GRACE_S,
    ) -> None:
        """`owner`: a ConfigMap that owns the pods. `mint_id` gives a new replica id for a backend."""
        self.follower = PodFollower(api, self._changed, self._answered)
        self.logs = book.running = PodLogs(api, self._logged, book)
        self._api = api
        self._manifests = manifests
        self._on_exit = on_exit
        self._mint_id = mint_id
        self._owner = owner
        self._close_grace_s = close_grace_s
        self._events: LaunchEvents | None = None
        self._launched: dict[str, _Launched] = {}
        """By replica id."""
        self._ended_pods: dict[str, LoggedPod] = {}
        """Those whose last lines are read, by replica id: they are deleted after that."""
        self._unanswered: dict[str, LaunchOrder] = {}
        """Replicas whose pods are requested, or were and may exist: until the API server shows or refuses them."""
        self._requests: dict[str, asyncio.Task[Any]] = {}
        """The requests under way, and those of `_unanswered` whose failures no call of `start` has read. They outlive
        it: the API server gives up a request whose client does, as while webhooks take their time."""
        self._starts = 0
        """Calls of `start` that have not returned."""
        self._exits: list[Exit] = []
        """Those that are reported when these have."""
        self._deletions: set[asyncio.Task[None]] = set()
        self._emptied = asyncio.Event()
        self._emptied.set()

    @property
    def watch_age_s(self) -> float | None:
        return self.follower.age_s

    async def follow(self, events: LaunchEvents) -> None:
        self._events = events
        await self.follower.run()

    def violations(self, backend: Backend) -> Iterable[SpecViolation]:
        return container_violations(backend)

    async def start(self, order: LaunchOrder, count: int) -> None:
        if problem := self.follower.problem:
            raise (LaunchFailed if self.follower.is_refused else LaunchDeferred)(f"no pod is started: {problem}")
        self._starts += 1
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await self._start(order, count)
        except TimeoutError:
            raise LaunchDeferred(f"{order.backend}: the API server of Kubernetes has not answered in time") from None
        finally:
            self._starts -= 1
            asyncio.get_running_loop().call_soon(self._report_exits)

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        launched = self._launched.get(replica_id)
        if launched is None or launched.is_asked:
            return
        launched.is_asked = True
        launched.ends_by = asyncio.get_running_loop().time() + grace_s
        self._delete(launched.pod, ceil(grace_s))

    def kill(self, replica_id: str) -> None:
        launched = self._launched.get(replica_id)
        if launched is None or launched.is_killed:
            return
        launched.is_asked = launched.is_killed = True
        self._delete(launched.pod, SHORTEST_GRACE_S)

    def observe(self) -> Sequence[Instance]:
        return [it.instance for it in self._launched.values()]

    async def leave(self) -> None:
        await self._end()

    async def close(self) -> None:
        for replica_id in [*self._launched]:
            self.stop(replica_id, grace_s=self._close_grace_s)
        now = asyncio.get_running_loop().time()
        left_s = max((it.ends_by - now for it in self._launched.values()), default=0.0)
        try:
            async with asyncio.timeout(max(0.0, left_s) + _CLOSE_MARGIN_S):
                await self._emptied.wait()
        except TimeoutError:
            _log.error("pods have not ended in time, or their end is unknown", replicas=[*self._launched])
        await self._end()

    async def _end(self) -> None:
        if self._deletions:
            await asyncio.wait(self._deletions, timeout=_LAST_REQUESTS_S)
        tasks = [*self._deletions, *self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, order: LaunchOrder, count: int) -> None:
        for replica_id in [it for it, of in self._unanswered.items() if of.backend == order.backend and of != order]:
            self._forget_request(replica_id)  # if there is such a pod, the watch shows it
        if self._present(order) >= count:
            return
        owner = None if self._owner is None else await self._owner_reference(self._owner)
        missing = max(0, count - self._present(order))
        ids = [it for it, of in self._unanswered.items() if of == order][:missing]
        ids += [self._mint_id(order.backend) for _ in range(missing - len(ids))]
        self._unanswered |= dict.fromkeys(ids, order)
        for at in range(0, len(ids), CREATED_AT_ONCE):
            creations = (self._create(order, replica_id, owner) for replica_id in ids[at : at + CREATED_AT_ONCE])
            results = await asyncio.gather(*creations, return_exceptions=True)
            # A refusal is to be seen; what is deferred is repeated with the next start.
            for error in sorted((it for it in results if it), key=lambda it: isinstance(it, LaunchDeferred)):
                raise error

    def _present(self, order: LaunchOrder) -> int:
        return sum(it.instance.order == order and not it.is_asked for it in self._launched.values())

    async def _create(self, order: LaunchOrder, replica_id: str, owner: dict[str, str] | None) -> None:
        if replica_id not in self._unanswered:
            return  # the watch has shown it meanwhile
        if (request := self._requests.get(replica_id)) is None:
            pod = self._manifests.pod_of(order, replica_id, owner)
            requested = self._requested(pod, replica_id)
            request = asyncio.get_running_loop().create_task(requested, name=f"create-{replica_id}")
            request.add_done_callback(lambda it: self._requested_pod(it, replica_id))
            self._requests[replica_id] = request
        try:
            await asyncio.shield(request)
        except ApiAway as error:
            raise LaunchDeferred(f"{order.backend}: the API server of Kubernetes does not answer: {error}") from error
        except ApiRefused as error:
            if error.is_temporary:
                raise LaunchDeferred(f"{order.backend}: the API server of Kubernetes is not ready: {error}") from error
            self._forget_request(replica_id)
            raise LaunchFailed(f"Kubernetes refuses the pod ({error.code} {error.reason}): {error}") from error
        finally:
            if request.done():
                self._requests.pop(replica_id, None)

    def _forget_request(self, replica_id: str) -> None:
        self._unanswered.pop(replica_id, None)
        if (request := self._requests.get(replica_id)) is not None and request.done():
            del self._requests[replica_id]

    def _requested_pod(self, request: asyncio.Task[Any], replica_id: str) -> None:
        """A request has ended. Its failure is for the call of `start` that waits for it, or for the next one."""
        if not request.cancelled() and request.exception() is None:
            self._changed(self.follower.book.created(view_of(request.result())))
            self._forget_request(replica_id)
        if replica_id not in self._unanswered:
            self._requests.pop(replica_id, None)

    async def _requested(self, pod: Any, replica_id: str) -> Any:
        """The pod that exists from now on. One of the same name that exists already was requested before."""
        try:
            return await self._api.create(pod)
        except ApiRefused as error:
            if error.reason != "AlreadyExists":
                raise
        try:
            made = await self._api.get(pod_name(replica_id))
        except ApiRefused as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            self._unanswered.pop(replica_id, None)  # it may have run, and no id is used twice
            raise LaunchDeferred(f"{replica_id}: its pod was removed meanwhile; the next id is tried") from error
        if (made["metadata"].get("annotations") or {}).get(REPLICA_ID) != replica_id:
            self._unanswered.pop(replica_id, None)
            raise LaunchDeferred(f"{replica_id}: another pod has the name {pod_name(replica_id)}; the next id is tried")
        return made

    async def _owner_reference(self, name: str) -> dict[str, str]:
        try:
            uid = await self._api.uid_of_config_map(name)
        except ApiAway as error:
            raise LaunchDeferred(f"the API server of Kubernetes does not answer: {error}") from error
        except ApiRefused as error:
            if error.is_temporary:
                raise LaunchDeferred(f"the API server of Kubernetes is not ready: {error}") from error
            raise LaunchFailed(f"ConfigMap {name} of --kubernetes-owner cannot be read: {error}") from error
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}

    def _changed(self, changes: Sequence[PodChange]) -> None:
        events = self._events
        of_replicas = [(change, *known) for change in changes if (known := order_of(change.pod)) is not None]
        found = [
            self._found(replica_id, order, it.pod) for it, replica_id, order in of_replicas if it.news is PodNews.FOUND
        ]
        if any(found) and events is not None:
            events.found()  # once: there may be thousands
        for change, replica_id, order in of_replicas:
            pod = change.pod
            match change.news:
                case PodNews.WAITS | PodNews.RUNS if (launched := self._launched.get(replica_id)) is not None:
                    why = pod.why if change.news is PodNews.WAITS else ""
                    launched.instance = replace(launched.instance, waits_for=why)
                    if events is not None:
                        events.waits(replica_id, why)
                case PodNews.UNSTARTED if (launched := self._launched.get(replica_id)) is not None:
                    if not launched.is_asked:
                        self._lost(replica_id, pod)
                case PodNews.ENDED:
                    if pod.is_bound:
                        self._ended_pods[replica_id] = _logged_pod(order, pod, has_ended=True)
                    self._ended(replica_id, pod)
                case PodNews.LOST:
                    self._lost(replica_id, pod)
                    self._delete(pod, SHORTEST_GRACE_S)
                case _:
                    pass
        if not self._launched:
            self._emptied.set()
        self.logs.changed()

    def _logged(self) -> dict[str, LoggedPod]:
        running = {it: _logged_pod(launched.instance.order, launched.pod) for it, launched in self._launched.items()}
        return {**running, **self._ended_pods}

    def _found(self, replica_id: str, order: LaunchOrder, pod: PodView) -> bool:
        """Returns whether no call of `start` that is under way looks at what there is when it ends."""
        known = self._launched.get(replica_id)
        if known is not None and known.pod.name != pod.name:
            _log.error("a copy of a replica's pod is not followed", pod=pod.name, of=known.pod.name)
            return False
        is_own = replica_id in self._unanswered
        self._forget_request(replica_id)
        instance = Instance(replica_id=replica_id, order=order, pid=0, was_found=not is_own)
        self._launched[replica_id] = _Launched(instance, pod)
        self._emptied.clear()
        return not (is_own and self._starts)

    def _ended(self, replica_id: str, pod: PodView) -> None:
        launched = self._launched.get(replica_id)
        if launched is not None and launched.pod.uid == pod.uid:
            del self._launched[replica_id]
            self._exits.append(
                Exit(
                    replica_id=replica_id,
                    how=pod.why,
                    failed=pod.failed,
                    was_killed=pod.was_killed,
                    last_output=pod.last_output,
                )
            )
            self._report_exits()
        elif launched is None and self._events is not None:
            self._events.ended(replica_id, pod.why)
        self._delete(pod, 0, replica_id)

    def _lost(self, replica_id: str, pod: PodView) -> None:
        launched = self._launched.get(replica_id)
        if launched is not None and launched.pod.uid == pod.uid:
            del self._launched[replica_id]
            if self._events is not None:
                self._events.lost(replica_id, pod.why)

    def _report_exits(self) -> None:
        while self._exits and not self._starts:
            self._on_exit(self._exits.pop(0))

    def _answered(self) -> None:
        if self._events is not None:
            self._events.resumed()

    def _delete(self, pod: PodView, grace_s: int, read_first: str = "") -> None:
        """`read_first`: the replica whose last lines are kept, if it has any."""
        deletion = self._deleted(pod, grace_s, read_first)
        task = asyncio.get_running_loop().create_task(deletion, name=f"delete-{pod.name}")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _deleted(self, pod: PodView, grace_s: int, read_first: str) -> None:
        if (logged := self._ended_pods.get(read_first)) is not None:
            try:
                await self.logs.keep(read_first, logged)
            finally:
                self._ended_pods.pop(read_first, None)
                self.logs.changed()
        backoff = Backoff(initial_s=0.2, max_s=10.0)
        while True:
            try:
                await self._api.delete(pod.name, pod.uid, grace_s)
            except ApiAway:
                pass
            except ApiRefused as error:
                if error.code in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                    return  # there is no such pod any more
                if not error.is_temporary:
                    _log.error("Kubernetes refuses to delete a pod; it is tried again", pod=pod.name, why=str(error))
            else:
                return
            await asyncio.sleep(0.1 + backoff.next_delay_s())


def _logged_pod(order: LaunchOrder, pod: PodView, *, has_ended: bool = False) -> LoggedPod:
    return LoggedPod(order.backend, pod.name, pod.annotations.get(CONTAINER, ""), has_ended)


@dataclass(slots=True)
class _Launched:
    """A replica whose pod is there, and has not ended."""

    instance: Instance
    pod: PodView
    is_asked: bool = False
    """This controller has asked it to end. Not if another client has: that one is replaced when its replica drains."""
    is_killed: bool = False
    ends_by: float = field(default=0.0)
    """When its grace is over, by the clock of the event loop."""
