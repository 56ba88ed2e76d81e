"""The launcher of pods, and what it does when the API server is away, refuses, or has lost an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_service.shell.launchers.kubernetes.api import ApiRefused, PodApi
from controller_service.shell.launchers.kubernetes.watching import PodWatchLauncher
from controller_service.shell.launchers.protocol import LaunchDeferred, LaunchFailed, LaunchOrder
from tests.support.fakes.pod_api import FakePodApi
from tests.support.kubernetes_launcher import RecordedEvents, following_pods, numbered
from tests.support.wait import wait_until

ORDER = LaunchOrder(backend="v1", handler="app:Cart", template="t", fixed="f")
FORBIDDEN = ApiRefused(403, "Forbidden", "pods is forbidden: exceeded quota: pods, requested: pods=1")
INVALID = ApiRefused(422, "Invalid", 'Pod "v1-1" is invalid: spec.containers[0].image: Required value')
pytestmark = pytest.mark.asyncio


async def test_how_many_pods_should_run_is_a_level() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, 2)
        await it.launcher.start(ORDER, 2)
        await it.launcher.start(ORDER, 1)
        assert it.pods() == it.observed() == ["v1-1", "v1-2"]
        it.launcher.stop("v1-1", grace_s=30.0)
        await it.launcher.start(ORDER, 2)
        assert it.observed()[-1] == "v1-3"
        await wait_until(lambda: len(it.pods()) == 2, what="the end of the first one")
        assert ("v1-1", 30) in it.api.deletions


async def test_nothing_is_started_before_it_is_known_what_runs() -> None:
    api = FakePodApi()
    api.is_away = True
    async with following_pods(api) as it:
        with pytest.raises(LaunchDeferred, match="no pod is started: the API server of Kubernetes"):
            await it.launcher.start(ORDER, 1)
        api.is_away = False
        await wait_until(lambda: it.events.log == [("resumed",)], what="the first list")
        await it.launcher.start(ORDER, 1)


async def test_a_later_controller_takes_over_what_runs_and_counts_it() -> None:
    api = FakePodApi()
    async with following_pods(api, mint_id=numbered(), leaves=True) as before:
        await before.launcher.start(ORDER, 2)
    assert api.is_closed
    assert len(api.pods) == 2
    api.end("v1-1", 3)
    async with following_pods(api, mint_id=lambda _: "v1-new") as it:
        (found,) = it.launcher.observe()
        assert (found.replica_id, found.order, found.was_found, found.pid) == ("v1-2", ORDER, True, 0)
        assert it.events.log[0] == ("found",)
        assert [(e.replica_id, e.how) for e in it.exits] == [("v1-1", "exited with status 3")]
        await it.launcher.start(ORDER, 2)
        assert it.observed() == ["v1-2", "v1-new"]
        api.run(await surplus(api))
        await wait_until(lambda: len(it.observed()) == 3, what="a pod that a late leader has created")


async def surplus(api: FakePodApi) -> str:
    """A pod that an earlier leader creates late."""
    pod: dict[str, Any] = {**api.pods["v1-2"], "metadata": {**api.pods["v1-2"]["metadata"], "name": "v1-late"}}
    annotations = {**pod["metadata"]["annotations"], "slotmesh.dev/replica-id": "v1-late"}
    pod["metadata"]["annotations"] = annotations
    await api.create({**pod, "spec": {"containers": pod["spec"]["containers"], "restartPolicy": "Never"}})
    return "v1-late"


@pytest.mark.parametrize("refusal", [FORBIDDEN, INVALID])
async def test_what_the_api_server_refuses_for_good_is_a_failure_with_its_words(refusal: ApiRefused) -> None:
    async with following_pods() as it:
        it.api.refusal = refusal
        with pytest.raises(
            LaunchFailed, match=f"Kubernetes refuses the pod \\({refusal.code} {refusal.reason}\\)"
        ) as why:
            await it.launcher.start(ORDER, 1)
        assert str(refusal) in str(why.value)


@pytest.mark.parametrize("code", [429, 500, 503, 504])
async def test_what_may_succeed_later_is_deferred_and_repeated_under_the_same_name(code: int) -> None:
    async with following_pods(mint_id=numbered()) as it:
        it.api.refusal = ApiRefused(code, "", "try again")
        for _ in range(3):
            with pytest.raises(LaunchDeferred):
                await it.launcher.start(ORDER, 1)
        it.api.refusal = None
        await it.launcher.start(ORDER, 1)
        assert it.pods() == ["v1-1"]


async def test_a_pod_whose_answer_was_lost_is_found_and_not_started_twice() -> None:
    async with following_pods(mint_id=numbered()) as it:
        it.api.loses_answers = True
        with pytest.raises(LaunchDeferred):
            await it.launcher.start(ORDER, 1)
        await it.launcher.start(ORDER, 1)  # the watch may have shown it, or the name is taken
        assert it.pods() == it.observed() == ["v1-1"]
        (instance,) = it.launcher.observe()
        assert not instance.was_found


async def test_a_name_that_is_taken_by_a_pod_of_others_is_left_to_them() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.api.create({"metadata": {"name": "v1-1"}, "spec": {"containers": []}})
        with pytest.raises(LaunchDeferred, match="another pod has the name v1-1"):
            await it.launcher.start(ORDER, 1)
        await it.launcher.start(ORDER, 1)
        assert it.observed() == ["v1-2"]


async def test_a_forced_deletion_loses_a_replica_and_does_not_end_it() -> None:
    async with following_pods() as it:
        await it.launcher.start(ORDER, 1)
        it.api.remove("v1")
        await wait_until(lambda: not it.observed(), what="the deletion")
        assert it.events.log[-1] == ("lost", "v1", "its pod was deleted, and its end was not reported")
        assert it.exits == []


async def test_a_pod_that_others_delete_before_its_start_was_reported_is_replaced_immediately() -> None:
    """As on a node that is lost, to which it was bound before that was found out."""
    async with following_pods(mint_id=numbered()) as it:
        it.api.starts_pods = False
        await it.launcher.start(ORDER, 1)
        it.api.update("v1-1", spec={"nodeName": "node-a"})
        it.api.update("v1-1", metadata={"deletionTimestamp": "now"})
        await wait_until(lambda: not it.observed(), what="the loss")
        news, replica_id, why = it.events.log[-1]
        assert (news, replica_id) == ("lost", "v1-1")
        assert why.startswith("its pod is being deleted, and no start of it was reported")
        it.api.starts_pods = True
        await it.launcher.start(ORDER, 1)
        assert it.observed() == ["v1-2"]
        assert not it.exits
        assert not it.api.deletions, "its grace is that of the client that deletes it"
        it.api.run("v1-1")
        it.api.end("v1-1", 0)
        await wait_until(lambda: it.events.log[-1][0] == "ended", what="the report of its node, which has returned")
        assert it.exits == []


async def test_a_pod_that_this_controller_deletes_before_its_start_was_reported_is_waited_for() -> None:
    async with following_pods() as it:
        it.api.starts_pods = False
        it.api.silent.add("v1")
        await it.launcher.start(ORDER, 1)
        it.api.update("v1", spec={"nodeName": "node-a"})
        it.launcher.stop("v1", grace_s=30.0)
        await wait_until(lambda: bool(it.api.pods["v1"]["metadata"].get("deletionTimestamp")), what="the deletion")
        it.api.end("v1", 0)
        await wait_until(lambda: bool(it.exits), what="its end")
        assert "lost" not in {news for news, *_ in it.events.log}


async def test_a_lost_pod_that_is_reported_on_after_all_has_ended() -> None:
    async with following_pods() as it:
        await it.launcher.start(ORDER, 1)
        it.api.silent.add("v1")
        it.api.update("v1", status={"phase": "Failed", "reason": "NodeLost"})
        await wait_until(lambda: not it.observed(), what="the mark")
        it.api.end("v1", 0)
        await wait_until(lambda: it.events.log[-1][0] == "ended", what="the report")
        assert [news for news, *_ in it.events.log] == ["resumed", "waits", "waits", "lost", "ended"]
        assert it.events.log[-1] == ("ended", "v1", "exited with status 0 (NodeLost)")
        assert it.exits == []


async def test_pods_are_listed_again_only_if_their_version_is_not_there_any_more() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, 2)
        it.api.is_away = True
        it.api.break_watches()
        await wait_until(lambda: bool(it.launcher.follower.problem), what="the broken watch")
        it.api.end("v1-1")
        it.api.is_away = False
        await wait_until(lambda: len(it.exits) == 1, what="what was missed")
        assert it.api.lists == 1
        assert it.launcher.watch_age_s is not None
        assert 0.0 <= it.launcher.watch_age_s < 20.0
        it.api.pods.pop("v1-2")
        it.api.break_watches(compact=True)
        await wait_until(lambda: not it.observed(), what="the second list")
        assert it.api.lists == 2
        assert it.events.log[-2:] == [
            ("lost", "v1-2", "its pod is not there any more, and its end was not reported"),
            ("resumed",),
        ]


async def test_pods_are_listed_again_if_the_api_server_was_restored_from_a_backup() -> None:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, 2)
        it.api.is_away = True
        it.api.break_watches()
        await wait_until(lambda: bool(it.launcher.follower.problem), what="the broken watch")
        it.api.restore()
        it.api.end("v1-1")
        it.api.is_away = False
        await wait_until(lambda: len(it.exits) == 1, what="an end with a version that was there before")
        assert it.api.lists == 2
        it.api.end("v1-2")
        await wait_until(lambda: len(it.exits) == 2, what="the next end")


async def test_who_may_not_list_pods_is_told_so_by_each_start() -> None:
    api = FakePodApi()
    api.list_refusal = ApiRefused(403, "Forbidden", "pods is forbidden: User x cannot list resource")
    async with following_pods(api) as it:
        await wait_until(lambda: it.launcher.follower.is_refused, what="the refusal")
        with pytest.raises(LaunchFailed, match="refuses to list or watch pods: pods is forbidden: User x"):
            await it.launcher.start(ORDER, 1)


async def test_a_pod_that_cannot_be_scheduled_says_why_and_ends_where_it_is_not_needed() -> None:
    async with following_pods() as it:
        it.api.starts_pods = False
        await it.launcher.start(ORDER, 1)
        (instance,) = it.launcher.observe()
        assert instance.waits_for == "its pod is being scheduled"
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
        it.api.update("v1", status={"conditions": [condition]})
        await wait_until(lambda: it.events.log[-1] == ("waits", "v1", "Unschedulable: no CPU"), what="the reason")
        it.launcher.stop("v1", grace_s=30.0)
        await wait_until(lambda: bool(it.exits), what="its end")
        assert it.exits[0].how == "its pod was deleted before a node was chosen"


async def test_requests_to_end_pods_outlive_an_absence_of_the_api_server() -> None:
    async with following_pods() as it:
        await it.launcher.start(ORDER, 1)
        it.api.is_away = True
        it.launcher.stop("v1", grace_s=5.0)
        await wait_until(lambda: not it.api.deletions, what="nothing")
        it.api.is_away = False
        await wait_until(lambda: bool(it.exits), what="its end")
        assert it.exits[0].how == "exited with status 0"


async def test_pods_belong_to_the_config_map_that_owns_them() -> None:
    async with following_pods(owner="mesh") as it:
        await it.launcher.start(ORDER, 1)
        assert it.api.pods["v1"]["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "mesh", "uid": "owner-uid"}
        ]
        it.api.owner_uid = None
        with pytest.raises(LaunchFailed, match="ConfigMap mesh of --kubernetes-owner cannot be read"):
            await it.launcher.start(ORDER, 2)


async def test_a_watch_of_pods_that_others_start_reports_the_ends_of_pods_alone() -> None:
    fake: Any = FakePodApi()
    api: PodApi = fake
    await fake.create(
        {"metadata": {"name": "web-1"}, "spec": {"containers": [{"name": "replica"}], "restartPolicy": "Always"}}
    )
    await fake.create(
        {"metadata": {"name": "web-2"}, "spec": {"containers": [{"name": "replica"}], "restartPolicy": "Always"}}
    )
    launcher, events = PodWatchLauncher(api), RecordedEvents()

    following = asyncio.create_task(launcher.follow(events))
    await wait_until(lambda: not launcher.follower.problem, what="the first list")
    uid = fake.pods["web-1"]["metadata"]["uid"]
    fake.end("web-1", 1)
    fake.remove("web-2")
    await wait_until(lambda: bool(events.log), what="the end")
    assert events.log == [("pod_ended", uid, "exited with status 1")]
    assert fake.deletions == []
    assert not launcher.launches
    await launcher.leave()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_pods_are_followed_again_after_an_error_that_no_one_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakePodApi()
    fake: Any = api
    launcher = PodWatchLauncher(fake)
    with monkeypatch.context() as patched:
        patched.setattr(api, "list", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await launcher.follow(RecordedEvents())
    assert not api.is_closed
    following = asyncio.create_task(launcher.follow(RecordedEvents()))
    await wait_until(lambda: not launcher.follower.problem, what="the first list")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert api.is_closed
