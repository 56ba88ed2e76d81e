"""Mutants of a connection of HTTP: which bytes are a request, which request runs, and what is answered."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONNECTION: Final = "ingress_service/core/http1"
SHELL: Final = "ingress_service/shell"
_MODEL: Final = "tests/properties/test_http_connection.py"
_SOCKETS: Final = "tests/contract/ingress/test_connections.py"

_GRAMMAR: Final = (
    mutant(
        "chunks win over a Content-Length beside them",
        CONNECTION,
        "if head.is_chunked and (length is not None or",
        "if head.is_chunked and (False or",
        _MODEL,
    ),
    mutant(
        "the last of two lengths counts",
        CONNECTION,
        "if length is not None:\n                raise",
        "if False:\n                raise",
        _MODEL,
    ),
    mutant("a request has any number of hosts", CONNECTION, "if len(hosts) != 1 and (", "if False and (", _MODEL),
    mutant(
        "any Upgrade is a WebSocket handshake",
        CONNECTION,
        'upgrades == [b"websocket"]\n        and',
        "bool(upgrades)\n        and",
        _MODEL,
    ),
    mutant(
        "a chunk ends where its size does not say",
        CONNECTION,
        'if line != b"\\r\\n":',
        "if False:",
        _MODEL,
    ),
    mutant(
        "the end of a head that was cut in two is not found",
        CONNECTION,
        "data.find(_END, max(at, self._seen - 3))",
        "data.find(_END, max(at, self._seen))",
        _MODEL,
    ),
)

_TURNS: Final = (
    mutant(
        "what is wrong behind a running request is answered first",
        CONNECTION,
        "if broken is not None and broken is self.current:",
        "if self.current is not None:",
        _MODEL,
    ),
    mutant(
        "a request whose body is broken runs all the same",
        CONNECTION,
        "            self._waiting.pop()\n",
        "            pass\n",
        _MODEL,
    ),
    mutant(
        "who leaves leaves the request running",
        CONNECTION,
        "return [CancelRequest(), CloseConnection()] if had_current else [CloseConnection()]",
        "return [CloseConnection()]",
        _MODEL,
    ),
    mutant(
        "an answer before the end of the body keeps the connection",
        CONNECTION,
        "request is not None and request.is_whole and request.head.keeps_alive",
        "request is not None and request.head.keeps_alive",
        _MODEL,
    ),
    mutant(
        "any number of bytes may be sent ahead",
        CONNECTION,
        "if self._ahead_bytes > self._limits.ahead_bytes or len",
        "if len",
        _MODEL,
    ),
    mutant(
        "a closed WebSocket goes on with the messages ahead",
        SHELL,
        "            self._messages.clear()\n            self._event.set()\n            if self._task is not None:",
        "            if False:",
        _SOCKETS,
    ),
    mutant(
        "the end of a client of whom nothing is read is not seen",
        SHELL,
        "if self._pauses and self._has_hung_up():",
        "if False:",
        _SOCKETS,
    ),
)

_REQUESTS: Final = (
    mutant(
        "images of other sites run handlers",
        "ingress_service/core",
        'return runs_nothing and headers.fetch_mode.lower() == b"navigate"',
        "return True",
        "tests/contract/ingress/test_cross_site.py",
    ),
    mutant(
        "a page behind a proxy is one of another site",
        "ingress_service/core",
        "or site in _OWN_SITES",
        "or False",
        "tests/contract/ingress/test_cross_site.py",
    ),
    mutant(
        "compressed bodies are passed on as they came",
        SHELL,
        "return await self._inflated(body, coding) if coding is not None else body",
        "return body",
        "tests/contract/ingress/test_forms.py",
    ),
    mutant(
        "the first of two lines of a header counts",
        "ingress_service/core",
        'b"%b, %b" % (before, value) if before else value)',
        "before or value)",
        "tests/contract/ingress/test_forms.py",
    ),
    mutant(
        "JSON of any charset is read",
        "ingress_service/core",
        """and value.strip().strip(b'"') not in _CHARSETS""",
        "and False",
        "tests/contract/ingress/test_forms.py",
    ),
    mutant(
        "what is no JSON is called a wrong top level",
        "slotmesh/codec",
        "_problem_of(form, payload) or top_level",
        "top_level",
        "tests/unit/codec/test_arguments.py",
    ),
)

HTTP_CONNECTION: Final = (*_GRAMMAR, *_TURNS, *_REQUESTS)
