"""The roster that follows from routes, found from what has changed in them.

Invariants: the roster is the same as `IncarnationRoster.listing` makes of all that the routes list. Cost: a look at
each backend where the same incarnations are listed as before; else at each replica.
Owner: `shell.reconcile_loop`.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from controller_service.core.routing import ListedBackend, Routes


class RosterListing:
    """Remembers which backends the newest roster was made of."""

    def __init__(self) -> None:
        self._backends: tuple[ListedBackend, ...] = ()
        self._roster: IncarnationRoster | None = None
        self._members: dict[str, tuple[ListedBackend, tuple[ListedIncarnation, ...]]] = {}

    def listing(
        self, roster: IncarnationRoster, routes: Routes, *, generation: str, revision: int, now: float
    ) -> IncarnationRoster:
        """`roster` with what the routes list from `revision` on; the very same value where that is the same."""
        is_known = self._roster is not None and self._roster.members is roster.members
        if is_known and _lists_the_same(self._backends, routes.backends):
            return roster
        self._members = {each.settings.name: self._members_of(each) for each in routes.backends}
        members = (member for _, each in self._members.values() for member in each)
        listed = roster.listing(members, generation=generation, revision=revision, now=now)
        self._backends, self._roster = routes.backends, listed
        return listed

    def _members_of(self, backend: ListedBackend) -> tuple[ListedBackend, tuple[ListedIncarnation, ...]]:
        known = self._members.get(backend.settings.name)
        return known if known is not None and known[0] is backend else (backend, tuple(members_of(backend)))


def all_members(routes: Routes) -> list[ListedIncarnation]:
    """The incarnations that routes list, as the roster has them."""
    return [member for backend in routes.backends for member in members_of(backend)]


def members_of(backend: ListedBackend) -> Iterator[ListedIncarnation]:
    """Its replicas, as the roster has them."""
    for replica in backend.replicas:
        yield ListedIncarnation(
            owner=replica.owner,
            backend=backend.settings.name,
            address=replica.address,
            max_ongoing=replica.max_ongoing,
            draining=replica.draining,
            process=replica.process,
            template=replica.template,
            fixed=replica.fixed,
            elder=replica.elder,
            fenced_after_s=replica.fenced_after_s,
        )


def _lists_the_same(before: tuple[ListedBackend, ...], after: tuple[ListedBackend, ...]) -> bool:
    """Whether two lists of backends have the same incarnations. False where that takes a closer look."""
    return len(before) == len(after) and all(
        one is other or [it.owner for it in one.replicas] == [it.owner for it in other.replicas]
        for one, other in zip(before, after, strict=True)
    )
