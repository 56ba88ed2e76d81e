"""What a check finds of exports to collectors."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.checking.findings import Section, Severity
from slotmesh.cli.commands.check import findings_of
from slotmesh.v1.info_service_pb2 import ExportStanding
from tests.unit.cli.checking.meshes import CONTROLLER_ANSWER, NOW, SEEN, one, with_router


def test_exports_that_no_collector_takes() -> None:
    since = Timestamp(seconds=int(NOW) - 300)
    failing = with_router(exports=ExportStanding(dropped_spans=1_200, traces_fail_time=since))
    expected = "no collector has taken all traces of router/r for 5 min; 1,200 spans were dropped"
    assert one(failing, Section.EXPORTS) == (Severity.WARNING, "", expected)
    failing = with_router(exports=ExportStanding(metrics_fail_time=since))
    assert one(failing, Section.EXPORTS)[2] == "no collector has taken all metrics of router/r for 5 min"
    well = with_router(exports=ExportStanding(dropped_spans=7))
    (finding,) = [it for it in findings_of(well) if it.section is Section.EXPORTS]
    assert (finding.severity, finding.text) == (
        Severity.OK,
        "collectors take the exports of 2 servers; 7 spans were dropped earlier",
    )
    nothing = replace(SEEN, answers=(CONTROLLER_ANSWER,))
    assert not [it for it in findings_of(nothing) if it.section is Section.EXPORTS], "it exports nothing"
