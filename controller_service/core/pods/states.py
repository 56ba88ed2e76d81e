"""What one version of a pod says of its replica.

Invariants: a pod has ended only if its kubelet has reported the end of its processes, or that it rejects the pod, or if
it was never bound to a node. A pod that was deleted, or marked as failed, without such a report may run on: it is
*lost*. Phases of a pod, and the end of a container that is not restarted, are final. Text of the API server is data:
whatever is absent in it is unknown, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

REPLICA_CONTAINER: Final = "replica"
"""The container that runs the replica, if a pod has several; otherwise it may have any name."""
CONTAINER: Final = "slotmesh.dev/container"
"""The annotation that names it, whatever its name: others may have been added to the pod since, also before it."""
_REJECTED: Final = "Pod was rejected: "
"""How the message of a pod begins that its kubelet has not admitted. No other component writes it, and a kubelet does
not write it as long as it could run containers of the pod."""
_FINAL: Final = frozenset({"Succeeded", "Failed"})
_SIGNALS: Final = {9: "SIGKILL", 15: "SIGTERM", 6: "SIGABRT", 11: "SIGSEGV", 2: "SIGINT"}
_SIGNAL_BASE: Final = 128
_MAX_CHARS: Final = 400
"""Of a reason; messages of schedulers name every node."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class PodStage(Enum):
    """Where a pod is in its life."""

    WAITING = auto()
    """Its replica's container has not started."""
    RUNNING = auto()
    """Its replica may run."""
    ENDED = auto()
    """Nothing of it runs, and nothing will."""
    LOST = auto()
    """It will not be reported on again, and its processes may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One version of a pod."""

    name: str
    uid: str
    version: str = ""
    """The resource version."""
    stage: PodStage
    is_bound: bool = False
    """A node was chosen: a kubelet may have started it."""
    is_asked: bool = False
    """Its deletion was requested: it ends within its grace."""
    why: str = ""
    """For a person: what it waits for, how it has ended, or why it is lost."""
    failed: bool = False
    """It has ended, and not with status 0."""
    was_killed: bool = False
    """It was ended by SIGKILL."""
    is_rejected: bool = False
    """Its kubelet has not admitted it: it has never run, unless an earlier version says that it did."""
    last_output: str = ""
    """The last lines that it has written, as far as the kubelet reports them."""
    annotations: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @property
    def is_unstarted(self) -> bool:
        """Its deletion was requested before a start was reported. If its node is lost, that never changes."""
        return self.is_asked and self.stage is PodStage.WAITING


def view_of(pod: Mapping[str, Any], *, is_deleted: bool = False) -> PodView:
    """Reads a pod, as JSON has it. `is_deleted`: the API server has removed it, and this was its last version."""
    metadata, spec, status = (pod.get(part) or _NOTHING for part in ("metadata", "spec", "status"))
    view = PodView(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        stage=PodStage.RUNNING,
        is_bound=bool(spec.get("nodeName")),
        is_asked=bool(metadata.get("deletionTimestamp")),
        annotations=metadata.get("annotations") or _NOTHING,
    )
    return _staged(view, spec, status, is_deleted=is_deleted)


