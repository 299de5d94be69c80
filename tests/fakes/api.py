"""A platform's HTTP API over loopback: keeps what it was asked, and answers as a test says."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any  # None: there was none


@dataclass(frozen=True, slots=True)
class Told:
    """None as the body: nothing at all."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def serving(answer: Callable[[ApiCall], Awaitable[Told]]) -> AsyncIterator[str]:
    """Its address."""

    async def handle(request: web.Request) -> web.Response:
        raw = await request.read()
        told = await answer(
            ApiCall(
                request.method,
                request.path,
                dict(request.query),
                {name.lower(): value for name, value in request.headers.items()},
                json.loads(raw) if raw else None,
            )
        )
        if told.body is None:
            return web.Response(status=told.status, headers=told.headers)
        return web.json_response(told.body, status=told.status, headers=told.headers)

    runner = web.AppRunner(_app(handle), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _app(handle: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", handle)
    return app
