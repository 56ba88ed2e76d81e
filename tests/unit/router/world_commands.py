"""Commands of the router's scheduler, carried out by a world in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from router_service.core.commands import (
    AskReconcile,
    CancelRun,
    CloseLink,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    DeliverTaken,
    DeliverTargets,
    DeliverValues,
    Flush,
    NameRoster,
    OpenLink,
    ReportLoad,
    ReportRunDefect,
    RetryLink,
    RouterCommand,
    TakeValues,
)

if TYPE_CHECKING:
    from tests.unit.router.world import World

DONE = "done"
"""How a call ends that wants no reply."""
OK = "ok"


def _take_values(world: World, command: DeliverValues) -> None:
    assert command.ids, "nothing to deliver"
    assert world.outcomes.keys().isdisjoint(command.ids), "values of a call that has ended"
    for call_id, payload in zip(command.ids, command.payloads, strict=True):
        world.values[call_id].append(payload)


def carry_out(commands: list[RouterCommand], world: World) -> None:
    """In order, as the shell does."""
    for command in commands:
        match command:
            case OpenLink(replica):
                world.replicas[replica.replica_id] = replica
            case CloseLink(replica):
                world.closed.append(replica.replica_id)
            case Flush(replica):
                assert not replica.retired, "its link was closed"
                world.flushes.append(replica.replica_id)
                while not world.lazy and replica.outbox:
                    world.cut(replica.replica_id)
            case CancelRun(sent, lo, count, asks):
                first = sent.first + lo
                world.asked_stops += [(first, first + count - 1)] if asks else []
                world.cancelled[sent.replica.replica_id] += range(first, first + count)
            case ReportLoad():
                world.load_reports += 1
            case AskReconcile(replica, session):
                assert replica.linked
                world.asked.append((replica.replica_id, session))
            case DeliverValues():
                _take_values(world, command)
            case TakeValues(replica, run_id, count):
                world.taken[replica.replica_id][run_id] += count
            case NameRoster(caller, version):
                world.named[caller] = version
            case DeliverTargets(_, targets):
                world.targets = [each.replica_id for each in targets]
            case DeliverSlot() | DeliverTaken() | RetryLink() | ReportRunDefect():
                raise AssertionError(f"nobody expects {command}")
            case DeliverDone(ids=ids) | DeliverResults(ids=ids):
                _end(world, ids, OK if isinstance(command, DeliverResults) else DONE)
            case DeliverFailure(ids=ids, failure=failure):
                world.failure_commands.append(command)
                world.failures.update(dict.fromkeys(ids, failure))
                _end(world, ids, failure.reason.value)


def _end(world: World, ids: Iterable[int], outcome: str) -> None:
    for each in ids:
        assert each not in world.outcomes, f"call {each} ends twice: {world.outcomes[each]}, {outcome}"
        world.outcomes[each] = outcome
