"""`MODULE:NAME` -> the handler. The only place in the mesh that imports users' code.

Invariant: an error in the name is raised with the way out; exceptions of the user's code pass as they are, with their
tracebacks.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from replica_service.shell.handler.code import use_code
from slotmesh.handlers import describe
from slotmesh.runtime.exits import CannotStart

Handler = type | Callable[..., Any]
LoadHandler = Callable[[str], Handler]
"""From the name of a handler to the class or function."""


def load_handler(path: str, code: str | None = None) -> Handler:
    """Imports the module and returns the class or function.

    `code`: what it is imported from, the folder of a snapshot or an installed distribution; None: what is found.

    Raises: CannotStart: there is no such handler, or not this code; the message says what to do.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name or name.startswith("."):
        raise CannotStart(f"{path!r} is no handler: it is written MODULE:NAME, as in examples.digits.app:Digits")
    here = str(Path.cwd())
    if code is not None:
        use_code(code)
    elif here not in sys.path:
        sys.path.insert(0, here)
    if not _exists(module_name):
        meant = _module_of_file(module_name)
        raise CannotStart(
            f"{path!r}: there is no module {module_name}; "
            + (f"did you mean {meant}:{name}?" if meant else f"start where it lies (now in {here}), or install it")
        )
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotStart(f"{path!r}: {module_name} has no {name}; {_offers(found, module_name)}")
        found = getattr(found, part)
    if not inspect.isclass(found) and not inspect.isfunction(found):
        raise CannotStart(f"{path!r} is {found!r}; a handler is a class or a function")
    return found


def construct(handler: Handler, user_config: dict[str, Any]) -> Any:
    """The handler, ready to be called: an instance of a class, a function as it is.

    Raises: Exception: what the constructor raises.
    """
    if inspect.isclass(handler):
        try:
            return handler(**deepcopy(user_config))  # its own, to keep and to change
        except TypeError as error:
            inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if inside or "argument" not in str(error):
                raise
            given = ", ".join(user_config) or "nothing"
            raise TypeError(f"{error}; its arguments come from user_config, which has {given}") from None
    if user_config:
        names = ", ".join(user_config)
        raise TypeError(f"user_config ({names}) goes to a constructor; {handler.__qualname__} is a function")
    return handler


def _exists(module_name: str) -> bool:
    """Whether the module is there. Its packages are imported on the way; what they raise passes."""
    parts = module_name.split(".")
    for end in range(1, len(parts) + 1):
        try:
            if find_spec(".".join(parts[:end])) is None:
                return False
        except (ImportError, ValueError) as error:
            # Not a package, or a name like `a..b`; an import that fails inside of one is the user's to see.
            if isinstance(error, ModuleNotFoundError) and error.name not in {".".join(parts[:end]), None}:
                if "is not a package" in str(error):
                    return False
                raise
            return False
    return True


def _module_of_file(name: str) -> str:
    """The module that a path like `app/text.py` means. Empty where it is none, or there is no such module."""
    file = name.removeprefix("./").replace("\\", "/")
    module = file.removesuffix(".py").replace("/", ".")
    return module if module != name and not module.startswith(".") and _exists(module) else ""


def _offers(module: Any, module_name: str) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module_name
        and _can_be_called(value)
    ]
    return f"it has {', '.join(sorted(names))}" if names else "it has no class or function of its own"


def _can_be_called(value: Handler) -> bool:
    try:
        describe(value)
    except TypeError:
        return False
    return True
