"""Snapshots of handlers' code: taken of the files of a project, kept in a folder, and removed when nothing needs them.

Purpose: what runs under a version is what was applied under it, also after a restart and after a roll-back.
Invariants: what is still needed is an argument of each collection; a snapshot that was taken or applied less than
`SETTLE_S` ago stays in any case, as its change may not be committed yet.
Owner: the configurator takes them, the launcher reads them. Methods block: call them in a thread.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller_service.config import ControllerSettings
from controller_service.core.desired.handler_code import CodeChange, HandlerCode, HandlerKey
from controller_service.shell.code.names import doubt_about
from controller_service.shell.code.project_files import CannotSnapshot, ProjectScanner, ids_of
from controller_service.shell.code.roots import FileId, HandlerRoot, absence_of, import_path_of, root_of
from controller_service.shell.code.storage import CodeStorage
from controller_service.shell.code.writing import CodeChanged
from controller_service.shell.launchers.launched_processes import code_directory
from slotmesh.code_manifest import CodeManifest, content_digest
from slotmesh.logs import get_logger
from slotmesh.spec.model import CODE, DISTRIBUTION, Backend

SETTLE_S: Final = 300.0
"""How long a snapshot is kept although nothing needs it, since it was taken or applied last."""
_VERSION_CHARS: Final = 12
_SEARCHES: Final = 16
MOST_NAMED: Final = 20
"""Files of each kind that a change names."""

_log = get_logger(__name__)


class CodeSnapshots:
    """The snapshots of one controller."""

    def __init__(
        self, directory: Callable[[], Path], *, max_bytes: int, max_files: int, own: Collection[Path] = ()
    ) -> None:
        """`directory`: where they are kept. `own`: other files and folders of the controller, part of no snapshot."""
        self._lock = threading.Lock()
        self._storage = CodeStorage(directory, self._lock)
        self._scanner = ProjectScanner(max_bytes=max_bytes, max_files=max_files, own=own)
        self._scanned: dict[str, CodeManifest] = {}
        """Manifests by digest: all that one of the newest `_SEARCHES` calls of `versions_of` has found."""
        self._searches: deque[set[str]] = deque(maxlen=_SEARCHES)
        """What each of these calls has found, the newest last."""

    def versions_of(
        self, handlers: Collection[HandlerKey], secrets: Mapping[Path, str] | None = None
    ) -> dict[HandlerKey, HandlerCode]:
        """What the code of handlers is now, or that their modules are absent. Nothing is kept.

        `secrets`: files that no snapshot may have a copy of, and the settings that name them.
        What is installed in another interpreter is not looked at: such handlers have no code here.
        """
        ids = ids_of(secrets or {})  # without the lock: a file system that hangs holds up no start
        with self._lock:
            self._searches.append(set())
            by_root: dict[Path, HandlerCode] = {}
            found: dict[HandlerKey, HandlerCode] = {}
            for key in handlers:
                handler, path = key if isinstance(key, str) else key.handler, import_path_of(key)
                if (root := root_of(handler, path)) is None:
                    if problem := absence_of(handler, path):
                        found[key] = HandlerCode(problem=problem, is_absent=True)
                    continue
                if root.is_installed:
                    found[key] = _installed(root)
                elif root.is_wide:
                    found[key] = self._version_of(root, ids)
                else:
                    if root.path not in by_root:
                        by_root[root.path] = self._version_of(root, ids)
                    found[key] = by_root[root.path]
                if doubt := _doubt_about(root, handler):
                    found[key] = replace(found[key], doubt=doubt)
            for digest in self._scanned.keys() - set[str]().union(*self._searches):
                del self._scanned[digest]
            return found

    def _version_of(self, root: HandlerRoot, secrets: Mapping[FileId, str]) -> HandlerCode:
        try:
            manifest = self._scanner.scan(root, secrets)
        except CannotSnapshot as error:
            return HandlerCode(problem=str(error))
        digest = manifest.digest
        self._scanned[digest] = manifest
        self._searches[-1].add(digest)
        return HandlerCode(code=digest, version=CODE + digest[:_VERSION_CHARS])

    def changes(self, plans: Mapping[tuple[str, str], Collection[str]]) -> tuple[CodeChange, ...]:
        """How snapshots that `versions_of` has found differ from earlier ones. `plans`: backends, by (before, now)."""
        with self._lock:
            return tuple(
                _difference(self._storage.manifest(before), found, backends)
                for (before, now), backends in sorted(plans.items())
                if (found := self._scanned.get(now)) is not None
            )

    def keep(self, codes: Collection[str], *, earlier: Collection[str] = ()) -> None:
        """Stores the snapshots that `versions_of` has found. The others must be stored already.

        `earlier`: code that was applied before, and may be that of files which are not the same any more. Raises
        CodeChanged, but not because of one of these; CannotSnapshot.
        """
        with self._lock:
            for code in filter(_has_snapshot, codes):
                self._keep(code)
            for code in filter(_has_snapshot, earlier):
                try:
                    self._keep(code)
                except CodeChanged as error:
                    raise self._is_lost(code) from error
            self._scanner.forget_data()

    def _keep(self, code: str) -> None:
        if (manifest := self._scanned.get(code)) is not None:
            try:
                self._storage.keep(code, manifest, self._scanner.data_of)
            except OSError as error:
                text = f"the code cannot be kept in {self._storage.directory}: {error.strerror or error}"
                raise CannotSnapshot(text) from error
        elif self._storage.is_whole(code):
            os.utime(self._storage.tree(code))
        else:
            raise self._is_lost(code)

    def _is_lost(self, code: str) -> CannotSnapshot:
        return CannotSnapshot(
            f"the code of that version, snapshot {code}, is not in {self._storage.directory} any more: put back the "
            "folder, which belongs to the state file, or apply the present files under another version"
        )

    def tree_of(self, handler: HandlerKey, code: str) -> str:
        """What replicas are given to start with this code: a folder, an installed distribution, or nothing.

        Raises CannotSnapshot: it is not there, and the files of the handler are not as they were any more.
        """
        if not _has_snapshot(code):
            return code
        if not self._is_unpacked(code):
            self.versions_of([handler])
            with suppress(CodeChanged, CannotSnapshot):
                self.keep([code])
        if not self._is_unpacked(code):
            name = handler if isinstance(handler, str) else handler.handler
            state = "not" if self._storage.manifest(code) is None else "damaged"
            raise CannotSnapshot(
                f"the code of this version, snapshot {code}, is {state} in {self._storage.directory}, and the present"
                f" files of {name} differ from it: apply the present files, roll back to a version whose snapshot is"
                " there, or put back the folder, which belongs to the state file"
            )
        return str(self._storage.tree(code))

    def _is_unpacked(self, code: str) -> bool:
        """Whether replicas can import it, once it was unpacked. Raises CannotSnapshot."""
        with self._lock:
            try:
                return self._storage.unpack(code)
            except OSError as error:
                text = f"the code cannot be unpacked in {self._storage.directory}: {error.strerror or error}"
                raise CannotSnapshot(text) from error

    def collect(self, needed: Collection[str], *, settle_s: float = SETTLE_S) -> list[str]:
        """Removes the others. Returns which."""
        with self._lock:
            removed = self._storage.remove_others(needed, settle_s=settle_s)
        if removed:
            _log.info("snapshots of code that nothing needs any more are removed", snapshots=len(removed))
        return removed

    def discard(self) -> None:
        """Nothing of it is needed any more: the controller ends, and with it its versions."""
        with self._lock:
            self._storage.discard()


def secret_files(backends: Iterable[Backend]) -> dict[Path, str]:
    """The files that variables of these backends come from, and the settings that name them."""
    return {
        Path(it.file).absolute(): f"backends.{backend.name}.env.{name}"
        for backend in backends
        for name, it in backend.env.items()
        if it.file
    }


def _has_snapshot(code: str) -> bool:
    return bool(code) and not code.startswith(DISTRIBUTION)


def _doubt_about(root: HandlerRoot, handler: str) -> str:
    try:
        return doubt_about(root.file.read_text("utf-8"), handler) if root.file.suffix == ".py" else ""
    except (OSError, UnicodeError):
        return ""


def _difference(before: CodeManifest | None, now: CodeManifest, backends: Collection[str]) -> CodeChange:
    change = CodeChange(
        backends=tuple(sorted(backends)),
        folder=now.root,
        files=len(now.files),
        size_bytes=sum(it.size for it in now.files),
    )
    if before is None:
        return change
    was, becomes = ({it.path: (it.content, it.is_executable) for it in some.files} for some in (before, now))
    added, removed = sorted(becomes.keys() - was.keys()), sorted(was.keys() - becomes.keys())
    changed = sorted(path for path in was.keys() & becomes.keys() if was[path] != becomes[path])
    most = MOST_NAMED
    return replace(
        change,
        added=tuple(added[:most]),
        changed=tuple(changed[:most]),
        removed=tuple(removed[:most]),
        unlisted_files=sum(max(0, len(it) - most) for it in (added, changed, removed)),
    )


def _installed(root: HandlerRoot) -> HandlerCode:
    """What is installed is not copied: replicas check its version."""
    if distribution := root.distribution():
        return HandlerCode(code=DISTRIBUTION + distribution, version=DISTRIBUTION + distribution)
    try:
        content = root.file.read_bytes()
    except OSError:
        return HandlerCode()
    return HandlerCode(version=CODE + content_digest(content)[:_VERSION_CHARS])


def snapshots_of(settings: ControllerSettings, address: Callable[[], str]) -> CodeSnapshots:
    """Those of a controller, which replicas on this machine reach at `address`, once it serves."""
    state = settings.state_place
    own = [it for it in (state, settings.launch_dir) if isinstance(it, Path)]
    return CodeSnapshots(
        lambda: code_directory(address(), state, settings.launch_dir),
        max_bytes=settings.max_code_size,
        max_files=settings.max_code_files,
        own=own,
    )