def is_before(version: str, other: str) -> bool:
    """Whether a resource version is certainly older than another one of the same API server."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def without_report(view: PodView) -> PodView:
    """A pod that is not there any more; its last version is not known."""
    return replace(view, stage=PodStage.LOST, why="its pod is not there any more, and its end was not reported")


def _staged(view: PodView, spec: Mapping[str, Any], status: Mapping[str, Any], *, is_deleted: bool) -> PodView:
    is_final = status.get("phase") in _FINAL
    statuses = status.get("containerStatuses") or ()
    own = _own_name(spec, view.annotations)
    ends = {it.get("name", ""): end for it in statuses if (end := (it.get("state") or _NOTHING).get("terminated"))}
    has_ended_for_good = own in ends and spec.get("restartPolicy") == "Never" and not _may_restart(own, spec)
    if has_ended_for_good or (is_final and ends and {it.get("name") for it in spec.get("containers", ())} <= {*ends}):
        return _ended(view, ends.get(own) or next(iter(ends.values())), status)
    if not view.is_bound and (is_final or is_deleted):
        why = _text(status.get("message")) if is_final else ""
        return replace(
            view, stage=PodStage.ENDED, why=why or "its pod was deleted before a node was chosen", failed=True
        )
    if is_final and (failed_init := _failed_init(own, spec, status)):
        return replace(view, stage=PodStage.ENDED, why=failed_init, failed=True)
    if is_final and status.get("message", "").startswith(_REJECTED) and not (statuses or _init_statuses(status)):
        why = _reason(status.get("reason", ""), status["message"].removeprefix(_REJECTED))
        why = f"its node has rejected its pod: {why}"
        return replace(view, stage=PodStage.ENDED, why=why, failed=True, is_rejected=True)
    if is_deleted:
        return replace(view, stage=PodStage.LOST, why="its pod was deleted, and its end was not reported")
    if is_final:
        why = _reason(status.get("reason", ""), status.get("message", "")) or "no reason is given"
        return replace(view, stage=PodStage.LOST, why=f"its pod counts as failed, and its end was not reported: {why}")
    if view.is_bound and not _is_waiting(own, statuses, status):
        return view
    why = _obstacle(statuses, status)
    if view.is_asked:
        why = f"its pod is being deleted, and no start of it was reported: {why}"
    return replace(view, stage=PodStage.WAITING, why=why)


def _own_name(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """The replica's container; empty if it may be any of several."""
    names: Sequence[str] = [it.get("name", "") for it in spec.get("containers", ())]
    own = annotations.get(CONTAINER, REPLICA_CONTAINER)
    return own if own in names else (names[0] if len(names) == 1 else "")


def _may_restart(own: str, spec: Mapping[str, Any]) -> bool:
    """Whether a policy of containers restarts this one, in a pod that has the policy `Never`."""
    containers: Sequence[Mapping[str, Any]] = (*spec.get("containers", ()), *(spec.get("initContainers") or ()))
    return any(
        it.get("restartPolicyRules") or (it.get("name") == own and it.get("restartPolicy", "Never") != "Never")
        for it in containers
    )


def _failed_init(own: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Which init container has failed, so that the replica's was never started; empty if that is not certain."""
    statuses = status.get("containerStatuses") or ()
    if spec.get("restartPolicy") != "Never" or _may_restart(own, spec) or not _is_waiting(own, statuses, status):
        return ""
    sidecars = {it.get("name") for it in spec.get("initContainers") or () if it.get("restartPolicy") == "Always"}
    for each in _init_statuses(status):
        end = (each.get("state") or _NOTHING).get("terminated") or _NOTHING
        if end.get("exitCode") and each.get("name") not in sidecars:
            return f"its init container {each.get('name')} exited with status {end['exitCode']}"
    return ""


def _init_statuses(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return status.get("initContainerStatuses") or ()


def _ended(view: PodView, end: Mapping[str, Any], status: Mapping[str, Any]) -> PodView:
    code = end.get("exitCode", 0)
    number = code - _SIGNAL_BASE
    how = f"was killed by {_SIGNALS[number]}" if number in _SIGNALS else f"exited with status {code}"
    why = end.get("reason", "")
    more = [] if why in {"", "Completed", "Error"} else [why]
    more += [said] if (said := _reason(status.get("reason", ""), status.get("message", ""))) else []
    return replace(
        view,
        stage=PodStage.ENDED,
        why=f"{how} ({'; '.join(more)})" if more else how,
        failed=code != 0,
        was_killed=_SIGNALS.get(number) == "SIGKILL",
        last_output=end.get("message", ""),
    )


def _is_waiting(own: str, statuses: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> bool:
    """Whether its replica's container has certainly never run."""
    (found, *_) = [*(it for it in statuses if it.get("name") == own), _NOTHING]
    if not found:
        return bool(status.get("phase", "Pending") == "Pending")
    is_new = not found.get("restartCount") and not (found.get("lastState") or _NOTHING).get("terminated")
    return bool(is_new and "waiting" in (found.get("state") or _NOTHING))


def _obstacle(statuses: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> str:
    """Why its container does not run yet."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _reason(condition.get("reason", ""), condition.get("message", ""))
    for each in (*_init_statuses(status), *statuses):
        waiting = (each.get("state") or _NOTHING).get("waiting") or _NOTHING
        if waiting.get("reason", "ContainerCreating") not in {"ContainerCreating", "PodInitializing"}:
            return _reason(waiting["reason"], waiting.get("message", ""))
    return "its container is being created" if status.get("startTime") else "its pod is being scheduled"


def _reason(reason: str, message: str) -> str:
    return _text(": ".join(filter(None, (reason, message))))


def _text(message: str | None) -> str:
    line = " ".join((message or "").split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"
