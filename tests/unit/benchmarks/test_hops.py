"""Stamps of a call's way through the mesh, and what is made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import slotmesh.testing
from benchmarks import hop_stamps, hops
from benchmarks.findings import Finding
from benchmarks.hop_stamps import RESOLVED, ROUTER_READS_CALLS, WAY, CallCounter, Stamp, left_stamps, stamping
from benchmarks.hops import HOPS, StampedCall, calls_of
from benchmarks.stamped_handler import StampedEcho
from slotmesh.codec import OCTET_STREAM


def way(begins_ns: int, hop_ns: int = 10, calls: int = 0, steps: int = 0) -> list[Stamp]:
    """A call with the same time, and as much done, in each hop."""
    return [Stamp(name, begins_ns + at * hop_ns, at * calls, at * steps) for at, name in enumerate(WAY)]


def by_name(found: list[Finding]) -> dict[str, Finding]:
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


@pytest.mark.asyncio
async def test_each_call_gets_a_stamp_at_each_hop_and_no_other_one() -> None:
    with stamping(["client", "router", "replica"]) as recorder:
        async with slotmesh.testing.mesh({"Echo": StampedEcho}) as mesh:
            method = mesh.endpoint("Echo").options(content_type=OCTET_STREAM).method("echo")
            await method(b"the stream is open then")
            recorder.stamps.clear()
            for _ in range(3):
                recorder.stamp(hop_stamps.CALLED)
                await method(b"x")
                recorder.stamp(hop_stamps.RESOLVED)
    assert [stamp.name for stamp in recorder.stamps] == [*WAY, *WAY, *WAY]
    assert len(calls_of([recorder.stamps])) == 3


def test_nothing_is_stamped_outside_of_the_block() -> None:
    before = hop_stamps.recorder
    with stamping(["client", "router", "replica"]) as recorder:
        assert hop_stamps.recorder is recorder
    assert hop_stamps.recorder is before
    assert sys.getprofile() is None


def test_a_counter_tells_calls_by_the_event_loop_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> None:
        pass

    def callback() -> None:
        inner()
        inner()

    def loop() -> None:
        callback()
        callback()

    monkeypatch.setattr(hop_stamps, "_LOOP_CODE", frozenset({loop.__code__}))
    counter = CallCounter()
    counter.start()
    loop()
    counter.stop()
    assert (counter.calls, counter.steps) == (1 + 2 + 4 + 1, 2)  # and `stop` itself


def test_stamps_of_several_processes_become_calls() -> None:
    first, second = way(1000), way(2000)
    client = [stamp for stamp in (*first, *second) if stamp.name in {WAY[0], WAY[1], *WAY[-2:]}]
    router = [stamp for stamp in (*first, *second) if "router" in stamp.name]
    replica = [stamp for stamp in (*first, *second) if stamp not in client and stamp not in router]
    assert calls_of([client, router, replica]) == [StampedCall(tuple(first)), StampedCall(tuple(second))]


@pytest.mark.parametrize("missing", WAY)
def test_calls_without_each_stamp_are_left_out(missing: str) -> None:
    broken = [stamp for stamp in way(1000) if stamp.name != missing]
    assert calls_of([broken, way(2000)]) == [StampedCall(tuple(way(2000)))]


def test_calls_with_a_stamp_too_many_are_left_out() -> None:
    more = [*way(1000), Stamp(ROUTER_READS_CALLS, 1025, 0, 0)]
    assert calls_of([more]) == []


def test_medians_are_told_hop_by_hop() -> None:
    timed = [StampedCall(tuple(way(0, ns))) for ns in (1_000, 2_000, 90_000)]
    counted = [StampedCall(tuple(way(0, calls=calls, steps=1))) for calls in (7, 8, 9)]
    found = by_name(hops.found([1e-5, 1e-5, 9e-5], timed, counted))
    assert [found[f"hops_{name}"].value for name, _ in HOPS] == [pytest.approx(2e-6)] * len(HOPS)
    assert found["hops_router_out"].text.split() == ["2.00", "µs", "8", "calls", "1", "steps"]
    assert found["hops_to_router"].text.split() == ["2.00", "µs"]
    assert found["hops_own"].value == pytest.approx(6 * 2e-6)
    assert found["hops_own"].text.split()[2:] == ["48", "calls", "6", "steps"]
    assert found["hops_own_calls"].value == 48
    assert found["hops_whole"].value == pytest.approx(2e-5)
    assert found["hops_ratio"].value == pytest.approx(2.0)


def test_a_mesh_that_stamps_nothing_is_an_error() -> None:
    one = [StampedCall(tuple(way(0)))]
    with pytest.raises(ValueError, match="no call has a stamp at each hop"):
        hops.found([1.0], [], one)
    with pytest.raises(ValueError, match="no call has a stamp at each hop"):
        hops.found([1.0], one, [])


def test_the_process_of_a_role_with_most_stamps_counts(tmp_path: Path) -> None:
    def leave(name: str, stamps: list[Any]) -> None:
        (tmp_path / name).write_text(json.dumps(stamps), "utf-8")

    leave("replica-1.json", [Stamp(RESOLVED, 1, 2, 3)])
    leave("replica-2.json", [])
    leave("router-3.json", way(0))
    assert left_stamps(tmp_path, "replica") == [Stamp(RESOLVED, 1, 2, 3)]
    assert left_stamps(tmp_path, "router") == way(0)
    assert left_stamps(tmp_path, "client") == []
