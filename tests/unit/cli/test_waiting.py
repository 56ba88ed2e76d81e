"""What commands print while they wait for operations, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from slotmesh.cli.console import NOT_IN_TIME, CommandFailed
from slotmesh.cli.operator import MAX_NAMES, Operator
from slotmesh.cli.waiting import operations_of, wait_until_done, wait_until_ready
from slotmesh.spec.model import Backend, Mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.operations_pb2 import Operation, WaitOperationsResponse

pytestmark = pytest.mark.asyncio

LONG, NO_TIME = timedelta(hours=1), timedelta()
BACKENDS = tuple(Backend(name=name, handler="a:B", version="2", num_replicas=1) for name in "uvwx")


def pending(name: str, *lines: str) -> Operation:
    return Operation(name=name, pending=lines)


def finished(name: str, failure: str = "", completed: int = 1) -> Operation:
    return Operation(name=name, done=True, failure=failure, completed=completed, total=1)


class ToldOperator:
    """A controller that returns these operations, one list after another."""

    def __init__(self, *looks: Sequence[Operation]) -> None:
        self.looks = [*looks]

    async def operations(self, names: Sequence[str], timeout_s: float) -> list[Operation]:
        found = self.looks.pop(0)
        assert [it.name for it in found] == names
        return [*found]

    async def configuration(self) -> Mesh:
        return Mesh(backends=BACKENDS)


async def ready(patience: timedelta, *looks: Sequence[Operation], rolled_back: Sequence[str] = ()) -> None:
    operator = cast("Operator", ToldOperator(*looks))
    names = [it.name for it in looks[0]]
    await wait_until_ready(operator, names, patience, done="applied", rolled_back=rolled_back)


async def test_what_is_lacking_is_printed_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    routers = "routers: 1 of 1 do not have the change yet: r"
    await ready(
        LONG,
        [pending("revision/7", routers), pending("rollout/v@7", "v: 0 of 1 replicas ready", routers)],
        [finished("revision/7"), pending("rollout/v@7", "v: 0 of 1 replicas ready")],
        [finished("revision/7"), finished("rollout/v@7")],
    )
    lines = [routers, "v: 0 of 1 replicas ready", "ready"]
    assert capsys.readouterr().err.splitlines() == [f"slotmesh: {it}" for it in lines]


async def test_what_is_late_is_named_once() -> None:
    line = "routers: may not be attached to this controller yet"
    with pytest.raises(CommandFailed) as failed:
        await ready(NO_TIME, [pending("revision/7", line), pending("shift/e", line)])
    assert (str(failed.value), failed.value.exit_code) == (f"applied, but not ready within 0s:\n  {line}", NOT_IN_TIME)


async def test_a_failure_names_the_other_backends_of_the_change_and_their_state() -> None:
    others = [finished("rollout/u@7"), pending("rollout/w@7", "w: 0 of 1 replicas ready", "routers: r not linked")]
    with pytest.raises(CommandFailed) as failed:
        await ready(
            LONG, [pending("revision/7", "routers: 1"), *others, finished("rollout/v@7", "rolled back: it died")]
        )
    assert failed.value.exit_code == NOT_IN_TIME
    assert str(failed.value).splitlines() == [
        "applied, but failed:",
        "  v: rolled back: it died",
        "  the other backends of this change:",
        "    u: ready, with 1 replicas of a:B 2",
        "    w: 0 of 1 replicas ready",
    ]
    with pytest.raises(CommandFailed) as alone:
        await ready(LONG, [finished("rollout/v@7", "rolled back: it died"), finished("shift/e", "stopped")])
    assert str(alone.value) == "applied, but failed:\n  v: rolled back: it died\n  traffic of e: stopped"


async def test_what_was_taken_back_before_is_not_waited_for() -> None:
    with pytest.raises(CommandFailed) as failed:
        await ready(LONG, [pending("rollout/v@7", "v: 0 of 1 replicas ready")], rolled_back=["v: it died"])
    assert str(failed.value) == "applied, and rolled back:\n  v: it died"


async def test_a_wait_without_words_ends_or_fails() -> None:
    name = "revision/7"
    for looks, error in (
        ([[pending(name, "routers: 1")], [finished(name)]], ""),
        ([[finished(name, "it is stored")]], "e: stored, but not in force: it is stored"),
    ):
        operator = cast("Operator", ToldOperator(*looks))
        if not error:
            await wait_until_done(operator, [name], LONG, "e: stored, but not in force")
            continue
        with pytest.raises(CommandFailed) as failed:
            await wait_until_done(operator, [name], LONG, "e: stored, but not in force")
        assert (str(failed.value), failed.value.exit_code) == (error, NOT_IN_TIME)


async def test_more_operations_than_a_request_may_name_are_waited_for_in_several() -> None:
    sent: list[Any] = []

    class Answered(Operator):
        async def send(self, request: Any, timeout_s: float = 1.0) -> WaitOperationsResponse:
            sent.append(request)
            return WaitOperationsResponse(operations=[finished(it) for it in request.names])

    names = [f"rollout/{number}@1" for number in range(MAX_NAMES + 1)]
    found = await Answered([]).operations(names, 1.0)
    assert [it.name for it in found] == names
    assert [(len(it.names), it.timeout.ToTimedelta()) for it in sent] == [
        (MAX_NAMES, timedelta(seconds=0.5)),
        (1, timedelta(seconds=0.5)),
    ]


async def test_backends_that_were_as_they_should_be_are_waited_for_too() -> None:
    applied = pb.ApplyMeshResponse(revision=7, operations=["revision/7"], waits=[pb.TrafficWait(endpoint="e")])
    assert operations_of(applied, {"b", "a"}) == ["revision/7", "rollout/a@7", "rollout/b@7", "shift/e"]
