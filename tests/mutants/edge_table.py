"""Mutants of the edge: who is let in, how much each may have, what is read of what arrives."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

SECURITY: Final = "slotmesh/security"
RUNTIME: Final = "slotmesh/runtime"
ROUTER: Final = "router_service"
INGRESS: Final = "ingress_service"
OIP: Final = "slotmesh/oip"

_CREDENTIALS: Final = (
    mutant(
        "a token is taken whatever stands before it",
        SECURITY,
        "not found[0].lower().startswith(_SCHEME)",
        "False",
        "tests/contract/security/test_bearer_tokens.py",
    ),
    mutant(
        "a stream goes on after its credential has expired",
        SECURITY,
        "if has_expired(credential.identity, self._now()):",
        "if False:",
        "tests/contract/security/test_held_streams.py tests/unit/security",
    ),
    mutant(
        "an authority vouches for what an authority without that right has issued",
        SECURITY,
        "return issuer.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign",
        "return True",
        "tests/unit/security",
    ),
    mutant(
        "a certificate that is for clients alone serves",
        SECURITY,
        "if material.leaf.usages is not None and (missing :=",
        "if material.leaf.usages is None and (missing :=",
        "tests/unit/security/test_tls_files.py",
    ),
    mutant(
        "a file that is watched is looked at by nobody",
        SECURITY,
        "while not ended.wait(LOOK_S):",
        "while False:",
        "tests/unit/security",
    ),
    mutant(
        "`check` takes any server for one of the mesh",
        "slotmesh/cli",
        "if who is None or role not in who.roles or (backend and not who.may_serve(backend)):",
        "if False:",
        "tests/unit/cli/checking",
    ),
    mutant(
        "a token file that others can read is taken",
        "slotmesh/cli",
        'read_guarded(path, "file with a token", FileGuard.SECRET)',
        "path.read_bytes()",
        "tests/contract/security/test_tls_refusals.py",
    ),
    mutant(
        "metrics are for everybody",
        "slotmesh/telemetry",
        "if (refusal := self._refusal(environ)) is None:",
        "if (refusal := self._refusal(environ) and None) is None:",
        "tests/contract/server/test_metrics_by_tls.py",
    ),
    mutant(
        "a metrics page that is refused is in no audit log",
        "slotmesh/telemetry",
        "_log_refusal(refusal, environ)\n                status",
        "status",
        "tests/contract/server/test_metrics_by_tls.py",
    ),
    mutant(
        "a server is ready before it serves",
        "slotmesh/telemetry",
        """return _UNAVAILABLE, "starting\\n" if self._look is None""",
        """return _OK, "starting\\n" if self._look is None""",
        "tests/unit/telemetry/test_pages.py",
    ),
)

_QUOTAS: Final = (
    mutant(
        "a caller may have one thing more than the quota",
        SECURITY,
        "if held + amount <= self.most:",
        "if held <= self.most:",
        "tests/unit/security tests/contract/security/test_quotas.py",
    ),
    mutant(
        "what has ended counts for ever",
        SECURITY,
        "left = self.held[who] - amount",
        "left = self.held[who]",
        "tests/unit/security tests/contract/security/test_quotas.py",
    ),
    mutant(
        "a rate fills at once",
        SECURITY,
        "left = min(self._most, left + (now - since) * self._per_s)",
        "left = self._most",
        "tests/unit/security",
    ),
    mutant(
        "bytes in flight count for nobody",
        ROUTER,
        "self._quotas.bytes.take(self._who, size)",
        "pass",
        "tests/unit/router tests/contract/security/test_quotas.py",
    ),
    mutant(
        "a stream that is refused runs",
        "slotmesh/server",
        "failure = None if quota is None else quota.refusal(quota_name())",
        "failure = None",
        "tests/contract/security/test_quotas.py",
    ),
)

_DOORS: Final = (
    mutant(
        "a body of any size is read",
        INGRESS,
        "if size + more > self._bodies.most_of_one:",
        "if False:",
        "tests/contract/ingress/test_bounds.py",
    ),
    mutant(
        "bodies together have no bound",
        INGRESS,
        "if (over := bound.over(self.who, more, self._size)) is not None:",
        "if (over := bound.over(self.who, more, self._size)) is not None and False:",
        "tests/contract/ingress/test_bounds.py",
    ),
    mutant(
        "a tensor has fewer elements than its shape",
        OIP,
        "if count != prod(shape):",
        "if False:",
        "tests/unit/oip tests/contract/inference/test_mistakes.py",
    ),
    mutant(
        "raw tensors have any number of bytes",
        OIP,
        'return "" if size == expected else',
        'return "" if True else',
        "tests/unit/oip tests/contract/inference/test_mistakes.py",
    ),
)

EDGE: Final = (*_CREDENTIALS, *_QUOTAS, *_DOORS)
