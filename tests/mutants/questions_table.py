"""Mutants of what operators can ask: open calls, shadows, checks, events that outlive a controller."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_ROUTER: Final = "router_service"
_OPEN_CALLS: Final = "tests/contract/router/test_open_calls.py"

_CALLS: Final = (
    mutant(
        "the youngest calls are listed, not the oldest",
        _ROUTER,
        "entry = (-run.arrived, -run.seq, -self._looked_at, each)",
        "entry = (run.arrived, run.seq, -self._looked_at, each)",
        _OPEN_CALLS,
    ),
    mutant(
        "a call whose caller has gone is not listed",
        _ROUTER,
        "if known != ANSWERED and (keys is None or keys[at] == key):",
        "if known == 0 and (keys is None or keys[at] == key):",
        _OPEN_CALLS,
    ),
    mutant(
        "of calls with keys of their own, all are taken for those of the key",
        _ROUTER,
        "if known != ANSWERED and (keys is None or keys[at] == key):",
        "if known != ANSWERED:",
        "tests/unit/router/lifecycle/test_open_calls.py",
    ),
    mutant(
        "what waits for a frame to a replica is not listed",
        _ROUTER,
        "yield from [*replica.ops, *replica.outbox, *replica.inflight.values()]",
        "yield from [*replica.ops, *replica.inflight.values()]",
        "tests/unit/router/lifecycle/test_open_calls.py",
    ),
    mutant(
        "ordering keys are shown to all",
        _ROUTER,
        "ordering_key=key if key and shows_keys else None,",
        "ordering_key=key or None,",
        _OPEN_CALLS,
    ),
    mutant(
        "ordering keys are shown to viewers",
        _ROUTER,
        "if request.with_ordering_keys and (failure := payloads_refusal()):",
        "if False and (failure := payloads_refusal()):",
        "tests/contract/security/test_limits.py",
    ),
)

_OPERATORS: Final = (
    mutant(
        "a long refusal takes all metadata that a client may take",
        "slotmesh",
        "MAX_TRAILER_BYTES = 7_680",
        "MAX_TRAILER_BYTES = 15_680",
        "tests/contract/client/test_default_clients.py tests/unit/test_status.py",
    ),
    mutant(
        "trailing metadata of a handler is not counted with the refusal",
        "slotmesh",
        "room=MAX_TRAILER_BYTES - theirs",
        "room=MAX_TRAILER_BYTES",
        "tests/contract/client/test_default_clients.py",
    ),
    mutant(
        "a proxy of the environment steers the channels of the mesh",
        "slotmesh",
        '("grpc.enable_http_proxy", 0),',
        '("grpc.enable_http_proxy", 1),',
        "tests/contract/client/test_proxies.py",
    ),
    mutant(
        "what stands around the certificates of a file is read with them",
        "slotmesh",
        "return pem_blocks(read_guarded(path, what, guard))",
        "return read_guarded(path, what, guard)",
        "tests/contract/security/test_pem_files.py",
    ),
    mutant(
        "a replica's certificate names this machine",
        "slotmesh",
        "return self.stem in {Role.CONTROLLER, Role.ROUTER, INGRESS}",
        "return self.stem in {Role.CONTROLLER, Role.ROUTER, Role.REPLICA, INGRESS}",
        "tests/unit/cli/test_certs.py",
    ),
    mutant(
        "an older server is taken for one of another kind",
        "slotmesh",
        "if peer.kind in SERVERS and kind in SERVERS and kind != peer.kind:",
        "if True:",
        "tests/contract/cli/test_older_servers.py",
    ),
)

_CHECK: Final = (
    mutant(
        "a state that cannot be written is tried by changes alone",
        "controller_service",
        "if self._lost is None and (self.problem or self._checks >= PROBE_CHECKS or self._is_doubtful()):",
        "if False:",
        "tests/contract/controller/test_check_store.py",
    ),
    mutant(
        "a full disk counts as one that can be written",
        "controller_service",
        "        self._require_same_file()\n        self._require_room()\n",
        "        self._require_same_file()\n",
        "tests/contract/controller/test_check_store.py",
    ),
    mutant(
        "a controller that cannot write its state is ready",
        "controller_service",
        "front.server.serving and not front.store_problem",
        "front.server.serving",
        "tests/contract/controller/test_check_store.py",
    ),
    mutant(
        "a member that was cut off was merely silent",
        "controller_service",
        "if stream is not None and stream.failure is not None:",
        "if False:",
        "tests/contract/controller/test_lost_members.py",
    ),
    mutant(
        "one controller with two addresses is two leaders",
        "slotmesh/cli",
        "leaders = {role.leader_address or it.address: (it, role) for it, role in statements if role.leads}",
        "leaders = {it.address: (it, role) for it, role in statements if role.leads}",
        "tests/unit/cli/checking",
    ),
    mutant(
        "a backend that its load has scaled to zero is in need",
        "slotmesh/cli",
        "if backend.autoscale is not None and backend.autoscale.min == 0:",
        "if False:",
        "tests/unit/cli/checking",
    ),
)

_SHADOWS: Final = (
    mutant(
        "copies that fail at a shadow are not reported",
        "router_service",
        "            counts.shadow_ended.count(failure, count, run.endpoint)\n",
        "            pass\n",
        "tests/testing/test_shadow_drops.py",
    ),
    mutant(
        "a guard of a shadow looks at calls",
        "controller_service",
        "ended = load.shadow_ended if self._of_shadows else load.ended",
        "ended = load.ended",
        "tests/contract/controller/test_shadow_guards.py",
    ),
    mutant(
        "a guard of a shadow looks at the backends that rise",
        "controller_service",
        "    if guard.shadow:\n",
        "    if False:\n",
        "tests/contract/controller/test_shadow_guards.py",
    ),
)

QUESTIONS: Final = (*_CALLS, *_OPERATORS, *_CHECK, *_SHADOWS)
