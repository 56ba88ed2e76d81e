"""What one version of a pod proves: its end only by a report of the kubelet, or if no node ever had it."""

from __future__ import annotations

from typing import Any

import pytest

from controller_service.core.pods.states import PodStage, PodView, view_of
from tests.support.pods import RUNNING, pod_document, terminated, waiting

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available:\n 3 Insufficient cpu.",
}


def staged(is_deleted: bool = False, **pod: Any) -> tuple[PodStage, str]:
    view = view_of(pod_document(**pod), is_deleted=is_deleted)
    return view.stage, view.why


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({"node": "", "phase": "Pending"}, "its pod is being scheduled"),
        (
            {"node": "", "phase": "Pending", "conditions": [UNSCHEDULABLE]},
            "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        ({"phase": "Pending", "startTime": "now"}, "its container is being created"),
        (
            {"phase": "Pending", "startTime": "now", "state": waiting("ContainerCreating")},
            "its container is being created",
        ),
        (
            {"phase": "Pending", "state": waiting("ImagePullBackOff", "Back-off pulling image app:3")},
            "ImagePullBackOff: Back-off pulling image app:3",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": waiting("ErrImagePull", "no")}]},
            "ErrImagePull: no",
        ),
        (
            {"phase": "Pending", "deleting": True},
            "its pod is being deleted, and no start of it was reported: its pod is being scheduled",
        ),
    ],
)
def test_a_pod_whose_container_has_not_started_waits_for_a_reason(pod: dict[str, Any], why: str) -> None:
    assert staged(**pod) == (PodStage.WAITING, why)


@pytest.mark.parametrize(
    "pod",
    [
        {"state": RUNNING},
        {"state": RUNNING, "deleting": True},
        {"state": RUNNING, "phase": "Unknown"},
        {"state": terminated(1), "restart_policy": "Always"},
        {"state": terminated(1), "restart_policy": "Always", "deleting": True},
        {"containerStatuses": [{"name": "replica", "restartCount": 3, "state": waiting("CrashLoopBackOff")}]},
        {},
    ],
    ids=[
        "it runs",
        "it drains",
        "its node is silent",
        "it is restarted",
        "its kubelet may not know yet",
        "",
        "unknown",
    ],
)
def test_a_replica_may_run_where_nothing_proves_that_it_does_not(pod: dict[str, Any]) -> None:
    assert staged(**pod) == (PodStage.RUNNING, "")


@pytest.mark.parametrize(
    ("state", "how", "failed", "was_killed"),
    [
        (terminated(0), "exited with status 0", False, False),
        (terminated(3), "exited with status 3", True, False),
        (terminated(137), "was killed by SIGKILL", True, True),
        (terminated(143), "was killed by SIGTERM", True, False),
        (terminated(137, reason="OOMKilled"), "was killed by SIGKILL (OOMKilled)", True, True),
    ],
)
def test_a_container_that_is_never_restarted_ends_its_pod(
    state: dict[str, Any], how: str, failed: bool, was_killed: bool
) -> None:
    view = view_of(pod_document(state={**state, "terminated": {**state["terminated"], "message": "last words"}}))
    assert (view.stage, view.why, view.failed, view.was_killed) == (PodStage.ENDED, how, failed, was_killed)
    assert view.last_output == "last words"


def test_a_pod_that_is_restarted_ends_with_its_phase_and_all_of_its_containers() -> None:
    always: dict[str, Any] = {
        "restart_policy": "Always",
        "phase": "Failed",
        "reason": "Evicted",
        "message": "low on memory",
    }
    assert staged(state=terminated(137), **always) == (
        PodStage.ENDED,
        "was killed by SIGKILL (Evicted: low on memory)",
    )
    two = pod_document(state=terminated(), **always)
    two["spec"]["containers"].append({"name": "sidecar"})
    assert view_of(two).stage is PodStage.LOST
    two["status"]["containerStatuses"].append({"name": "sidecar", "state": RUNNING})
    assert view_of(two).stage is PodStage.LOST
    two["status"]["containerStatuses"][-1]["state"] = terminated()
    assert view_of(two).stage is PodStage.ENDED


def test_the_end_of_a_sidecar_is_not_that_of_the_replica() -> None:
    pod = pod_document(state=RUNNING)
    pod["spec"]["containers"].insert(0, {"name": "sidecar"})
    pod["status"]["containerStatuses"].insert(0, {"name": "sidecar", "state": terminated()})
    assert view_of(pod).stage is PodStage.RUNNING
    pod["status"]["containerStatuses"][1]["state"] = terminated(7)
    assert view_of(pod).why == "exited with status 7"


def with_init(**own: Any) -> dict[str, Any]:
    """A pod whose init container has failed."""
    pod = pod_document(phase="Failed", state=waiting("PodInitializing"))
    pod["spec"]["initContainers"] = [{"name": "fetch", **own}]
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", "state": terminated(7)}]
    return pod


