"""Random changes of a desired state, as operators and the reconcile loop make them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from google.protobuf import descriptor_pb2

from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftPhase, ShiftRecord
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord
from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import (
    CoveredTables,
    DepartedIncarnation,
    IncarnationRoster,
    ListedIncarnation,
)
from examples.own_proto import greeter_pb2
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.descriptor_sets import Files, read_services
from slotmesh.spec.model import BUILT_IN_BALANCERS, Backend, Endpoint, GrpcServices, JsonValue, TrafficPolicy
from slotmesh.spec.routes import Route
from slotmesh.spec.tenants import TenantLimit, TenantLimits

NAMES = ("v1", "v2", "V-3", "x_y", "e.1")
PATHS = ("/", "/a", "/a/{b}", "/users/{name}/x")
CONFIGS: tuple[Mapping[str, JsonValue], ...] = ({}, {"k": 1}, {"deep": [1, {"a": None, "b": True}], 'te"xt': "ü☃"})
TIME_S = 1_700_000_000.25


def random_change(random: Random, desired: Desired) -> ChangeSet:
    """A change that the state can take: policies name backends that will be there."""
    backends = tuple(random_backend(random, name) for name in random.sample(NAMES, random.randint(0, 2)))
    known = sorted({*desired.backends, *(backend.name for backend in backends)})
    endpoints = tuple(random_endpoint(random, name, known) for name in random.sample(NAMES, random.randint(0, 2)))
    used = {name for it in endpoints for name in _named(it)}
    used.update(name for it in desired.endpoints.values() for name in _named(it))
    unused = [name for name in desired.backends if name not in used]
    put = {endpoint.name for endpoint in endpoints}
    gone = [name for name in sorted(desired.endpoints) if name not in put and random.random() < 0.1]
    there = sorted({*desired.endpoints, *put} - set(gone))
    owned = [name for name in there if random.random() < 0.3]
    routes = tuple(random_route(random, path) for path in random.sample(PATHS, random.randint(0, 2)))
    lost = [path for path in desired.routes if path not in {it.path for it in routes} and random.random() < 0.1]
    return ChangeSet(
        put_backends=backends,
        delete_backends=tuple(random.sample(unused, min(len(unused), random.randint(0, 1)))),
        put_endpoints=endpoints,
        delete_endpoints=tuple(gone),
        put_routes=routes,
        delete_routes=tuple(lost),
        put_ownership={name: random_ownership(random) for name in owned},
        put_rollouts=tuple(random_rollout(random, it.name) for it in backends if random.random() < 0.5),
        put_shifts=tuple(random_shift(random, name) for name in there if random.random() < 0.3),
        put_roster=random_roster(random, desired.revision + 1) if random.random() < 0.5 else None,
        epoch_floor=random.randint(0, 2**50),
        put_applied=(*backends[:1], *endpoints[:1], *routes[:1]),
        put_specified=(*backends[1:], *endpoints[1:], *routes[1:]),
        origin=ChangeOrigin(who=random.choice(("", "slotmesh at ☃")), time_s=TIME_S, note=random.choice(("", "why"))),
    )


def random_backend(random: Random, name: str) -> Backend:
    return Backend(
        name=name,
        handler=random.choice(("", "app:One", "app:Two")),
        num_replicas=random.choice((None, 0, 3)),
        user_config=random.choice(CONFIGS),
        max_queue_time_s=random.choice((30.0, 0.1, 1 / 3)),
        balancer=random.choice(BUILT_IN_BALANCERS),
        own_loop=random.choice((None, True, False)),
    )


def _greeter(package: str) -> GrpcServices:
    file = descriptor_pb2.FileDescriptorProto()
    greeter_pb2.DESCRIPTOR.CopyToProto(file)
    renamed = file.SerializeToString().replace(b"examples.greeter.v1", package.encode())
    return read_services(Files(file=[descriptor_pb2.FileDescriptorProto.FromString(renamed)]).SerializeToString())


SERVICES = tuple(map(_greeter, ("examples.greeter.v1", "examples.greeter.v2")))
"""Services of users' own protos, two versions of them."""


