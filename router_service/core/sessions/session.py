"""One connection of a session: what its client sent at the opening, and which roster it has acknowledged.

Owner: made at the edge; `acknowledgements` keeps what the client knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.routing.rosters import RosterVersion
from slotmesh.wire.ranges import Range


class SessionConnection:
    """One connection of a session. Compared by identity."""

    __slots__ = (
        *("acknowledged", "epoch", "is_suspended", "owner_mark", "rosters"),
        *("says_when_all_are_resent", "session_id", "unanswered"),
    )

    def __init__(
        self,
        session_id: str,
        epoch: int,
        unanswered: Sequence[Range] = (),
        rosters: Sequence[RosterVersion] = (),
        *,
        owner_mark: str = "",
        says_when_all_are_resent: bool = False,
    ) -> None:
        self.session_id = session_id
        """The key under which replicas know it: of the id that the client has chosen, and of the caller's name."""
        self.owner_mark = owner_mark
        """Ends the generation of each roster that is announced to the client; empty where callers have no identity."""
        self.epoch = epoch
        """1 at the first connection, one more at each further one."""
        self.unanswered = unanswered
        """The calls that earlier connections have sent, and that have no outcome yet."""
        self.rosters = rosters
        """Those that the client has acknowledged on earlier connections."""
        self.says_when_all_are_resent = says_when_all_are_resent
        """The client does, of the unanswered calls."""
        self.acknowledged = 0
        """The newest of this router's rosters that the client knows, by number."""
        self.is_suspended = True
        """Whether the client does not know all replicas that calls go to: its own calls wait."""
