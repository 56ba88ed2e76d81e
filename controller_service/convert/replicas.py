"""Messages of replicas, from and to the controller's values, and lists of replicas.

Invariants: whatever a replica sends becomes a value or a `BadRequest` that names the field; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from controller_service.convert.checks import (
    ID,
    INCARNATION,
    MAX_EPOCH,
    MAX_POD_UID_CHARS,
    MAX_PROCESS_CHARS,
    MAX_TERM_ID_CHARS,
    MAX_VERSION_CHARS,
    end_reason_from_wire,
    rank_from_wire,
    refuse,
    refuse_frame,
    require,
    require_address,
    seconds_of,
    timestamp,
    zone_from_wire,
)
from controller_service.convert.pages import fill_page
from controller_service.core.loads import ExecutedCalls, LoadedModels, SampledLoad
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import ObservedReplica, ReplicaState
from controller_service.core.reconciling.rollouts import EndedCalls
from controller_service.core.roster import HeldTable
from slotmesh.calls.handler_figures import MAX_SHOWN_MODEL_CHARS, MAX_SHOWN_MODELS
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.convert.same_names import message_of, same_fields
from slotmesh.convert.specification import backend_to_wire, duration_to_wire
from slotmesh.histogram import CALL_TIMES
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.devices import MAX_DEVICES, is_device
from slotmesh.spec.environment import MAX_FACTS, MAX_NAME_CHARS, MAX_PATH_CHARS, ProcessFacts
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.spec.rules import is_name, show
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

_MAX_ERROR_CHARS: Final = 16_384
"""The end of a traceback is kept: it names the error."""
_REPORTABLE: Final = {state.value: state for state in ReplicaState if state is not ReplicaState.SUSPECT}


def hello_from_wire(frame: membership_service_pb2.AttachReplicaRequest, *, generation: str) -> Hello:
    """The first frame of a replica, as a controller of this generation takes it."""
    if frame.WhichOneof("frame") != "hello":
        refuse("hello", "must be the first frame")
    hello = frame.hello
    require(ID, "hello.replica_id", hello.replica_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
    require(INCARNATION, "hello.incarnation", hello.incarnation, "32 hexadecimal digits, in lower case")
    if not is_name(hello.backend):
        refuse("hello.backend", f"must be a backend's name, is {show(hello.backend)!r}")
    if not 0 <= hello.newest_epoch < MAX_EPOCH:
        refuse("hello.newest_epoch", "must be an epoch: 0 or larger, and far from the end of 64 bits")
    return Hello(
        **same_fields(hello, ("replica_id", "incarnation", "backend", "generation", "newest_epoch")),
        pid=max(0, hello.pid),
        has_served=hello.has_served and hello.generation != generation,
        process=hello.process[:MAX_PROCESS_CHARS],
        version=hello.version[:MAX_VERSION_CHARS],
        fenced_after_s=max(0.0, hello.fenced_after.seconds + hello.fenced_after.nanos / 1e9),
        process_began_s=seconds_of(hello.start_time),
        pod_uid=hello.pod_uid[:MAX_POD_UID_CHARS],
        devices=tuple(it for it in hello.devices[:MAX_DEVICES] if is_device(it)),
        rank=rank_from_wire("hello.rank", hello),
        zone=zone_from_wire(hello.zone),
        process_facts=_facts_from_wire(hello.process_facts) if hello.HasField("process_facts") else None,
    )


def _facts_from_wire(wire: membership_service_pb2.ProcessFacts) -> ProcessFacts:
    """For display and comparison: what is out of bounds is cut."""
    return ProcessFacts(
        python=wire.python[:MAX_PATH_CHARS],
        prefix=wire.prefix[:MAX_PATH_CHARS],
        cwd=wire.cwd[:MAX_PATH_CHARS],
        cpus=wire.cpus if 0 < wire.cpus < MAX_FACTS**2 else 0.0,
        memory=max(0, wire.memory) if wire.HasField("memory") else None,
        variables=frozenset(it for it in wire.variables[:MAX_FACTS] if len(it) <= MAX_NAME_CHARS),
    )


def held_from_hello(hello: membership_service_pb2.ReplicaHello) -> HeldTable:
    """What a replica has been configured with last."""
    return HeldTable(
        generation=hello.generation,
        revision=max(0, hello.revision),
        term_id=hello.term_id[:MAX_TERM_ID_CHARS],
    )


def report_from_wire(frame: membership_service_pb2.AttachReplicaRequest) -> ObservedReport:
    """A report: any later frame of a replica, but for `emptied`."""
    kind = frame.WhichOneof("frame")
    if kind != "report":
        refuse_frame(kind, known={"hello": "must be the first frame, and no other"})
    report = frame.report
    state = _REPORTABLE.get(report.state)
    if state is None:
        refuse("report.state", f"{report.state} is no state that a replica can report")
    if report.address or state is ReplicaState.READY:
        require_address("report.address", report.address)
    if report.metrics_address:
        require_address("report.metrics_address", report.metrics_address)
    return ObservedReport(
        **same_fields(report, ("address", "metrics_address", "unhealthy", "reconfigures")),
        state=state,
        max_ongoing=max(0, report.max_ongoing),
        error=report.error[-_MAX_ERROR_CHARS:],
        warning=report.warning[-_MAX_ERROR_CHARS:],
        end_reason=end_reason_from_wire(report.end_reason),
    )


def ended_calls_from_wire(frame: membership_service_pb2.AttachReplicaRequest) -> EndedCalls:
    """The calls in a report."""
    total = max(0, frame.report.ended_calls)
    return EndedCalls(total, min(total, max(0, frame.report.failed_calls)))


def configuration_to_wire(
    backend: Backend,
    *,
    version: HeldTable,
    is_known: bool,
    router_addresses: Sequence[str],
    controller_addresses: Sequence[str],
    num_replicas: int = 0,
) -> membership_service_pb2.AttachReplicaResponse:
    """`is_known`: there is a backend of that name."""
    configuration = message_of(
        membership_service_pb2.ReplicaConfiguration,
        version,
        backend=backend_to_wire(backend),
        is_backend_unknown=not is_known,
        router_addresses=router_addresses,
        controller_addresses=controller_addresses,
        num_replicas=num_replicas,
    )
    return membership_service_pb2.AttachReplicaResponse(configuration=configuration)


def revoke_to_wire(epochs: Mapping[str, Mapping[int, int]]) -> membership_service_pb2.AttachReplicaResponse:
    """`epochs`: the epochs that end, by endpoint and partition."""
    order = membership_service_pb2.RevokePartitions()
    for endpoint, each in epochs.items():
        order.endpoints.add(endpoint=endpoint, partitions=each.keys(), owner_epochs=each.values())
    return membership_service_pb2.AttachReplicaResponse(revoke=order)


def emptied_from_wire(wire: membership_service_pb2.PartitionsEmptied) -> dict[str, dict[int, int]]:
    """Endpoint -> partition -> epoch."""
    return partitions_of("emptied.endpoints", wire.endpoints)


def busy_from_wire(wire: membership_service_pb2.PartitionsEmptied) -> dict[str, frozenset[int]]:
    """Endpoint -> partitions that are not empty yet, in an answer to an order that names an epoch."""
    return {name: frozenset(epochs) for name, epochs in partitions_of("emptied.busy", wire.busy).items()}


def partitions_of(
    path: str, endpoints: Iterable[membership_service_pb2.EndpointPartitions]
) -> dict[str, dict[int, int]]:
    for at, each in enumerate(endpoints):
        if len(each.partitions) > PARTITIONS:
            refuse(f"{path}[{at}].partitions", f"at most {PARTITIONS}, got {len(each.partitions)}")
        if len(each.partitions) != len(each.owner_epochs):
            text = f"{len(each.owner_epochs)} epochs of {len(each.partitions)} partitions"
            refuse(f"{path}[{at}].owner_epochs", text)
        if any(not 0 <= number < PARTITIONS for number in each.partitions):
            refuse(f"{path}[{at}].partitions", f"must be 0 … {PARTITIONS - 1}")
    found: dict[str, dict[int, int]] = {}
    for each in endpoints:
        found.setdefault(each.endpoint, {}).update(zip(each.partitions, each.owner_epochs, strict=True))
    return found


def load_of_report(frame: membership_service_pb2.AttachReplicaRequest) -> SampledLoad | None:
    """The replica's load in a report; None if it has none."""
    if not frame.report.HasField("load"):
        return None
    load = frame.report.load
    return SampledLoad(
        ongoing=max(0, load.ongoing),
        slots=max(0, load.slots),
        waiting=max(0, load.waiting),
        sampled_at=seconds_of(load.sample_time),
        totals=_executed_from_wire(load.totals) if load.HasField("totals") else None,
        models=_models_from_wire(frame.report.models) if frame.report.HasField("models") else None,
    )


