"""Loaded models, as `slotmesh status` and `describe` show them, from a report of a replica."""

from __future__ import annotations

from rich.console import Console

from controller_service.convert.replicas import load_of_report, replica_to_wire
from controller_service.core.observed.replicas import ObservedReplica, ReplicaState
from replica_service.convert.reports import loaded_models_to_wire
from slotmesh.calls.handler_figures import MAX_SHOWN_MODEL_CHARS, MAX_SHOWN_MODELS
from slotmesh.cli.view.replicas import replica_document, replica_table
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.v1 import mesh_pb2


def listed(*ids: str, most: int = 200) -> mesh_pb2.Replica:
    """What operators get of a replica that has loaded these."""
    report = membership_service_pb2.ReplicaReport(models=loaded_models_to_wire(ids, most), load=mesh_pb2.ReplicaLoad())
    load = load_of_report(membership_service_pb2.AttachReplicaRequest(report=report))
    replica = ObservedReplica(replica_id="r1", backend="b", state=ReplicaState.READY, started_at=0.0)
    return replica_to_wire(replica, lambda seconds: seconds, load)


def test_the_number_and_the_first_ids_are_shown() -> None:
    console = Console(width=250, record=True)
    console.print(replica_table([listed("ada", "bob\x1b[31m", "eve", "joe"), listed()], {"b"}))
    text = console.export_text()
    assert "4/200: ada, bob\\x1b[31m, eve, …" in text
    assert "0/200" in text
    assert replica_document(listed("ada"))["models"] == {"count": 1, "most": 200, "ids": ["ada"]}


def test_what_is_listed_is_bounded() -> None:
    replica = listed(*["x" * 1_000] * 150)
    assert replica.models.count == 150
    assert len(replica.models.ids) == MAX_SHOWN_MODELS
    assert {len(each) for each in replica.models.ids} == {MAX_SHOWN_MODEL_CHARS}


def test_a_handler_without_models_has_no_such_column() -> None:
    replica = ObservedReplica(replica_id="r1", backend="b", state=ReplicaState.READY, started_at=0.0)
    wire = replica_to_wire(replica, lambda seconds: seconds)
    assert not wire.HasField("models")
    assert "models" not in [column.header for column in replica_table([wire], {"b"}).columns]
