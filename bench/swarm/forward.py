"""Passes TCP connections on, as a port forwarding of a router does.

python -m p2psync.bench.swarm.forward ADDRESS PORT TO_ADDRESS TO_PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def main(address: str, port: int, to_address: str, to_port: int) -> None:
    """Forwards connections until it is killed."""

    async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(1 << 16):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(to_address, to_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy_stream(reader, back), copy_stream(there, writer))

    server = await asyncio.start_server(passing, address, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
