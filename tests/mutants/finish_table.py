"""Mutants of what calls leave behind, of bounds and of shares."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

PAYLOADS: Final = "tests/unit/replica/test_payloads_of_ended_calls.py"

FINISH: Final = (
    mutant(
        "a run keeps its payloads when its last call has ended",
        "replica_service/core",
        "            self.payloads, self.weighed = (), None\n",
        "            pass\n",
        PAYLOADS,
    ),
    mutant(
        "a context that a call leaves behind keeps the results of its step",
        "replica_service/shell/handler",
        "        self.values = range(len(self.values))\n",
        "",
        PAYLOADS,
    ),
    mutant(
        "a thread that sleeps keeps its last call",
        "replica_service/shell/executors",
        "            del taken, work  # a sleeping thread must not keep a call alive\n",
        "",
        PAYLOADS,
    ),
    mutant(
        "calls that belong to a run that was split off are still counted as the run's",
        "replica_service/core",
        "        self.ended(hi - lo)\n        return part",
        "        return part",
        "tests/properties/test_replica_scheduler.py",
    ),
    mutant(
        "parts of a router's table are not counted",
        "controller_service/shell",
        "        account.parts += 1\n",
        "",
        "tests/contract/router/test_hellos.py",
    ),
    mutant(
        "a table that a router has brought is not counted until it is learnt from",
        "controller_service/shell",
        "known = self._reading + sum(self._waiting_bytes.values())",
        "known = self._reading",
        "tests/contract/router/test_hellos.py",
    ),
    mutant(
        "the bytes of a stream that has ended before its hello are kept in the count",
        "controller_service/shell",
        "            self._reading -= account.size\n",
        "            pass\n",
        "tests/contract/router/test_hellos.py",
    ),
    mutant(
        "a replica's memory of epochs grows with the endpoints that there have been",
        "replica_service/core",
        "while self._count > self._max_floors and len(self._floors) > 1:",
        "while False:",
        "tests/unit/replica/test_ownership.py",
    ),
    mutant(
        "of an endpoint that stands twice in a report of emptied partitions only the last part counts",
        "controller_service/convert",
        "found.setdefault(each.endpoint, {}).update(",
        "found.__setitem__(each.endpoint, dict[int, int]()) or found[each.endpoint].update(",
        "tests/contract/controller/test_handover.py",
    ),
    mutant(
        "each order to give up partitions travels by itself",
        "controller_service/shell",
        "PARTITIONS_AN_ORDER: Final = 8_192",
        "PARTITIONS_AN_ORDER: Final = 2_048",
        "tests/contract/controller/test_handover.py",
    ),
    mutant(
        "a router keeps state of endpoints that no call has used",
        "router_service/core/routing",
        "        for endpoint in self.endpoints.values():\n            route = table.endpoints[endpoint.name]",
        "        for endpoint in [each for name in table.endpoints if (each := self.endpoint(name))]:\n"
        "            route = table.endpoints[endpoint.name]",
        "tests/unit/router/routing/test_unused_endpoints.py",
    ),
    mutant(
        "an error in a body is answered under another X-Request-ID than that of its request",
        "ingress_service/core/http1",
        "self._problem = answer if broken is None else AnswerProblem(answer.problem, broken.head.headers)",
        "self._problem = answer",
        "tests/unit/ingress/test_ids_of_answers.py",
    ),
    mutant(
        "a head that is refused loses its X-Request-ID",
        "ingress_service/core/http1",
        "        error.headers = headers\n",
        "        pass\n",
        "tests/unit/ingress/test_ids_of_answers.py",
    ),
    mutant(
        "any number of empty lines before a request is ignored",
        "ingress_service/core/http1",
        "                self._skips = False\n",
        "",
        "tests/properties/test_http_connection.py tests/unit/ingress",
    ),
    mutant(
        "an empty line that is held is lost when a request follows in a packet",
        "ingress_service/core/http1",
        "        if self._at < len(self._bytes):\n            return None\n",
        "",
        "tests/unit/ingress/test_ids_of_answers.py tests/properties/test_http_connection.py",
    ),
    mutant(
        "a call of a lane passes one that was woken in this turn of the loop",
        "slotmesh/client",
        "        place = self._feeds.join(queue)\n        try:\n            await place.turn\n",
        "        place = self._feeds.join(queue)\n        try:\n",
        "tests/contract/client/test_lane_order.py",
    ),
    mutant(
        "a tenant whose share was dropped gets a second one",
        "slotmesh/client",
        "self._dropped.pop(tenant, None) or BufferShare(self.buffer)",
        "BufferShare(self.buffer)",
        "tests/unit/client/test_buffer_shares.py",
    ),
    mutant(
        "a holder may add one more than a dynamic threshold allows",
        "slotmesh/calls",
        "return (self.times * free - self.per * held) // (self.times + self.per)",
        "return (self.times * free - self.per * held) // (self.times + self.per) + 1",
        "tests/properties/test_thresholds.py",
    ),
    mutant(
        "a method that chooses by the type of its argument is served with self as a parameter",
        "slotmesh/handlers",
        "if isinstance(function, singledispatchmethod):",
        "if False:",
        "tests/unit/handlers/test_dispatch.py",
    ),
    mutant(
        "a key of JSON that is no text is explained as something else",
        "slotmesh/codec",
        "if type(value) in _NO_KEYS:",
        "if False:",
        "tests/unit/codec/test_json_keys.py",
    ),
    mutant(
        "a large answer is written, and encrypted, in one step of the loop",
        "ingress_service/shell",
        "PIECE_BYTES: Final = 128 * 1024",
        "PIECE_BYTES: Final = 1024**3",
        "tests/unit/ingress/test_answers_in_pieces.py",
    ),
    mutant(
        "inferences by gRPC have no tenant",
        "router_service/shell",
        "        setattr(wire, name, value)\n",
        "",
        "tests/contract/mesh/test_tenants.py",
    ),
)
