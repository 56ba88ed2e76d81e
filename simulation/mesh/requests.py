"""Stories of calls and reservations with a request id: several attempts at one, while owners and routers change.

No replica is killed, which forgets what it has executed, and no router starts later, which does not know of earlier
owners (docs/guarantees.md).
"""

from __future__ import annotations

from dataclasses import replace

from simulation.mesh.draft import Draft
from simulation.mesh.scenario import SETTLE_S, Blow, WorkKind, WorkPlan


def _make_requests(draft: Draft) -> list[str]:
    """All clients make calls with request ids only, at all routers. Returns the routers."""
    draft.is_edge = True
    chance = draft.chance
    draft.need_routers(2)
    draft.need_replicas(chance.choice((1, 2, 3)))
    draft.replicas = [replace(it, begins_s=min(it.begins_s, 0.1)) for it in draft.replicas]
    clients = []
    for each in draft.clients:
        work = [_requests(draft, f"{each.name}-{number}") for number in range(chance.choice((1, 2, 2)))]
        clients.append(replace(each, work=tuple(work)))
    draft.clients = clients
    return [it.name for it in draft.routers]


def _requests(draft: Draft, key: str) -> WorkPlan:
    chance = draft.chance
    key = chance.choice(("", "", key, "shared"))
    run_s = chance.choice((0.01, 0.05, 0.1) if key else (0.01, 0.05, 0.3, 0.5))  # calls of a key run one by one
    return WorkPlan(
        kind=WorkKind.REQUEST,
        key=key,
        burst=chance.choice((1, 2, 4)),
        pause_s=0.2 + run_s * 0.5,
        run_s=run_s,
        timeout_s=chance.choice((20.0, 20.0, 20.0, 4.0, max(0.05, run_s * 1.5))),
        fails=chance.choice((0.0, 0.0, 0.1)),
        gives_up=chance.choice((0.0, 0.0, 0.2)),
    )


def requests_repeated(draft: Draft) -> None:
    """Routers end or are cut off while replicas join, so that attempts go on elsewhere, and partitions move."""
    chance, at_s = draft.chance, draft.begins_s
    routers = _make_requests(draft)
    world = [*routers, *(it.name for it in draft.replicas), *(it.name for it in draft.clients)]
    for _ in range(chance.randint(1, 2)):
        draft.join(max(SETTLE_S, at_s + chance.uniform(-0.5, 1.0)))
    for name in routers[: chance.randint(1, len(routers) - 1)]:
        draft.strike(chance.choice((Blow.KILL, Blow.TERMINATE)), at_s + chance.uniform(-0.2, 1.0), name)
    for _ in range(chance.choice((0, 1, 1, 2))):
        router, other = chance.choice(routers), chance.choice(["controller", *world[len(routers) :]])
        ends = [router, other]
        chance.shuffle(ends)
        blow = chance.choice((Blow.CUT, Blow.STALL, Blow.RESET, Blow.SLOW))
        for_s, amount = chance.choice((0.3, 1.0, 2.5, 5.0)), chance.choice((0.02, 0.2)) if blow is Blow.SLOW else 0.0
        draft.strike(blow, at_s + chance.uniform(-0.5, 1.0), *ends, for_s=for_s, amount=amount)


def requests_drain(draft: Draft) -> None:
    """Replicas end in order, and others start: no call fails for that.

    Where routers link to a part of the replicas there is one attempt at each call: a router without a link to an owner
    that drains cannot learn that this owner has executed another attempt.
    """
    chance, at_s = draft.chance, draft.begins_s
    _make_requests(draft)
    ending = chance.randint(1, 2)
    draft.need_replicas(ending + 1)
    draft.replicas = [replace(it, max_ongoing=8) for it in draft.replicas]  # one alone is enough
    for number in range(ending):
        name, again_s = draft.replicas[number].name, chance.choice((-1.0, 0.1, 1.0))
        draft.strike(Blow.TERMINATE, at_s + number * chance.uniform(0.0, 1.0), name, for_s=again_s)
    if chance.random() < 0.5:
        draft.join(max(SETTLE_S, at_s + chance.uniform(-0.5, 0.5)))
    attempts = 1 if draft.has_subsets else 3

    def patient(work: WorkPlan) -> WorkPlan:
        return replace(work, timeout_s=20.0, gives_up=0.0, must_succeed=True, attempts=attempts)

    draft.clients = [replace(each, work=tuple(map(patient, each.work))) for each in draft.clients]


def reservations_repeated(draft: Draft) -> None:
    """Reservations are made again at other routers, while these and links break. No replica joins, or is restarted."""
    chance, at_s = draft.chance, draft.begins_s
    routers = _make_requests(draft)
    draft.need_replicas(2)
    draft.clients = [
        replace(
            each,
            work=tuple(
                replace(work, kind=WorkKind.RESERVATION, key="", timeout_s=20.0, gives_up=0.0) for work in each.work
            ),
        )
        for each in draft.clients
    ]
    replicas = [it.name for it in draft.replicas]
    for name in routers[: chance.randint(0, len(routers) - 1)]:
        draft.strike(chance.choice((Blow.KILL, Blow.TERMINATE)), at_s + chance.uniform(-0.2, 1.0), name)
    for _ in range(chance.randint(1, 3)):
        ends = [chance.choice(routers), chance.choice(replicas)]
        chance.shuffle(ends)
        blow = chance.choice((Blow.CUT, Blow.STALL, Blow.RESET, Blow.SLOW))
        for_s, amount = chance.choice((0.3, 1.0, 2.5, 5.0)), chance.choice((0.02, 0.2)) if blow is Blow.SLOW else 0.0
        draft.strike(blow, at_s + chance.uniform(-0.5, 1.0), *ends, for_s=for_s, amount=amount)
    if chance.random() < 0.3:
        draft.strike(chance.choice((Blow.KILL, Blow.TERMINATE)), at_s, replicas[0], for_s=-1.0)
