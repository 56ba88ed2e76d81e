"""Authenticates and authorises each rpc: once when it starts, and once a second while it streams.

Purpose: finds the identity behind an rpc, by its bearer token or by the certificate of its connection, and applies the
rule that the proto declares.
Invariants: denied by default. A token has precedence over a certificate: an unknown token is refused whatever the
certificate. A credential that becomes invalid ends the streams that were opened with it. The handshake has checked the
chain of a certificate; it is checked again whenever the authorities or their revocations change, so that an open
connection is trusted no longer than a new one. A certificate with two identities, with none, or with one of another
trust domain identifies no caller.
Owner: the server's app, on the server's event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from slotmesh.errors import Executed, Failure
from slotmesh.security.audit import AUDIT
from slotmesh.security.identity import CALLER, RPC, Credential, Identity, identity_of
from slotmesh.security.rpc_roles import Rule, decide, has_expired, unknown_caller
from slotmesh.security.tokens.rules import BadToken, TokenProblem

if TYPE_CHECKING:
    from cryptography import x509

    from slotmesh.security.tls.revocations import TrustedAuthorities


Trust: TypeAlias = "Callable[[], TrustedAuthorities | None]"
"""Returns the present authorities, the same object until they change. None: the check of the handshake is final."""
KEPT: Final = 1024
"""The limit of cached certificates; the least recently used one is dropped."""
_CHAIN: Final = "x509_pem_cert_chain"
"""The intermediate certificates that the peer has sent."""


class PeerCertificate:
    """A certificate with an identity, and its validation against the present authorities."""

    __slots__ = ("_chain", "_checked_by", "_problem", "_trust", "identity")

    def __init__(self, identity: Identity, chain: list[x509.Certificate], trust: Trust) -> None:
        self.identity = identity
        self._chain = chain
        self._trust = trust
        self._checked_by: TrustedAuthorities | None = None
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Why the certificate is not accepted any more, except for its expiry; None if it is."""
        # Once per set of authorities: verifying a signature takes a hundred times as long as the rest of the check.
        if (authorities := self._trust()) is not self._checked_by:
            why = None if authorities is None else authorities.problem(self._chain)
            self._problem = None if why is None else f"the certificate of {self.identity.name} {why}"
            self._checked_by = authorities
        return self._problem


class PeerCertificates:
    """Cache of the certificates of connected peers; each is parsed once."""

    def __init__(self, trust_domain: str, trust: Trust = lambda: None) -> None:
        self._trust_domain = trust_domain
        self._trust = trust
        self._known: OrderedDict[bytes, PeerCertificate | None] = OrderedDict()

    def credential_of(self, context: Any) -> PeerCertificate | None:
        """The certificate of this rpc's peer; None if it shows none, or none with an identity."""
        # The key is the certificate, not the peer's address, which another client may have a moment later.
        shown = context.auth_context()
        if not (own := shown.get("x509_pem_cert")):
            return None
        pem = own[0]
        between = shown.get(_CHAIN)
        key = pem if not between else pem + between[0]
        try:
            found = self._known[key]
            self._known.move_to_end(key)
        except KeyError:
            if len(self._known) >= KEPT:
                self._known.popitem(last=False)
            found = self._known[key] = self._read(pem, between[0] if between else b"")
        return found

    def _read(self, pem: bytes, sent: bytes) -> PeerCertificate | None:
        from cryptography import x509  # noqa: PLC0415 - most of a second, for those who have certificates

        try:
            certificate = x509.load_pem_x509_certificate(pem)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
            between = [each for each in x509.load_pem_x509_certificates(sent) if each != certificate] if sent else []
        except Exception:  # noqa: BLE001 - any unreadable certificate has no identity
            return None
        identity = identity_of(uris[0], self._trust_domain) if len(uris) == 1 else None
        if identity is None:
            return None
        expiring = replace(identity, expires_at=certificate.not_valid_after_utc.timestamp())
        return PeerCertificate(expiring, [certificate, *between], self._trust)


_HEADER: Final = "authorization"
_SCHEME: Final = "bearer "


class TokenVerifier(Protocol):
    """Maps bearer tokens to identities. Both methods run on the event loop and do not block."""

    def identify(self, token: str) -> Identity:
        """The identity of the token's holder.

        Raises:
            BadToken: the token is not accepted. Its message may be sent to the caller, its reason may not.
        """
        ...

    def verify(self, token: str) -> Credential:
        """A credential that can be checked again, for streams.

        Raises:
            BadToken: as above.
        """
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """An rpc that was admitted, with its credential."""

    rule: Rule
    credential: Credential | None
    """None if the rpc is open to all callers."""


class Authorizer:
    """Authorises the rpcs of one server, or of several in one process."""

    def __init__(
        self,
        trust_domain: str,
        tokens: TokenVerifier | None = None,
        *,
        trust: Trust = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`tokens` None: no token is accepted. `trust` returns the present authorities for certificates.

        Without `trust` a certificate is valid until it expires. `now`: seconds since 1970.
        """
        self._certificates = PeerCertificates(trust_domain, trust)
        self._tokens = tokens
        self._now = now

    def admit(self, rule: Rule, context: Any) -> Admission | Failure:
        """Admits an rpc and sets the `caller()` of the running task; or returns the failure."""
        if rule.is_open:
            return Admission(rule, None)
        identity: Identity | None = None
        why = ""
        try:
            token = _token_of(context)
            credential = self._certificates.credential_of(context) if token is None else self._verified(token)
        except BadToken as error:
            failure: Failure | None = unknown_caller(rule, f"{rule.needs}: {error}")
            why = error.reason
        else:
            identity = None if credential is None else credential.identity
            failure = decide(identity, rule, self._now())
            if failure is None and credential is not None:
                if (problem := credential.problem()) is None:
                    CALLER.set(credential.identity)
                    RPC.set(rule.method)
                    return Admission(rule, credential)
                failure, why = unknown_caller(rule, f"{rule.needs}: {problem}"), problem
        failure = failure or unknown_caller(rule, rule.needs)
        AUDIT.denied(identity, rule.method, failure, context.peer(), why)
        return failure

    def lapsed(self, admission: Admission) -> Failure | None:
        """Why an admitted rpc must end; None if it may continue."""
        credential = admission.credential
        if credential is None:
            return None
        if has_expired(credential.identity, self._now()):
            why: str | None = f"the credential of {credential.identity.name} has expired"
        else:
            why = credential.problem()
        return None if why is None else unknown_caller(admission.rule, why, Executed.UNKNOWN)

    def _verified(self, token: str) -> Credential:
        if self._tokens is None:
            raise BadToken(
                TokenProblem.UNKNOWN, "this server accepts no tokens: there is no --tokens and no --jwt-jwks"
            )
        return self._tokens.verify(token)


def _token_of(context: Any) -> str | None:
    """The bearer token of an rpc; None if it has none.

    Raises:
        BadToken: the metadata has another value.
    """
    found = [value for key, value in context.invocation_metadata() or () if key == _HEADER]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], str) or not found[0].lower().startswith(_SCHEME):
        raise BadToken(TokenProblem.MALFORMED, "the metadata `authorization` is not `Bearer TOKEN`, once")
    return found[0][len(_SCHEME) :].strip()
