"""The tenants of all callers that have accounts, and which of them metrics name.

Invariants: there are at most `most` accounts, plus an overflow account for each endpoint and caller that needed one. A
caller gets another account only while it has fewer than are left, so callers that name many tenants leave room for
others. An account is removed only when idle: its tenant loses nothing. At most `most_named` accounts have figures of
their own; those of all others are added up by endpoint.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple

from router_service.core.limits.tenant_limits import Refused, TenantAccount, TenantFigures
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason
from slotmesh.spec.rules import show
from slotmesh.spec.tenants import NO_LIMITS, OVERRIDES, TenantLimits

MAX_TENANTS: Final = 10_000
MAX_NAMED: Final = 20
_LOOKS: Final = 8
"""Accounts that are looked at, the one unused longest first, to find an idle one."""
_RANKED: Final = 2_000
"""Accounts among which the busiest are looked for: those that were used last."""

RANK_EVERY_S: Final = 1.0
"""How often the tenants that metrics name are chosen anew, at most."""
LEAST_RATE: Final = 0.01
"""Calls a second below which a tenant without calls under way is not shown. Fewer refused ones are none."""

AccountKey = tuple[str, str, str]
"""Endpoint, caller and tenant."""


class TenantLoad(NamedTuple):
    """One tenant at one endpoint, as operators see it."""

    endpoint: str
    name: str
    calls_per_s: float
    """Calls accepted a second lately."""
    refused_per_s: float
    """Calls refused a second lately: by a limit, or as a queue had no room for them."""
    unanswered: int


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """How many tenants a router keeps account of."""

    most: int = MAX_TENANTS
    most_named: int = MAX_NAMED


DEFAULT_TENANTS: Final = TenantSettings()


class TenantBook:
    """Finds the account of a tenant."""

    def __init__(self, settings: TenantSettings, endpoints: Container[str]) -> None:
        """`endpoints`: names that were in a table at any time."""
        self._most = settings.most
        self._most_named = settings.most_named
        self._endpoints = endpoints
        self._accounts: OrderedDict[AccountKey, TenantAccount] = OrderedDict()
        """The one used last at the end."""
        self._held: Counter[str] = Counter()
        """Accounts of each caller."""
        self._overflow: dict[tuple[str, str], TenantAccount] = {}
        """By endpoint and caller; those that are idle are dropped with the next one."""
        self.others: dict[str, TenantFigures] = {}
        """By endpoint, the calls of tenants that metrics do not name. To be read."""
        self._named: list[TenantAccount] = []
        self._rank_at = 0.0
        """When the busiest are looked for again, to be named; monotonic seconds."""

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, run: RouterRun, limits: TenantLimits | None, now: float) -> tuple[int, Failure | None]:
        """Calls that name a tenant came. Returns how many are admitted, and the failure of the others."""
        calls = len(run.payloads)
        if run.endpoint not in self._endpoints:
            return calls, None  # it fails for that; names that callers invent take no account
        account = self.account_of(run, now)
        admitted, refused = calls, None
        limits = NO_LIMITS if limits is None else limits
        if limits is not NO_LIMITS:
            admitted, refused = account.admit(calls, limits.limit_of(account.name), now)
        self._count(run, account, now)
        if refused is None:
            return calls, None
        account.refuse(calls - admitted, now)
        return admitted, tenant_limit(account, refused, limits)

    def count(self, run: RouterRun, now: float) -> None:
        """The calls of the run, which came now, are those of its tenant, whatever limits it has."""
        if run.endpoint in self._endpoints:
            self._count(run, self.account_of(run, now), now)

    def attach(self, run: RouterRun, now: float) -> None:
        """The run has a call of its tenant that was counted before: when a slot was reserved for it."""
        if run.endpoint in self._endpoints:
            run.tenant = account = self.account_of(run, now)
            account.unanswered += len(run.payloads)

    def _count(self, run: RouterRun, account: TenantAccount, now: float) -> None:
        calls = len(run.payloads)
        run.tenant = account
        account.unanswered += calls
        account.figures.accepted += calls
        account.recent.add(calls, now)
        if now >= self._rank_at:
            self._rank_at = now + RANK_EVERY_S
            self._name(self.busiest(self._most_named, now))

    def account_of(self, run: RouterRun, now: float) -> TenantAccount:
        """The account of the run's tenant; that of all tenants beyond the bound where there is no room for it."""
        share = run.caller.share
        caller = "" if share is None else share.who
        key = run.endpoint, caller, run.options.tenant
        account = self._accounts.get(key)
        if account is not None:
            self._accounts.move_to_end(key)
            return account
        if not self._has_room(caller):
            self._drop_idle(now)
        if not self._has_room(caller):
            return self._overflow_of(run.endpoint, caller, now)
        account = self._accounts[key] = TenantAccount(*key, self._others_of(run.endpoint))
        self._held[caller] += 1
        return account

    def busiest(self, most: int, now: float) -> list[TenantAccount]:
        """Those that have made most calls lately, of any endpoint of the table."""
        used = islice(reversed(self._accounts.values()), _RANKED)
        ranked = [(each.recent.value(now) + each.unanswered, each) for each in (*used, *self._overflow.values())]
        return [each for _, each in nlargest(most, ranked, key=lambda it: it[0]) if each.endpoint in self._endpoints]

    def loads(self, most: int, now: float) -> list[TenantLoad]:
        """The busiest tenants that have called lately, or have calls without an outcome."""
        return [
            TenantLoad(each.endpoint, each.name, rate, _shown(each.refused.rate(now)), each.unanswered)
            for each in self.busiest(most, now)
            if (rate := each.recent.rate(now)) >= LEAST_RATE or each.unanswered
        ]

    def named(self) -> Iterator[TenantAccount]:
        """Accounts that metrics name. The others' figures are in `others`."""
        return iter(tuple(self._named))

    def _name(self, busiest: list[TenantAccount]) -> None:
        """Metrics name these. One that is displaced counts among the others from now on: totals never go back."""
        for each in self._named:
            if each not in busiest:
                each.is_named, each.figures = False, self._others_of(each.endpoint)
        for each in busiest:
            if not each.is_named and each.name:
                each.is_named, each.figures = True, TenantFigures()
        self._named = [each for each in busiest if each.is_named]

    def _has_room(self, caller: str) -> bool:
        return self._held[caller] < self._most - len(self._accounts)

    def _drop_idle(self, now: float) -> None:
        """Forgets an idle account, if one of those unused longest is. Those that are not go to the end."""
        for key in list(islice(self._accounts, _LOOKS)):
            account = self._accounts[key]
            if not account.is_idle(now):
                self._accounts.move_to_end(key)
                continue
            del self._accounts[key]
            if account.is_named:
                self._named.remove(account)
            self._held[account.caller] -= 1
            if not self._held[account.caller]:
                del self._held[account.caller]

    def _overflow_of(self, endpoint: str, caller: str, now: float) -> TenantAccount:
        account = self._overflow.get((endpoint, caller))
        if account is None:
            self._overflow = {key: each for key, each in self._overflow.items() if not each.is_idle(now)}
            account = TenantAccount(endpoint, caller, "", self._others_of(endpoint))
            self._overflow[endpoint, caller] = account
        return account

    def _others_of(self, endpoint: str) -> TenantFigures:
        return self.others.setdefault(endpoint, TenantFigures())


def _shown(rate: float) -> float:
    """A rate decays without end: at some time it is over."""
    return rate if rate >= LEAST_RATE else 0.0


def tenant_limit(account: TenantAccount, refused: Refused, limits: TenantLimits) -> Failure:
    """The failure of calls that a limit of their tenant does not admit."""
    override = f"{OVERRIDES}.{show(account.name)}." if account.name in limits.overrides else ""
    unit = "calls a second" if refused.limit == "max_calls_per_s" else "calls in flight"
    return Failure(
        reason=Reason.TENANT_LIMIT,
        message=(
            f"{account.whose} may have {refused.most:,} {unit} at endpoint {account.endpoint} of each router "
            f"(tenants.{override}{refused.limit}): try again after the retry delay, or have the limit raised"
        ),
        retry_delay_s=refused.retry_delay_s,
        metadata={"endpoint": account.endpoint, "limit": refused.limit, "tenant": account.name},
    )
