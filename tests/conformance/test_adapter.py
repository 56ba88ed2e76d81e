"""What the suite reports of an adapter that breaks the protocol of its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slotmesh.conformance import adapter as adapter_module
from slotmesh.conformance.adapter import adapter_process
from slotmesh.conformance.case import CAPABILITIES, SESSIONS, load_cases
from slotmesh.conformance.player import play
from slotmesh.conformance.report import CaseProblem
from slotmesh.conformance.waiting import AdapterError

READY = '{"ready": {"client": "x", "level": "basic", "capabilities": ["no_reply", "reply"]}}'
RESET = '{"reset": true}'


def script(folder: Path, **answers: str) -> list[str]:
    """An adapter that writes these lines when it reads a command of that name."""
    path = folder / "adapter.py"
    path.write_text(
        f"import json, sys\nprint({READY!r}, flush=True)\n"
        f"for line in sys.stdin:\n    print({answers!r}.get(json.loads(line)['do'], ''), end='', flush=True)\n"
    )
    return [sys.executable, str(path)]


async def problem_of(folder: Path, **answers: str) -> CaseProblem:
    """What is wrong with `basic/no_router`, which makes the call `a`."""
    case = next(each for each in load_cases() if each.name == "basic/no_router")
    async with adapter_process(script(folder, **answers)) as adapter:
        problem = await play(case, adapter)
        if adapter.lost:
            with pytest.raises(AdapterError, match="reset"):
                await play(case, adapter)
    assert problem is not None
    return problem


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (['{"id": "a", "result": "x"}'], ()),
        (
            ['{"id": "a", "result": "x"}'] * 4,
            ("'a' was reported again: {'id': 'a', 'result': 'x'}, then {'id': 'a', 'result': 'x'} (3 such lines)",),
        ),
        (['{"id": "a", "outcome": "x"}'], ("a report has an id and one of result, error",)),
        (["hello", "world"], ("stdout is for reports, got b'hello\\n' (2 such lines)",)),
        (['{"note": 1}'], ("not a report: {'note': 1}",)),
    ],
)
async def test_a_line_that_is_no_report_is_shown_once(
    tmp_path: Path, lines: list[str], errors: tuple[str, ...]
) -> None:
    problem = await problem_of(tmp_path, call="".join(f"{line}\n" for line in lines), reset=f"{RESET}\n")
    assert len(problem.adapter_errors) == len(errors)
    assert all(found.startswith(error) for found, error in zip(problem.adapter_errors, errors, strict=True))


@pytest.mark.asyncio
async def test_without_an_answer_to_reset_the_report_of_the_case_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_module, "RESET_TIMEOUT_S", 0.1)
    problem = await problem_of(tmp_path, call='{"id": "a", "result": "x"}\n')
    assert "ROUTER_LOST" in problem.expected
    assert problem.adapter_errors[-1] == (
        'the adapter has not written {"reset": true} within 0.1 s of the command `reset`'
    )


def test_a_lost_adapter_ends_the_program_with_2_after_the_report_of_its_case(tmp_path: Path) -> None:
    command = script(tmp_path, call="")
    with Path(command[1]).open("a", encoding="utf-8") as source:
        source.write("    if json.loads(line)['do'] == 'call': sys.exit(3)\n")
    suite = [sys.executable, "-m", "slotmesh.conformance", "--case=basic/empty_payloads", "--client", " ".join(command)]
    done = subprocess.run(suite, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no case needs the capability 'reply'; there are chunks, no_reply," in done.stdout
    assert "the adapter has ended" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed")
    assert done.stderr.strip() == "the adapter has ended with status 3"


def test_each_capability_has_a_case() -> None:
    assert set().union(*(case.needs for case in load_cases())) == {*CAPABILITIES, SESSIONS}
