"""Of several endpoints, backends or refusals each counts, whichever it is."""

from __future__ import annotations

import logging

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed.adoption import next_generation
from controller_service.core.observed.replicas import UnreplacedExit, take_place
from controller_service.core.partition_owners import Incarnation, PartitionOwnership
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.errors import Failure, Reason
from slotmesh.security.audit import AuditLog
from slotmesh.spec.model import Endpoint
from tests.support.wait import wait_until

NAMES = ("a", "b", "c")


def with_newest_epoch_at(place: int) -> Desired:
    """Three endpoints with owners; the newest epoch, 99, is at one of them."""
    owned = {
        name: PartitionOwnership(
            owners=(Incarnation("r", "1"),),
            partition_owners=(0,) * PARTITIONS,
            epochs=(99 if number == place else 7,) * PARTITIONS,
        )
        for number, name in enumerate(NAMES)
    }
    return Desired().apply(ChangeSet(put_endpoints=tuple(Endpoint(name=it) for it in NAMES), put_ownership=owned))


@pytest.mark.parametrize("place", range(3))
def test_the_next_epochs_are_above_those_of_every_endpoint(place: int) -> None:
    desired = with_newest_epoch_at(place)
    assert next_generation(desired, epoch_floor=0).epoch_floor == 99
    assert desired.apply(ChangeSet(delete_endpoints=NAMES)).epoch_floor == 99
    for number, name in enumerate(NAMES):
        assert desired.apply(ChangeSet(delete_endpoints=(name,))).epoch_floor == (99 if number == place else 7)


@pytest.mark.parametrize(
    ("backend", "template", "place"),
    [("v1", "t", 1), ("v2", "t", 0), ("v1", "u", 2), ("v2", "u", None), ("v3", "t", None)],
)
def test_a_replica_takes_the_place_of_one_of_its_backend_and_template(
    backend: str, template: str, place: int | None
) -> None:
    exits = tuple(
        UnreplacedExit(backend=of, template=what, restarts=number, how="")
        for number, (of, what) in enumerate((("v2", "t"), ("v1", "t"), ("v1", "u"), ("v1", "t")))
    )
    left, taken = take_place(exits, backend, template)
    assert (None if taken is None else taken.restarts) == place
    assert left == tuple(it for it in exits if it is not taken)


@pytest.mark.asyncio
async def test_refusals_that_were_counted_are_not_counted_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    now = 0.0
    audit = AuditLog(lambda: now, every_s=0.01)
    denied = Failure(reason=Reason.PERMISSION_DENIED, message="no")

    def counted() -> list[str]:
        return [it.getMessage() for it in caplog.records if "denied again" in it.getMessage()]

    for _ in range(3):
        audit.denied(None, "mesh/Apply", denied)
    await wait_until(lambda: len(counted()) == 1, what="the count of two refusals")
    now = 5.0
    audit.denied(None, "mesh/Apply", denied)
    assert counted() == ["denied again who=nobody method=mesh/Apply count=2"]
