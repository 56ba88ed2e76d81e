"""Mutants of edges: servers that start and stop, local sockets, HTTPS, small findings of commands and stored state."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_HANDSHAKES: Final = "tests/contract/ingress/test_https_handshakes.py"

_HTTPS: Final = (
    mutant(
        "a failed handshake of HTTPS is not reported",
        "ingress_service",
        "        except OSError as error:  # ssl.SSLError is one\n            self._shared.failed(self._peer, error)\n",
        "        except OSError:\n",
        _HANDSHAKES,
    ),
    mutant(
        "a silent connection of HTTPS has any time",
        "ingress_service",
        "self._silence = self._loop.call_at(self._deadline, self._is_silent)",
        "pass",
        _HANDSHAKES,
    ),
    mutant(
        "a handshake of HTTPS has the time of the event loop",
        "ingress_service",
        "ssl_handshake_timeout=max(_LEAST_S, self._deadline - self._loop.time())",
        "ssl_handshake_timeout=None",
        _HANDSHAKES,
    ),
    mutant(
        "handshakes of HTTPS have no bound",
        "ingress_service",
        "if not self._shared.bound.take(self._host):",
        "if False:",
        _HANDSHAKES,
    ),
    mutant(
        "the place of an ended handshake of HTTPS is not given back",
        "ingress_service",
        "            self._shared.bound.give(self._host)\n",
        "            pass\n",
        _HANDSHAKES,
    ),
    mutant(
        "what arrives with the end of a handshake of HTTPS is lost",
        "ingress_service",
        "        for event in self._events:\n            event(protocol)\n",
        "",
        _HANDSHAKES,
    ),
    mutant(
        "the first bytes of a handshake of HTTPS may come behind later ones",
        "ingress_service",
        "self._loop.call_soon(self._loop.call_soon, self._begin_with, data)",
        "self._loop.call_later(0.05, self._begin_with, data)",
        _HANDSHAKES,
    ),
    mutant(
        "a stop of HTTPS waits for handshakes",
        "ingress_service",
        "            self._handshakes.stop()\n",
        "            pass\n",
        _HANDSHAKES,
    ),
)

_STATE: Final = (
    mutant(
        "a table that was cut is a whole one",
        "controller_service/shell",
        "        if is_open:\n            text =",
        "        if False:\n            text =",
        "tests/contract/router/test_hellos.py",
    ),
    mutant(
        "parts without a first one are a table",
        "controller_service/shell",
        "            elif not is_open:\n",
        "            elif False:\n",
        "tests/contract/router/test_hellos.py",
    ),
    mutant(
        "a stored file is whole by its size and time",
        "controller_service/shell/code",
        "(_is_unpacked(tree, manifest) and _has_contents(tree, manifest))",
        "_is_unpacked(tree, manifest)",
        "tests/unit/controller/code/test_damage.py",
    ),
    mutant(
        "a damaged file of another snapshot is linked to",
        "controller_service/shell/code",
        "            if file.read() != data:\n",
        "            if False:\n",
        "tests/unit/controller/code/test_damage.py",
    ),
    mutant(
        "the manifest of other links is not synced",
        "controller_service/shell/code",
        "    new.replace(tree / MANIFEST)\n    sync(tree)\n",
        "    new.replace(tree / MANIFEST)\n",
        "tests/unit/controller/code/test_damage.py",
    ),
)

_ABSENT: Final = "tests/unit/controller/code/test_absent_modules.py"

_COMMANDS: Final = (
    mutant(
        "a handler whose module is absent is applied",
        "controller_service/shell/code",
        "if problem := absence_of(handler, path):",
        "if problem := '':",
        _ABSENT,
    ),
    mutant(
        "what was installed since the controller started is absent",
        "controller_service/shell/code",
        "return looked.returncode != _ABSENT",
        "return False",
        _ABSENT,
    ),
    mutant(
        "a backend whose module has gone loses its snapshot",
        "controller_service/core",
        "if found is None or found.is_absent:",
        "if found is None:",
        _ABSENT,
    ),
    mutant(
        "a package without a file inside a package has no root",
        "controller_service/shell/code",
        "return _without_a_file(name, places)",
        "return None",
        _ABSENT,
    ),
    mutant(
        "one view prints all",
        "slotmesh/cli/top",
        "    for view in views:\n",
        "    for view in VIEWS:\n",
        "tests/unit/cli/top/test_screen.py",
    ),
    mutant(
        "a stream that is cut after some values broke before it answered",
        "router_service/core",
        'when = "after the handler had begun, before the call had ended" if has_begun else',
        'when = "before it answered" if has_begun else',
        "tests/contract/router/test_streaming.py",
    ),
    mutant(
        "a call with a value that fails may have been executed",
        "router_service/core",
        "executed = replace(failure, executed=Executed.YES)",
        "executed = failure",
        "tests/unit/router/features/test_streaming_calls.py",
    ),
    mutant(
        "a call whose handler takes requests may not have been executed",
        "router_service/core",
        "                sent.note_begun(offset)\n                step.commands",
        "                step.commands",
        "tests/unit/router/features/test_streaming_calls.py",
    ),
    mutant(
        "a client with a value in hand does not know that the call was executed",
        "slotmesh/client",
        "self._failure = _after_values(failure) if self.call_id else failure",
        "self._failure = failure",
        "tests/contract/client/test_streaming.py",
    ),
)

_FIELD_PATHS: Final = "tests/contract/mesh/test_field_paths.py"

_FIELDS: Final = (
    mutant(
        "BadRequest names the place of a document",
        "controller_service/convert",
        "fields = [(request_path(request, violation.path), violation.message) for violation in shown]",
        "fields = [(violation.path, violation.message) for violation in shown]",
        _FIELD_PATHS,
    ),
    mutant(
        "BadRequest names the first backend",
        "slotmesh/convert",
        'f"{prefix}[{named[name]}]"',
        'f"{prefix}[0]"',
        "tests/unit/spec/test_request_paths.py",
    ),
    mutant(
        "BadRequest names no field of a route for its path",
        "slotmesh/convert",
        '("" if is_name(resource.name) else "name")',
        '""',
        "tests/unit/spec/test_request_paths.py",
    ),
    mutant(
        "a guard without its limit is accepted",
        "controller_service/convert",
        'elif guard.WhichOneof("limit") != limit:',
        "elif False:",
        "tests/contract/mesh/test_required_fields.py",
    ),
    mutant(
        "a mask has fields that only responses have",
        "controller_service/convert",
        "if it.name not in _IDENTITY and not _is_output(it)]",
        "if it.name not in _IDENTITY]",
        "tests/contract/controller/test_changes.py",
    ),
    mutant(
        "BadRequest of an inference names the fields of the call",
        "router_service/convert",
        "return at_field(failure, request_path(wire, _FIELDS.get(field, field)))",
        "return failure",
        _FIELD_PATHS,
    ),
    mutant(
        "the bounds of a request name a field inside of a repeated one",
        "slotmesh/streams",
        'return "" if self.place == _WHOLE else self.place.partition("[]")[0]',
        'return self.place.replace("[]", "")',
        "tests/contract/server/test_request_bounds.py",
    ),
    mutant(
        "BadRequest names the payload where arguments were sent",
        "slotmesh/server",
        'return at_field(failure, "arguments") if is_json else failure',
        "return failure",
        "tests/contract/mesh/test_json_values.py",
    ),
)

_STOPS: Final = (
    mutant(
        "a server that many rpcs reach as it stops waits for one more",
        "slotmesh/grpc_internals",
        "                self._refuse(rpc)\n                rpc = await self._request()\n",
        "                self._refuse(rpc)\n                return\n",
        "tests/unit/runtime/test_accept_ahead.py",
    ),
    mutant(
        "a server requests few rpcs of a method at a time, however many arrive",
        "slotmesh/grpc_internals",
        "if self._requested[method] < MOST_OF_METHOD:",
        "if self._requested[method] < FIRST_OF_METHOD:",
        "tests/contract/server/test_accepting.py",
    ),
    mutant(
        "a router stops while single calls still arrive",
        "router_service",
        "turns + 1 if refused == self._unary.refused else 0",
        "turns + 1",
        "tests/contract/router/test_shutdown.py",
    ),
)

_LOCAL_SOCKETS: Final = (
    mutant(
        "a client uses the local socket of another server that has the same incarnation",
        "slotmesh/transport",
        'return f"slotmesh-{incarnation}-{port}"',
        'return f"slotmesh-{incarnation}"',
        "tests/contract/server/test_local_sockets.py",
    ),
    mutant(
        "a process of another user gets calls by the name of a replica's local socket",
        "slotmesh/transport",
        "in {_ROOT, os.geteuid()} and",
        "is not None and",
        "tests/contract/server/test_local_sockets.py",
    ),
    mutant(
        "a process of a router's machine gets the calls of a replica elsewhere",
        "slotmesh/transport",
        " and _is_own(host)",
        "",
        "tests/contract/server/test_local_sockets.py",
    ),
    mutant(
        "routers pass by the proxy that a replica advertises",
        "replica_service",
        "if settings.advertise is None:",
        "if self._settings:",
        "tests/contract/server/test_local_sockets.py",
    ),
)

EDGES: Final = (*_LOCAL_SOCKETS, *_STOPS, *_HTTPS, *_STATE, *_COMMANDS, *_FIELDS)
