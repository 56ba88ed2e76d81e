"""Imports a handler by `MODULE:NAME`. The only module that imports users' code.

It also prepares the code that is imported (a snapshot that the controller has taken, or an installed distribution),
writes users' tracebacks without the frames above their code, and detects whether their code uses call contexts.
Invariants: an error in the name is raised with its remedy; exceptions of the user's code pass unchanged, with their
tracebacks. Nothing is imported from a snapshot whose files differ from the applied ones. On the import path the
snapshot replaces the folder that it was taken of; other entries and the working directory stay.
Owner: the replica, once in the life of a process.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from slotmesh import version
from slotmesh.client import handler_mesh
from slotmesh.code_manifest import FILES, MANIFEST, BadManifest, CodeManifest, added_files, content_digest, manifest_of
from slotmesh.handlers import context as context_module
from slotmesh.handlers import describe
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.service_modules import check_services
from slotmesh.spec.model import DISTRIBUTION
from slotmesh.user_code import described

_PATHS: dict[str, str] = {}
"""The prefix of the snapshot's paths, and the prefix of the same paths in the project."""


def shown_paths(text: str) -> str:
    """Replaces a snapshot's paths in the text by the project's, for the author of the handler."""
    for files, root in _PATHS.items():
        text = text.replace(files, root)
    return text


def use_code(code: str) -> None:
    """Has modules imported from it. Raises CannotStart: it is not what was applied."""
    if code.startswith(DISTRIBUTION):
        _require_installed(*code.removeprefix(DISTRIBUTION).split("=="))
        return
    tree = Path(code)
    manifest = _checked(tree)
    files, root = str(tree / FILES), manifest.root
    _PATHS[f"{files}{os.sep}"] = f"{root}{os.sep}"
    sys.path[:] = [files if _leads_to(it, root) else it for it in sys.path]
    if files not in sys.path:
        sys.path.insert(0, files)
    if path := os.environ.get("PYTHONPATH"):  # of what the handler starts
        os.environ["PYTHONPATH"] = os.pathsep.join(
            files if _leads_to(it, root) else it for it in path.split(os.pathsep)
        )
    importlib.invalidate_caches()


def _require_installed(name: str, version: str) -> None:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = "no version"
    if found != version:
        raise CannotStart(
            f"this backend runs {name} {version}, but {found} of it is installed: install {name}=={version}, or apply "
            "the mesh again to run what is installed"
        )


def _checked(tree: Path) -> CodeManifest:
    try:
        manifest = manifest_of((tree / MANIFEST).read_text("utf-8"))
    except (OSError, BadManifest) as error:
        raise CannotStart(f"{tree}: is no snapshot of code: {error}; apply the mesh again") from error
    if manifest.digest != tree.name:
        raise CannotStart(f"{tree}: has the manifest of snapshot {manifest.digest}; apply the mesh again")
    changed = [*_changed(tree / FILES, manifest)]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise CannotStart(
            f"{tree}: {', '.join(changed[:3])}{more} changed since this version was applied, so it does not start. A "
            "handler must not write to its own files; apply the mesh again to restore them"
        )
    added = [*added_files(str(tree / FILES), manifest)]
    if added:
        more = f" and {len(added) - 3} more" if len(added) > 3 else ""
        raise CannotStart(
            f"{tree}: {', '.join(added[:3])}{more} came to the code since this version was applied, so it does not "
            "start: it might be imported in place of another module. A handler must not write beside its code; apply "
            "the mesh again to restore it"
        )
    return manifest


def _changed(files: Path, manifest: CodeManifest) -> Iterator[str]:
    for it in manifest.files:
        try:
            with open(f"{files}/{it.path}", "rb") as file:  # noqa: PTH123 - thousands of them
                content = file.read()
        except OSError:
            yield it.path
            continue
        if len(content) != it.size or content_digest(content) != it.content:
            yield it.path


def _leads_to(entry: str, root: str) -> bool:
    """Whether an entry of the import path is this folder."""
    return os.path.realpath(entry or os.curdir) == os.path.realpath(root)


