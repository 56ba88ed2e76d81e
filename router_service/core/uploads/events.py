"""Events about payloads that come in chunks.

Owner: the scheduler, of which this is a part: `now` is monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.callers import Caller
    from router_service.core.commands import Command
    from router_service.core.conclusions import Conclusions
    from router_service.core.outcomes import Outcomes
    from router_service.core.submissions import Submissions
    from router_service.core.uploads.uploads import Uploads
    from slotmesh.errors import Failure
    from slotmesh.wire.chunks import Payload


class UploadEvents:
    """What comes of payloads that callers have announced."""

    def __init__(
        self, outcomes: Outcomes, uploads: Uploads, submissions: Submissions, conclusions: Conclusions
    ) -> None:
        self._outcomes = outcomes
        self._uploads = uploads
        self._submissions = submissions
        self._conclusions = conclusions

    def brought(self, caller: Caller, call_id: int, size: int, now: float) -> None:
        """So many bytes of a payload that was announced have come."""
        self._uploads.brought(caller, call_id, size, now)

    def completed(self, caller: Caller, call_id: int, payload: Payload, now: float) -> list[Command]:
        """A payload that was announced is complete."""
        for run in self._uploads.complete(caller, call_id, payload):
            self._submissions.begin(run, now)
        return self._conclusions.commands(now)

    def failed(self, caller: Caller, call_id: int, failure: Failure, now: float) -> list[Command]:
        """A payload that was announced will never be complete."""
        run = self._uploads.find(caller, call_id)
        if run is not None:
            self._outcomes.fail_waiting(run, failure)
        return self._conclusions.commands(now)

    def awaits(self, caller: Caller, call_id: int) -> bool:
        """Whether the payload that the caller has announced for this call is still of use."""
        return self._uploads.awaits(caller, call_id)
