"""Which certificates a server may show: those that the others will take for it."""

from __future__ import annotations

from slotmesh.security.identity import Role, identity_of, server_name, uri_of
from slotmesh.security.tls.certificates import matches
from slotmesh.security.tls.files import TlsMaterial


def server_problem(material: TlsMaterial, role: Role, backend: str = "") -> str | None:
    """Why a server of this role, and a replica of this backend, cannot be known by this material; None where it can.

    The problem follows the name of the file in a message.
    """
    issue = f"`slotmesh certs issue {role}{f'/{backend}' if backend else ''}` makes one"
    if material.leaf is None:
        return f"there is no certificate, and a server needs one (--tls-cert and --tls-key); {issue}"
    if not material.uri:
        return f"names no identity such as {uri_of(material.trust_domain or 'slotmesh.local', role)}; {issue}"
    identity = identity_of(material.uri, material.trust_domain)
    if identity is None or role not in identity.roles:
        return f"names {material.uri}, which is no {role}; {issue}"
    if backend and not identity.may_serve(backend):
        return f"names {material.uri}, which may not serve backend {backend}; {issue}"
    if material.leaf.usages is not None and (missing := {"server", "client"} - material.leaf.usages):
        return f"may not be used as that of a {' and a '.join(sorted(missing))} (extended key usage); {issue}"
    name = server_name(material.trust_domain, role, backend)
    if not matches(name, material.leaf.dns_names):
        return f"lacks the DNS name {name}, by which others know this server; {issue}"
    return None
