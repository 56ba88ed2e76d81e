"""Limits by tenant of an endpoint: from a document and back, on the wire, in the store, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from controller_service.store.documents import ENDPOINT
from controller_service.store.forms import BadDocument
from slotmesh.convert.specification import endpoint_from_wire, endpoint_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import Endpoint, InvalidSpec, Mesh
from slotmesh.spec.tenants import MAX_OVERRIDES, NO_LIMITS, TenantLimit, TenantLimits
from slotmesh.spec.writing import mesh_document

LIMITS = TenantLimits(
    max_calls_per_s=100,
    burst=200,
    max_in_flight=50,
    overrides={"acme": TenantLimit(max_in_flight=500), "Müller & Söhne": TenantLimit()},
)
DOCUMENT = {
    "max_calls_per_s": 100,
    "burst": 200,
    "max_in_flight": 50,
    "overrides": {"acme": {"max_in_flight": 500}, "Müller & Söhne": {}},
}


def read(tenants: Any) -> TenantLimits | None:
    document = {"endpoints": {"e": {"traffic": {"v1": 1.0}, "tenants": tenants}}}
    return parse_mesh(yaml.safe_dump(document)).endpoints[0].tenants


def test_a_document_says_limits() -> None:
    assert read(DOCUMENT) == LIMITS
    assert read({}) == NO_LIMITS, "which takes limits away"
    assert read(None) is None


def test_what_is_written_is_what_is_read() -> None:
    document = mesh_document(Mesh(endpoints=(Endpoint(name="e", tenants=LIMITS),)))
    assert document["endpoints"]["e"] == {"tenants": DOCUMENT}
    assert parse_mesh(yaml.safe_dump(document)).endpoints[0].tenants == LIMITS


@pytest.mark.parametrize("tenants", [None, NO_LIMITS, LIMITS])
def test_the_wire_and_the_store_keep_them(tenants: TenantLimits | None) -> None:
    endpoint = Endpoint(name="e", tenants=tenants)
    assert endpoint_from_wire(endpoint_to_wire(endpoint)) == endpoint
    assert ENDPOINT.read("e", ENDPOINT.write(endpoint)) == endpoint


@pytest.mark.parametrize(
    "stored", [{"max_in_flight": "5"}, {"colour": 1}, {"overrides": 5}, {"overrides": {"a": 5}}, 5]
)
def test_the_store_refuses_what_is_no_limit(stored: Any) -> None:
    with pytest.raises(BadDocument, match="endpoint e: tenants"):
        ENDPOINT.read("e", {"tenants": stored})


@pytest.mark.parametrize(
    ("tenants", "where", "why"),
    [
        ({"max_calls_per_s": 0}, "endpoints.e.tenants.max_calls_per_s", "must be 1 … 1,000,000, is 0"),
        ({"max_in_flight": 10**9}, "endpoints.e.tenants.max_in_flight", "must be 1 … 1,000,000"),
        ({"max_in_flight": 1.5}, "endpoints.e.tenants.max_in_flight", "integer"),
        ({"burst": 5}, "endpoints.e.tenants.burst", "set that, too"),
        ({"rate": 5}, "endpoints.e.tenants.rate", "no such setting"),
        ({"overrides": {"a": {"max_in_flight": -1}}}, "endpoints.e.tenants.overrides.a.max_in_flight", "must be 1"),
        ({"overrides": {"a": {"rate": 1}}}, "endpoints.e.tenants.overrides.a.rate", "no such setting"),
        ({"overrides": {"a": 5}}, "endpoints.e.tenants.overrides.a", "must be a map, is the number 5"),
        ({"overrides": {"a": None}}, "endpoints.e.tenants.overrides.a", "must be a map, is empty"),
        ({"overrides": []}, "endpoints.e.tenants.overrides", "must be a map, is a list"),
        ({"overrides": {7: {}}}, "endpoints.e.tenants.overrides", "7 is the number 7, not a name: quote it"),
        ([], "endpoints.e.tenants", "must be a map, is a list"),
        ({"overrides": {"": {}}}, "endpoints.e.tenants.overrides", "the name of a tenant must not be empty"),
        ({"overrides": {"x" * 257: {}}}, "endpoints.e.tenants.overrides", "at most 256 bytes"),
        ({"overrides": {"a\tb": {}}}, "endpoints.e.tenants.overrides", "printable"),
        (
            {"overrides": {f"t{number}": {} for number in range(MAX_OVERRIDES + 1)}},
            "endpoints.e.tenants.overrides",
            f"at most {MAX_OVERRIDES}",
        ),
    ],
)
def test_what_no_endpoint_may_have_is_refused_with_its_path(tenants: Any, where: str, why: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read(tenants)
    (mistake,) = refused.value.violations
    assert mistake.path == where
    assert why in mistake.message
