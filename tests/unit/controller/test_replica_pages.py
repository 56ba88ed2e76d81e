"""Pages of replicas: every replica once, whatever their number and errors, and while others come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_service.convert.pages import MAX_PAGE_BYTES, fill_page
from controller_service.convert.replicas import MAX_LINE_BYTES, page_of_replicas
from controller_service.core.observed.state import ObservedReplica, ReplicaState
from slotmesh.spec.model import InvalidSpec
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2


def replica(backend: str, replica_id: str, error: str = "") -> ObservedReplica:
    return ObservedReplica(
        replica_id=replica_id,
        backend=backend,
        incarnation="0" * 32,
        state=ReplicaState.FAILED,
        error=error,
        started_at=1.0,
    )


def page(replicas: list[ObservedReplica], **asked: object) -> pb.ListReplicasResponse:
    request = pb.ListReplicasRequest(**asked)  # type: ignore[arg-type]
    return page_of_replicas(request, replicas, lambda seconds: seconds, lambda _: None)


def pages(replicas: list[ObservedReplica], **asked: object) -> list[pb.ListReplicasResponse]:
    found = [page(replicas, **asked)]
    while token := found[-1].next_page_token:
        found.append(page(replicas, page_token=token, **asked))
    return found


@given(
    st.sets(st.tuples(st.sampled_from(["a", "a-1", "b"]), st.sampled_from([f"r{n}" for n in range(12)])), max_size=30),
    st.integers(1, 8),
)
def test_each_replica_stands_on_one_page(places: set[tuple[str, str]], size: int) -> None:
    replicas = [replica(*place) for place in places]
    found = pages(replicas, page_size=size)
    assert [(it.backend, it.replica_id) for each in found for it in each.replicas] == sorted(places)
    assert all(len(each.replicas) == size for each in found[:-1])


def test_who_comes_and_goes_moves_nobody_to_another_page() -> None:
    replicas = [replica("a", name) for name in "bdfh"]
    first = page(replicas, page_size=2)
    later = page([replica("a", name) for name in "afghi"], page_size=9, page_token=first.next_page_token)
    assert [it.replica_id for it in later.replicas] == ["f", "g", "h", "i"]


def test_a_token_of_another_query_is_refused() -> None:
    replicas = [replica("a", name) for name in "bdf"]
    token = page(replicas, page_size=1).next_page_token
    assert page(replicas, page_size=2, page_token=token).replicas, "pages may differ in size"
    for other in ({"backend": "a"}, {"states": [ReplicaState.FAILED.value]}, {"whole_errors": True}):
        with pytest.raises(InvalidSpec, match="the same query"):
            page(replicas, page_token=token, **other)
    with pytest.raises(InvalidSpec, match="the same query"):
        fill_page(
            pb.ListRoutersRequest(page_token=token),
            pb.ListRoutersResponse(),
            "routers",
            [],
            lambda _: mesh_pb2.Router(),
        )


def test_only_replicas_in_the_wanted_states_are_listed() -> None:
    ready = replace(replica("a", "r"), state=ReplicaState.READY)
    replicas = [ready, replica("a", "f")]
    found = page(replicas, states=[ReplicaState.READY.value])
    assert [it.replica_id for it in found.replicas] == ["r"]


def test_a_page_of_long_errors_fits_a_message() -> None:
    traceback = "x" * 16_384 + "\nValueError: no"
    replicas = [replica("a", f"r{number:04}", traceback) for number in range(500)]
    found = pages(replicas, whole_errors=True)
    assert len(found) > 1
    assert all(each.ByteSize() < MAX_PAGE_BYTES + 64 for each in found)
    assert sum(len(each.replicas) for each in found) == 500
    (only,) = pages(replicas)
    assert {it.error for it in only.replicas} == {"ValueError: no"}


def test_one_replica_is_a_page_however_much_it_says() -> None:
    loud = replica("a", "r", "ü" * MAX_PAGE_BYTES)
    assert len(page([loud], whole_errors=True).replicas) == 1
    (short,) = page([loud]).replicas
    assert len(short.error.encode()) == MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"page_size": -1}, "page_size"),
        ({"page_token": "x"}, "page_token"),
        ({"page_token": "AAAA"}, "page_token"),
        ({"page_token": "ü"}, "page_token"),
        ({"states": [99]}, "states"),
        ({"states": [0]}, "states"),
    ],
)
def test_what_is_no_page_is_refused(asked: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        page([], **asked)
    assert [mistake.path for mistake in caught.value.violations] == [field]
