"""The bare loop: an agent's turn without a gateway, written by hand.

One streamed call by aiohttp's client, JSON, a function call, and the next model call.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from pydantic_core import from_json, to_json
from yarl import URL

HEADERS = {"authorization": "Bearer sk-bench", "content-type": "application/json"}
SYSTEM = "You are a helpful assistant. " * 8
ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Says back what it was told.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def echo(text: str) -> str:
    return text


class Reply:
    """A streamed reply, joined from its pieces."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[dict[str, Any]] = []
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event != b"data: [DONE]":
                for choice in from_json(event[6:])["choices"]:
                    self._take(choice["delta"])

    def _take(self, delta: Mapping[str, Any]) -> None:
        self.text += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            told = piece["function"]
            if piece["index"] == len(self.calls):
                function = {"name": told["name"], "arguments": ""}
                self.calls.append({"id": piece["id"], "type": "function", "function": function})
            self.calls[piece["index"]]["function"]["arguments"] += told.get("arguments", "")


class BareLoop:
    def __init__(self, http: aiohttp.ClientSession, model: str) -> None:
        self._http, self._url = http, URL(f"{model}/chat/completions", encoded=True)

    async def turn(self, question: str) -> str:
        """Returns the answer after the model has requested its last tool."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ]
        while True:
            reply = await self._reply(messages)
            if not reply.calls:
                return reply.text
            said = {"role": "assistant", "content": reply.text, "tool_calls": reply.calls}
            messages.append(said)
            for call in reply.calls:
                result = echo(**from_json(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def _reply(self, messages: list[dict[str, Any]]) -> Reply:
        asked = {
            "model": "mock-1",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": messages,
            "tools": [ECHO],
        }
        reply = Reply()
        async with self._http.post(self._url, data=to_json(asked), headers=HEADERS) as answer:
            async for data in answer.content.iter_any():
                reply.feed(data)
        return reply


@asynccontextmanager
async def bare_loop(model: str) -> AsyncIterator[BareLoop]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    ) as http:
        yield BareLoop(http, model)