def _models_from_wire(wire: mesh_pb2.LoadedModels) -> LoadedModels:
    ids = tuple(it[:MAX_SHOWN_MODEL_CHARS] for it in wire.ids[:MAX_SHOWN_MODELS])
    return LoadedModels(count=max(0, wire.count), most=max(0, wire.most), ids=ids)


def _executed_from_wire(wire: mesh_pb2.ReplicaTotals) -> ExecutedCalls:
    return ExecutedCalls(
        calls=max(0, wire.calls),
        failed=max(0, wire.failed),
        batches=max(0, wire.batches),
        batched_calls=max(0, wire.batched_calls),
        times=_times_from_wire(wire.times),
    )


def _times_from_wire(times: Sequence[int]) -> tuple[int, ...]:
    """Empty where the replica counts in other buckets, or not at all: then nothing is known."""
    return tuple(times) if len(times) == len(CALL_TIMES) + 1 and min(times) >= 0 else ()


TIME_BOUNDS: Final = tuple(map(duration_to_wire, CALL_TIMES))
"""Upper bounds of the buckets of each `times` that operators get."""


def replica_to_wire(
    replica: ObservedReplica,
    wall_s: Callable[[float], float],
    load: SampledLoad | None = None,
    *,
    outdated: bool = False,
    warning: str = "",
) -> mesh_pb2.Replica:
    """`wall_s` turns monotonic seconds into seconds since 1970. `warning`: if it has none of its own."""
    return message_of(
        mesh_pb2.Replica,
        replica,
        load=None if load is None else replica_load_to_wire(load),
        models=None if load is None or load.models is None else message_of(mesh_pb2.LoadedModels, load.models),
        state=replica.shown_state.value,
        start_time=timestamp(replica.process_began_s or wall_s(replica.started_at)),
        restart_count=replica.restarts,
        warning=replica.warning or warning or ("" if replica.has_attached else replica.waits_for),
        outdated=outdated,
        rank=None if replica.gone else replica.rank,
    )


