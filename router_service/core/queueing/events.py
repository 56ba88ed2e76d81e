"""What happens to the queues as a whole.

Owner: the servicer's brake makes them, the scheduler reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from router_service.core.events import RouterEvent


@dataclass(slots=True, eq=False)
class BrakeChanged(RouterEvent):
    """Clients have too many results unread: no more calls are to be started than must be; or no longer."""

    is_braked: bool