def test_a_pod_whose_init_container_has_failed_has_never_run_its_replica() -> None:
    view = view_of(with_init())
    assert (view.stage, view.failed) == (PodStage.ENDED, True)
    assert view.why == "its init container fetch exited with status 7"


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("spec", {"restartPolicy": "Always"}),
        ("spec", {"initContainers": [{"name": "fetch", "restartPolicy": "Always"}]}),
        ("spec", {"initContainers": [{"name": "fetch", "restartPolicyRules": [{"action": "Restart"}]}]}),
        ("status", {"initContainerStatuses": [{"name": "fetch", "state": terminated(0)}]}),
        ("status", {"initContainerStatuses": [{"name": "fetch", "state": RUNNING}]}),
        ("status", {"containerStatuses": [{"name": "replica", "restartCount": 0, "state": RUNNING}]}),
        ("status", {"containerStatuses": []}),
    ],
    ids=["policy", "sidecar", "rules", "it has succeeded", "it runs", "the replica runs", "the replica is unknown"],
)
def test_an_init_container_proves_nothing_where_the_replica_may_have_run(part: str, values: dict[str, Any]) -> None:
    pod = with_init()
    pod[part] |= values
    assert view_of(pod).stage is PodStage.LOST


PROXY_FIRST = [{"name": "proxy"}, {"name": "server"}]


@pytest.mark.parametrize("annotations", [{"slotmesh.dev/container": "server"}, {}], ids=["named", "unknown"])
def test_a_container_that_was_added_before_the_others_is_not_the_replica(annotations: dict[str, str]) -> None:
    pod = pod_document(annotations=annotations)
    pod["spec"]["containers"] = PROXY_FIRST
    statuses = [{"name": "proxy", "state": terminated(2)}, {"name": "server", "state": RUNNING}]
    pod["status"]["containerStatuses"] = statuses
    assert view_of(pod).stage is PodStage.RUNNING
    statuses[1]["state"] = terminated(3)
    pod["status"]["phase"] = "Failed"
    assert view_of(pod).stage is PodStage.ENDED


def test_a_replica_ends_while_a_container_runs_that_was_added_before_it() -> None:
    pod = pod_document(annotations={"slotmesh.dev/container": "server"})
    pod["spec"]["containers"] = PROXY_FIRST
    statuses = [{"name": "proxy", "state": RUNNING}, {"name": "server", "state": terminated(3)}]
    pod["status"]["containerStatuses"] = statuses
    assert (view_of(pod).stage, view_of(pod).why) == (PodStage.ENDED, "exited with status 3")


@pytest.mark.parametrize(
    ("own", "proxy"),
    [
        ({"restartPolicy": "Always"}, {}),
        ({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, {}),
        ({}, {"restartPolicyRules": [{"action": "RestartAllContainers"}]}),
    ],
    ids=["its own policy", "its own rules", "rules of another one"],
)
def test_a_container_that_its_own_policy_restarts_has_not_ended(own: dict[str, Any], proxy: dict[str, Any]) -> None:
    pod = pod_document(state=terminated(1))
    pod["spec"] |= {"containers": [{"name": "replica", **own}], "initContainers": [{"name": "proxy", **proxy}]}
    assert view_of(pod).stage is PodStage.RUNNING
    pod["status"]["phase"] = "Failed"
    assert view_of(pod).stage is PodStage.ENDED


def test_a_pod_that_no_node_had_has_never_run() -> None:
    why = "its pod was deleted before a node was chosen"
    assert staged(is_deleted=True, node="", phase="Pending") == (PodStage.ENDED, why)
    assert staged(node="", phase="Failed", message="no tokens")[0] is PodStage.ENDED


@pytest.mark.parametrize("state", [None, RUNNING, waiting("ContainerCreating")])
def test_a_deletion_proves_nothing_of_a_pod_that_a_node_had(state: Any) -> None:
    assert staged(is_deleted=True, state=state) == (
        PodStage.LOST,
        "its pod was deleted, and its end was not reported",
    )


@pytest.mark.parametrize("state", [None, RUNNING])
def test_a_phase_that_others_have_written_proves_nothing(state: Any) -> None:
    stage, why = staged(state=state, phase="Failed", reason="NodeLost", message="node-a is gone")
    assert stage is PodStage.LOST
    assert why == "its pod counts as failed, and its end was not reported: NodeLost: node-a is gone"


REJECTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "OutOfcpu",
    "message": "Pod was rejected: Node didn't have enough resource: cpu",
}


def test_a_pod_that_its_kubelet_has_not_admitted_has_never_run() -> None:
    view = view_of(pod_document(**REJECTED))
    assert (view.stage, view.failed) == (PodStage.ENDED, True)
    assert view.why == "its node has rejected its pod: OutOfcpu: Node didn't have enough resource: cpu"
    assert view_of(pod_document(**REJECTED), is_deleted=True).stage is PodStage.ENDED


@pytest.mark.parametrize(
    "pod",
    [{"state": RUNNING}, {"initContainerStatuses": [{"name": "i", "state": RUNNING}]}, {"message": "it was rejected"}],
    ids=["container", "init container", "another message"],
)
def test_a_rejection_beside_a_container_proves_nothing(pod: dict[str, Any]) -> None:
    assert staged(**{**REJECTED, **pod})[0] is PodStage.LOST


@pytest.mark.parametrize("pod", [{}, {"metadata": None, "spec": None, "status": None}, {"spec": {"containers": []}}])
def test_what_is_absent_is_unknown(pod: dict[str, Any]) -> None:
    assert view_of(pod) == PodView(name="", uid="", stage=PodStage.WAITING, why="its pod is being scheduled")
