"""The launcher of pods, where answers, lists and events arrive in an unusual order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_service.shell.launchers.kubernetes import following, launcher
from controller_service.shell.launchers.kubernetes.api import ApiAway, ApiRefused
from controller_service.shell.launchers.protocol import LaunchDeferred, LaunchFailed, LaunchOrder
from slotmesh.runtime.backoff import Backoff
from tests.support.fakes.pod_api import FakePodApi
from tests.support.kubernetes_launcher import MANIFESTS, following_pods, numbered
from tests.support.wait import wait_until, within

ORDER = LaunchOrder(backend="v1", handler="app:Cart", template="t", fixed="f")
NOT_READY = ApiRefused(503, "", "try again")
pytestmark = pytest.mark.asyncio


async def create_late(api: FakePodApi, replica_id: str) -> None:
    """The API server carries out a request after its caller has given up."""
    await api.create(MANIFESTS.pod_of(ORDER, replica_id, None))


async def test_a_pod_that_is_found_while_its_request_is_repeated_is_not_counted_as_requested_any_more() -> None:
    async with following_pods(mint_id=numbered(), owner="mesh") as it:
        it.api.refusal = NOT_READY
        with pytest.raises(LaunchDeferred):
            await it.launcher.start(ORDER, 1)
        it.api.refusal = None
        owner = it.api.uid_of_config_map

        async def slow_owner(name: str) -> str:
            await create_late(it.api, "v1-1")
            await wait_until(lambda: it.observed() == ["v1-1"], what="the watch")
            return await owner(name)

        it.api.uid_of_config_map = slow_owner  # type: ignore[method-assign]
        await it.launcher.start(ORDER, 1)
        it.api.uid_of_config_map = owner  # type: ignore[method-assign]
        await it.launcher.start(ORDER, 2)
        assert it.observed() == ["v1-1", "v1-2"]


async def test_no_pod_is_requested_again_that_has_run_and_ended_meanwhile() -> None:
    async with following_pods(mint_id=numbered()) as it:
        it.api.refusal = NOT_READY
        for _ in range(2):  # each start ends with the first requests that fail
            with pytest.raises(LaunchDeferred):
                await it.launcher.start(ORDER, 9)
        it.api.refusal = None
        create, requested = it.api.create, list[str]()

        async def create_and_see(pod: Any) -> Any:
            if not requested:
                requested.append("v1-9")
                await create(MANIFESTS.pod_of(ORDER, "v1-9", None))
                it.api.end("v1-9")
                await wait_until(lambda: "v1-9" not in it.api.pods, what="its removal")
            requested.append(pod["metadata"]["name"])
            return await create(pod)

        it.api.create = create_and_see  # type: ignore[method-assign]
        await it.launcher.start(ORDER, 9)
        assert requested.count("v1-9") == 1


async def test_a_request_that_takes_longer_than_a_start_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with webhooks that take seconds: the API server gives a request up whose client does."""
    monkeypatch.setattr(launcher, "START_WITHIN_S", 0.01)
    async with following_pods(mint_id=numbered()) as it:
        create, admitted, requested = it.api.create, asyncio.Event(), list[str]()

        async def slow(pod: Any) -> Any:
            requested.append(pod["metadata"]["name"])
            await admitted.wait()
            return await create(pod)

        it.api.create = slow  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(LaunchDeferred, match="has not answered in time"):
                await it.launcher.start(ORDER, 2)
        monkeypatch.setattr(launcher, "START_WITHIN_S", 10.0)
        admitted.set()
        await wait_until(lambda: len(it.observed()) == 2, what="the pods of the first start")
        await it.launcher.start(ORDER, 2)
        assert it.observed() == ["v1-1", "v1-2"]
        assert requested == ["v1-1", "v1-2"], "later starts wait for the same requests"


async def test_a_refusal_that_arrives_after_its_start_is_that_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "START_WITHIN_S", 0.01)
    async with following_pods(mint_id=numbered()) as it:
        answered = asyncio.Event()

        async def refused(_pod: Any) -> Any:
            await answered.wait()
            raise ApiRefused(403, "Forbidden", "exceeded quota")

        it.api.create = refused  # type: ignore[method-assign,assignment]
        with pytest.raises(LaunchDeferred):
            await it.launcher.start(ORDER, 1)
        answered.set()
        with pytest.raises(LaunchFailed, match="exceeded quota"):
            await it.launcher.start(ORDER, 1)


async def test_a_pod_whose_request_is_carried_out_after_its_start_was_deferred_is_taken_over() -> None:
    """No further start may follow: the backend may be deleted meanwhile."""
    async with following_pods(mint_id=numbered()) as it:
        it.api.refusal = NOT_READY
        with pytest.raises(LaunchDeferred):
            await it.launcher.start(ORDER, 1)
        it.api.refusal = None
        await create_late(it.api, "v1-1")
        await wait_until(lambda: it.observed() == ["v1-1"], what="the watch")
        assert ("found",) in it.events.log


