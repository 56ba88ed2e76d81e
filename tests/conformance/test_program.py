"""`python -m slotmesh.conformance` as its users run it: elsewhere, without this repository's tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

CARELESS = f"{sys.executable} {Path(__file__).with_name('careless_client.py')}"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotmesh.conformance", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_client_that_keeps_a_case_ends_it_with_0(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(tmp_path, "--case=basic/no_router", "--report", str(report))
    assert (done.returncode, done.stderr) == (0, "")
    assert "kept    basic/no_router" in done.stdout
    document = json.loads(report.read_text("utf-8"))
    assert document["tally"] == {"kept": 1, "failed": 0, "skipped": 0}
    assert document["client"].startswith("slotmesh-python")


def test_a_broken_rule_is_named_with_its_section_and_the_frames(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(tmp_path, "--client", CARELESS, "--case=basic/empty_payloads", "--report", str(report))
    assert done.returncode == 1, done.stdout
    page, line = next(each for each in done.stdout.splitlines() if "protocol.md:" in each).split(":")
    assert '<a id="b4"></a>' in Path(page.strip()).read_text("utf-8").splitlines()[int(line) - 1]
    assert "rule B4: Ids are 1 …" in done.stdout
    assert 'application  {"do": "call", "id": "a", "payload": "a"}' in done.stdout
    assert "not kept: B4: ids are 1 … 2^53 - 1, got 0" in done.stdout
    (case,) = json.loads(report.read_text("utf-8"))["cases"]
    assert (case["verdict"], case["rules"]) == ("failed", ["B4"])
    assert case["problem"]["breaches"] == [{"rule": "B4", "what": "ids are 1 … 2^53 - 1, got 0"}]
    assert any('payloads: "a"' in frame for frame in case["problem"]["frames"])


def test_a_wrong_outcome_is_shown_beside_the_expected_one_also_as_junit(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    cases = ["--case=no_router", "--client", CARELESS]
    done = run(tmp_path, *cases, "--report", str(report))
    assert done.returncode == 1, done.stdout
    assert "expected: the client reports 'a': {'error': {'reason': 'ROUTER_LOST'" in done.stdout
    assert "got:      {'id': 'a', 'result': '\\x01'}" in done.stdout
    lines = done.stdout.splitlines()
    assert "skipped 1 (needs level resumable)" in lines[2]
    assert lines[4].startswith("basic/no_router: "), "failures come last"
    assert lines[-1] == "1 failed, 1 skipped"
    suite = Xml.fromstring(report.read_text("utf-8"))  # noqa: S314 - written by this test's own child
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    assert "ROUTER_LOST" in (suite.findtext("testcase/failure") or "")


def test_an_adapter_that_cannot_be_used_ends_it_with_2(tmp_path: Path) -> None:
    missing = run(tmp_path, "--client", "/no/such/adapter")
    assert (missing.returncode, "cannot be started" in missing.stderr) == (2, True)
    ended = run(tmp_path, "--client", f"{sys.executable} -c 'print(1)'")
    assert ended.returncode == 2
    assert "has to write `ready` first: not a report: 1" in ended.stderr
    adapter = tmp_path / "adapter.py"
    ready = {"ready": {"client": "x", "level": "basik", "capabilities": []}}
    adapter.write_text(f"import sys\nprint({json.dumps(ready)!r}, flush=True)\nsys.stdin.read()\n")
    wrong = run(tmp_path, "--client", f"{sys.executable} {adapter}")
    assert (wrong.returncode, "`level` (basic, windowed, resumable)" in wrong.stderr) == (2, True)


def test_no_case_is_no_success(tmp_path: Path) -> None:
    done = run(tmp_path, "--case=no_such_case")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "no case has that name")


def test_cases_are_listed_with_their_rules(tmp_path: Path) -> None:
    done = run(tmp_path, "--list", "--case=windowed/")
    assert done.returncode == 0
    assert {line.split("/")[0] for line in done.stdout.splitlines()} == {"windowed"}
