"""Reads the files of a project: which belong to its version, and what they contain.

Purpose: the manifest of a folder, at the cost of a `stat` for each file that has not changed since the last time.
Invariants: three kinds of files. *Copied*: they are the version. *Linked*: ignored by `.slotmeshignore`, `.gitignore`
or `LINKED`, or files that `slotmesh apply` takes or `slotmesh state export` prints; they are not part of the version,
and replicas find them where they are. *Left out* (`LEFT_OUT`, virtual environments, the controller's own files, and
snapshots of others): replicas do not see them. Symlinks are followed. A manifest is of one moment: files that change
while they are read are read again.
Owner: `shell.code.snapshot_keeper`, in one thread at a time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec

from controller_service.shell.code.roots import FileId, HandlerRoot, OwnFiles
from controller_service.store.state_document import is_export
from slotmesh.code_manifest import CodeFile, CodeManifest, content_digest, is_snapshot
from slotmesh.spec.sections import is_mesh_file
from slotmesh.units import format_size

IGNORE_FILE: Final = ".slotmeshignore"
LEFT_OUT: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".nox", ".venv", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".hypothesis", ".import_linter_cache", ".ipynb_checkpoints", ".DS_Store"}
)
"""Names of files and folders, wherever they are."""
LINKED: Final = (
    *("/mesh*.yaml", "/mesh*.yml"),  # applied by themselves; those with other names are known by their content
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*"),  # secrets are not copied
    *("*.out", "*.err", "*~", "*.sw[a-p]", ".#*", r"\#*#", "*.orig", "*.rej", "*.bak", "*.tmp"),  # output, editors
    *("*.log", "*.pid", "*.sock", "*.db", "*.sqlite", "*.sqlite3", "*.db-*", "*.sqlite-*", "*.sqlite3-*"),  # data
    *("*.py[co]", "*.egg-info/"),
)
"""Ignored unless `.slotmeshignore` includes them again: patterns as of `.gitignore`."""
READ_AGAIN_S: Final = 2.0
"""A file that changed more recently than this may change again without its time showing it: it is read each time."""
KEPT_BYTES: Final = 16 * 2**20
"""Of the files that were read last, for the copy that follows."""
_VARIABLE: Final = "SLOTMESH_MAX_CODE_"
MOST_LEVELS: Final = 100
"""Of folders within one another."""
_MOST_VERDICTS: Final = 200_000
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.05
_LARGEST_SHOWN: Final = 5

_Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, times of the last change of content and of status (nanoseconds)."""


NO_SECRETS: Final[Mapping[FileId, str]] = MappingProxyType({})
"""Files that no snapshot may have a copy of, and the settings that name them."""


class CannotSnapshot(Exception):
    """The message has the reason why no snapshot can be taken, and what to do."""


class _Content(NamedTuple):
    """What a file contains."""

    digest: str
    """`content_digest` of its bytes."""
    is_configuration: bool
    """It is one that `slotmesh apply` takes, or that `slotmesh state export` has printed."""


@dataclass(slots=True)
class _Found:
    """What a walk over a folder has found."""

    files: dict[str, tuple[str, _Stamp, bool]] = field(default_factory=dict)
    """By path in the snapshot: path, stamp, whether it is executable."""
    links: dict[str, str] = field(default_factory=dict)
    included: set[str] = field(default_factory=set)
    """Of the files, those that `.slotmeshignore` includes: they are code whatever is in them."""
    folders: int = 0
    """Walked, each path for itself: symlinks may lead to one folder by many."""

    def add(self, inside: str, place: str, known: os.stat_result, *, is_included: bool) -> None:
        """One more file."""
        self.files[inside] = place, _stamp_of(known), bool(known.st_mode & 0o100)
        if is_included:
            self.included.add(inside)


@dataclass(frozen=True, slots=True, eq=False)
class _Patterns:
    """Those of one ignore file, at one time."""

    above: str
    """The path from its folder to the root, with a `/` at the end; empty if it is in the root or below."""
    below: str
    """The path from the root to its folder, likewise."""
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """Whether a path, relative to the root, is ignored. None: no pattern matches."""
        return self.spec.check_file(self.above + path.removeprefix(self.below)).include


