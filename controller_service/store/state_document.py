"""A whole desired state as one JSON document: what `state export` prints and `state import` reads, of any store.

Invariants: an export has everything that its store keeps. Only the configuration and its history are imported: owners,
roster and revisions belong to the lineage of the store that was exported, which may have continued since. No controller
runs for `--export-state` and `--import-state`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from controller_service.core.desired.state import Desired
from controller_service.core.partition_owners import PartitionOwnership
from controller_service.store.documents import MEMBER, OWNERSHIP, REVISION, ROSTER, SECTIONS, RowKind
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import StateRefused
from controller_service.store.sqlite.state_file import create_file, read_file
from slotmesh.config.etcd import PLAIN_ACCESS, EtcdAccess, EtcdPlace
from slotmesh.ids import new_id
from slotmesh.spec.descriptor_sets import services_violations
from slotmesh.spec.model import Mesh, TrafficPolicy
from slotmesh.spec.rules import mesh_violations

FORMAT: Final = "slotmesh-state"
VERSION: Final = 1
"""Of this document. Raised when an older slotmesh could misread a newer one."""
_BEGINS: Final = re.compile(rb'\s*\{\s*"format"\s*:\s*"%s"' % FORMAT.encode())
_HEAD: Final = ("format", "version", "generation", "revision", "configured_at", "epoch_floor", "roster")
"""Its names beside those of `SECTIONS`."""


def export_state(generation: str, desired: Desired) -> str:
    """The document, for people and for `import_state`."""
    documents = {
        it.attribute: {name: it.stored.write(value) for name, value in sorted(it.values(desired).items())}
        for it in SECTIONS.values()
    }
    return _indented(
        {
            "format": FORMAT,
            "version": VERSION,
            "generation": generation,
            "revision": desired.revision,
            "configured_at": desired.configured_at,
            "epoch_floor": desired.epoch_floor,
            **documents,
            "history": [{"revision": it.revision, **REVISION.write(it)} for it in desired.history],
            "roster": {**ROSTER.write(desired.roster), "members": [*map(MEMBER.write, desired.roster.members)]},
            "ownership": {name: _exported(it) for name, it in sorted(desired.ownership.items())},
        }
    )


def is_export(content: bytes) -> bool:
    """Whether a file begins as an export does. It has all `user_config`, and is no code."""
    return _BEGINS.match(content) is not None


def import_state(text: str | bytes, *, epoch_floor: int) -> Desired:
    """The configuration and its history, at the revision of the document, for a store with a new generation.

    Epochs go on above `epoch_floor`, and above those of the document.

    Raises:
        BadDocument: the text is no such document, or one of a newer version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadDocument(f'is no export of a state: "format" must be {FORMAT!r}')
    if document.get("version") != VERSION:
        raise BadDocument(f"has version {document.get('version')!r}; this version of slotmesh reads {VERSION}")
    if unknown := sorted(document.keys() - {*_HEAD, *(it.attribute for it in SECTIONS.values())}):
        raise BadDocument(f"this version of slotmesh knows no {', '.join(map(repr, unknown))}")
    numbers = {name: _natural(document, name) for name in ("revision", "configured_at", "epoch_floor")}
    epochs = [_newest_epoch(it) for it in _section(document, "ownership", dict).values()]
    history = _section(document, "history", list)
    read = {
        SECTIONS[kind].attribute: SECTIONS[kind].read(_section(document, SECTIONS[kind].attribute, dict))
        for kind in (RowKind.BACKEND, RowKind.ENDPOINT, RowKind.ROUTE, RowKind.APPLIED)
    }
    desired = Desired(
        revision=numbers["revision"],
        configured_at=numbers["configured_at"],
        epoch_floor=max(epoch_floor, numbers["epoch_floor"], *epochs, 0),
        history=tuple(REVISION.read(str(_natural(it, "revision")), it) for it in history),
        **read,
    )
    _require_sound(desired)
    return desired


def _require_sound(desired: Desired) -> None:
    """The document may have been edited: it obeys the rules of every mesh."""
    mesh = Mesh(
        backends=tuple(desired.backends.values()),
        endpoints=tuple(desired.endpoints.values()),
        routes=tuple(desired.routes.values()),
    )
    known = desired.backends.keys()
    violations = [str(it) for it in mesh_violations(mesh)]
    for endpoint in mesh.endpoints:
        violations += [str(it) for it in services_violations(f"endpoints.{endpoint.name}", endpoint.grpc_services)]
        policy = endpoint.traffic or TrafficPolicy(weights={})
        unknown = sorted({*policy.weights, *policy.shadows} - known)
        violations += [f"endpoints.{endpoint.name}.traffic: there is no backend {name}" for name in unknown]
    if violations:
        raise BadDocument("\n".join(violations))


