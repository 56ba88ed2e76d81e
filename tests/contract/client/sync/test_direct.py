"""Direct lanes for threads, against a mesh in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.testing import Backend, SyncRunningMesh, sync_mesh
from tests.contract.slot_handlers import Handler


@pytest.fixture
def mesh() -> Iterator[SyncRunningMesh]:
    with sync_mesh({"e": Backend(Handler)}) as mesh:
        yield mesh


def test_calls_wait_in_their_thread(mesh: SyncRunningMesh) -> None:
    endpoint = mesh.endpoint("e").options(content_type=OCTET_STREAM)
    with endpoint.direct(slots=2) as lanes:
        assert lanes.echo(b"a") == b"a"
        futures = [lanes.echo.future(b"%d" % number) for number in range(10)]
        assert [future.result(10) for future in futures] == [b"%d" % number for number in range(10)]
        assert lanes.method("greet").options(content_type="application/json").returning(str)("Ada") == "hello, Ada"
        assert lanes.held == 2
        with pytest.raises(slotmesh.HandlerError):
            lanes.fail(b"no")
    assert lanes.held == 0


def test_closing_cancels_what_runs(mesh: SyncRunningMesh) -> None:
    lanes = mesh.endpoint("e").options(content_type=OCTET_STREAM).direct()
    running = lanes.wait.future(b"a")
    lanes.close()
    with pytest.raises(slotmesh.CallCancelled):
        running.result(10)
    with pytest.raises(slotmesh.BadRequest, match="slots must be"):
        mesh.endpoint("e").direct(0)
