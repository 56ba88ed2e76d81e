"""The settings of TLS that every member of the mesh has: where its certificate, its key and the authorities are.

Invariants: without any of them there is no TLS; with some of them they are complete, or the process does not start.
`cryptography` is imported only where there are certificates: it takes most of a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from slotmesh.config import Settings, SettingsError
from slotmesh.config.declaring import Field, model_validator
from slotmesh.security.tls_paths import TlsPaths, chosen_paths

if TYPE_CHECKING:
    from slotmesh.security.identity import Role
    from slotmesh.security.tls import TlsSource


class TlsSettings(Settings):
    """Base of the settings of what has certificates. A service says by `tls_names` which of a directory are its own."""

    tls_dir: Path | None = Field(
        None,
        description="Directory with certificates, as `slotmesh certs` makes it: ca.crt, ROLE.crt and ROLE.key; of a "
        "replica replica-BACKEND.crt, or replica.crt.",
    )
    tls_ca: Path | None = Field(
        None, description="PEM file with the certificates of trusted authorities; before that of --tls-dir."
    )
    tls_cert: Path | None = Field(
        None, description="PEM file with the own certificate, which --tls-key goes with; before that of --tls-dir."
    )
    tls_key: Path | None = Field(
        None, description="PEM file with the private key, which others on the machine cannot read (mode 600)."
    )

    tls_crl: Path | None = Field(
        None,
        description="PEM file with lists of certificates that the authorities have revoked, as `slotmesh certs revoke` "
        "makes it; before ca.crl of --tls-dir.",
    )

    @property
    def tls_names(self) -> tuple[str, ...]:
        """What the files of --tls-dir may be called, without .crt and .key; the first that is there counts."""
        raise NotImplementedError

    @property
    def tls_paths(self) -> TlsPaths | None:
        """The files to use; None without TLS.

        Raises:
            ValueError: they are not complete.
        """
        given = (self.tls_dir, self.tls_ca, self.tls_cert, self.tls_key)
        return chosen_paths(*given, crl=self.tls_crl, names=self.tls_names)

    @model_validator
    def _has_whole_tls(self) -> Self:
        _ = self.tls_paths
        return self

    def tls_source(self, role: Role | None = None, backend: str = "") -> TlsSource | None:
        """The certificates, read and checked, and read again when they change; None without TLS. Asked once a process.

        With a role they have to be those of a server of this role, and of a replica of this backend.

        Raises:
            SettingsError: they cannot be used; the message names the file and the way out.
        """
        if (paths := self.tls_paths) is None:
            return None
        from slotmesh.security.tls import BadTls, TlsFiles, TlsSource  # noqa: PLC0415 - see the head of the module

        try:
            source = TlsSource(TlsFiles(paths.ca, paths.cert, paths.key, paths.crl))
            if role is not None:
                source.require_server(role, backend)
            return source
        except BadTls as error:
            raise SettingsError(f"TLS: {error}") from None