def _section(document: dict[str, Any], name: str, kind: type) -> Any:
    section = document.get(name, kind())
    if not isinstance(section, kind):
        raise BadDocument(f"{name}: must be a JSON {'object' if kind is dict else 'list'}")
    return section


def _natural(document: Any, name: str) -> int:
    value = document.get(name) if isinstance(document, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise BadDocument(f"{name}: must be a whole number, is {value!r}")
    return value


def _exported(ownership: PartitionOwnership) -> dict[str, Any]:
    """For people, and for the newest epoch: an import reads nothing else of it."""
    document = OWNERSHIP.write(ownership)
    return {**document, "epochs": [max(ownership.epochs, default=0) - document["base_epoch"]]}


def _newest_epoch(ownership: Any) -> int:
    above = ownership.get("epochs") if isinstance(ownership, dict) else None
    if not isinstance(above, list) or not all(isinstance(it, int) for it in above):
        raise BadDocument("ownership: `epochs` must be a list of whole numbers")
    return _natural(ownership, "base_epoch") + max(above, default=0)


def _indented(document: dict[str, Any]) -> str:
    """Indented, with lists of numbers in one line each: there are thousands of partitions."""
    lines = [f"  {json.dumps(name)}: {_value(name, value)}" for name, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(name: str, value: Any) -> str:
    if name == "ownership":
        rows = [f"    {json.dumps(endpoint)}: {json.dumps(it)}" for endpoint, it in value.items()]
        return "{\n" + ",\n".join(rows) + "\n  }" if rows else "{}"
    return json.dumps(value, indent=2).replace("\n", "\n  ")


REFUSED = 1
"""Exit status: the file cannot be used, and stderr has the reason."""
_STDIN = "-"


def print_export(state: Path | EtcdPlace, access: EtcdAccess = PLAIN_ACCESS) -> int:
    """Prints a state, which a controller may have in use. Returns the exit status."""
    try:
        sys.stdout.write(export_state(*_read(state, access)))
    except StateRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    return 0


def import_into(state: Path | EtcdPlace, document: str, access: EtcdAccess = PLAIN_ACCESS) -> int:
    """Makes a state of an export, `-` being stdin. Returns the exit status.

    It has the configuration and its history, and a generation of its own: which replicas there are, and who owns which
    keys, its controller learns from routers.
    """
    try:
        text = sys.stdin.buffer.read() if document == _STDIN else Path(document).read_bytes()
        desired = import_state(text, epoch_floor=int(time.time() * 1e3))
        _create(state, access, desired)
    except BadDocument as error:
        sys.stderr.write(f"{document}: {error}\n")
        return REFUSED
    except OSError as error:
        sys.stderr.write(f"{document}: {error.strerror or error}\n")
        return REFUSED
    except StateRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    content = f"{len(desired.backends)} backends, {len(desired.endpoints)} endpoints, {len(desired.history)} revisions"
    sys.stderr.write(f"{state}: written, with {content}\n")
    is_file = isinstance(state, Path)
    if is_file and any(it.code for it in desired.backends.values()) and not Path(f"{state}.code").exists():
        sys.stderr.write(
            f"{state}: there is no {state}.code: a controller finds the code of its versions, and by default its"
            " running replicas, by the path of its state file. To keep both, import to the path that the exported file"
            " had\n"
        )
    return 0


def _read(state: Path | EtcdPlace, access: EtcdAccess) -> tuple[str, Desired]:
    if isinstance(state, Path):
        return read_file(state)
    from controller_service.store.etcd.moving import read_state  # noqa: PLC0415 - it loads gRPC

    return asyncio.run(read_state(state, access))


def _create(state: Path | EtcdPlace, access: EtcdAccess, desired: Desired) -> None:
    if isinstance(state, Path):
        create_file(state, new_id(), desired)
        return
    from controller_service.store.etcd.moving import create_state  # noqa: PLC0415 - it loads gRPC

    asyncio.run(create_state(state, access, new_id(), desired))
