"""The forms of `--output`: all views have all of them, JSON and YAML are one document, names are subjects."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest
import typer
import yaml
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.commands.events import printable_events, write_event
from slotmesh.cli.console import OutputForm, Printable, form_of
from slotmesh.cli.parameters import BACKEND, REPLICA, configured_subject, name_of, unknown
from slotmesh.cli.view.changes import printable_change, printable_mesh
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb

MESH = parse_mesh(
    'backends: {v1: {handler: "app:One", num_replicas: 2, max_queue_time: 250ms, user_config: {a: [1, "ü"]}}}\n'
    "endpoints: {e: {traffic: {v1: 1.0}}}"
)
EVENT = pb.WatchEventsResponse(
    time=Timestamp(seconds=1_767_323_045),
    kind=pb.EVENT_KIND_REPLICA_READY,
    resource="replica/a",
    message="so it is",
    cursor="ab-7",
)
VIEWS: Mapping[str, tuple[Printable, list[str]]] = {
    "change": (
        printable_change(
            pb.ApplyMeshResponse(revision=7, created=["backend/a"], unchanged=["endpoint/e"], deleted=["backend/b"])
        ),
        ["backend/a", "endpoint/e", "backend/b"],
    ),
    "mesh": (printable_mesh(MESH), ["backend/v1", "endpoint/e"]),
    "events": (printable_events([EVENT, EVENT]), ["replica/a"]),
}


def written(view: Printable, form: OutputForm) -> str:
    out = io.StringIO()
    view.write(form, out)
    return out.getvalue()


@pytest.mark.parametrize(("view", "names"), VIEWS.values(), ids=VIEWS)
def test_each_view_has_each_form(view: Printable, names: list[str]) -> None:
    assert written(view, OutputForm.NAME).splitlines() == names
    document = json.loads(written(view, OutputForm.JSON))
    assert yaml.safe_load(written(view, OutputForm.YAML)) == document
    table = written(view, OutputForm.TABLE)
    assert all(name in table for name in names)
    assert table.endswith("\n")


def test_what_a_mesh_is_as_yaml_is_that_mesh() -> None:
    assert parse_mesh(written(printable_mesh(MESH), OutputForm.YAML)) == MESH


def test_events_that_follow_are_a_document_each() -> None:
    said = {}
    for form in OutputForm:
        out = io.StringIO()
        for _ in range(2):
            write_event(EVENT, form, out)
        said[form] = out.getvalue()
    assert [json.loads(line) for line in said[OutputForm.JSON].splitlines()] == 2 * [
        json.loads(written(printable_events([EVENT]), OutputForm.JSON))["events"][0]
    ]
    assert len([*yaml.safe_load_all(said[OutputForm.YAML])]) == 2
    assert said[OutputForm.NAME] == "replica/a\nreplica/a\n"
    assert all("replica-ready" in line and "ab-7" not in line for line in said[OutputForm.TABLE].splitlines())


def test_json_is_short_for_a_form_and_contradicts_the_others() -> None:
    assert form_of(OutputForm.TABLE, as_json=True) is OutputForm.JSON
    assert form_of(OutputForm.JSON, as_json=True) is OutputForm.JSON
    assert form_of(OutputForm.YAML, as_json=False) is OutputForm.YAML
    with pytest.raises(typer.BadParameter, match="contradicts --output yaml"):
        form_of(OutputForm.YAML, as_json=True)


def test_names_are_read_with_their_kind_and_without() -> None:
    read = name_of(REPLICA, BACKEND)
    assert [read(text) for text in ("a", "replica/a", "backend/a", "strange/a")] == ["a", "a", "a", "strange/a"]
    with pytest.raises(typer.BadParameter, match="takes replica/NAME or backend/NAME, is endpoint/e"):
        read("endpoint/e")


@pytest.mark.parametrize("text", ["v1", "backend/", "router/a", "replica/a", ""])
def test_subjects_of_the_configuration_need_their_kind(text: str) -> None:
    assert configured_subject("endpoint/e") == "endpoint/e"
    with pytest.raises(typer.BadParameter, match="takes backend/NAME, endpoint/NAME or route/PATH"):
        configured_subject(text)


def test_unknown_names_are_told_with_the_way_out() -> None:
    assert str(unknown("backend/v2", ["backend/v1"])) == "there is no backend/v2; did you mean backend/v1?"
    assert str(unknown("backend/v2", [])) == "there is no backend/v2; there is none"
    assert str(unknown("x", ["replica/b", "replica/a"])) == "there is no x; there is replica/a, replica/b"
    assert str(unknown("x", [f"replica/{each:02}" for each in range(30)])).endswith("replica/19, …")
