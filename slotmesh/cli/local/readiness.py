"""When a local mesh is ready, and what it still lacks. Pure.

Ready means that the first call meets the whole mesh: all replicas take calls, and each router has their table and a
link to each of them.
"""

from __future__ import annotations

from slotmesh.cli.local.order import Order
from slotmesh.cli.snapshot import FAILED, Members, ReplicaStatus


def lacks(order: Order, members: Members) -> str:
    """What is still missing, for a person; empty when the mesh is ready."""
    ready = members.ready(order.name)
    if len(ready) < order.replicas:
        return f"{len(ready)} of {order.replicas} replicas ready"
    linked = [
        router.router_id
        for router in members.routers
        if router.router_id in order.router_ids and members.is_current(router) and router.linked_replica_ids >= ready
    ]
    if len(linked) < order.routers:
        return f"all replicas ready; {len(linked)} of {order.routers} routers linked to them"
    return ""


def first_failure(order: Order, members: Members) -> ReplicaStatus | None:
    """A replica whose handler could not start; one with an error text goes before one without."""
    failed = [replica for replica in members.replicas if replica.backend == order.name and replica.state == FAILED]
    return max(failed, key=says_why, default=None)


def says_why(replica: ReplicaStatus) -> bool:
    """Whether the error is the handler's traceback, and not only how the process ended."""
    return "\n" in replica.error.strip()
