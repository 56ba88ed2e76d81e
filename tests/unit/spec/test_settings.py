"""Each setting of a backend: all that follows from its declaration is right, without a word about it here.

`CONTRIBUTING.md` says which files a new setting touches. These tests find it by themselves.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from controller_service.store.documents import BACKEND
from controller_service.store.forms import BadDocument
from slotmesh.convert.specification import backend_from_wire, backend_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.environment import EnvironmentValue
from slotmesh.spec.model import ROUTED, SETTINGS, Autoscale, Backend, InvalidSpec, PodSettings
from slotmesh.spec.rules import backend_violations
from slotmesh.spec.setting import Setting, SettingKind, choices
from slotmesh.units import format_size
from slotmesh.v1 import mesh_pb2

F = FieldDescriptor
WIRE_TYPES = {
    SettingKind.HANDLER: {F.TYPE_STRING},
    SettingKind.BALANCER: {F.TYPE_STRING},
    SettingKind.TEXT: {F.TYPE_STRING},
    SettingKind.INTEGER: {F.TYPE_INT32, F.TYPE_INT64},
    SettingKind.NUMBER: {F.TYPE_DOUBLE},
    SettingKind.SIZE: {F.TYPE_INT64},
    SettingKind.DURATION: {F.TYPE_MESSAGE},
    SettingKind.FLAG: {F.TYPE_BOOL},
    SettingKind.CHOICE: {F.TYPE_ENUM, F.TYPE_STRING},
    SettingKind.JSON: {F.TYPE_MESSAGE},
    SettingKind.ENVIRONMENT: {F.TYPE_MESSAGE},
    SettingKind.AMOUNTS: {F.TYPE_MESSAGE},
    SettingKind.SECTION: {F.TYPE_MESSAGE},
}
MESSAGES = {
    SettingKind.DURATION: "google.protobuf.Duration",
    SettingKind.JSON: "google.protobuf.Struct",
    SettingKind.ENVIRONMENT: "slotmesh.v1.Backend.EnvEntry",
    SettingKind.AMOUNTS: "slotmesh.v1.Backend.DevicesEntry",
}
SECTIONS = {each.name: each for each in SETTINGS.values() if each.kind is SettingKind.SECTION}
INNER = {
    f"{name}.{key}": (section, each) for name, section in SECTIONS.items() for key, each in section.settings.items()
}

each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
each_section = pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
each_inner_setting = pytest.mark.parametrize(("section", "setting"), INNER.values(), ids=INNER)


def samples(setting: Setting) -> list[tuple[Any, str]]:
    """Right values that are not the default, each with what a document says."""
    if setting.section is not None:
        inner = {name: samples(each)[0] for name, each in setting.settings.items()}
        value = setting.section(**{setting.settings[name].attribute: it for name, (it, _) in inner.items()})
        written = ", ".join(f"{name}: {it}" for name, (_, it) in inner.items())
        return [(value, f"{{{written}}}"), (setting.section(), "{}")]
    return plain_samples(setting)


FIXED_SAMPLES: dict[SettingKind, list[tuple[Any, str]]] = {
    SettingKind.HANDLER: [("a.b:C", "'a.b:C'")],
    SettingKind.BALANCER: [("a.b:C", "'a.b:C'"), ("round_robin", "round_robin"), ("of-a-package", "of-a-package")],
    SettingKind.FLAG: [(True, "true"), (False, "false")],
    SettingKind.ENVIRONMENT: [
        ({"A": EnvironmentValue(value="")}, "{A: ''}"),
        (
            {
                "A_1": EnvironmentValue(value="two\nlines é"),
                "b": EnvironmentValue(inherit=True),
                "C": EnvironmentValue(file="/run/secrets/c"),
            },
            '{A_1: "two\\nlines é", b: {inherit: true}, C: {file: /run/secrets/c}}',
        ),
    ],
    SettingKind.AMOUNTS: [({"cuda": 2}, "{cuda: 2}"), ({"cuda": 0.5, "fpga": 256}, "{cuda: 0.5, fpga: 256}")],
    SettingKind.JSON: [({"a": [1, 2.5, {"b": None}]}, "{a: [1, 2.5, {b: null}]}")],
}


def plain_samples(setting: Setting) -> list[tuple[Any, str]]:
    if setting.kind in FIXED_SAMPLES:
        return FIXED_SAMPLES[setting.kind]
    low, high = (int(each) for each in setting.bounds or (0, 0))
    match setting.kind:
        case SettingKind.TEXT:
            return [("1.5", "'1.5'"), ("x" * high, "x" * high)]
        case SettingKind.INTEGER:
            return [(each, str(each)) for each in (max(low, 0), high) if each != setting.default]
        case SettingKind.NUMBER:
            return [(each, f"{each:.12g}") for each in setting.bounds or () if each != setting.default]
        case SettingKind.SIZE:
            return [(2**20, "1MiB"), (high, f"{high // 2**10}KiB")]
        case SettingKind.DURATION:
            return [(1.5, "1500ms"), (float(high), f"{high}s")]
        case SettingKind.CHOICE:
            others = [each for each in type(setting.default) if each is not setting.default]
            return [(each, each.name.lower()) for each in others]
        case _:
            raise AssertionError(f"no sample of {setting.kind}")


def with_value(setting: Setting, value: Any) -> Backend:
    return replace(Backend(name="b"), **{setting.attribute: value})


def within(section: Setting, setting: Setting, value: Any) -> Backend:
    """A backend whose section has one setting besides its defaults."""
    assert section.section is not None
    return with_value(section, section.section(**{setting.attribute: value}))


def test_every_field_but_the_name_is_a_setting_with_its_default() -> None:
    declared = {each.attribute: each.default for each in SETTINGS.values()}
    found = {
        each.name: each.default if each.default is not MISSING else getattr(Backend(name="b"), each.name)
        for each in fields(Backend)
        if each.name != "name"
    }
    assert found == declared


def test_the_message_has_the_same_settings() -> None:
    assert set(mesh_pb2.Backend.DESCRIPTOR.fields_by_name) == {"name", "etag", "status", *SETTINGS}


@each_setting
def test_the_message_has_the_type_of_the_setting(setting: Setting) -> None:
    check_type(mesh_pb2.Backend.DESCRIPTOR.fields_by_name[setting.name], setting)


def check_type(field: FieldDescriptor, setting: Setting) -> None:
    assert field.type in WIRE_TYPES[setting.kind]
    if setting.kind is SettingKind.SECTION:
        assert field.message_type is not None
        assert set(field.message_type.fields_by_name) == set(setting.settings)
        for name, each in setting.settings.items():
            check_type(field.message_type.fields_by_name[name], each)
    elif field.message_type is not None:
        assert field.message_type.full_name == MESSAGES[setting.kind]
    elif field.enum_type is not None:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", field.enum_type.name).upper() + "_"
        numbers = {each.name.removeprefix(prefix): each.number for each in field.enum_type.values if each.number}
        assert numbers == {each.name: each.value for each in type(setting.default)}
    elif field.type != F.TYPE_STRING:
        assert field.has_presence, "0 and unset are two things: write `optional`"


@each_setting
def test_the_default_is_what_nobody_says(setting: Setting) -> None:
    (backend,) = parse_mesh("backends: {b: {}}").backends
    assert getattr(backend, setting.attribute) == setting.default
    assert getattr(backend_from_wire(mesh_pb2.Backend(name="b"))[0], setting.attribute) == setting.default
    assert not [*backend_violations(backend)], "a default obeys the rules"


@each_setting
def test_documents_and_the_wire_carry_every_value(setting: Setting) -> None:
    assert samples(setting)
    for value, written in samples(setting):
        backend = with_value(setting, value)
        document = f"backends: {{b: {{{setting.name}: {written}}}}}"
        if setting.is_filled_in:
            with pytest.raises(InvalidSpec, match=setting.name):
                parse_mesh(document)
        else:
            assert parse_mesh(document).backends == (backend,)
        assert backend_from_wire(backend_to_wire(backend)) == (backend, [])
        assert not [*backend_violations(backend)]


@each_setting
def test_a_document_that_leaves_a_setting_empty_leaves_it_out(setting: Setting) -> None:
    if setting.kind not in {SettingKind.HANDLER, SettingKind.JSON} and not setting.is_filled_in:
        assert parse_mesh(f"backends: {{b: {{{setting.name}: null}}}}").backends == (Backend(name="b"),)


@each_setting
def test_what_is_out_of_bounds_is_a_mistake(setting: Setting) -> None:
    if setting.kind in {SettingKind.INTEGER, SettingKind.SIZE, SettingKind.DURATION}:
        assert setting.bounds is not None, "everything is bounded"
        low, high = setting.bounds
        for value in (low - 1, high + 1):
            (mistake,) = backend_violations(with_value(setting, value))
            assert mistake.path == f"backends.b.{setting.name}"
            is_size = setting.kind is SettingKind.SIZE and value >= 0
            assert mistake.message.startswith(f"must be {format_size(int(low)) if is_size else f'{low:,}'}")


@each_inner_setting
def test_sections_carry_every_value_of_their_settings(section: Setting, setting: Setting) -> None:
    for value, written in samples(setting):
        backend = within(section, setting, value)
        if not [*backend_violations(backend)]:
            assert parse_mesh(f"backends: {{b: {{{section.name}: {{{setting.name}: {written}}}}}}}").backends == (
                backend,
            )
        assert backend_from_wire(backend_to_wire(backend)) == (backend, [])
        assert BACKEND.read("b", json.loads(json.dumps(BACKEND.write(backend)))) == backend


@each_inner_setting
def test_settings_of_sections_are_bounded(section: Setting, setting: Setting) -> None:
    if setting.bounds is not None:
        low, high = setting.bounds
        is_text = setting.kind is SettingKind.TEXT
        for value in ("x" * (int(high) + 1), "two\nlines") if is_text else (low - 1, high + 1, float("nan")):
            first, *_ = backend_violations(within(section, setting, value))
            assert first.path == f"backends.b.{section.name}.{setting.name}"
            assert first.message.startswith("must be ")


@each_section
def test_what_a_section_does_not_have_is_a_mistake_at_its_place(section: Setting) -> None:
    with pytest.raises(InvalidSpec, match=rf"backends\.b\.{section.name}\.colour: there is no such setting"):
        parse_mesh(f"backends: {{b: {{{section.name}: {{colour: 1}}}}}}")
    with pytest.raises(InvalidSpec, match=rf"backends\.b\.{section.name}: must be"):
        parse_mesh(f"backends: {{b: {{{section.name}: 3}}}}")
    with pytest.raises(
        BadDocument, match=f"backend b: {section.name}: this version of slotmesh knows no setting colour"
    ):
        BACKEND.read("b", {section.name: {"colour": 1}})


@pytest.mark.parametrize("quantity", ["1.5", "500m", "2Gi", "1k"])
def test_resources_of_pods_are_quantities(quantity: str) -> None:
    assert not [*backend_violations(Backend(name="b", pod=PodSettings(cpu=quantity, memory=quantity)))]
    wrong = PodSettings(cpu=f"{quantity} cores", memory=f"-{quantity}")
    (cpu, memory) = backend_violations(Backend(name="b", pod=wrong))
    assert (cpu.path, memory.path) == ("backends.b.pod.cpu", "backends.b.pod.memory")
    assert cpu.message == f"must be a quantity as Kubernetes writes it, 500m or 2Gi, is '{quantity} cores'"


def test_either_somebody_says_the_number_of_replicas_or_it_is_chosen() -> None:
    (mistake,) = backend_violations(Backend(name="b", num_replicas=3, autoscale=Autoscale()))
    assert mistake.path == "backends.b.num_replicas"
    assert "contradicts autoscale" in mistake.message
    (mistake,) = backend_violations(Backend(name="b", autoscale=Autoscale(min=5, max=4)))
    assert str(mistake) == "backends.b.autoscale.min: is larger than autoscale.max: 5 and 4"


@each_setting
def test_a_choice_that_no_version_knows_names_those_that_there_are(setting: Setting) -> None:
    if setting.kind is SettingKind.CHOICE:
        is_name = mesh_pb2.Backend.DESCRIPTOR.fields_by_name[setting.name].enum_type is None
        unknown: dict[str, Any] = {setting.name: "other" if is_name else 99}
        backend, (mistake,) = backend_from_wire(mesh_pb2.Backend(name="b", **unknown))
        assert getattr(backend, setting.attribute) is setting.default
        assert mistake.path == f"backends.b.{setting.name}"
        assert all(each in mistake.message for each in choices(setting))


@each_setting
def test_routers_get_what_they_read_and_nothing_else(setting: Setting) -> None:
    for value, _ in samples(setting):
        backend = with_value(setting, value)
        routed = backend.routed()
        assert getattr(routed, setting.attribute) == (value if setting.is_routed else setting.default)
        wire = backend_to_wire(routed, ROUTED)
        assert backend_from_wire(wire) == (routed, [])
        assert {each.name for each, _ in wire.ListFields()} <= {"name", *ROUTED}
