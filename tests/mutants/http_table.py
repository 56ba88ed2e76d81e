"""Mutants of what an ingress gives whom: shares of its bounds, and what handlers and clients are told of each other."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

INGRESS: Final = "ingress_service"
SECURITY: Final = "slotmesh/security"
_FLOODS: Final = "tests/contract/ingress/test_floods.py"

_UPLOADS: Final = (
    mutant(
        "a body of bytes goes unread to a method whose result is none",
        INGRESS,
        "return forms if method.yields or not is_first or _is_no_bytes(method) else _PLAIN",
        "return _PLAIN",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "a body of bytes is another argument than the one that is annotated as bytes",
        INGRESS,
        "is_first = name == method.first_argument",
        "is_first = True",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "what is not known of a method changes the form of its call",
        INGRESS,
        "    if name is None:\n        return _PLAIN",
        "    if name is None:\n        return forms",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "bytes alone are accepted of a method that returns none, and it runs",
        INGRESS,
        "if forms.call == OCTETS and _is_no_bytes(method):",
        "if False:",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "large text is cut in escapes",
        INGRESS,
        "last = backslashes + (last - backslashes) // 2 * 2",
        "last = backslashes + (last - backslashes)",
        "tests/unit/ingress/test_raw_results.py",
    ),
    mutant(
        "a request is read without its method while no replica is connected",
        INGRESS,
        "        self.described.forget(caller, found.endpoint)\n",
        "",
        "tests/contract/ingress/test_unknown_methods.py",
    ),
    mutant(
        "an inference is refused for the method that no replica had named",
        INGRESS,
        "                if method == before:\n                    raise\n",
        "                raise\n",
        "tests/contract/ingress/test_unknown_methods.py",
    ),
    mutant(
        "what a body is converted to is not counted beside it",
        INGRESS,
        "        held.hold_beside(upload_bytes(forms.call, len(body), most))\n",
        "",
        "tests/contract/ingress/test_floods.py",
    ),
    mutant(
        "a body is counted as long as what it was converted to",
        INGRESS,
        "        held.become(len(payload))\n",
        "",
        "tests/contract/ingress/test_floods.py",
    ),
    mutant(
        "a wildcard stands for a form that is not accepted",
        INGRESS,
        "if form != OCTETS and form not in refused:",
        "if form != OCTETS:",
        "tests/unit/ingress/test_media.py",
    ),
    mutant(
        "a body is put in place of an argument that the query gives",
        INGRESS,
        'if name != "$defs" and name not in given and any(',
        'if name != "$defs" and any(',
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "the base64 of a large body is made at once",
        INGRESS,
        "for at in range(0, len(body), STEP_BYTES):",
        "for at in range(0, len(body), len(body) or 1):",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "a body counts without its base64",
        INGRESS,
        "payload = -(-size // 3) * 4 if form == JSON else size",
        "payload = size",
        "tests/unit/ingress/test_uploads.py",
    ),
    mutant(
        "bytes without a Content-Type are taken for JSON",
        INGRESS,
        "if not headers.content_type:\n            check_untyped(payload)",
        "if False:\n            check_untyped(payload)",
        "tests/contract/ingress/test_forms.py",
    ),
)

_SHARES: Final = (
    mutant(
        "unfinished messages of WebSockets do not count",
        INGRESS,
        "self._held.become(self._ahead_bytes + len(self._parts) + len(self._conn.reader.buffer))",
        "self._held.become(self._ahead_bytes + len(self._parts))",
        "tests/contract/ingress/test_floods.py",
    ),
    mutant(
        "messages of WebSockets that wait behind a call do not count",
        INGRESS,
        "self._held.become(self._ahead_bytes + len(self._parts) + len(self._conn.reader.buffer))",
        "self._held.become(len(self._parts) + len(self._conn.reader.buffer))",
        "tests/contract/ingress/test_floods.py",
    ),
    mutant(
        "one holder can take all of a bound that many share",
        "slotmesh/calls",
        "if has_share and held > self.share and held - amount > own:",
        "if False:",
        "tests/unit/security/test_fair_bound.py",
    ),
    mutant(
        "newcomers find no reserve of a bound that many share",
        "slotmesh/calls",
        "room = self.most + self.reserve if held <= self.floor else self.most",
        "room = self.most",
        "tests/unit/security/test_fair_bound.py",
    ),
    mutant(
        "a request counts under what its client says of itself",
        INGRESS,
        "if value and self.is_proxy(host):",
        "if value:",
        "tests/unit/ingress/test_peers.py",
    ),
    mutant(
        "small calls wait behind large ones",
        INGRESS,
        "whose = (who, size >= LARGE_BYTES)",
        "whose = (who, False)",
        "tests/unit/ingress/test_stream_choice.py",
    ),
    mutant(
        "calls of one key travel on several streams",
        INGRESS,
        "stream = self._lightest(own) if keyed is None else keyed[0]",
        "stream = self._lightest(own)",
        "tests/unit/ingress/test_stream_choice.py",
    ),
    mutant(
        "a token that routers refuse is taken for a good one",
        INGRESS,
        "if error.reason is Reason.UNAUTHENTICATED:  # of an rpc that the client has not called",
        "if False:",
        _FLOODS,
    ),
    mutant(
        "connections that became WebSockets count for ever",
        INGRESS,
        "        self.shared.forget(self)\n",
        "",
        _FLOODS,
    ),
)

_REQUESTS: Final = (
    mutant(
        "what is no id of a request stands in a header",
        INGRESS,
        'return text if is_request_id(text) else ""',
        "return text",
        "tests/contract/ingress/test_request_ids.py",
    ),
    mutant(
        "a path that there is not has other methods",
        INGRESS,
        "if not await self._mesh.described.has(caller, found.endpoint, found.method):",
        "if False:",
        "tests/contract/ingress/test_request_ids.py",
    ),
    mutant(
        "whoever has a token sees metrics",
        INGRESS,
        "        if self._is_open:\n            return",
        "        if True:\n            return",
        "tests/contract/ingress/test_security.py",
    ),
)

_HEADS: Final = (
    mutant(
        "a handler's header can end its line",
        "slotmesh/calls",
        '_VALUE: Final = re.compile(r"[\\t\\x20-\\x7e\\x80-\\xff]*")',
        '_VALUE: Final = re.compile(r"(?s).*")',
        "tests/contract/ingress/test_http_context.py",
    ),
    mutant(
        "status and headers can be set when the answer has begun",
        "replica_service",
        "if run_id in self._begun:",
        "if False:",
        "tests/contract/ingress/test_http_context.py",
    ),
    mutant(
        "a router's span takes the place of a call's HTTP request",
        "router_service",
        "context = context._replace(http=parent.http)",
        "pass",
        "tests/contract/ingress/test_http_context.py",
    ),
    mutant(
        "a handler's JSON is taken out of its form",
        INGRESS,
        'form != OCTETS and not own.endswith((b"/json", b"+json", b"msgpack"))',
        "form != OCTETS",
        "tests/unit/ingress/test_raw_results.py",
    ),
    mutant(
        "what may be bytes or a text is taken for bytes",
        INGRESS,
        "if kinds and all(map(is_bytes, kinds)):",
        "if any(map(is_bytes, kinds)):",
        "tests/unit/ingress/test_raw_results.py",
    ),
    mutant(
        "an answer without a body has one",
        INGRESS,
        "return self.status not in BODILESS",
        "return True",
        "tests/contract/ingress/test_http_context.py",
    ),
)

HTTP: Final = (*_UPLOADS, *_SHARES, *_REQUESTS, *_HEADS)
