"""Where a mesh's state is in etcd: the form of `etcd://HOST:PORT[,HOST:PORT…]/MESH`, and the files to connect with."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from slotmesh.units import join_host_port, parse_host_port

SCHEME: Final = "etcd://"
_MESH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class EtcdPlace(NamedTuple):
    """A cluster, and the mesh whose state it has."""

    members: tuple[str, ...]
    """Addresses of its members, `HOST:PORT`."""
    mesh: str

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.members)}/{self.mesh}"

    @property
    def prefix(self) -> str:
        """Of all keys of the mesh."""
        return f"/slotmesh/{self.mesh}/"


class EtcdAccess(NamedTuple):
    """How etcd is connected to; without a file of authorities, in plain text."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None


PLAIN_ACCESS: Final = EtcdAccess()
"""In plain text, without a user."""


def etcd_place(state: str) -> EtcdPlace | None:
    """What `--state` names in etcd; None if it is in memory or in a file. Raises ValueError if the form is wrong."""
    if not state.startswith(SCHEME):
        return None
    hosts, _, mesh = state.removeprefix(SCHEME).partition("/")
    members: tuple[str, ...] = ()
    with suppress(ValueError):
        members = tuple(dict.fromkeys(join_host_port(*parse_host_port(each.strip())) for each in hosts.split(",")))
    if "@" in hosts:  # what stands before it may be a password, which is not repeated
        raise ValueError("etcd://…@… names a user: give --etcd-user and --etcd-password-file, and addresses only here")
    if not members or not _MESH.fullmatch(mesh):
        raise ValueError(
            f"{state!r} is not etcd://HOST:PORT[,HOST:PORT]/MESH, where MESH has 1 to 63 letters, digits, dots, dashes"
            " and underscores"
        )
    return EtcdPlace(members, mesh)