Handler = type | Callable[..., Any]
LoadHandler = Callable[[str], Handler]
"""From the name of a handler to the class or function."""


def load_handler(path: str, code: str | None = None) -> Handler:
    """Imports the module and returns the class or function.

    `code`: what it is imported from, the folder of a snapshot or an installed distribution; None: what is found.

    Raises: CannotStart: there is no such handler, or not this code, or a module beside it has the name of a service;
    the message has the remedy.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name or name.startswith("."):
        raise CannotStart(f"{path!r} is no handler: it is written MODULE:NAME, as in examples.digits.app:Digits")
    here = str(Path.cwd())
    if code is not None:
        use_code(code)
    elif here not in sys.path:
        sys.path.insert(0, here)
    check_services(sys.path)
    if not _exists(module_name):
        meant = _module_of_file(module_name)
        raise CannotStart(
            f"{path!r}: there is no module {module_name}; "
            + (
                f"did you mean {meant}:{name}?"
                if meant
                else f"run in the folder that has it (now in {here}), or install it"
            )
        )
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotStart(f"{path!r}: {module_name} has no {name}; {_offers(found, module_name)}")
        if inspect.isclass(found) and inspect.isfunction(inspect.getattr_static(found, part)):
            of_class = f"{module_name}:{found.__qualname__}"
            raise CannotStart(f"{path!r} is a method of a class: write {of_class}, all of whose methods are served")
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


_ABOVE: Final = (
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (version, importlib, asyncio)),
    "<frozen importlib",
)
"""Path prefixes of files that are not the author's: this service, slotmesh, and the library code that calls them."""


def users_traceback(error: BaseException) -> str:
    """Returns the traceback without the frames above the first of the author's code; later library frames stay.

    If the author's code has no frame, returns only the exception. Never raises: if formatting the exception fails,
    returns the description that is possible.
    """
    try:
        return _written(error)
    except BaseException:  # noqa: BLE001 - the class may raise anything
        return f"{described(error)}\n"


def _written(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error)
    pending = [shown]
    while pending:
        each = pending.pop()
        stack = each.stack
        above = next((at for at, frame in enumerate(stack or ()) if not frame.filename.startswith(_ABOVE)), None)
        if above is None:
            each.stack = None  # type: ignore[assignment]  # as of an exception that was never raised: no heading
        else:
            del stack[:above]
        others = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
        pending += [other for other in others if other is not None]
    return shown_paths("".join(shown.format()))


_NAME = re.compile(r"\b(contexts?\b|mesh(_sync)?\()")
_OURS = ("slotmesh", "replica_service")
_WAYS = (context_module.context, context_module.contexts, handler_mesh.mesh, handler_mesh.mesh_sync)


def asks_for_contexts(modules: Iterable[Any] | None = None) -> bool:
    """Whether the source of a module that imports slotmesh has the words `context` or `contexts`, or calls `mesh()`.

    Executors keep the place of each call only if users' code uses contexts. The first use enables that; this check
    enables it before the first call, for a first use in a task whose call has ended. It may be true without a use,
    rarely false with one. `mesh()` counts because calls through it inherit the deadline of the current call.

    `modules` None: all imported modules.
    """
    if modules is None:
        modules = list(sys.modules.values())
    return any(_may_ask(module) for module in modules if isinstance(module, ModuleType))


def _may_ask(module: ModuleType) -> bool:
    if module.__name__.partition(".")[0] in _OURS:
        return False
    if not any(_is_ours(value) for value in list(vars(module).values())):
        return False
    try:
        source = Path(getattr(module, "__file__", None) or "").read_text("utf-8")
    except (OSError, ValueError):
        return True  # unknown
    return _NAME.search(source) is not None


def _is_ours(value: Any) -> bool:
    """Whether the value is slotmesh itself, or a function of it that gives access to contexts."""
    if issubclass(type(value), ModuleType):  # `__class__` of a foreign object may be anything
        return str(vars(value).get("__name__")).partition(".")[0] == "slotmesh"
    return any(value is each for each in _WAYS)
