"""`python delay.py PORT TARGET_PORT SECONDS`: proxy to another port of this machine that delays each request."""

from __future__ import annotations

import asyncio
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    while data := await reader.read(1 << 16):
        await asyncio.sleep(seconds)
        writer.write(data)
        await writer.drain()
    writer.close()


async def _main(port: int, target: int, seconds: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pump(reader, requests, seconds), _pump(answers, writer, 0), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=256)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
