"""The client of the token loop (`host`), as a process of its own: standard library only.

    python token_client.py PORT SEQUENCES TOKENS

Opens a connection for each sequence, sends a request on it and reads its stream to the end, all at
once. Prints seconds to the first token and seconds between tokens, means over sequences.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import fmean


async def time_sequence(port: int, tokens: int) -> tuple[float, float]:
    """Seconds to the first token and between tokens of one request."""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": "kitchen " * 128, "max_tokens": tokens}).encode()
    writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    first = last = 0.0
    count = 0
    while line := await reader.readline():
        if not line.startswith(b"data:"):
            continue
        json.loads(line[5:])
        last = time.perf_counter()
        first = first or last
        count += 1
    writer.close()
    return first - start, (last - first) / max(count - 1, 1)


async def main(port: int, sequences: int, tokens: int) -> None:
    """Run all sequences at once and print the means."""
    done = await asyncio.gather(*(time_sequence(port, tokens) for _ in range(sequences)))
    firsts, steps = zip(*done, strict=True)
    print(fmean(firsts), fmean(steps))  # noqa: T201 - its answer


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4])))
