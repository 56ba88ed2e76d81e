"""Mutants of the client: its sessions as its identity changes, with what routers and replicas do then; its buffer."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_BUFFER: Final = "tests/contract/client/test_buffer.py tests/contract/client/sync/test_buffer.py"
_SHARES: Final = "tests/properties/test_client_buffer.py"
_INTERFACES: Final = "tests/testing/test_interfaces.py"
_IDENTITY: Final = "tests/contract/security/test_changed_identity.py"

CLIENT: Final = (
    mutant(
        "a client that was never connected gives up as one router cannot be reached as it is configured",
        "slotmesh/client",
        "return all(problem is not None and problem.is_certain",
        "return any(problem is not None and problem.is_certain",
        "tests/unit/client/test_search.py",
    ),
    mutant(
        "the attempt at the only router goes on though retries do not help",
        "slotmesh/client",
        "limit.reschedule(asyncio.get_running_loop().time())",
        "pass",
        "tests/contract/security/test_tls_refusals.py",
    ),
    mutant(
        "a call that is larger than the window counts in it",
        "slotmesh/client",
        "return nbytes if nbytes and self._pending.is_unanswered(call_id) else 0",
        "return 0",
        "tests/contract/client/test_window.py",
    ),
    mutant(
        "a stream that a proxy ends at a deadline fails its calls",
        "slotmesh/client",
        "*(Reason.ROUTER_LOST, Reason.CANCELLED, Reason.INTERNAL, Reason.DEADLINE_RUNNING),",
        "*(Reason.ROUTER_LOST, Reason.CANCELLED, Reason.INTERNAL),",
        "tests/conformance/test_python_client.py",
    ),
    mutant(
        "a router does not wait for the calls that are sent again",
        "router_service/core",
        "self.awaits_calls = bool(unanswered)",
        "self.awaits_calls = False",
        "tests/unit/router/features/test_sessions_found_calls.py",
    ),
    mutant(
        "calls of a hosted replica that has ended are sent again",
        "slotmesh/testing",
        "if self._unanswered:\n            self._fail(",
        "if False:\n            self._fail(",
        "tests/testing/test_router_stand_in.py",
    ),
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
        "return RosterVersion(wire.generation.removesuffix(mark), wire.revision, wire.term_id)",
        'return RosterVersion(wire.generation.partition("@")[0], wire.revision, wire.term_id)',
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
        "calls cannot be cancelled any more while the client closes, or after GoAway",
        "slotmesh/client",
        "if (self._outbox and not self._leaving) or self._pending.calls:",
        "if self._outbox and not self._leaving:",
        "tests/conformance/test_python_client.py",
    ),
    mutant(
        "a call that has a result succeeds without one",
        "slotmesh/client",
        "if part.spec.streaming or not part.spec.options.reply:",
        "if True:",
        "tests/conformance/test_python_client.py tests/contract/client/test_sessions.py",
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
    mutant(
        "a client holds any number of calls",
        "slotmesh/client",
        "is_beyond = share.calls > share.granted_calls or share.nbytes > share.granted_bytes",
        "is_beyond = False",
        _BUFFER,
    ),
    mutant(
        "an endpoint that is alone in a client takes the room of others",
        "slotmesh/client",
        "self.free_calls = max_calls + -(-max_calls // THRESHOLD.times)",
        "self.free_calls = max_calls",
        _SHARES,
    ),
    mutant(
        "what leaves a client's buffer is still counted in it",
        "slotmesh/client",
        "self.share.give(count, nbytes)",
        "pass",
        f"{_BUFFER} tests/properties/test_client_outbox.py",
    ),
    mutant(
        "cancelled calls take room until they would leave",
        "slotmesh/client",
        "return share.take(1, size) or (self._drop_cancelled() and share.take(1, size))",
        "return share.take(1, size)",
        _BUFFER,
    ),
    mutant(
        "a call that waits for room and is given up keeps its place",
        "slotmesh/client",
        "self._grant(share, share.calls - share.granted_calls, share.nbytes - share.granted_bytes)",
        "pass",
        _SHARES,
    ),
    mutant(
        "a full endpoint keeps ahead what others need",
        "slotmesh/client",
        "keeps = bool(share.calls) and is_small and not self._crowded",
        "keeps = bool(share.calls) and not self._crowded",
        _SHARES,
    ),
    mutant(
        "calls of a lane overtake its map that waits for room",
        "slotmesh/client",
        "if spec.ordering_key and self._feeds.is_waiting(spec.queue):",
        "if False:",
        _BUFFER,
    ),
    mutant(
        "leaving a client fails what a long map has not made yet",
        "slotmesh/client",
        "await self._feeds.end(grace_s)",
        "await self._feeds.end(0)",
        _BUFFER,
    ),
    mutant(
        "values of a handler that yields are decoded as the list of them",
        "slotmesh/client",
        "self.signature.value if options.streaming else self.signature.result",
        "self.signature.result",
        _INTERFACES,
    ),
    mutant(
        "an argument that is given by position and by name is overwritten",
        "slotmesh/client",
        "len(named) < len(args) or not kwargs.keys().isdisjoint(named)",
        "len(named) < len(args)",
        _INTERFACES,
    ),
    mutant(
        "each look-up of a method in an interface makes another one",
        "slotmesh/client",
        "self._signature = _signature_of(self._function)",
        "return instance._client.method(_name_of(self._name), _signature_of(self._function))",
        _INTERFACES,
    ),
    mutant(
        "type checkers do not see the parameters of a method",
        "slotmesh/client",
        "T], /) -> InterfaceMethod[T, P]: ...\ndef method(",
        "T], /) -> InterfaceMethod[T]: ...\ndef method(",
        "tests/typed",
    ),
    mutant(
        "type checkers do not see the type of items that a batch method takes",
        "slotmesh/handlers",
        "def __call__(self: Takes1[A, T], a: A, /)",
        "def __call__(self: Takes1[A, T], a: Any, /)",
        "tests/typed",
    ),
    mutant(
        "a parameter that may be left out is required in a written interface",
        "slotmesh/cli",
        '("" if is_required else " = ...")',
        '""',
        "tests/contract/cli/test_stubs.py",
    ),
)
