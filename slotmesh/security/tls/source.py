"""Certificates that are reloaded while the process runs, and gRPC credentials made of them.

Purpose: each handshake of a server, and each new channel, uses the newest certificate; existing connections keep
theirs.
Invariants: unusable files never replace usable ones: a partly written pair is read again later. No event loop waits
for a disk: a thread checks the files once a second, so that material is at most a few seconds old, also after a long
pause.
Owner: the process's app. Thread-safe, as gRPC's handshakes run in threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

import grpc

from slotmesh.logs import get_logger
from slotmesh.security.identity import Role, identity_of, server_name, uri_of
from slotmesh.security.secret_files import LOOK_S, FileStamp, FileWatch
from slotmesh.security.tls.certificates import BadLists, BadTls, UnmatchedPair, matches
from slotmesh.security.tls.files import TlsFiles, TlsMaterial


def server_problem(material: TlsMaterial, role: Role, backend: str = "") -> str | None:
    """Why clients would refuse this material for a server of this role, and of this backend; None if they would not.

    The text follows the name of the file in a message.
    """
    issue = f"`slotmesh certs issue {role}{f'/{backend}' if backend else ''}` makes one"
    if material.leaf is None:
        return f"there is no certificate, and a server needs one (--tls-cert and --tls-key); {issue}"
    if not material.uri:
        return f"names no identity such as {uri_of(material.trust_domain or 'slotmesh.local', role)}; {issue}"
    identity = identity_of(material.uri, material.trust_domain)
    if identity is None or role not in identity.roles:
        return f"names {material.uri}, which is no {role}; {issue}"
    if backend and not identity.may_serve(backend):
        return f"names {material.uri}, which may not serve backend {backend}; {issue}"
    if material.leaf.usages is not None and (missing := {"server", "client"} - material.leaf.usages):
        return f"may not be used as that of a {' and a '.join(sorted(missing))} (extended key usage); {issue}"
    name = server_name(material.trust_domain, role, backend)
    if not matches(name, material.leaf.dns_names):
        return f"lacks the DNS name {name}, by which others know this server; {issue}"
    return None


_PAIR_TRIES: Final = 5
_PAIR_RETRY_S: Final = 0.05
"""Retry interval, and limit, while a starting process waits for the other file of a pair that is being replaced."""

Check = Callable[[TlsMaterial], str | None]
"""Returns why material cannot be used here; None if it can."""

_log = get_logger(__name__)


class TlsSource:
    """The certificate files of one identity."""

    def __init__(self, files: TlsFiles, *, now: Callable[[], float] = time.monotonic) -> None:
        """Reads the files. `now`: a monotonic clock, in seconds.

        Raises:
            BadTls: they cannot be used.
        """
        self.files = files
        self._now = now
        self._check: Check = lambda _: None
        self._looking = threading.Lock()
        """Held while checking the files; guards writes of the fields below."""
        self._watch = FileWatch(self.look, "certificates")
        self._stamps = _stamps(files)
        self._material = _read_pair(files)
        self._log_unsigned_lists()
        self._version = 1
        self._looked_at = now()
        self._problem = ""
        self.handshakes = 0
        """The number of handshakes that gRPC has begun with these certificates, as a server."""
        self._counting = threading.Lock()
        self.failed_reloads = 0
        """The number of changes after which the files could not be used."""

    def require_server(self, role: Role, backend: str = "") -> None:
        """Accepts from now on only certificates of such a server, of the present trust domain.

        Raises:
            BadTls: the present one is not.
        """
        domain = self._material.trust_domain

        def check(material: TlsMaterial) -> str | None:
            if material.trust_domain != domain:
                return (
                    f"belongs to {material.trust_domain or 'no trust domain'}, and this process to {domain}: restart it"
                )
            return server_problem(material, role, backend)

        if problem := check(self._material):
            raise BadTls(f"{self.files.cert or self.files.ca}: {problem}")
        self._check = check

    @property
    def version(self) -> int:
        """Counts the certificates that were read; a channel with older ones eventually cannot reconnect."""
        self.current()
        return self._version

    @property
    def trust_domain(self) -> str:
        """The trust domain of the certificate, or else of the authority; empty if neither has one."""
        return self.current().trust_domain

    @property
    def identity(self) -> str:
        """The URI of the certificate's identity; empty if there is none."""
        return self.current().uri

    @property
    def keeps_older_files(self) -> bool:
        """Whether the files have changed and cannot be used, so that their previous content is in use."""
        return bool(self._problem)

    def current(self) -> TlsMaterial:
        """The newest material, without blocking. From the first call on, a thread checks for newer files."""
        self._watch.ensure()
        return self._material

    def look(self) -> TlsMaterial:
        """The newest usable material. Checks the files, at most once a second. Blocks on the disk."""
        with self._looking:
            if self._now() - self._looked_at >= LOOK_S:
                try:
                    self._reload()
                finally:
                    self._looked_at = self._now()
            return self._material

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a client."""
        material = self.current()
        return grpc.ssl_channel_credentials(material.ca_pem, material.key_pem, material.cert_pem)

    def server_credentials(self, *, asks_for_certificate: bool) -> grpc.ServerCredentials:
        """Credentials of a server. `asks_for_certificate`: clients without one cannot connect.

        Raises:
            BadTls: there is no certificate.
        """
        shown = self._material

        def newest() -> grpc.ServerCertificateConfiguration | None:
            # Called in gRPC's threads, for each handshake, and must not raise. None: no change.
            nonlocal shown
            with self._counting:
                self.handshakes += 1
            if (material := self.look()) is shown:
                return None
            shown = material
            return _configuration(material)

        # gRPC's type stubs lack that None may be returned.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", newest)
        return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, asks_for_certificate)

    def _reload(self) -> None:
        stamps = _stamps(self.files)
        if stamps == self._stamps:
            self._problem = ""
            return
        try:
            material, problem_of_lists = self._read_lists_or_keep_them()
            if problem := self._check(material):
                raise BadTls(f"{self.files.cert}: {problem}")
        except BadTls as error:
            # One file of a pair may be replaced: its stamps are not kept, so that the files are read again.
            self._failed(str(error))
            return
        if problem_of_lists:
            self._failed(problem_of_lists)
        else:
            # The stamps from before the read: a change during the read causes another one.
            self._stamps, self._problem = stamps, ""
        if material != self._material:
            self._material = material
            self._version += 1
            ends = None if material.not_after is None else datetime.fromtimestamp(material.not_after, UTC).isoformat()
            revoked = len(material.trust.revocations.revoked)
            facts = {"identity": material.uri, "version": self._version, "valid_until": ends, "revoked": revoked}
            _log.info("certificates were reloaded", **facts)
            self._log_unsigned_lists()

    def _read_lists_or_keep_them(self) -> tuple[TlsMaterial, str]:
        """The content of the files, and why their revocation lists are not used: then the previous ones are.

        A missing or older list does not undo revocations, and an unusable list does not prevent newer certificates.

        Raises:
            BadTls: the other files cannot be used.
        """
        before = self._material
        try:
            material = self.files.read()
        except BadLists as error:
            return self.files.read(lists_of=before), str(error)
        if material.trust.revocations.go_back_behind(before.trust.revocations, material.trust.authorities):
            problem = f"{self.files.crl}: a revocation list is missing or older than before; restart to accept that"
            return self.files.read(lists_of=before), problem
        return material, ""

    def _log_unsigned_lists(self) -> None:
        if unsigned := self._material.trust.revocations.unsigned:
            why = "no authority that is trusted here has signed them"
            _log.warning("revocation lists are ignored", lists=unsigned, why=why)

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.failed_reloads += 1
            _log.warning("certificates could not be reloaded; the previous ones stay in use", why=problem)


def _read_pair(files: TlsFiles) -> TlsMaterial:
    """Raises BadTls."""
    for _ in range(_PAIR_TRIES):
        try:
            return files.read()
        except UnmatchedPair:
            time.sleep(_PAIR_RETRY_S)
    return files.read()


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    if material.cert_pem is None or material.key_pem is None:
        raise BadTls("a server needs a certificate and its key: --tls-cert and --tls-key")
    return grpc.ssl_server_certificate_configuration([(material.key_pem, material.cert_pem)], material.ca_pem)


def _stamps(files: TlsFiles) -> tuple[FileStamp | None, ...] | None:
    try:
        return files.stamps()
    except OSError:
        return None
