"""Stories that are known to be dangerous, with everything in them left to chance that can be; the table of all of them.

Faults are chosen by what hurts: a plot brings the mesh into the state in which two processes could be of two minds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

from simulation.mesh.draft import Draft
from simulation.mesh.lanes import key_overtaken, keys_move, stop_lanes, stop_lanes_apart, stop_lanes_late
from simulation.mesh.owners import (
    clock_goes_back,
    fence_unheard,
    namesake,
    owner_unheard,
    owners_change,
    owners_fenced,
    tables_late,
)
from simulation.mesh.requests import requests_drain, requests_repeated, reservations_repeated
from simulation.mesh.scenario import Blow, Moment, WorkKind, WorkPlan
from simulation.mesh.storm import storm


def router_leaves(draft: Draft) -> None:
    """A router stops, or its client cannot hear it any more, while calls wait there and replicas join."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    if chance.random() < 0.7:
        draft.replicas.clear()
    draft.need_replicas(1)
    if chance.random() < 0.8:
        draft.add_work(WorkPlan(kind=WorkKind.STREAM, run_s=0.3, burst=1, pause_s=0.4))
    draft.press()
    gone = draft.router()
    match chance.choice(("terminate", "terminate", "terminate", "kill", "cut", "stall", "pause", "restart")):
        case "terminate":
            draft.strike(Blow.TERMINATE, at_s, gone)
        case "restart":
            draft.strike(Blow.TERMINATE, at_s, gone, for_s=chance.uniform(0.0, 1.0))
        case "kill":
            draft.strike(Blow.KILL, at_s, gone, for_s=chance.choice((-1.0, 0.2)))
        case "pause":
            draft.strike(Blow.PAUSE, at_s, gone, for_s=chance.choice((1.0, 4.5, 7.0)))
        case "cut":
            draft.strike(Blow.CUT, at_s, draft.clients[0].name, gone, for_s=chance.choice((1.0, 4.5, 8.0)))
        case _:
            ends = [draft.clients[0].name, gone]
            chance.shuffle(ends)
            draft.strike(Blow.STALL, at_s, *ends, for_s=chance.choice((1.0, 4.5, 8.0)))
    for _ in range(chance.randint(1, 2)):
        draft.join(at_s + chance.uniform(-0.2, 1.0))


def older_table(draft: Draft) -> None:
    """A router does not hear of a replica that joins, or of one that goes; then sessions move to it."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    first = draft.router()
    others = [it.name for it in draft.routers if it.name != first]
    for name in others:
        draft.strike(
            chance.choice((Blow.CUT, Blow.STALL)), at_s - 0.3, "controller", name, for_s=chance.choice((2.0, 5.0, 9.0))
        )
    if chance.random() < 0.7:
        draft.press()
        draft.join(at_s)
    else:
        draft.need_replicas(2)
        draft.strike(
            chance.choice((Blow.KILL, Blow.TERMINATE)), at_s, draft.some_replica(), for_s=chance.choice((-1.0, 0.3))
        )
    blow = chance.choice((Blow.KILL, Blow.TERMINATE, Blow.CUT))
    other = draft.clients[0].name if blow is Blow.CUT else ""
    draft.strike(blow, at_s + chance.uniform(0.1, 1.0), first, other, for_s=chance.choice((1.0, 5.0)))


def controller_forgets(draft: Draft) -> None:
    """The controller begins anew while somebody is cut off from it; then sessions move."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(2)
    if chance.random() < 0.5:
        draft.press()
    draft.add_work(WorkPlan(kind=WorkKind.KEYED, key="owned", keys=8, run_s=0.05, burst=8, pause_s=0.2))
    cut_s = chance.choice((2.0, 4.0, 7.0))
    away = [draft.some_replica()] if chance.random() < 0.8 else []
    if chance.random() < 0.7:
        away.append(draft.router())
    for name in away:
        draft.strike(Blow.CUT, at_s - 0.1, name, "controller", for_s=cut_s)
    if chance.random() < 0.2:
        draft.strike(Blow.JUMP, at_s - 0.05, "controller", amount=chance.choice((-3600.0, -30.0, 30.0)))
    draft.strike(Blow.KILL, at_s, "controller", for_s=chance.choice((0.05, 0.5)))
    if chance.random() < 0.8:
        draft.strike(
            chance.choice((Blow.KILL, Blow.TERMINATE)), at_s + chance.uniform(0.3, 2.0), draft.router(), for_s=1.0
        )


