"""Which models a replica has loaded, and which one makes room for another: the decisions of `@multiplexed`. Pure.

Invariants: at most `most` models are loaded, being loaded or being unloaded. A model is loaded once at a time. One that
a call uses is not chosen to be unloaded, and neither is one that is being loaded, or was loaded for calls that have not
got it yet: they hold it from their request on. Among the others, the one whose last use is longest ago is.
Owner: a pool, under its lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Protocol


class Holding(Protocol):
    """Whatever models are held by until a call ends."""

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        """`uses` does not use the model any more."""


class ModelUses:
    """The models that one call uses, until it ends."""

    __slots__ = ("_held", "awaited", "is_over")

    def __init__(self) -> None:
        self.awaited: list[ModelPlaces] = []
        """The pools in which it waits for a place."""
        self._held: dict[ModelPlace, Holding] = {}
        self.is_over = False
        """The call has ended: what it has left behind holds nothing."""

    def add(self, place: ModelPlace, pool: Holding) -> None:
        """The call uses this model."""
        self._held[place] = pool

    def end(self) -> None:
        """The call has ended."""
        self.is_over = True
        while self._held:
            place, pool = self._held.popitem()
            pool.release(place, self)


class ModelPlace:
    """The place of one model. Compared by identity."""

    __slots__ = ("done", "holders", "is_loaded", "model_id")

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.is_loaded = False
        self.done: Any = None
        """Of the pool: how calls wait for the model."""
        self.holders: set[ModelUses] = set()
        """The calls that use it, or wait for it."""

    @property
    def is_free(self) -> bool:
        """Whether it may be unloaded."""
        return not self.holders and self.is_loaded


class FoundPlace(NamedTuple):
    """What a call gets."""

    place: ModelPlace
    is_new: bool
    """The caller has to load the model."""
    victim: ModelPlace | None
    """With `is_new`: the model that has to be unloaded before."""


class PlacesStuck(Exception):
    """The call would wait for a place that is never freed."""

    def __init__(self, pools: Collection[str]) -> None:
        super().__init__()
        self.pools = pools
        """The names of those whose calls wait for each other."""


class ModelPlaces:
    """The places of one pool."""

    def __init__(self, most: int, name: str = "") -> None:
        """`name`: for people."""
        self._most = most
        self._name = name
        self._places: OrderedDict[str, ModelPlace] = OrderedDict()
        """By model id, the one whose last use is longest ago first."""
        self._unloading = 0

    def take(self, model_id: str, uses: ModelUses) -> FoundPlace | None:
        """The place of the model, which `uses` holds from now on. None: the call has to wait until a place is free.

        Raises:
            PlacesStuck: each place is held by a call that waits itself, here or in a pool of which the same is true.
        """
        if (place := self._places.get(model_id)) is not None:
            self._places.move_to_end(model_id)
            place.holders.add(uses)
            return FoundPlace(place, False, None)
        victim = None
        if len(self._places) + self._unloading >= self._most:
            victim = next((each for each in self._places.values() if each.is_free), None)
            if victim is None:
                if self in (stuck := self._stuck_pools(uses)):
                    raise PlacesStuck([each._name for each in stuck])
                return None
            del self._places[victim.model_id]
            self._unloading += 1
        place = self._places[model_id] = ModelPlace(model_id)
        place.holders.add(uses)
        return FoundPlace(place, True, victim)

    @property
    def has_room(self) -> bool:
        """Whether a model could be loaded now, perhaps in place of another one."""
        return len(self._places) + self._unloading < self._most or any(each.is_free for each in self._places.values())

    def waits(self, uses: ModelUses, change: int) -> None:
        """A call begins (1) or ends (-1) to wait for a place."""
        if change > 0:
            uses.awaited.append(self)
        else:
            uses.awaited.remove(self)

    def unloaded(self) -> None:
        """The model of a victim was unloaded."""
        self._unloading -= 1

    def failed(self, place: ModelPlace) -> None:
        """The model could not be loaded: the next call tries again."""
        if self._places.get(place.model_id) is place:
            del self._places[place.model_id]

    def take_all_free(self) -> list[ModelPlace]:
        """Removes all models that no call uses; they have to be unloaded."""
        free = [each for each in self._places.values() if each.is_free]
        for each in free:
            del self._places[each.model_id]
            self._unloading += 1
        return free

    @property
    def loaded(self) -> Iterator[str]:
        """Ids of the loaded models, those of the latest uses first."""
        return (each.model_id for each in reversed(self._places.values()) if each.is_loaded)

    def _stuck_pools(self, uses: ModelUses) -> list[ModelPlaces]:
        """The pools in which no place is ever freed, as far as calls wait in them, if `uses` begins to wait here.

        At first these are all that can be reached from here; one with a place that is or becomes free is none of them,
        and so on.
        """
        stuck = [self]
        for pool in stuck:  # it grows meanwhile
            holders = (each for place in pool._places.values() for each in place.holders)
            stuck += dict.fromkeys(it for each in holders for it in each.awaited if it not in stuck)

        def moves(pool: ModelPlaces) -> bool:
            return len(pool._places) < pool._most or not all(
                any((each is uses and self in stuck) or any(it in stuck for it in each.awaited) for each in it.holders)
                for it in pool._places.values()
            )

        while free := [each for each in stuck if moves(each)]:
            stuck = [each for each in stuck if each not in free]
        return stuck
