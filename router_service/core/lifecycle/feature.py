"""What features do as calls go their way: each overrides the methods of `Feature` that it needs.

Purpose: the way of a call knows no feature; it runs through the hooks that features have registered, in a fixed order
(`scheduler.Parts`).
Invariants: a method that a feature does not override costs nothing; nor does a hook of each call while its
feature has nothing under way (`Feature.under_way`). A hook decides within the step that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from router_service.core.commands import Step
from router_service.core.events import RunsCompleted
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import Caller, RouterRun, Sent
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Payload

ALWAYS: Final = (True,)
"""Under way in features that look at each call."""


class Feature:
    """A feature that needs nothing."""

    @property
    def under_way(self) -> Collection[object]:
        """What the feature has under way, always the same object: while it is empty, no hook of a call is called.

        These are `arrives` (but for payloads that are announced), `follows`, `begins`, `completed`, `failed` and
        `concluded`.
        """
        return ALWAYS

    @property
    def waits(self) -> Collection[object]:
        """Likewise: while it is empty, the feature has no `next_deadline`."""
        return self.under_way

    def arrives(self, _run: RouterRun, _step: Step) -> bool:
        """A run was submitted. Returns whether the feature keeps it for now, or has ended it."""
        return False

    def holds_keys(self, _caller: Caller) -> bool:
        """Whether a call of the caller may have to wait behind another one of its key that the feature keeps."""
        return False

    def resent(self, _run: RouterRun) -> None:
        """A run was submitted that an earlier connection of its session has sent. Its payload may be under way."""

    def follows(self, _run: RouterRun, _step: Step) -> bool:
        """As `begins`, and before it, for runs of sessions and of lanes that stop: earlier calls may matter to them."""
        return False

    def begins(self, _run: RouterRun, _step: Step) -> bool:
        """The run is complete and its turn has come: it is routed next. Returns as `arrives` does."""
        return False

    def yielded(self, _event: RunsCompleted, _step: Step) -> None:
        """A replica has sent a frame with values; its outcomes are delivered next."""

    def completed(
        self, _sent: Sent, _lo: int, _count: int, _payloads: Sequence[Payload] | None, _type: str, _step: Step
    ) -> None:
        """`count` calls of the slice, from offset `lo`, ended well. `payloads`: their results, if they have any."""

    def failed(
        self, _run: RouterRun, _begin: int, _count: int, _failure: Failure, _sent: Sent | None, _step: Step
    ) -> None:
        """`count` calls of the run, from index `begin`, failed; `sent` is the slice that they were in, if any."""

    def handed_back(self, _run: RouterRun, _step: Step) -> bool:
        """A replica has handed calls back, as this run. Returns whether the feature keeps it, or has ended it."""
        return False

    def ended_early(self, _run: RouterRun, _step: Step) -> None:
        """The run has ended before its payload arrived."""

    def overdue(self, _run: RouterRun, _step: Step) -> Sequence[Sent]:
        """A wait that the run is in for the feature may be over. Returns the slices that leave their outboxes."""
        return ()

    def connected(self, _caller: Caller, _step: Step) -> None:
        """A caller with a session has connected."""

    def left(self, _caller: Caller, _step: Step) -> None:
        """The caller has disconnected. Its calls end next, or go on elsewhere."""

    def link_opened(self, _replica: RoutedReplica, _step: Step) -> None:
        """The replica can be reached."""

    def link_lost(self, _replica: RoutedReplica, _step: Step) -> None:
        """The connection to the replica broke; its calls have ended, or wait again."""

    def table_changed(self, _step: Step) -> None:
        """There is a newer routing table. What waits finds its place next."""

    def next_deadline(self) -> float | None:
        """When `expire` has something to do, monotonic seconds; None if it has not."""
        return None

    def expire(self, _step: Step) -> None:
        """Time has passed: ends all waits of the feature that are over."""

    def concluded(self, _step: Step) -> None:
        """The step is complete, and its commands are carried out next."""


HookT = TypeVar("HookT", bound=Callable[..., object])


class Features:
    """The hooks that features have registered, in order; those that are not overridden are left out."""

    def __init__(self) -> None:
        self.register(())

    def register(self, features: Iterable[Feature]) -> None:
        """These are all features there are."""
        features = tuple(features)
        self.arrives = _per_call(Feature.arrives, [(each.under_way, each.arrives) for each in features])
        self.holds_keys = _overridden(Feature.holds_keys, [each.holds_keys for each in features])
        self.resent = _overridden(Feature.resent, [each.resent for each in features])
        self.follows = _per_call(Feature.follows, [(each.under_way, each.follows) for each in features])
        self.begins = _per_call(Feature.begins, [(each.under_way, each.begins) for each in features])
        self.yielded = _overridden(Feature.yielded, [each.yielded for each in features])
        self.completed = _per_call(Feature.completed, [(each.under_way, each.completed) for each in features])
        self.failed = _per_call(Feature.failed, [(each.under_way, each.failed) for each in features])
        self.handed_back = _overridden(Feature.handed_back, [each.handed_back for each in features])
        self.ended_early = _overridden(Feature.ended_early, [each.ended_early for each in features])
        self.overdue = _overridden(Feature.overdue, [each.overdue for each in features])
        self.connected = _overridden(Feature.connected, [each.connected for each in features])
        self.left = _overridden(Feature.left, [each.left for each in features])
        self.link_opened = _overridden(Feature.link_opened, [each.link_opened for each in features])
        self.link_lost = _overridden(Feature.link_lost, [each.link_lost for each in features])
        self.table_changed = _overridden(Feature.table_changed, [each.table_changed for each in features])
        self.next_deadline = _per_call(Feature.next_deadline, [(each.waits, each.next_deadline) for each in features])
        self.expire = _overridden(Feature.expire, [each.expire for each in features])
        self.concluded = _per_call(Feature.concluded, [(each.under_way, each.concluded) for each in features])


def _overridden(default: Callable[..., object], hooks: list[HookT]) -> tuple[HookT, ...]:
    return tuple(hook for hook in hooks if getattr(hook, "__func__", None) is not default)


def _per_call(
    default: Callable[..., object], hooks: list[tuple[Collection[object], HookT]]
) -> tuple[tuple[Collection[object], HookT], ...]:
    """The same, each with what has to be under way."""
    return tuple(each for each in hooks if getattr(each[1], "__func__", None) is not default)
