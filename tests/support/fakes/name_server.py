"""A DNS server on loopback, whose records tests set: real queries and answers, by UDP.

A name that is not there is NXDOMAIN. While it is `silent`, no query is answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Use it as `async with NameServer() as names:`."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        """Name -> its IPv4 addresses."""
        self.silent = False
        self.of_v6: int | None = dns.rcode.NOERROR
        """The response code of queries for IPv6 addresses, of which there are none; None: they are not answered."""
        self.queries: Counter[str] = Counter()
        """By name; two a lookup, of addresses of either version."""
        self.address = ""
        self._transport: Any = None

    def target(self, name: str, port: int) -> str:
        """The name as a target that this server resolves."""
        return f"dns://{self.address}/{name}:{port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._transport.get_extra_info("sockname"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        name = question.name.to_text(omit_final_dot=True)
        is_v4 = question.rdtype == dns.rdatatype.A
        self.queries[name] += 1
        if self.silent:
            return
        response = dns.message.make_response(query)
        if not is_v4 and self.of_v6 != dns.rcode.NOERROR:
            if self.of_v6 is None:
                return
            response.set_rcode(dns.rcode.Rcode(self.of_v6))
        elif name not in self.records:
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif is_v4 and self.records[name]:
            response.answer.append(dns.rrset.from_text_list(question.name, 5, "IN", "A", self.records[name]))
        self._transport.sendto(response.to_wire(), addr)
