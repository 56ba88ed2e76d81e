"""Why changes of the configuration are refused, as callers get it.

Owner: `shell.configurator` and the other parts that carry out what operators ask for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller_service.core.merging import FieldConflict
from controller_service.shell.leadership import leads_no_more
from controller_service.store.protocol import LeadershipLost, StoreWriteFailed
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec.rules import show

STORE_RETRY_S: Final = 5.0
"""When to try again what could not be stored: somebody has to make room first."""


def apply_conflict(conflicts: Collection[FieldConflict]) -> Failure:
    lines = [
        f"{it.subject}: {it.field}: is {it.live}, was {it.applied} when the file was applied last, and the file says"
        f" {it.wanted} now"
        for it in conflicts
    ]
    lines.append("nothing was changed: force it, or write into the file what is there")
    return Failure(reason=Reason.APPLY_CONFLICT, message="\n".join(lines))


def not_stored(failed: StoreWriteFailed) -> Failure:
    if isinstance(failed, LeadershipLost):
        return leads_no_more(failed)
    return Failure(
        reason=Reason.STORE_UNAVAILABLE,
        message=f"the change cannot be stored: {failed}. What is stored stays in force",
        executed=Executed.NO if failed.is_unwritten else Executed.UNKNOWN,
        retry_delay_s=STORE_RETRY_S,
    )


def backend_not_found(name: str) -> Failure:
    return Failure(reason=Reason.BACKEND_NOT_FOUND, message=f"there is no backend {show(name)!r}")


def endpoint_not_found(name: str) -> Failure:
    return Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=f"there is no endpoint {show(name)!r}")


def revision_conflict(expected: int, present: int) -> Failure:
    text = (
        f"expected_revision is {expected}, but the configuration has changed since and is at revision {present}:"
        " read it again, and decide anew"
    )
    if expected > present:
        text = (
            f"expected_revision is {expected}, but this controller's configuration is at revision {present} only:"
            " it has begun anew since; read it again, and decide anew"
        )
    facts = {"expected_revision": str(expected), "revision": str(present)}
    return Failure(reason=Reason.REVISION_CONFLICT, message=text, metadata=facts)


def route_not_found(path: str) -> Failure:
    return Failure(reason=Reason.ROUTE_NOT_FOUND, message=f"there is no route {show(path)!r}")


def backend_in_use(name: str, users: Collection[str]) -> Failure:
    text = f"backend {name} is named by the traffic of {', '.join(users)}: change that first"
    return Failure(reason=Reason.BACKEND_IN_USE, message=text)


def code_not_kept(why: str) -> Failure:
    """The snapshot of the code that a change needs cannot be stored."""
    return Failure(
        reason=Reason.STORE_UNAVAILABLE,
        message=f"the change is not made: {why}",
        executed=Executed.NO,
        retry_delay_s=STORE_RETRY_S,
    )


def changed_too_often(times: int) -> Failure:
    """Another change was faster, each time."""
    return Failure(reason=Reason.INTERNAL, message=f"the configuration changed {times} times meanwhile")
