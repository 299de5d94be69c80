"""The cost of one streamed model call by the gateway's own client and by aiohttp's.

    python -m bench.exchange [--calls 3000] [--rounds 5]

Both read the same prebuilt answer of 20 words from the mock model server, a separate process, over
kept connections on one loop; the rounds alternate. The figure is the CPU time of this process only,
for one and for 32 concurrent callers, with all words in one write and with one word a millisecond.
"""

import argparse
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from statistics import median

import aiohttp
import anyio
from yarl import URL

from bench.targets import ModelPlan, model
from gateway.domain.ports import HttpCall
from gateway.outbound.connection import open_outbound

HEADERS = {
    "user-agent": "exogate",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "accept": "text/event-stream",
    "authorization": "Bearer sk-bench",
}
BODY = b'{"model":"mock-1","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (
    b"x" * 2000
)
Ask = Callable[[], Awaitable[int]]  # one call; returns the number of bytes


@asynccontextmanager
async def own(url: str) -> AsyncIterator[Ask]:
    call = HttpCall("POST", url, HEADERS, BODY)
    async with open_outbound() as http:

        async def ask() -> int:
            size = 0
            with closing(await http.send(call)) as answer:
                while data := await answer.read_some():
                    size += len(data)
            return size

        yield ask


@asynccontextmanager
async def aiohttps(url: str) -> AsyncIterator[Ask]:
    """Opens aiohttp's client set up for speed: no cookies, redirects or decompression, one timeout."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=10, sock_read=60),
    ) as session:
        parsed = URL(url, encoded=True)

        async def ask() -> int:
            size = 0
            async with session.post(
                parsed, headers=HEADERS, data=BODY, allow_redirects=False
            ) as answer:
                while data := await answer.content.readany():
                    size += len(data)
            return size

        yield ask


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _cpu_us(ask: Ask, callers: int, calls: int) -> float:
    """Returns CPU microseconds per call."""

    async def caller() -> None:
        for _ in range(calls // callers):
            await ask()

    began = _cpu_s()
    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(caller)
    return (_cpu_s() - began) / (calls // callers * callers) * 1e6


async def _measure(url: str, callers: int, calls: int, rounds: int) -> tuple[float, float]:
    """Returns the medians of the own client and of aiohttp's."""
    async with own(url) as ours, aiohttps(url) as theirs:
        assert await ours() == await theirs()  # checks equal bytes, and warms both up
        found = [
            (await _cpu_us(ours, callers, calls), await _cpu_us(theirs, callers, calls))
            for _ in range(rounds)
        ]
    return median(one for one, _ in found), median(other for _, other in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("CPU µs a streamed call           own   aiohttp   ratio")
    for name, interval_ms in (("one write", 0.0), ("a word a ms", 1.0)):
        with model(ModelPlan(interval_ms=interval_ms)) as server:
            url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
            for callers in (1, 32):
                calls = args.calls if callers > 1 or not interval_ms else args.calls // 10
                run = partial(_measure, url, callers, calls, args.rounds)
                ours, theirs = anyio.run(run, backend_options={"use_uvloop": True})
                told = f"{name}, {callers} at once"
                print(f"{told:28} {ours:8.0f} {theirs:9.0f} {ours / theirs:7.2f}")


if __name__ == "__main__":
    main()
