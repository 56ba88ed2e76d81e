"""`slotmesh certs revoke`: what it takes back, what it writes, and what it says."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slotmesh.security.tls import TlsFiles
from slotmesh.security.tls.authority import load_authority
from slotmesh.security.tls.revoking import revoke
from tests.unit.cli.test_certs import leaf, run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    assert run("init", "--dir", made, "--operator", "ann", "--trust-domain", "mesh.test").exit_code == 0
    return made


def revoked(directory: Path) -> set[int]:
    """Serial numbers that its list has."""
    return {
        serial
        for _, serial in TlsFiles(directory / "ca.crt", crl=directory / "ca.crl").read().trust.revocations.revoked
    }


def serial(directory: Path, name: str) -> int:
    return leaf(directory, name).serial_number


def test_all_that_somebody_had_is_taken_back(directory: Path, tmp_path: Path) -> None:
    """What was issued before as well, and to another directory; nobody else's."""
    serials = set()
    places: tuple[list[str | Path], ...] = ([], ["--out", tmp_path / "laptop"], [])
    for out in places:
        assert run("issue", "client/bob", "--dir", directory, *out).exit_code == 0
        serials.add(serial(tmp_path / "laptop" if out else directory, "client-bob"))
    run("issue", "client/eve", "--dir", directory)
    ran = run("revoke", "client/bob", "--dir", directory)
    assert (ran.exit_code, "3 certificates revoked" in ran.stdout) == (0, True), ran.output
    assert revoked(directory) == serials
    assert "nothing new" in run("revoke", "client/bob", "--dir", directory).stdout, "again"
    assert "`slotmesh certs issue client/bob` makes another" in ran.stdout
    run("issue", "client/bob", "--dir", directory)
    assert serial(directory, "client-bob") not in revoked(directory), "who gets another one has one that counts"
    assert run("revoke", "client/bob", "client/eve", "--dir", directory).exit_code == 0
    assert revoked(directory) == serials | {serial(directory, name) for name in ("client-bob", "client-eve")}
    assert stat.S_IMODE((directory / "ca.crl").stat().st_mode) == 0o644


def test_what_a_rotation_has_made_can_be_kept(directory: Path) -> None:
    before = serial(directory, "router")
    run("rotate", "router", "--dir", directory)
    assert run("revoke", "router", "--keep-current", "--dir", directory).exit_code == 0
    assert revoked(directory) == {before}


def test_a_certificate_that_was_found_is_taken_back(directory: Path, tmp_path: Path) -> None:
    """And one of a directory whose record of what was issued is lost."""
    run("issue", "client/bob", "--dir", directory, "--out", tmp_path / "found")
    (directory / "ca.issued").unlink()
    assert run("revoke", "--file", tmp_path / "found" / "client-bob.crt", "--dir", directory).exit_code == 0
    assert run("revoke", "router", "--dir", directory).exit_code == 0
    assert revoked(directory) == {serial(tmp_path / "found", "client-bob"), serial(directory, "router")}


def test_the_list_goes_with_what_is_issued_elsewhere(directory: Path, tmp_path: Path) -> None:
    run("revoke", "replica", "--dir", directory)
    run("issue", "replica", "--dir", directory, "--out", tmp_path / "gpu")
    assert (tmp_path / "gpu" / "ca.crl").read_bytes() == (directory / "ca.crl").read_bytes()


def test_show_tells_what_was_revoked(directory: Path) -> None:
    run("revoke", "router", "--dir", directory)
    shown = run("show", "--dir", directory, "--json")
    assert shown.exit_code == 4
    states = {each["name"]: each["state"] for each in json.loads(shown.stdout)["certificates"]}
    assert states == {"router": "revoked"} | dict.fromkeys(("ca", "controller", "operator-ann", "replica"), "ok")
    assert "revoked" in run("show", "--dir", directory).stdout


@pytest.mark.parametrize("which", ["no list", "no record"])
def test_lists_and_records_that_cannot_be_read_are_told(directory: Path, which: str) -> None:
    if which == "no record":
        (directory / "ca.issued").write_text("nothing\n")
        said = "line 1 is no record of a certificate"
    else:
        (directory / "ca.crl").write_text("nothing\n")
        said = "holds something else than whole lists"
    before = sorted(directory.iterdir())
    refused = run("revoke", "router", "--dir", directory)
    assert (refused.exit_code, said in refused.stderr) == (1, True), refused.stderr
    assert sorted(directory.iterdir()) == before


