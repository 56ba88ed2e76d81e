"""Mutants of subsets: which replicas a router links to, when links close, and what is concluded from links."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service/core"
LINKS: Final = "tests/unit/router/replicas/test_replica_links.py"
DIVISION: Final = "tests/unit/router/routing/test_subsets.py"

SUBSETS: Final = (
    mutant(
        "a replica has fewer routers where those with room have it",
        ROUTER,
        "short += [replica] * (copies - len(found))",
        "short += []",
        DIVISION,
    ),
    mutant(
        "a small backend has no more routers than a large one",
        ROUTER,
        "max(even, -(-min(LEAST_LINKS, count) * routers // count))",
        "even",
        DIVISION,
    ),
    mutant(
        "replicas that are linked for their keys get unkeyed calls",
        ROUTER,
        "is_open = self.linked and self.is_member",
        "is_open = self.linked",
        LINKS,
    ),
    mutant(
        "a link closes although its replica has calls",
        ROUTER,
        "bool(replica.inflight or replica.outbox or replica.ops or replica.link_users)",
        "bool(replica.outbox or replica.ops or replica.link_users)",
        LINKS,
    ),
    mutant(
        "a link closes although a session may have calls there",
        ROUTER,
        "bool(replica.inflight or replica.outbox or replica.ops or replica.link_users)",
        "bool(replica.inflight or replica.outbox or replica.ops)",
        LINKS,
    ),
    mutant(
        "replicas that leave the subset get no calls before others are linked",
        ROUTER,
        "self._leaving.setdefault(replica, step.now + LINGER_S)",
        "self._leave(replica)",
        LINKS,
    ),
    mutant(
        "a look-up at a replica without a link fails before it has been tried",
        ROUTER,
        "        if replica is None:\n            self.outcomes.fail_waiting(run, failures.",
        "        if replica is None or not replica.linked:\n            self.outcomes.fail_waiting(run, failures.",
        LINKS,
    ),
    mutant(
        "a link that cannot be established keeps out those that calls need",
        ROUTER,
        "failed = [each for each in self._extra if each.has_failed and",
        "failed = [each for each in self._extra if False and",
        LINKS,
    ),
    mutant(
        "the subset is not widened for a member that drains when it is linked",
        ROUTER,
        "if replica.draining:\n                self._replace(replica, step)",
        "if replica.draining:",
        LINKS,
    ),
    mutant(
        "members that leave the subset stay members",
        ROUTER,
        "self._leave(replica)\n            self._extra[replica]",
        "self._extra[replica]",
        "tests/properties/test_subset_links.py",
    ),
    mutant(
        "that a router with a subset has no link proves the end of a replica",
        "controller_service/core",
        "owner in self.linked or (self.links_subset and owner not in self.unlinked)",
        "owner in self.linked",
        "tests/unit/controller/test_adoption.py tests/unit/controller/test_forgetting.py",
    ),
)
