"""What this controller knows of its leadership, and members are told of it.

Invariants: it is given up once, for good; what follows from that happens at once, before anything else of this process
runs: nothing more is written or announced.
Owner: the event loop; `watch` is its one writer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from controller_service.shell.newer_members import NewerMembers
from controller_service.store.protocol import LeadershipLost, Standing, Store
from slotmesh.errors import Failure, Reason
from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


class LeadershipBoard:
    """Holds the newest, and wakes those who tell members."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: dict[Callable[[], None], None] = {}
        self.address = ""
        """Where others reach this controller; empty while that is not known."""
        self.standing = Standing(store.term)
        self.controllers: tuple[str, ...] = ()
        """Addresses of the mesh's controllers, the leader first; none as long as none has ever stood by."""
        self.newer: NewerMembers | None = None
        """Members that know a newer state than the store."""
        self.lost = ""
        """Why this controller leads no more; empty while it does."""

    @property
    def generation(self) -> str:
        """Of the store."""
        return self._store.generation

    @property
    def has_heir(self) -> bool:
        """Whether another controller has what this one leaves. Replicas do not find a standby without an address.

        What members know better than this controller is not its to end.
        """
        return bool(self.lost or self.standing.standbys or self.newer)

    async def watch(self, on_lost: Callable[[], None]) -> None:
        """Until the store closes, or another controller may lead: then `on_lost` is called."""
        try:
            async with aclosing(self._store.standing()) as standings:
                async for standing in standings:
                    self._post(standing)
        except LeadershipLost as lost:
            _log.error("this controller leads no more, and ends; replicas go on", reason=str(lost))
            self.lost = str(lost)
            on_lost()

    def listen(self, listener: Callable[[], None]) -> None:
        """Is called when `controllers` may have changed."""
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def _post(self, standing: Standing) -> None:
        if standing.problem != self.standing.problem:
            if standing.problem:
                _log.error("the state cannot be written: what is stored stays in force", reason=standing.problem)
            else:
                _log.info("the state can be written again")
        if (standing.standbys, standing.waiting) != (self.standing.standbys, self.standing.waiting):
            _log.info(
                "controllers that stand by",
                term=standing.term,
                number=standing.waiting,
                addresses=list(standing.standbys),
            )
        self.standing = standing
        if standing.standbys or self.controllers:
            self.controllers = tuple(dict.fromkeys(it for it in (self.address, *standing.standbys) if it))
        for listener in [*self._listeners]:
            listener()


def leads_no_more(lost: LeadershipLost) -> Failure:
    """What is refused from then on."""
    return Failure(
        reason=Reason.NOT_LEADER,
        message=f"this controller leads no more, and nothing was changed: {lost}",
        retry_delay_s=1.0,
    )
