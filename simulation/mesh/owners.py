"""Stories in which two replicas could start calls of one key: an owner is not heard, or not told, or about to end.

Each router has a client of its own, all with the same keys: a router alone keeps the order of its keys, whoever owns
them.
"""

from __future__ import annotations

from dataclasses import replace

from simulation.mesh.draft import Draft
from simulation.mesh.scenario import Blow, Moment, ReplicaPlan, WorkKind, WorkPlan


def _share_keys(draft: Draft, *, run_s: float = 0.1, others_begin_s: float = 0.6) -> list[str]:
    """Each router has a client of its own, all with the same keys, for long. Returns the routers."""
    draft.seconds = max(draft.seconds, 9.0)
    draft.need_routers(2)
    draft.need_replicas(2)
    # A kind of work for each key: calls that wait for one owner keep none of another one's from being made.
    work = tuple(
        WorkPlan(kind=WorkKind.KEYED, key=f"everybody{n}", run_s=run_s, burst=1, pause_s=0.2) for n in range(6)
    )
    names = [it.name for it in draft.routers]
    draft.clients = [
        replace(
            draft.clients[0],
            name=f"client{number}",
            routers=(name,),
            work=work,
            begins_s=others_begin_s if number else 0.6,
        )
        for number, name in enumerate(names)
    ]
    return names


def owners_fenced(draft: Draft) -> None:
    """The controller forgets, and only a router that it cannot reach knew who owns what. There are more owners then."""
    draft.is_edge = True  # what only one process knows, the next controller may not learn in time
    chance, at_s = draft.chance, 1.5
    names = _share_keys(draft, others_begin_s=at_s + 0.5)  # a client whose router is killed would go to the first one
    draft.strike(Blow.CUT, at_s - 0.05, names[0], "controller", for_s=chance.choice((6.5, 8.0)))
    for name in ("controller", *names[1:]):
        draft.strike(Blow.KILL, at_s, name, for_s=0.05)
    draft.join(at_s + chance.uniform(0.1, 2.0))


def fence_unheard(draft: Draft) -> None:
    """The same, and a replica that says how it does is not told to give up what it has."""
    owners_fenced(draft)
    name = draft.replicas[0].name
    attaches = Moment(rpc="AttachReplica", frame="hello", source=name, target="controller")
    draft.strike(Blow.STALL, 1.5, "controller", name, for_s=draft.chance.choice((5.5, 7.0)), moment=attaches)


def owner_unheard(draft: Draft) -> None:
    """The controller hears neither an owner of keys nor a router that goes on sending to it, and may forget them."""
    draft.is_edge = True  # what only one process knows, the next controller may not learn in time
    chance, at_s = draft.chance, 1.5
    names = _share_keys(draft)
    for name in (names[0], draft.some_replica()):
        draft.strike(Blow.CUT, at_s, name, "controller", for_s=chance.choice((5.0, 6.5, 8.0)))
    if chance.random() < 0.5:
        draft.strike(Blow.KILL, at_s + 0.1, "controller", for_s=0.05)


def tables_late(draft: Draft) -> None:
    """The controller forgets, and does not hear an owner of keys; a router that knows it comes a while later."""
    draft.is_edge = True  # what only one process knows, the next controller may not learn in time
    chance, at_s = draft.chance, 1.5
    names = _share_keys(draft)
    for name in (names[0], draft.replicas[0].name):
        draft.strike(Blow.CUT, at_s, name, "controller", for_s=chance.choice((6.5, 8.0)))
    for name in names[1:]:
        draft.strike(Blow.CUT, at_s, name, "controller", for_s=chance.uniform(1.5, 3.0))
    draft.strike(Blow.KILL, at_s + 0.1, "controller", for_s=0.05)


def owners_change(draft: Draft) -> None:
    """An owner of keys ends in order, or there is one more of them, while calls run."""
    chance, at_s = draft.chance, draft.begins_s
    _share_keys(draft, run_s=chance.choice((0.1, 0.3, 0.6)))
    if chance.random() < 0.5:
        draft.strike(Blow.TERMINATE, at_s, draft.some_replica(), for_s=chance.choice((-1.0, 0.05, 1.0)))
    else:
        draft.join(at_s)


def namesake(draft: Draft) -> None:
    """A second process has the id of a replica that lives."""
    chance = draft.chance
    if chance.random() < 0.5:
        _share_keys(draft, run_s=chance.choice((0.1, 0.3)))
    else:
        draft.need_replicas(1)
        draft.add_work(WorkPlan(kind=WorkKind.KEYED, key="twins", keys=4, run_s=0.05, burst=4))
    name = draft.replicas[0].name
    draft.replicas.append(ReplicaPlan(name=f"{name}twin", begins_s=draft.begins_s, twin_of=name))
    if chance.random() < 0.5:
        draft.strike(Blow.CUT, draft.begins_s, name, "controller", for_s=chance.choice((1.0, 4.0)))


def clock_goes_back(draft: Draft) -> None:
    """A controller forgets, with a clock that is behind; then an owner of keys ends, and they need another one."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_replicas(2)
    draft.add_work(WorkPlan(kind=WorkKind.KEYED, key="behind", keys=6, run_s=0.05, burst=6))
    draft.strike(Blow.JUMP, at_s - 0.05, "controller", amount=chance.choice((-3600.0, -30.0)))
    draft.strike(Blow.KILL, at_s, "controller", for_s=0.05)
    draft.strike(Blow.TERMINATE, at_s + chance.uniform(0.5, 1.5), draft.some_replica(), for_s=0.5)
    draft.asks_again = True
