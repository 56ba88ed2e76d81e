"""Mutants of what operators can ask: open calls, shadows, checks, events that outlive a controller."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_ROUTER: Final = "router_service"
_OPEN_CALLS: Final = "tests/contract/test_router_open_calls.py"
_CORE: Final = "tests/properties/test_router_scheduler.py"

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
        f"{_OPEN_CALLS} {_CORE}",
    ),
    mutant(
        "of calls with keys of their own, all are taken for those of the key",
        _ROUTER,
        "if known != ANSWERED and (keys is None or keys[at] == key):",
        "if known != ANSWERED:",
        _OPEN_CALLS,
    ),
    mutant(
        "what waits for a frame to a replica is not listed",
        _ROUTER,
        "yield from [*replica.ops, *replica.outbox, *replica.inflight.values()]",
        "yield from [*replica.ops, *replica.inflight.values()]",
        _CORE,
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
        "if request.show_keys and (failure := payloads_refusal()):",
        "if False and (failure := payloads_refusal()):",
        "tests/contract/security/test_limits.py",
    ),
)

QUESTIONS: Final = (*_CALLS,)
