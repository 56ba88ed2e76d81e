"""What always holds of sessions through a whole mesh, and what holds when everything is whole again."""

from __future__ import annotations

from slotmesh.errors import Failure, Reason
from tests.properties.mesh_model import (
    MAX_ROUNDS,
    OVERDUE,
    MeshModel,
)
from tests.support.memory_nodes import BROKEN


def answers_belong_to_calls_that_are_here(model: MeshModel) -> None:
    for router in model.mesh.routers:
        for caller in router.inboxes:
            assert all(run.unanswered > 0 for run in caller.runs)
        for replica in router.scheduler.topology.replicas.values():
            assert all(sent.lo >= 0 and sent.count > 0 for sent in replica.outbox)


def all_calls_end(model: MeshModel) -> None:
    """When everything is whole again, every call ends, and what may not fail has a result."""
    model.heal()
    for _ in range(MAX_ROUNDS):
        if not any(client.unanswered for client in model.clients):
            break
        model.round()
    assert not any(client.unanswered for client in model.clients), "calls never end"
    check_the_end(model)


def check_the_end(model: MeshModel) -> None:
    for client in model.clients:
        for call_id, call in client.calls.items():
            first = client.first_failure(call)
            assert first is None or call_id <= first or not call.executions, f"{call} ran behind a failure: {first}"
    for call in model.by_tag.values():
        if isinstance(call.outcome, Failure):
            model.check_failure(call, call.outcome)
            reason = call.outcome.reason
            if not model.troubles - {"routers", "moves"}:
                raise AssertionError(f"nothing was lost, and {call} failed")
            if model.troubles.isdisjoint({"replicas", "tables", "wires", "silence"}):
                reasons = {BROKEN.reason, *OVERDUE, Reason.CANCELLED, Reason.PREDECESSOR_FAILED}
                if not model.troubles.isdisjoint({"timeouts", "cancels"}):
                    # It failed at the router that its client has left, and those behind it went on.
                    reasons.add(Reason.REPLICA_LOST)
                assert reason in reasons
