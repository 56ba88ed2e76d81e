"""`MODULE:NAME` -> the handler. The only place in the mesh that imports users' code.

Invariant: an error in the name is raised with the way out; exceptions of the user's code pass as they are, with their
tracebacks.
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
from slotmesh.foreign import described
from slotmesh.handlers import context as context_module
from slotmesh.handlers import describe
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import DISTRIBUTION

# The code that a replica imports: a snapshot that the controller has taken, or an installed distribution.
#
# Invariants: nothing is imported from a snapshot whose files are not what was applied. On the import path the snapshot
# takes the place of the folder that it was taken of; other entries stay, and so does the working directory.
# Owner: `shell.handler.loading`, once in the life of a process.

_PATHS: dict[str, str] = {}
"""Of the snapshot that is imported from: the beginning of its paths, and that of the same ones in the project."""


def shown_paths(text: str) -> str:
    """A text for the author of the handler: with the paths of the project, and not those of a snapshot."""
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


# A handler's exception as its author reads it: the frames above the author's own code are left out.
#
# Invariant: all below the first frame of the author's stays, also frames of libraries. The log has the others, too.

_ABOVE: Final = (
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (version, importlib, asyncio)),
    "<frozen importlib",
)
"""Prefixes of the names of files that are not the author's: this service, slotmesh, and what calls for them."""


def users_traceback(error: BaseException) -> str:
    """The traceback as Python writes it; the bare exception where the author's code has no part in it.

    Raises nothing: of an exception whose class does as it is written, what can be written is left.
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


# Whether users' code asks for contexts of calls, looked up before the first call.
#
# Purpose: executors keep the place of each call only where users' code asks for contexts. The first question turns that
# on; this module turns it on in time for a first question from a task whose call has ended.
# Invariant: too often yes rather than too often no.

_NAME = re.compile(r"\b(contexts?\b|mesh(_sync)?\()")
_OURS = ("slotmesh", "replica_service")
_WAYS = (context_module.context, context_module.contexts, handler_mesh.mesh, handler_mesh.mesh_sync)


def asks_for_contexts(modules: Iterable[Any] | None = None) -> bool:
    """Whether the source of a module that imports slotmesh has the words `context` or `contexts`, or asks for the mesh.

    Calls that are made by `slotmesh.mesh()` take over what the call has left in which they are made.

    Without `modules` it looks at all modules that were imported.
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
    """Something of slotmesh by which contexts can be had."""
    if issubclass(type(value), ModuleType):  # its own word for its class may be anything
        return str(vars(value).get("__name__")).partition(".")[0] == "slotmesh"
    return any(value is each for each in _WAYS)
