"""What `--describe MODULE:NAME` prints: one JSON object on stdout, and nothing else there."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from replica_service.shell.handler.loading import load_handler
from replica_service.shell.handler.tracebacks import users_traceback
from slotmesh.handlers import HandlerDescription, describe
from slotmesh.handlers.outlines import outline_of
from slotmesh.runtime.exits import CannotStart


def print_description(path: str) -> int:
    """Imports the handler and prints the settings of its decorators; returns the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the answer
            handler = load_handler(path)
            try:
                description = describe(handler)
            except TypeError as error:
                raise CannotStart(f"{path!r}: {error}") from None
            schemas = _schemas(handler, description)
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - the user's own: shown as it is
        sys.stderr.write(users_traceback(error))
        return 1
    document = {"handler": path, **description.as_json()}
    for name, schema in schemas.items():
        document["methods"][name]["schema"] = schema
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


def _schemas(handler: type | Callable[..., Any], description: HandlerDescription) -> dict[str, Any]:
    """JSON Schemas of arguments and results, of methods that have any."""
    found: dict[str, Any] = {}
    for name, method in description.methods.items():
        try:
            function = _bound(handler, name)
            outline = outline_of(name, function, yields=method.kind.yields, is_batch=method.batch is not None)
        except TypeError:
            continue  # the replica says what is wrong with it
        if outline.schema:
            found[name] = json.loads(outline.schema)
    return found


def _bound(handler: type | Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method as of an instance, without one: nothing of users is constructed."""
    if not inspect.isclass(handler):
        return handler
    found = next(vars(base)[name] for base in handler.__mro__ if name in vars(base))
    if isinstance(found, staticmethod | classmethod):
        bound: Callable[..., Any] = getattr(handler, name)
        return bound
    return MethodType(found, handler)
