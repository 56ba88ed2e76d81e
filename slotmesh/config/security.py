"""The settings of TLS that every member of the mesh has: where its certificate, its key and the authorities are.

Invariants: without any of them there is no TLS; with some of them they are complete, or the process does not start.
`cryptography` is imported only where there are certificates: it takes most of a second.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from slotmesh.config import Duration, FieldKind, Settings, SettingsError
from slotmesh.config.declaring import Field, field_validator, model_validator
from slotmesh.config.listening import SET_UP
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tls_paths import TlsPaths, chosen_paths
from slotmesh.security.tokens import Tokens
from slotmesh.security.tokens.rules import DEFAULT_ALGORITHMS, MAX_LEEWAY_S, JwtRules, algorithms_problem

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


# The settings of bearer tokens, of what clients and operators connect to: routers and controllers.
#
# Invariants: tokens travel by TLS only; an issuer is given whole, or the process does not start. `jwt` and
# `cryptography`
# are imported only where an issuer is.

_ISSUER: Final = {
    "jwt_issuer": "--jwt-issuer URL (the claim iss)",
    "jwt_audience": "--jwt-audience TEXT (the claim aud)",
    "jwt_jwks": "--jwt-jwks FILE (the issuer's public keys)",
}
Names = Annotated[str, FieldKind("names with commas between them", "NAME[,NAME]")]


class TokenSettings(TlsSettings):
    """Base of the settings of what accepts bearer tokens."""

    tokens: Path | None = Field(
        None,
        description="File with static bearer tokens, as `slotmesh token create` makes it; others on the machine cannot "
        "read it (mode 600). Needs TLS.",
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Issuer whose JWT are accepted as bearer tokens, as the claim iss has it. Needs TLS, and "
        "--jwt-audience and --jwt-jwks.",
    )
    jwt_audience: str | None = Field(None, min_length=1, description="What the claim aud of a JWT has to name.")
    jwt_jwks: Path | None = Field(
        None, description="File with the issuer's public keys (JWKS), which is read again when it changes."
    )
    jwt_algorithms: Names = Field(
        ",".join(DEFAULT_ALGORITHMS),
        description="Algorithms by which JWT may be signed, with commas between them: RS, PS or ES with 256, 384 or "
        "512, and EdDSA.",
    )
    jwt_roles_claim: str = Field(
        "slotmesh_roles",
        min_length=1,
        description="Claim of a JWT with a list of the roles of its holder: viewer, invoker, operator.",
    )
    jwt_leeway: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        le=timedelta(seconds=MAX_LEEWAY_S),
        description="By how much the clock of the issuer may differ.",
    )

    @property
    def accepts_tokens(self) -> bool:
        """Whether anybody can be known by a token."""
        return self.tokens is not None or self.jwt_issuer is not None

    @field_validator("jwt_algorithms")
    @classmethod
    def _are_algorithms(cls, text: str) -> str:
        if problem := algorithms_problem(_names(text)):
            raise ValueError(problem)
        return text

    @model_validator
    def _has_whole_issuer(self) -> Self:
        given = [name for name in _ISSUER if getattr(self, name) is not None]
        if missing := [words for name, words in _ISSUER.items() if given and name not in given]:
            raise ValueError(f"--{given[0].replace('_', '-')}: needs {' and '.join(missing)} as well")
        return self

    @model_validator
    def _travel_by_tls(self) -> Self:
        if self.accepts_tokens and self.tls_paths is None:
            flag = "--tokens" if self.tokens is not None else "--jwt-issuer"
            raise ValueError(f"{flag}: tokens need TLS, or everybody on the way reads them: {SET_UP}")
        return self

    def token_verifier(self) -> Tokens | None:
        """Who the holders of tokens are, by files that are read and checked; None: no token is accepted.

        Asked once a process.

        Raises:
            SettingsError: a file cannot be used; the message names it and the way out.
        """
        if not self.accepts_tokens:
            return None
        rules = None
        if self.jwt_issuer is not None and self.jwt_audience is not None:
            rules = JwtRules(
                issuer=self.jwt_issuer,
                audience=self.jwt_audience,
                algorithms=_names(self.jwt_algorithms),
                roles_claim=self.jwt_roles_claim,
                leeway_s=self.jwt_leeway.total_seconds(),
            )
        try:
            return Tokens(self.tokens, self.jwt_jwks, rules)
        except UnusableFile as error:
            raise SettingsError(f"tokens: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
