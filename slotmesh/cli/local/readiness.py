"""When a local mesh is ready, and what it still lacks. Pure.

Ready means that the first call meets the whole mesh: all replicas take calls, and each router has their table and a
link to each of them.
"""

from __future__ import annotations

from slotmesh.cli.local.order import Order
from slotmesh.cli.snapshot import FAILED, Members, ReplicaStatus, Snapshot


def lacks(order: Order, snapshot: Snapshot) -> str:
    """What is still missing of the backends that were ordered, for a person; empty when the mesh is ready.

    How many replicas there should be is what the controller says: with a state file it may be another number than that
    of the order.
    """
    members = snapshot.members
    wanted = {it.name: it.num_replicas or 0 for it in snapshot.backends if it.name in order.backend_names}
    ready = {name: members.ready(name) for name in wanted}
    if any(len(ready[name]) < count for name, count in wanted.items()):
        have = sum(min(len(ready[name]), count) for name, count in wanted.items())
        return f"{have} of {sum(wanted.values())} replicas ready"
    all_ready: frozenset[str] = frozenset().union(*ready.values())
    linked = [
        router.router_id
        for router in members.routers
        if router.router_id in order.router_ids
        and members.is_current(router)
        and router.linked_replica_ids >= all_ready
    ]
    if len(linked) < order.routers:
        return f"all replicas ready; {len(linked)} of {order.routers} routers linked to them"
    return ""


def first_failure(order: Order, members: Members) -> ReplicaStatus | None:
    """A replica whose handler could not start; one with an error text goes before one without."""
    failed = [it for it in members.replicas if it.backend in order.backend_names and it.state == FAILED]
    return max(failed, key=says_why, default=None)


def says_why(replica: ReplicaStatus) -> bool:
    """Whether the error is the handler's traceback, and not only how the process ended."""
    return "\n" in replica.error.strip()
