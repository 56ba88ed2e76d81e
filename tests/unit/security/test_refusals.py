"""Who is refused, and what they are told: the roles of which they lack one, and nothing of what exists."""

from __future__ import annotations

import pytest

from slotmesh.errors import Reason
from slotmesh.security.identity import ANYBODY, Identity, Role
from slotmesh.security.rpc_roles import Rule, decide, refused_backend, refused_endpoint

CALL = Rule("mesh/Call", (Role.INVOKER, Role.REPLICA))
SEE = Rule("mesh/Show", (Role.VIEWER,))


def somebody(*roles: Role, expires_at: float | None = None) -> Identity:
    return Identity(name="client/alice", roles=frozenset(roles), expires_at=expires_at)


@pytest.mark.parametrize("role", Role)
def test_one_of_the_roles_will_do(role: Role) -> None:
    refused = decide(somebody(role), CALL, 0.0)
    assert (refused is None) == (role in {Role.INVOKER, Role.REPLICA, Role.OPERATOR})
    assert (decide(somebody(role), SEE, 0.0) is None) == (role in {Role.VIEWER, Role.OPERATOR})


def test_a_refusal_names_the_roles() -> None:
    refused = decide(somebody(Role.VIEWER), CALL, 0.0)
    assert refused is not None
    assert refused.reason is Reason.PERMISSION_DENIED
    assert refused.message == "mesh/Call needs the role invoker or replica, which client/alice does not have"
    assert refused.metadata == {"role": "invoker, replica"}


def test_who_is_nobody_is_told_how_to_be_somebody() -> None:
    refused = decide(None, SEE, 0.0)
    assert refused is not None
    assert refused.reason is Reason.UNAUTHENTICATED
    assert "client certificate" in refused.message
    assert refused.metadata == {"role": "viewer"}


def test_a_credential_ends_when_it_says() -> None:
    before, then = (decide(somebody(Role.VIEWER, expires_at=10.0), SEE, now) for now in (9.9, 10.0))
    assert before is None
    assert then is not None
    assert then.reason is Reason.UNAUTHENTICATED


def test_an_rpc_that_names_no_role_is_for_nobody() -> None:
    refused = decide(ANYBODY, Rule("mesh/New", ()), 0.0)
    assert refused is not None
    assert refused.message == "mesh/New names no role that may call it, which anybody does not have"


def test_limits() -> None:
    alice = Identity(name="client/alice", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"digits"}))
    assert refused_endpoint(alice, "digits") is None
    refused = refused_endpoint(alice, "faces")
    assert refused is not None
    assert refused.metadata == {"role": "invoker", "endpoint": "faces"}
    replica = Identity(name="replica/a", roles=frozenset({Role.REPLICA}), backend="a")
    assert refused_backend(replica, "a") is None
    assert refused_backend(replica, "b") is not None
    assert refused_backend(ANYBODY, "b") is None
    assert refused_endpoint(ANYBODY, "faces") is None


def test_a_refusal_repeats_a_part_of_a_long_name() -> None:
    alice = Identity(name="client/alice", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"mine"}))
    long = "\n" * 1_000_000
    for refused in (refused_endpoint(alice, long), refused_backend(alice, long)):
        assert refused is not None
        assert len(refused.message) < 200
        assert max(map(len, refused.metadata.values())) < 100
