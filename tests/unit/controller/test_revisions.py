"""The history of the configuration keeps the newest changes, within its bounds."""

from __future__ import annotations

from controller_service.core.desired import revisions
from controller_service.core.desired.state import ChangeSet, Desired
from slotmesh.spec.model import Backend


def changed(desired: Desired, number: int, size: int = 0) -> Desired:
    backend = Backend(name="v1", num_replicas=number % 7, user_config={"n": number, "text": "x" * size})
    return desired.apply(ChangeSet(put_backends=(backend,)))


def test_only_so_many_revisions_are_kept_and_those_can_be_told() -> None:
    desired = Desired()
    told = {0: dict(desired.backends)}
    for number in range(revisions.MAX_RECORDS + 30):
        desired = changed(desired, number)
        told[desired.revision] = dict(desired.backends)
    assert len(desired.history) == revisions.MAX_RECORDS
    assert desired.history[0].base == 30
    for revision in range(30, desired.revision + 1):
        later = [it for it in desired.history if it.revision > revision]
        mesh = revisions.configuration_before(desired.resources, later)
        assert {it.name: it for it in mesh.backends} == told[revision]


def test_large_configurations_are_kept_less_often_and_the_newest_always() -> None:
    desired = Desired()
    for number in range(20):
        desired = changed(desired, number, size=revisions.MAX_RECORDED_CHARS // 9)
    assert 3 <= len(desired.history) <= 5
    desired = changed(desired, 99, size=2 * revisions.MAX_RECORDED_CHARS)
    assert len(desired.history) == 1
    assert desired.history[0].revision == desired.revision


def test_what_changes_no_resource_is_not_in_it() -> None:
    desired = changed(Desired(), 1)
    assert desired.apply(ChangeSet(epoch_floor=7)).history is desired.history
