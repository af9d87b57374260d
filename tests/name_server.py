"""A DNS server on loopback whose names have the addresses that a test gives them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Answers with the IPv4 addresses of the moment, which nobody may keep.

    A name without addresses does not exist, as that of a headless service without a ready pod.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, set[str]] = {}
        self.question_count = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, client: tuple[str, int]) -> None:
        assert self._transport is not None
        self.question_count += 1
        self._transport.sendto(answer(dns.message.from_wire(data), self.addresses).to_wire(), client)

    @property
    def port(self) -> int:
        """The UDP port it listens on."""
        assert self._transport is not None
        port: int = self._transport.get_extra_info("sockname")[1]
        return port

    def target(self, name: str, port: int) -> str:
        """Return the gRPC target that is looked up here."""
        return f"dns://127.0.0.1:{self.port}/{name}:{port}"


def answer(query: dns.message.Message, addresses: Mapping[str, set[str]]) -> dns.message.Message:
    """Answer a query; names have no addresses of other families."""
    (question,) = query.question
    found = addresses.get(question.name.to_text(omit_final_dot=True), set())
    response = dns.message.make_response(query)
    response.flags |= dns.flags.AA
    if not found:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype == dns.rdatatype.A:
        response.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", *sorted(found)))
    return response


@asynccontextmanager
async def open_name_server() -> AsyncIterator[NameServer]:
    """Serve names on a free port."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
