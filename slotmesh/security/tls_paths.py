"""The files of an identity's certificates: explicit paths, and those of a directory.

Invariants: nothing is parsed, and `cryptography` is not imported, so that a process without certificates starts fast. A
certificate and its key come from the same source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CA_FILE: Final = "ca.crt"
"""The certificates of the authorities, in a directory of certificates."""
CRL_FILE: Final = "ca.crl"
"""The revocation lists of the authorities, in the same directory; optional."""


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """PEM files. `cert` and `key` are both None if the process presents no certificate."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    crl: Path | None = None
    """The revocation lists; the file may not exist yet."""


def chosen_paths(
    directory: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    *,
    crl: Path | None = None,
    names: Sequence[str],
    needs_certificate: bool = True,
) -> TlsPaths | None:
    """The files to use; None if no path is given. `ca`, `crl`, and `cert` with `key`, override the directory's files.

    `names`: file names of this identity in the directory, without suffix; the first existing one is used.
    `needs_certificate` False: a missing certificate is omitted.

    Raises:
        ValueError: a file or an option is missing; the message names it and the command that makes it.
    """
    if (cert is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise ValueError(f"{missing} is required with {given}: a certificate and its private key go together")
    if crl is not None and not crl.exists():
        raise ValueError(f"--tls-crl: {crl} is missing; `slotmesh certs revoke` makes one")
    if directory is None:
        return _without_directory(ca, cert, key, crl, needs_certificate=needs_certificate)
    if not directory.is_dir():
        raise ValueError(f"--tls-dir: {directory} is no directory; {_authority_of(directory, needs_certificate)}")
    authorities = ca or directory / CA_FILE
    if not authorities.exists():
        raise ValueError(f"--tls-dir: {authorities} is missing; {_authority_of(directory, needs_certificate)}")
    if cert is None:
        cert, key = certificate_in(directory, names, needs_certificate=needs_certificate)
    return TlsPaths(authorities, cert, key, crl or directory / CRL_FILE)


def certificate_in(
    directory: Path, names: Sequence[str], *, needs_certificate: bool = True
) -> tuple[Path, Path] | tuple[None, None]:
    """The certificate and key of the first of these names that the directory has.

    Raises:
        ValueError: there is none, and `needs_certificate` is set; or a certificate has no key.
    """
    for name in names:
        # `with_suffix` would replace what follows a dot in the name.
        cert, key = directory / f"{name}.crt", directory / f"{name}.key"
        if cert.exists():
            if not key.exists():
                raise ValueError(f"--tls-dir: {key} is missing: the private key of {cert.name}")
            return cert, key
    if not needs_certificate:
        return None, None
    files = " and ".join(str(directory / f"{name}.crt") for name in names)
    verb = "are" if len(names) > 1 else "is"
    raise ValueError(f"--tls-dir: {files} {verb} missing; {_made_by(directory, f'issue {identity_of_file(names[0])}')}")


def _without_directory(
    ca: Path | None, cert: Path | None, key: Path | None, crl: Path | None, *, needs_certificate: bool
) -> TlsPaths | None:
    if ca is None:
        if cert is None and crl is None:
            return None
        if cert is None:
            raise ValueError("--tls-ca is required with --tls-crl: whose list of revoked certificates it is")
        raise ValueError("--tls-ca is required with --tls-cert: the certificates of the authorities that are trusted")
    if cert is None and needs_certificate:
        raise ValueError("--tls-cert and --tls-key are required with --tls-ca: members of the mesh show a certificate")
    return TlsPaths(ca, cert, key, crl)


def _authority_of(directory: Path, is_member: bool) -> str:
    """Where the certificates of authorities are from. A new authority is of no use to a client of a mesh that runs."""
    if is_member:
        return _made_by(directory, "init")
    return f"name the directory that has {CA_FILE} of the mesh, and the own certificate if there is one"


def _made_by(directory: Path, command: str) -> str:
    return f"`slotmesh certs {command} --dir {directory}` makes it"


def identity_of_file(name: str) -> str:
    """The identity of a file name: `replica/digits` for `replica-digits`."""
    return name.replace("-", "/", 1)
