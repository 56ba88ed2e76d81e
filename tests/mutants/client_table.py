"""Mutants of the client and of what routers and replicas do with its sessions, as its identity changes."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_IDENTITY: Final = "tests/contract/security/test_changed_identity.py"

CLIENT: Final = (
    mutant(
        "a session is resumed as a new one under another identity",
        "router_service",
        "return OF_ANOTHER_IDENTITY if are_of_another(rosters) else connection",
        "return connection",
        _IDENTITY,
    ),
    mutant(
        "the mark of another identity is taken off a call's first roster",
        "router_service",
        "return RosterVersion(wire.generation.removesuffix(mark), wire.revision)",
        'return RosterVersion(wire.generation.partition("@")[0], wire.revision)',
        _IDENTITY,
    ),
    mutant(
        "rosters of a session have no mark of its owner",
        "router_service",
        'return "" if key == chosen_id else f"@{key[: _MARK_LENGTH - 1]}"',
        'return ""',
        _IDENTITY,
    ),
    mutant(
        "calls that were not sent fail with the session that nothing resumes",
        "slotmesh/client",
        "if refusal.reason is Reason.UNAUTHENTICATED and self._pending.calls:",
        "if False:",
        f"{_IDENTITY} tests/conformance/test_python_client.py",
    ),
    mutant(
        "an iteration that is cut by a revocation lost its router",
        "slotmesh/client",
        "            cut_off = refusal",
        "            pass",
        _IDENTITY,
    ),
    mutant(
        "an iteration at a router that leaves, cut by a revocation, lost its router",
        "slotmesh/client",
        "closed if is_closed else refusal or lost",
        "closed if is_closed else lost",
        "tests/conformance/test_python_client.py",
    ),
    mutant(
        "a direct call that is cut by a revocation lost its replica",
        "slotmesh/client",
        "if self._is_open and failure.reason is Reason.UNAUTHENTICATED:",
        "if False:",
        _IDENTITY,
    ),
    mutant(
        "a direct call that is cut by a revocation was cancelled",
        "replica_service",
        "self._send = _drop",
        "pass",
        _IDENTITY,
    ),
)
