"""Mutants of snapshots of code: which code runs under a version."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CODE: Final = "controller_service/shell/code"
_TESTS: Final = "tests/unit/controller/code"

SNAPSHOTS: Final = (
    mutant(
        "a version of the code has a copy of a secret",
        "controller_service/shell/code",
        "            _require_no_secret(root.path, found, secrets)\n",
        "",
        "tests/unit/controller/code/test_secret_files.py",
    ),
    mutant(
        "a version that has a name runs whatever code there is",
        "controller_service/core",
        "if backend.version and (known := _code_named(desired, backend)):",
        "if False and (known := _code_named(desired, backend)):",
        _TESTS,
    ),
    mutant(
        "the code of revisions that a roll-back reaches is not needed",
        "controller_service/core",
        "for record in reversed(desired.history):\n        for change in record.changes:",
        "for record in ():\n        for change in record.changes:",
        _TESTS,
    ),
    mutant(
        "a file that changes between the look and the copy is copied all the same",
        _CODE,
        "if content_digest(data) != file.content:",
        "if False:",
        _TESTS,
    ),
    mutant(
        "a controller does not start where the code of what runs cannot be read",
        "controller_service/shell/changes",
        "code = absent_if_unread(code)",
        "pass",
        _TESTS,
    ),
    mutant(
        "a file that grows is read without an end",
        _CODE,
        "while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):",
        "while len(data) != size and (more := os.read(descriptor, 1 << 16)):",
        _TESTS,
    ),
    mutant(
        "files that change while they are read become one manifest",
        _CODE,
        "if before.files == found.files:",
        "if True:",
        _TESTS,
    ),
    mutant(
        "a snapshot that was applied just now is removed",
        _CODE,
        "if path.name not in needed and time.time() - path.stat().st_mtime >= settle_s:",
        "if path.name not in needed:",
        _TESTS,
    ),
    mutant(
        "a damaged snapshot counts as whole",
        _CODE,
        "stat.st_size == it.size and stat.st_mtime_ns <= changed_ns",
        "True",
        _TESTS,
    ),
    mutant(
        "a replica imports a snapshot whose files have changed",
        "replica_service/shell/handler",
        "changed = [*_changed(tree / FILES, manifest)]",
        "changed = list[str]()",
        _TESTS,
    ),
    mutant(
        "the project itself stays on the import path of replicas",
        "replica_service/shell/handler",
        "sys.path[:] = [files if _leads_to(it, root) else it for it in sys.path]",
        "pass",
        _TESTS,
    ),
    mutant(
        "a damaged pack is unpacked",
        _CODE,
        "                    if content_digest(data) != it.content:\n"
        "                        raise CodeChanged(str(pack))",
        "                    if False:\n                        raise CodeChanged(str(pack))",
        _TESTS,
    ),
    mutant(
        "a pack that was cut short counts as whole",
        _CODE,
        "return (tree / PACK).stat().st_size == sum(it.size for it in manifest.files)",
        "return (tree / PACK).exists()",
        _TESTS,
    ),
    mutant(
        "a damaged pack is kept, so that the snapshot is never taken again",
        _CODE,
        "            (tree / PACK).unlink()  #",
        "            pass  #",
        _TESTS,
    ),
    mutant(
        "packs are never removed",
        _CODE,
        "                (tree / PACK).unlink(missing_ok=True)",
        "                pass",
        _TESTS,
    ),
    mutant(
        "files that were unpacked count as on the disk",
        _CODE,
        "        (tree / _ON_DISK).unlink(missing_ok=True)",
        "        (tree / _ON_DISK).touch()",
        _TESTS,
    ),
    mutant(
        "replicas that start at the same time unpack beside each other",
        _CODE,
        "        with self._lock:\n            try:\n                return self._storage.unpack(code)",
        "        with suppress():\n            try:\n                return self._storage.unpack(code)",
        _TESTS,
    ),
    mutant(
        "the controller's own files are known by their path alone",
        _CODE,
        "if entry.name in LEFT_OUT or self._own.has_beside(inner, entry.name):",
        "if entry.name in LEFT_OUT:",
        _TESTS,
    ),
    mutant(
        "files of the project that are named like the controller's own are left out",
        _CODE,
        "name.startswith(it) and _BESIDE.fullmatch(name, len(it)) is not None",
        "name.startswith(it)",
        _TESTS,
    ),
    mutant(
        "folders that symlinks multiply are walked without end",
        _CODE,
        "elif found.folders > self._max_files:",
        "elif False:",
        _TESTS,
    ),
    mutant(
        "lost code of an earlier version counts as files that change just now",
        _CODE,
        "                    raise self._is_lost(code) from error",
        "                    raise",
        _TESTS,
    ),
    mutant(
        "links that are not those of the manifest stay",
        _CODE,
        "if not has_links(files, manifest.links) or any(added_files(str(files), manifest)):",
        "if False:",
        _TESTS,
    ),
    mutant(
        "a replica imports a snapshot to which a file was added",
        "replica_service/shell/handler",
        "added = [*added_files(str(tree / FILES), manifest)]",
        "added = list[str]()",
        _TESTS,
    ),
    mutant(
        "files that took the place of those which were synced count as on the disk",
        _CODE,
        "if os.path.samestat(os.fstat(files), (tree / FILES).stat()):",
        "if True:",
        _TESTS,
    ),
)