LIMITS = (
    TenantLimits(max_in_flight=5),
    TenantLimits(max_calls_per_s=9, burst=2, overrides={"größe": TenantLimit(max_in_flight=1), "free": TenantLimit()}),
)
"""What each tenant of an endpoint may have."""


def random_endpoint(random: Random, name: str, backends: list[str]) -> Endpoint:
    services, tenants = random.choice((None, *SERVICES)), random.choice((None, *LIMITS))
    if not backends or random.random() < 0.2:
        return Endpoint(name=name, grpc_services=services, tenants=tenants)
    weights = {each: 1.0 / len(backends) for each in backends}
    policy = TrafficPolicy(weights=weights, shadows={backends[0]: random.random()})
    return Endpoint(name=name, traffic=policy, grpc_services=services, tenants=tenants)


def random_route(random: Random, path: str) -> Route:
    return Route(
        path=path,
        endpoint=random.choice(NAMES),
        method=random.choice(("run", "größe")),
        methods=random.choice((("POST",), ("GET", "POST"))),
    )


def random_ownership(random: Random) -> PartitionOwnership:
    owners = tuple(random_owner(random, name) for name in "abc"[: random.randint(0, 3)])
    base = random.randint(0, 2**50)
    return PartitionOwnership(
        owners=owners,
        partition_owners=tuple(random.choices(range(NO_OWNER, len(owners)), k=PARTITIONS)),
        epochs=tuple(random.choices(range(base, base + 300), k=PARTITIONS)),
        leaving=tuple(sorted(random.sample(range(PARTITIONS), random.randint(0, 5)))),
        inherited=frozenset(random.sample(range(PARTITIONS), random.randint(0, 5))),
    )


def random_roster(random: Random, revision: int) -> IncarnationRoster:
    return IncarnationRoster(
        revision=revision,
        members=tuple(
            ListedIncarnation(
                owner=random_owner(random, name),
                backend="v1",
                address="h:1",
                max_ongoing=random.randint(1, 9),
                draining=random.random() < 0.5,
                process="boot:1:2:3",
            )
            for name in "abc"
        ),
        departed=(DepartedIncarnation(owner=random_owner(random, "d"), generation="g", revision=3, left_at=TIME_S),),
        departed_since=random.randint(0, 9),
        covers=(CoveredTables(generation="f" * 32, revision=7, departed_since=2),),
    )


def random_rollout(random: Random, backend: str) -> RolloutRecord:
    settings = (None, random_backend(random, backend))
    return RolloutRecord(
        backend=backend,
        template=f"{random.getrandbits(64):016x}",
        since_s=TIME_S + random.randint(0, 9),
        is_complete=random.random() < 0.5,
        is_paused=random.random() < 0.5,
        good=random.choice(settings),
        previous=random.choice(settings),
        why=random.choice(("", "größer")),
        failed_at_s=random.choice((0.0, TIME_S)),
    )


def random_shift(random: Random, endpoint: str) -> ShiftRecord:
    """Of several backends, with several guards."""
    guards = [Guard(figure, 0.25, shadow) for figure in GuardFigure for shadow in ("", "v1", "x_y")]
    return ShiftRecord(
        endpoint=endpoint,
        before={"v1": 0.25, "v2": 0.75},
        target={"v2": 0.25, "V-3": 0.25, "x_y": 0.5},
        step=random.choice((0.1, 1 / 3)),
        every_s=30.0,
        guards=tuple(random.sample(guards, random.randint(0, 3))),
        min_calls=random.randint(1, 9),
        number=random.randint(1, 4),
        since_s=TIME_S,
        began_s=TIME_S - 1.5,
        who=random.choice(("", "slotmesh at ☃")),
        phase=random.choice(tuple(ShiftPhase)),
        why=random.choice(("", "why")),
        ended_s=random.choice((0.0, TIME_S)),
    )


def random_owner(random: Random, replica_id: str) -> Incarnation:
    return Incarnation(replica_id, f"{random.getrandbits(128):032x}")


def _named(endpoint: Endpoint) -> set[str]:
    return set() if endpoint.traffic is None else {*endpoint.traffic.weights, *endpoint.traffic.shadows}
