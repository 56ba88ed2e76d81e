"""`slotmesh certs`: what it makes, what it refuses, and what it says of certificates."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner, Result

from slotmesh.cli.app import app
from slotmesh.security.identity import Role
from slotmesh.security.tls import BadTls, TlsFiles, TlsMaterial
from slotmesh.security.tls.authority import Subject, load_authority, replace
from slotmesh.security.tls.certificates import Certificate
from slotmesh.security.tls.source import server_problem


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["certs", *map(str, words)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    assert run("init", "--dir", made, "--operator", "ann", "--trust-domain", "mesh.test").exit_code == 0
    return made


def material(directory: Path, name: str) -> TlsMaterial:
    return TlsFiles(directory / "ca.crt", directory / f"{name}.crt", directory / f"{name}.key").read()


def left(found: TlsMaterial) -> timedelta:
    assert found.not_after is not None
    return datetime.fromtimestamp(found.not_after, UTC) - datetime.now(UTC)


def test_one_command_makes_what_a_mesh_needs(directory: Path) -> None:
    for role in (Role.CONTROLLER, Role.ROUTER, Role.REPLICA):
        assert server_problem(material(directory, role), role, "any" if role is Role.REPLICA else "") is None
    assert material(directory, "operator-ann").uri == "spiffe://mesh.test/operator/ann"
    assert timedelta(days=89) < left(material(directory, "router")) < timedelta(days=91)
    keys = [each for each in directory.iterdir() if each.suffix == ".key"]
    assert len(keys) == 5
    assert {stat.S_IMODE(each.stat().st_mode) for each in keys} == {0o600}


def test_an_authority_is_never_overwritten(directory: Path) -> None:
    before = (directory / "ca.key").read_bytes(), (directory / "ca.crt").read_bytes()
    again = run("init", "--dir", directory)
    assert again.exit_code == 1
    assert "never overwritten" in again.stderr
    assert run("init", "--dir", directory, "--if-missing").exit_code == 0
    (directory / "ca.crt").unlink()
    assert run("init", "--dir", directory).exit_code == 1
    assert (directory / "ca.key").read_bytes() == before[0]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["issue", "client"], 1, "needs a name"),
        (["issue", "king/arthur"], 1, "'king' is no kind of identity"),
        (["issue", "client/a b"], 1, "cannot be used"),
        (["issue", "router", "--hours", "23"], 2, "must be at least 24, is 23"),
        (["issue", "router", "--days", "367"], 2, "must be at most 366, is 367"),
        (["issue", "router", "--days", "3", "--hours", "72"], 2, "contradicts --days"),
        (["issue", "router", "--dns", "ümlaut.example"], 1, "DNS name"),
        (["issue", "client/eve", "--dns", "router.mesh.test"], 1, "would let client/eve pass for a router"),
        (["issue", "client/eve", "--dns", "ingress.mesh.test"], 1, "would let client/eve pass for an ingress"),
        (["issue", "ingress", "--dns", "router.mesh.test"], 1, "would let ingress pass for a router"),
        (["issue", "ingress/web"], 1, "cannot be used"),
        (["issue", "client/eve", "--dns", "*.mesh.test"], 1, "would let client/eve pass for a controller"),
        (["issue", "client/eve", "--dns", "*.replica.mesh.test"], 1, "would let client/eve pass for a replica"),
        (["issue", "client/eve", "--dns", "b.replica.mesh.test"], 1, "would let client/eve pass for a replica"),
        (["issue", "replica/a", "--dns", "b.replica.mesh.test"], 1, "would let replica/a pass for a replica"),
        (["issue", "replica/a", "--dns", "*.replica.mesh.test"], 1, "would let replica/a pass for a replica"),
        (["issue", "router", "--dns", "controller.mesh.test"], 1, "would let router pass for a controller"),
        (["issue", "router", "--dns", "*.mesh.test"], 1, "would let router pass for a controller"),
        (["revoke"], 1, "whose certificates?"),
        (["revoke", "client/nobody"], 1, "nothing was issued to spiffe://mesh.test/client/nobody that has not ended"),
        (["revoke", "router", "--keep-current"], 1, "has not ended, beside the one that is kept"),
        (["revoke", "--file", "none.crt"], 1, "none.crt: the certificate cannot be read: there is no such file"),
        (["rotate", "client/nobody"], 1, "client-nobody.crt: there is none to issue again; there are: controller"),
    ],
)
def test_what_cannot_be_issued_is_told(directory: Path, words: list[str], status: int, said: str) -> None:
    refused = run(*words, "--dir", directory)
    assert refused.exit_code == status
    assert said in refused.stderr


def test_without_an_authority_the_way_to_one_is_told(tmp_path: Path) -> None:
    for words in (["issue", "router"], ["rotate"], ["show"]):
        refused = run(*words, "--dir", tmp_path / "none")
        assert refused.exit_code == 1
        assert "slotmesh certs init" in refused.stderr


def test_a_leaf_can_be_issued_for_another_machine(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "of-replica"
    words: list[str | Path] = [
        "issue",
        "replica/digits",
        "--dir",
        directory,
        "--out",
        out,
        "--hours",
        "24",
        "--dns",
        "gpu7.example",
    ]
    assert run(*words).exit_code == 0
    found = material(out, "replica-digits")
    assert server_problem(found, Role.REPLICA, "digits") is None
    assert found.leaf is not None
    assert "gpu7.example" in found.leaf.dns_names
    assert left(found) < timedelta(hours=24)
    assert sorted(each.name for each in out.iterdir()) == ["ca.crt", "replica-digits.crt", "replica-digits.key"]


def test_only_servers_may_be_used_as_servers(directory: Path) -> None:
    """Whatever DNS names a caller has asked for."""
    for who, names in (
        ("client/bob", ["bob.example", "mesh.test"]),
        ("router", ["edge.mesh.test", "router.mesh.test"]),
        ("ingress", ["localhost"]),
    ):
        run("issue", who, "--dir", directory, *(word for name in names for word in ("--dns", name)))
    usages = {
        name: leaf(directory, name).usages for name in ("client-bob", "router", "operator-ann", "replica", "ingress")
    }
    both = frozenset({"server", "client"})
    assert usages == {
        "client-bob": frozenset({"client"}),
        "router": both,
        "operator-ann": frozenset({"client"}),
        "replica": both,
        "ingress": both,
    }
    assert set(leaf(directory, "ingress").dns_names) == {"ingress.mesh.test", "localhost"}
    assert run("issue", "replica", "--dns", "b.replica.mesh.test", "--dir", directory).exit_code == 0, "any backend"


def leaf(directory: Path, name: str) -> Certificate:
    found = material(directory, name).leaf
    assert found is not None
    return found


def test_certificates_are_issued_again_as_they_were(directory: Path) -> None:
    run("issue", "client/bob", "--dir", directory, "--days", "7", "--dns", "bob.example")
    before = {name: material(directory, name) for name in ("router", "client-bob")}
    assert run("rotate", "--dir", directory).exit_code == 0
    for name, old in before.items():
        new = material(directory, name)
        assert new.key_pem != old.key_pem
        assert old.leaf is not None
        assert new.leaf is not None
        assert (new.leaf.uris, new.leaf.dns_names) == (old.leaf.uris, old.leaf.dns_names)
        assert abs(left(new) - left(old)) < timedelta(minutes=1)
    kept = material(directory, "router").cert_pem
    assert run("rotate", "client/bob", "--dir", directory, "--hours", "48").exit_code == 0
    assert material(directory, "router").cert_pem == kept
    assert left(material(directory, "client-bob")) < timedelta(hours=48)


def test_show_tells_until_when_and_fails_where_one_has_expired(directory: Path) -> None:
    fine = run("show", "--dir", directory, "-o", "json")
    assert fine.exit_code == 0
    states = {each["name"]: each["state"] for each in json.loads(fine.stdout)["certificates"]}
    assert states == dict.fromkeys(("ca", "controller", "operator-ann", "replica", "router"), "ok")
    authority = load_authority(directory / "ca.crt", directory / "ca.key")
    month = timedelta(days=30)
    for name, age in (("late", timedelta(days=25)), ("gone", timedelta(days=31))):
        subject = Subject.of("mesh.test", f"client/{name}")
        authority.issue(directory, subject, month, datetime.now(UTC) - age)
    (directory / "odd.crt").write_text("nothing")
    shown = run("show", "--dir", directory, "--json")
    assert shown.exit_code == 4
    states = {each["name"]: each["state"] for each in json.loads(shown.stdout)["certificates"]}
    assert (states["client-late"], states["client-gone"], states["odd"]) == ("ends-soon", "expired", "unreadable")
    assert "expired" in run("show", "--dir", directory).stdout
    assert "client-late" in run("show", "--dir", directory, "-o", "name").stdout.splitlines()


def test_no_message_has_a_key(directory: Path) -> None:
    key = (directory / "ca.key").read_text().splitlines()[1]
    authority = load_authority(directory / "ca.crt", directory / "ca.key")
    outputs = [run(*words, "--dir", directory).output for words in (["show"], ["rotate"], ["issue", "router"])]
    assert key not in f"{authority!r}{outputs}"


def test_nothing_that_is_there_is_replaced_by_what_has_to_be_new(tmp_path: Path) -> None:
    path = tmp_path / "ca.key"
    replace(path, b"one", mode=0o600, is_new=True)
    with pytest.raises(BadTls, match="never overwritten"):
        replace(path, b"two", mode=0o600, is_new=True)
    assert [each.name for each in tmp_path.iterdir()] == ["ca.key"]
    assert path.read_bytes() == b"one"


def test_certificates_of_controller_and_router_name_this_machine(directory: Path) -> None:
    """For clients that compare a certificate with the address: browsers, curl, gRPC in other languages.

    Replicas run code of handlers, which must not pass for a router.
    """
    run("issue", "ingress", "--dir", directory)
    run("rotate", "--dir", directory)
    for name in ("controller", "router", "ingress", "replica", "operator-ann"):
        found = x509.load_pem_x509_certificate((directory / f"{name}.crt").read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        expected = name in {"controller", "router", "ingress"}
        assert (ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)) is expected
        assert (ip_address("::1") in names.get_values_for_type(x509.IPAddress)) is expected
        assert ("localhost" in names.get_values_for_type(x509.DNSName)) is expected