def all_begin_anew(draft: Draft) -> None:
    """Controller and routers are started again together; the replicas live on."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_replicas(1)
    for name in ["controller", *(it.name for it in draft.routers)]:
        blow = chance.choice((Blow.KILL, Blow.KILL, Blow.TERMINATE))
        draft.strike(blow, at_s + chance.uniform(0.0, 0.1), name, for_s=chance.uniform(0.0, 1.0))
    if chance.random() < 0.5:
        name = draft.some_replica()
        for other in ["controller", *(it.name for it in draft.routers)]:
            draft.strike(Blow.CUT, at_s + 0.05, name, other, for_s=chance.choice((0.5, 2.0)))


def controller_returns(draft: Draft) -> None:
    """The controller ends, and starts again with its store, in the midst of whatever else goes on; maybe twice."""
    chance = draft.chance
    draft.remembers = True
    chance.choice((controller_forgets, controller_forgets, all_begin_anew, keys_move, older_table))(draft)
    for _ in range(chance.choice((1, 2))):
        at_s, moment = draft.begins_s, None
        if chance.random() < 0.5:
            frame = chance.choice(("hello", "report", "emptied"))
            moment = Moment(rpc="AttachReplica", frame=frame, source="replica", target="controller", nth=1)
        blow = chance.choice((Blow.KILL, Blow.KILL, Blow.TERMINATE))
        draft.strike(blow, at_s, "controller", for_s=chance.choice((0.05, 0.5, 3.0)), moment=moment)
    if chance.random() < 0.5:
        draft.strike(Blow.KILL, draft.begins_s, draft.some_replica(), for_s=chance.choice((-1.0, 0.2)))


def older_state_file(draft: Draft) -> None:
    """An older state file is put back while keys move or replicas come and go. No operator decides what counts."""
    chance = draft.chance
    chance.choice((keys_move, controller_returns, older_table, replica_departs))(draft)
    draft.remembers, draft.stays_on_hold = True, True
    for _ in range(chance.choice((1, 1, 2))):
        draft.strike(
            Blow.PUT_BACK,
            draft.begins_s + chance.uniform(0.0, 1.5),
            "controller",
            for_s=chance.choice((0.05, 0.5)),
            amount=float(chance.choice((1, 2, 3, 5, 8, 20))),
        )
    for _ in range(chance.choice((0, 1, 2))):
        draft.join(draft.begins_s + chance.uniform(0.2, 2.0))


def newer_state_unheard(draft: Draft) -> None:
    """An older state file is put back, all routers end, and what knows the newer state is cut off; a session moves."""
    chance, at_s = draft.chance, draft.begins_s
    draft.is_edge = True
    draft.remembers, draft.stays_on_hold = True, True
    draft.need_replicas(1)
    # Keys may have two owners then, so no call has one.
    work = WorkPlan(kind=WorkKind.UNKEYED, run_s=chance.choice((0.2, 0.4)), burst=4, pause_s=0.3)
    draft.clients = [replace(it, work=(work,)) for it in draft.clients]
    amount = float(chance.choice((5, 8, 20)))
    draft.strike(Blow.PUT_BACK, at_s, "controller", for_s=chance.uniform(0.05, 0.5), amount=amount)
    for router in draft.routers:
        draft.strike(Blow.KILL, at_s + chance.uniform(0.0, 0.1), router.name, for_s=chance.uniform(0.1, 0.8))
    for replica in draft.replicas:
        draft.strike(Blow.CUT, at_s - 0.01, replica.name, "controller", for_s=chance.choice((2.0, 7.0)))
    for _ in range(chance.choice((1, 2))):
        draft.join(at_s + chance.uniform(0.1, 0.8))


def hasty(draft: Draft) -> None:
    """Short timeouts while sessions move."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(1)
    for kind, key in ((WorkKind.UNKEYED, ""), (WorkKind.KEYED, "hasty")):
        draft.add_work(
            WorkPlan(kind=kind, key=key, run_s=0.03, burst=4, pause_s=0.05, timeout_s=chance.uniform(0.03, 0.15))
        )
    for router in draft.routers:
        if chance.random() < 0.7:
            draft.strike(chance.choice((Blow.TERMINATE, Blow.KILL)), at_s, router.name, for_s=chance.uniform(0.0, 0.3))
            at_s += chance.uniform(0.1, 0.8)