async def test_a_pod_that_is_removed_while_its_lost_answer_is_looked_up_is_started_later() -> None:
    async with following_pods(mint_id=numbered()) as it:
        create = it.api.create

        async def taken(pod: Any) -> Any:
            raise ApiRefused(409, "AlreadyExists", "pods v1-1 already exists")

        it.api.create = taken  # type: ignore[method-assign]
        with pytest.raises(LaunchDeferred):
            await it.launcher.start(ORDER, 1)
        it.api.create = create  # type: ignore[method-assign]
        await it.launcher.start(ORDER, 1)
        assert len(it.observed()) == 1


async def test_a_pod_that_is_created_while_pods_are_listed_is_not_lost() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, 1)
        listing, create = it.api.list, it.api.create
        listed, sent, created = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow_list() -> Any:
            answer = await listing()
            listed.set()
            await within(created.wait(), "the creation")
            return answer

        async def slow_create(pod: Any) -> Any:
            sent.set()
            await within(listed.wait(), "the list")
            return await create(pod)

        it.api.list, it.api.create = slow_list, slow_create  # type: ignore[method-assign]
        start = asyncio.create_task(it.launcher.start(ORDER, 2))
        await within(sent.wait(), "the request")
        it.api.break_watches(compact=True)
        await start
        created.set()
        await wait_until(lambda: it.api.lists == 2 and not it.launcher.follower.problem, what="the second list")
        it.api.run("v1-2")
        await wait_until(lambda: ("waits", "v1-2", "") in it.events.log, what="the start, by the watch")
        assert it.observed() == ["v1-1", "v1-2"]
        assert it.events.log[-1][0] != "lost"
        assert it.api.deletions == []


async def test_pods_are_listed_again_if_a_proxy_answered_while_the_api_server_was_restored() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, 1)
        it.api.proxy = ApiRefused(502, "", "bad gateway")
        it.api.break_watches()
        await wait_until(lambda: "bad gateway" in it.launcher.follower.problem, what="the proxy")
        it.api.restore()
        it.api.end("v1-1")
        it.api.proxy = None
        await wait_until(lambda: len(it.exits) == 1, what="an end with a version that was there before")


async def test_pods_that_are_found_together_are_taken_over_at_once() -> None:
    api = FakePodApi()
    for number in range(50):
        await create_late(api, f"v1-{number}")
    api.end("v1-7")
    async with following_pods(api) as it:
        assert len(it.observed()) == 49
        assert [each.replica_id for each in it.exits] == ["v1-7"]
        assert it.events.log.count(("found",)) == 1


async def test_the_end_of_a_copy_of_a_pod_is_not_that_of_its_replica() -> None:
    """A copy has the annotations, too."""
    async with following_pods() as it:
        await it.launcher.start(ORDER, 1)
        copy: dict[str, Any] = {**it.api.pods["v1"], "metadata": {**it.api.pods["v1"]["metadata"], "name": "debug"}}
        await it.api.create({**copy, "spec": {"containers": [{"name": "replica"}], "restartPolicy": "Never"}})
        it.api.end("debug")
        await wait_until(lambda: ("debug", 0) in it.api.deletions, what="the end of the copy")
        assert it.observed() == ["v1"]
        assert it.exits == []
        assert not {"ended", "lost"} & {news for news, *_ in it.events.log}


class RecordedBackoff(Backoff):
    """Records its delays, which are the longest ones."""

    def __init__(self) -> None:
        super().__init__(initial_s=0.001, max_s=0.004, draw=lambda: 1.0)
        self.delays: list[float] = []

    def next_delay_s(self) -> float:
        self.delays.append(super().next_delay_s())
        return self.delays[-1]


@pytest.mark.parametrize("error", [None, ApiRefused(410, "Expired", "too old"), ApiAway("closed")], ids=str)
async def test_a_watch_that_ends_as_soon_as_it_is_open_is_repeated_less_and_less_often(error: Exception | None) -> None:
    async with following_pods() as it:
        watch = it.api.watch
        it.launcher.follower.backoff = backoff = RecordedBackoff()

        async def ended(_version: str) -> Any:
            yield {}
            if error is not None:
                raise error

        it.api.watch = ended  # type: ignore[method-assign,assignment]
        it.api.is_away = True
        it.api.break_watches()
        await wait_until(lambda: bool(it.launcher.follower.problem), what="the break")
        it.api.is_away = False
        await wait_until(lambda: len(backoff.delays) > 6, what="attempts")
        it.api.watch = watch  # type: ignore[method-assign]
        assert backoff.delays[3:6] == [0.004] * 3


async def test_a_watch_that_lasted_is_repeated_after_the_shortest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SHORT_WATCH_S", 0.0)
    async with following_pods() as it:
        it.launcher.follower.backoff = backoff = RecordedBackoff()

        async def ended(_version: str) -> Any:
            yield {}
            raise ApiAway("closed")

        it.api.watch = ended  # type: ignore[method-assign,assignment]
        it.api.is_away = True
        it.api.break_watches()
        await wait_until(lambda: bool(it.launcher.follower.problem), what="the break")
        it.api.is_away = False
        await wait_until(lambda: len(backoff.delays) > 4, what="attempts")
        assert set(backoff.delays) == {0.001}
