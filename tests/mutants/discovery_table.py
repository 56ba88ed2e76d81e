"""Mutants of how servers are found: lookups that fail, when names are resolved again, and who is spread over whom."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_PURE: Final = "slotmesh/discovery"
_CLIENT: Final = "slotmesh/client"
_NAMES: Final = "tests/properties/test_resolved_names.py"
_SPREADING: Final = "tests/unit/client/test_spreading.py"

_LOOKUPS: Final = "slotmesh/transport"
_SERVERS: Final = "tests/unit/discovery/test_server_addresses.py"

DISCOVERY: Final = (
    mutant(
        "a DNS server that has no answer for IPv6 addresses hides the others",
        _LOOKUPS,
        "if errors and not found:",
        "if errors:",
        _SERVERS,
    ),
    mutant(
        "a lookup that finds nothing empties the list",
        _PURE,
        '            self.failed(name, "it has no addresses", now)\n',
        '            self._names[name].addresses = ()\n            self.failed(name, "it has no addresses", now)\n',
        _NAMES,
    ),
    mutant(
        "names are resolved on request without a pause",
        _PURE,
        "(soonest := max(now, it.earliest)) < it.due",
        "(soonest := now) < it.due",
        _NAMES,
    ),
    mutant(
        "a name whose lookup failed waits for the next refresh",
        _PURE,
        "self.due = self.earliest if wait_s == 0 else",
        "self.due = now + REFRESH_S * jitter if wait_s == 0 else",
        _NAMES,
    ),
    mutant(
        "all streams of names begin at the same router",
        _CLIENT,
        "next(self._searches)",
        "0",
        _SPREADING,
    ),
    mutant(
        "a router that leaves gets new streams in its turn",
        _CLIENT,
        "return sorted(few[at:] + few[:at], key=self._is_leaving)",
        "return few[at:] + few[:at]",
        _SPREADING,
    ),
    mutant(
        "members do not resolve names again when no controller leads",
        "slotmesh/transport",
        "        self.search.failed()\n        self._addresses.request()\n",
        "        self.search.failed()\n",
        "tests/contract/mesh/test_discovery.py",
    ),
    mutant(
        "servers of a name are verified by their IP address",
        "slotmesh/runtime",
        '            options.append(("grpc.ssl_target_name_override", host or named))\n',
        "            pass\n",
        "tests/contract/client/test_tokens.py",
    ),
    mutant(
        "a single call that a router refuses as it ends fails",
        _CLIENT,
        "_ELSEWHERE: Final = frozenset({Reason.ROUTER_LOST, Reason.DRAINING})",
        "_ELSEWHERE: Final = frozenset[Reason]()",
        "tests/contract/client/test_found_by_name.py",
    ),
)
