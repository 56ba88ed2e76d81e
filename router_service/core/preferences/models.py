"""Models: calls that name one go to a replica that has loaded it, while that has room; others load it where it belongs.

Purpose: a load takes seconds, and makes a replica unload another model. So each model has a fixed order of replicas,
that of affinity keys (`affinity.Ring`), and all routers load it at the first of them that is below its bound and has a
free place for a model; if none has one, at the first below its bound. A call whose model's replicas are all full waits
for one of them; if that lasts (`delays`), the model is loaded at one more, the next of that order. Of several replicas
with a model, the one that has had it longest takes all calls up to its bound, so that the others unload the model once
it is not needed there.
Invariants: a model counts as loaded where the replica reports it, and where its calls were sent and the replica has not
reported it since. `MAX_TRIED` replicas with a model are looked at; if all are full, others the next time. What was sent
is remembered for at most as many models as the replica keeps.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from router_service.core.limits.capacity import KnownReplica
from router_service.core.preferences.affinity import MAX_TRIED, BoundedRing, takes
from router_service.core.preferences.delays import LOADS, LOADS_OF_PLACE, Delays
from router_service.core.runs import RouterRun

CandidateT = TypeVar("CandidateT", bound=KnownReplica)

_SENT_AT_LEAST: Final = 64
"""Models that are remembered of a replica that has not reported how many it keeps."""
_NONE: Final[frozenset[str]] = frozenset()


class ModelIds(Generic[CandidateT]):
    """The models of one backend's calls."""

    def __init__(self, ring: BoundedRing[CandidateT], delays: Delays) -> None:
        """`ring`: of the backend's replicas, to be read."""
        self._ring = ring
        self._delays = delays
        self._reported: dict[CandidateT, frozenset[str]] = {}
        """The loaded models of each replica, as of its last change."""
        self._sent: dict[CandidateT, OrderedDict[str, None]] = {}
        """Models whose calls were sent there, and which it has not reported since; the latest last."""
        self._with: dict[str, dict[CandidateT, None]] = {}
        """The replicas of each model, by both; those that have had it longest first."""

    def changed(self, replica: CandidateT) -> None:
        """See `Preference.changed`."""
        if not (replica.listed and replica.linked):
            for model in (*self._reported.pop(replica, ()), *self._sent.pop(replica, ())):
                self._remove(model, replica)
        elif replica.models is not (known := self._reported.get(replica, _NONE)):
            self._report(replica, known)

    def pick(self, run: RouterRun, count: int) -> tuple[CandidateT, int] | None:
        """See `Preference.pick`."""
        model = run.options.model_id
        if not model:
            return None
        full: CandidateT | None = None
        if replicas := self._with.get(model):
            tried = [each for each in islice(replicas, MAX_TRIED) if takes(each)]
            loaded = [each for each in tried if model in self._reported.get(each, _NONE)]
            if (picked := self._of_these(loaded, count)) is not None:
                return picked
            # Others may be loading it, or have failed to.
            others = [each for each in tried if each not in loaded]
            if (picked := self._of_these(others, count)) is not None:
                return None if loaded and self._delays.delay(run, loaded[0], LOADS_OF_PLACE) else picked
            _rotate(replicas)
            full = next(iter(tried), None)
        place = first = None
        for picked in self._ring.with_room(run.options.model_place, count):
            first = first or picked
            if self._has_place(picked[0]):
                place = picked
                break
        loads = LOADS if place is None else LOADS_OF_PLACE
        if full is not None and self._ring.room_of_all and self._delays.delay(run, full, loads):
            return None
        return place or first

    def suits(self, run: RouterRun, replica: CandidateT) -> bool | None:
        """See `Preference.suits`."""
        model = run.options.model_id
        if not model:
            return None
        replicas = self._with.get(model, ())
        if replica in replicas or any(map(takes, islice(replicas, MAX_TRIED))):
            return replica in replicas
        around = self._ring.around(run.options.model_place)
        return replica is next(filter(self._has_place, around), around[0] if around else None)

    def sent(self, run: RouterRun, count: int, replica: CandidateT) -> None:
        """See `Preference.sent`."""
        del count
        model = run.options.model_id
        if not model or model in self._reported.get(replica, _NONE):
            return
        sent = self._sent.setdefault(replica, OrderedDict())
        sent[model] = None
        sent.move_to_end(model)
        self._with.setdefault(model, {})[replica] = None
        if len(sent) > (replica.max_models or _SENT_AT_LEAST):
            oldest, _ = sent.popitem(last=False)
            self._remove(oldest, replica)

    def _report(self, replica: CandidateT, known: frozenset[str]) -> None:
        models, sent = replica.models, self._sent.get(replica)
        for model in models - known:
            if sent is not None:
                sent.pop(model, None)
            self._with.setdefault(model, {})[replica] = None
        for model in known - models:
            self._remove(model, replica)
        self._reported[replica] = models

    def _of_these(self, replicas: Sequence[CandidateT], count: int) -> tuple[CandidateT, int] | None:
        """The first one that is below its bound; if none is, the least loaded with room."""
        for each in replicas:
            if (room := self._ring.room(each, count)) > 0:
                return each, room
        least = min((each for each in replicas if _free(each) > 0), key=lambda each: each.load, default=None)
        return None if least is None else (least, _free(least))

    def _has_place(self, replica: CandidateT) -> bool:
        """Whether the replica can load a model without unloading another, as far as that is known."""
        used = len(self._reported.get(replica, _NONE)) + len(self._sent.get(replica, ()))
        return not replica.max_models or used < replica.max_models

    def _remove(self, model: str, replica: CandidateT) -> None:
        replicas = self._with[model]
        del replicas[replica]
        if not replicas:
            del self._with[model]


def _rotate(replicas: dict[CandidateT, None]) -> None:
    """The first ones become the last ones."""
    for each in list(islice(replicas, MAX_TRIED)):
        del replicas[each]
        replicas[each] = None


def _free(replica: KnownReplica) -> int:
    """As `KnownReplica.free`; outside this router's subset, too."""
    capacity = replica.capacity
    return capacity.max_ongoing + capacity.prefetch - capacity.others - replica.own
