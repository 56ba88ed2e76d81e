"""Files of certificates: what can be used, and in which words the rest is refused."""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slotmesh.security.identity import Role
from slotmesh.security.secret_files import MAX_BYTES, FileGuard, mode_problem
from slotmesh.security.tls import BadTls, TlsFiles
from slotmesh.security.tls.source import server_problem
from tests.support.certificates import Authority

PAST = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


def refusal(files: TlsFiles, now: float | None = None) -> str:
    with pytest.raises(BadTls) as caught:
        files.read(now)
    return str(caught.value)


def test_a_certificate_says_whom_it_names_and_until_when(authority: Authority) -> None:
    material = authority.issue("replica", "digits").read()
    assert material.uri == "spiffe://mesh.test/replica/digits"
    assert material.trust_domain == "mesh.test"
    assert material.leaf is not None
    assert material.leaf.dns_names == ("replica.mesh.test", "digits.replica.mesh.test")
    assert material.not_after is not None
    assert material.ca_not_after > material.not_after


def test_no_repr_has_a_key(authority: Authority) -> None:
    material = authority.issue("router").read()
    assert material.key_pem is not None
    assert material.key_pem.decode().splitlines()[1] not in repr(material)
    assert repr(material) == "<TLS material of spiffe://mesh.test/router>"


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_half_of_a_pair_is_refused(authority: Authority, missing: str) -> None:
    files = authority.issue("router")
    half = TlsFiles(files.ca, None if missing == "cert" else files.cert, None if missing == "key" else files.key)
    assert f"--tls-{missing}" in refusal(half)


def test_authorities_alone_are_enough_for_a_client_with_a_token(authority: Authority) -> None:
    material = TlsFiles(authority.ca).read()
    assert (material.uri, material.trust_domain, material.not_after) == ("", "mesh.test", None)


def test_times_are_looked_at(authority: Authority, tmp_path: Path) -> None:
    assert "has expired; `slotmesh certs rotate`" in refusal(authority.issue("router", not_after=PAST))
    early = (PAST - timedelta(days=1)).timestamp()
    assert "is not valid yet: look at the clock" in refusal(authority.issue("router"), early)
    stale = Authority(tmp_path / "stale", not_after=PAST)
    assert f"{stale.ca}: the certificate of the authority has expired" in refusal(stale.issue("router"))


def test_one_authority_that_is_valid_is_enough(authority: Authority, tmp_path: Path) -> None:
    stale = Authority(tmp_path / "stale", not_after=PAST)
    files = authority.issue("router")
    authority.ca.write_bytes(stale.ca.read_bytes() + authority.ca.read_bytes())
    assert files.read().trust_domain == "mesh.test"


def test_a_certificate_of_two_identities_is_refused(authority: Authority) -> None:
    files = authority.issue("router", dns=["spiffe://mesh.test/operator/eve"])
    assert "names 2 identities, spiffe://mesh.test/router, spiffe://mesh.test/operator/eve" in refusal(files)


