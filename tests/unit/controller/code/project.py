"""A project whose snapshots are taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from controller_service.core.desired.handler_code import HandlerCode
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from slotmesh.code_manifest import FILES

HANDLER = "shop.app:Shop"


@dataclass
class Project:
    """A folder on the import path, and the snapshots of it."""

    root: Path
    snapshots: CodeSnapshots

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def code(self, handler: str = HANDLER) -> HandlerCode:
        return self.snapshots.versions_of([handler])[handler]

    def keep(self, handler: str = HANDLER) -> Path:
        """The files of a snapshot that was taken now."""
        code = self.code(handler).code
        self.snapshots.keep([code])
        return Path(self.snapshots.tree_of(handler, code), FILES)

    def shown(self) -> dict[str, str]:
        """What replicas find: paths of copies and of links."""
        files = self.keep()
        found = [it for it in files.rglob("*") if it.is_symlink() or it.is_file()]
        return {it.relative_to(files).as_posix(): "link" if it.is_symlink() else "copy" for it in found}
