"""The rule of each rpc, and the roles of each kind of identity, against tables that are written down by hand."""

from __future__ import annotations

import pytest

from slotmesh.security.identity import Role, identity_of, uri_of
from slotmesh.security.rpc_roles import rule_of
from slotmesh.security.tokens.rules import KINDS, kind_of, roles_of
from tests.support.declared_rpcs import declared_rpcs
from tests.support.expected_roles import EXPECTED, OPEN

DECLARED = {(rpc.containing_service.full_name, rpc.name) for rpc in declared_rpcs()}
"""Rules are read of protos that are imported: these are, from here on."""


@pytest.mark.parametrize("rpc", EXPECTED, ids="/".join)
def test_who_may_call_it(rpc: tuple[str, str]) -> None:
    rule = rule_of(*rpc)
    assert rule.method == "/".join(rpc)
    assert rule.is_open is (rpc in OPEN)
    if not rule.is_open:
        assert {role for role in Role if rule.allows(frozenset({role}))} == EXPECTED[rpc]


def test_each_declared_rpc_is_in_the_table() -> None:
    assert {rpc for rpc in EXPECTED if not rpc[0].startswith("grpc.")} == DECLARED


@pytest.mark.parametrize(
    "rpc",
    [
        ("slotmesh.v1.ControllerService", "NoSuchRpc"),
        ("grpc.health.v1.Health", "NoSuchRpc"),
        ("slotmesh.v1.NoSuchService", "Call"),
        ("", ""),
    ],
    ids="/".join,
)
def test_what_is_not_declared_is_for_nobody(rpc: tuple[str, str]) -> None:
    assert not rule_of(*rpc).is_open
    assert not any(rule_of(*rpc).allows(frozenset({role})) for role in Role)
    assert not rule_of(*rpc).allows(frozenset(Role))


@pytest.mark.parametrize(
    ("kind", "name", "roles"),
    [
        ("viewer", "eve", {Role.VIEWER}),
        ("client", "alice", {Role.INVOKER}),
        ("ingress", "", {Role.INVOKER}),
        ("operator", "ops", {Role.OPERATOR, Role.VIEWER, Role.INVOKER}),
        ("router", "", {Role.ROUTER}),
        ("replica", "", {Role.REPLICA}),
        ("replica", "digits", {Role.REPLICA}),
        ("controller", "", {Role.CONTROLLER}),
    ],
)
def test_the_roles_of_each_kind_of_certificate(kind: str, name: str, roles: set[Role]) -> None:
    identity = identity_of(uri_of("mesh.test", kind, name), "mesh.test")
    assert identity is not None
    assert identity.roles == roles


def test_the_roles_that_tokens_can_give() -> None:
    assert set(KINDS) == {Role.VIEWER, Role.INVOKER, Role.OPERATOR}
    assert {kind: roles_of(kind) for kind in ("viewer", "client", "operator")} == {
        "viewer": {Role.VIEWER},
        "client": {Role.INVOKER},
        "operator": {Role.OPERATOR, Role.VIEWER, Role.INVOKER},
    }
    for members in (Role.ROUTER, Role.REPLICA, Role.CONTROLLER):
        assert kind_of(frozenset({members})) is None
