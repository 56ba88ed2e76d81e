"""What comes of payloads that callers have announced.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core.outcomes import CallerOutcomes
from router_service.core.submissions import Submissions
from router_service.core.uploads.events import ChunkArrived, UploadCompleted, UploadFailed
from router_service.core.uploads.uploads import HeldUploads


class UploadArrivals:
    """Starts calls whose payloads have arrived, and fails those whose payloads will not arrive."""

    def __init__(self, outcomes: CallerOutcomes, uploads: HeldUploads, submissions: Submissions) -> None:
        self._outcomes = outcomes
        self._uploads = uploads
        self._submissions = submissions

    def chunk_arrived(self, event: ChunkArrived, now: float) -> None:
        """The caller has brought something."""
        self._uploads.brought(event.caller, event.call_id, event.size, now)

    def completed(self, event: UploadCompleted, now: float) -> None:
        """The call begins, and what waited behind it."""
        for run in self._uploads.complete(event.caller, event.call_id, event.payload):
            self._submissions.begin(run, now)

    def failed(self, event: UploadFailed, _now: float) -> None:
        """The call fails."""
        run = self._uploads.find(event.caller, event.call_id)
        if run is not None:
            self._outcomes.fail_waiting(run, event.failure)