@pytest.mark.parametrize("line", ['{"identity": "torn', '{"identity":"x","serial":"0","until":"2030-01-01T00:00:00Z"}'])
def test_a_line_of_the_record_that_means_nothing_is_told(directory: Path, line: str) -> None:
    """And what is issued later stays a line of its own."""
    record = directory / "ca.issued"
    record.write_text(record.read_text() + line)
    run("issue", "client/bob", "--dir", directory)
    refused = run("revoke", "client/bob", "--dir", directory)
    assert (refused.exit_code, "is no record of a certificate" in refused.stderr) == (1, True)
    record.write_text(record.read_text().replace(line, ""))
    assert run("revoke", "client/bob", "--dir", directory).exit_code == 0


def test_a_bad_list_keeps_no_certificate_from_being_issued(directory: Path) -> None:
    (directory / "ca.crl").write_text("nothing\n")
    assert run("rotate", "router", "--dir", directory).exit_code == 0
    assert run("issue", "client/bob", "--dir", directory).exit_code == 0
    assert "holds something else" in run("show", "--dir", directory).stderr


def test_lists_of_other_authorities_stay(directory: Path, tmp_path: Path) -> None:
    """While a mesh goes from one to another, both have theirs in one file."""
    other = tmp_path / "other"
    run("init", "--dir", other, "--trust-domain", "mesh.test")
    run("revoke", "router", "--dir", other)
    theirs = (other / "ca.crl").read_bytes()
    (directory / "ca.crl").write_bytes(theirs)
    assert run("revoke", "router", "--dir", directory).exit_code == 0
    assert theirs.strip() in (directory / "ca.crl").read_bytes()
    (directory / "ca.crt").write_bytes((directory / "ca.crt").read_bytes() + (other / "ca.crt").read_bytes())
    assert revoked(directory) == {serial(directory, "router"), serial(other, "router")}


def test_what_was_issued_elsewhere_last_is_current(directory: Path, tmp_path: Path) -> None:
    """As in compose, where each service has a volume of its own."""
    run("issue", "router", "--dir", directory, "--out", tmp_path / "volume")
    assert run("revoke", "router", "--keep-current", "--dir", directory).exit_code == 0
    assert revoked(directory) == {serial(directory, "router")}


def test_those_who_revoke_at_once_lose_nothing(directory: Path) -> None:
    names = [f"client/c{number}" for number in range(6)]
    for name in names:
        run("issue", name, "--dir", directory)
    authority = load_authority(directory / "ca.crt", directory / "ca.key")
    issued = [authority.issued.of(f"spiffe://mesh.test/{name}")[0] for name in names]
    with ThreadPoolExecutor() as threads:
        done = [*threads.map(lambda each: revoke(authority, directory / "ca.crl", [each]), issued)]
    assert sorted(each.total for each in done) == [1, 2, 3, 4, 5, 6]
    assert revoked(directory) == {each.serial_number for each in issued}


def test_only_what_is_taken_back_now_is_told(directory: Path) -> None:
    run("revoke", "router", "--dir", directory)
    ran = run("revoke", "replica", "--dir", directory)
    assert "`slotmesh certs issue replica` makes another" in ran.stdout
    assert "router.crt" not in ran.stdout


def test_a_list_that_was_lost_is_made_again(directory: Path) -> None:
    """With all that it had: services take it as a newer one."""
    for name in ("client/bob", "client/eve"):
        run("issue", name, "--dir", directory)
    run("revoke", "client/bob", "--dir", directory)
    before = revoked(directory)
    (directory / "ca.crl").unlink()
    assert run("revoke", "client/eve", "--dir", directory).exit_code == 0
    assert revoked(directory) == before | {serial(directory, "client-eve")}


@pytest.mark.parametrize("name", ["client-bob", "spiffe://mesh.test/client/bob"])
def test_whose_they_are_may_be_written_as_show_does(directory: Path, name: str) -> None:
    run("issue", "client/bob", "--dir", directory)
    assert run("revoke", name, "--dir", directory).exit_code == 0
    assert revoked(directory) == {serial(directory, "client-bob")}


def test_an_authority_does_not_revoke_itself(directory: Path) -> None:
    refused = run("revoke", "--file", directory / "ca.crt", "--dir", directory)
    assert (refused.exit_code, (directory / "ca.crl").exists()) == (1, False)


def test_a_file_of_another_authority_is_not_revoked(directory: Path, tmp_path: Path) -> None:
    run("init", "--dir", tmp_path / "other", "--trust-domain", "mesh.test")
    refused = run("revoke", "--file", tmp_path / "other" / "router.crt", "--dir", directory)
    assert refused.exit_code == 1
    assert "is no certificate that the authority of mesh.test has issued" in refused.stderr
    assert not (directory / "ca.crl").exists()