def no_table(draft: Draft) -> None:
    """A router that has not heard from the controller yet is the only one left."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.add_work(WorkPlan(kind=WorkKind.UNKEYED, run_s=0.2, burst=4, timeout_s=inf))
    draft.strike(Blow.KILL, at_s, "controller", for_s=chance.choice((1.0, 4.0, 8.0, -1.0, -1.0)))
    for router in draft.routers[1:]:
        draft.strike(Blow.KILL, at_s + 0.05, router.name, for_s=0.1)
    draft.strike(chance.choice((Blow.KILL, Blow.TERMINATE)), at_s + chance.uniform(0.3, 0.6), draft.routers[0].name)


def slots_and_tables(draft: Draft) -> None:
    """Slots, while tables differ and replicas come and go."""
    draft.need_replicas(1)
    draft.add_work(WorkPlan(kind=WorkKind.SLOT, run_s=0.1, burst=2), WorkPlan(kind=WorkKind.SLOT, run_s=0.3, burst=1))
    older_table(draft)


def long_away(draft: Draft) -> None:
    """All routers are away for longer than replicas remember."""
    at_s = draft.begins_s
    away_s = draft.chance.choice((3.0, 58.0, 70.0, 85.0))
    draft.need_replicas(1)
    draft.press()
    draft.clients = [
        replace(
            it, work=tuple(replace(work, timeout_s=max(work.timeout_s, 120.0)) for work in it.work), patience_s=120.0
        )
        for it in draft.clients
    ]
    for router in draft.routers:
        if draft.chance.random() < 0.5:
            draft.strike(Blow.KILL, at_s, router.name, for_s=away_s)
        else:
            draft.strike(Blow.PAUSE, at_s, router.name, for_s=away_s)


def replica_departs(draft: Draft) -> None:
    """A replica ends, and departs, while calls of a session that hears nothing of it have run there; it moves then."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(2)
    draft.add_work(WorkPlan(kind=WorkKind.UNKEYED, run_s=0.2, burst=6, pause_s=0.1))
    first, gone = draft.router(), draft.some_replica()
    # What has begun is not answered: the router hears nothing of the replica, or the client nothing of the router.
    source, target = chance.choice(((gone, first), (first, draft.clients[0].name)))
    draft.strike(Blow.STALL, at_s, source, target, for_s=chance.choice((4.0, 8.0)))
    blow = chance.choice((Blow.KILL, Blow.TERMINATE))
    draft.strike(blow, at_s + chance.uniform(0.05, 0.5), gone, for_s=chance.choice((0.05, 0.5, -1.0)))
    moves_at_s = at_s + chance.uniform(0.3, 4.0)
    if chance.random() < 0.4:
        forgets_at_s = at_s + chance.uniform(0.6, 2.0)
        draft.strike(Blow.KILL, forgets_at_s, "controller", for_s=0.05)
        moves_at_s = max(moves_at_s, forgets_at_s + chance.uniform(0.5, 1.5))
    draft.strike(Blow.KILL, moves_at_s, first, for_s=chance.choice((1.0, 5.0)))