def test_what_is_no_pem_is_refused(authority: Authority) -> None:
    files = authority.issue("router")
    assert files.cert is not None
    assert files.key is not None
    other = authority.issue("controller")
    assert other.key is not None
    assert "is not the key of the certificate" in refusal(TlsFiles(files.ca, files.cert, other.key))
    for path, words in (
        (files.key, "holds no private key"),
        (files.cert, "holds no certificate"),
        (files.ca, "holds no certificate"),
    ):
        for content in (b"", b"\0\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
            before = path.read_bytes()
            path.write_bytes(content)
            assert words in refusal(files)
            path.write_bytes(before)


def test_a_certificate_that_is_damaged_is_a_bad_one_wherever_the_damage_is(authority: Authority) -> None:
    """In its extensions, its key, its times: never anything but BadTls reaches a handshake."""
    files = authority.issue("router", dns=["a.example"])
    assert files.cert is not None
    lines = files.cert.read_text().splitlines()
    der = base64.b64decode("".join(lines[1:-1]))
    for position in range(0, len(der), 3):
        damaged = der[:position] + bytes([der[position] ^ 0x55]) + der[position + 1 :]
        body = base64.encodebytes(damaged).decode()
        files.cert.write_text(f"{lines[0]}\n{body}{lines[-1]}\n")
        with suppress(BadTls):
            files.read()


def test_files_have_a_bound_and_are_plain(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("router")
    large = tmp_path / "large.crt"
    large.write_bytes(b"x" * (MAX_BYTES + 1))
    assert "larger than 1024 KiB" in refusal(TlsFiles(large, files.cert, files.key))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "has to be a plain file" in refusal(TlsFiles(pipe, files.cert, files.key))
    files.ca.chmod(0o666)
    assert "can be written by others" in refusal(files)
    files.ca.chmod(0o644)
    assert "cannot be read: there is no such file" in refusal(TlsFiles(tmp_path / "none", files.cert, files.key))


@pytest.mark.parametrize(
    ("mode", "owner", "is_secret"),
    [
        (0o600, 1000, True),
        (0o400, 1000, True),
        (0o640, 1000, False),  # its owner can take that away
        (0o604, 1000, False),
        (0o620, 1000, False),
        (0o600, 0, True),
        (0o440, 0, True),  # of Kubernetes with fsGroup
        (0o640, 0, True),
        (0o660, 0, False),
        (0o644, 0, False),
    ],
)
def test_who_may_read_a_key(mode: int, owner: int, is_secret: bool) -> None:
    found = os.stat_result((0o100000 | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
    assert (mode_problem(Path("key"), found, FileGuard.SECRET) is None) is is_secret


def test_a_key_that_all_can_read_is_refused_through_links_too(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("router")
    assert files.key is not None
    link = tmp_path / "link.key"
    link.symlink_to(files.key)
    linked = TlsFiles(files.ca, files.cert, link)
    assert linked.read().uri
    before = linked.stamps()
    files.key.chmod(0o644)
    assert linked.stamps() != before
    assert f"chmod 600 {link}" in refusal(linked)


def test_a_server_has_a_certificate_that_others_take_for_it(authority: Authority) -> None:
    def problem(files: TlsFiles, role: Role, backend: str = "") -> str | None:
        return server_problem(files.read(), role, backend)

    assert problem(authority.issue("router"), Role.ROUTER) is None
    assert problem(authority.issue("replica"), Role.REPLICA, "digits") is None
    assert problem(authority.issue("replica"), Role.REPLICA, "Not A Label") is None
    assert problem(authority.issue("replica", "digits"), Role.REPLICA, "digits") is None
    assert "may not serve backend words" in str(problem(authority.issue("replica", "digits"), Role.REPLICA, "words"))
    assert "which is no router" in str(problem(authority.issue("client", "alice"), Role.ROUTER))
    assert "names no identity" in str(problem(authority.issue("router", uri=""), Role.ROUTER))
    assert "there is no certificate" in str(problem(TlsFiles(authority.ca), Role.ROUTER))
    foreign = authority.issue("router", uri="spiffe://mesh.test/router/extra")
    assert "which is no router" in str(problem(foreign, Role.ROUTER))


@pytest.mark.parametrize(
    ("usages", "missing"), [(["client"], "a server"), (["server"], "a client"), ([], "a client and")]
)
def test_a_server_has_a_certificate_for_servers_and_clients(
    authority: Authority, usages: list[str], missing: str
) -> None:
    """Members are both: a router serves, and connects to replicas."""
    material = authority.issue("router").read()
    assert material.leaf is not None
    limited = replace(material, leaf=replace(material.leaf, usages=frozenset(usages)))
    assert f"may not be used as that of {missing}" in str(server_problem(limited, Role.ROUTER))
    unlimited = replace(material, leaf=replace(material.leaf, usages=None))
    assert server_problem(unlimited, Role.ROUTER) is None
