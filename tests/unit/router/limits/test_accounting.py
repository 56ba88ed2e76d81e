"""Every kind of call with every ending: windows, queues, permits, tenants and counters end where a plain sum says.

The expectations are written by hand: a kind says how its calls are made and answered, an ending says what becomes of
six of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest

from router_service.core.events import CallerLeft
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from tests.unit.router.accounts import IDS, REPLICAS, SHADOWS, AccountedWorld, known_caller, nothing_is_left
from tests.unit.router.world import DONE, OK

N = len(IDS)


class Kind(NamedTuple):
    """How calls are made, and how they are answered."""

    fields: dict[str, Any]
    in_session: bool = False
    is_column: bool = False
    copies: bool = False

    @property
    def is_done(self) -> bool:
        """Whether a good end has no result."""
        return bool(self.fields.get("no_reply") or self.fields.get("streaming"))

    @property
    def good(self) -> str:
        return DONE if self.is_done else OK

    def bad(self, reason: str) -> str:
        """What the caller is told of a failure: nothing where it wants no reply."""
        return DONE if self.fields.get("no_reply") else reason


KINDS = {
    "plain": Kind({}),
    "keyed": Kind({"ordering_key": "k"}),
    "many keys": Kind({}, is_column=True),
    "sharded": Kind({"shard_key": "s"}),
    "no reply": Kind({"no_reply": True}),
    "no reply, keyed": Kind({"no_reply": True, "ordering_key": "k"}),
    "yielding": Kind({"streaming": True}),
    "of a tenant": Kind({"tenant": "acme"}),
    "many keys of a tenant": Kind({"tenant": "acme"}, is_column=True),
    "no reply, of a tenant": Kind({"tenant": "acme", "no_reply": True}),
    "yielding, of a tenant": Kind({"tenant": "acme", "streaming": True}),
    "of a session": Kind({}, in_session=True),
    "no reply, of a session": Kind({"no_reply": True, "tenant": "acme"}, in_session=True),
    "lane that stops": Kind({"ordering_key": "k", "stop_generation": 1}, in_session=True),
    "copied": Kind({}, copies=True),
    "copied, keyed": Kind({"ordering_key": "k", "tenant": "acme"}, copies=True),
    "copied, no reply": Kind({"no_reply": True}, copies=True),
    "copied, yielding": Kind({"streaming": True}, copies=True),
}


@dataclass(frozen=True)
class Ending:
    """What becomes of six calls, and what is counted of that."""

    act: Callable[[AccountedWorld, Kind, Caller], None]
    reason: str = ""
    """The failure of all; empty: they end well."""
    ends: tuple[int, int, int, int] = (0, 0, 0, 0)
    """At the backend: well, failed, unanswered, refused."""
    executed: int = 0
    """Calls of which it is known that they ran."""
    timeout_s: float | None = None
    copies: str = "completed"
    world: dict[str, Any] = field(default_factory=dict)


def answer(world: AccountedWorld, kind: Kind, *names: str) -> None:
    """Replicas answer well what they hold."""
    world.each(world.end if kind.is_done else world.complete, *names)


def _completed(world: AccountedWorld, kind: Kind, _: Caller) -> None:
    answer(world, kind, *REPLICAS)


def _raised(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    world.each(world.fail, *REPLICAS)


def _wrong_arguments(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    world.each(partial(world.fail, reason=Reason.BAD_ARGUMENTS, executed=Executed.NO), *REPLICAS)


def _taken_back(world: AccountedWorld, _kind: Kind, caller: Caller) -> None:
    world.cancel((IDS[0], IDS[-1]), by=caller)
    world.each(partial(world.fail, reason=Reason.CANCELLED, executed=Executed.NO), *REPLICAS)


def _taken_back_one_by_one(world: AccountedWorld, _kind: Kind, caller: Caller) -> None:
    for each in reversed(IDS):
        world.cancel((each, each), by=caller)
    world.each(partial(world.fail, reason=Reason.CANCELLED, executed=Executed.NO), *REPLICAS)


def _late(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    world.at(5.0)
    world.each(partial(world.fail, reason=Reason.CANCELLED, executed=Executed.UNKNOWN), *REPLICAS)


def _lost(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    for name in REPLICAS:
        world.lose(name)


def _refused_first(world: AccountedWorld, kind: Kind, _: Caller) -> None:
    world.each(world.refuse, *REPLICAS)
    answer(world, kind, *REPLICAS)


def _waited(world: AccountedWorld, kind: Kind, _: Caller) -> None:
    link_all(world)
    answer(world, kind, *REPLICAS)


def _unsent_and_lost(world: AccountedWorld, kind: Kind, _: Caller) -> None:
    for name in REPLICAS:
        world.lose(name)
    link_all(world)
    cut_all(world)
    answer(world, kind, *REPLICAS)


def _unsent_and_taken_back(world: AccountedWorld, _kind: Kind, caller: Caller) -> None:
    world.cancel((IDS[1], IDS[-1]), by=caller)
    world.cancel((IDS[0], IDS[0]), by=caller)
    cut_all(world)


def _time_in_the_queue(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    world.at(10.0)


def _endpoint_goes(world: AccountedWorld, _kind: Kind, _: Caller) -> None:
    world.endpoints = []
    world.push()


def link_all(world: AccountedWorld) -> None:
    for name in (*REPLICAS, *SHADOWS):
        if not world.replicas[name].linked:
            world.link(name)


def cut_all(world: AccountedWorld) -> None:
    for name in (*REPLICAS, *SHADOWS):
        if world.replicas[name].outbox:
            world.cut(name)


WAITING: dict[str, Any] = {"links_at_once": False, "settings": {"max_queue_time_s": 10.0}}
UNSENT: dict[str, Any] = {"lazy": True}
ENDINGS = {
    "well": Ending(_completed, ends=(N, 0, 0, 0), executed=N),
    "the handler raises": Ending(_raised, "HANDLER_ERROR", (0, N, 0, 0), executed=N),
    "its arguments are wrong": Ending(_wrong_arguments, "BAD_ARGUMENTS", (0, 0, 0, N)),
    "taken back at the replica": Ending(_taken_back, "CANCELLED"),
    "taken back one by one": Ending(_taken_back_one_by_one, "CANCELLED"),
    "late at the replica": Ending(_late, "DEADLINE_RUNNING", (0, 0, N, 0), timeout_s=5.0, copies="failed"),
    "its link breaks": Ending(_lost, "REPLICA_LOST", (0, N, 0, 0)),
    "refused, then well": Ending(_refused_first, ends=(N, 0, 0, 0), executed=N),
    "it waits, then well": Ending(_waited, ends=(N, 0, 0, 0), executed=N, copies="dropped", world=WAITING),
    "taken back while it waits": Ending(_taken_back, "CANCELLED", copies="dropped", world=WAITING),
    "taken back one by one while it waits": Ending(
        _taken_back_one_by_one, "CANCELLED", copies="dropped", world=WAITING
    ),
    "late while it waits": Ending(
        _late, "DEADLINE_IN_QUEUE", (0, 0, N, 0), timeout_s=5.0, copies="dropped", world=WAITING
    ),
    "too long in the queue": Ending(_time_in_the_queue, "QUEUE_TIMEOUT", (0, 0, N, 0), copies="dropped", world=WAITING),
    "its endpoint goes while it waits": Ending(_endpoint_goes, "ENDPOINT_NOT_FOUND", copies="dropped", world=WAITING),
    "unsent when the link breaks, then well": Ending(_unsent_and_lost, ends=(N, 0, 0, 0), executed=N, world=UNSENT),
    "taken back unsent": Ending(_unsent_and_taken_back, "CANCELLED", world=UNSENT),
}


def submitted(kind: Kind, ending: Ending, ids: range = IDS) -> tuple[AccountedWorld, Caller]:
    """A world in which a caller has made six calls."""
    world = AccountedWorld(copies=kind.copies, **ending.world)
    caller = world.connect() if kind.in_session else known_caller()
    submit(world, kind, caller, ids, ending.timeout_s)
    return world, caller


def submit(world: AccountedWorld, kind: Kind, caller: Caller, ids: range, timeout_s: float | None) -> None:
    fields = kind.fields if timeout_s is None else {**kind.fields, "timeout_s": timeout_s}
    if kind.is_column:
        world.submit_column("kjkjhh", first=ids[0], by=caller, **fields)
    else:
        world.submit(ids, by=caller, **fields)


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_is_given_back_and_counted_once(kind: Kind, ending: Ending) -> None:
    world, caller = submitted(kind, ending)
    ending.act(world, kind, caller)
    cut_all(world)
    answer(world, kind, *SHADOWS)
    assert world.outcomes == dict.fromkeys(IDS, kind.bad(ending.reason) if ending.reason else kind.good)
    assert world.returned == {caller: (N, 3 * N)}
    counters = world.scheduler.counters
    assert counters.calls == {("e",): N}
    assert world.reasons_counted == ({ending.reason: N} if ending.reason else {})
    assert world.figures == ending.ends
    assert world.executed == ending.executed
    assert world.copies == ({ending.copies: 2 * N} if kind.copies else {})
    assert counters.backends["b"].shadow_ended.sum().total == 0
    for name in ("x", "y"):
        assert counters.backends[name].ended.sum().total == 0, "a copy is no call of the backend"
    tenants = [*world.scheduler.tenants.others.values(), *(it.figures for it in world.scheduler.tenants.named())]
    if kind.fields.get("tenant"):
        assert sum(it.accepted for it in tenants) == N
        assert sum(it.failed for it in tenants) == (N if ending.reason else 0)
    else:
        assert not tenants
    nothing_is_left(world, caller)


@pytest.mark.parametrize("ending", [it for it in ENDINGS if it != "its endpoint goes while it waits"])
@pytest.mark.parametrize("name", KINDS)
def test_calls_that_follow_are_served_also_by_a_new_owner(name: str, ending: str) -> None:
    kind = KINDS[name]
    world, caller = submitted(kind, ENDINGS[ending])
    ENDINGS[ending].act(world, kind, caller)
    link_all(world)
    world.lazy = False
    cut_all(world)
    world.owner = ("r2", 2)
    world.push()
    later = Kind({**kind.fields, **({"stop_generation": 2} if "stop_generation" in kind.fields else {})}, *kind[1:])
    submit(world, later, caller, range(201, 207), None)
    if kind.is_column or "ordering_key" in kind.fields:
        assert world.at_replica("r2") == [*range(201, 207)]
    answer(world, kind, *REPLICAS)
    assert world.reasons(range(201, 207)) == {kind.good}


@pytest.mark.parametrize("where", ["at replicas", "waiting", "unsent"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_caller_that_leaves_leaves_nothing(kind: Kind, where: str) -> None:
    world, caller = submitted(kind, Ending(_completed, world={"waiting": WAITING, "unsent": UNSENT}.get(where, {})))
    if kind.in_session:
        world.disconnect(caller)
    else:
        world.step(CallerLeft(caller))
    cut_all(world)
    answer(world, kind, *REPLICAS, *SHADOWS)
    assert world.outcomes == ({} if kind.in_session else dict.fromkeys(IDS, kind.bad("CANCELLED")))
    assert world.figures == (0, 0, 0, 0)
    nothing_is_left(world, caller)


@pytest.mark.parametrize("kind", [it for it in KINDS.values() if not it.copies], ids=lambda it: str(it.fields))
def test_each_good_end_earns_a_fifth_of_a_retry_and_a_bad_one_nothing(kind: Kind) -> None:
    for ends_well, retried in ((True, 20), (False, 3)):
        world = AccountedWorld()
        caller = world.connect() if kind.in_session else known_caller()
        for begin in range(100, 200, 6 if kind.is_column else 10):
            ids = range(begin, min(begin + 6, 200)) if kind.is_column else range(begin, begin + 10)
            if kind.is_column:
                world.submit_column("k" * len(ids), first=begin, by=caller, **kind.fields)
            else:
                world.submit(ids, by=caller, **kind.fields)
            if ends_well:
                answer(world, kind, *REPLICAS)
            else:
                world.each(world.fail, *REPLICAS)
        world.submit(range(1_000, 1_025), idempotent=True)
        for name in REPLICAS:
            world.lose(name)
        assert world.scheduler.counters.retries == {("b",): retried}
