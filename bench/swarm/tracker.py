"""A tracker that knows all peers from the start, and names to each all the others.

python -m p2psync.bench.swarm.tracker ADDRESS PORT PEER …     (PEER: address:port)
"""

from __future__ import annotations

import asyncio
import sys

from p2psync.bench.swarm.jsonl import write_line
from p2psync.bench.swarm.metainfo import bencode

#: Seconds after which clients may ask again.
_INTERVAL = 2


def answer(asker: str, peers: list[str]) -> bytes:
    """Returns the answer to an announcement from the address `asker`."""
    compact = b""
    for peer in peers:
        address, port = peer.split(":")
        if address != asker:
            compact += bytes(map(int, address.split("."))) + int(port).to_bytes(2, "big")
    return bencode({b"interval": _INTERVAL, b"min interval": _INTERVAL, b"peers": compact})


async def main(address: str, port: int, peers: list[str]) -> None:
    """Serve until killed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readline()).strip():
            pass  # whatever is asked, the answer is the same
        body = answer(writer.get_extra_info("peername")[0], peers)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, address, port)
    write_line({"listening": port})
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
