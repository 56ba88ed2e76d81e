"""Meshes as a controller tells of them, made as responses, so that tests go through the whole conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotmesh.cli.figures import MeshFigures, figures_of
from slotmesh.histogram import CALL_TIMES
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

NOW = 1_000


def ends(times: Mapping[float, int], failed: int = 0, unanswered: int = 0) -> mesh_pb2.CallEnds:
    """Calls by the upper bound of their time; infinity is above all."""
    counts = [times.get(bound, 0) for bound in (*CALL_TIMES, float("inf"))]
    return mesh_pb2.CallEnds(
        total=sum(counts) + failed + unanswered, failed=failed, unanswered=unanswered, times=counts
    )


def backend_load(
    sent: int, ended: mesh_pb2.CallEnds, at: int, name: str = "v1", queued: int = 0
) -> mesh_pb2.BackendLoad:
    load = mesh_pb2.BackendLoad(backend=name, sent=sent, queued=queued, ongoing=2, ended=ended)
    load.sample_time.seconds = at
    return load


def endpoint_load(
    accepted: int, failed: int, ended: mesh_pb2.CallEnds, at: int, name: str = "digits", backend: str = "v1"
) -> mesh_pb2.EndpointLoad:
    load = mesh_pb2.EndpointLoad(endpoint=name, accepted=accepted, failed=failed, waiting=1)
    load.ends.add(backend=backend, ended=ended)
    load.sample_time.seconds = at
    return load


def router(
    router_id: str, newest: tuple[int, int], earlier: tuple[int, int] | None, *, age: int = 0, fast: int = 0
) -> pb.SampledRouter:
    """Calls and failures, now and 2 s before. The calls took 10 ms, but for the `fast` newest ones: 1 ms."""
    said = pb.SampledRouter(
        router=mesh_pb2.Router(router_id=router_id, address="127.0.0.1:1", linked_replica_ids=["v1-a"])
    )
    said.report_time.seconds = NOW - age
    for calls, at, into_backends, into_endpoints in (
        (newest, NOW, said.router.loads, said.router.endpoint_loads),
        (earlier, NOW - 2, said.earlier_loads, said.earlier_endpoint_loads),
    ):
        if calls is not None:
            quick = fast if calls is newest else 0
            ended = ends({0.01: calls[0] - calls[1] - quick, 0.001: quick}, failed=calls[1])
            into_backends.append(backend_load(calls[0], ended, at))
            into_endpoints.append(endpoint_load(calls[0], calls[1], ended, at))
    return said


def replica(
    replica_id: str,
    *,
    calls: int | None = 40,
    earlier: int | None = 20,
    state: int = 2,
    times: tuple[dict[float, int], dict[float, int]] = ({}, {}),
) -> pb.SampledReplica:
    """Of backend v1. Batches have four calls. `times`: how many calls took how long, now and before; empty: unknown."""
    said = pb.SampledReplica(
        replica=mesh_pb2.Replica(replica_id=replica_id, backend="v1", max_ongoing=8, restart_count=1)
    )
    said.replica.state = mesh_pb2.ReplicaState.ValueType(state)
    newest, before = times
    loads = ((calls, NOW, said.replica.load, newest), (earlier, NOW - 2, said.earlier_load, before))
    for count, at, load, took in loads:
        if count is not None:
            load.totals.times.extend(ends(took, failed=0).times if took else ())
            load.ongoing, load.slots, load.sample_time.seconds = 3, 1, at
            load.totals.calls = load.totals.batched_calls = count
            load.totals.batches = count // 4
    return said


def mesh(
    routers: Sequence[pb.SampledRouter] = (), replicas: Sequence[pb.SampledReplica] = (), names: Sequence[str] = ()
) -> MeshFigures:
    """With endpoint `digits` to backend v1, or with endpoints of these names."""
    said = pb.GetSnapshotResponse(table_revision=7, routers=routers, replicas=replicas)
    said.time.seconds = NOW
    status = mesh_pb2.BackendStatus(wanted_replicas=2, ready_replicas=len(replicas), restart_count=3)
    said.backends.add(name="v1", status=status)
    for name in names or ("digits",):
        said.endpoints.add(name=name).traffic.weights["v1"] = 1.0
    return figures_of(said)
