"""Faults of all kinds, drawn: what, to whom, for how long, and at which moment of the protocol."""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.mesh.scenario import Blow, Fault, Moment

_ANSWERS: Final = ("results", "capacity", "refused", "reconciled", "go_away")
_MOMENTS: Final = (
    # rpc, frame, from, to
    ("StreamCalls", "open", "client", "router"),
    ("StreamCalls", "calls", "client", "router"),
    ("StreamCalls", "ack", "client", "router"),
    ("StreamCalls", "cancel", "client", "router"),
    ("StreamCalls", "opened", "router", "client"),
    ("StreamCalls", "results", "router", "client"),
    ("StreamCalls", "go_away", "router", "client"),
    ("Execute", "open", "router", "replica"),
    ("Execute", "runs", "router", "replica"),
    ("Execute", "cancel", "router", "replica"),
    ("Execute", "ack", "router", "replica"),
    ("Execute", "reconcile", "router", "replica"),
    *(("Execute", frame, "replica", "router") for frame in _ANSWERS),
    ("AttachRouter", "hello", "router", "controller"),
    ("AttachRouter", "table", "controller", "router"),
    ("AttachRouter", "delta", "controller", "router"),
    ("AttachRouter", "table_request", "router", "controller"),
    ("AttachReplica", "hello", "replica", "controller"),
    ("AttachReplica", "emptied", "replica", "controller"),
    ("AttachReplica", "revoke", "controller", "replica"),
)


def draw_faults(chance: Random, world: list[str], at_s: float) -> list[Fault]:
    """One fault, or several that belong together."""
    moment = None
    services = [name for name in world if not name.startswith("client")]
    who = chance.choice(services)
    if chance.random() < 0.5:
        rpc, frame, source, target = chance.choice(_MOMENTS)
        moment = Moment(rpc=rpc, frame=frame, source=source, target=target, nth=chance.choice((1, 1, 1, 2, 3)))
        near = [name for name in services if name.startswith((source, target))]
        who = chance.choice(near or services)
    for_s = chance.choice((0.05, 0.3, 1.0, 2.0, 4.5, 7.0))
    blow = chance.choice(
        [*2 * [Blow.KILL, Blow.TERMINATE, Blow.PAUSE, Blow.STALL, Blow.CUT, Blow.RESET], Blow.SLOW, Blow.JUMP]
    )
    if blow in {Blow.KILL, Blow.TERMINATE} and who.startswith("replica") and chance.random() < 0.4:
        for_s = -1.0
    other = ""
    if blow in {Blow.STALL, Blow.CUT, Blow.RESET, Blow.SLOW}:
        talks_to = [name for name in world if name != who and _talk(who, name)]
        if not talks_to:
            return []
        other = chance.choice(talks_to)
        if chance.random() < 0.5:
            who, other = other, who
    amount = {Blow.SLOW: chance.choice((0.02, 0.2, 1.0)), Blow.JUMP: chance.choice((-3600.0, -5.0, 5.0, 3600.0))}
    fault = Fault(blow=blow, at_s=at_s, who=who, other=other, for_s=for_s, amount=amount.get(blow, 0.0), moment=moment)
    together = [fault]
    if blow is Blow.CUT and chance.random() < 0.4:
        # From everybody of a kind: a process that is cut off.
        kind = _kind(other)
        together += [
            Fault(blow=blow, at_s=at_s, who=who, other=name, for_s=for_s, moment=moment)
            for name in world
            if name not in {who, other} and _kind(name) == kind
        ]
    return together


def _kind(name: str) -> str:
    return name.rstrip("0123456789twin") or name


def _talk(one: str, other: str) -> bool:
    pairs = {
        frozenset(("client", "router")),
        frozenset(("router", "replica")),
        frozenset(("router", "controller")),
        frozenset(("replica", "controller")),
    }
    return frozenset((_kind(one), _kind(other))) in pairs