_DEFAULTS: Final = _Patterns("", "", GitIgnoreSpec.from_lines(LINKED))
_NO_PATTERNS: Final = _Patterns("", "", GitIgnoreSpec([]))
_Chain = tuple[_Patterns, ...]
"""Those that hold in a folder. The last one that matches a path decides, which is that of `.slotmeshignore` first."""


class ProjectScanner:
    """Makes manifests, and remembers what files contained."""

    def __init__(self, *, max_bytes: int, max_files: int, own: Collection[Path] = ()) -> None:
        """`own`: files and folders of the controller, which are left out with what is kept beside them: `state-wal`."""
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._own = OwnFiles(own)
        self._contents: dict[str, tuple[_Stamp, _Content]] = {}
        """By path: what a file contains."""
        self._data: dict[str, bytes] = {}
        """What was read lately, by digest: `KEPT_BYTES` at most, until it is copied or something is scanned again."""
        self._data_left = 0
        self._patterns: dict[str, tuple[_Stamp, _Patterns]] = {}
        """By path: the content of an ignore file."""
        self._verdicts: dict[_Chain, dict[str, bool | None]] = {}
        """Whether paths are ignored, as of `_verdict`."""

    def scan(self, root: HandlerRoot, secrets: Mapping[FileId, str] = NO_SECRETS) -> CodeManifest:
        """The manifest of a folder. Raises CannotSnapshot, also where it would have a copy of one of `secrets`."""
        self.forget_data()
        before = found = self._walk(root)
        for _ in range(_ATTEMPTS):
            self._require_bounds(root.path, found)
            _require_no_secret(root.path, found, secrets)
            contents = {path: self._content(place, stamp) for path, (place, stamp, _) in found.files.items()}
            before = found
            if any(is_new for _, is_new in contents.values()):
                found = self._walk(root)
            if before.files == found.files:
                self._forget(root.path, found)
                return _manifest_of(root.path, found, {path: content for path, (content, _) in contents.items()})
            time.sleep(_PAUSE_S)
        changing = sorted({path for path, _ in before.files.items() ^ found.files.items()})[:_LARGEST_SHOWN]
        raise CannotSnapshot(
            f"{', '.join(changing)} below {root.path} changes while the code is read: list what is not code in "
            f"{root.path / IGNORE_FILE}"
        )

    def data_of(self, digest: str) -> bytes | None:
        """The content of that digest, if it was read by the newest scan."""
        return self._data.get(digest)

    def forget_data(self) -> None:
        """What was read is copied, or will not be."""
        self._data.clear()
        self._data_left = KEPT_BYTES

    def _content(self, place: str, stamp: _Stamp) -> tuple[_Content, bool]:
        """What a file contains, and whether it was read for that."""
        known = self._contents.get(place)
        if known is not None and known[0] == stamp:
            return known[1], False
        try:
            data = read_file(place, stamp[2])
        except OSError as error:
            raise _unreadable(place, error) from error
        content = _Content(content_digest(data), is_mesh_file(data) or is_export(data))
        if content.digest not in self._data and len(data) <= self._data_left:
            self._data[content.digest] = data
            self._data_left -= len(data)
        if time.time_ns() - max(stamp[3], stamp[4]) > READ_AGAIN_S * 1e9:
            self._contents[place] = stamp, content
        return content, True

    def _forget(self, root: Path, found: _Found) -> None:
        """What is not there any more."""
        known, prefix = {place for place, _, _ in found.files.values()}, f"{root}{os.sep}"
        for place in [it for it in self._contents if it.startswith(prefix) and it not in known]:
            del self._contents[place]
        if sum(map(len, self._verdicts.values())) > _MOST_VERDICTS:
            self._verdicts.clear()

    def _require_bounds(self, root: Path, found: _Found) -> None:
        sizes = {path: stamp[2] for path, (_, stamp, _) in found.files.items()}
        total, count = sum(sizes.values()), len(sizes) + len(found.links)
        way_out = f"list what is not code in {root / IGNORE_FILE}: it stays where it is, and replicas find it there"
        if count > self._max_files:
            raise CannotSnapshot(
                f"there are more than the {self._max_files:,} files of --max-code-files below {root}: {way_out};"
                f" or raise that of the controller ({_VARIABLE}FILES, also for `slotmesh run`)"
            )
        if total > self._max_bytes:
            largest = sorted(sizes, key=lambda it: -sizes[it])[:_LARGEST_SHOWN]
            shown = ", ".join(f"{it} ({format_size(sizes[it])})" for it in largest)
            raise CannotSnapshot(
                f"the code below {root} has {total:,} bytes, more than the {format_size(self._max_bytes)} of "
                f"--max-code-size; the largest files are {shown}: {way_out}; or raise that of the controller"
                f" ({_VARIABLE}SIZE, also for `slotmesh run`)"
            )

    # -- which files ---------------------------------------------------------------------------------------------------

    def _walk(self, root: HandlerRoot) -> _Found:
        found = _Found()
        self._own.look()
        last = self._read(str(root.path), IGNORE_FILE) if (root.path / IGNORE_FILE).is_file() else _NO_PATTERNS
        self._enter(root, str(root.path), "", (_DEFAULTS, *self._above(root.path), last), found, ())
        return found

    def _enter(
        self, root: HandlerRoot, place: str, path: str, chain: _Chain, found: _Found, within: tuple[FileId, ...]
    ) -> None:
        """Walks a folder: `path` is that in the snapshot, `within` are the folders that it is in."""
        try:
            entries = [*os.scandir(place)]
            inner = _stamp_of(os.stat(place))[:2]  # noqa: PTH116 - thousands of them
        except OSError as error:
            raise _unreadable(place, error) from error
        if inner in within or self._own.has(inner):
            return  # a symlink to a folder around it, or the controller's
        self._count_folder(root.path, path, found)
        if any(it.name == ".gitignore" for it in entries):
            chain = (*chain[:-1], self._read(place, ".gitignore", below=path), chain[-1])
        verdicts = self._verdicts.setdefault(chain, {})
        for entry in entries:
            if len(found.files) + len(found.links) > self._max_files:
                return
            if entry.name in LEFT_OUT or self._own.has_beside(inner, entry.name):
                continue
            try:
                is_folder, known = entry.is_dir(), entry.stat()
            except FileNotFoundError:
                continue  # a symlink to nothing
            except OSError as error:
                raise _unreadable(entry.path, error) from error
            inside = f"{path}{entry.name}/" if is_folder else f"{path}{entry.name}"
            if not path and root.is_wide and not _is_code(entry, root.name, is_folder=is_folder):
                continue
            if is_folder and (is_snapshot(entry.path) or os.path.exists(f"{entry.path}/pyvenv.cfg")):  # noqa: PTH110 - thousands of them
                continue
            if inside not in verdicts:
                verdicts[inside] = _verdict(chain, inside)
            if verdicts[inside]:
                if not entry.name.endswith((".pyc", ".pyo")):
                    found.links[inside.removesuffix("/")] = entry.path
            elif is_folder:
                self._enter(root, entry.path, inside, chain, found, (*within, inner))
            elif stat.S_ISREG(known.st_mode) and not self._own.has((known.st_dev, known.st_ino)):
                found.add(inside, entry.path, known, is_included=verdicts[inside] is False)

    def _count_folder(self, root: Path, path: str, found: _Found) -> None:
        """Raises CannotSnapshot: there are too many."""
        found.folders += 1
        if path.count("/") > MOST_LEVELS:
            what = f"folders are more than {MOST_LEVELS} levels deep"
        elif found.folders > self._max_files:
            what = f"there are more than {self._max_files:,} folders, the number of files that --max-code-files allows,"
        else:
            return
        raise CannotSnapshot(
            f"{what} below {root}, as in {path.partition('/')[0]}/: list what is not code in {root / IGNORE_FILE}: it "
            "stays where it is, and replicas find it there"
        )

    def _above(self, root: Path) -> Iterator[_Patterns]:
        """The patterns of a repository that the root is in, outermost first."""
        parents = [*root.parents]
        top = next((number for number, it in enumerate(parents) if (it / ".git").exists()), None)
        if top is None or (root / ".git").exists():
            return
        for it in reversed(parents[: top + 1]):
            if (it / ".gitignore").is_file():
                yield self._read(str(it), ".gitignore", above=f"{root.relative_to(it).as_posix()}/")

    def _read(self, folder: str, name: str, *, above: str = "", below: str = "") -> _Patterns:
        place = f"{folder}/{name}"
        try:
            stamp = _stamp_of(os.stat(place))  # noqa: PTH116 - a text
            known = self._patterns.get(place)
            if known is not None and known[0] == stamp and (known[1].above, known[1].below) == (above, below):
                return known[1]
            lines = Path(place).read_text("utf-8", errors="surrogateescape").splitlines()
            patterns = _Patterns(above, below, GitIgnoreSpec.from_lines(lines))
        except (OSError, ValueError) as error:
            raise _unreadable(place, error) from error
        self._patterns[place] = stamp, patterns
        return patterns


