"""How servers are named: each form, and what the message about another one says."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.discovery.targets import DnsName, parse_target, parse_targets


@pytest.mark.parametrize(
    ("text", "expected", "normal"),
    [
        ("10.0.0.1:7070", "10.0.0.1:7070", "10.0.0.1:7070"),
        ("router:7071", "router:7071", "router:7071"),
        ("[::1]:7071", "[::1]:7071", "[::1]:7071"),
        ("dns:///a.mesh.svc:7070", DnsName("a.mesh.svc", 7070), "dns:///a.mesh.svc:7070"),
        ("dns:///[::1]:7070", DnsName("::1", 7070), "dns:///[::1]:7070"),
        ("dns://10.0.0.10/a:70", DnsName("a", 70, ("10.0.0.10", 53)), "dns://10.0.0.10:53/a:70"),
        ("dns://10.0.0.10:5353/a:70", DnsName("a", 70, ("10.0.0.10", 5353)), "dns://10.0.0.10:5353/a:70"),
        ("dns://[fd00::a]:5353/a:70", DnsName("a", 70, ("fd00::a", 5353)), "dns://[fd00::a]:5353/a:70"),
        ("dns://[fd00::a]/a:70", DnsName("a", 70, ("fd00::a", 53)), "dns://[fd00::a]:53/a:70"),
    ],
)
def test_a_target_is_read_and_written(text: str, expected: object, normal: str) -> None:
    target = parse_target(text)
    assert target == expected
    assert str(target) == normal
    assert parse_target(normal) == target


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost", "expected HOST:PORT or dns:///NAME:PORT, got 'localhost'"),
        ("xds:///a:1", "expected HOST:PORT or dns:///NAME:PORT"),
        ("dns:a:70", "expected dns:///NAME:PORT (three slashes), got 'dns:a:70'"),
        ("dns://a:70", "expected dns:///NAME:PORT (three slashes), got 'dns://a:70'"),
        ("dns:/a:70", "(three slashes)"),
        ("dns:///a", "expected dns:///NAME:PORT, with the port of the servers, got 'dns:///a'"),
        ("dns:///", "with the port of the servers"),
        ("dns:///a:0", "with the port of the servers"),
        ("dns:///a/b:70", "with the port of the servers"),
        ("dns://resolver/a:70", "expected the IP address of a DNS server before the name"),
        ("dns://resolver:53/a:70", "or nothing there (dns:///NAME:PORT), got 'dns://resolver:53/a:70'"),
        ("dns://10.0.0.10:0/a:70", "expected the IP address of a DNS server"),
        ("dns://[fd00::a:53/a:70", "expected the IP address of a DNS server"),
    ],
)
def test_another_form_is_refused_with_the_right_one(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as refusal:
        parse_target(text)
    assert message in str(refusal.value)


def test_several_are_each_one_once_in_the_order_given() -> None:
    expected = ("b:1", DnsName("a", 70), "c:2")
    assert parse_targets("b:1, dns:///a:70,c:2,b:1") == expected
    assert parse_targets(["b:1", " dns:///a:70", "c:2"]) == expected


@pytest.mark.parametrize("given", ["", "a:1,", [], [""], 7, [7]])
def test_none_or_no_text_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT or dns:///NAME:PORT"):
        parse_targets(given)
