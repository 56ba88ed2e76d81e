"""Each thing that a check finds, from what was seen of a mesh."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from slotmesh.cli.checking.findings import (
    AnnouncedAddress,
    IngressFacts,
    LostMember,
    OwnTls,
    Section,
    SeenMesh,
    ServerAnswer,
    Severity,
    Validity,
)
from slotmesh.cli.commands.check import document_of, findings_of, is_well, not_answering, print_findings
from slotmesh.cli.controller_view import FAILED_STATE, STARTING_STATE
from slotmesh.spec.model import Endpoint, TrafficPolicy
from slotmesh.spec.routes import Route
from slotmesh.v1 import rollout_pb2
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    DAY_S,
    NOW,
    REPLICA,
    REPLICA_ANSWER,
    ROUTER,
    ROUTER_ANSWER,
    SEEN,
    SNAPSHOT,
    announced,
    but,
    on_hold,
    one,
    with_replicas,
    with_router,
    wrong,
)


def test_a_healthy_mesh_is_green_in_every_section() -> None:
    findings = findings_of(SEEN)
    assert {it.severity for it in findings} == {Severity.OK}
    # Certificates and ingresses are looked at where there are some, a host where it is asked for.
    assert {it.section for it in findings} == {*Section} - {Section.CERTIFICATES, Section.HTTP, Section.HOST}


def test_a_controller_that_reconciles_nothing_is_wrong_and_the_finding_names_members_and_the_way_out() -> None:
    newer = ("router/r holds revision 9, which this state file never had", "replica/a holds revision 8")
    held = replace(SEEN, snapshot=replace(SNAPSHOT, controller=on_hold(*newer)))
    (found,) = wrong(held, Section.CONTROLLER)
    severity, subject, text = one(held, Section.CONTROLLER)
    assert (severity, subject) == (Severity.ERROR, "controller 127.0.0.1:1")
    assert all(each in text for each in newer)
    assert "slotmesh state adopt --from-members" in found.fix
    assert "slotmesh state adopt --discard-members" in found.fix


def test_no_router_is_to_be_started_again_while_the_controller_is_on_hold() -> None:
    controller = on_hold("router/r holds revision 9")
    snapshot = replace(SNAPSHOT, controller=controller, members=replace(SNAPSHOT.members, table_revision=3))
    lost = LostMember("router/q", NOW - 5.0, "was silent past its lease")
    held = replace(SEEN, snapshot=snapshot, lagging_routers=frozenset({"r"}), lost_members=(lost,))
    found = wrong(held, Section.ROUTERS)
    assert [it.text for it in found if it.subject == "router/r"] == ["r goes on with revision 5 of the routing table"]
    for each in (*found, *wrong(replace(held, silent_routers={"r": 9.0}), Section.ROUTERS)):
        assert "end the hold first" in each.fix
        assert "start it again" not in each.fix
    empty = replace(snapshot.members, routers=(changed(ROUTER, table_revision=0),))
    assert (
        "no routing table" in wrong(replace(held, snapshot=replace(snapshot, members=empty)), Section.ROUTERS)[0].text
    )


def test_what_does_not_answer_is_wrong_and_metrics_are_a_warning() -> None:
    gone = with_router(problem="no answer within 3 s")
    severity, subject, text = one(gone, Section.REACHABILITY)
    assert (severity, subject) == (Severity.ERROR, "router/r")
    assert "127.0.0.1:2 does not answer from here: no answer within 3 s" in text
    metrics = replace(announced("metrics of a router", "127.0.0.1:9"), subject="router/r")
    answers = (*SEEN.answers, ServerAnswer(announced=metrics, problem="Connection refused"))
    assert one(replace(SEEN, answers=answers), Section.REACHABILITY)[0] is Severity.WARNING


def test_a_router_without_the_balancer_of_a_backend_is_a_warning() -> None:
    members = replace(SNAPSHOT.members, routers=(changed(ROUTER, unknown_balancers=("a:Own", "b:Own")),))
    lacking = replace(SEEN, snapshot=replace(SNAPSHOT, members=members))
    severity, subject, text = one(lacking, Section.ROUTERS)
    assert (severity, subject) == (Severity.WARNING, "router/r")
    assert text == "r does not have balancer a:Own, b:Own, and uses least_loaded"


def test_a_replica_that_only_routers_reach_is_a_warning() -> None:
    answers = (CONTROLLER_ANSWER, ROUTER_ANSWER, replace(REPLICA_ANSWER, problem="refused"))
    assert one(replace(SEEN, answers=answers), Section.REACHABILITY)[0] is Severity.WARNING
    unlinked = replace(SNAPSHOT.members, routers=(changed(ROUTER, linked_replica_ids=frozenset()),))
    seen = replace(SEEN, answers=answers, snapshot=replace(SNAPSHOT, members=unlinked))
    assert one(seen, Section.REACHABILITY)[0] is Severity.ERROR


def test_another_server_at_an_address_is_wrong() -> None:
    assert "another one answers: r-2" in one(with_router(server_id="r-2"), Section.REACHABILITY)[2]


def test_two_leaders_and_a_standby_of_another_mesh() -> None:
    standby = but(ServerAnswer(announced=announced("standby", "h:1")), leads=False, leader_address="127.0.0.1:1")
    assert not wrong(replace(SEEN, answers=(*SEEN.answers, standby)), Section.CONTROLLER)
    assert "1 standing by" in [it.text for it in findings_of(replace(SEEN, answers=(*SEEN.answers, standby)))]
    second = replace(SEEN, answers=(*SEEN.answers, but(standby, leads=True, leader_address="h:1")))
    assert one(second, Section.CONTROLLER) == (
        Severity.ERROR,
        "",
        "several controllers lead: 127.0.0.1:1, h:1",
    )
    same = but(standby, leads=True, leader_address="127.0.0.1:1")
    assert not wrong(replace(SEEN, answers=(*SEEN.answers, same)), Section.CONTROLLER), "it has two addresses"
    stray = replace(SEEN, answers=(*SEEN.answers, but(standby, leader_address="h:9")))
    assert one(stray, Section.CONTROLLER)[0] is Severity.WARNING


@pytest.mark.parametrize(
    ("left_s", "severity", "text"),
    [
        (-3 * DAY_S, Severity.ERROR, "certificate of router/r ended 3 days ago"),
        (17 * DAY_S, Severity.WARNING, "certificate of router/r ends in 17 days"),
        (30 * DAY_S, None, ""),
    ],
)
def test_certificates_that_end(left_s: float, severity: Severity | None, text: str) -> None:
    """It lasts for 90 days, and a fifth of that is soon."""
    own = Validity(NOW - DAY_S, NOW + 60 * DAY_S)
    ends_at = NOW + left_s
    seen = replace(
        with_router(
            certificate=Validity(ends_at - 90 * DAY_S, ends_at), certificate_uris=("spiffe://mesh.test/router",)
        ),
        own_tls=OwnTls(by_tls=True, certificate=own),
    )
    if severity is None:
        assert "2 certificates are valid, the first ends in 30 days" in [it.text for it in findings_of(seen)]
    else:
        assert one(seen, Section.CERTIFICATES) == (severity, "router/r", text)


@pytest.mark.parametrize("uri", ["spiffe://m/client/eve", "spiffe://m/controller", "spiffe://other/router", ""])
def test_who_passes_for_a_router_is_not_one(uri: str) -> None:
    """It has the DNS name of one, by which everybody connects."""
    own = OwnTls(by_tls=True, name="spiffe://m/operator/ops")
    valid: dict[str, Any] = {"certificate": Validity(NOW - DAY_S, NOW + 60 * DAY_S)}
    seen = replace(with_router(**valid, certificate_uris=("spiffe://m/router",)), own_tls=own)
    assert not wrong(seen, Section.CERTIFICATES)
    seen = replace(with_router(**valid, certificate_uris=(uri,) if uri else ()), own_tls=own)
    expected = f"{uri or 'no identity'} answers at 127.0.0.1:2, and is no router of this mesh"
    assert one(seen, Section.CERTIFICATES) == (Severity.ERROR, "router/r", expected)


def test_starts_that_wait_are_a_warning() -> None:
    waits = replace(SEEN, snapshot=replace(SNAPSHOT, deferred_starts={"b": "no device\nis free"}))
    severity, subject, text = one(waits, Section.BACKENDS)
    assert (severity, subject) == (Severity.WARNING, "backend/b")
    assert text == "missing replicas of b cannot be started now, and it is tried again: no device is free"


def test_a_replica_is_one_of_its_backend() -> None:
    own = OwnTls(by_tls=True, name="spiffe://m/operator/ops")

    def seen_by(uri: str) -> SeenMesh:
        replica = replace(
            REPLICA_ANSWER,
            announced=replace(REPLICA_ANSWER.announced, backend="b"),
            certificate=Validity(NOW - DAY_S, NOW + 60 * DAY_S),
            certificate_uris=(uri,),
        )
        return replace(SEEN, own_tls=own, answers=(CONTROLLER_ANSWER, ROUTER_ANSWER, replica))

    for uri in ("spiffe://m/replica", "spiffe://m/replica/b"):
        assert not wrong(seen_by(uri), Section.CERTIFICATES)
    assert "is no replica of b of this mesh" in one(seen_by("spiffe://m/replica/c"), Section.CERTIFICATES)[2]


def test_the_own_certificate_and_that_of_the_authority_are_looked_at() -> None:
    own = OwnTls(
        by_tls=True,
        name="spiffe://m/operator/ops",
        certificate=Validity(NOW - DAY_S, NOW - 1),
        authority=Validity(NOW - 365 * DAY_S, NOW + DAY_S),
    )
    ended, soon = wrong(replace(SEEN, own_tls=own), Section.CERTIFICATES)
    assert (ended.severity, soon.severity) == (Severity.ERROR, Severity.WARNING)
    assert "spiffe://m/operator/ops" in ended.text
    assert "authority" in soon.text


def test_plain_text_off_loopback_is_a_warning() -> None:
    seen = with_router(announced=announced("router", "10.0.0.5:7071", "r"))
    assert one(seen, Section.SECURITY) == (
        Severity.WARNING,
        "",
        "in plain text and without asking who calls: 10.0.0.5:7071",
    )
    assert not wrong(replace(seen, own_tls=OwnTls(by_tls=True)), Section.SECURITY)


def with_ingress(address: str = "127.0.0.1:8080", **facts: Any) -> SeenMesh:
    known = IngressFacts(**{"by_tls": False, "follows_controller": True, **facts})
    answer = but(ServerAnswer(announced=announced("ingress", address), ingress=known), version="1.0.0")
    return replace(SEEN, answers=(*SEEN.answers, answer))


def test_an_ingress_that_is_well_is_green() -> None:
    findings = [it for it in findings_of(with_ingress()) if it.section is Section.HTTP]
    assert [(it.severity, it.text) for it in findings] == [(Severity.OK, "1 of 1 ingresses are ready")]
    assert is_well(findings_of(with_ingress(tells_routes=False, follows_controller=None)))


def test_an_ingress_that_is_not_ready_is_wrong_and_old_routes_are_a_warning() -> None:
    severity, subject, text = one(with_ingress(not_ready="no routes yet"), Section.HTTP)
    assert (severity, subject) == (Severity.ERROR, "ingress 127.0.0.1:8080")
    assert "no routes yet" in text
    severity, _, text = one(with_ingress(follows_controller=False, routes_held=True), Section.HTTP)
    assert severity is Severity.WARNING
    assert "keeps its routes: the state file of the controller that it follows is an older copy" in text
    severity, _, text = one(with_ingress(follows_controller=False), Section.HTTP)
    assert (severity, "may be old" in text) == (Severity.WARNING, True)


def test_an_ingress_that_does_not_answer_is_wrong() -> None:
    answer = ServerAnswer(announced=announced("ingress", "10.0.0.9:443"), problem="its certificate is not trusted: x")
    severity, subject, text = one(replace(SEEN, answers=(*SEEN.answers, answer)), Section.REACHABILITY)
    assert (severity, subject) == (Severity.ERROR, "ingress 10.0.0.9:443")
    assert text.endswith("does not answer from here: its certificate is not trusted: x")


def test_http_in_plain_text_off_loopback_is_a_warning() -> None:
    severity, subject, text = one(with_ingress("10.0.0.9:80"), Section.SECURITY)
    assert (severity, subject) == (Severity.WARNING, "ingress 10.0.0.9:80")
    assert "bearer tokens included" in text
    assert not wrong(with_ingress("10.0.0.9:443", by_tls=True), Section.SECURITY)


def test_certificates_of_ingresses_end_and_are_of_no_role() -> None:
    seen = with_ingress("10.0.0.9:443", by_tls=True)
    shown = replace(seen.answers[-1], certificate=Validity(NOW - 89 * DAY_S, NOW + DAY_S))
    (finding,) = wrong(replace(seen, answers=(*seen.answers[:-1], shown)), Section.CERTIFICATES)
    assert finding.severity is Severity.WARNING
    assert "--https-cert" in finding.fix


def test_versions_that_differ_from_each_other_and_from_the_command() -> None:
    mixed = wrong(with_router(version="0.9.0"), Section.VERSIONS)
    assert [it.text for it in mixed] == [
        "several versions: 0.9.0 at router/r",
        "this command is of 1.0.0, servers of 0.9.0",
    ]
    assert {it.severity for it in mixed} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "severity"),
    [
        (5.0, 0.1, Severity.WARNING),
        (-400.0, 0.1, Severity.ERROR),
        (2.0, 1.5, None),
        (0.9, 0.0, None),
    ],
)
def test_clocks_that_differ_by_more_than_the_answer_took(
    ahead_s: float, uncertain_s: float, severity: Severity | None
) -> None:
    found = wrong(with_router(ahead_s=ahead_s, uncertain_s=uncertain_s), Section.CLOCKS)
    assert [it.severity for it in found] == ([] if severity is None else [severity])
    assert all(it.subject == "router/r" for it in found)


def test_the_clock_of_this_machine_is_the_one_that_is_off() -> None:
    answers = (CONTROLLER_ANSWER, replace(ROUTER_ANSWER, ahead_s=60.0), replace(REPLICA_ANSWER, ahead_s=60.1))
    assert (
        "the clock of this machine is 60.0 s behind the others"
        in one(replace(SEEN, answers=answers), Section.CLOCKS)[2]
    )


@pytest.mark.parametrize(("open_", "severity"), [(800, Severity.WARNING), (960, Severity.ERROR)])
def test_descriptors_that_run_out(open_: int, severity: Severity) -> None:
    assert one(with_router(open_descriptors=open_), Section.DESCRIPTORS)[:2] == (severity, "router/r")


def test_routers_that_are_silent_behind_or_without_links() -> None:
    assert "said nothing for 12 s" in one(replace(SEEN, silent_routers={"r": 12.0}), Section.ROUTERS)[2]
    newer = replace(SEEN, snapshot=replace(SNAPSHOT, members=replace(SNAPSHOT.members, table_revision=7)))
    lagging = one(replace(newer, lagging_routers=frozenset({"r"})), Section.ROUTERS)
    assert lagging == (Severity.ERROR, "router/r", "r has revision 5 of the routing table, not 7")
    other = replace(SEEN, snapshot=replace(SNAPSHOT, members=replace(SNAPSHOT.members, generation="h")))
    assert "of another controller" in one(replace(other, lagging_routers=frozenset({"r"})), Section.ROUTERS)[2]
    assert "no link to 1 ready replicas: b-1" in one(replace(SEEN, unlinked={"r": ("b-1",)}), Section.ROUTERS)[2]
    none = replace(SEEN, snapshot=replace(SNAPSHOT, members=replace(SNAPSHOT.members, routers=())))
    assert one(none, Section.ROUTERS)[0] is Severity.ERROR


def test_backends_without_replicas_and_why() -> None:
    failed = changed(REPLICA, state=FAILED_STATE, error="Traceback\nRuntimeError: no model")
    severity, subject, text = one(with_replicas(failed), Section.BACKENDS)
    assert (severity, subject) == (Severity.ERROR, "backend/b")
    calls = "calls fail, or wait while a replica starts, and ordering keys have no owner"
    assert text == f"b has 0 of 1 replicas ready; {calls}: RuntimeError: no model"
    assert one(with_replicas(REPLICA, wanted=2), Section.BACKENDS)[0] is Severity.WARNING
    looping = changed(REPLICA, replica_id="b-2", state=STARTING_STATE, restart_count=7)
    assert "restarted 7 times" in one(with_replicas(REPLICA, looping, wanted=2), Section.BACKENDS)[2]
    assert one(with_replicas(REPLICA, looping, wanted=2), Section.BACKENDS)[0] is Severity.ERROR
    assert one(with_replicas(wanted=None), Section.BACKENDS)[2].startswith("b has no replica; calls fail, or wait")
    assert one(with_replicas(wanted=0), Section.BACKENDS)[0] is Severity.ERROR
    unused = replace(with_replicas(wanted=0).snapshot, endpoints=())
    assert not wrong(replace(SEEN, snapshot=unused), Section.BACKENDS)
    # With no certain number, one is enough.
    assert not wrong(with_replicas(REPLICA, wanted=None), Section.BACKENDS)


def test_endpoints_that_lead_nowhere_or_to_what_there_is_not() -> None:
    nowhere = replace(SNAPSHOT, endpoints=(Endpoint(name="e"),))
    assert one(replace(SEEN, snapshot=nowhere), Section.ENDPOINTS)[0] is Severity.WARNING
    lost = replace(SNAPSHOT, endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"b": 0.5, "x": 0.5})),))
    assert one(replace(SEEN, snapshot=lost), Section.ENDPOINTS) == (
        Severity.ERROR,
        "endpoint/e",
        "e leads to backends that do not exist: x",
    )
    assert one(replace(SEEN, snapshot=replace(SNAPSHOT, endpoints=())), Section.ENDPOINTS)[0] is Severity.WARNING


def test_a_mesh_that_does_not_answer_is_one_red_line_with_the_way_out() -> None:
    findings = not_answering("no controller answers at h:1; name a controller with --address")
    assert [(it.severity, it.text, it.fix) for it in findings] == [
        (Severity.ERROR, "no controller answers at h:1", "name a controller with --address")
    ]
    assert not is_well(findings)


def test_both_forms_have_the_same() -> None:
    findings = findings_of(with_router(problem="refused", version=""))
    document = json.loads(json.dumps(document_of(findings)))
    assert (document["well"], document["errors"], document["warnings"]) == (False, 1, 0)
    out = io.StringIO()
    print_findings(findings, out)
    for finding in document["findings"]:
        assert f"{finding['text']}\n" in out.getvalue()
        assert (finding["fix"] or "") in out.getvalue()
    assert out.getvalue().endswith("\n1 error, 0 warnings\n")


def test_a_route_to_no_endpoint_is_told() -> None:
    seen = replace(
        SEEN, routes=(Route(path="/a", endpoint="e", method="m"), Route(path="/b", endpoint="E", method="m"))
    )
    severity, subject, text = one(seen, Section.ENDPOINTS)
    assert (severity, subject) == (Severity.WARNING, "route/b")
    assert text == "route /b leads to endpoint E, which does not exist: its requests get 404"


def test_a_controller_that_only_the_command_names_is_a_warning_if_it_does_not_answer() -> None:
    named = AnnouncedAddress(subject="controller h:1", kind="controller", address="h:1", is_listed=False)
    for each, expected in ((named, Severity.WARNING), (replace(named, is_listed=True), Severity.ERROR)):
        seen = replace(SEEN, answers=(*SEEN.answers, ServerAnswer(announced=each, problem="refused")))
        severity, _, text = one(seen, Section.REACHABILITY)
        assert (severity, "h:1 does not answer" in text) == (expected, True)


def test_on_hold_nothing_is_compared_with_the_configuration_of_the_state_file() -> None:
    controller = on_hold("router/r holds revision 9")
    failing = rollout_pb2.Rollout(backend="b", problem="it dies", phase=rollout_pb2.ROLLOUT_PHASE_FAILING)
    older = replace(SNAPSHOT, controller=controller, endpoints=(), backends=(), rollouts=(failing,))
    assert wrong(replace(SEEN, snapshot=replace(older, controller=SNAPSHOT.controller)), Section.BACKENDS)
    problems = [it for it in findings_of(replace(SEEN, snapshot=older)) if it.severity is not Severity.OK]
    assert [it.section for it in problems] == [Section.CONTROLLER]
    assert "are not compared with the state file" in problems[0].text
