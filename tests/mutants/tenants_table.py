"""Mutants of tenants: whose calls leave next, how much each may have, and of how many account is kept."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service"
CLIENT: Final = "slotmesh/client"
SPEC: Final = "slotmesh/spec"

_TURNS: Final = (
    mutant(
        "queries for slots of repeated reservations are not given back",
        ROUTER,
        "            self._bound.give(search.holder, 1)\n",
        "            pass\n",
        "tests/unit/router/features/test_slot_look_ups.py",
    ),
    mutant(
        "one caller has all queries for slots of repeated reservations",
        ROUTER,
        "holder = work.identity or run.caller.flow",
        'holder = f"{id(run)}"',
        "tests/unit/router/features/test_slot_look_ups.py",
    ),
    mutant(
        "tenants of a client wait in one line",
        ROUTER,
        "if self._is_of_tenants or (run.tenant is share.tenant and type(queue) is SloQueue):",
        "if True:",
        "tests/unit/router/limits/test_tenants.py",
    ),
    mutant(
        "what comes back of several tenants is queued as of one",
        ROUTER,
        "by_tenant.setdefault((self._share(run), run.tenant), []).append(run)",
        "by_tenant.setdefault((self._share(run), None), []).append(run)",
        "tests/unit/router/limits/test_tenants.py tests/properties/test_router_fair_queue.py",
    ),
    mutant(
        "turns within a client never end",
        ROUTER,
        "            share.queue.served(count)\n",
        "            pass\n",
        "tests/unit/router/limits/test_tenants.py tests/properties/test_router_fair_queue.py",
    ),
    mutant(
        "a tenant fills the whole queue",
        ROUTER,
        "return max(_TENANT_THRESHOLD.room(held, free),",
        "return max(free,",
        "tests/unit/router/limits/test_tenants.py",
    ),
    mutant(
        "calls that wait for a tenant are not given back",
        ROUTER,
        "                del self._by_tenant[key]",
        "                self._by_tenant[key] = calls, total",
        "tests/unit/router/limits/test_tenants.py tests/unit/router/limits/test_admission.py",
    ),
    mutant(
        "unary calls of one tenant fill the router",
        ROUTER,
        "self._peers[peer].tenants[tenant] if tenant and peer in self._peers else 0",
        "0",
        "tests/contract/router/test_tenants.py",
    ),
    mutant(
        "a tenant fills the client's window",
        CLIENT,
        "count = max(min(count, THRESHOLD.room(held.calls, self._calls)), 0 if held.calls else 1)",
        "count = len(sizes)",
        "tests/unit/client/test_outbox.py",
    ),
    mutant(
        "a tenant's turn at the client never ends",
        CLIENT,
        "self.lines.append(line)\n        else:",
        "self.lines.appendleft(line)\n        else:",
        "tests/unit/client/test_outbox.py",
    ),
    mutant(
        "answered calls stay in their tenant's share of the window",
        CLIENT,
        "        held[0] += calls\n",
        "        held[0] += max(calls, 0)\n",
        "tests/unit/client/test_outbox.py tests/properties/test_client_outbox.py",
    ),
)
_LIMITS: Final = (
    mutant(
        "a bucket never empties",
        ROUTER,
        "self.full_at = max(self.full_at, now) + admitted / rate",
        "self.full_at = now",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "the retry delay is of one call, however many are refused",
        ROUTER,
        "wanted = min(calls - admitted, burst)",
        "wanted = 1",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "calls in flight are never over",
        ROUTER,
        "            run.tenant.unanswered -= count\n",
        "            pass\n",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "parts of a run count again",
        ROUTER,
        "            part.tenant.unanswered += count\n",
        "            part.tenant.unanswered += 2 * count\n",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "callers share the limits of tenants of one name",
        ROUTER,
        "key = run.endpoint, caller, run.options.tenant",
        'key = run.endpoint, "", run.options.tenant',
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "keyed calls pass the limits of their tenant",
        ROUTER,
        "and not (batch.options.tenant and endpoint.route.tenants)",
        "",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "overrides say nothing",
        SPEC,
        "return self.overrides.get(tenant, self) if self.overrides else self",
        "return self",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "a router does not hear of other limits",
        "controller_service/core",
        "if before.tenants != after.tenants:",
        "if False:",
        "tests/properties/test_table_deltas.py",
    ),
)
_HOW_MANY: Final = (
    mutant(
        "one caller takes all accounts",
        ROUTER,
        "return self._held[caller] < self._most - len(self._accounts)",
        "return len(self._accounts) < self._most",
        "tests/unit/router/limits/test_tenants.py",
    ),
    mutant(
        "accounts are forgotten whatever they owe",
        ROUTER,
        "return not self.unanswered and self.full_at <= now",
        "return not self.unanswered",
        "tests/unit/router/limits/test_tenant_limits.py",
    ),
    mutant(
        "failures do not name their tenant",
        ROUTER,
        'failure = replace(failure, metadata={"tenant": run.options.tenant, **failure.metadata})',
        "pass",
        "tests/unit/router/limits/test_tenants.py",
    ),
)
TENANTS: Final = (*_TURNS, *_LIMITS, *_HOW_MANY)
