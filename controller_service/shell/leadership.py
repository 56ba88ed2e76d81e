"""This controller's leadership as members get it, and members that hold newer tables than its store.

Invariants: leadership is given up once, for good; the consequences take effect immediately, before anything else of
this process runs: nothing more is written or announced.
Owner: the event loop; `watch` is its one writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from typing import Final

from controller_service.core.event_log import EventKind, Notice
from controller_service.core.observed.adoption import MembersMesh
from controller_service.core.roster import HeldTable, ReportedRouters, is_newer
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import LeadershipLost, Standing, Store
from slotmesh.errors import Failure, Reason
from slotmesh.logs import get_logger

MAX_NAMED: Final = 16
"""Members that are named, at most."""


class NewerMembers:
    """Members that hold a newer table than the store: then the store is an older copy, and nothing is decided.

    A state file that was put back, or copied with its launch directory, names other replicas and owners than those that
    run. Its orders would end replicas and move keys of a mesh that it does not know. So nothing is reconciled,
    configured or announced before routers had the time to report their tables, and from the moment at which the first
    newer member is found, for as long as this process lives: a member that has left proves nothing. Operators' changes
    are stored, and take no effect yet. The next start finds the same members, and launched ones by their records.
    Links and the launcher report members; the reconcile loop, shifts and members' streams read.
    """

    def __init__(self, store: Store, state: MeshState, *, heard_within_s: float = 0.0) -> None:
        """`heard_within_s`: how long nothing is decided while routers may still report newer tables.

        A store that lists no replica waits for nothing.
        """
        self._store = store
        self._state = state
        self._why: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []
        self._routers = ReportedRouters()
        self._heard = asyncio.Event()
        """No other member is waited for."""
        self._heard_by = state.clock.now() + heard_within_s
        self.settled = asyncio.Event()
        """The controller has started to decide, unless a newer member was found."""
        if heard_within_s <= 0.0 or not store.read().roster.members:
            self.settled.set()
        self.begun = asyncio.Event()
        """The first such member was found."""
        self.mesh: MembersMesh | None = None
        """The configuration of the newest table that a router has sent; None: none has."""
        self.disown: Callable[[], None] = lambda: None
        """Has the launcher drop its records of processes that another controller has started."""

    def __bool__(self) -> bool:
        """Whether there are any: then nothing is reconciled."""
        return bool(self._why)

    @property
    def decides(self) -> bool:
        """Whether this controller may decide and announce: members had the time to report, and none is newer."""
        return self.settled.is_set() and not self._why

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called when `decides` may have changed."""
        self._listeners.append(listener)

    async def settle(self) -> None:
        """Returns once members had the time to report what they hold, or one of them is newer."""
        if self.settled.is_set():
            return
        left_s = self._heard_by - self._state.clock.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left_s)):
                await self._heard.wait()
        self.settled.set()
        self._changed()

    def router_attached(self, address: str, named: Collection[str], *, has_table: bool) -> None:
        """A router has reported what it holds. `named`: the addresses of routers in its table."""
        if not self.settled.is_set():
            self._routers.reported(address, named, has_table=has_table)
            if self._routers.are_all:
                self._heard.set()

    @property
    def reasons(self) -> tuple[str, ...]:
        """For people: each member and what it holds; empty if this controller reconciles."""
        return tuple(self._why.values())

    def version(self) -> HeldTable:
        """That of the store, as members and records of launches get it."""
        desired = self._store.read()
        return HeldTable(generation=self._store.generation, revision=desired.revision, term_id=desired.term_id)

    def is_newer(self, held: HeldTable) -> bool:
        """Whether a table does not follow from the store."""
        desired = self._store.read()
        return is_newer(
            held,
            generation=self._store.generation,
            revision=desired.revision,
            terms=desired.terms,
            roster=desired.roster,
        )

    def look_at(self, subject: str, held: HeldTable, mesh: MembersMesh | None = None) -> None:
        """A member, as `router/r`, has reported what it holds. `mesh`: the configuration of a router's newer table."""
        if not self.is_newer(held):
            return
        what = "of a later generation" if held.is_of_later_generation else "which this state file never had"
        self.found(subject, f"holds revision {held.revision}, {what}")
        if mesh is not None and (self.mesh is None or self.mesh.revision < held.revision):
            self.mesh = mesh

    def found(self, subject: str, what: str) -> None:
        """A member, or a process, is not this store's."""
        if subject in self._why or len(self._why) >= MAX_NAMED:
            return
        if not self._why:
            _log.error(
                "nothing is reconciled: members know a newer state than the state file, which is an older copy, or that"
                " of another mesh. Put the newest file back; or apply the newest mesh.yaml, then `slotmesh state adopt"
                " --from-members`. If this is the newest file: `slotmesh state adopt --discard-members`",
                first=subject,
                revision=self._store.read().revision,
            )
        self._why[subject] = f"{subject} {what}"
        self._heard.set()
        self._state.publish(Notice(kind=EventKind.STATE_OUTDATED, subject=subject, message=what))
        if not self.begun.is_set():
            self.begun.set()
            self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


_log = get_logger(__name__)


class LeadershipBoard:
    """Holds the newest, and wakes the streams that announce it to members."""

    def __init__(self, store: Store, state: MeshState) -> None:
        """This controller leads from now on."""
        self._store = store
        self._state = state
        self.since_s = state.clock.time_of_day()
        """When it began to lead, seconds since 1970."""
        self._listeners: dict[Callable[[], None], None] = {}
        self.address = ""
        """Where others reach this controller; empty while that is not known."""
        self.standing = Standing(store.term)
        self.controllers: tuple[str, ...] = ()
        """Addresses of the mesh's controllers, the leader first; none as long as none has ever stood by."""
        self.newer: NewerMembers | None = None
        """Members that know a newer state than the store."""
        self.on_writable: Callable[[], None] = lambda: None
        """Called when the store can be written again."""
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
            self.lose(str(lost), on_lost)

    def lose(self, reason: str, on_lost: Callable[[], None]) -> None:
        """Another controller leads, or may: once."""
        if not self.lost:
            _log.error("this controller leads no more, and ends; replicas go on", reason=reason)
            self.lost = reason
            on_lost()

    def announce(self, kind: EventKind, message: str) -> None:
        """Publishes an event about this controller."""
        self._state.publish(Notice(kind=kind, subject=f"controller/{self.address}", message=message))

    def listen(self, listener: Callable[[], None]) -> None:
        """Is called when `controllers` may have changed."""
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def _post(self, standing: Standing) -> None:
        is_writable_again = bool(self.standing.problem) and not standing.problem
        if standing.problem != self.standing.problem:
            kind, message = EventKind.STATE_WRITABLE, "the state can be written again"
            if standing.problem:
                kind = EventKind.STATE_NOT_WRITABLE
                message = f"the state cannot be written: what is stored stays in force: {standing.problem}"
            self.announce(kind, message)
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
        if is_writable_again:
            self.on_writable()


def leads_no_more(lost: LeadershipLost) -> Failure:
    """What is refused from then on."""
    return Failure(
        reason=Reason.NOT_LEADER,
        message=f"this controller leads no more, and nothing was changed: {lost}",
        retry_delay_s=1.0,
    )