def _verdict(chain: _Chain, path: str) -> bool | None:
    """Whether a path is ignored: True; None: it is not; False: it is not, as `.slotmeshignore` includes it."""
    *others, last = chain
    if (verdict := last.verdict(path)) is not None:
        return verdict
    verdicts = (it.verdict(path) for it in reversed(others))
    return next((it for it in verdicts if it is not None), False) or None


def _manifest_of(root: Path, found: _Found, contents: Mapping[str, _Content]) -> CodeManifest:
    """Files that are applied, and exported states, are no code: a changed weight is no new version."""
    applied = {path for path, it in contents.items() if it.is_configuration and path not in found.included}
    files = (
        CodeFile(path, found.files[path][1][2], contents[path].digest, found.files[path][2])
        for path in sorted(found.files.keys() - applied)
    )
    links = found.links | {path: found.files[path][0] for path in applied}
    return CodeManifest(root=str(root), files=tuple(files), links=dict(sorted(links.items())))


def read_file(place: str, size: int) -> bytes:
    """The content of a file, of which `size` bytes are expected: with as few system calls as there can be.

    Of one that has grown, which may never end, a byte more: that is another content than the expected one.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
            data += more  # the system gives less at a time
        return data
    finally:
        os.close(descriptor)


def _is_code(entry: os.DirEntry[str], outermost: str, *, is_folder: bool) -> bool:
    """Whether something right in a folder that also holds other things is a module or a package."""
    if not is_folder:
        return entry.name.endswith((".py", ".so")) or entry.name == IGNORE_FILE
    return entry.name == outermost or Path(entry.path, "__init__.py").exists()


def _unreadable(place: str, error: Exception) -> CannotSnapshot:
    reason = error.strerror if isinstance(error, OSError) else error
    return CannotSnapshot(f"{place} cannot be read: {reason}: change that, or list it in {IGNORE_FILE}")


def ids_of(secrets: Mapping[Path, str]) -> dict[FileId, str]:
    """By inode, since paths differ by links. A file that is not there yet is read by no replica either."""
    found = dict[FileId, str]()
    for path, setting in secrets.items():
        with suppress(OSError):
            found[_stamp_of(path.stat())[:2]] = setting
    return found


def _require_no_secret(root: Path, found: _Found, secrets: Mapping[FileId, str]) -> None:
    for inside, (_, stamp, _) in found.files.items() if secrets else ():
        if setting := secrets.get(stamp[:2]):
            raise CannotSnapshot(
                f"{setting}: the code below {root} has its file, {inside}, of which each version would keep a copy:"
                f" move it elsewhere, or list it in {root / IGNORE_FILE}"
            )


def _stamp_of(found: os.stat_result) -> _Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
