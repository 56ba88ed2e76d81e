"""Plots about the calls of ordering keys: their owners move, and lanes stop at a failure."""

from __future__ import annotations

from simulation.mesh.draft import Draft
from simulation.mesh.scenario import Blow, WorkKind, WorkPlan
from simulation.mesh.storm import storm


def keys_move(draft: Draft) -> None:
    """Owners of keys come, go, are cut off and come back."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_replicas(2)
    draft.add_work(WorkPlan(kind=WorkKind.KEYED, key="moving", keys=8, run_s=chance.choice((0.02, 0.2)), burst=4))
    draft.join(at_s + chance.uniform(-0.5, 0.5))
    name = draft.some_replica()
    for other in ("controller", *(it.name for it in draft.routers)):
        if chance.random() < 0.6:
            draft.strike(
                chance.choice((Blow.CUT, Blow.STALL, Blow.RESET)),
                at_s,
                name,
                other,
                for_s=chance.choice((0.5, 3.5, 6.0)),
            )
    if chance.random() < 0.5:
        draft.strike(Blow.KILL, at_s + chance.uniform(0.0, 0.5), "controller", for_s=chance.choice((0.05, 0.5)))
    if chance.random() < 0.5:
        draft.strike(
            chance.choice((Blow.PAUSE, Blow.TERMINATE, Blow.KILL)),
            at_s + chance.uniform(0.0, 1.0),
            draft.some_replica(),
            for_s=chance.choice((0.1, 3.5)),
        )


def key_overtaken(draft: Draft) -> None:
    """Calls of a key are lost with a link, which their client does not hear; later ones run; then it moves."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(1)
    draft.add_work(WorkPlan(kind=WorkKind.KEYED, key="overtaken", run_s=0.15, burst=4, pause_s=0.2))
    first, client = draft.router(), draft.clients[0].name
    draft.strike(Blow.STALL, at_s, first, client, for_s=6.0)
    for replica in draft.replicas:
        draft.strike(Blow.RESET, at_s + chance.uniform(0.05, 0.4), first, replica.name, for_s=0.0)
    draft.strike(Blow.KILL, at_s + chance.uniform(0.6, 2.0), first, for_s=1.0)


def stop_lanes(draft: Draft) -> None:
    """Lanes that stop at a failure: timeouts near the run time, cancels, handlers that go on all the same."""
    chance = draft.chance
    draft.need_replicas(1)
    for number in range(chance.randint(1, 2)):
        run_s = chance.choice((0.02, 0.05, 0.1, 0.3))
        draft.add_work(
            WorkPlan(
                kind=WorkKind.STOP,
                key=f"stop{number}",
                run_s=run_s,
                burst=chance.choice((3, 5)),
                pause_s=4 * run_s,
                timeout_s=run_s * chance.uniform(0.9, 4.0) if chance.random() < 0.7 else 20.0,
                fails=chance.choice((0.0, 0.1)),
                swallows=chance.choice((0.0, 0.3)),
                gives_up=chance.choice((0.0, 0.2)),
            )
        )
    if chance.random() < 0.5:
        storm(draft)


def stop_lanes_apart(draft: Draft) -> None:
    """Lanes that stop, while what is said of their failures does not arrive; sessions move then, or do not."""
    chance, at_s = draft.chance, draft.begins_s
    draft.need_routers(2)
    draft.need_replicas(1)
    run_s = chance.choice((0.05, 0.1, 0.3))
    draft.add_work(
        WorkPlan(
            kind=WorkKind.STOP,
            key="apart",
            run_s=run_s,
            burst=5,
            pause_s=2 * run_s,
            timeout_s=run_s * chance.uniform(0.9, 4.0) if chance.random() < 0.5 else 20.0,
            swallows=chance.choice((0.0, 0.5)),
            gives_up=chance.choice((0.1, 0.4)),
        )
    )
    first, client = draft.router(), draft.clients[0].name
    for_s = chance.choice((0.4, 1.0, 2.0, 5.0))
    if chance.random() < 0.5:
        for replica in draft.replicas:
            draft.strike(Blow.STALL, at_s, first, replica.name, for_s=for_s)
    else:
        draft.strike(Blow.STALL, at_s, client, first, for_s=for_s)
    if chance.random() < 0.6:
        draft.strike(Blow.KILL, at_s + chance.uniform(0.1, 1.0), first, for_s=1.0)


def stop_lanes_late(draft: Draft) -> None:
    """Lanes that stop, of which calls end after their deadline, while word of that does not reach the replica.

    Each call has a deadline of its own, and the next one is there when it ends.
    """
    chance, at_s = draft.chance, draft.begins_s
    draft.replicas.clear()
    draft.join(0.0, max_ongoing=8)
    for number in range(4):
        run_s = chance.choice((0.3, 0.5))
        draft.add_work(
            WorkPlan(
                kind=WorkKind.STOP,
                key=f"late{number}",
                run_s=run_s,
                burst=1,
                pause_s=run_s * chance.uniform(0.4, 0.8),
                timeout_s=run_s * chance.uniform(1.2, 2.5),
            )
        )
    draft.strike(Blow.STALL, at_s, draft.router(), draft.some_replica(), for_s=chance.choice((0.5, 1.0, 2.0)))