def replica_load_to_wire(load: SampledLoad) -> mesh_pb2.ReplicaLoad:
    sample_time = None if load.sampled_at is None else timestamp(load.sampled_at)
    return message_of(mesh_pb2.ReplicaLoad, load, sample_time=sample_time)


MAX_LINE_BYTES: Final = 512
"""Of an error's last line."""


def page_of_replicas(
    request: pb.ListReplicasRequest,
    replicas: Iterable[ObservedReplica],
    wall_s: Callable[[float], float],
    load_of: Callable[[str], SampledLoad | None],
    is_outdated: Callable[[ObservedReplica], bool] = lambda _: False,
    warning_of: Callable[[ObservedReplica], str] = lambda _: "",
) -> pb.ListReplicasResponse:
    """The page that is asked for. Raises InvalidSpec.

    `wall_s` makes seconds since 1970 of monotonic ones; `load_of` has the newest load of a replica, if there is one.
    `is_outdated`: whether a replica runs anything but the present settings of its backend. `warning_of`: as `warning`
    above.
    """
    if unknown := sorted({*request.states} - {state.value for state in ReplicaState}):
        raise InvalidSpec([SpecViolation("states", f"{unknown[0]} is no state that this version knows")])
    states = frozenset(request.states)

    def to_wire(replica: ObservedReplica) -> mesh_pb2.Replica:
        wire = replica_to_wire(
            replica, wall_s, load_of(replica.replica_id), outdated=is_outdated(replica), warning=warning_of(replica)
        )
        return wire if request.whole_errors else without_long_texts(wire)

    rows = [(f"{it.backend}\0{it.replica_id}", it) for it in replicas if not states or it.shown_state.value in states]
    page = pb.ListReplicasResponse(time_bounds=TIME_BOUNDS)
    return fill_page(request, page, "replicas", sorted(rows, key=itemgetter(0)), to_wire)


def without_long_texts(wire: mesh_pb2.Replica) -> mesh_pb2.Replica:
    """The same replica, with the last line of its error and warning, and nothing of what its process has written."""
    wire.error, wire.warning = _last_line(wire.error), _last_line(wire.warning)
    wire.last_output = ""
    return wire


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].encode()[:MAX_LINE_BYTES].decode(errors="ignore") if lines else ""
