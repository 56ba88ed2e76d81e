"""Models: calls that name one go to a replica that has loaded it, while that has room; others load it where it belongs.

Purpose: a load takes seconds, and makes a replica unload another model. So each model has a fixed order of replicas,
that of affinity keys (`affinity.Ring`), and all routers load it at the first of them that is below its bound and has a
free place for a model; if none has one, at the first below its bound. A model whose replicas are all full is loaded at
one more, the next of that order.
Invariants: a model counts as loaded where the replica reports it, and where its calls were sent and the replica has not
reported it since. Of the replicas with the model and room, the least loaded of `MAX_TRIED` takes the calls; they take
turns to be among these. What was sent is remembered for at most as many models as the replica keeps.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, Generic, TypeVar

from router_service.core.limits.capacity import KnownReplica
from router_service.core.preferences.affinity import MAX_TRIED, BoundedRing, takes
from router_service.core.runs import RouterRun

CandidateT = TypeVar("CandidateT", bound=KnownReplica)

_SENT_AT_LEAST: Final = 64
"""Models that are remembered of a replica that has not reported how many it keeps."""
_NONE: Final[frozenset[str]] = frozenset()


class ModelIds(Generic[CandidateT]):
    """The models of one backend's calls."""

    def __init__(self, ring: BoundedRing[CandidateT]) -> None:
        """`ring`: of the backend's replicas, to be read."""
        self._ring = ring
        self._reported: dict[CandidateT, frozenset[str]] = {}
        """The loaded models of each replica, as of its last change."""
        self._sent: dict[CandidateT, OrderedDict[str, None]] = {}
        """Models whose calls were sent there, and which it has not reported since; the latest last."""
        self._with: dict[str, dict[CandidateT, None]] = {}
        """The replicas of each model, by both; those whose turn is longest ago first."""

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
        if (replicas := self._with.get(model)) and (replica := _least_loaded(replicas)) is not None:
            return replica, _free(replica)
        first: tuple[CandidateT, int] | None = None
        for picked in self._ring.with_room(run.options.model_place, count):
            if self._has_place(picked[0]):
                return picked
            first = first or picked
        return first

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

    def _has_place(self, replica: CandidateT) -> bool:
        """Whether the replica can load a model without unloading another, as far as that is known."""
        used = len(self._reported.get(replica, _NONE)) + len(self._sent.get(replica, ()))
        return not replica.max_models or used < replica.max_models

    def _remove(self, model: str, replica: CandidateT) -> None:
        replicas = self._with[model]
        del replicas[replica]
        if not replicas:
            del self._with[model]


def _least_loaded(replicas: dict[CandidateT, None]) -> CandidateT | None:
    """One with room, which then is the last to be looked at again. None if none has, of those that were looked at."""
    tried = list(islice(replicas, MAX_TRIED))
    found = min((each for each in tried if takes(each) and _free(each) > 0), key=lambda each: each.load, default=None)
    for each in tried if found is None else (found,):
        del replicas[each]
        replicas[each] = None
    return found


def _free(replica: KnownReplica) -> int:
    """As `KnownReplica.free`; outside this router's subset, too."""
    capacity = replica.capacity
    return capacity.max_ongoing + capacity.prefetch - capacity.others - replica.own