def moves_twice(draft: Draft) -> None:
    """A session leaves one router, and soon the next one, which still has calls of it that wait."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(3)
    draft.need_replicas(1)
    draft.press()
    client = draft.clients[0]
    for router in client.routers[:2]:
        if chance.random() < 0.5:
            draft.strike(Blow.TERMINATE, at_s, router)
        else:
            draft.strike(Blow.CUT, at_s, client.name, router, for_s=chance.choice((4.5, 8.0)))
        at_s += chance.choice((0.3, 0.6, 1.0, 4.0))


def heard_and_lost(draft: Draft) -> None:
    """Of a session that moves, one replica tells what it has, and ends, while another one does not answer."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(2)
    draft.press()
    first, silent, lost = draft.router(), draft.replicas[0].name, draft.replicas[1].name
    for router in draft.routers:
        if router.name != first:
            draft.strike(Blow.STALL, at_s - 0.05, silent, router.name, for_s=chance.choice((2.0, 4.5)))
    draft.strike(Blow.KILL, at_s, first, for_s=chance.choice((1.0, 5.0)))
    draft.strike(Blow.KILL, at_s + chance.uniform(0.05, 1.5), lost, for_s=chance.choice((0.05, 0.5)))


def departures_forgotten(draft: Draft) -> None:
    """A replica has departed when the controller forgets; a session moves that had calls there, and heard nothing."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(2)
    draft.add_work(WorkPlan(kind=WorkKind.UNKEYED, run_s=0.1, burst=6, pause_s=0.1))
    draft.seconds = max(draft.seconds, at_s + 6.0)
    first = draft.router()
    draft.strike(Blow.STALL, at_s, first, draft.clients[0].name, for_s=8.0)
    draft.strike(Blow.TERMINATE, at_s + chance.uniform(0.05, 0.3), draft.some_replica())
    # It stays for two seconds for the sake of outcomes that were not acknowledged.
    draft.strike(Blow.KILL, at_s + chance.uniform(2.3, 2.8), "controller", for_s=0.05)


def generations_differ(draft: Draft) -> None:
    """A router has an older table when the controller forgets; a session moves to it that used a newer replica."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(1)
    draft.press()
    first = draft.router()
    for router in draft.routers:
        if router.name != first:
            draft.strike(Blow.CUT, at_s - 0.3, "controller", router.name, for_s=1.2)
    joins = draft.join(at_s - 0.2, max_ongoing=2)
    for name in (first, joins):
        draft.strike(Blow.CUT, at_s + 0.6, name, "controller", for_s=7.0)
    draft.strike(Blow.KILL, at_s + 0.7, "controller", for_s=chance.choice((0.05, 0.3)))
    # The new generation soon has as many revisions as the old one had.
    for _ in range(chance.randint(0, 3)):
        draft.join(at_s + chance.uniform(0.8, 1.2))
    blow = chance.choice((Blow.KILL, Blow.TERMINATE))
    draft.strike(blow, at_s + chance.uniform(0.9, 2.5), first, for_s=5.0)


Plot = Callable[[Draft], None]

PLOTS: Final[tuple[tuple[Plot, float], ...]] = (
    (storm, 6.0),
    (router_leaves, 4.0),
    (older_table, 4.0),
    (controller_forgets, 4.0),
    (all_begin_anew, 2.0),
    (controller_returns, 4.0),
    (older_state_file, 2.0),
    (newer_state_unheard, 0.5),
    (keys_move, 4.0),
    (replica_departs, 2.0),
    (moves_twice, 1.0),
    (key_overtaken, 1.0),
    (stop_lanes_apart, 1.0),
    (generations_differ, 1.0),
    (owners_fenced, 0.5),
    (fence_unheard, 0.5),
    (owner_unheard, 0.5),
    (tables_late, 0.5),
    (owners_change, 0.5),
    (clock_goes_back, 0.5),
    (departures_forgotten, 0.5),
    (stop_lanes_late, 0.5),
    (heard_and_lost, 1.0),
    (namesake, 1.0),
    (stop_lanes, 3.0),
    (hasty, 2.0),
    (no_table, 1.0),
    (slots_and_tables, 2.0),
    (long_away, 0.5),
    (requests_repeated, 2.0),
    (requests_drain, 1.0),
    (reservations_repeated, 2.0),
)
"""And how often each."""

BY_NAME: Final = {plot.__name__: plot for plot, _ in PLOTS}
